"""A change that fails is taken back whole, or what is left is listed; judged by what the devices
and hosts hold afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from optics import (
    ChangeFailed,
    CrossConnect,
    HandsNeeded,
    Interrupted,
    Port,
    RolledBack,
    TestbedError,
    Unreachable,
)
from orchestrator.change import rollback as undoing
from orchestrator.change.snapshot import Snapshot, before_of
from orchestrator.change.unfinished import left_behind
from orchestrator.store.store import Store
from tests.change.fleet import LAB, TENANCY, Bench, plan_text, ring

RING = plan_text("ring", *ring(1, 2))
MOVED = plan_text("moved", *ring(3, 2))  # the two links at ocs1 move to other ports
# One link stays, one moves to other ports, two go, and one host leaves.
TWO = plan_text("two", ("gpu01:p3", "gpu02:p3"), ("gpu02:p2", "gpu03:p2"))


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(undoing, "RETURN_S", 1.0)
    with Store(tmp_path / "store.sqlite3", durable=False) as store:
        yield Bench(store, tmp_path)


async def before(bench: Bench) -> tuple[Any, ...]:
    """A ring is up, and somebody else's circuit with it."""
    bench.switches["ocs2"].held |= {CrossConnect(Port("ocs2", "50"), Port("ocs2", "150"))}
    await bench.up(RING)
    bench.points.names.clear()
    return now(bench)


def now(bench: Bench) -> tuple[Any, ...]:
    """What counts: circuits, routes, and what the store says of both."""
    current = bench.store.current(TENANCY)
    assert current is None or {g for g in bench.generations().values() if g is not None} == {
        current.generation
    }
    return (
        bench.held(),
        bench.routes(),
        bench.store.owned(TENANCY),
        current and (current.plan_name, current.up),
    )


async def test_a_plan_comes_up_on_the_bench_and_the_second_time_nothing_is_written(
    bench: Bench,
) -> None:
    await before(bench)
    report = await bench.up(RING)
    assert report.nothing_to_do and bench.points.names == []
    assert (await bench.up(TWO)).made == 2
    current = bench.store.current(TENANCY)
    assert current is not None
    assert bench.generations() == dict.fromkeys(("gpu01", "gpu02", "gpu03"), current.generation) | {
        "gpu04": None
    }


def wrong(bench: Bench, *steps: tuple[str, str]) -> None:
    """Have the next request of each of these names, one after the other, go wrong in its way (see
    `Points`).
    """
    left, point = list(steps), bench.points.point

    def failing(who: str, what: str) -> Any:
        if left and f"{who}: {what}".startswith(left[0][0]):
            bench.points.fail[len(bench.points.names) + 1] = left.pop(0)[1]
        return point(who, what)

    bench.points.point = failing  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("step", "how", "own_error"),
    [
        # nothing in use was changed, or hosts alone were asked: it keeps its own exit code
        ("hosts: stage", "lost", True),
        ("hosts: arm", "lost", True),
        ("hosts: arm", "refused", False),  # refused means that hands are needed, and they are not
        ("ocs1: apply", "refused", False),
        ("ocs1: apply", "lost", False),
        ("ocs1: apply", "half", False),
        ("hosts: confirm", "lost", False),
    ],
)
async def test_a_step_that_fails_takes_the_whole_change_back(
    bench: Bench, step: str, how: str, own_error: bool
) -> None:
    """S7, forward."""
    was = await before(bench)
    wrong(bench, (step, how))
    with pytest.raises(TestbedError) as failed:
        await bench.up(TWO)
    assert now(bench) == was and not bench.pending(), failed.value
    record = bench.store.get("last")
    assert record is not None and not record.unfinished
    assert isinstance(failed.value, RolledBack) != own_error, type(failed.value)


@pytest.mark.parametrize("how", ["refused", "lost"])
async def test_a_step_that_fails_during_the_rollback_too_is_tried_once_more(
    bench: Bench, how: str
) -> None:
    """S7, during rollback: the last step forward fails, and one of the way back."""
    was = await before(bench)
    wrong(bench, ("hosts: confirm", "refused"), ("ocs1: apply", how))
    with pytest.raises(RolledBack):
        await bench.up(TWO)
    assert now(bench) == was


async def test_what_a_rollback_could_not_do_twice_is_listed_whole(bench: Bench) -> None:
    was = await before(bench)
    wrong(
        bench, ("hosts: confirm", "refused"), ("ocs1: apply", "refused"), ("ocs1: apply", "refused")
    )
    with pytest.raises(HandsNeeded) as failed:
        await bench.up(TWO)
    had, has = was[0]["ocs1"], bench.switches["ocs1"].held
    true = {f"{c.ingress.label}->{c.egress.label} was there and is not" for c in had - has}
    true |= {f"{c.ingress.label}->{c.egress.label} is there and was not" for c in has - had}
    listed = {
        line.partition(" (")[0] for line in failed.value.left if "ocs1: apply refused" in line
    }
    assert had - has and had - has <= bench.store.owned(TENANCY), (
        "a device that restarts may light it again: it is not nobody's then"
    )
    assert (
        len(true) > 2
        and listed == {f"ocs1: {line}" for line in true}
        and bench.switches["ocs2"].held == was[0]["ocs2"]
    )


