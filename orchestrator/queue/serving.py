"""The loop that serves a queue: every state is in the store before its act, so that whoever finds
it can do the act again.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field

from optics import (
    BadFile,
    HostName,
    Infeasible,
    Interlock,
    Locked,
    StoreFailed,
    TestbedError,
    Unreachable,
)
from optics.errors import unplanned
from optics.plain import seconds_text
from orchestrator.background.work import Notify, Retries, emit
from orchestrator.queue.acts import NOT_STOPPED, Acts, decided
from orchestrator.results import Json
from orchestrator.store.audit import Who
from orchestrator.store.database import Database
from orchestrator.store.queue import (
    QueuedJob,
    State,
    change_job_state,
    claim,
    keeps,
    note_obstacle,
    queued,
    record_stopped,
    served,
)

LOOK_S = 1.0
"""Interval (s) between looks at the store: what others add, drop, lock and take down."""
FIRST_RETRY_S, LAST_RETRY_S = 5.0, 300.0
TRIES = 3
"""Failed starts in a row after which a job is given up; what only has to wait for others or for an
answer does not count.
"""
PASSING = (Locked, Interlock, Unreachable)


@dataclass
class Serving:
    """Serves the jobs of one user on one lab (`who`, `lab`), among those of all.

    tasks: the act of each job, with the state and generation that it is for. refused: sets of hosts
    that cannot hold a job.
    """

    acts: Acts
    store: Database
    lab: str
    who: Who
    notify: Notify
    look_s: float = LOOK_S
    retry_s: float = FIRST_RETRY_S
    tasks: dict[int, tuple[str, int, asyncio.Task[None]]] = field(default_factory=dict)
    refused: dict[int, set[frozenset[HostName]]] = field(default_factory=lambda: defaultdict(set))
    started: int = 0
    stopped: int = 0
    failures: int = 0
    last: str = ""

    def __post_init__(self) -> None:
        self.wake = asyncio.Event()

    async def serve(self, state: Callable[[str], None] = lambda word: None) -> None:
        """Serve until no job of the user's is left, or until cancelled. state: set to `serving`,
        and `ended` before the last look.
        """
        try:
            while True:
                self.wake.clear()
                mine = await self.step()
                state("serving")
                if not mine:
                    state("ended")  # what is added from now on is for the next process
                    if not any(job.user == self.who.user for job in queued(self.store, self.lab)):
                        return
                with suppress(TimeoutError):
                    async with asyncio.timeout(self.look_s):
                        await self.wake.wait()
        finally:
            await self.leave()

    async def leave(self) -> None:
        """Cancel what goes on, and wait for it: a start that is not finished is rolled back. Jobs
        that run go on running.
        """
        tasks = [task for _, _, task in self.tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.tasks.clear()

    async def step(self) -> bool:
        """Do what is to be done now. False: the user has no job left."""
        jobs = queued(self.store, self.lab)
        mine = [job for job in jobs if job.user == self.who.user]
        for job in mine:
            self._attend(job)
        if any(job.state == "waiting" for job in jobs):
            await self._decide(queued(self.store, self.lab))
        return bool(mine)

    def emit(
        self, event: str, job: QueuedJob, text: str, error: BaseException | None = None
    ) -> None:
        """Emit one event. error: behind it, of which it has all lines."""
        self.last = f"job {job}: {text}"
        more: dict[str, Json] = {} if error is None else {"error": str(error)}
        emit(self.notify, event, self.last, job=job.number, hosts=[*job.hosts], **more)

    def _attend(self, job: QueuedJob) -> None:
        """Have the act of a job's state go on, one at a time."""
        if job.state == "running" and job.left_s <= 0:
            self._end(job, "done", "its time is over")
        elif job.state == "running" and not self.acts.is_up(job):
            self._end(job, "done", "its plan was taken down by somebody")
        elif job.state in ("starting", "running", "stopping"):
            self._spawn(
                job,
                {"starting": self._start, "running": self._watch, "stopping": self._stop}[
                    job.state
                ],
            )

    def _spawn(
        self, job: QueuedJob, act: Callable[[QueuedJob], Coroutine[None, None, None]]
    ) -> None:
        state, generation, task = self.tasks.get(job.number, ("", 0, None))
        if task is not None and not task.done():
            if (state, generation) != (job.state, job.generation) and not task.cancelling():
                task.cancel()  # `wake` comes when it has ended
            return
        if (
            task is not None
            and (state, generation) == (job.state, job.generation)
            and task.done()
            and not task.cancelled()
        ):
            task.result()  # an act that has ended and left its state: an error of this program
        made = asyncio.ensure_future(act(job))
        made.add_done_callback(lambda _: self.wake.set())
        self.tasks[job.number] = (job.state, job.generation, made)

    def _end(self, job: QueuedJob, then: State, why: str) -> None:
        if (
            ending := change_job_state(self.store, self.who, job, "stopping", next=then, detail=why)
        ) is not None:
            self.emit("stopping", ending, why)
            self.wake.set()

    # --- decisions

    async def _decide(self, jobs: list[QueuedJob]) -> None:
        found = decided(
            self.acts, jobs, served(self.store, self.lab) | {self.who.user}, self.refused
        )
        by_number = {job.number: job for job in jobs}
        for number, first in found.stops.items():
            if by_number[number].state in ("starting", "running"):
                self._end(by_number[number], "waiting", f"stopped for {by_number[first]}")
        for number, hosts in found.starts.items():
            if (job := by_number[number]).user == self.who.user:
                await self._begin(job, hosts)

    async def _begin(self, job: QueuedJob, hosts: tuple[HostName, ...]) -> None:
        """Give a job hosts. The plan is made in a thread: other starts go on meanwhile."""
        try:
            text = await asyncio.to_thread(self.acts.plan, job, hosts)
        except Infeasible as error:
            self.refused[job.number].add(frozenset(hosts))
            note_obstacle(self.store, job, f"not on {', '.join(hosts)}: {unplanned(error)}")
            self.wake.set()
            return
        except TestbedError as error:  # the inventory has changed since it was added
            self._give_up(job, "failed", str(error))
            return
        except Exception as error:  # a fault of a method ends this job only
            self._give_up(job, "failed", unplanned(error))
            return
        if (claimed := claim(self.store, self.who, job, hosts, text)) is not None:
            self.emit("starting", claimed, f"on {', '.join(hosts)}, as {claimed.tenancy}")
            self._attend(claimed)
        self.wake.set()

    def _give_up(self, job: QueuedJob, state: State, why: str) -> None:
        if (left := change_job_state(self.store, self.who, job, state, detail=why)) is not None:
            self.failures += state == "failed"
            self.emit(state, left, why)

    # --- acts

    async def _start(self, job: QueuedJob) -> None:
        try:
            text = await self.acts.start(job)
        except StoreFailed:
            raise
        except Exception as error:  # even a fault of this program ends this job only
            if _cancelled():
                return  # it is being stopped, or the next process starts it again
            tries = job.tries + (not isinstance(error, PASSING))
            final = (
                isinstance(error, (BadFile, Infeasible))
                or not isinstance(error, TestbedError)
                or tries >= TRIES
            )
            failed: dict[str, object] = {
                "next": "failed" if final else "waiting",
                "detail": unplanned(error),
                "tries": tries,
            }
            failed["retry_s"] = min(max(2 * job.retry_s, self.retry_s), LAST_RETRY_S)
            self.failures += 1
            if (
                left := change_job_state(self.store, self.who, job, "stopping", **failed)
            ) is not None:
                self.emit("not started", left, unplanned(error), error)
            return
        if (
            runs := change_job_state(
                self.store, self.who, job, "running", detail=text, tries=0, retry_s=0.0
            )
        ) is not None:
            self.started += 1
            self.emit("running", runs, text)

    async def _watch(self, job: QueuedJob) -> None:
        try:
            finished, text = await self.acts.ended(job)
        except StoreFailed:
            raise
        except Exception as error:  # whether it has ended is asked again
            note_obstacle(self.store, job, f"cannot be watched: {unplanned(error)}")
            await asyncio.sleep(self.retry_s)
            return
        self._end(job, "done" if finished else "failed", text)

    async def _stop(self, job: QueuedJob) -> None:
        retries, why = Retries(self.retry_s, LAST_RETRY_S), job.detail.partition(NOT_STOPPED)[0]
        while True:
            try:
                iterations, finished = await self.acts.stop(job)
                break
            except StoreFailed:
                raise
            except Exception as error:
                if _cancelled():
                    return
                wait_s = retries.failed()
                note_obstacle(self.store, job, f"{why}{NOT_STOPPED}{unplanned(error)}")
                with suppress(TestbedError):  # they cannot be asked: it keeps them all
                    keeps(self.store, job, tuple(await self.acts.left(job)))
                self.emit(
                    "not stopped",
                    job,
                    f"{unplanned(error)}; tried again after {seconds_text(wait_s)}",
                    error,
                )
            await asyncio.sleep(wait_s)
        if (
            left := record_stopped(self.store, self.who, job, iterations, why, finished)
        ) is not None:
            self.stopped += 1
            self.emit(left.state, left, left.detail or "stopped")


def _cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
