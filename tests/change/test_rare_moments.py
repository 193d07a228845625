"""Moments at which a change went wrong in a seeded story, told without one: an agent that does not
run, routes under a new number, others that wait; judged by what devices and hosts hold, and by what
the store says."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Collection
from pathlib import Path

import pytest

from optics import HandsNeeded, HostPort, Interlock, RolledBack, Unreachable
from orchestrator.change import run as changes
from orchestrator.change.locking import scope_of
from orchestrator.hosts import Hello
from orchestrator.store.generations import next_generation
from orchestrator.store.locks import locks_of
from orchestrator.store.scope import Scope
from orchestrator.verbs import change as engine
from tests.drills.bench import NOW, Bench, Process, opened, plan_text

RING = [("gpu01:p1", "gpu02:p1"), ("gpu02:p2", "gpu03:p2")]
MOVED = [("gpu01:p3", "gpu02:p3"), ("gpu01:p2", "gpu02:p2")]  # gpu03 leaves


@pytest.fixture
async def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    monkeypatch.setattr(changes, "watch_over", lambda settings, run: os.getpid())
    async with opened(tmp_path) as made:
        yield made


async def test_down_asks_a_host_whose_agent_does_not_run_once_it_does(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.up(plan_text("ring", RING))
    hello, asleep = bench.fleet.hello, {"gpu03"}
    monkeypatch.setattr(
        bench.fleet, "hello", lambda name: Hello(name) if name in asleep else hello(name)
    )

    async def provision(names: list[str]) -> None:
        asleep.difference_update(names)

    monkeypatch.setattr(bench.fleet, "provision", provision)
    report = await bench.verb(engine.down)
    assert not report.left and not asleep
    assert {host.active for host in bench.fleet.all.values()} == {None}


async def test_down_lists_a_host_whose_agent_does_not_start(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.up(plan_text("ring", RING))
    hello = bench.fleet.hello
    monkeypatch.setattr(
        bench.fleet, "hello", lambda name: Hello(name) if name == "gpu03" else hello(name)
    )

    async def provision(names: list[str]) -> None:
        bench.fleet.all["gpu03"].up = False

    monkeypatch.setattr(bench.fleet, "provision", provision)
    report = await bench.verb(engine.down)
    assert [line.partition(":")[0] for line in report.left] == ["gpu03"]


async def test_a_rollback_asks_a_host_whose_agent_died_once_another_runs(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.up(plan_text("ring", RING))
    hello, asleep = bench.fleet.hello, set[str]()
    monkeypatch.setattr(
        bench.fleet, "hello", lambda name: Hello(name) if name in asleep else hello(name)
    )

    async def provision(names: list[str]) -> None:
        asleep.difference_update(names)

    monkeypatch.setattr(bench.fleet, "provision", provision)

    def die(name: str) -> None:  # it has done what was asked, and its answer is lost
        if name == "before hosts confirm 2":
            bench.requests.fail[len(bench.requests.names) + 1] = "lost"
            asleep.add("gpu01")
            bench.fleet.all["gpu01"].pending = False

    with pytest.raises(RolledBack):
        await bench.up(plan_text("moved", MOVED), process=Process("", act=die))
    assert {name: host.active for name, host in bench.fleet.all.items()} == {
        "gpu01": 1,
        "gpu02": 1,
        "gpu03": 1,
    }


async def test_restored_under_another_number_the_store_has_that_number(bench: Bench) -> None:
    await bench.up(plan_text("ring", RING))
    for host in bench.fleet.all.values():
        host.active, host.staged = None, {}

    def forget(name: str) -> None:
        if name == "before hosts commit 2":
            bench.fleet.all["gpu01"].staged.pop(2, None)

    await bench.verb(engine.restore, process=Process("", act=forget))
    with bench.store() as store:
        current = store.current(bench.tenancy())
    assert current is not None
    assert {host.active for host in bench.fleet.all.values()} == {current.generation}
    assert (await bench.status()).ok


async def test_a_rollback_that_needs_a_second_try_clears_the_hosts_that_leave_all_the_same(
    bench: Bench,
) -> None:
    await bench.up(plan_text("moved", MOVED))
    await bench.up(plan_text("ring", RING))

    def refuse(name: str) -> None:
        if name == "before hosts arm":
            bench.requests.fail[len(bench.requests.names) + 1] = "refused"

    report = await bench.verb(engine.rollback, None, process=Process("", act=refuse))
    assert any(note.startswith("at the second try") for note in report.notes)
    assert bench.fleet.all["gpu03"].active is None and (await bench.status()).ok


async def test_a_change_that_waits_to_be_confirmed_is_locked_with_the_hosts_that_leave(
    bench: Bench,
) -> None:
    await bench.up(plan_text("ring", RING))
    await bench.up(plan_text("moved", MOVED), confirm_s=60.0)
    with bench.store() as store:
        assert scope_of(bench.lab, bench.settings(), store).hosts == {"gpu01", "gpu02", "gpu03"}


async def test_a_change_is_left_to_be_confirmed_though_another_owner_waits_for_its_hosts(
    bench: Bench,
) -> None:
    bench.living.add("the drill")  # the process that waits

    def wait(name: str) -> None:
        if name != "before hosts arm":
            return
        token = NOW.set(None)
        with bench.store("bob") as store:
            locks = locks_of(bench.lab, bench.settings("bob"), store)
            assert (
                locks.take("run", Scope(frozenset({"gpu02"})), "up theirs", queue=True).state
                == "waiting"
            )
        NOW.reset(token)

    report = await bench.up(
        plan_text("moved", MOVED), confirm_s=60.0, process=Process("", act=wait)
    )
    assert report.confirm is not None and bench.held() == bench.wanted(MOVED)
    await bench.verb(engine.confirm, None)
    assert ["up theirs" in line for line in bench.locked()] == [True]


async def test_a_way_back_that_was_not_gone_whole_is_resumed(bench: Bench) -> None:
    await bench.up(plan_text("ring", RING))
    await bench.up(plan_text("moved", MOVED), confirm_s=1.0)
    with bench.store() as store:
        store.write("UPDATE awaited SET due_ns=0", ())
    fault = bench.servers["ocs1"].add_fault("refuse", on="write", after=0, count=100)
    with pytest.raises(HandsNeeded, match="was not confirmed in time") as stopped:
        await bench.verb(engine.confirm, None)
    bench.servers["ocs1"].remove_fault(fault)
    await bench.verb(engine.resume, stopped.value.hint.split()[-1])
    assert bench.held() == bench.wanted(RING) and not bench.owing() and not bench.locked()
    assert (await bench.status()).plan == "ring"


async def test_light_of_another_owner_is_no_part_of_a_plan_that_wants_the_same(
    bench: Bench,
) -> None:
    await bench.up(plan_text("ring", RING))
    for host in bench.fleet.all.values():  # a `down` died once it had cleared the hosts
        host.active, host.staged = None, {}
    with pytest.raises(Interlock, match=r"belongs to ann \(ring") as refused:
        await bench.up(plan_text("same", RING), owner="bob")
    assert "--adopt" in refused.value.hint
    await bench.up(plan_text("same", RING), owner="bob", adopt=("owner:ann",))
    assert not (await bench.verb(engine.down)).left and bench.held() == bench.wanted(RING)


async def test_routes_that_another_owner_runs_by_now_are_left_alone_by_a_rollback(
    bench: Bench,
) -> None:
    await bench.up(plan_text("ring", RING))
    other = bench.fleet.all["gpu03"]

    def take_over(name: str) -> None:
        if name == "before hosts arm":
            token = NOW.set(None)
            with bench.store("bob") as store:
                other.active = next_generation(store, bench.key, "bob")
            other.staged[other.active] = other.staged[1]
            NOW.reset(token)

    bench.fleet.dark.add(next(port for port in bench.lab.fibres if str(port) == MOVED[0][0]))
    with pytest.raises(HandsNeeded, match="gpu03: runs generation"):
        await bench.up(plan_text("moved", MOVED), process=Process("", act=take_over))
    with bench.store() as store:
        assert other.active not in (None, 1) and store.current(bench.tenancy()) is not None


@pytest.mark.parametrize("times", [1, 9])
async def test_a_host_that_could_not_be_disarmed_is_asked_again_and_told_of(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """A host that stays armed would change its routes by itself, once light comes to a port that
    had none in the change.
    """
    await bench.up(plan_text("ring", RING))
    bench.fleet.dark.add(HostPort("gpu02", 3))
    disarm, failures = (
        bench.fleet.routes.disarm,
        [Unreachable("gpu02: the connection ended")] * times,
    )

    async def fails(names: Collection[str]) -> None:
        if failures:
            raise failures.pop()
        await disarm(names)

    monkeypatch.setattr(bench.fleet.routes, "disarm", fails)
    with pytest.raises(RolledBack if times == 1 else HandsNeeded) as failed:
        await bench.up(plan_text("moved", MOVED))
    armed = [name for name, host in bench.fleet.all.items() if host.armed]
    assert armed == ([] if times == 1 else ["gpu02"])
    assert times == 1 or "gpu02: commits generation 2 once it has light" in str(failed.value)
