"""Robots: their progress is shown and kept, deadlines make room for them, and their times are
told for what they are.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from optics import Change, CrossConnect, Port, Progress, TimedOut, Traits
from optics.plain import scaled_text
from optics.plan import TransitionPolicy
from orchestrator.change.apply import progress_text, switch, undisturbed
from orchestrator.change.context import Context
from orchestrator.deadline import OUTER, deadline
from orchestrator.fabric.transition import transition
from orchestrator.plan.target import slowest_device, switching_s
from orchestrator.session import Session
from orchestrator.store.store import Store
from orchestrator.telemetry.journal import Journal
from orchestrator.telemetry.progress import Lines, Silent
from orchestrator.telemetry.reader import read_points
from orchestrator.telemetry.recorder import Recorder
from tests.change.fibrelab import SWITCH, FibrePlant, Robot, hosts_yml, read
from tests.drills.bench import LINK_S, PATIENCE_S, opened, plan_text

ROBOT = Traits(settle_s=1.0, at_once=1, latching=True)
WANTED = {
    "rome1": frozenset(
        CrossConnect(Port("rome1", f"E{k}"), Port("rome1", f"W{k + 1}")) for k in range(1, 4)
    )
}


class Notified(Silent):
    def __init__(self) -> None:
        self.reported: list[tuple[str, int, int, str]] = []

    def update(self, name: str, done: int, total: int, detail: str = "") -> None:
        self.reported.append((name, done, total, detail))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "store.sqlite3", durable=False) as opened:
        yield opened


def lab(scale: float = 60.0):  # type: ignore[no-untyped-def]
    plain = read(hosts_yml(1), {"rome1": ROBOT}, [])
    return replace(plain, devices={"rome1": replace(plain.devices["rome1"], time_scale=scale)})


async def test_every_move_of_a_robot_is_shown_and_journalled(store: Store, tmp_path: Path) -> None:
    here = lab()
    robot = Robot("rome1", ROBOT, FibrePlant(here))
    run, notified = store.new_run("up", "lab"), Notified()
    with Journal(tmp_path, run.id, "made") as journal:
        session = cast(Session, SimpleNamespace(devices={"rome1": robot}, lab=here))
        context = Context(session, store, run, "lab", Recorder(notified, journal), tmp_path, 10.0)
        await switch(context, transition({"rome1": frozenset()}, WANTED, {}))
    assert [(name, done, total) for name, done, total, _ in notified.reported] == [
        ("switch", n, 3) for n in range(4)
    ]
    assert (
        notified.reported[1][3]
        == "rome1 move 2 of 3, 2 min 00 s of device time (2.0 s here, x60) left"
    )
    moves = [
        p for p in read_points(tmp_path) if p.measurement == "phase" and p.tags["phase"] == "move"
    ]
    assert [p.fields["detail"] for p in moves] == [f"{n} of 3: move {n}" for n in (1, 2, 3)]
    assert "on_progress" not in vars(robot) or robot.on_progress is Robot.on_progress, (
        "no callback is left once the change is over"
    )
    assert {(p.name, p.phase, p.time_scale) for p in context.recorder.parts} == {
        ("rome1", "move", 60.0),
        ("rome1", "switch", 60.0),
    }


def test_plain_lines_say_where_a_robot_is() -> None:
    stream = StringIO()
    lines = Lines(stream, every_s=0.0)
    lines.phase("switch")
    lines.update("switch", 3, 24, progress_text(Progress("rome1", 3, 24, 21.0), 1.0))
    assert stream.getvalue().split() == [
        "switch",
        "3/24",
        "rome1",
        "move",
        "4",
        "of",
        "24,",
        "21.0",
        "s",
        "left",
    ]


def test_a_serial_device_needs_its_settling_time_for_every_move() -> None:
    change = Change("rome1", add=WANTED["rome1"])
    assert switching_s(change, ROBOT) == 3.0
    assert switching_s(change, replace(ROBOT, at_once=2)) == 2.0
    assert switching_s(change, SWITCH) == SWITCH.settle_s
    goal = transition({"rome1": frozenset()}, WANTED, {})
    assert slowest_device(goal, {"rome1": ROBOT}) == ("rome1", 3.0)


def test_time_of_a_faster_device_is_told_as_a_real_ones_too() -> None:
    assert scaled_text(1.02, 60) == "1 min 01 s of device time (1.0 s here, x60)"
    assert scaled_text(1.02, 1) == "1.0 s"


async def test_a_deadline_nobody_chose_makes_room_for_slow_devices_and_so_does_the_one_around_it() -> (
    None
):
    async with asyncio.timeout(0.05) as outer:
        OUTER.set(outer)
        async with deadline(0.03, "up", firm=False) as limit:
            limit.need(0.1, "rome1")
            await asyncio.sleep(0.1)
    assert limit.timeout_s == pytest.approx(0.23)


async def test_a_deadline_the_operator_chose_is_kept_and_what_cannot_be_done_in_it_is_not_begun() -> (
    None
):
    async with deadline(30.0, "up") as limit:
        with pytest.raises(
            TimedOut,
            match=r"up: rome1 \(48 moves\) takes about 48 min 00 s, .* nothing was changed",
        ) as refused:
            limit.need(2880.0, "rome1 (48 moves)")
    assert "--timeout 57" in refused.value.hint


async def test_a_deadline_that_passes_says_which_verb_and_how_long() -> None:
    with pytest.raises(TimedOut, match=r"^plan: not finished after 0.01 s$"):
        async with deadline(0.01, "plan"):
            await asyncio.sleep(5)


def test_a_change_of_minutes_does_not_stop_the_interpreters_housekeeping() -> None:
    import gc

    with undisturbed(60.0):
        assert gc.isenabled()
    with undisturbed(0.05):
        assert not gc.isenabled()
    assert gc.isenabled()


@pytest.mark.skipif(
    os.geteuid() != 0, reason="only root may have real-time priority for the asking"
)
def test_a_change_of_milliseconds_runs_before_ordinary_processes_and_only_meanwhile() -> None:
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    with undisturbed(60.0):
        assert os.sched_getscheduler(0) == before[0]
    with undisturbed(0.05):
        assert os.sched_getscheduler(0) == os.SCHED_FIFO | os.SCHED_RESET_ON_FORK
    assert (os.sched_getscheduler(0), os.sched_getparam(0)) == before


@pytest.mark.parametrize("patience_s", [PATIENCE_S, 90.0])
async def test_hosts_that_committed_do_not_go_back_while_a_driver_still_waits_for_its_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patience_s: float
) -> None:
    """One device may be done, and its hosts on the new routes, while another one reports nothing
    until its driver gives it up.
    """
    armed: list[float] = []
    async with opened(tmp_path, hosts=2) as bench:
        config = bench.inventory / "devices.yml"
        config.write_text(
            config.read_text().replace(f'patience_s: "{PATIENCE_S}"', f'patience_s: "{patience_s}"')
        )
        arm = bench.fleet.routes.arm

        async def heard(
            generation: int, when_up: Any, *, revert_after_s: float, **more: Any
        ) -> None:
            armed.append(revert_after_s)
            await arm(generation, when_up, revert_after_s=revert_after_s, **more)

        monkeypatch.setattr(bench.fleet.routes, "arm", heard)
        await bench.up(plan_text("one", [("gpu01:p1", "gpu02:p1")]))
    assert armed == [TransitionPolicy().revert_after_s + LINK_S + patience_s]