async def test_a_device_that_does_not_come_back_is_for_hands_and_all_others_go_back(
    bench: Bench,
) -> None:
    was = await before(bench)
    wrong(bench, ("ocs1", "ended"))
    with pytest.raises(HandsNeeded) as failed:
        await bench.up(TWO)
    assert any(
        line.startswith("ocs1: does not answer") for line in failed.value.left
    ) and "  1. " in str(failed.value)
    assert bench.switches["ocs2"].held == was[0]["ocs2"] and bench.routes() == was[1]
    (run,) = bench.store.unfinished("made-1", "ann")
    assert run.status == "hands-needed" and f"testbed rollback {run.id}" in failed.value.hint
    bench.switches["ocs1"].down = False  # somebody switches it on again
    await bench.back(before_of(bench.store.journalled(run.id)[0]))
    assert now(bench) == was


@pytest.mark.parametrize("keeps", [True, False])
async def test_a_device_that_restarts_in_the_middle_of_a_change_is_waited_for(
    bench: Bench, keeps: bool
) -> None:
    """S9: latching or not, it gets back what it held."""
    was = await before(bench)
    wrong(bench, ("ocs1", "reboot-keep" if keeps else "reboot-lose"))
    with pytest.raises(RolledBack):
        await bench.up(TWO)
    assert now(bench) == was


async def test_circuits_of_others_that_a_restart_lost_are_told_not_made(bench: Bench) -> None:
    was = await before(bench)
    wrong(bench, ("ocs2", "reboot-lose"))
    with pytest.raises(HandsNeeded) as failed:
        await bench.up(TWO)
    assert failed.value.left == (
        "ocs2: 50->150 was there and is not; it was not made by this program",
    )
    assert bench.switches["ocs2"].held == was[0]["ocs2"] - {
        CrossConnect(Port("ocs2", "50"), Port("ocs2", "150"))
    }


async def test_a_host_that_is_lost_in_the_middle_is_named_and_the_others_go_back(
    bench: Bench,
) -> None:
    was = await before(bench)
    lost = bench.fleet.all["gpu02"]
    apply = bench.switches["ocs1"].apply

    async def then_lost(*arguments: Any) -> Any:
        outcome = await apply(*arguments)
        lost.up = False
        return outcome

    bench.switches["ocs1"].apply = then_lost  # type: ignore[method-assign]
    with pytest.raises(HandsNeeded) as failed:
        await bench.up(TWO)
    assert [line.partition(":")[0] for line in failed.value.left] == ["gpu02"]
    assert bench.held() == was[0]
    assert {n: r for n, r in bench.routes().items() if n != "gpu02"} == {
        n: r for n, r in was[1].items() if n != "gpu02"
    }


async def test_hosts_get_no_other_routes_for_those_that_a_killed_up_had_given_them_and_one_has_lost(
    bench: Bench,
) -> None:
    await before(bench)
    wrong(bench, ("hosts: confirm", "killed before"))
    await bench.killed(bench.up(TWO))
    ran = bench.routes()
    lost, apply = bench.fleet.all["gpu02"], bench.switches["ocs1"].apply

    async def power_lost(*arguments: Any) -> Any:
        await apply(*arguments)
        lost.active, lost.staged, bench.switches["ocs1"].apply = None, {}, apply  # type: ignore[method-assign]
        raise Unreachable("ocs1: no answer")

    bench.switches["ocs1"].apply = power_lost  # type: ignore[method-assign]
    with pytest.raises(HandsNeeded) as failed:
        await bench.up(MOVED)
    assert "gpu02: the routes it ran are not known any more" in "\n".join(failed.value.left)
    assert {n: r for n, r in bench.routes().items() if n != "gpu02"} == {
        n: r for n, r in ran.items() if n != "gpu02"
    }


async def test_a_device_that_cannot_be_read_when_all_should_begin_leaves_everything_and_keeps_its_own_error(
    bench: Bench,
) -> None:
    was = await before(bench)
    bench.switches["ocs2"].apply = ended  # type: ignore[method-assign]
    with pytest.raises(Unreachable) as failed:
        await bench.up(TWO)
    assert failed.value.exit_code == 5 and "ocs2: connection refused" in str(failed.value)
    assert (
        now(bench) == was
        and not bench.pending()
        and not any(s.endswith("apply") for s in bench.points.names)
    )
    assert bench.store.unfinished("made-1", "ann") == []


