"""A lab made of files, for the queue: a host is a file that names who has it. Whoever serves may be
killed at any point.

Every request and every transaction of the store is two points, before and after.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from optics import HostName, NotVerified, TestbedError
from orchestrator.queue.serving import Serving
from orchestrator.store.audit import Who
from orchestrator.store.queue import QueuedJob, add
from orchestrator.store.store import Store

LAB, ANN = "lab", Who("ann", "ann")
HOSTS = ("gpu01", "gpu02", "gpu03", "gpu04")


class Points:
    """Counts points, and kills this process at one of them."""

    def __init__(self, kill_at: int = 0) -> None:
        self.kill_at, self.count = kill_at, 0

    def __call__(self) -> None:
        self.count += 1
        if self.count == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


class Journalled(Store):
    """A store whose outermost transactions are points."""

    points = Points()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        inner = self._db.in_transaction
        if not inner:
            self.points()
        with super().transaction() as db:
            yield db
        if not inner:
            self.points()


class Floor:
    """The acts on files in a folder; `did` has what was done, a line each. fails: how often each
    job fails to start.

    A job of n iterations ends by itself once it has done them, 10 ms each; its checkpoint is a file
    that outlives it.
    """

    hosts: tuple[HostName, ...] = HOSTS

    def __init__(
        self, folder: Path, points: Points, *, fails: Mapping[int, TestbedError] | None = None
    ) -> None:
        self.folder, self.points, self.fails = folder, points, dict(fails or {})
        self.others: dict[HostName, str] = {}
        self.dates: dict[HostName, list[tuple[float, float]]] = {}
        self.finished: dict[int, str] = {}
        folder.mkdir(exist_ok=True)

    def able(self, job: QueuedJob) -> tuple[HostName, ...]:
        return HOSTS

    def out(self, jobs: Collection[QueuedJob]) -> Mapping[HostName, str]:
        return self.others

    def booked(self) -> Mapping[HostName, list[tuple[float, float]]]:
        return self.dates

    def plan(self, job: QueuedJob, hosts: tuple[HostName, ...]) -> str:
        return json.dumps(hosts)

    def is_up(self, job: QueuedJob) -> bool:
        return all(self._holder(host) == job.tenancy for host in job.hosts)

    async def start(self, job: QueuedJob) -> str:
        if job.state != "starting":
            self._did(f"VIOLATION {job.number} is started while it is {job.state}")
        if job.number in self.fails:
            raise self.fails.pop(job.number)
        for host in json.loads(job.plan_text):
            self.points()
            await asyncio.sleep(0)
            if self._holder(host) == job.tenancy:
                continue  # it was done by one that was killed
            if (holder := self._holder(host)) is not None:
                self._did(f"VIOLATION {host} of {holder} is taken by {job.tenancy}")
                raise NotVerified(f"{host} is {holder}'s")
            (self.folder / host).write_text(job.tenancy)
        self.points()
        running = self.folder / f"{job.tenancy}.running"
        if not running.exists():
            self._did(f"launched {job.number} {job.generation}")
            running.write_text(str(time.monotonic()))
        self.points()
        return "runs"

    async def ended(self, job: QueuedJob) -> tuple[bool, str]:
        while not job.iterations or self._done(job) < job.iterations:  # noqa: ASYNC110 - the end is seen in files
            await asyncio.sleep(0.01)
        return True, "finished"

    async def stop(self, job: QueuedJob) -> tuple[int, str]:
        done = self._done(job) - job.done
        if job.state != "stopping":
            self._did(f"VIOLATION {job.number} is stopped while it is {job.state}")
        self.points()
        (self.folder / f"{job.tenancy}.checkpoint").write_text(str(job.done + done))
        self.points()
        (self.folder / f"{job.tenancy}.running").unlink(missing_ok=True)
        for host in HOSTS:
            self.points()
            await asyncio.sleep(0)
            if self._holder(host) == job.tenancy:
                (self.folder / host).unlink()
        self.points()
        return done, self.finished.get(job.number, "")

    async def left(self, job: QueuedJob) -> Collection[HostName]:
        return [host for host in job.hosts if self._holder(host) == job.tenancy]

    def _done(self, job: QueuedJob) -> int:
        kept, running = (
            self.folder / f"{job.tenancy}.checkpoint",
            self.folder / f"{job.tenancy}.running",
        )
        before = int(kept.read_text()) if kept.exists() else 0
        if not running.exists():
            return before
        return min(
            max(before, job.done + int((time.monotonic() - float(running.read_text())) / 0.01)),
            job.iterations or 10**9,
        )

    def _holder(self, host: HostName) -> str | None:
        path = self.folder / host
        return path.read_text() if path.exists() else None

    def _did(self, line: str) -> None:
        with (self.folder / "did").open("a") as file:
            file.write(line + "\n")

    @property
    def did(self) -> list[str]:
        """What was done, in order."""
        path = self.folder / "did"
        return path.read_text().splitlines() if path.exists() else []


def queue(store: Store, count: int, **more: object) -> QueuedJob:
    """A job of ann's: 5 iterations within a minute, unless said otherwise."""
    given: dict[str, object] = {"for_s": 60.0, "iterations": 5} | more
    return add(store, LAB, ANN, name="job", text="", method="ring", count=count, **given)  # type: ignore[arg-type]


def serving(store: Store, floor: Floor, events: list[str] | None = None) -> Serving:
    """What serves ann's jobs, impatiently."""
    lines = [] if events is None else events
    return Serving(
        floor,
        store,
        LAB,
        ANN,
        lambda event: lines.append(str(event["message"])),
        look_s=0.01,
        retry_s=0.01,
    )


async def until(happened: Callable[[], object]) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(30):
        while not happened():  # noqa: ASYNC110 - what is waited for are files and rows
            await asyncio.sleep(0.01)


def serve(folder: Path, kill_at: int = 0) -> int | None:
    """Serve in a process of its own until no job is left; return how many points it passed, None if
    it was killed.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            points = Points(kill_at)
            with Journalled(folder / "store.sqlite3", durable=False) as store:
                store.points = points
                asyncio.run(
                    asyncio.wait_for(serving(store, Floor(folder / "floor", points)).serve(), 30)
                )
            os.write(write, str(points.count).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(write)
    _, status = os.waitpid(child, 0)
    output = os.read(read, 100)
    os.close(read)
    assert status == 0 or os.waitstatus_to_exitcode(status) == -signal.SIGKILL, (
        f"exit {os.waitstatus_to_exitcode(status)}"
    )
    return int(output) if output else None
