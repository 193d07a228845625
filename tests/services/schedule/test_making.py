"""`up` of a schedule that ends between two slots, slots that do not change, and what a killed turner
left: the next command knows.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY

import pytest

from optics import Infeasible, Interlock, Missing, Refused, RolledBack
from optics.plan import Plan
from orchestrator.background.kind import StateFile
from orchestrator.change.report import UpReport
from orchestrator.change.unfinished import unfinished_state
from orchestrator.fabric.up_state import UpState
from orchestrator.jobs.report import JobStatus
from orchestrator.plan.stored import stored_plan
from orchestrator.services.schedule import left, making
from orchestrator.services.schedule.process import (
    SCHEDULER,
    ScheduleOptions,
    ScheduleState,
    at_rest,
)
from orchestrator.session import Command, Observation
from orchestrator.store.options import RunOptions, UpOptions
from orchestrator.telemetry.progress import Silent
from orchestrator.verbs import change as verbs
from tests.change.fleet import Killed
from tests.kit.jobs import spec
from tests.services.schedule.fabric import HERE, PAIRS, Bench, plan_text


class Made(Bench):
    """Slots that come up at once. fail: all but this one. kill: before this one; killed_in: in the
    midst of it; killed_after: before anything else is written after it. launched: whether a turner
    was started with the job.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, text: str = "") -> None:
        super().__init__(folder, monkeypatch, text)
        self.store.clear_current(self.tenancy)
        self.asked: list[tuple[object, str]] = []
        self.kill: object = None
        self.fail: object = None
        self.killed_in: object = None
        self.killed_after: object = None
        self.launched: list[object] = []
        self.scheduling = ScheduleState(8, plan="round", state="switching", alive=True)
        bench = self

        class Change:
            def __init__(self, *_: object) -> None:
                pass

            async def up(self, plan: Plan, text: str, options: RunOptions) -> UpReport:
                slots = options.slots
                assert slots is not None
                if slots.slot == bench.kill:
                    raise Killed
                if slots.slot == bench.fail:
                    raise Refused("ocs1: no")
                bench.asked.append((slots.slot, options.asked.expected))
                other = bench.store.new_run(
                    "up", bench.key, plan_name="another", owner="project:other"
                )
                other.found({}, {})
                other.finish("ok")
                mine = {"user": bench.settings.user, "owner": bench.settings.owner}
                run = bench.store.new_run(
                    "up",
                    bench.key,
                    plan_name=plan.name,
                    plan_sha=plan.sha256,
                    options=options,
                    **mine,
                )
                run.found({}, {})
                if slots.slot == bench.killed_in:
                    run.finish("failed")
                    raise Killed
                more = {"plan_name": plan.name, "plan_sha": plan.sha256, "plan_text": text}
                bench.store.set_current(
                    bench.tenancy, run.id, **more, up=UpState(slots=slots), generation=2
                )
                run.finish("ok")
                bench.store.resolve(
                    [one.id for one in bench.store.unfinished(bench.key, bench.settings.owner)],
                    run.id,
                )
                if slots.slot == bench.killed_after:
                    raise Killed
                return UpReport(run.id, plan.name, HERE.name)

        async def start(*_: object, job: bool, log: str = "") -> object:
            bench.launched.append(job)
            return bench.scheduling

        monkeypatch.setattr(making, "ChangeRun", Change)
        monkeypatch.setattr(making, "start", start)
        monkeypatch.setattr(left, "load_lab", lambda _: HERE)

    @property
    def command(self) -> Command:
        return Command(Silent(), self.store, self.settings)

    def up(self, expected: str = "") -> UpReport:
        asked = RunOptions(UpOptions(launch_job=False, expected=expected))
        return asyncio.run(making.up_slots(self.command, HERE, self.plan, self.text, asked))


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    return Made(tmp_path, monkeypatch)


def test_slots_that_an_up_did_not_reach_are_made_by_the_next_one_and_only_they(bench: Made) -> None:
    bench.kill = 2
    with pytest.raises(Killed):
        bench.up()
    current = bench.store.current(bench.tenancy)
    assert current is not None and [slot for slot, _ in bench.asked] == [1]
    assert (
        at_rest(current, HERE)
        == "do not change, and 2 of 3 were not made and verified: testbed up with the plan makes them"
    )
    plan = stored_plan(current.plan_text, current.plan_name, current.up.slots, HERE)
    assert {link.hosts for link in plan.links} == set(PAIRS[1])
    with pytest.raises(
        Missing,
        match=r"of round 2 slots of 3 were not made and verified: its `up` did not get so far",
    ):
        asyncio.run(bench.change_slot())
    bench.kill = None
    report = bench.up()
    history = bench.store.history(bench.key, 0)
    assert {
        run.resolved_by for run in history if run.plan_name == "round" and run.id != report.run
    } == {"", report.run}
    assert sum(run.resolved_by == report.run for run in history) == 2, (
        "a rollback goes back to before slot 1"
    )
    assert [slot for slot, _ in bench.asked] == [1, 2, 0] and report.notes[0].startswith(
        "2 slots of 3 made"
    )
    assert (
        at_rest(bench.store.current(bench.tenancy), HERE)
        == "do not change; slot 0 of 3 stays; to change them: testbed service start schedule"
    )
    bench.up()
    assert [slot for slot, _ in bench.asked] == [1, 2, 0, 0]


