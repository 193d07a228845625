"""Locks in the store: who holds them is told, they end with their process, are queued for,
stolen and audited.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from optics import Locked, Missing, Port, StoreFailed
from orchestrator.processes import process_alive, process_mark
from orchestrator.store import clock as clockset
from orchestrator.store.audit import Who, audit
from orchestrator.store.locks import KEPT_S, OFTEN, Locks, hold
from orchestrator.store.scope import WHOLE, Scope
from orchestrator.store.store import Store

HOLD = """
import asyncio, sys, pathlib
from orchestrator.store.audit import Who, audit
from orchestrator.store.locks import KEPT_S, OFTEN, Locks, hold
from orchestrator.store.scope import Scope
from orchestrator.store.store import Store

async def main():
    with Store(pathlib.Path(sys.argv[1]), durable=False) as store:
        run = store.new_run("up", "lab", user="ann")
        async with hold(Locks(store, "lab", Who("ann", "ann")), Scope(frozenset({"gpu01", "gpu02"})), "up ring-12") as held:
            held.bind(run)
            print(held.id, flush=True)
            for line in sys.stdin:
                with run.step("device", "ocs1", "-1 +1"):
                    print("stepped", flush=True)

asyncio.run(main())
"""


class Holder:
    """Another process that holds gpu01 and gpu02 and makes a step whenever told."""

    def __init__(self, path: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.lock = self.process.stdout.readline().strip()
        assert self.lock, self.process.communicate()[1]

    def step(self) -> str:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def end(self, number: int = signal.SIGKILL) -> str:
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.communicate()[1]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store" / "testbed.sqlite3"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with Store(path, durable=False) as made:
        yield made


@pytest.fixture
def holder(store: Store, path: Path) -> Iterator[Holder]:
    made = Holder(path)
    yield made
    made.end()


def bob(store: Store) -> Locks:
    return Locks(store, "lab", Who("bob", "bob"))


A, B = (
    Scope(frozenset({"gpu02", "gpu03"})),
    Scope(frozenset({"gpu04"}), frozenset({Port("ocs1", "4")})),
)


def test_the_second_is_told_who_holds_what_since_when_why_and_by_which_id(
    store: Store, holder: Holder
) -> None:
    with pytest.raises(Locked) as caught:
        bob(store).take("run", A, "up torus")
    output = str(caught.value)
    assert output.startswith(
        f"gpu02 is locked by ann on {socket.gethostname()} (pid {holder.process.pid}) since "
    )
    assert output.endswith(f": up ring-12 [lock {holder.lock}]")
    assert caught.value.exit_code == 4
    assert "--wait" in caught.value.hint and f"process {holder.process.pid}" in caught.value.hint


def test_what_shares_nothing_is_held_at_the_same_time(store: Store, holder: Holder) -> None:
    assert bob(store).take("run", B, "up pair").state == "active"
    assert [lock.owner for lock in bob(store).listed()] == ["ann", "bob"]


def test_a_killed_holder_holds_nothing_and_the_audit_says_so(store: Store, holder: Holder) -> None:
    holder.end()
    locks = bob(store)
    assert locks.take("run", A, "up torus").state == "active"
    died = locks.get(holder.lock)
    assert died is not None and died.state == "died" and died.ended is not None
    assert [(r.what, r.subject) for r in audit(store, "lab")][-2:] == [
        ("died", holder.lock),
        ("locked", holder.lock),
    ]


def test_a_stolen_lock_stops_its_run_before_the_next_step(store: Store, holder: Holder) -> None:
    assert holder.step() == "stepped"
    locks = bob(store)
    taken = locks.steal(holder.lock, "ann is at sea")
    assert taken is not None and taken.owner == "ann"
    assert holder.step() == ""
    output = holder.end()
    assert f"Locked: run {time.strftime('%Y-%m-%d')}-0001 no longer holds the lab" in output
    assert f"its lock {holder.lock} was stolen by bob at" in output and "ann is at sea" in output
    stolen = next(r for r in audit(store, "lab") if r.what == "stolen")
    assert (stolen.user, stolen.pid, stolen.subject) == ("bob", os.getpid(), holder.lock)
    assert "up ring-12" in stolen.why and "ann is at sea" in stolen.why
    steps = store.steps(f"{time.strftime('%Y-%m-%d')}-0001")
    assert [s.state for s in steps] == ["done", "planned"]


@pytest.mark.parametrize("others", [False, True])
def test_a_lock_that_a_full_disk_kept_from_being_released_is_by_the_next_request_of_its_process(
    store: Store, monkeypatch: pytest.MonkeyPatch, others: bool
) -> None:
    """A process that lives on (a guard, the watch over a change to be confirmed) would wait for its
    own lock without end.
    """
    ann = Locks(store, "lab", Who("ann", "ann"))

    async def change(wait_s: float = 0.0) -> str:
        async with hold(ann, WHOLE, "rollback", wait_s=wait_s) as held:
            monkeypatch.setattr(ann, "_end", full)
            return held.id

    def full(*_: object) -> None:
        raise StoreFailed("the disk is full")

    first = asyncio.run(change())
    monkeypatch.undo()
    assert ann.seen() == []
    if others:
        assert ann.listed() == []
    second = asyncio.run(change(0.5))
    assert second != first
    assert [one.what for one in audit(store, "lab") if one.subject == first] == [
        "released",
        "locked",
    ]


def test_a_reservation_outlives_its_process_and_ends_at_its_time(store: Store) -> None:
    ann = Locks(store, "lab", Who("ann", "ann", pid=2**22 - 1))
    made = ann.take("reservation", A, "demo", for_s=0.3)
    with pytest.raises(
        Locked, match=r"is reserved by ann on \S+ since \S+ until \S+: demo"
    ) as caught:
        bob(store).take("run", A, "up torus")
    assert "expires" in caught.value.hint
    assert ann.take("run", A, "up ring").state == "active"  # an owner's own runs are what it is for
    give_up = time.monotonic() + 5
    while (found := bob(store).get(made.id)) is not None and found.state == "active":
        assert time.monotonic() < give_up
        time.sleep(0.02)
    assert found is not None and found.state == "expired" and found.ended == made.expires


def test_a_run_waits_for_its_turn_and_hears_whom_it_waits_for(store: Store, holder: Holder) -> None:
    heard: list[str] = []

    async def wait(waits: asyncio.Event) -> str:
        def shown(text: str) -> None:
            heard.append(text)
            waits.set()

        async with hold(bob(store), A, "up torus", wait_s=20, notify=shown) as held:
            return held.lock.state

    async def both() -> str:
        waits = asyncio.Event()
        waiting = asyncio.ensure_future(wait(waits))
        await waits.wait()
        assert [(lock.owner, lock.state) for lock in bob(store).listed()] == [
            ("ann", "active"),
            ("bob", "waiting"),
        ]
        holder.end()
        return await waiting

    assert asyncio.run(both()) == "active"
    assert "ann" in heard[0] and f"[lock {holder.lock}]" in heard[0] and len(heard) == 1
    assert bob(store).listed() == []


def test_waiting_has_an_end_and_leaves_no_trace_in_the_queue(store: Store, holder: Holder) -> None:
    async def wait() -> None:
        async with hold(bob(store), A, "up torus", wait_s=0.2):
            pytest.fail("held what somebody else holds")

    with pytest.raises(Locked, match="up ring-12"):
        asyncio.run(wait())
    assert [lock.owner for lock in bob(store).listed()] == ["ann"]


def test_a_lock_grows_unless_somebody_holds_the_rest(store: Store, holder: Holder) -> None:
    locks = bob(store)
    mine = locks.take("run", B, "up pair")
    locks.extend(mine.id, Scope(ports=frozenset({Port("ocs1", "5")})))
    with pytest.raises(Locked, match="gpu01 is locked by ann"):
        locks.extend(mine.id, Scope(frozenset({"gpu01"})))
    held = locks.get(mine.id)
    assert held is not None and str(held.scope) == "gpu04, ocs1:4,5"


def test_a_stolen_lock_does_not_grow(store: Store) -> None:
    locks = bob(store)
    mine = locks.take("run", B, "up pair")
    Locks(store, "lab", Who("ann", "ann")).steal(mine.id, "mine")
    with pytest.raises(Locked, match="stolen by ann"):
        locks.extend(mine.id, A)
    assert locks.release(mine.id) is None


def test_following_a_lock_that_is_not_there_is_refused(store: Store) -> None:
    with pytest.raises(Missing, match="no lock abc is held"):
        bob(store).take("reservation", WHOLE, "later", for_s=60, after="abc")


def test_a_follower_begins_when_the_one_before_ends(store: Store) -> None:
    ann, locks = Locks(store, "lab", Who("ann", "ann")), bob(store)
    first = ann.take("reservation", A, "demo", for_s=60)
    follows = locks.take("reservation", A, "after the demo", for_s=60, after=first.id)
    assert follows.state == "waiting" and [one.id for one in locks.ahead(follows.id)] == [first.id]
    ann.release(first.id)
    [now] = locks.listed()
    assert (now.id, now.state) == (follows.id, "active") and now.expires == now.since + 60


def test_labs_do_not_know_each_others_locks(store: Store, holder: Holder) -> None:
    other = Locks(store, "other", Who("bob", "bob"))
    assert other.take("run", WHOLE, "up").state == "active"
    assert other.get(holder.lock) is None and other.steal(holder.lock, "x") is None


def test_a_process_is_told_from_the_next_one_of_its_number() -> None:
    mark = process_mark(os.getpid())
    assert process_alive(os.getpid(), mark)
    boot = mark.partition("/")[0]
    assert not process_alive(os.getpid(), f"{boot}/1")
    assert not process_alive(2**22 - 1, f"{boot}/1")
    assert not process_alive(os.getpid(), "another boot/1")


def test_a_process_that_only_its_owner_may_see_is_taken_to_live(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mark = process_mark(os.getpid())
    monkeypatch.setattr("orchestrator.processes._stat", lambda pid: "")

    def kill(pid: int, number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", kill)
    assert process_alive(os.getpid(), mark)


@pytest.mark.parametrize("step", [365 * 86_400.0, -365 * 86_400.0], ids=["ahead", "back"])
def test_a_wall_clock_that_is_set_ends_nobodys_reservation_and_makes_none_longer(
    store: Store, monkeypatch: pytest.MonkeyPatch, step: float
) -> None:
    locks = Locks(store, "lab", Who("ann", "ann"))
    made = locks.take("reservation", Scope(frozenset({"gpu01"})), "demo", for_s=3600.0)
    assert made.expires is not None
    wall, boot = time.time(), clockset.boot_clock_ns()
    monkeypatch.setattr(time, "time", lambda: wall + step)
    (kept,) = locks.listed()
    assert kept.expires is not None and abs(kept.expires - made.expires - step) < 10
    assert (
        audit(store, "lab")[0].what == "clock set"
        and f"{step:+.0f}"[:6] in audit(store, "lab")[0].why
    )
    # an hour later by either clock
    monkeypatch.setattr(clockset, "boot_clock_ns", lambda: boot + int(3601e9))
    monkeypatch.setattr(time, "time", lambda: wall + step + 3601)
    assert locks.listed() == []


def test_after_a_restart_of_the_machine_only_the_wall_clock_tells_when_a_reservation_ends(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    locks = Locks(store, "lab", Who("ann", "ann"))
    locks.take("reservation", Scope(frozenset({"gpu01"})), "demo", for_s=3600.0)
    wall = time.time()
    monkeypatch.setattr(clockset, "boot_id", lambda: "another boot")
    monkeypatch.setattr(clockset, "boot_clock_ns", lambda: int(60e9))
    monkeypatch.setattr(time, "time", lambda: wall + 1800)
    assert len(locks.listed()) == 1
    monkeypatch.setattr(clockset, "boot_clock_ns", lambda: int(1900e9))
    monkeypatch.setattr(time, "time", lambda: wall + 3640)
    assert locks.listed() == []


def test_a_date_stays_a_date_when_the_wall_clock_is_set(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    locks = Locks(store, "lab", Who("ann", "ann"))
    now = time.time()
    made = locks.take("reservation", Scope(frozenset({"gpu01"})), "demo", for_s=60.0, at=now + 3600)
    locks.take("reservation", Scope(frozenset({"gpu02"})), "now", for_s=60.0)
    monkeypatch.setattr(time, "time", lambda: now + 1800)
    kept, moved = locks.listed()
    assert (kept.state, kept.since, kept.expires) == ("booked", made.since, made.expires)
    assert moved.expires is not None and abs(moved.expires - now - 1860) < 10


def test_a_command_that_is_killed_while_it_books_has_booked_nothing(
    store: Store, path: Path
) -> None:
    script = """
