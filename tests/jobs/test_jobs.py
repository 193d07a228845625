"""When a job keeps running, is launched again, goes on from its checkpoint or starts again. Its
ranks only say how they are.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from optics import Infeasible, Locked, NotVerified, Refused
from optics.plan import Job, Traffic, Transfer
from orchestrator.cli import render
from orchestrator.cli.render import status as shown
from orchestrator.fabric.up_state import UpState
from orchestrator.hosts.api import ClockReading, Heartbeat, JobState, RankState, Tail
from orchestrator.hosts.launch import check_launch, job_name, requests
from orchestrator.inventory.lab import Lab
from orchestrator.jobs.attachments import Launch
from orchestrator.jobs.jobs import Jobs
from orchestrator.jobs.record import spec_of
from orchestrator.jobs.report import JobStatus
from orchestrator.session import Session
from orchestrator.store.job_spec import JobSpec, Pause
from orchestrator.store.records import CurrentPlan, JobRecord
from orchestrator.store.store import Store
from orchestrator.telemetry.progress import Silent
from orchestrator.telemetry.recorder import Recorder
from orchestrator.verbs.report import StatusReport
from orchestrator.verbs.status import _dead, _of_now
from tests.change.fibrelab import SWITCH, hosts_yml, read
from tests.hosts.parts import OwnParts
from tests.kit.jobs import spec

KEY = "lab/ann"
FOUR = ("gpu01", "gpu02", "gpu03", "gpu04")
TRAIN = Job("mlp", "train", FOUR, (FOUR,), {"iterations": 0})


class Void:
    """The ring changes of ranks of which none is in a move."""

    async def states(self, name: str, hosts: Any) -> tuple[RankState, ...]:
        return tuple(RankState(host, rank, "void", 3) for rank, host in enumerate(hosts))


class Ranks(OwnParts):
    """Hosts that run what is launched. `kept`: the newest iteration in each checkpoint directory;
    `state_code`: how ranks are at once.
    """

    def __init__(self, lab: Lab) -> None:
        self.lab, self.ring_changes = lab, Void()
        self.ran: dict[str, str] = {}
        self.first: dict[str, int] = {}
        self.launched: list[tuple[str, bool]] = []
        self.kept: dict[str, int] = {}
        self.state_code = "running"
        self.odd = self.refuses = ""
        self.writes = 4

    async def launch(self, job: Job, run: str, *, resume: bool = False) -> None:
        request = requests(job, self.lab, run, resume=resume)[job.ranks[0]]
        place = str(request.get("checkpoints"))
        name = job_name(job.name, run)
        self.ran[name] = self.state_code
        self.first[name] = self.kept.get(place, 0) + 1 if "--resume" in request["argv"] else 1
        self.kept[place] = self.first[name] + 3
        self.launched.append((job.name, resume))

    async def keep_counters(self, job: str, interval_s: float, names: Any) -> None:
        """Ports are sampled while the job runs; nobody here looks at the samples."""

    async def states(self, name: str, hosts: Any) -> dict[str, JobState]:
        reported = self.ran.get(name, "absent")
        return {
            h: JobState(
                h,
                "exited" if reported.isdigit() else reported,
                int(reported) if reported.isdigit() else None,
            )
            for h in hosts
        }

    async def stop(self, name: str, grace_s: float, hosts: Any) -> dict[str, JobState]:
        self.ran[name] = "0"
        return await self.states(name, hosts)

    async def tail(self, name: str, host: str, file: str = "log", offset: int = 0) -> Tail:
        if file == "log":
            return Tail("gpu01 says why\n", 0, 0, "exited")
        if self.refuses:
            raise Refused(self.refuses)
        first = self.first.get(name, 1)
        numbers = range(first, first + self.writes)
        text = self.odd + "".join(
            json.dumps({"iter": n, "iter_ms": 5.0, "t_wall_ns": 1}) + "\n" for n in numbers
        )
        return Tail(text[offset:], len(text), len(text), "running")

    async def heartbeats(self, name: str, hosts: Any, after: Any = None) -> dict[str, Heartbeat]:
        """No rank writes any."""
        return {}

    async def clocks(self, hosts: Any) -> dict[str, ClockReading]:
        return {h: ClockReading(0, 0) for h in hosts}


class Bench:
    """A store, a lab of four hosts, and the ranks on them."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.store, self.folder, self.runs = store, folder, 0
        fibres = [
            f'name: f{h}, host: gpu{h:02d}, port: 1, device: ocs1, enters: "{h}", leaves: "{100 + h}"'
            for h in range(1, 5)
        ]
        self.lab = read(hosts_yml(4, ports=1), {"ocs1": SWITCH}, fibres)
        self.ranks = Ranks(self.lab)
        self.session = Session(self.lab, folder, {}, cast(Any, self.ranks))
        self.jobs = Jobs(self.session, store, KEY, folder)
        self.reported: dict[str, str] = {}

    async def bring(self, job: Job | None, *, changed: bool = False) -> JobStatus | None:
        """As `up` does at its end, with what it says in `reported`."""
        self.runs += 1
        recorder = Recorder(Silent())
        run = f"r{self.runs}"
        try:
            return await self.jobs.ensure(run, job, recorder, changed=changed, launch=True)
        finally:
            self.reported = {phase.name: phase.detail for phase in recorder.phases}

    def end(self, how: str) -> None:
        """Every rank that runs ends so."""
        self.ranks.ran = {
            name: how if reported == "running" else reported
            for name, reported in self.ranks.ran.items()
        }


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Store(tmp_path / "store.sqlite3") as store:
        yield Bench(store, tmp_path)


