"""Makes the measurements of a record: round by round, all arms in each, a watchdog for each, and
the lab left as promised.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, Protocol

from optics.errors import NotVerified, TestbedError, TimedOut, first_line
from optics.plan import Mode
from orchestrator.change.report import DownReport, UpReport
from orchestrator.experiments.files.scenario.values import Arm, Scenario
from orchestrator.experiments.scenario.judging import STALLED
from orchestrator.experiments.scenario.record import OPEN, ComparisonRecord, round_of
from orchestrator.experiments.scenario.void import VOID, Slowed
from orchestrator.jobs.report import ALIVE, JobStatus

LEAST = 3
"""Least number of iterations of a measurement."""
CHANGE_S = 120.0
"""Ranks keep their priority this much longer (s) than the watchdog waits for iterations: a change
may come between.
"""


class Verbs(Protocol):
    """The operations on the lab that one tenant uses; each may raise an error of
    `optics.errors`.
    """

    def up(self, plan: Path, *, launch: bool = False, mode: Mode | None = None) -> UpReport: ...
    def launch(self) -> JobStatus: ...
    def status(self) -> JobStatus: ...
    def stop(self) -> JobStatus: ...
    def begin(self, extension: str, how: Any) -> Sequence[str]: ...
    def end(self, extension: str) -> None: ...
    def rollback(self, run: str) -> UpReport | DownReport: ...
    def down(self) -> DownReport: ...


class Priority(Protocol):
    """Real-time priority for the ranks of an emulated lab (`experiments.scenario.lab`)."""

    def take(self, for_s: float) -> None: ...
    def give_back(self) -> Mapping[str, Sequence[str]]: ...


class Stalled(Exception):
    """A job did not get far enough within its watchdog's time; the message says how far."""


