"""Power along circuits: measured where there are meters, lost light localised, brought to a target
by attenuation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from optics import Change, DeviceName, HostPort, Link, LinkKind, Outcome, Port, SpectralRoute
from orchestrator.change.equalise import ROUNDS, adjusted, equalise
from orchestrator.change.report import EqualiseReport
from orchestrator.fabric.circuits import circuits, settings
from orchestrator.store.light import light_history
from orchestrator.store.records import LightPoint
from orchestrator.store.store import Store
from orchestrator.verify.ladder import check_map, check_power
from orchestrator.verify.losses import judge
from orchestrator.verify.power import drifts, keep, measure
from tests.change.fibrelab import SWITCH, FibrePlant, joined, roadm, select, with_meters


def ring(hosts: int = 4) -> list[Link]:
    ends = [HostPort(f"gpu{k:02d}", 1) for k in range(1, hosts + 1)]
    return [Link(a, b, LinkKind.SIMPLEX) for a, b in zip(ends, [*ends[1:], ends[0]], strict=True)]


class Bench:
    """A lab lit as planned."""

    def __init__(self, light: FibrePlant, links: list[Link]) -> None:
        self.light, self.lab = light, light.lab
        self.paths = circuits(links, self.lab)
        for device, held in settings(self.paths).items():
            light.devices[device].held = held
        self.rounds = 0

    @property
    def held(self) -> Mapping[DeviceName, frozenset]:  # type: ignore[type-arg]
        return {name: device.held for name, device in self.light.devices.items()}

    async def apply(self, wanted: Mapping[DeviceName, Change]) -> Mapping[DeviceName, Outcome]:
        self.rounds += 1
        return {
            name: await self.light.devices[name].apply(change) for name, change in wanted.items()
        }

    async def equalise(self, target_dbm: float, tolerance_db: float = 0.5) -> EqualiseReport:
        return await equalise(
            self.light.devices,
            self.lab,
            self.paths,
            self.held,
            target_dbm,
            tolerance_db,
            self.apply,
        )


async def test_receivers_get_the_planned_power_after_one_measured_round() -> None:
    bench = Bench(FibrePlant(roadm(), launched_dbm=3.0), ring())
    bench.light.extra_db = {Port("wss1", f"41{k:02d}"): 0.4 * k for k in range(1, 5)}
    report = await bench.equalise(-10.0)
    assert (report.within, report.rounds, report.notes) == (4, 1, ())
    light = bench.light.at()
    assert all(abs(light["out", Port("wss1", f"52{k:02d}")] + 10.0) <= 0.1 for k in range(1, 5))
    assert {
        s.attenuation_db for s in bench.light.devices["wss1"].held if s.egress.label == "4201"
    } == {0.0}


async def test_the_second_time_nothing_is_written() -> None:
    bench = Bench(FibrePlant(roadm(), launched_dbm=3.0), ring())
    await bench.equalise(-10.0)
    writes = bench.light.devices["wss1"].writes
    again = await bench.equalise(-10.0)
    assert (again.rounds, again.writes, again.within) == (0, 0, 4) and bench.light.devices[
        "wss1"
    ].writes == writes
    found = await check_map(bench.held, settings(bench.paths))
    ok, text = found.ok, found.detail
    assert ok and text == "8/8 spectral routes", "attenuation is no part of the map"


async def test_too_little_light_is_said_and_no_attenuation_is_left() -> None:
    bench = Bench(FibrePlant(roadm(), launched_dbm=0.0), ring())
    bench.light.extra_db = {Port("wss1", "4102"): 9.0}
    report = await bench.equalise(-10.0)
    assert report.within == 3
    (note,) = report.notes
    assert (
        note.startswith("gpu02:p1->gpu03:p1: -18.3 dBm, 8.3 dB below the target")
        and "too little light" in note
    )
    readings = await measure(bench.light.devices, bench.lab, bench.paths, bench.held)
    found = await check_power(readings, -10.0, 0.5)
    ok, text, evidence = found.ok, found.detail, found.evidence
    assert (
        not ok
        and text.startswith("3/4 circuits within 0.5 dB of -10 dBm")
        and "-8.3 dB from the target" in evidence[0]
    )


async def test_a_device_that_refuses_an_attenuation_is_quoted_and_not_asked_again() -> None:
    bench = Bench(FibrePlant(roadm(), launched_dbm=20.0), ring())
    bench.light.devices["wss1"].max_attenuation_db = 40.0
    device = bench.light.devices["wss1"]
    original = device.apply

    async def stubborn(change: Change, ready: object = None) -> Outcome:
        outcome = await original(change)
        failed = {s: "the device says no" for s in change.add if s.egress.label == "5202"}
        back = {replace(s, attenuation_db=0.0) for s in failed if isinstance(s, SpectralRoute)}
        device.held = (device.held - set(failed)) | back
        return replace(outcome, observed=device.held, failed=failed)

    device.apply = stubborn  # type: ignore[method-assign, assignment]
    report = await bench.equalise(-10.0)
    assert report.within == 3 and "the device says no" in report.notes[0] and bench.rounds <= 2


async def test_an_attenuator_that_does_not_do_as_told_ends_after_a_few_rounds() -> None:
    bench = Bench(FibrePlant(roadm(), launched_dbm=10.0), ring())
    looks = iter(range(1000))

    async def power(ports: list[Port]) -> Mapping[Port, float]:
        return dict.fromkeys(ports, -17.0 if next(looks) % 2 else -3.0)

    bench.light.devices["wss1"].power = power  # type: ignore[method-assign, assignment]
    report = await bench.equalise(-10.0)
    assert bench.rounds == report.rounds == ROUNDS and all(
        "after 5 rounds" in note for note in report.notes
    )


async def test_what_is_near_enough_is_left_alone() -> None:
    bench = Bench(FibrePlant(roadm(), launched_dbm=3.0), ring())
    (out,) = {
        round(dbm, 6)
        for (side, port), dbm in bench.light.at().items()
        if side == "out" and port.label.startswith("52")
    }
    report = await bench.equalise(out - 0.4)
    assert (report.rounds, report.writes, report.within) == (0, 0, 4)
    assert (await bench.equalise(out - 0.6)).writes > 0


def test_attenuation_is_taken_from_the_receivers_end_within_its_range() -> None:
    lab = roadm()
    (path, *_) = circuits(ring(), lab)
    assert [
        s.attenuation_db
        for s in adjusted(path.path, 18.04, {"wss1": 15.0})
        if isinstance(s, SpectralRoute)
    ] == [3.0, 15.0]
    strong = tuple(
        replace(s, attenuation_db=2.0) for s in path.path if isinstance(s, SpectralRoute)
    )
    assert [
        s.attenuation_db
        for s in adjusted(strong, -3.0, {"wss1": 15.0})
        if isinstance(s, SpectralRoute)
    ] == [1.0, 0.0]


async def test_loss_is_measured_from_end_to_end_where_ports_carry_one_circuit_alone() -> None:
    bench = Bench(FibrePlant(roadm()), ring())
    readings = await measure(bench.light.devices, bench.lab, bench.paths, bench.held)
    assert [r.loss_db for r in readings] == pytest.approx([8.7] * 4) and {
        r.expected_db for r in readings
    } == {8.7}
    assert [p.alone for p in readings[0].points] == [True, False, False, True]
    ok, text, _ = judge(readings, bench.lab)
    assert ok and text == "4/4 circuits lit, worst margin +20.7 dB"


async def test_behind_a_coupler_the_entering_power_is_nobodys_own() -> None:
    lab = select()
    bench = Bench(FibrePlant(lab.with_traits({"wss1": with_meters(lab.traits_of("wss1"))})), ring())
    readings = await measure(bench.light.devices, bench.lab, bench.paths, bench.held)
    assert {r.in_dbm for r in readings} == {None} and [
        r.out_dbm for r in readings
    ] == pytest.approx([-5.6] * 4)


async def lost(light: FibrePlant, links: list[Link]) -> list[str]:
    bench = Bench(light, links)
    readings = await measure(light.devices, light.lab, bench.paths, bench.held)
    ok, _, evidence = judge(readings, light.lab)
    assert ok is not bool(evidence)
    return list(evidence)


async def test_lost_light_is_localised_to_fibre_switch_and_trunk() -> None:
    lab = joined(trunks=2)
    metered = lab.with_traits(dict.fromkeys(("west", "east"), with_meters(SWITCH)))
    one = [Link(HostPort("gpu01", 1), HostPort("gpu02", 1), LinkKind.SIMPLEX)]
    cut = FibrePlant(metered)
    cut.extra_db = {Port("west", "1"): 60.0}
    assert await lost(cut, one) == [
        "gpu01:p1->gpu02:p1: no light arrives at west:1: the transmitter of gpu01:p1, or fibre f1"
    ]
    cut.extra_db = {Port("east", "801"): 60.0}
    assert await lost(cut, one) == [
        "gpu01:p1->gpu02:p1: light leaves west:901 (-2.1 dBm) but does not arrive at east:801: trunk we1"
    ]
    broken = FibrePlant(metered)
    bench = Bench(broken, one)
    broken.devices["east"].held = frozenset()
    readings = await measure(broken.devices, metered, bench.paths, bench.held)
    assert judge(readings, metered)[2] == (
        "gpu01:p1->gpu02:p1: light enters east:801 (-2.7 dBm) but does not leave east:102: east does not hold that",
    )


async def test_a_device_without_meters_is_named_where_it_hides_the_fault_and_is_no_fault_itself() -> (
    None
):
    lab = joined(trunks=2)
    one = [Link(HostPort("gpu01", 1), HostPort("gpu02", 1), LinkKind.SIMPLEX)]
    east = FibrePlant(lab.with_traits({"west": SWITCH, "east": with_meters(SWITCH)}))
    east.extra_db = {Port("east", "801"): 60.0}
    assert await lost(east, one) == [
        "gpu01:p1->gpu02:p1: no light arrives at east:801: trunk we1, or west before it, which has no meter"
    ]
    west = FibrePlant(lab.with_traits({"west": with_meters(SWITCH), "east": SWITCH}))
    bench = Bench(west, one)
    readings = await measure(west.devices, west.lab, bench.paths, bench.held)
    assert judge(readings, west.lab)[:2] == (True, "not measured: no meter on 1 circuit")


async def test_a_connector_that_drifts_shows_over_runs_and_attenuation_does_not(
    tmp_path: Path,
) -> None:
    bench = Bench(FibrePlant(roadm(), launched_dbm=6.0), ring())
    with Store(tmp_path / "store.sqlite3", durable=False) as store:
        keep(
            await measure(bench.light.devices, bench.lab, bench.paths, bench.held),
            store,
            "lab",
            "r1",
        )
        await bench.equalise(-10.0)
        bench.light.extra_db = {Port("wss1", "5101"): 0.4}
        keep(
            await measure(bench.light.devices, bench.lab, bench.paths, bench.held),
            store,
            "lab",
            "r2",
        )
        found = list(drifts(light_history(store, "lab"), bench.lab))
    assert len(found) == 4
    assert all(
        d.change_db == pytest.approx(0.4, abs=0.02) and d.beyond and not d.certain for d in found
    )


def test_small_changes_are_within_repeatability_and_large_ones_certain() -> None:
    lab = joined()
    path = "west:1->901 east:801->102"
    points = [
        LightPoint("a->b", path, float(at), 0.0, -3.0, loss) for at, loss in enumerate((3.0, 3.15))
    ]
    (drift,) = drifts(points, lab)
    assert (drift.repeatability_db, drift.beyond) == (0.2, False)
    (drift,) = drifts([*points, LightPoint("a->b", path, 9.0, 0.0, -3.0, 3.5)], lab)
    assert drift.beyond and drift.certain