import os, pathlib, signal, sys, time
from orchestrator.store import locks
from orchestrator.store.audit import Who
from orchestrator.store.scope import Scope
from orchestrator.store.store import Store

if len(sys.argv) > 2:
    locks.add_audit = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
with Store(pathlib.Path(sys.argv[1])) as store:
    mine = locks.Locks(store, "lab", Who("bob", "bob"))
    mine.take("reservation", Scope(frozenset({"gpu01"})), "x", for_s=60.0, at=time.time() + 60)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    locks = Locks(store, "lab", Who("ann", "ann"))
    argv = [sys.executable, "-c", script, str(path)]
    assert subprocess.run([*argv, "inside"], check=False).returncode == -signal.SIGKILL
    assert locks.listed() == []
    assert subprocess.run(argv, check=False).returncode == -signal.SIGKILL
    assert [one.state for one in locks.listed()] == ["booked"], "its end comes by itself"


def test_ended_locks_are_forgotten_after_ninety_days_and_others_are_not(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    locks = Locks(store, "lab", Who("ann", "ann"))
    old = locks.take("reservation", Scope(frozenset({"gpu01"})), "old", for_s=1.0)
    date = locks.take(
        "reservation", Scope(frozenset({"gpu01"})), "d", for_s=9.0, at=time.time() + 9e6
    )
    now = time.time()
    monkeypatch.setattr(clockset, "moved_s", lambda *_: 0.0)
    monkeypatch.setattr("orchestrator.store.locks.moved_s", lambda *_: 0.0)
    assert [one.id for one in locks.between(now, now + 1e8)] == [old.id, date.id]
    monkeypatch.setattr(time, "time", lambda: now + KEPT_S + 60)
    for _ in range(OFTEN):
        locks.release(locks.take("run", Scope(frozenset({"gpu02"})), "up").id)
    assert locks.get(old.id) is None and locks.get(date.id) is not None