async def test_a_change_of_rings_goes_on_from_the_checkpoint_and_says_from_which(
    bench: Bench,
) -> None:
    await bench.bring(TRAIN)
    assert "resumed" not in str(bench.reported)
    status = await bench.bring(replace(TRAIN, rings=(FOUR, FOUR[::-1])), changed=True)
    assert bench.ranks.launched == [("mlp", False), ("mlp", True)]
    assert (
        status is not None
        and status.resumed_from == 4
        and "resumed after iteration 4" in bench.reported["job"]
    )


@pytest.mark.parametrize(
    "other",
    [
        replace(TRAIN, ranks=FOUR[:3], rings=()),
        replace(TRAIN, args={"iterations": 0, "batch": 4}),
        replace(TRAIN, args={"iterations": 0, "hidden": 64}),
        replace(TRAIN, name="other"),
        Job("mlp", "allreduce", FOUR, (), {"loop": True}),
    ],
    ids=["fewer ranks", "another batch", "another width", "another name", "another program"],
)
async def test_another_training_of_the_same_name_starts_anew_both_ways(
    bench: Bench, other: Job
) -> None:
    for job in (TRAIN, other, TRAIN):
        status = await bench.bring(job, changed=True)
        assert (
            status is not None and status.resumed_from == 0 and "resumed" not in str(bench.reported)
        )
    assert [resume for _, resume in bench.ranks.launched] == [False, False, False]


