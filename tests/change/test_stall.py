"""The stall curve: a link goes dark and comes back, in three ways, and the lab is afterwards as it
was, whatever happens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from optics import Infeasible, Interlock, Missing, Refused, TestbedError, Traits
from orchestrator.change import stall
from orchestrator.change.snapshot import before_of
from orchestrator.change.stall import Stall
from orchestrator.change.stall_link import choose
from orchestrator.fabric.rules import rules
from orchestrator.results import to_json
from orchestrator.store.records import StallPoint
from orchestrator.store.stalls import add_stalls, stall_history
from orchestrator.store.store import Store
from tests.change.fleet import LAB, TENANCY, Bench, plan_text, ring
from tests.kit.jobs import spec

LINE = ring()[:3]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(stall, "LEAD_S", 0.0)
    monkeypatch.setattr(stall, "REPEATS", 1)
    with Store(tmp_path / "store.sqlite3", durable=False) as store:
        yield Bench(store, tmp_path)


async def measured(bench: Bench, *dark_s: float) -> Stall:
    current = bench.store.current(TENANCY)
    assert current is not None
    run, context = bench.context("stall")
    with run:
        work = Stall(context, current, dark_s or (0.0,))
        await work.carry_out()
        run.finish("ok")
    return work


def state(bench: Bench) -> Any:
    lit = {name: host.carrier for name, host in bench.fleet.all.items()}
    return (
        bench.held(),
        bench.generations(),
        bench.pending(),
        bench.store.owned(TENANCY),
        bench.store.current(TENANCY),
        lit,
    )


async def test_a_link_is_dark_in_each_mode_and_nothing_has_changed_afterwards(bench: Bench) -> None:
    await bench.up(plan_text("ring", *ring()))
    before = state(bench)
    bench.points.names.clear()
    found = await measured(bench, 0.0, 0.05)
    assert state(bench) == before
    assert [(p.mode, p.asked_ms) for p in found.points] == [
        (m, ms) for ms in (0.0, 50.0) for m in stall.MODES
    ]
    assert all(
        p.dark_ms >= max(p.asked_ms - 12, 0) and p.lost_ms == p.dark_ms and p.usual_ms == 0
        for p in found.points
    )
    assert {(p.link, p.devices) for p in found.points} == {("gpu01:p1--gpu02:p1", "ocs1")}
    kinds = [name.rstrip("0123456789 ") for name in bench.points.names]
    dark = ["ocs1: apply", "ocs1: apply"] if "ocs1: apply" in kinds else ["ocs: apply"] * 2
    each = [
        "hosts: commit",
        *dark,
        "hosts: revert",
        *dark,
        "hosts: arm",
        dark[0],
        "hosts: hold",
        dark[1],
    ]
    assert sorted(kinds) == sorted(["hosts: stage", *each, *each])
    assert kinds.index("hosts: arm") < kinds.index("hosts: hold")


async def test_a_pair_without_another_path_is_not_drained(bench: Bench) -> None:
    await bench.up(plan_text("line", *LINE))
    found = await measured(bench)
    assert [p.mode for p in found.points] == ["sending", "held"]
    assert found.notes == [
        "drained: not measured, as gpu01 and gpu02 have no other path in this plan"
    ]


async def test_a_hold_leaves_out_the_routes_over_the_link_and_no_others(bench: Bench) -> None:
    await bench.up(plan_text("ring", *ring()))
    before = bench.routes()
    found = await measured(bench)
    assert sorted(found.hold) == ["gpu01", "gpu02"]
    for name, kept in found.hold.items():
        removed = (before[name] or frozenset()) - kept
        assert removed and {getattr(rule, "interface", "") for rule in removed} == {"opt1"}


async def refused(bench: Bench, kind: type[TestbedError], text: str) -> None:
    before = state(bench)
    bench.points.names.clear()
    with pytest.raises(kind, match=text):
        await measured(bench)
    assert bench.points.names == [] and state(bench) == before
    record = bench.store.get("last")
    assert record is not None and not record.unfinished


async def test_a_running_job_is_not_disturbed(bench: Bench) -> None:
    await bench.up(plan_text("ring", *ring()))
    bench.store.set_job(
        bench.store.add_job(TENANCY, "r", "mlp", spec("gpu01", "gpu02", on_hosts="mlp.x")),
        "running",
    )
    bench.fleet.ran["mlp.x"] = "running"
    await refused(bench, Interlock, "job mlp runs")


async def test_a_lab_that_is_not_as_planned_is_not_measured(bench: Bench) -> None:
    await bench.up(plan_text("ring", *ring()))
    bench.switches["ocs1"].held = frozenset(sorted(bench.switches["ocs1"].held, key=str)[1:])
    bench.fleet.all["gpu03"].active = 77
    await refused(
        bench, Refused, "ocs1: 1 planned cross-connect missing\ngpu03: runs generation 77, "
    )


async def test_agents_of_another_version_are_named(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.up(plan_text("ring", *ring()))
    monkeypatch.setattr(bench.fleet.channels, "unprovisioned", lambda: ("gpu02",))
    await refused(bench, Missing, "the agents of gpu02 are not those of this version")


async def test_a_silent_device_is_named(bench: Bench) -> None:
    await bench.up(plan_text("ring", *ring()))
    bench.switches["ocs2"].down = True
    await refused(bench, TestbedError, "ocs2: connection refused")


@pytest.mark.parametrize(
    ("traits", "forwarding", "text"),
    [
        (Traits(settle_s=30.0, at_once=1), "kernel", "is a robot: it would be dark for"),
        (Traits(settle_s=0.01), "npar-rdma", "forward in the NIC"),
    ],
)
async def test_a_link_that_cannot_be_measured_is_named_with_the_reason(
    bench: Bench, traits: Traits, forwarding: str, text: str
) -> None:
    await bench.up(plan_text("ring", *ring()))
    current = bench.store.current(TENANCY)
    assert current is not None
    links, circuits = current.up.links, current.up.circuits(bench.lab)
    routes = rules(links, bench.lab, bench.fleet.channels.macs())
    hosts = {name: replace(host, forwarding=forwarding) for name, host in bench.lab.hosts.items()}
    lab = replace(bench.lab, hosts=hosts)
    with pytest.raises(Infeasible, match=text):
        choose(links, circuits, lab, dict.fromkeys(lab.devices, traits), bench.held(), routes)


async def test_a_host_that_receives_nothing_is_an_error_and_all_is_as_before(bench: Bench) -> None:
    await bench.up(plan_text("ring", *ring()))
    before = state(bench)
    bench.fleet.received = 0
    with pytest.raises(TestbedError, match="no traffic arrived"):
        await measured(bench)
    assert state(bench) == before


@pytest.mark.parametrize("how", ["refused", "lost"])
async def test_whatever_fails_everything_is_as_it_was(bench: Bench, how: str) -> None:
    await bench.up(plan_text("ring", *ring()))
    before = state(bench)
    bench.points.names.clear()
    await measured(bench)
    count = len(bench.points.names)
    assert count > 10
    for at in range(1, count + 1):
        bench.points.names.clear()
        bench.points.fail = {at: how}
        with pytest.raises(TestbedError):
            await measured(bench)
        bench.points.fail = {}
        assert state(bench) == before, f"{at}: {bench.points.names}"


async def test_an_interrupt_in_the_dark_brings_the_light_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.up(plan_text("ring", *ring()))
    before = state(bench)
    device, dark = bench.switches["ocs1"], asyncio.Event()
    apply = device.apply

    async def watched(*given: Any) -> Any:
        outcome = await apply(*given)
        dark.set()
        return outcome

    monkeypatch.setattr(device, "apply", watched)
    task = asyncio.create_task(measured(bench, 5.0))
    async with asyncio.timeout(20):
        await dark.wait()
    assert state(bench)[0] != before[0]
    task.cancel()
    with pytest.raises(TestbedError, match="interrupted; rolled back, everything is as before"):
        await task
    assert state(bench) == before


@pytest.mark.parametrize("how", ["killed before", "killed after"])
async def test_one_that_was_killed_is_rolled_back_later(bench: Bench, how: str) -> None:
    await bench.up(plan_text("ring", *ring()))
    held, generations, *_ = state(bench)
    bench.points.names.clear()
    await measured(bench)
    for at in range(1, len(bench.points.names) + 1):
        bench.points.names.clear()
        bench.points.fail = {at: how}
        record = await bench.killed(measured(bench))
        bench.points.fail = {}
        await bench.back(before_of(bench.store.journalled(record.id)[0]))
        after = state(bench)
        assert after[0] == held and after[2] == [], f"{at}: {bench.points.names}"
        current = bench.store.current(TENANCY)
        assert current is not None and set(after[1].values()) == {current.generation}
        bench.points.names.clear()
    assert set(generations) == set(bench.fleet.all)


def test_curves_are_kept_by_lab_in_order(tmp_path: Path) -> None:
    point = StallPoint(2.0, "r2", "gpu01:p1--gpu02:p1", "ocs1", "held", 0.0, 55.5, 56.25, 0.5)
    with Store(tmp_path / "store.sqlite3", durable=False) as store:
        add_stalls(store, LAB, [point, replace(point, at=1.0, run="r1")])
        add_stalls(store, "other", [replace(point, at=0.0)])
        assert [p.run for p in stall_history(store, LAB)] == ["r1", "r2"] and stall_history(
            store, LAB
        )[1] == point
        assert to_json(stall_history(store, "nothing")) == []
