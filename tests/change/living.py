"""A bench whose hosts run a job.

The ranks here answer as their agents do; what they run is told by the moves that were decided
among them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest

from optics import HostName, TestbedError
from optics.plan import Job, Mode
from orchestrator.change.up import Up
from orchestrator.deadline import Limit
from orchestrator.hosts import RankState
from orchestrator.hosts.api import JobState, Tail
from orchestrator.hosts.launch import job_name, layout
from orchestrator.jobs.record import spec_of
from orchestrator.plan.reader import read_plan
from orchestrator.store.options import RunOptions, UpOptions
from orchestrator.store.records import JobRecord
from orchestrator.store.store import Store
from orchestrator.telemetry import Journal, Silent
from orchestrator.telemetry.recorder import Recorder
from tests.change.fleet import TENANCY, Bench, Fleet, plan_text, ring

FOUR = ("gpu01", "gpu02", "gpu03", "gpu04")
ONE: dict[str, Any] = {
    "name": "mlp",
    "workload": "train",
    "ranks": list(FOUR),
    "rings": [list(FOUR)],
    "args": {"iterations": 0},
}
OTHER = {**ONE, "rings": [list(FOUR[::-1])]}


class Ranks(Fleet):
    """Hosts with a job of four ranks. `runs`: the layout that its ranks use; `prepared`: by move;
    `wrong`: what goes wrong, by operation: an error, `silent` (one rank does not get there) or
    `absent` (one takes no part). `later`: the states that ranks report at the next looks. `limits`:
    the waiting time (s) and the lease (s) of each request.
    """

    def with_job(self, runs: Mapping[str, Any]) -> None:
        self.ring_changes = Moves(self)
        self.runs, self.prepared, self.wrong = (
            runs,
            dict[int, Mapping[str, Any]](),
            dict[str, TestbedError | str](),
        )
        self.asked: list[str] = []
        self.state, self.move, self.at = "idle", 0, 10
        self.later: list[str] = []
        self.limits: list[tuple[str, float, float]] = []
        self.launched: list[tuple[str, bool, Any]] = []

    def answer(self, op: str, state: str, move: int) -> tuple[RankState, ...]:
        self.asked.append(op)
        how = self.wrong.pop(op, "")
        if isinstance(how, TestbedError):
            raise how
        if not how:
            self.state, self.move = state, move
        found = [
            RankState(h, r, state, move, self.at, took_ms=5.0, stall_ms=7.0)
            for r, h in enumerate(FOUR)
        ]
        late = RankState("gpu03", 2, "preparing", move, 9, silent_s=31.0)
        return (
            *found[:2],
            *((late,) if how == "silent" else () if how == "absent" else (found[2],)),
            found[3],
        )

    async def launch(self, job: Job, run: str, *, resume: bool = False) -> None:
        self.ran[job_name(job.name, run)] = "running"
        self.runs = layout(job, self.lab)
        self.launched.append((job.name, resume, self.runs["rings"]))

    async def stop(self, name: str, grace_s: float, names: Any) -> Mapping[str, JobState]:
        self.ran[name] = "exited"
        return await self.states(name, names)

    async def tail(self, name: str, host: str, file: str = "log", offset: int = 0) -> Tail:
        text = "".join(
            json.dumps({"iter": n, "iter_ms": 5.0, "t_wall_ns": n}) + "\n" for n in range(1, 31)
        )
        return Tail(text[offset:], len(text), len(text), "running")


class Moves:
    """The moves of those ranks."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks

    async def states(self, job: str, names: Collection[HostName]) -> tuple[RankState, ...]:
        if self.ranks.later:
            self.ranks.state = self.ranks.later.pop(0)
        return self.ranks.answer("look", self.ranks.state, self.ranks.move)

    async def prepare(
        self,
        job: str,
        move: int,
        names: Collection[HostName],
        wanted: Mapping[str, Any],
        **more: Any,
    ) -> tuple[RankState, ...]:
        assert 0 < more["lease_s"] <= 86400
        found = self.ranks.answer("prepare", "prepared", move)
        self.ranks.prepared[move] = wanted
        return found

    async def hold(
        self, job: str, move: int, names: Collection[HostName], **more: Any
    ) -> tuple[RankState, ...]:
        assert 0 < more["lease_s"] <= 3600
        self.ranks.limits.append(("hold", more["within_s"], more["lease_s"]))
        return self.ranks.answer("hold", "held", move)

    async def go_on(
        self, job: str, move: int, names: Collection[HostName], *, within_s: float
    ) -> tuple[RankState, ...]:
        self.ranks.at += 1
        self.ranks.limits.append(("go", within_s, 0.0))
        found = self.ranks.answer("go", "changed", move)
        if all(s.state == "changed" for s in found):
            self.ranks.runs = self.ranks.prepared.pop(move) or self.ranks.runs
        return found

    async def drop(self, job: str, move: int, names: Collection[HostName]) -> None:
        if self.ranks.asked[-1] != "drop":
            self.ranks.asked.append("drop")
        if self.ranks.state != "changed" and not self.ranks.later:
            self.ranks.state = "void"
        self.ranks.prepared.pop(move, None)


class Living(Bench):
    """A bench whose hosts run a job."""

    ranks: Ranks
    limit: Limit | None = None

    def start(self) -> None:
        """The job of `ONE`, launched by an earlier run."""
        self.fleet.__class__ = Ranks
        self.ranks = self.fleet  # type: ignore[assignment]
        job = read_plan(plan_text("x", *ring(), job=ONE), "x", self.lab).job or pytest.fail(
            "it has a job"
        )
        self.ranks.with_job(layout(job, self.lab))
        run = self.store.new_run("up", "made-1", owner="ann", user="ann")
        with run:
            self.store.add_job(TENANCY, run.id, "mlp", spec_of(job, self.lab, run.id), "running")
            run.finish("ok")
        self.ranks.ran[job_name("mlp", run.id)] = "running"

    @classmethod
    async def begun(cls, store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Living:
        """One whose plan `one` is up and whose job runs; its hosts keep no port counters."""

        async def unsampled(*_: Any, **__: Any) -> None:
            pass

        monkeypatch.setattr("orchestrator.jobs.ports.fetch_samples", unsampled)
        living = cls(store, folder)
        await living.up(plan_text("one", *ring(1, 2)))
        living.start()
        return living

    @property
    def job(self) -> JobRecord:
        record = self.store.latest_job(TENANCY)
        assert record is not None
        return record

    async def change(self, text: str, mode: Mode | None = None, joins: HostName = "") -> Any:
        plan = read_plan(text, "plan.json", self.lab)
        asked = RunOptions(UpOptions(job=mode), joins=joins)
        run, context = self.context(
            "up", asked, plan_name=plan.name, plan_text=text, plan_sha=plan.sha256
        )
        with run, Journal(context.run_dir, run.id, self.lab.name) as journal:
            context.recorder, context.sample_hz, context.limit = (
                Recorder(Silent(), journal),
                0.0,
                self.limit,
            )
            report = await Up(context, plan, text).carry_out()
            run.finish("ok")
        return report
