"""The agreement about a move, whatever order messages and steps come in: one decision, and no wait
past the lease.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workloads.collectives.ring_changes import RingChanges
from workloads.collectives.sets import Layout, Sets, read_layout
from workloads.host.place import PlannedRingChange

WORLD = 3
Arrivals = Mapping[int, list[tuple[int, dict[str, object]]]]
NATURAL, OTHER = ((0, 1, 2),), ((0, 2, 1),)


class Store:
    """What ranks use of torch's store, with its bytes."""

    def __init__(self) -> None:
        self.kept: dict[str, str] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: str) -> None:
        with self._changed:
            self.kept[key] = value
            self._changed.notify_all()

    def get(self, key: str) -> bytes:
        return self.kept[key].encode()

    def check(self, keys: list[str]) -> bool:
        return all(key in self.kept for key in keys)

    def add(self, key: str, more: int) -> int:
        with self._changed:
            self.kept[key] = str(int(self.kept.get(key, "0")) + more)
            return int(self.kept[key])

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        with self._changed:
            if self.kept.get(key, "") == expected:
                self.kept[key] = desired
                self._changed.notify_all()
            return self.kept[key].encode()

    def wait(self, keys: list[str], within: timedelta) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: self.check(keys), within.total_seconds()):
                raise RuntimeError("wait timeout")


@dataclass
class Connected:
    """A set that connects nothing."""

    layout: Layout
    open: bool = True
    ended: str = ""

    def close(self) -> None:
        assert self.open
        self.open = False

    def lost(self) -> str:
        return self.ended


@dataclass
class Rank:
    """One rank: its ring changes, what it answered, and the sets it ever had."""

    number: int
    store: Store
    made: list[Connected] = field(default_factory=list)
    used: list[Layout] = field(default_factory=list)
    sent: list[dict[str, Any]] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)
    asked: bool = False

    def __post_init__(self) -> None:
        self.sets = Sets(Layout(NATURAL), self._make, lambda found: self.used.append(found.layout))
        self.sets.begin(self.store, 1.0)
        self.ring_changes = self.with_planned(())

    def with_planned(self, planned: tuple[PlannedRingChange, ...]) -> RingChanges:
        ring_changes = RingChanges(
            self.number,
            WORLD,
            self.store,
            lambda: self.store,
            self.sets,
            lambda message, current: read_layout(message, current, WORLD, None),
            timeout_s=1.0,
            planned=planned,
            asked_to_stop=lambda: self.asked,
            on_ring_change=self.records.append,
        )
        ring_changes.send = self.sent.append
        return ring_changes

    def _make(self, layout: Layout, *_: object) -> Connected:
        self.made.append(Connected(layout))
        return self.made[-1]

    def receive(self, message: Mapping[str, Any]) -> None:
        """Receive a message; a set that it made this rank form is formed when this returns."""
        before = set(threading.enumerate())
        self.ring_changes.receive(message)
        for thread in set(threading.enumerate()) - before:
            thread.join(10)

    @property
    def states(self) -> list[tuple[int, str]]:
        return [(message["move"], message["state"]) for message in self.sent]


def message(do: str, number: int, **more: object) -> dict[str, object]:
    return {"do": do, "move": number, "lease_s": 60, **more}


def iterate(
    ranks: list[Rank],
    iteration: int,
    between: Mapping[int, list[tuple[int, dict[str, object]]]] | None = None,
) -> list[bool]:
    """One iteration of all ranks: no rank ends it before all have begun it. between: what arrives
    after so many steps.
    """
    arrivals = between or {}
    for step, rank in enumerate(ranks):
        rank.ring_changes.before(iteration)
        for target, each in arrivals.get(step, ()):
            ranks[target].receive(each)
    stopped: dict[int, bool] = {}

    def end(rank: Rank) -> None:
        stopped[rank.number] = rank.ring_changes.after(iteration)

    threads = [threading.Thread(target=end, args=(rank,)) for rank in ranks]
    for step, thread in enumerate(threads):
        thread.start()
        for target, each in arrivals.get(WORLD + step, ()):
            ranks[target].receive(each)
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive(), "a rank waits past its lease"
    return [stopped[rank.number] for rank in ranks]


ASKED = st.one_of(
    st.builds(
        lambda n, rings: message("prepare", n, **rings),
        st.integers(1, 3),
        st.sampled_from([{}, {"rings": [[0, 2, 1]]}]),
    ),
    st.builds(lambda n: message("hold", n, lease_s=0.02), st.integers(1, 3)),
    st.builds(lambda n, decide: message("go", n, decide=decide), st.integers(1, 3), st.booleans()),
    st.builds(lambda n: message("drop", n), st.integers(1, 3)),
)
SENT = st.lists(
    st.tuples(
        st.integers(0, 7),
        st.integers(0, 2 * WORLD - 1),
        st.sets(st.integers(0, WORLD - 1), min_size=1),
        ASKED,
    ),
    max_size=14,
)
PREPARED = [(0, 0, {0, 1, 2}, message("prepare", 1, rings=[[0, 2, 1]]))]


