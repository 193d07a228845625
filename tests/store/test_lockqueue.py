"""Who holds and who waits, as time passes: never two that meet, nobody passed, and the same however
seldom one looks.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.store.lock_queue import LIVE, Lock, blockers, overlapping, settle_locks
from orchestrator.store.scope import WHOLE, Scope


def lock(seq: int, owner: str = "ann", hosts: str = "a", **more: object) -> Lock:
    values: dict[str, object] = {
        "id": f"l{seq}",
        "kind": "reservation",
        "owner": owner,
        "user": owner,
        "host": "here",
        "pid": 100 + seq,
        "process": "",
        "reason": "",
        "scope": WHOLE if hosts == "*" else Scope(frozenset(hosts)),
        "state": "waiting",
        "seq": seq,
        "asked": 0.0,
        "since": 0.0,
    }
    if values["kind"] == "reservation":
        values["for_s"] = 10.0
    return Lock(**(values | more))  # type: ignore[arg-type]


def nobody(one: Lock) -> bool:
    return False


def run(seq: int, owner: str, hosts: str, **more: object) -> Lock:
    return lock(seq, owner, hosts, kind="run", for_s=None, **more)


def booked(seq: int, owner: str, hosts: str, at: float, for_s: float = 10.0) -> Lock:
    return lock(seq, owner, hosts, state="booked", since=at, for_s=for_s, expires=at + for_s)


@st.composite
def queues(draw: st.DrawFn) -> list[Lock]:
    found: list[Lock] = []
    for seq in range(draw(st.integers(1, 7))):
        owner, hosts = (
            draw(st.sampled_from(["ann", "bob", "cid"])),
            draw(st.sampled_from(["a", "b", "ab", "bc", "c", "*"])),
        )
        after = draw(st.sampled_from(["", "", *(other.id for other in found)]))
        if draw(st.integers(0, 3)) == 0 and not after:
            made = booked(seq, owner, hosts, float(draw(st.integers(1, 60))))
            if overlapping(made, found):
                continue
        elif draw(st.booleans()):
            made = run(seq, owner, hosts, after=after)
        else:
            made = lock(seq, owner, hosts, for_s=float(draw(st.integers(1, 9))), after=after)
        found.append(made)
    return found


@given(queues(), st.sets(st.integers(0, 6)))
def test_two_locks_that_meet_are_never_active_together(queue: list[Lock], dead: set[int]) -> None:
    live, _ = settle_locks(queue, 0.0, nobody)
    for now in range(1, 60, 5):
        live, _ = settle_locks(live, float(now), lambda one, now=now: now > 20 and one.seq in dead)  # type: ignore[misc]
        active = [one for one in live if one.state == "active"]
        assert not [pair for pair in combinations(active, 2) if pair[0].meets(pair[1])]


@given(queues(), st.lists(st.integers(1, 80), max_size=6))
def test_looking_seldom_or_often_comes_to_the_same(queue: list[Lock], looks: list[int]) -> None:
    start, _ = settle_locks(queue, 0.0, nobody)
    seldom, once = settle_locks(start, 80.0, nobody)
    often = start
    changes: dict[str, Lock] = {}
    for now in [*sorted(looks), 80]:
        often, changed = settle_locks(often, float(now), nobody)
        changes |= {one.id: one for one in changed}
    assert often == seldom
    assert {one.id: one for one in once} == changes


@given(queues())
def test_everybody_gets_his_turn_once_the_others_end(queue: list[Lock]) -> None:
    live, changed = settle_locks(queue, 0.0, nobody)
    had = {one.id for one in changed}
    for now in range(1, 200, 10):
        # whoever runs has ended by the next look
        live, changed = settle_locks(live, float(now), lambda one: one.state == "active")
        had |= {one.id for one in changed if one.state in ("active", "expired")}
    assert had == {one.id for one in queue}
    assert not live


def test_a_reservation_expires_and_the_next_begins_at_that_time() -> None:
    held = lock(1, "ann", state="active", expires=10.0)
    live, changed = settle_locks([held, lock(2, "bob")], 14.0, nobody)
    assert [(one.owner, one.state, one.since, one.expires) for one in live] == [
        ("bob", "active", 10.0, 20.0)
    ]
    assert [(one.id, one.state, one.ended) for one in changed] == [
        ("l1", "expired", 10.0),
        ("l2", "active", None),
    ]


def test_a_reservation_nobody_looked_at_has_its_time_and_is_over() -> None:
    live, changed = settle_locks(
        [lock(1, "ann", state="active", expires=10.0), lock(2, "bob")], 25.0, nobody
    )
    assert live == []
    assert [(one.id, one.state, one.since, one.ended) for one in changed] == [
        ("l1", "expired", 0.0, 10.0),
        ("l2", "expired", 10.0, 20.0),
    ]


def test_a_run_ends_with_its_process_and_a_waiting_one_too() -> None:
    locks = [run(1, "ann", "a", state="active"), run(2, "bob", "a"), run(3, "cid", "a")]
    live, _ = settle_locks(locks, 5.0, lambda one: one.seq < 3)
    assert [(one.owner, one.state, one.since) for one in live] == [("cid", "active", 5.0)]


def test_a_reservation_does_not_end_with_the_process_that_made_it() -> None:
    live, changed = settle_locks(
        [lock(1, "ann", state="active", expires=99.0)], 5.0, lambda one: True
    )
    assert len(live) == 1 and not changed


def test_an_owners_runs_go_on_inside_what_he_reserved_but_only_one_at_a_time() -> None:
    mine = lock(1, "ann", "ab", state="active", expires=99.0)
    first = run(2, "ann", "a", state="active")
    assert blockers(first, [mine], 0.0) == []
    assert blockers(run(3, "ann", "a"), [mine, first], 0.0) == [first]
    assert blockers(run(3, "bob", "a"), [mine, first], 0.0) == [mine, first]


def test_who_waits_is_not_passed() -> None:
    held, waits = run(1, "ann", "a", state="active"), run(2, "bob", "ab")
    assert blockers(run(3, "cid", "b"), [held, waits], 0.0) == [waits]
    assert blockers(run(3, "cid", "c"), [held, waits], 0.0) == []


def test_who_waits_for_my_reservation_does_not_keep_me_out_of_it() -> None:
    mine, waits = lock(1, "ann", "ab", state="active", expires=99.0), run(2, "bob", "ab")
    assert blockers(run(3, "ann", "a"), [mine, waits], 0.0) == []
    assert (
        blockers(run(3, "ann", "ac"), [mine, replace(waits, scope=Scope(frozenset("abc")))], 0.0)
        == []
    )
    # else she could reserve for ever
    assert blockers(lock(3, "ann", "a"), [mine, waits], 0.0) == [waits]


def test_who_follows_a_certain_lock_waits_for_it_and_keeps_nobody_waiting_meanwhile() -> None:
    first, follows = (
        lock(1, "ann", "a", state="active", expires=10.0),
        lock(2, "bob", "b", after="l1"),
    )
    live, _ = settle_locks([first, follows], 5.0, nobody)
    assert [one.state for one in live] == ["active", "waiting"]
    assert blockers(run(3, "cid", "b"), live, 0.0) == []
    live, _ = settle_locks(live, 10.0, nobody)
    assert [(one.owner, one.state) for one in live] == [("bob", "active")]


def test_a_job_is_launched_and_stopped_within_the_slots_of_its_owner_and_nobody_elses() -> None:
    scheduler, waits = run(1, "ann", "ab", state="active", role="schedule"), run(2, "bob", "ab")
    launch = run(3, "ann", "a", role="job", within="schedule")
    assert (
        blockers(launch, [scheduler], 0.0)
        == []
        == blockers(scheduler, [replace(launch, state="active")], 0.0)
    )
    assert blockers(launch, [scheduler, waits], 0.0) == [], "the scheduler keeps bob waiting anyway"
    assert blockers(replace(launch, owner="bob"), [scheduler], 0.0) == [scheduler]
    assert blockers(run(3, "ann", "a"), [scheduler], 0.0) == [scheduler]
    assert blockers(
        replace(launch, seq=4, id="l4"), [scheduler, replace(launch, state="active")], 0.0
    )


def test_no_reason_that_somebody_writes_lets_a_lock_pass() -> None:
    scheduler = run(1, "ann", "ab", state="active", role="schedule")
    assert blockers(
        run(3, "ann", "a", reason="job launch while slots change"), [scheduler], 0.0
    ) == [scheduler]


def test_states_that_count_are_two() -> None:
    assert LIVE == ("active", "waiting")


def test_a_booked_reservation_begins_at_its_date_and_ends_at_its_date() -> None:
    live, changed = settle_locks([booked(1, "ann", "a", 20.0)], 19.0, nobody)
    assert [one.state for one in live] == ["booked"] and changed == []
    assert blockers(run(2, "bob", "a"), live, 19.0) == [], "until then others use it"
    live, _ = settle_locks(live, 25.0, nobody)
    assert [(one.state, one.since, one.expires) for one in live] == [("active", 20.0, 30.0)]
    assert blockers(run(2, "bob", "a"), live, 25.0) == live
    live, changed = settle_locks(live, 99.0, nobody)
    assert live == [] and [(one.state, one.ended) for one in changed] == [("expired", 30.0)]


def test_a_booked_reservation_waits_for_a_run_first_of_all_and_ends_at_its_date_all_the_same() -> (
    None
):
    works = run(2, "bob", "a", state="active")
    live, _ = settle_locks([booked(1, "ann", "a", 20.0), works], 21.0, nobody)
    assert blockers(run(3, "cid", "a"), live, 21.0)[-1].owner == "ann"
    live, _ = settle_locks([one for one in live if one is not works], 24.0, nobody)
    assert [(one.state, one.since, one.expires) for one in live] == [("active", 24.0, 30.0)]
    live, changed = settle_locks([booked(1, "ann", "a", 20.0), works], 31.0, nobody)
    assert live == [works] and [one.state for one in changed] == ["expired"]


def test_a_reservation_that_would_run_into_a_booked_one_waits_until_that_is_over() -> None:
    date = booked(1, "ann", "a", 20.0)
    assert blockers(lock(2, "bob", "a", for_s=15.0), [date], 10.0) == [date]
    assert blockers(lock(2, "bob", "a", for_s=10.0), [date], 10.0) == []
    assert blockers(lock(2, "ann", "a", for_s=15.0), [date], 10.0) == [], "her own may overlap"
    live, _ = settle_locks([date, lock(2, "bob", "a", for_s=15.0, asked=10.0)], 10.0, nobody)
    assert [one.state for one in live] == ["booked", "waiting"]
    assert blockers(run(3, "cid", "a"), live, 10.0) == [], "runs use the time until then"
    live, _ = settle_locks(live, 30.0, nobody)
    assert [(one.owner, one.since, one.expires) for one in live] == [("bob", 30.0, 45.0)]


def test_what_overlaps_a_date_counts_those_that_hold_are_booked_and_wait() -> None:
    held = lock(1, "bob", "a", state="active", expires=15.0)
    waits = lock(2, "cid", "a", for_s=10.0)
    date = booked(3, "bob", "a", 40.0)
    live = [held, waits, date]

    def names(at: float, for_s: float, owner: str = "ann") -> list[str]:
        return [one.id for one in overlapping(booked(9, owner, "a", at, for_s), live)]

    assert names(14.0, 1.0) == ["l1"]
    assert names(15.0, 5.0) == ["l2"], "it will begin at 15 and end at 25"
    assert names(25.0, 15.0) == [], "between what ends and what begins"
    assert names(0.0, 99.0) == ["l1", "l2", "l3"]
    assert names(0.0, 99.0, "bob") == ["l2"]
