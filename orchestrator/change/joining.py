"""Ranks that join the running job of a change: launched once its light is there, they wait to be
asked as all others are (workloads/collectives/growing.py).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace

from optics import Locked, Missing, Refused, TestbedError
from optics.plain import counted
from optics.plan import Job
from orchestrator.change.context import Context
from orchestrator.change.ring_change import RingChange
from orchestrator.hosts import RankState
from orchestrator.hosts.launch import layout
from orchestrator.hosts.output import last_line
from orchestrator.jobs import ports
from orchestrator.jobs.attempt import BUSY, GO_TAKES, LOOK_S
from orchestrator.jobs.decision import JobDecision
from orchestrator.jobs.first_iterations import FIRST_ITERATIONS_S
from orchestrator.plan.target import Target
from orchestrator.store.records import JobRecord

JOINING = {"TESTBED_JOINING": "1"}


class Newcomers:
    """Those of `job` that the running job `record` lacks. record: of the job with them."""

    def __init__(self, context: Context, record: JobRecord, job: Job) -> None:
        self.context, self.hosts = context, context.session.hosts
        self.ranks = job.ranks[len(record.spec.wanted.ranks) :]
        self.record = replace(record, spec=replace(record.spec, wanted=job))

    async def joined(self) -> bool:
        """Whether an earlier run has had them join; what it has left of them waiting is ended."""
        name, until = self.record.spec.on_hosts, time.monotonic() + FIRST_ITERATIONS_S
        while True:
            states = await self.hosts.jobs.states(name, self.ranks)
            if all(state.state != "running" for state in states.values()):
                return False
            found: Collection[RankState] = ()
            with suppress(Refused):
                found = await self.hosts.ring_changes.states(name, self.ranks)
            there = len(found) == len(self.ranks)
            if there and all(each.iteration for each in found):
                return True
            # without the mark no move has begun; with it, one that is in the move may have joined
            # and report that at the end of its first iteration
            waits = not there or any(each.state in BUSY or each.iteration for each in found)
            if not self.record.spec.changing or not waits:
                break
            if time.monotonic() > until:
                raise Refused(f"it is not known whether {', '.join(self.ranks)} joined")
            await asyncio.sleep(LOOK_S)
        await self.end()
        return False

    async def launch(self) -> None:
        """Start them and wait until they can be asked. Raises: Refused - one has ended, or was not
        there in time; as `HostJobs.launch`.
        """
        name, job = self.record.spec.on_hosts, self.record.spec.wanted
        what = f"{counted(len(self.ranks), 'rank')} to join {job.name}"
        with self.context.recorder.phase("launch", what) as phase:
            await self.hosts.jobs.launch(
                job, self.record.run, only=self.ranks, extra=lambda _: (JOINING, {})
            )
            until = time.monotonic() + FIRST_ITERATIONS_S
            while len(await self.hosts.ring_changes.states(name, self.ranks)) < len(self.ranks):
                states = await self.hosts.jobs.states(name, self.ranks)
                for rank, state in states.items():
                    if state.state != "running":
                        said = await last_line(self.hosts, name, rank)
                        raise Refused(f"rank {rank} ended before it joined: {said or 'no output'}")
                if time.monotonic() > until:
                    raise Refused(
                        f"{', '.join(self.ranks)} did not reach the job within {FIRST_ITERATIONS_S:.0f} s"
                    )
                await asyncio.sleep(LOOK_S)
            if self.context.sample_hz > 0:
                await ports.start_port_sampling(self.context.session, name, self.ranks)
            phase.detail = f"{', '.join(self.ranks)} ready to join {job.name}"

    async def end(self) -> None:
        """The job goes on without them. A host that does not answer is left: they end by
        themselves.
        """
        with suppress(TestbedError):
            await self.hosts.jobs.stop(self.record.spec.on_hosts, 0.0, self.ranks)


class Joining(RingChange):
    """A ring change of a job that may get more ranks by it."""

    joining = False
    """Whether what goes wrong is the new ranks', and no reason to restart the job by itself."""

    later: JobDecision | None = None
    """What becomes of the job once there is light, while it stays as it is for that."""

    async def choose(
        self, record: JobRecord | None, job: Job | None, *, dark: bool = False
    ) -> None:
        """As RingChange.choose. Raises: Missing - the job that ranks were to join has ended."""
        if record is None and (host := self.context.options.joins):
            raise Missing(
                f"the job that {host} was to join has ended", hint="first check: testbed job status"
            )
        await super().choose(record, job, dark=dark)

    async def prepare(
        self, goal: Target, generation: int, *, drained: bool, longest_s: float
    ) -> None:
        """As RingChange.prepare, of a job that keeps its rings: it may pause in the dark."""
        if self.decision.kind == "join":
            self.later, self.decision = self.decision, JobDecision("keep")
        await super().prepare(goal, generation, drained=drained, longest_s=longest_s)

    async def finish(self) -> None:
        """As RingChange.finish. Where ranks cannot join, the job goes on with those it had, or, but
        for `require`, restarts.
        """
        if self.later is not None:
            if self.attempt is not None and not self.done:
                await self.attempt.drop()
                self.notes.append(f"its pause did not end as planned: {self.trouble}")
            self.decision, self.later = self.later, None
            self.attempt, self.done, self.trouble = None, False, ""
        join = self.decision.kind == "join" and not self.done
        if join and self.record is not None and self.job is not None:
            await self._join(self.record, self.job)
        await super().finish()

    async def _join(self, record: JobRecord, job: Job) -> None:
        new = Newcomers(self.context, record, job)
        assert self.record is not None
        self.joining = True
        try:
            if await self.context.jobs.running() is None:
                raise Refused(f"{record.name} has ended")
            await self._present(record)
            if await new.joined():
                self.done = True
                self._follow()
                return
            await new.launch()
            await self._take_over(record, new.record)
            if self.done or self.record.spec.wanted == job:
                self.notes.append(
                    f"{', '.join(new.ranks)} joined {record.name} after iteration {self.after}"
                )
                return
            error: TestbedError = Refused(self.trouble)
        except Locked:
            raise
        except TestbedError as failed:
            error = failed
        self.joining = False
        if not self.record.spec.changing:
            await new.end()  # else it is not known whether the job has them
        if self.live == "require":
            again = "the same command tries again; to take the light back: testbed rollback"
            raise type(error)(
                f"{', '.join(new.ranks)} cannot join {record.name} while it runs: {error}",
                hint="; ".join(filter(None, (error.hint, again))),
            ) from error
        self._impossible(error)

    async def _take_over(self, record: JobRecord, wider: JobRecord) -> None:
        """Have the ranks of both take over the rings of all; `done` tells whether they did. Those
        of `record` say how it ended if not: a new rank may be gone.
        """
        move = self.context.next_generation()
        attempt = self._attempt(wider, move)
        lease_s = 2 * GO_TAKES * self.policy.boundary_s + self.context.timeout_s
        await self._prepare(attempt, layout(wider.spec.wanted, self.lab), lease_s, None)
        self.begin()
        await self.change_over()
        if not self.done:
            await attempt.drop()
            self.dropped = self._attempt(record, move)
            await self.settle()

    def _impossible(self, error: TestbedError) -> None:
        if self.joining:
            raise error
        self._refuse_pause(error)
        super()._impossible(error)

    def _no_pause(self, error: TestbedError) -> None:
        self._refuse_pause(error)
        super()._no_pause(error)

    def _refuse_pause(self, error: TestbedError) -> None:
        """Raises: with `require` - the job is to pause while there is no light for it."""
        if self.later is not None and self.live == "require":
            assert self.record is not None
            raise type(error)(
                f"job {self.record.name} cannot pause while the light of its new ranks is made: {error}",
                hint=error.hint,
            ) from error