async def test_what_was_kept_of_a_job_that_comes_back_is_that_of_itself_not_of_the_latest(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    befores = list[JobRecord | None]()

    async def begin(launch: Launch, spec: JobSpec, _: object) -> JobSpec:
        befores.append(launch.latest)
        return spec

    monkeypatch.setattr("orchestrator.jobs.attachments.begin_attachments", begin)
    await bench.bring(TRAIN)
    first = bench.store.latest_job(KEY)
    assert first is not None
    await bench.bring(replace(TRAIN, name="other"), changed=True)
    await bench.jobs.resume_previous("r9", first.id, None, Recorder(Silent()))
    before = befores[-1]
    assert before is not None and before.id == first.id


async def test_a_run_whose_lock_was_taken_neither_records_nor_launches_a_job(bench: Bench) -> None:
    """Or whoever took it would look after a job that nobody has launched, in place of its own."""
    run = bench.store.new_run("up", "lab")

    def taken(_: sqlite3.Connection) -> None:
        raise Locked("bob took the lab")

    run.fence(taken)
    with pytest.raises(Locked, match="bob"):
        await bench.jobs.start(run.id, TRAIN, Recorder(Silent()), resume=False)
    assert bench.store.latest_job(KEY) is None and not bench.ranks.launched


async def test_a_launch_waits_for_its_own_job_whatever_is_recorded_beside_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = bench.ranks.launch

    async def late(job: Job, run: str, *, resume: bool = False) -> None:
        await launch(job, run, resume=resume)
        bench.store.add_job(KEY, "by another", job.name, spec_of(job, bench.lab, "by another"))

    monkeypatch.setattr(bench.ranks, "launch", late)
    status = await bench.bring(TRAIN)
    assert status is not None and (status.run, status.state, status.iterations) == (
        "r1",
        "running",
        4,
    )


ODD = [{"iter": 2.5}, {"iter": 1e18}, {"iter_ms": 1e18}, {"t_wall_ns": 9.99e18}, {"iter": None}]
PUT_ON_HOST = "gpu01: file iterations.jsonl is no plain file"


async def test_no_record_that_a_job_writes_ends_a_verb_and_what_is_left_out_is_told(
    bench: Bench,
) -> None:
    bench.ranks.odd = "".join(
        json.dumps({"iter": 1.0, "iter_ms": 5, "t_wall_ns": 1} | odd) + "\n" for odd in [{}, *ODD]
    )
    status = await bench.bring(TRAIN)
    assert status is not None and (status.state, status.iterations, status.bad_records) == (
        "running",
        5,
        len(ODD),
    )
    text = f"5 lines of its records left out: iter is to be a whole number from 0 to {1 << 53}, and is null"
    assert text in render.job(status)
    assert await bench.jobs.stop_if_running(Recorder(Silent())) == "mlp"


async def test_a_job_all_of_whose_records_are_none_runs_and_is_not_waited_for(bench: Bench) -> None:
    bench.ranks.odd = '{"iter": 2.5}\n' * 9
    bench.ranks.writes = 0
    status = await bench.bring(TRAIN)
    assert status is not None and (status.state, status.iterations, status.bad_records) == (
        "running",
        0,
        9,
    )


async def test_a_damaged_checkpoint_that_was_passed_over_is_told(bench: Bench) -> None:
    bench.ranks.odd = json.dumps({"iter": 3, "iter_ms": 5, "t_wall_ns": 1, "damaged": 4.0}) + "\n"
    status = await bench.bring(TRAIN)
    assert status is not None and (status.resumed_from, status.damaged) == (2, 4)
    assert (
        "resumed after iteration 2; that of iteration 4 is damaged, and was passed over"
        in bench.reported["job"]
    )
    assert (
        "after iteration 2 (the checkpoint of iteration 4 is damaged: passed over)"
        in render.job(status)
    )


async def test_what_a_job_put_in_the_place_of_its_files_ends_no_verb(bench: Bench) -> None:
    await bench.bring(TRAIN)
    bench.ranks.refuses = PUT_ON_HOST
    record = bench.store.latest_job(KEY)
    assert record is not None
    status = await bench.jobs.status(record)
    assert (status.state, status.iterations, status.bad_records) == ("running", 4, 0)
    assert f"its records are not read: {PUT_ON_HOST}" in render.job(status)
    assert await bench.jobs.stop_if_running(Recorder(Silent())) == "mlp"


async def test_a_program_without_checkpoints_is_never_said_to_be_resumed(bench: Bench) -> None:
    loop = Job("sum", "allreduce", FOUR, (), {"loop": True})
    await bench.bring(loop)
    await bench.bring(replace(loop, rings=(FOUR,)), changed=True)
    assert "resumed" not in str(bench.reported)
    assert all(
        "--resume" not in request["argv"]
        for request in requests(loop, bench.lab, "r", resume=True).values()
    )


@pytest.mark.parametrize("end", ["75", "killed", "absent"])
async def test_a_job_that_died_is_launched_again_by_the_same_plan_and_goes_on(
    bench: Bench, end: str
) -> None:
    await bench.bring(TRAIN)
    bench.end(end)
    status = await bench.bring(TRAIN)
    assert status is not None and (status.state, status.run, status.resumed_from) == (
        "running",
        "r2",
        4,
    )


async def test_a_job_whose_stop_died_before_it_could_say_so_was_stopped_and_has_not_finished(
    bench: Bench,
) -> None:
    """Ranks that were asked to stop end as those that have done all that they were to do."""
    await bench.bring(TRAIN)
    stop_job = bench.ranks.jobs.stop

    async def killed(name: str, grace_s: float, hosts: Any) -> dict[str, JobState]:
        await stop_job(name, grace_s, hosts)
        raise KeyError("as if it had been killed here")

    bench.ranks.jobs.stop = killed
    record = bench.store.latest_job(KEY)
    assert record is not None
    with pytest.raises(KeyError):
        await bench.jobs.stop(record, "stopped by the operator")
    bench.ranks.jobs.stop = stop_job
    record = bench.store.latest_job(KEY)
    assert record is not None and record.ended is None
    status = await bench.jobs.status(record)
    assert (status.state, status.detail) == ("stopped", "stopped by the operator")
    again = await bench.bring(TRAIN)
    assert again is not None and (again.run, again.resumed_from) == ("r2", 4)


async def test_a_job_that_failed_at_its_start_is_tried_again_and_fails_again(bench: Bench) -> None:
    bench.ranks.state_code = "2"
    for _ in range(2):
        with pytest.raises(NotVerified, match="gpu01 says why") as failed:
            await bench.bring(TRAIN)
    assert len(bench.ranks.launched) == 2 and "testbed job launch" in str(failed.value.hint)


@pytest.mark.parametrize(
    "how", ["at its start", "by its launch", "later", "before down", "found by down"]
)
async def test_ranks_that_outlive_a_failed_job_are_stopped(bench: Bench, how: str) -> None:
    """A program may wait for a lost peer for half an hour, and holds its GPU meanwhile."""
    stopped: list[tuple[str, tuple[str, ...], int]] = []
    states, launch = bench.ranks.jobs.states, bench.ranks.jobs.launch
    waits = {"mlp.r1"}

    async def job_states(name: str, hosts: Any) -> dict[str, JobState]:
        found = await states(name, hosts)
        return found | {
            h: JobState(h, "running")
            for h in hosts
            if h == "gpu02" and name in waits and name in bench.ranks.ran
        }

    async def stop_job(name: str, grace_s: float, hosts: Any) -> dict[str, JobState]:
        stopped.append((name, tuple(hosts), len(bench.ranks.launched)))
        waits.discard(name)
        return await states(name, hosts)

    async def refused(job: Job, run: str, *, resume: bool = False) -> None:
        await launch(job, run, resume=resume)
        bench.end("absent")
        raise Refused("gpu04: no user")

    bench.ranks.jobs.states, bench.ranks.jobs.stop = job_states, stop_job
    if how == "at its start":
        bench.ranks.state_code = "2"
        with pytest.raises(NotVerified):
            await bench.bring(TRAIN)
    elif how == "by its launch":
        bench.ranks.jobs.launch = refused
        with pytest.raises(Refused, match="no user"):
            await bench.bring(TRAIN)
    else:
        await bench.bring(TRAIN)
        bench.end("75")
        if how == "later":
            await bench.bring(TRAIN)
            assert bench.ranks.launched == [("mlp", False), ("mlp", True)]
        elif how == "found by down":
            assert await bench.jobs.stop_if_running(Recorder(Silent())) == ""
        else:
            record = bench.store.latest_job(KEY)
            assert record is not None
            status = await bench.jobs.status(record)
            assert status.state == "failed" and status.detail.endswith(
                "; 1 rank still runs: testbed job stop"
            )
            assert await bench.jobs.stop_if_running(Recorder(Silent())) == ""
    assert stopped == [("mlp.r1", ("gpu02",), 1)], "once, before anything else is launched"


async def test_a_job_that_runs_or_has_finished_is_left_alone_by_the_same_plan(bench: Bench) -> None:
    await bench.bring(TRAIN)
    await bench.bring(TRAIN)
    bench.end("0")
    status = await bench.bring(TRAIN)
    assert len(bench.ranks.launched) == 1 and status is not None and status.state == "finished"
    bench.ranks.ran.clear()  # the hosts were installed again and know nothing of it
    status = await bench.bring(TRAIN)
    assert len(bench.ranks.launched) == 1 and status is not None and status.state == "finished"


async def test_while_a_job_starts_it_is_said_what_is_waited_for(bench: Bench) -> None:
    class Heard(Silent):
        message: list[tuple[str, int, int, str]]

        def update(self, name: str, done: int, total: int, detail: str = "") -> None:
            self.message.append((name, done, total, detail))

    heard = Heard()
    heard.message = []
    plain = bench.ranks.jobs.tail

    async def late(name: str, host: str, file: str = "log", offset: int = 0) -> Tail:
        return await plain(name, host, file, offset) if heard.message else Tail("", 0, 0, "running")

    bench.ranks.jobs.tail = late
    await bench.jobs.start("r", TRAIN, Recorder(heard), resume=False)
    assert heard.message == [
        ("job", 0, 0, "waiting for 4 ranks to start and meet, then for 4 iterations")
    ]


# --- what is said of it


def current(job: object) -> CurrentPlan:
    return CurrentPlan("r", "p", "sha", json.dumps({"job": job}), UpState(), 1, 0.0)


def test_a_dead_job_is_not_as_planned_and_a_stopped_one_is_said_to_be() -> None:
    failed = JobStatus("mlp", "failed", detail="gpu03: exit 2")
    (text,) = _dead(failed, current({"name": "mlp"}))
    assert text.startswith("job mlp failed: gpu03: exit 2") and "testbed up" in text
    assert (
        not _dead(failed, current({"name": "other"}))
        and not _dead(failed, current(None))
        and not _dead(failed, None)
    )
    assert not _dead(JobStatus("mlp", "running"), current({"name": "mlp"}))
    report = StatusReport("lab", "inventory", plan="p", job=failed, drift=(text,))
    assert (
        not report.ok and "As planned" not in shown(report, False) and text in shown(report, False)
    )
    stopped = StatusReport("lab", "inventory", plan="p", job=JobStatus("mlp", "stopped"))
    assert shown(stopped, False).endswith("As planned, but its job is stopped")


def test_a_job_of_an_earlier_plan_is_told_only_while_it_runs_or_where_it_failed_since() -> None:
    def notified(state: str, plan: CurrentPlan | None, ended: float | None) -> bool:
        record = JobRecord(1, KEY, "r", "mlp", spec(), state, 0.0, ended, "")
        return _of_now(JobStatus("mlp", state), record, plan)

    own, other, none = (
        replace(current(job), since=100.0) for job in ({"name": "mlp"}, {"name": "new"}, None)
    )
    for plan in (own, other, none, None):
        assert notified("running", plan, None) and notified("starting", plan, None)
    for ended, state in ((150.0, "stopped"), (150.0, "finished"), (None, "finished")):
        assert notified(state, own, ended) and not any(
            notified(state, plan, ended) for plan in (other, none, None)
        )
    assert all(notified("failed", plan, 150.0) for plan in (own, other, none)) and not notified(
        "failed", None, 150.0
    )
    assert not any(notified(state, own, 99.0) for state in ("stopped", "finished", "failed")), (
        "it is of an earlier plan of that name"
    )


async def test_a_job_that_is_being_launched_is_no_failed_one_and_nothing_is_taken_from_it(
    bench: Bench,
) -> None:
    run = bench.store.new_run("schedule", KEY, plan_name="p", owner="ann")
    number = bench.store.add_job(KEY, run.id, "mlp", spec_of(TRAIN, bench.lab, run.id))
    record = bench.store.job(number)
    assert record is not None
    status = await bench.jobs.status(record)
    assert status.state == "starting" and status.detail.endswith(f", by run {run.id} (schedule)"), (
        status
    )
    assert status.detail.startswith("launching since ") and bench.store.job(number) == record
    assert (await bench.jobs.status(replace(record, run="ended"))).state == "failed", (
        "nobody launches it any more"
    )


async def test_why_a_launch_failed_is_kept_apart_from_why_a_job_did(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise Refused("the tap of job mlp could not begin")

    monkeypatch.setattr(bench.ranks.jobs, "launch", refuse)
    with pytest.raises(Refused):
        await bench.bring(TRAIN)
    record = bench.store.latest_job(KEY)
    assert record is not None and record.unlaunched == "the tap of job mlp could not begin"
    monkeypatch.undo()
    bench.ranks.state_code = "2"
    with pytest.raises(NotVerified):
        await bench.bring(TRAIN)
    record = bench.store.latest_job(KEY)
    assert record is not None and record.state == "failed" and not record.unlaunched


def test_a_job_too_large_to_be_told_to_its_ranks_is_refused_before_anything_moves(
    bench: Bench,
) -> None:
    sends = tuple(Transfer("gpu01", "gpu02", 10**9 + n) for n in range(9000))
    job = Job("big", "replay", FOUR, traffic=Traffic(transfers=sends))
    with pytest.raises(
        Infeasible, match="job big: TESTBED_TRAFFIC would take more than 131072 bytes"
    ):
        check_launch(job, bench.lab)
    check_launch(replace(job, traffic=Traffic(transfers=sends[:100])), bench.lab)


@pytest.mark.parametrize(("left_s", "reported"), [(600.0, True), (-1.0, False)])
async def test_a_pause_that_a_newer_run_ended_says_so(
    bench: Bench, left_s: float, reported: bool
) -> None:
    """As a guard's reroute and `confirm` do: the agents drop what an older run asked for."""
    await bench.bring(TRAIN)
    paused = bench.store.new_run("job pause", "lab", owner="ann")
    record = bench.store.latest_job(KEY)
    assert record is not None
    bench.store.set_job_spec(
        record.id, replace(record.spec, pause=Pause(3, paused.token, time.time() + left_s))
    )
    bench.store.set_job(record.id, "paused")
    newer = bench.store.new_run("confirm", "lab", owner="ann")
    bench.store.new_run("guard", "lab", owner="ann")
    for _ in range(2):  # it is said again at the next look
        record = bench.store.latest_job(KEY)
        assert record is not None
        status = await bench.jobs.status(record)
        assert status.state == "running"
        assert (
            f"ended early: run {newer.id} (confirm) took over its hosts" in status.detail
        ) is reported
        assert bool(status.detail) is reported and (status.detail in render.job(status))
