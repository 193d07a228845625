"""After any death the next command says what is, and both ways on lead where they should."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from optics import (
    CrossConnect,
    FrequencySlot,
    HandsNeeded,
    HostPort,
    Interlock,
    Link,
    Port,
    RolledBack,
    SpectralRoute,
    Unreachable,
)
from optics.plan import Job
from orchestrator.change import rollback as undoing
from orchestrator.change.restore import as_stored
from orchestrator.change.snapshot import (
    Snapshot,
    before_of,
    change_back,
    differences,
    held_data,
    held_of,
)
from orchestrator.change.unfinished import Unfinished, left_behind
from orchestrator.change.up import Up
from orchestrator.fabric.up_state import SlotsMade, UpState
from orchestrator.jobs.jobs import Jobs
from orchestrator.plan.reader import read_plan
from orchestrator.plan.target import fingerprint
from orchestrator.session import Observation
from orchestrator.store.options import RunOptions, UpOptions
from orchestrator.store.records import CurrentPlan
from orchestrator.store.store import Store
from tests.change.fleet import LAB, TENANCY, Bench, plan_text, ring
from tests.change.test_rollback import RING, TWO, before, now, wrong


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(undoing, "RETURN_S", 1.0)
    with Store(tmp_path / "store.sqlite3", durable=False) as store:
        yield Bench(store, tmp_path)


@pytest.mark.parametrize("direction", ["resume", "rollback"])
@pytest.mark.parametrize(
    ("step", "how", "expired"),
    [
        ("ocs2: apply", "killed after", False),
        ("hosts: confirm", "killed before", False),
        ("hosts: confirm", "killed before", True),
    ],
    ids=["between devices", "before it was confirmed", "after the timed revert"],
)
async def test_killed_half_way_both_ways_on_converge(
    bench: Bench, step: str, how: str, expired: bool, direction: str
) -> None:
    """S4: resumed, or rolled back, also once hosts have gone back by themselves."""
    was = await before(bench)
    await bench.up(TWO)
    goal = now(bench)
    await bench.up(RING)
    wrong(bench, (step, how))
    died = await bench.killed(bench.up(TWO))
    for host in bench.fleet.all.values() if expired else ():
        if host.pending:
            host.active, host.pending = host.pending_to, False
    (left,) = left_behind(bench.store, TENANCY, await bench.session.observe())
    assert left.run == died.id and left.undo == f"testbed rollback {died.id}"
    if direction == "resume":
        await bench.up(TWO)
        assert now(bench) == goal
    else:
        await bench.back(before_of(bench.store.journalled(died.id)[0]))
        assert now(bench) == was
    assert not bench.pending()


async def test_going_back_to_no_plan_takes_everything_of_ours_away(bench: Bench) -> None:
    await before(bench)
    first = next(r for r in reversed(bench.store.history(LAB)))
    report = await bench.back(before_of(bench.store.journalled(first.id)[0]))
    assert (
        not report.left
        and bench.store.current(TENANCY) is None
        and bench.store.owned(TENANCY) == frozenset()
    )
    assert bench.held() == {
        "ocs1": frozenset(),
        "ocs2": {CrossConnect(Port("ocs2", "50"), Port("ocs2", "150"))},
    }
    assert set(bench.generations().values()) == {None}


async def test_after_a_power_cut_of_everything_restore_brings_back_what_the_store_has(
    bench: Bench,
) -> None:
    was = await before(bench)
    for switch in bench.switches.values():
        switch.held = frozenset()
    for name in bench.fleet.all:
        bench.fleet.all[name] = replace(
            bench.fleet.all[name], active=None, previous=None, staged={}, carrier={}, ups={}
        )
    bench.fleet.light()
    current = bench.store.current(TENANCY)
    assert current is not None
    await bench.back(as_stored(bench.store, TENANCY, current, bench.lab), "restore")
    ours = {
        d: held - {CrossConnect(Port("ocs2", "50"), Port("ocs2", "150"))}
        for d, held in was[0].items()
    }
    assert bench.held() == ours and now(bench)[1:] == was[1:]


async def test_a_plan_that_is_restored_keeps_which_of_its_slots_is_up_and_which_were_made(
    bench: Bench,
) -> None:
    await before(bench)
    bench.switches["ocs1"].held = frozenset()
    bench.fleet.light()
    current = bench.store.current(TENANCY)
    assert current is not None
    slots = SlotsMade(2, (0, 1, 2))
    current = replace(current, up=replace(current.up, slots=slots))
    await bench.back(as_stored(bench.store, TENANCY, current, bench.lab), "restore")
    assert (up := bench.store.current(TENANCY)) is not None and up.up.slots == slots


async def test_a_device_and_a_host_that_the_change_does_not_need_may_be_down(bench: Bench) -> None:
    bench.switches["ocs2"].down = True
    bench.fleet.all["gpu04"].up = False
    known = {port: mac for port, mac in bench.fleet.channels.macs().items() if port.host != "gpu04"}
    bench.fleet.channels.macs = lambda: known
    report = await bench.up(plan_text("pair", ("gpu01:p1", "gpu02:p1")))
    assert report.made == 2 and len(report.notes) == 2
    assert report.notes[0].startswith("ocs2 does not answer and is not needed: ") and report.notes[
        1
    ].startswith("gpu04 ")
    with pytest.raises(Unreachable, match="ocs2"):
        await bench.up(RING)


async def test_a_reviewed_plan_is_made_while_what_it_does_not_need_is_down_unless_that_held_something_then(
    bench: Bench,
) -> None:
    pair = plan_text("pair", ("gpu01:p1", "gpu02:p1"))
    bench.switches["ocs2"].down = True
    reviewed = fingerprint(
        read_plan(pair, "plan.json", bench.lab), (await bench.session.observe()).settings
    )
    assert (await bench.up(pair, expected=reviewed)).made == 2
    bench.switches["ocs2"].down = False
    bench.switches["ocs2"].held = frozenset({CrossConnect(Port("ocs2", "50"), Port("ocs2", "150"))})
    reviewed = fingerprint(
        read_plan(pair, "plan.json", bench.lab), (await bench.session.observe()).settings
    )
    bench.switches["ocs2"].down = True
    with pytest.raises(Unreachable, match="ocs2"):
        await bench.up(pair, expected=reviewed)


async def test_a_plan_whose_light_does_not_come_is_taken_back(bench: Bench) -> None:
    was = await before(bench)
    bench.fleet.dark.add(HostPort("gpu01", 3))
    with pytest.raises(RolledBack, match="gpu01: no carrier"):
        await bench.up(TWO)
    assert now(bench) == was and not bench.pending()


async def test_a_port_that_had_light_and_gets_none_is_for_hands(bench: Bench) -> None:
    await before(bench)
    bench.points.fail = {len(bench.points.names) + 4: "half"}
    bench.fleet.dark.add(HostPort("gpu01", 1))  # its fibre breaks while the change is under way
    with pytest.raises(HandsNeeded) as failed:
        await bench.up(TWO)
    assert failed.value.left == (
        "gpu01:p1: had light before and has none: check its fibre and the switch",
    )


def cross(device: str, a: str, b: str) -> CrossConnect:
    return CrossConnect(Port(device, a), Port(device, b))


def spectral(attenuation_db: float, n: int = -280) -> SpectralRoute:
    return SpectralRoute(
        Port("wss1", "in"), Port("wss1", "3"), FrequencySlot.flexgrid(n, 4), attenuation_db
    )


def test_the_way_back_restores_attenuation_in_place() -> None:
    was, is_now, other = spectral(2.5), spectral(4.0), spectral(1.0, -264)
    change = change_back(
        {"wss1": frozenset({is_now, other})},
        {"wss1": frozenset({was})},
        {"wss1": frozenset({is_now, other})},
    )
    assert change.removed["wss1"] == {is_now, other} and change.made["wss1"] == {was}
    assert change.changes["wss1"].remove == change.removed["wss1"] and not change.kept["wss1"]
    same = change_back(
        {"wss1": frozenset({was})}, {"wss1": frozenset({was})}, {"wss1": frozenset({was})}
    )
    assert not same.changes and same.kept["wss1"] == {was}


def test_the_way_back_never_removes_what_is_not_ours() -> None:
    theirs = {"ocs1": frozenset({cross("ocs1", "1", "17")})}
    with pytest.raises(Interlock, match="ocs1:1"):
        change_back(theirs, {"ocs1": frozenset({cross("ocs1", "1", "18")})}, {})
    assert not change_back(theirs, {"ocs1": frozenset()}, {}).changes


def test_what_was_found_reads_back_as_it_was_written() -> None:
    held = {"ocs1": frozenset({cross("ocs1", "1", "17")}), "wss1": frozenset({spectral(2.5)})}
    assert held_of(held_data(held)) == held
    up = UpState((Link(HostPort("gpu01", 1), HostPort("gpu02", 1)),), slots=SlotsMade(1, (0, 1)))
    current, job = (
        CurrentPlan("r", "ring", "s", "{}", up, 7, 5.0),
        Job("mlp", "train", ("gpu01", "gpu02")),
    )
    state = Snapshot(held, {"ocs1": frozenset()}, current, {"gpu01": 7, "gpu02": None}, (), 3, job)
    assert before_of(state.to_json()) == state


def test_a_map_that_differs_is_told_line_by_line() -> None:
    was = Snapshot(
        {"ocs1": frozenset({cross("ocs1", "1", "17")})},
        {"ocs1": frozenset({cross("ocs1", "5", "21")})},
    )
    lines = differences({"ocs1": frozenset({cross("ocs1", "1", "18")})}, was, ["ocs1"])
    assert lines == [
        "ocs1: 1->17 was there and is not",
        "ocs1: 5->21 was there and is not; it was not made by this program",
        "ocs1: 1->18 is there and was not",
    ]


async def test_what_a_dead_run_left_is_told_with_done_not_done_and_foreign(bench: Bench) -> None:
    await before(bench)
    bench.points.fail = {4: "killed before"}
    died = await bench.killed(bench.up(TWO))
    bench.points.fail = {}
    stranger = cross("ocs1", "60", "160")
    bench.switches["ocs1"].held |= {stranger}
    (left,) = left_behind(bench.store, TENANCY, await bench.session.observe())
    assert isinstance(left, Unfinished) and (left.run, left.what, left.status) == (
        died.id,
        "up two",
        "died",
    )
    text = "\n".join(left.lines())
    assert text.startswith(f"run {died.id} (up two) died before its end")
    assert "done:     ocs2: 0/0 made, 2/2 removed" in text and "not done: ocs1: not made: " in text
    assert "foreign:  ocs1: made by others meanwhile: 60->160" in text
    assert text.endswith(
        f"continue: testbed resume {died.id}   roll back: testbed rollback {died.id}"
    )
    report = await bench.up(TWO)
    assert next(iter(left.lines())) in report.notes, "the next command begins by saying it"


async def test_a_plan_without_a_host_that_is_dead_comes_up_and_nobody_waits_for_it(
    bench: Bench,
) -> None:
    await bench.up(plan_text("ring", *ring()))
    three = plan_text("three", *ring()[:2], ("gpu03:p3", "gpu01:p3"))
    bench.fleet.all["gpu04"].up = False
    with pytest.raises(Unreachable, match="gpu04"):
        await bench.up(three)
    run, context = bench.context(
        "up", RunOptions(UpOptions(launch_job=False), lost=("gpu04",)), plan_text=three
    )
    with run:
        report = await Up(context, read_plan(three, "plan.json", bench.lab), three).carry_out()
    active = bench.generations()
    assert report.made and any(
        "gpu04 does not answer and is not needed" in note for note in report.notes
    )
    assert (
        len({active[host] for host in ("gpu01", "gpu02", "gpu03")}) == 1
        and active["gpu04"] != active["gpu01"]
    )
    assert not bench.pending()


async def test_a_plan_comes_up_without_the_host_of_a_shadow_that_its_job_may_do_without(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = ["gpu01", "gpu02", "gpu03"]
    body = json.loads(plan_text("three", *ring()[:2], ("gpu03:p3", "gpu01:p3")))
    text = json.dumps(
        {
            **body,
            "job": {"name": "j", "workload": "train", "ranks": hosts, "shadow": {"host": "gpu04"}},
        }
    )
    bench.fleet.all["gpu04"].up = False
    launched: list[bool] = []

    async def ensure(*_: object, left_out: bool, **__: object) -> None:
        launched.append(left_out)

    monkeypatch.setattr(Jobs, "ensure", ensure)
    with pytest.raises(Unreachable, match="gpu04"):
        await bench.up(text)
    run, context = bench.context("up", RunOptions(lost=("gpu04",), left_out=True), plan_text=text)
    with run:
        await Up(context, read_plan(text, "plan.json", bench.lab), text).carry_out()
    assert launched == [True]


def test_a_spare_that_does_not_answer_is_said_to_be_of_no_use_now() -> None:
    errors = {
        "gpu04": Unreachable("gpu04: no route to host"),
        "gpu05": Unreachable("gpu05: no route to host"),
    }
    notes = Observation({}, {}, errors).needing(["gpu01"], ["gpu05"])
    assert notes[0].startswith("gpu04 does not answer and is not needed: gpu04: no route")
    assert notes[1].startswith(
        "gpu05 does not answer and so can take no host's place now: gpu05: no route"
    )