@settings(max_examples=200, deadline=None)
@given(SENT, st.booleans(), st.lists(st.permutations(range(WORLD)), min_size=8, max_size=8))
def test_all_ranks_obey_the_same_decision_after_the_same_iteration(
    sent: list[tuple[int, int, set[int], dict[str, object]]],
    prepared: bool,
    orders: list[list[int]],
) -> None:
    store = Store()
    ranks = [Rank(number, store) for number in range(WORLD)]
    sent = PREPARED * prepared + sent
    for iteration in range(1, 9):
        between: dict[int, list[tuple[int, dict[str, object]]]] = {}
        for at, step, targets, each in sent:
            if at == iteration - 1:
                between.setdefault(step, []).extend((target, each) for target in targets)
        places = {number: place for place, number in enumerate(orders[iteration - 1])}
        order = [ranks[number] for number in orders[iteration - 1]]
        between = {
            step: [(places[target], each) for target, each in group]
            for step, group in between.items()
        }
        assert iterate(order, iteration, between) == [False] * WORLD
        assert len({rank.sets.layout for rank in ranks}) == 1, "they sum over the same rings"
    changed = [[(record["move"], record["after"]) for record in rank.records] for rank in ranks]
    assert changed[0] == changed[1] == changed[2]
    for number, after in changed[0]:
        assert store.kept[f"move/{number}"] == str(after) and store.kept[
            f"prepared/{number}"
        ] == str(WORLD)
    for rank in ranks:
        rank.ring_changes.close()
        open_now = [each for each in rank.made if each.open]
        assert len(open_now) <= 2 and rank.sets.current in open_now, (
            "the current set, the previous one, and no other"
        )
        # repeated to whoever asks later
        done = {number for number, state in rank.states if state == "changed"}
        assert done == {number for number, _ in changed[0]}


def test_a_stop_asked_at_a_hold_stops_all_ranks_there() -> None:
    store = Store()
    ranks = [Rank(number, store) for number in range(WORLD)]
    for rank in ranks:
        rank.receive(message("prepare", 1, rings=[[0, 2, 1]]))
    assert iterate(ranks, 1) == [False] * WORLD
    ranks[1].receive(message("hold", 1))
    ranks[2].asked = True
    assert iterate(ranks, 2) == [True] * WORLD
    assert store.kept["move/1"] == "stop"
    assert all(
        rank.states[-2:] == [(1, "held"), (1, "void")] and rank.sets.layout == Layout(NATURAL)
        for rank in ranks
    )


def test_without_all_ranks_prepared_nothing_is_decided_and_nobody_holds() -> None:
    store = Store()
    ranks = [Rank(number, store) for number in range(WORLD)]
    for rank in ranks[:2]:
        rank.receive(message("prepare", 1, rings=[[0, 2, 1]]))
        rank.receive(message("hold", 1))
        rank.receive(message("go", 1, decide=True))
    for iteration in (1, 2, 3):
        iterate(ranks, iteration)
    assert not {"move/1", "hold/1"} & set(store.kept)
    ranks[2].receive(message("prepare", 1, rings=[[0, 2, 1]]))
    iterate(ranks, 4)
    assert store.kept["move/1"] == "4"
    assert {rank.sets.layout for rank in ranks} == {Layout(OTHER)}


def test_planned_turns_come_at_their_boundaries_and_a_resumed_job_begins_with_the_last_of_them() -> (
    None
):
    planned = (
        PlannedRingChange(2, OTHER),
        PlannedRingChange(4, NATURAL),
        PlannedRingChange(6, OTHER),
    )
    rank = Rank(0, Store())
    rank.ring_changes = rank.with_planned(planned)
    seen = []
    for iteration in range(1, 8):
        rank.ring_changes.before(iteration)
        seen.append(rank.sets.layout.rings)
        rank.ring_changes.after(iteration)
    assert seen == [NATURAL, NATURAL, OTHER, OTHER, NATURAL, NATURAL, OTHER]
    resumed = Rank(0, Store())
    resumed.ring_changes = resumed.with_planned(planned)
    resumed.ring_changes.before(4)
    assert resumed.sets.layout.rings == OTHER
    resumed.receive(message("prepare", 9))
    assert resumed.sent[-1]["error"] == "TESTBED_RING_CHANGES has ring changes that are yet to come"


@pytest.mark.parametrize("lease_s", [0, -1, True, "5", 1e9, None])
def test_a_lease_that_is_no_time_is_refused(lease_s: object) -> None:
    rank = Rank(0, Store())
    rank.receive({"do": "prepare", "move": 1, "lease_s": lease_s})
    assert rank.sent[-1]["state"] == "cannot" and str(rank.sent[-1]["error"]).startswith(
        "lease_s: "
    )


def test_ranks_that_are_asked_for_different_layouts_do_not_turn() -> None:
    store = Store()
    ranks = [Rank(number, store) for number in range(WORLD)]
    for rank, rings in zip(ranks, ([[0, 2, 1]], [[0, 2, 1]], [[2, 1, 0]]), strict=True):
        rank.receive(message("prepare", 1, rings=rings))
        rank.receive(message("go", 1, decide=True))
    iterate(ranks, 1)
    assert (
        ranks[2].sent[0]["error"] == "another rank was asked to prepare move 1 with another layout"
    )
    assert "move/1" not in store.kept


def test_a_previous_set_that_lost_a_peer_is_made_anew() -> None:
    rank = Rank(0, Store())
    first = rank.made[0]
    rank.sets.change_rings(Layout(OTHER), rank._make(Layout(OTHER)))
    assert rank.sets.known(Layout(NATURAL))
    first.ended = "rank 1 closed its connection"
    assert not rank.sets.known(Layout(NATURAL))
    rank.sets.change_rings(Layout(NATURAL), again := rank._make(Layout(NATURAL)))
    assert rank.sets.current is again and not first.open