async def ended(*arguments: object) -> Any:
    raise Unreachable("ocs2: connection refused")


@pytest.mark.parametrize("where", ["arm", "ocs1", "confirm"])
async def test_an_interrupt_takes_the_change_back_and_says_so(bench: Bench, where: str) -> None:
    was = await before(bench)
    work = asyncio.create_task(bench.up(TWO))
    point = bench.points.point

    def interrupted(who: str, what: str) -> Any:
        if (who == where or what.startswith(where)) and not work.cancelling():
            work.cancel()
        return point(who, what)

    bench.points.point = interrupted  # type: ignore[method-assign]
    with pytest.raises(Interrupted, match="rolled back, everything is as before") as ended:
        await work
    assert ended.value.exit_code == 130 and now(bench) == was and not bench.pending()
    record = bench.store.get("last")
    assert record is not None and (record.status, record.exit_code) == ("rolled-back", 130)
    assert all("Cancelled" not in step.error for step in bench.store.steps(record.id))


async def test_a_deadline_that_passes_in_the_middle_takes_the_change_back(bench: Bench) -> None:
    was = await before(bench)
    slow = bench.switches["ocs1"].apply

    async def sleepy(*arguments: Any) -> Any:
        await asyncio.sleep(0.2)
        return await slow(*arguments)

    bench.switches["ocs1"].apply = sleepy  # type: ignore[method-assign]
    bench.timeout_s = 0.1
    with pytest.raises(RolledBack, match=r"up: not finished after 0.1 s\nrolled back"):
        await bench.up(TWO)
    assert now(bench) == was


async def test_without_rollback_a_failed_change_stays_and_can_go_on_or_back(bench: Bench) -> None:
    was = await before(bench)
    wrong(bench, ("ocs1", "half"))
    with pytest.raises(ChangeFailed, match="present state:"):
        await bench.up(TWO, rollback=False)
    (run,) = bench.store.unfinished("made-1", "ann")
    assert bench.held() != was[0]
    (left,) = left_behind(bench.store, TENANCY, await bench.session.observe())
    assert left.run == run.id and any(line.startswith("ocs1: not made: ") for line in left.not_done)
    assert (left.resume, left.undo) == (f"testbed resume {run.id}", f"testbed rollback {run.id}")
    await bench.back(before_of(bench.store.journalled(run.id)[0]))
    assert now(bench) == was


async def test_what_another_owner_does_meanwhile_is_no_business_of_a_rollback(bench: Bench) -> None:
    was = await before(bench)
    wrong(bench, ("ocs1", "half"))
    bobs, removed = (
        CrossConnect(Port("ocs1", "70"), Port("ocs1", "170")),
        CrossConnect(Port("ocs1", "71"), Port("ocs1", "171")),
    )
    bench.switches["ocs1"].held |= {removed}
    bench.store.own(f"{LAB}/bob", "2026-11-21-0099", [removed])
    stage = bench.fleet.routes.stage

    async def and_bob(generations: Any) -> Any:
        bench.store.own(f"{LAB}/bob", "2026-11-21-0099", [bobs])
        bench.switches["ocs1"].held = bench.switches["ocs1"].held - {removed} | {bobs}
        bench.store.disown(f"{LAB}/bob", [removed])
        return await stage(generations)

    bench.fleet.routes.stage = and_bob
    with pytest.raises(RolledBack):
        await bench.up(TWO)
    assert bench.switches["ocs1"].held == was[0]["ocs1"] | {bobs}


async def test_circuits_of_another_owner_that_a_restart_lost_are_told_with_his_name(
    bench: Bench,
) -> None:
    await before(bench)
    bobs = CrossConnect(Port("ocs2", "70"), Port("ocs2", "170"))
    bench.switches["ocs2"].held = bench.switches["ocs2"].held - {
        CrossConnect(Port("ocs2", "50"), Port("ocs2", "150"))
    } | {bobs}
    run = bench.store.new_run("up", LAB, owner="bob", plan_name="pair")
    bench.store.own(f"{LAB}/bob", run.id, [bobs])
    wrong(bench, ("ocs2", "reboot-lose"))
    with pytest.raises(HandsNeeded) as failed:
        await bench.up(TWO)
    assert failed.value.left == (
        f"ocs2: 70->170 is not there; it belongs to bob (pair, run {run.id})",
    )


async def test_down_forgets_circuits_that_hands_took_away_also_where_there_is_nothing_else_to_do(
    bench: Bench,
) -> None:
    await bench.up(RING)
    for host in bench.fleet.all.values():
        host.active = None
        host.staged.clear()
    for switch in bench.switches.values():
        switch.held = frozenset()
    report = await bench.back(Snapshot({}))
    assert report.nothing_to_do and not report.left
    assert not bench.store.owned(TENANCY) and bench.store.current(TENANCY) is None
