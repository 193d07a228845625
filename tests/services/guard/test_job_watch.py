"""The guard and the job: restarted once for one fault, within the budget, never against a person,
even if the guard dies.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from extensions.shadow.plan import Shadow
from optics import Interlock, Interrupted, Locked, TestbedError, TimedOut, Unreachable
from optics.ranks import RankName, host_of_rank
from orchestrator.background.state import ServiceState
from orchestrator.change.locking import holding
from orchestrator.change.report import UpReport
from orchestrator.cli.render import job
from orchestrator.fabric.up_state import UpState
from orchestrator.hosts import Heartbeat
from orchestrator.hosts.api import Hello, JobState, RankTimes
from orchestrator.hosts.late import SAVE_S, START_S
from orchestrator.jobs.jobs import Jobs
from orchestrator.plan.evict import replaced
from orchestrator.results import Json
from orchestrator.services.guard import jobs as watching
from orchestrator.services.guard import policy, recover
from orchestrator.services.guard.jobs import JobWatch
from orchestrator.services.guard.policy import HANG_LEAST_S, PROGRAM_LEAST_S, Budget
from orchestrator.session import Command, Observation, Session
from orchestrator.settings import Settings, load
from orchestrator.store.audit import audit
from orchestrator.store.job_spec import Pause
from orchestrator.store.keys import key_of, tenancy_of
from orchestrator.store.locks import locks_of
from orchestrator.store.options import RunOptions
from orchestrator.store.recoveries import recoveries
from orchestrator.store.scope import reachable_scope
from orchestrator.store.store import Store
from orchestrator.store.tagouts import Tagouts
from orchestrator.telemetry.progress import Silent
from orchestrator.telemetry.recorder import Recorder
from orchestrator.verbs.status import _job, _missing
from tests.jobs.test_jobs import Ranks
from tests.properties.labs import lab

HERE = lab(6, 4)
FOUR = ["gpu01", "gpu02", "gpu03", "gpu04"]
LINKS = [{"a": a, "b": b} for a, b in zip(FOUR, FOUR[1:] + FOUR[:1], strict=True)]
JOB = {
    "name": "mlp",
    "workload": "train",
    "ranks": FOUR,
    "rings": [FOUR],
    "args": {"iterations": 0},
}
TEXT = json.dumps(
    {
        "schema": "testbed.plan/1",
        "name": "ring",
        "links": LINKS,
        "job": JOB,
        "spares": ["gpu05", "gpu06"],
    }
)


class Hosts(Ranks):
    """Hosts whose ranks can end one by one; `lost` do not answer. age_s: since when none of their
    beats changed, in `phase`, but `computing` ranks in that and others in `phases`. alive_s: of
    ranks that gave a sign of life not just now. save_s: of all ranks.
    """

    def __init__(self) -> None:
        super().__init__(HERE)
        self.ends: dict[tuple[str, RankName], str] = {}
        self.lost: set[str] = set()
        self.hellos: dict[str, Hello] = {}
        self.fenced = 0
        self.age_s, self.phase = 0.0, "compute"
        self.computing: set[RankName] = set()
        self.phases: dict[RankName, str] = {}
        self.save_s = 0.0
        self.alive_s: dict[RankName, float] = {}
        self.times: tuple[RankTimes, ...] = (RankTimes(9, 0, 100.0, 50.0, 50.0, 0.0),)
        self.grace: list[float] = []

    def attached(self) -> tuple[str, ...]:
        return tuple(host for host in HERE.hosts if host not in self.lost)

    async def fence(self, token: int, names: Collection[str]) -> None:
        self.fenced = token

    async def states(self, name: str, hosts: Any) -> dict[str, JobState]:
        if lost := {host_of_rank(rank) for rank in hosts} & self.lost:
            raise Unreachable(f"{min(lost)}: no route to host")
        reply = {rank: self.ends.get((name, rank), self.ran.get(name, "absent")) for rank in hosts}
        return {
            r: JobState(r, "exited" if s.isdigit() else s, int(s) if s.isdigit() else None)
            for r, s in reply.items()
        }

    async def stop(self, name: str, grace_s: float, hosts: Any) -> dict[str, JobState]:
        self.grace.append(grace_s)
        self.ends |= {
            (name, rank): "killed"
            for rank in hosts
            if self.ends.get((name, rank), self.ran.get(name)) == "running"
        }
        return await self.states(name, hosts)

    async def kept_counters(
        self, job: str, offsets: Mapping[RankName, int]
    ) -> Mapping[RankName, Any]:
        raise Unreachable("nothing was kept")

    async def heartbeats(
        self, job: str, ranks: Collection[RankName], after: Mapping[RankName, int] | None
    ) -> dict[RankName, Heartbeat]:
        phases = {
            rank: "compute" if rank in self.computing else self.phases.get(rank, self.phase)
            for rank in ranks
        }
        more = {
            rank: (self.age_s, self.times, self.alive_s.get(rank, 0.1), self.save_s)
            for rank in ranks
        }
        return {
            rank: Heartbeat(rank, "running", None, 10, phases[rank], *more[rank]) for rank in ranks
        }


class Bench:
    def __init__(self, folder: Path, budget: Budget) -> None:
        places = {f"TESTBED_{n}_DIR": str(folder / n.lower()) for n in ("DATA", "STATE", "LOCK")}
        self.settings: Settings = load(env=places, cwd=folder)
        self.store = Store(self.settings.store_path, durable=False)
        self.key, self.tenancy = key_of(HERE), tenancy_of(HERE, self.settings)
        self.hosts, self.reported, self.busy = Hosts(), list[tuple[str, str]](), ""
        self.command = Command(Silent(), self.store, self.settings)
        self.session = Session(HERE, Path("inventory"), {}, cast(Any, self.hosts))
        self.locks = locks_of(HERE, self.settings, self.store)
        self.store.set_current(
            self.tenancy,
            "2026-11-22-0001",
            plan_name="ring",
            plan_sha="x",
            plan_text=TEXT,
            up=UpState(),
            generation=1,
        )
        self.budget = budget
        self.watch = self.born()
        self.job = watching.read_plan(TEXT, "ring", HERE).job

    def born(self) -> JobWatch:
        """A guard that has just started."""

        def report(event: str, text: str, **fields: Json) -> None:
            self.reported.append((event, text))

        return JobWatch(
            self.session,
            self.command,
            self.tenancy,
            self.locks,
            self.budget,
            report,
            lambda: self.busy,
            asyncio.Lock(),
        )

    async def launch(self) -> None:
        assert self.job is not None
        await Jobs(self.session, self.store, self.tenancy, self.settings.runs_dir).start(
            "r1", self.job, Recorder(Silent()), resume=False
        )

    def end(self, **ends: str) -> None:
        record = self.store.latest_job(self.tenancy)
        assert record is not None
        self.hosts.ends |= {(record.spec.on_hosts, rank): how for rank, how in ends.items()}

    async def look(self, times: int = 1) -> str:
        action = None
        for _ in range(times):
            action = await self.watch.look()
        return action.kind if action is not None else ""


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(policy, "FIRST_BACKOFF_S", 0.0)
    return Bench(tmp_path, Budget(3, 3600.0))


async def test_a_job_that_lost_a_rank_runs_again_from_its_checkpoint_and_says_why(
    bench: Bench,
) -> None:
    await bench.launch()
    assert await bench.look() == "none" and not bench.reported
    bench.end(gpu02="killed", gpu01="75", gpu03="75")
    assert await bench.look() == "restart"
    assert bench.hosts.launched == [("mlp", False), ("mlp", True)] and set(bench.hosts.grace) == {
        1.0
    }
    assert await bench.look(3) == "none", "and once only"
    (one,) = recoveries(bench.store, bench.tenancy)
    run = bench.store.get(one.run)
    assert run is not None and (run.verb, run.status, run.message, one.outcome) == (
        "job restart",
        "ok",
        "gpu02: killed",
        "ok",
    )
    assert [event for event, _ in bench.reported] == [
        "recovering",
        "recovered",
    ] and "after iteration 4" in bench.reported[1][1]
    assert [r.what for r in audit(bench.store, bench.key) if r.subject == "job mlp"] == [
        "recovered",
        "recovering",
    ]
    assert not bench.store.unfinished(bench.key, bench.settings.owner)


async def test_never_more_than_the_budget_and_it_says_so_once(bench: Bench) -> None:
    await bench.launch()
    for _ in range(3):
        bench.end(gpu02="75")
        assert await bench.look() == "restart"
    bench.end(gpu02="75")
    assert [await bench.look() for _ in range(4)] == ["report"] * 4 and len(
        bench.hosts.launched
    ) == 4
    assert sum("budget of 3/h is spent" in text for _, text in bench.reported) == 1
    bench.watch = bench.born()
    assert await bench.look() == "report", "nor after the guard was started again"


async def test_a_person_who_stops_the_job_or_holds_the_lab_is_not_worked_against(
    bench: Bench,
) -> None:
    await bench.launch()
    bench.end(gpu02="killed")
    async with holding(HERE, bench.command, reachable_scope(HERE, HERE.hosts), "up", "other"):
        bench.busy = "up other"
        assert await bench.look() == ""
        bench.busy = ""  # it took the lab between the look and the action
        assert await bench.look() == "restart"
        assert bench.reported[-1][0] == "standing back" and not recoveries(
            bench.store, bench.tenancy
        )
    record = bench.store.latest_job(bench.tenancy)
    assert record is not None and len(bench.hosts.launched) == 1
    bench.store.set_job(record.id, "stopped", "stopped by the operator", ended=True)
    assert await bench.look(3) == "none" and len(bench.hosts.launched) == 1


async def test_a_guard_that_died_while_it_acted_is_followed_by_one_that_counts_that_attempt(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.launch()
    bench.end(gpu02="killed")

    async def dies(*_: object, **__: object) -> None:
        raise asyncio.CancelledError

    with monkeypatch.context() as patched, pytest.raises(asyncio.CancelledError):
        patched.setattr(Jobs, "start", dies)
        await bench.look()
    # as the dead leave it
    bench.store.write("UPDATE recoveries SET outcome='', ended=NULL, process='before'")
    bench.watch = bench.born()
    assert await bench.look() == "restart" and len(bench.hosts.launched) == 2
    assert [one.outcome for one in recoveries(bench.store, bench.tenancy)] == ["ok", "died"]
    bench.end(gpu03="killed")
    assert await bench.look() == "restart"
    bench.end(gpu03="killed")
    assert await bench.look() == "report", "three of three"


async def test_a_launch_that_fails_is_an_attempt_and_is_tried_again_after_a_pause(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "FIRST_BACKOFF_S", 60.0)
    await bench.launch()
    bench.end(gpu02="killed")
    bench.hosts.state_code = "75"
    assert await bench.look() == "restart" and bench.reported[-1][0] == "not recovered"
    assert await bench.look(2) == "wait" and "attempt 2 of 3/h in 60 s" in bench.reported[-1][1]
    monkeypatch.setattr(policy, "FIRST_BACKOFF_S", 0.0)
    bench.hosts.state_code = "running"
    assert await bench.look() == "restart" and bench.reported[-1][0] == "recovered"


@pytest.mark.parametrize("how", ["starts", "holds", "paused", "moves", "no heartbeat"])
async def test_a_job_that_stands_is_restarted_unless_it_has_reason_to(
    bench: Bench, how: str
) -> None:
    await bench.launch()
    bench.hosts.age_s, bench.watch.quiet_since = 60.0, -1e9
    record = bench.store.latest_job(bench.tenancy)
    assert record is not None
    bench.watch.job = record.id
    if how in ("starts", "holds"):
        bench.hosts.phase = how.removesuffix("s")
    elif how == "paused":
        bench.store.set_job_spec(record.id, replace(record.spec, pause=Pause(1, 1, 1e12)))
    elif how == "moves":
        bench.hosts.age_s = 0.05
    else:
        bench.hosts.age_s = float("inf")
    assert await bench.look() == "none"
    bench.store.set_job_spec(record.id, record.spec)
    bench.hosts.age_s, bench.hosts.phase = 60.0, "exchange"
    assert await bench.look() == "restart"
    assert "no rank has moved for" in recoveries(bench.store, bench.tenancy)[0].why


@pytest.mark.parametrize(
    ("computing", "stopped", "blamed"),
    [
        ({"gpu02"}, set(), ("gpu02",)),
        (set(), {"gpu02"}, ("gpu02",)),
        ({"gpu02"}, {"gpu02"}, ("gpu02",)),
        ({"gpu02", "gpu03"}, set(), ()),
        ({"gpu02"}, {"gpu03"}, ()),
        (set(), set(), ()),
        ({*FOUR}, set(), ()),
    ],
)
async def test_the_one_host_that_stopped_in_computing_or_in_an_exchange_counts_as_the_cause_of_a_hang(
    bench: Bench, computing: set[str], stopped: set[str], blamed: tuple[str, ...]
) -> None:
    await bench.launch()
    record = bench.store.latest_job(bench.tenancy)
    assert record is not None
    bench.watch.job, bench.watch.quiet_since = record.id, -1e9
    bench.hosts.age_s, bench.hosts.phase, bench.hosts.computing = 60.0, "exchange", computing
    bench.hosts.alive_s = dict.fromkeys(stopped, 60.0)
    assert await bench.look() == "restart"
    (one,) = recoveries(bench.store, bench.tenancy)
    assert one.hosts == blamed and ("the others wait for gpu02" in one.why) == bool(blamed)


@pytest.mark.parametrize(
    ("phase", "least_s", "save_s"),
    [
        ("end", HANG_LEAST_S, 0.0),
        ("start", START_S, 0.0),
        ("save", START_S, 0.0),
        ("save", SAVE_S, 0.02),
        ("save", 3 * 40.0, 40.0),
    ],
)
async def test_a_rank_that_stands_between_iterations_hangs_the_job_once_others_wait_for_it_longer_than_that_may_take(
    bench: Bench, phase: str, least_s: float, save_s: float
) -> None:
    await bench.launch()
    record = bench.store.latest_job(bench.tenancy)
    assert record is not None
    bench.watch.job, bench.watch.quiet_since, hosts = record.id, -1e9, bench.hosts
    hosts.phase, hosts.save_s, hosts.age_s = phase, save_s, 1000.0
    assert await bench.look() == "none", "all start, end or save together"
    hosts.phase, hosts.phases = "exchange", {"gpu02": phase, "gpu03": "hold"}
    assert await bench.look() == "none", "nor does one that was asked to pause"
    hosts.phases, hosts.age_s = {"gpu02": phase}, least_s - 0.1
    assert await bench.look() == "none"
    hosts.age_s = least_s + 0.1
    assert await bench.look() == "restart"
    (one,) = recoveries(bench.store, bench.tenancy)
    assert one.hosts == ("gpu02",) and "the others wait for gpu02" in one.why


async def test_a_job_that_stands_in_its_first_iteration_is_restarted_after_what_a_start_may_take(
    bench: Bench,
) -> None:
    await bench.launch()
    record = bench.store.latest_job(bench.tenancy)
    assert record is not None
    bench.watch.job, bench.watch.quiet_since = record.id, -1e9
    bench.hosts.times, bench.hosts.phase, bench.hosts.computing = (), "exchange", {"gpu02"}
    bench.hosts.age_s = START_S - 1
    assert await bench.look() == "none"
    bench.hosts.age_s = START_S + 1
    assert await bench.look() == "restart" and recoveries(bench.store, bench.tenancy)[0].hosts == (
        "gpu02",
    )


async def test_a_job_that_shows_every_hundredth_iteration_is_judged_by_the_longest_time_between_two(
    bench: Bench,
) -> None:
    await bench.launch()
    record = bench.store.latest_job(bench.tenancy)
    assert record is not None
    bench.watch.job, bench.watch.quiet_since, bench.hosts.age_s = record.id, -1e9, 3.0
    for shown in ((), (400,), (500,), (501,)):  # it continues after a checkpoint
        bench.hosts.times = tuple(
            RankTimes(iteration, 0, 200.0, 0.0, 0.0, 0.0) for iteration in shown
        )
        assert await bench.look() == "none"
    bench.hosts.times, bench.hosts.age_s = (), 59.0
    assert await bench.look() == "none" and bench.watch.longest_s == 20.0
    bench.hosts.age_s = 61.0
    assert await bench.look() == "restart"


async def test_a_program_that_evaluates_for_minutes_does_not_hang(bench: Bench) -> None:
    await bench.launch()
    record = bench.store.latest_job(bench.tenancy)
    assert record is not None
    bench.store.set_job_spec(
        record.id, replace(record.spec, wanted=replace(record.spec.wanted, program="mine"))
    )
    bench.watch.job, bench.watch.quiet_since = record.id, -1e9
    bench.hosts.age_s = PROGRAM_LEAST_S - 1
    assert await bench.look() == "none"
    (record,) = [one for one in [bench.store.latest_job(bench.tenancy)] if one is not None]
    bench.hosts.age_s = PROGRAM_LEAST_S + 1
    found = policy.fault(await bench.watch.sight(record, bench.hosts.attached()))
    assert found is not None and found.kind == "hang"


def _spare(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Mapping[str, str], Collection[str]]]:
    """What `evict` is asked for: hosts and their spares, and those that are lost."""
    asked: list[tuple[Mapping[str, str], Collection[str]]] = []

    async def evict(
        command: Command,
        hosts: Mapping[str, str],
        *,
        why: str,
        lost: Collection[str],
        begin: Callable[[], Any],
    ) -> UpReport:
        with begin() as begun:
            begun.by("2026-11-22-0009")
            asked.append((hosts, lost))
        return UpReport("2026-11-22-0009", "ring", "made")

    monkeypatch.setattr(watching, "evict", evict)
    return asked


async def test_a_dead_host_gets_the_first_spare_that_answers_and_is_not_tagged_out(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = _spare(monkeypatch)
    await bench.launch()
    bench.hosts.lost = {"gpu02"}
    bench.end(gpu01="75", gpu03="75", gpu04="75")
    assert await bench.look() == "wait" and "taken for dead after 10 s" in bench.reported[-1][1]
    bench.watch.silent_since["gpu02"] -= 60.0
    tags = Tagouts(bench.store, bench.key, bench.locks.who)
    (tag,) = [tags.set("gpu05", "a fan")]
    bench.hosts.lost.add("gpu06")
    assert (
        await bench.look() == "report"
        and "no usable spares for 1 host" in bench.reported[-1][1]
        and not asked
    )
    # no agent yet: nothing was ever installed on an idle host
    bench.hosts.hellos["gpu06"] = Hello("gpu06")
    assert await bench.look() == "evict" and asked == [({"gpu02": "gpu06"}, ["gpu02"])]
    assert "restart" not in str(bench.hosts.launched) and len(bench.hosts.launched) == 1
    (one,) = recoveries(bench.store, bench.tenancy)
    assert (one.action, one.hosts, one.run) == (
        "evict gpu02 -> gpu06",
        ("gpu02",),
        "2026-11-22-0009",
    )
    tags.remove(tag.id)


@pytest.mark.parametrize("dead", [False, True])
async def test_where_no_spare_is_like_the_host_a_job_is_restarted_unless_the_host_is_dead(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, dead: bool
) -> None:
    asked = _spare(monkeypatch)
    monkeypatch.setattr(watching, "why_no_spare", lambda *_: "GPUs 8, gpu05 has 4")
    await bench.launch()
    for _ in range(2):
        bench.end(gpu02="killed")
        assert await bench.look() == "restart"
    bench.end(gpu02="killed")
    if dead:
        bench.hosts.lost = {"gpu02"}
        bench.end(gpu01="75")
        await bench.look()
        bench.watch.silent_since["gpu02"] -= 60.0
    assert await bench.look() == ("report" if dead else "restart") and not asked
    assert "no usable spare is like gpu02" in bench.reported[-1][1] and len(
        bench.hosts.launched
    ) == (3 if dead else 4)


async def test_hosts_of_a_schedule_are_not_replaced_by_spares(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = _spare(monkeypatch)
    waits = {"pattern": "round-robin", "ports": ["p4"], "hosts": FOUR, "dwell_s": 60}
    text = json.dumps({**json.loads(TEXT), "schedule": waits})
    bench.store.set_current(
        bench.tenancy,
        "r1",
        plan_name="ring",
        plan_sha="x",
        plan_text=text,
        up=UpState(),
        generation=1,
    )
    await bench.launch()
    for _ in range(3):
        bench.end(gpu02="killed")
        assert await bench.look() == "restart"
    bench.hosts.lost = {"gpu02"}
    bench.end(gpu01="75")
    await bench.look()
    bench.watch.silent_since["gpu02"] -= 60.0
    assert (
        await bench.look() == "report"
        and "no usable spares for 1 host" in bench.reported[-1][1]
        and not asked
    )


def _fails(monkeypatch: pytest.MonkeyPatch, error: Exception) -> list[Mapping[str, str]]:
    """What `evict` is asked for, which fails before it begins."""
    asked: list[Mapping[str, str]] = []

    async def evict(command: Command, hosts: Mapping[str, str], **_: object) -> UpReport:
        asked.append(hosts)
        raise error

    monkeypatch.setattr(watching, "evict", evict)
    return asked


async def _dead(bench: Bench) -> None:
    await bench.launch()
    bench.hosts.lost = {"gpu02"}
    bench.end(gpu01="75", gpu03="75", gpu04="75")
    assert await bench.look() == "wait"
    bench.watch.silent_since["gpu02"] -= 60.0


@pytest.mark.parametrize(
    "error", [Interlock("gpu05 carries the plan of bob"), OSError(28, "No space left on device")]
)
async def test_an_eviction_that_fails_before_it_begins_is_an_attempt_and_the_next_one_takes_another_spare(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    asked = _fails(monkeypatch, error)
    await _dead(bench)
    with monkeypatch.context() as patched:
        patched.setattr(policy, "FIRST_BACKOFF_S", 60.0)
        assert await bench.look() == "evict" and await bench.look(2) == "wait" and len(asked) == 1
    assert [await bench.look() for _ in range(4)] == ["evict", "evict", "report", "report"]
    assert [hosts["gpu02"] for hosts in asked] == ["gpu05", "gpu06", "gpu05"], (
        "the first again where none other is left"
    )
    tried = recoveries(bench.store, bench.tenancy)
    assert [one.outcome for one in tried] == ["failed"] * 3 and str(error).split("] ")[-1] in tried[
        0
    ].message
    assert audit(bench.store, bench.key)[0].what == "not recovered"


async def test_an_attempt_whose_end_could_not_be_recorded_does_not_stand_in_the_way_of_the_next(
    bench: Bench,
) -> None:
    await bench.launch()
    bench.end(gpu02="killed")
    bench.hosts.state_code = "75"
    assert await bench.look() == "restart"
    bench.store.write("UPDATE recoveries SET outcome='', ended=NULL, ended_up=NULL")
    bench.hosts.state_code = "running"
    assert await bench.look() == "restart" and [
        one.outcome for one in recoveries(bench.store, bench.tenancy)
    ] == ["ok", "failed"]


async def test_a_host_that_answers_but_cannot_be_replaced_is_used_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = _fails(monkeypatch, Unreachable("gpu05 does not answer"))
    bench.watch.budget = Budget(9, 3600.0)
    await bench.launch()
    for _ in range(2):
        bench.end(gpu02="killed")
        assert await bench.look() == "restart"
    bench.end(gpu02="killed")
    assert [await bench.look() for _ in range(3)] == ["evict", "evict", "restart"]
    assert [hosts["gpu02"] for hosts in asked] == ["gpu05", "gpu06"] and len(
        bench.hosts.launched
    ) == 4


async def test_an_attempt_that_cannot_be_recorded_is_repeated_after_a_pause_and_no_error_ends_the_watching(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = _fails(monkeypatch, OSError(28, "No space left on device"))
    monkeypatch.setattr(policy, "FIRST_BACKOFF_S", 60.0)
    await _dead(bench)
    with monkeypatch.context() as patched:

        def full(*_: object, **__: object) -> None:
            raise OSError(28, "No space left on device")

        patched.setattr(watching, "recovering", full)
        assert await bench.look(3) == "evict" and len(asked) == 1
    seen = asyncio.Event()

    async def broken() -> None:
        if bench.reported[-1][0] == "job":
            seen.set()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(bench.watch, "look", broken)
    monkeypatch.setattr(watching, "LOOK_S", 0.0)
    task = asyncio.create_task(bench.watch.watch())
    async with asyncio.timeout(20):
        await seen.wait()
    assert not task.done() and bench.reported[-1] == (
        "job",
        "cannot be looked at: OSError: [Errno 28] No space left on device",
    )
    task.cancel()


async def test_a_job_of_an_earlier_plan_or_a_mistake_of_the_program_is_left_alone(
    bench: Bench,
) -> None:
    await bench.launch()
    bench.end(gpu02="2", gpu01="75")
    assert await bench.look() == "report" and "would again" in bench.reported[-1][1]
    bench.end(gpu02="killed")
    record = bench.store.latest_job(bench.tenancy)
    assert record is not None
    bench.store.set_job(record.id, "failed", "", ended=True)
    bench.store.write("UPDATE current SET since=since+9")
    assert await bench.look() == ""


# --- evict, by a person


async def test_a_spare_that_is_tagged_out_is_refused_before_anything_is_asked(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recover, "load_lab", lambda inventory: HERE)
    Tagouts(bench.store, bench.key, bench.locks.who).set("gpu05", "a fan")
    with pytest.raises(Interlock, match=r"gpu05.*a fan") as refused:
        await recover.evict.__wrapped__(bench.command, {"gpu02": "gpu05"})  # type: ignore[attr-defined]
    assert "another --spare" in str(refused.value.hint) and "tagout remove" in str(
        refused.value.hint
    )


def test_a_spare_of_up_that_is_tagged_out_is_refused(bench: Bench) -> None:
    Tagouts(bench.store, bench.key, bench.locks.who).set("gpu05", "a fan")
    plan = watching.read_plan(TEXT, "ring", HERE)
    with pytest.raises(Interlock, match=r"--spares: gpu05.*a fan") as refused:
        recover.with_spares(TEXT, plan, ("gpu06", "gpu05"), HERE, bench.store, bench.settings)
    assert "tagout remove" in str(refused.value.hint)
    assert '"gpu06"' in recover.with_spares(
        TEXT, plan, ("gpu06",), HERE, bench.store, bench.settings
    )


async def test_without_a_plan_there_is_nothing_to_move(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recover, "load_lab", lambda inventory: HERE)
    bench.store.clear_current(bench.tenancy)
    with pytest.raises(TestbedError, match="no plan is up"):
        await recover.evict.__wrapped__(bench.command, {"gpu02": ""})  # type: ignore[attr-defined]


@pytest.mark.parametrize("how", ["stopped", "launched again"])
async def test_a_job_that_was_stopped_while_an_eviction_waited_for_the_lab_is_not_launched(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    await bench.launch()
    monkeypatch.setattr(recover, "load_lab", lambda inventory: HERE)

    class Change:
        def __init__(
            self, verb: str, lab: object, command: Command, still: Callable[[], None]
        ) -> None:
            self.still = still

        async def up(self, *_: object) -> UpReport:
            if how == "stopped":
                record = bench.store.latest_job(bench.tenancy)
                assert record is not None
                bench.store.set_job(record.id, "stopped", "by the operator", ended=True)
            else:
                await bench.launch()
            self.still()
            raise AssertionError("it would be launched again")

    monkeypatch.setattr(recover, "ChangeRun", Change)

    async def none(*_: object) -> dict[str, str]:
        return {}

    monkeypatch.setattr(recover, "silent_hosts", none)
    with pytest.raises(Locked, match="was stopped, has ended or was launched meanwhile"):
        await recover.evict.__wrapped__(bench.command, {"gpu02": "gpu05"})  # type: ignore[attr-defined]


async def test_on_a_new_host_a_rank_is_launched_fresh_and_the_others_resume(bench: Bench) -> None:
    await bench.launch()
    jobs = Jobs(bench.session, bench.store, bench.tenancy, bench.settings.runs_dir)
    fresh: list[Any] = []

    async def launch(
        job: Any, run: str, *, resume: bool = False, fresh: Any = (), launched: Any = fresh
    ) -> None:
        launched.append((resume, fresh))
        await Ranks.launch(bench.hosts, job, run, resume=resume)

    bench.hosts.launch = launch  # type: ignore[method-assign]
    text = replaced(TEXT, watching.read_plan(TEXT, "ring", HERE), HERE, {"gpu02": "gpu05"})
    bench.hosts.lost = {"gpu02"}
    await jobs.write_off({"gpu02"})
    record = bench.store.latest_job(bench.tenancy)
    assert record is not None and (record.state, record.detail) == (
        "failed",
        "gpu02 did not answer",
    )
    status = await jobs.ensure(
        "r2",
        watching.read_plan(text, "ring", HERE).job,
        Recorder(Silent()),
        changed=True,
        launch=True,
    )
    assert status is not None and status.resumed_from == 4 and fresh == [(True, ["gpu05"])]


async def test_a_job_with_a_shadow_is_restarted_from_the_newest_state_that_either_kept(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bench.job is not None
    bench.job = replace(bench.job, attached={"shadow": Shadow("gpu06")}, aside=("gpu06",))
    began, ended = list[str](), list[str]()

    async def begin(kind: Any, value: object, given: Any, launch: Any) -> Any:
        began.append(kind.restore(launch))
        return {"missing": "gpu06: no route to host"} if launch.left_out else given

    async def silent(process: Any, *_: object) -> None:
        ended.append(process.name)
        raise Unreachable("gpu06: no route to host")

    async def launch(job: Any, run: str, *, resume: bool = False, extra: Any = None) -> None:
        await Ranks.launch(bench.hosts, job, run, resume=resume)

    monkeypatch.setattr("extensions.shadow.operator.ShadowOfJob.begin", begin)
    monkeypatch.setattr("orchestrator.hosts.aside.Aside.end", silent)
    monkeypatch.setattr("orchestrator.hosts.aside.Aside.tail", silent)
    bench.hosts.jobs.launch = launch
    await bench.launch()
    bench.end(gpu02="killed", gpu01="75")
    assert await bench.look() == "restart"
    assert began == ["", "newest"]
    again = "once gpu06 answers, for one again: testbed job stop, then testbed up"
    missing = f"launched without its shadow on gpu06: gpu06: no route to host; {again}"
    assert bench.reported[-2][0] == "recovered" and bench.reported[-1] == (
        "without shadow",
        f"mlp was {missing}",
    )
    jobs, record = (
        Jobs(bench.session, bench.store, bench.tenancy, bench.settings.runs_dir),
        bench.store.latest_job(bench.tenancy),
    )
    assert record is not None
    errors = {"gpu06": Unreachable("gpu06: no route to host")}
    seen = Observation({}, {"gpu01": Hello("gpu01")}, errors)
    ended.clear()
    status = await _job(bench.session, bench.store, bench.tenancy, bench.settings, seen)
    assert status is not None, "a host of nothing but the shadow does not answer"
    unseen = await _job(
        bench.session,
        bench.store,
        bench.tenancy,
        bench.settings,
        replace(seen, errors={"gpu01": errors["gpu06"]}),
    )
    assert (unseen, job(status).splitlines()[-1].strip(), _missing(status)) == (
        None,
        missing,
        [f"job mlp was {missing}"],
    )
    await jobs.stop(record, "")
    assert not ended, "nobody waits for the end of a shadow that was not started"
    assert _missing(replace(status, state="stopped")) == []
    elsewhere = replace(bench.job, attached={"shadow": Shadow("gpu05")}, aside=("gpu05",))
    await jobs.start("r3", elsewhere, Recorder(Silent()), resume=True)
    await jobs.start("r4", elsewhere, Recorder(Silent()), resume=True)
    assert began[2:] == ["", "newest"], (
        "a host that kept nothing of this training, or of an older one, is not asked"
    )


@pytest.mark.parametrize(("linked", "silent"), [(False, ["gpu06"]), (True, ["gpu06"]), (False, [])])
async def test_an_eviction_does_without_a_shadow_whose_host_is_dead_too(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, linked: bool, silent: list[str]
) -> None:
    body = json.loads(TEXT)
    body["job"]["shadow"], body["spares"] = {"host": "gpu06"}, ["gpu05"]
    body["links"] += [{"a": "gpu06", "b": "gpu01"}] if linked else []
    current = {"plan_name": "ring", "plan_sha": "x", "plan_text": json.dumps(body), "generation": 1}
    bench.store.set_current(bench.tenancy, "r0", up=UpState(), **current)
    await bench.launch()
    asked: list[RunOptions] = []

    class Change:
        def __init__(self, *_: object) -> None: ...

        async def up(self, plan: Any, text: str, options: RunOptions) -> UpReport:
            asked.append(options)
            return UpReport("r2", plan.name, "lab")

    async def dead(
        _command: object, _lab: object, _settings: object, names: Collection[str]
    ) -> dict[str, str]:
        return {name: "no route to host" for name in names if name in silent}

    monkeypatch.setattr(recover, "load_lab", lambda inventory: HERE)
    monkeypatch.setattr(recover, "ChangeRun", Change)
    monkeypatch.setattr(recover, "silent_hosts", dead)
    await recover.evict.__wrapped__(bench.command, {"gpu02": "gpu05"}, lost=["gpu02"])  # type: ignore[attr-defined]
    lost = ("gpu02", *(silent if not linked else ()))
    assert [(options.lost, options.left_out) for options in asked] == [(lost, True)], (
        "a host of links must answer"
    )


async def test_a_training_that_comes_back_after_another_one_keeps_its_checkpoints(
    bench: Bench,
) -> None:
    """Only within one training is a host new; else all of them would be, and nothing would be left
    to go on from.
    """
    await bench.launch()
    jobs = Jobs(bench.session, bench.store, bench.tenancy, bench.settings.runs_dir)
    assert bench.job is not None
    first = bench.store.latest_job(bench.tenancy)
    assert first is not None
    other = replace(bench.job, name="other", ranks=("gpu05", "gpu06"), rings=(("gpu05", "gpu06"),))
    await jobs.ensure("r2", other, Recorder(Silent()), changed=True, launch=True)
    status = await jobs.resume_previous("r3", first.id, None, Recorder(Silent()))
    assert status is not None and status.resumed_from == 4


async def test_a_guard_that_is_stopped_while_it_moves_a_job_ends(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = asyncio.Event()

    async def evict(*_: object, **__: object) -> UpReport:
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise Interrupted("everything is as before") from None
        raise AssertionError

    monkeypatch.setattr(watching, "evict", evict)
    await bench.launch()
    bench.hosts.lost = {"gpu02"}
    bench.end(gpu01="75")
    await bench.look()
    bench.watch.silent_since["gpu02"] -= 60.0
    task = asyncio.create_task(bench.watch.watch())
    await begun.wait()
    task.cancel()
    async with asyncio.timeout(20):
        with pytest.raises(asyncio.CancelledError):
            await task
    assert bench.reported[-1] == ("not recovered", "mlp: everything is as before")


async def test_an_adapter_stands_still_while_a_job_is_recovered_and_goes_on_after_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    class Mover:
        halts, present, noun, fails = True, True, "mover", False

        def running(self, *_: object) -> ServiceState | None:
            return (
                ServiceState(1, log="events.jsonl", options=("--window", "8"))
                if self.present
                else None
            )

        def stop(self, *_: object) -> None:
            done.append("stop")

        def start(self, settings: object, tenancy: object, log: Path, options: Any) -> None:
            words, record = options.text(), bench.store.latest_job(bench.tenancy)
            if self.fails:
                raise TimedOut("it is still starting")
            done.append(" ".join(("start", str(log), *words, record.state if record else "")))

    mover, other = Mover(), type("Other", (Mover,), {"present": False})()
    monkeypatch.setattr(watching, "kinds", lambda: [mover, other, watching.kind("schedule")])
    await bench.launch()
    assert await bench.look() == "none" and done == []
    bench.end(gpu02="killed")
    found, text = await bench.look(), "start events.jsonl --window 8 running"
    assert (found, done) == ("restart", ["stop", text])
    bench.end(gpu01="killed")
    mover.present = False
    assert (await bench.look(), done[2:]) == ("restart", [text]), (
        "an adapter ends by itself when the job loses its first rank"
    )
    mover.present = other.present = mover.fails = True
    bench.end(gpu03="killed")
    assert (await bench.look(), done[3:], *bench.reported[-1]) == (
        "restart",
        ["stop", "stop", text],
        "not started again",
        "mover: it is still starting",
    )


async def test_a_job_is_restarted_while_slots_turn_for_over_those_that_rest_not_all_ranks_meet(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Scheduler:
        def running(self, *_: object) -> ServiceState | None:
            return ServiceState(1, log="events.jsonl")

        def stop(self, *_: object) -> None:
            pytest.fail("slots rest")

        def start(self, *_: object) -> None:
            pytest.fail("they were stopped")

    monkeypatch.setattr(
        watching,
        "kind",
        lambda name, kind=watching.kind: {"schedule": Scheduler()}.get(name) or kind(name),
    )
    await bench.launch()
    bench.end(gpu02="killed")
    bench.hosts.fenced = 0
    async with holding(
        HERE, bench.command, reachable_scope(HERE, FOUR), "schedule", "ring"
    ) as lock:
        run = bench.store.new_run(
            "schedule", bench.key, user=bench.settings.user, owner=bench.settings.owner
        )
        lock.bind(run)
        assert await bench.look() == "restart"
        run.finish("ok")
    record = bench.store.latest_job(bench.tenancy)
    assert (
        record is not None
        and record.state == "running"
        and [event for event, _ in bench.reported][-1] == "recovered"
    )
    assert (bench.hosts.fenced, bench.hosts.token) == (0, run.token), (
        "the scheduler's run keeps the hosts"
    )