@dataclass
class Runner:
    """Makes measurements. verbs: by tenant; settle: sets the switching time (ms) of the lab's
    switches; share: how uplinks are shared; priority: for the ranks while they are measured.

    stalls: whether a stall is a result, as in a scenario; else it is an error, as in a comparison
    of plans. slowed: what slowed the ranks of a measurement down; which may void it.
    """

    record: ComparisonRecord
    scenario: Scenario
    verbs: Mapping[str, Verbs]
    emit: Callable[[str], None]
    settle: Callable[[float], None] | None = None
    stalls: bool = False
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    share: Callable[[str], None] | None = None
    priority: Priority | None = None
    slowed: Callable[[Mapping[str, Any]], Slowed] | None = None

    def measure_rounds(self, enough: Callable[[], bool]) -> None:
        """Measure rounds until there are enough (of a scenario, the intervals are narrow), or the
        record's budget is spent; what they show has no part in it.

        A round that was broken off is not finished another day, under other conditions: the next
        one begins. Raises: as the verbs; finished measurements are kept. NotVerified - a job failed,
        or stalled where that is no result.
        """
        record = self.record
        record.data["slots"] = [slot for slot in record.slots if slot["state"] != "waiting"]
        try:
            while not self._over(enough):
                number = record.rounds + 1
                record.add(round_of([*self.scenario.arms], number), number)
                for at, slot in enumerate(record.slots):
                    if slot["state"] == "waiting":
                        self._one(at, slot)
        finally:
            if self.scenario.changes:
                self._stop()

    def _over(self, enough: Callable[[], bool]) -> bool:
        """Whether no round follows, which the record then says with the reason."""
        data = self.record.data
        most_s = inf if data["budget_s"] is None else data["budget_s"]
        if self.record.rounds and self.record.spent_s >= most_s:
            data["ended"] = "budget"
        elif self.record.rounds >= data["least"] and enough():
            data["ended"] = "width"
        self.record.save()
        return bool(data["ended"])

    def _one(self, number: int, slot: dict[str, Any]) -> None:
        place = f"round {self.record.rounds}, measurement {number + 1}"
        self.emit(f"{place}: {self.record.data['arms'][slot['arm']]}{self._left()}")
        slot.update(state="failed", runs=[], jobs={}, changes={}, error="")
        at = self.clock()
        try:
            arm = self.scenario.arms[slot["arm"]]
            self._share(arm)
            if self.scenario.changes:
                self._change(slot, arm)
            else:
                self._iterations(slot, arm)
            self._note(number, slot, "done")
        except (Stalled, TimedOut) as error:
            slot["error"] = first_line(error)
            self._stop()
            self._note(number, slot, STALLED)
            if slot["state"] == STALLED and not self.stalls:
                slot["state"] = "failed"
                hint = "allow more: --timeout 10m" if isinstance(error, Stalled) else error.hint
                raise NotVerified(str(error), hint=hint) from error
            self.emit(f"measurement {number + 1} stalled: {slot['error']}")
        except BaseException as error:
            slot["error"] = (
                "interrupted" if isinstance(error, KeyboardInterrupt) else first_line(error)
            )
            raise
        finally:
            self._take_back(slot)
            slot["seconds"] = self.clock() - at
            self.record.save()

    def _left(self) -> str:
        """How long the measurements that are planned will take."""
        slots, data = self.record.slots, self.record.data
        took = [s["seconds"] for s in slots if s["state"] not in OPEN]
        left = sum(s["state"] in OPEN for s in slots)
        left += max(0, data["least"] - self.record.rounds) * len(self.scenario.arms)
        return f", about {left * sum(took) / len(took) / 60:.1f} min left" if took else ""

    def _note(self, number: int, slot: dict[str, Any], state: str) -> None:
        """The measurement ended in this state. Note what slowed the ranks down, which may void it:
        by that figure alone, whatever was measured. What is learnt by an iteration does not change
        with its time: a scenario that compares losses after iterations alone has no void ones.
        """
        timed = any(one.metric != "loss" or one.seconds for one in self.scenario.compared)
        if self.slowed is not None and slot["jobs"]:
            found = self.slowed(slot)
            slot["slowed"] = found.to_json()
            if timed and found.message:
                state = VOID if found.void else state
                self.emit(f"measurement {number + 1} {state}: {found.message}")
        slot["state"] = state

    def _iterations(self, slot: dict[str, Any], arm: Arm) -> None:
        """Bring the plans up, launch the jobs, begin what runs beside them, wait for the jobs'
        iterations, stop them.
        """
        self._settle(arm.settle_ms)
        for tenant in arm.setups:
            self._up(slot, tenant, self.record.plan(arm.name, tenant))
        jobs: dict[str, JobStatus] = {}
        try:
            for tenant in arm.setups:
                jobs[tenant] = self._launched(slot, tenant)
            for name, tenant, how in arm.shared:
                self._begin(slot, name, tenant, how)
            # not what was made alone, or over circuits that rested; in no arm, if not in one
            if any(
                len(each.setups) > 1 or each.shared or each.has_schedule
                for each in self.scenario.arms.values()
            ):
                jobs = {tenant: self.verbs[tenant].status() for tenant in jobs}
                for tenant, job in jobs.items():
                    slot["jobs"][tenant][0]["first"] = job.iterations + 1
            self._before_others(arm)
            if lasts_s := self.scenario.lasts_s:
                self._until(slot, arm, jobs, self.scenario.warm_up)
            self._until(slot, arm, jobs, self.scenario.warm_up + self.scenario.iterations, lasts_s)
        finally:
            for name, tenant, _ in arm.shared:
                self.verbs[tenant].end(name)
            for tenant, job in jobs.items():
                if job.state in ALIVE:
                    self.verbs[tenant].stop()
        for job in jobs.values():
            if job.iterations - 1 < LEAST:
                raise NotVerified(
                    f"job {job.name} made {job.iterations} iterations, {LEAST + 1} are the least",
                    hint="a longer job",
                )

    def _begin(self, slot: dict[str, Any], name: str, tenant: str, how: Any) -> None:
        """Begin the service of an extension; what it says is kept."""
        for text in self.verbs[tenant].begin(name, how):
            slot.setdefault("reported", {}).setdefault(name, []).append(text)
            self.emit(text)

    def _launched(self, slot: dict[str, Any], tenant: str) -> JobStatus:
        job = self.verbs[tenant].launch()
        slot["job_run"] = job.run
        slot["runs"].append(job.run)
        slot["jobs"][tenant] = [{"run": job.run, "first": 1, "last": 0}]
        return job

    def _change(self, slot: dict[str, Any], arm: Arm) -> None:
        """With the jobs running, warm up, make the change, wait for the iterations; the jobs go on
        into the next measurement.
        """
        self._settle(None)
        jobs: dict[str, JobStatus] = {}
        for tenant in arm.setups:
            self._up(slot, tenant, self.record.plan(arm.name, tenant), launch=True)
            jobs[tenant] = self.verbs[tenant].status()
            slot["jobs"][tenant] = [
                {"run": jobs[tenant].run, "first": jobs[tenant].iterations + 1, "last": 0}
            ]
            if jobs[tenant].run not in slot["runs"]:
                slot["runs"].append(jobs[tenant].run)
        self._before_others(arm)
        self._until(slot, arm, jobs, self.scenario.warm_up)
        self._settle(arm.settle_ms)
        for tenant, setup in arm.setups.items():
            if setup.then is not None:
                existing = self.record.plan(arm.name, tenant, then=True)
                slot["changes"][tenant] = self._up(
                    slot, tenant, existing, launch=True, mode=setup.mode
                ).run
        for tenant in arm.setups:
            jobs[tenant] = now = self.verbs[tenant].status()
            parts = slot["jobs"][tenant]
            parts[-1]["after"] = now.iterations if now.run == parts[-1]["run"] else None
            if now.run != parts[-1]["run"]:
                parts.append({"run": now.run, "first": 1, "last": 0, "after": 0})
                slot["runs"].append(now.run)
        self._before_others(arm)
        self._until(slot, arm, jobs, self.scenario.iterations, self.scenario.lasts_s)

    def _until(
        self,
        slot: dict[str, Any],
        arm: Arm,
        jobs: dict[str, JobStatus],
        more: int,
        lasts_s: float = 0.0,
    ) -> None:
        """Wait until every job has made so many more iterations, and for so long (s) at least.
        Raises: Stalled; NotVerified - one failed.

        Counted from the `after` of the slot's last part, or from before its `first`.
        """
        ends = self.clock() + lasts_s
        until = self.clock() + arm.watchdog_s
        for number, tenant in enumerate(jobs):
            part = slot["jobs"][tenant][-1]
            if number:  # it went on while the one before was waited for
                jobs[tenant] = self.verbs[tenant].status()
            wanted = (part["after"] if part.get("after") is not None else part["first"] - 1) + more
            # Polling costs the hosts time, so they are polled when the iterations should be
            # finished, not all the time.
            while (job := jobs[tenant]).state in ALIVE and (
                job.iterations < wanted or self.clock() < ends
            ):
                remaining = until - self.clock()
                if remaining <= 0:
                    made = job.iterations - wanted + more
                    raise Stalled(
                        f"{job.name} made {made} of {more} iterations in {arm.watchdog_s:.0f} s"
                    )
                self.sleep(
                    min(
                        remaining,
                        max(
                            1.0,
                            ends - self.clock(),
                            (wanted - job.iterations) * (job.iteration_ms or 1000.0) / 1e3 * 1.05,
                        ),
                    )
                )
                jobs[tenant] = self.verbs[tenant].status()
            part["last"] = job.iterations
            if job.state == "failed":
                raise NotVerified(f"job {job.name} failed: {job.detail}", hint="testbed job logs")
            if job.iterations < wanted:
                raise NotVerified(
                    f"job {job.name} ended after {job.iterations} iterations, {wanted} are needed",
                    hint="a longer job",
                )

    def _up(
        self,
        slot: dict[str, Any],
        tenant: str,
        plan: Path,
        *,
        launch: bool = False,
        mode: Mode | None = None,
    ) -> UpReport:
        report = self.verbs[tenant].up(plan, launch=launch, mode=mode)
        slot["runs"].append(report.run)
        if tenant not in self.record.data["first_change"] and not report.nothing_to_do:
            self.record.data["first_change"][tenant] = report.run
            self.record.save()
        return report

    def _settle(self, settle_ms: float | None) -> None:
        """Give the switches the switching time of an arm, or the lab's own."""
        lab = self.scenario.lab
        if self.settle is not None and lab is not None:
            self.settle(lab.settle_ms if settle_ms is None else settle_ms)

    def _share(self, arm: Arm) -> None:
        """Where arms differ in how uplinks are shared, have them shared as the arm, or else the
        lab, says.
        """
        lab = self.scenario.lab
        if (
            self.share is not None
            and lab is not None
            and any(each.share for each in self.scenario.arms.values())
        ):
            self.share(arm.share or lab.queue.partition(":")[2])

    def _before_others(self, arm: Arm) -> None:
        """Give the ranks that run now priority over what else is on the machine. Not before a job
        has begun its iterations: loading torch needs processors, not priority."""
        if self.priority is None:
            return
        try:
            self.priority.take(arm.watchdog_s + CHANGE_S)
        except TestbedError as error:
            with suppress(TestbedError):
                self.priority.give_back()
            self.priority = None
            self.record.data.setdefault("environment", {})["priority"] = False
            self.emit(
                f"ranks have no priority over other programs of this machine: {first_line(error)}"
            )

    def _take_back(self, slot: dict[str, Any]) -> None:
        """Take priority back. A connection that broke has done that."""
        if self.priority is not None:
            with suppress(TestbedError):
                if lost := self.priority.give_back():
                    slot["priority_lost"] = lost
                    self.emit(
                        "lost their priority: "
                        + "; ".join(f"{host}: {', '.join(why)}" for host, why in lost.items())
                    )

    def _stop(self) -> None:
        """Stop the jobs that run; what prevents it will end the next measurement, or show in the
        state that the lab is left in.
        """
        for verbs in self.verbs.values():
            with suppress(TestbedError):
                if verbs.status().state in ALIVE:
                    verbs.stop()


def leave(record: ComparisonRecord, verbs: Mapping[str, Verbs]) -> str:
    """Bring the lab to the promised state; return that state in words."""
    wanted, arms = record.data["leave"], record.data["arms"]
    if wanted in arms:
        for tenant, own in verbs.items():
            own.up(record.plan(wanted, tenant))
        text = f"{arms[wanted]} is up, its job does not run"
    elif wanted == "down":
        for own in verbs.values():
            own.down()
        text = "nothing is up"
    else:
        found = []
        for tenant, run in reversed([*record.data["first_change"].items()]):
            report = verbs[tenant].rollback(run)
            whose = f"{tenant}: " if tenant else ""
            found.append(
                f"{whose}{report.plan if isinstance(report, UpReport) else 'nothing'} is up"
            )
        text = f"as it was before: {', '.join(found) or 'nothing was moved'}"
        record.data["first_change"] = {}
    record.data["left"] = text
    record.save()
    return text