@pytest.mark.parametrize("how, runs", [("killed_in", 4), ("killed_after", 3)])
def test_a_rollback_goes_back_to_before_the_first_slot_wherever_an_up_was_killed(
    bench: Made, how: str, runs: int
) -> None:
    setattr(bench, how, {"killed_in": 1, "killed_after": 2}[how])
    with pytest.raises(Killed):
        bench.up()
    setattr(bench, how, None)
    report = bench.up()
    made = [
        run for run in bench.store.history(bench.key, 0) if run.plan_name == "round" and run.begun
    ]
    assert [run.resolved_by for run in made] == ["", *[report.run] * (runs - 1)]


def test_a_way_back_from_slots_is_recorded_with_the_run_that_it_undoes(
    bench: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or it could not be resumed, should it die."""
    undone: list[RunOptions] = []

    async def back(_: object, to: object, options: RunOptions) -> None:
        undone.append(options)

    monkeypatch.setattr(making.ChangeRun, "back", back, raising=False)
    monkeypatch.setattr(making, "before_run", lambda *_: "what was there")
    bench.fail = 2
    with pytest.raises(RolledBack, match="slot 2: ocs1: no"):
        bench.up()
    mine = [run.id for run in bench.store.history(bench.key, 0) if run.plan_name == "round"]
    assert undone == [RunOptions(of=mine[0])]


def test_an_up_that_is_resumed_launches_the_job_that_it_was_to_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = [*HERE.hosts][:4]
    job = {"name": "mlp", "workload": "train", "ranks": hosts, "rings": [hosts]}
    bench = Made(tmp_path, monkeypatch, plan_text(job))
    bench.killed_in = 2
    with pytest.raises(Killed):
        asyncio.run(
            making.up_slots(bench.command, HERE, bench.plan, bench.text, RunOptions(UpOptions()))
        )
    bench.killed_in = None
    kept = bench.store.history(bench.key, 1)[0].options
    asyncio.run(
        making.up_slots(bench.command, HERE, bench.plan, bench.text, replace(kept, resumes="x"))
    )
    assert bench.launched == [True]


def test_what_packet_switches_lack_is_known_before_a_slot_is_made_or_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = [*HERE.hosts][:4]
    bench = Made(
        tmp_path,
        monkeypatch,
        plan_text({"name": "mlp", "workload": "train", "ranks": hosts, "rings": [hosts]}),
    )
    asked: list[object] = []

    async def check(job: Any, *_: object) -> None:
        asked.append(job)
        if job is not None:
            raise Infeasible("segment ideal: 0 slots are free")

    bench.up()
    bench.launched.clear()
    monkeypatch.setattr(making, "check_attachments", check)
    monkeypatch.setattr(making, "load_lab", lambda _: HERE)
    with pytest.raises(Infeasible, match="0 slots are free"):
        asyncio.run(making.begin_schedule(bench.command, ScheduleOptions(job=True)))
    with pytest.raises(Infeasible, match="0 slots are free"):
        asyncio.run(
            making.up_slots(bench.command, HERE, bench.plan, bench.text, RunOptions(UpOptions()))
        )
    assert asked == [bench.plan.job] * 2 and len(bench.asked) == 3 and not bench.launched
    asyncio.run(making.begin_schedule(bench.command, ScheduleOptions()))
    assert bench.launched == [False]


@pytest.mark.parametrize(("state", "refused"), [("running", True), ("finished", False)])
async def test_slots_in_which_two_hosts_of_a_running_job_never_meet_are_refused(
    bench: Made, monkeypatch: pytest.MonkeyPatch, state: str, refused: bool
) -> None:
    bench.store.add_job(bench.tenancy, "r1", "mlp", spec("gpu01", "gpu05"), "running")

    async def asked(_: Command) -> JobStatus:
        return JobStatus("mlp", state)

    monkeypatch.setattr(verbs, "job_status", asked)
    await verbs.in_slots_too(bench.command, HERE, replace(bench.plan, job=ANY), launch_job=True)
    look = verbs.in_slots_too(bench.command, HERE, bench.plan, launch_job=True)
    if not refused:
        await look
        return
    with pytest.raises(
        Interlock, match=r"job mlp: gpu01 cannot reach gpu05 over this plan, so it cannot go on"
    ):
        await look


def test_a_saved_plan_is_compared_before_its_first_slot_is_made_and_only_then(bench: Made) -> None:
    bench.up(expected="0123456789ab")
    assert bench.asked == [(1, "0123456789ab"), (2, ""), (0, "")]


def test_a_turner_that_died_is_followed_by_another_or_ended_in_a_whole_slot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, monkeypatch)
    monkeypatch.setattr(left, "load_lab", lambda _: HERE)
    command = Command(Silent(), bench.store, bench.settings)
    assert asyncio.run(left.stop_left(command)) is None
    dead = bench.store.new_run(
        "schedule",
        bench.key,
        plan_name="round",
        user=bench.settings.user,
        owner=bench.settings.owner,
    )
    dead.finish("failed")
    record = bench.store.get(dead.id)
    assert record is not None
    lines = unfinished_state(
        replace(record, status="died"), None, None, Observation({}, {}, {})
    ).lines()
    assert lines == [
        f"run {dead.id} (schedule round) died before its end",
        "  continue: testbed service start schedule",
    ]
    path = SCHEDULER.path(bench.settings, bench.tenancy)
    with StateFile(
        SCHEDULER, path, replace(SCHEDULER.own(bench.settings), plan="round", state="switching")
    ):
        pass
    [switch] = bench.fabric.devices.values()
    switch.held = frozenset(sorted(switch.held, key=str)[:3])
    report = asyncio.run(left.stop_left(command))
    state = SCHEDULER.read(path)
    assert report is not None and report.slot == 0 and state is not None and not state.halted
    assert bench.pairs() == set(PAIRS[0])


def test_a_schedule_whose_lab_changed_says_nothing_of_slots(bench: Made) -> None:
    bench.up()
    current = bench.store.current(bench.tenancy)
    assert current is not None
    assert (
        at_rest(replace(current, plan_text=current.plan_text.replace("gpu01", "gpu99")), HERE)
        == ""
        == at_rest(None, HERE)
    )


def test_slots_that_turn_already_launch_no_job_and_say_so(
    bench: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.up()
    monkeypatch.setattr(making, "load_lab", lambda _: HERE)
    with StateFile(
        SCHEDULER,
        SCHEDULER.path(bench.settings, bench.tenancy),
        replace(SCHEDULER.own(bench.settings), plan="round"),
    ):
        with pytest.raises(
            Refused, match="the slots of round change already; nothing was launched"
        ) as error:
            asyncio.run(making.begin_schedule(bench.command, ScheduleOptions(job=True)))
        assert error.value.hint == "testbed job launch"
        assert (
            asyncio.run(making.begin_schedule(bench.command, ScheduleOptions())) == bench.scheduling
        )


def test_pairs_that_were_asked_in_no_slot_are_said_of_all_slots() -> None:
    made = [UpReport("0001", "round", "lab", pairs_ok=5, pairs_total=5, pairs_unasked=2)] * 3
    assert (
        making._together(made, 3, ScheduleState()).notes[0]
        == "3 slots of 3 made and verified, 15/15 pairs (6 others not asked)"
    )


@pytest.mark.parametrize(
    ("became", "error"),
    [
        (["", "", "mlp: running"], ""),
        (
            ["", "not launched: gpu01: no room"],
            "the slots of round change; its job is not launched: gpu01: no room",
        ),
        (
            ["", None],
            "the schedule service of round ended before its job was launched: ocs1 does not answer",
        ),
    ],
)
def test_an_up_of_a_schedule_waits_for_its_job_as_long_as_its_turner_lives_and_says_what_became_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, became: list[str | None], error: str
) -> None:
    bench, looks = Bench(tmp_path, monkeypatch), iter(became)
    state = ScheduleState(8, plan="round", state="switching", alive=True)

    def look(_: Path) -> ScheduleState:
        job = next(looks)
        return (
            replace(state, job=job)
            if job is not None
            else replace(state, alive=False, error="ocs1 does not answer")
        )

    async def started(*_: object) -> ScheduleState:
        return state

    fake = SimpleNamespace(started=started, read=look, path=SCHEDULER.path)
    monkeypatch.setattr(making, "SCHEDULER", fake)
    monkeypatch.setattr(making, "LOOK_S", 0.0)
    begin = making.start(Command(Silent(), bench.store, bench.settings), HERE, "r", job=True)
    if error:
        with pytest.raises(Refused, match=error):
            asyncio.run(begin)
    else:
        found = asyncio.run(begin)
        assert (
            making._together([UpReport("r", "round", "lab")], 3, found).notes[-1]
            == "job mlp: running"
        )
