"""The scheduler with a device that changes slots by its own clock: told once, followed, and at rest
in a whole slot in the end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from drivers.api import PresetState, Ready, at_once
from optics import Change, Interlock, Outcome, Refused, Setting
from orchestrator.services.schedule.goals import slot_goals
from orchestrator.services.schedule.process import ScheduleOptions
from tests.services.schedule.fabric import HERE, Bench, Fabric, Switch, plan_text
from tests.services.schedule.test_scheduler import counts, story, whole


class Rotor(Switch):
    """It turns through its maps while this test's loop runs, and takes no change then."""

    def __init__(self, name: str, fabric: Fabric) -> None:
        super().__init__(name, fabric)
        self.maps: list[frozenset[Setting]] = []
        self.shown: list[str] = []
        self.slot, self.dark_window, self.until, self.dwell_s, self.dark_window_s = (
            0,
            False,
            0.0,
            0.0,
            0.0,
        )
        self.scheduling: asyncio.Task[None] | None = None

    async def apply(self, change: Change, ready: Ready = at_once) -> Outcome:
        if self.scheduling is not None:
            raise Refused(f"{self.name}: it turns")
        self.shown.append("apply")
        return await super().apply(change, ready)

    async def load(
        self, slots: Sequence[frozenset[Setting]], dwell_s: float, dark_window_s: float
    ) -> None:
        assert self.scheduling is None
        self.shown.append("load")
        self.maps, self.dwell_s, self.dark_window_s = list(slots), dwell_s, dark_window_s

    async def start(self, slot: int = 0) -> float:
        self.shown.append("start")
        self.slot, self.dark_window, self.until = slot, True, time.monotonic() + self.dark_window_s
        self.scheduling = asyncio.create_task(self.change_slot())
        return self.dark_window_s

    async def change_slot(self) -> None:
        while True:
            self.held &= self.maps[self.slot]
            self.fabric.shine()
            await asyncio.sleep(self.until - time.monotonic())
            self.held = self.maps[self.slot]
            self.dark_window, self.until = False, self.until + self.dwell_s
            self.fabric.shine()
            await asyncio.sleep(self.until - time.monotonic())
            self.slot, self.dark_window, self.until = (
                (self.slot + 1) % len(self.maps),
                True,
                self.until + self.dark_window_s,
            )

    async def stop(self) -> None:
        if self.scheduling is not None:
            self.shown.append("stop")
            self.scheduling.cancel()
            self.scheduling, self.dark_window, self.held = None, False, self.maps[self.slot]
            self.fabric.shine()

    async def position(self) -> PresetState:
        left = max(0.0, self.until - time.monotonic()) if self.scheduling is not None else None
        return PresetState(
            self.scheduling is not None, self.slot if self.maps else None, self.dark_window, 0, left
        )

    def restart(self) -> None:
        """Lose power: dark, and at rest."""
        if self.scheduling is not None:
            self.scheduling.cancel()
        self.scheduling, self.dark_window, self.held = None, False, frozenset()
        self.fabric.shine()


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return with_rotor(Bench(tmp_path, monkeypatch))


def with_rotor(bench: Bench) -> Bench:
    [(name, switch)] = bench.fabric.devices.items()
    bench.fabric.devices[name] = Rotor(name, bench.fabric)
    bench.fabric.devices[name].held = switch.held
    return bench


def rotor_of(bench: Bench) -> Rotor:
    [found] = bench.fabric.devices.values()
    assert isinstance(found, Rotor)
    return found


async def left_scheduled(bench: Bench) -> None:
    """As after a turner that was killed: the device turns, and the circuits of all slots are the
    owner's.
    """
    report, rotor = await bench.change_slot(ScheduleOptions(once=True)), rotor_of(bench)
    bench.store.own(bench.tenancy, report.run, frozenset[Setting]().union(*rotor.maps))
    await rotor.start(rotor.slot)


async def later(bench: Bench, slots: int) -> None:
    await bench.until(lambda: min(counts(bench)) >= 0)
    at = max(counts(bench))
    await bench.until(lambda: min(counts(bench)) >= at + slots)


def test_a_device_with_stored_maps_is_told_once_and_rests_in_a_whole_slot(bench: Bench) -> None:
    report = story(bench, lambda _: later(bench, 4))
    assert rotor_of(bench).shown == ["load", "start", "stop"]
    assert report.slot_changes and report.late == 0 and whole(bench) == report.slot  # type: ignore[attr-defined]


def test_a_device_that_lost_its_place_is_brought_back_and_turns_again(bench: Bench) -> None:
    async def restarts(_: object) -> None:
        await later(bench, 2)
        rotor_of(bench).restart()
        await bench.until(lambda: rotor_of(bench).shown.count("start") == 2)
        await later(bench, 3)

    report = story(bench, restarts)
    assert any(event["event"] == "repairing" for event in bench.reported)
    assert whole(bench) == report.slot and rotor_of(bench).shown[-1] == "stop"  # type: ignore[attr-defined]


def test_a_device_that_a_killed_turner_left_turning_is_followed_from_where_it_is(
    bench: Bench,
) -> None:
    rotor = rotor_of(bench)

    async def twice() -> object:
        await left_scheduled(bench)
        rotor.shown.clear()
        await asyncio.sleep(0.25)
        report = await bench.change_slot(ScheduleOptions(once=True))
        assert rotor.shown == ["stop"]
        return report

    report = asyncio.run(twice())
    assert (
        any(event["event"] == "adopted" for event in bench.reported) and whole(bench) == report.slot
    )  # type: ignore[attr-defined]


def test_one_that_is_left_turning_comes_to_rest_on_request(bench: Bench) -> None:
    rotor = rotor_of(bench)

    async def left() -> object:
        await left_scheduled(bench)
        await asyncio.sleep(0.3)
        return await bench.change_slot(ScheduleOptions(stop=True))

    report = asyncio.run(left())
    assert rotor.scheduling is None and report.slot_changes == 0 and whole(bench) == report.slot  # type: ignore[attr-defined]


def test_the_phases_of_a_job_end_slots_that_no_device_could_end_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = {"name": "sums", "workload": "allreduce", "ranks": ["gpu01", "gpu02", "gpu03", "gpu04"]}
    bench = with_rotor(Bench(tmp_path, monkeypatch, plan_text(job, kind="phase")))

    async def two(_: object) -> None:
        for iteration in range(400):
            if max(counts(bench)) >= 2:
                return
            bench.fabric.ended(iteration)
            await asyncio.sleep(0.02)

    story(bench, two)
    assert set(rotor_of(bench).shown) == {"apply"}


def test_a_foreign_circuit_in_the_way_names_the_slot(bench: Bench) -> None:
    assert bench.plan.schedule is not None
    [device] = HERE.devices
    [held] = (s.held for s in bench.fabric.devices.values())
    clear = slot_goals(bench.plan, bench.plan.schedule, HERE, {})
    foreign = next(iter(clear[1].wanted[device] - held))
    with pytest.raises(Interlock, match=r"^slot 0: .*"):
        slot_goals(bench.plan, bench.plan.schedule, HERE, {device: frozenset({foreign})})
