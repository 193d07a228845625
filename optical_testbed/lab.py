"""`Lab` and `AsyncLab`: a lab from Python. Both have the same methods, made of the coroutines in
`verbs` and `jobs`.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from optical_testbed import jobs, verbs
from optical_testbed.opened import Opened, opened, private
from optical_testbed.progress import Show
from optical_testbed.work import Handle, awaited, awaiting, blocking, finished

if TYPE_CHECKING:
    from orchestrator.settings import Settings


class Job(Handle):
    """The latest job of a lab."""

    __slots__ = ()

    launch = blocking(jobs.launch)
    restore = blocking(jobs.restore)
    status = blocking(jobs.status)
    diagnose = blocking(jobs.diagnose)
    wait = blocking(jobs.wait)
    pause = blocking(jobs.pause)
    resume = blocking(jobs.resume)
    stop = blocking(jobs.stop)
    evict = blocking(jobs.evict)
    join = blocking(jobs.join)
    logs = blocking(jobs.logs)
    records = blocking(jobs.records)


class AsyncJob(Handle):
    """The latest job of a lab; its methods are awaited."""

    __slots__ = ()

    launch = awaiting(jobs.launch)
    restore = awaiting(jobs.restore)
    status = awaiting(jobs.status)
    diagnose = awaiting(jobs.diagnose)
    wait = awaiting(jobs.wait)
    pause = awaiting(jobs.pause)
    resume = awaiting(jobs.resume)
    stop = awaiting(jobs.stop)
    evict = awaiting(jobs.evict)
    join = awaiting(jobs.join)
    logs = awaiting(jobs.logs)
    records = awaiting(jobs.records)


class _Opening(Handle):
    """How a lab is opened."""

    __slots__ = ("__weakref__", "_end")

    def __init__(self, opened: Opened) -> None:
        super().__init__(opened)
        lab = opened.private
        # Also at the end of the process, so that no lab is left running.
        self._end = weakref.finalize(self, lab.stop if lab is not None else _nothing)

    @classmethod
    def open(
        cls,
        inventory: str | Path | None = None,
        *,
        timeout_s: float | None = None,
        wait_s: float | None = None,
        owner: str | None = None,
        settings: Mapping[str, object] | None = None,
        progress: Show | None = None,
    ) -> Self:
        """Open a lab: read the settings, check the inventory; devices and hosts are contacted by
        the methods.

        inventory: its directory; None: the one that the command `testbed` would use here.
        timeout_s: longest time of a call (s, 300 if no setting says otherwise). wait_s: how long to
        wait for locks that others hold (s, not at all). owner: whose part of the lab to work on;
        None: one's own. settings: any others, by their names in testbed.toml. progress: is called
        with the events of every call, in the thread or event loop that made it. Raises: BadFile -
        the inventory or a settings file is wrong, with all problems. Untrusted - another user's.
        """
        return cls(
            opened(
                inventory,
                settings=settings,
                timeout_s=timeout_s,
                wait_s=wait_s,
                owner=owner,
                progress=progress,
            )
        )

    def __repr__(self) -> str:
        settings = self._opened.settings
        ended = ", closed" if self._opened.closed else ""
        return f"<{type(self).__name__} {settings.inventory}, owner {settings.owner or settings.user}{ended}>"

    @property
    def inventory(self) -> Path:
        """The directory of the inventory."""
        return self._opened.settings.inventory

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self._opened.settings

    def _close(self) -> None:
        self._opened.closed = True
        self._end()


def _nothing() -> None:
    """What is left to do at the end of a lab that was not started here."""


class Lab(_Opening):
    """A lab. Each call contacts devices and hosts again, and returns what the command of the same
    name shows, as frozen values.

    >>> from optical_testbed import Lab
    >>> with Lab.open("inventory/emulated") as lab:
    ...     design = lab.design("examples/workloads/dlrm.yaml", "topoopt")
    >>> design.name
    'dlrm-topoopt'

    The first interrupt of a call has the engine finish or revert its current step; then
    KeyboardInterrupt is raised, with the engine's words. The calls work in a notebook too, and from
    several threads.
    """

    __slots__ = ()

    plan = blocking(verbs.plan)
    up = blocking(verbs.up)
    confirm = blocking(verbs.confirm)
    rehearse = blocking(verbs.rehearse)
    prewire = blocking(verbs.prewire)
    down = blocking(verbs.down)
    rollback = blocking(verbs.rollback)
    resume = blocking(verbs.resume)
    restore = blocking(verbs.restore)
    status = blocking(verbs.status)
    verify = blocking(verbs.verify)
    devices = blocking(verbs.devices)
    design = blocking(verbs.design)
    runs = blocking(verbs.runs)
    telemetry = blocking(verbs.telemetry)

    @classmethod
    def emulated(
        cls,
        hosts: int = 4,
        ports: int = 4,
        *,
        driver: str | None = None,
        folder: str | Path | None = None,
        timeout_s: float | None = None,
        progress: Show | None = None,
    ) -> Self:
        """Start an emulated lab of its own, with its own store and journals, and open it; `close`
        stops and removes it.

        hosts: 1 to 250. ports: optical ports of each host, 1 to 8, each on a device of its own.
        driver: that all devices are of; None: half of them Polatis, half Calient. folder: where
        everything is kept, a new or empty one; None: nothing is kept. Raises: Missing - this
        machine cannot (namespaces need root), or there is no such lab. TimedOut, TestbedError.
        """
        lab = cls(
            private(
                hosts, ports, driver=driver, folder=folder, timeout_s=timeout_s, progress=progress
            )
        )
        try:
            finished(lab._opened, lab._opened.start)
        except BaseException:
            lab.close()
            raise
        return lab

    @property
    def job(self) -> Job:
        """The latest job."""
        return Job(self._opened)

    def close(self) -> None:
        """End the use of this object; stop the emulated lab that it started. Repeating it changes
        nothing.
        """
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class AsyncLab(_Opening):
    """As `Lab`, with methods that are awaited; a cancelled call ends as an interrupted one does.

    >>> import asyncio
    >>> from optical_testbed import AsyncLab
    >>> async def name() -> str:
    ...     async with AsyncLab.open("inventory/emulated") as lab:
    ...         return (await lab.design("examples/workloads/dlrm.yaml", "ring")).name
    >>> asyncio.run(name())
    'dlrm-ring'
    """

    __slots__ = ()

    plan = awaiting(verbs.plan)
    up = awaiting(verbs.up)
    confirm = awaiting(verbs.confirm)
    rehearse = awaiting(verbs.rehearse)
    prewire = awaiting(verbs.prewire)
    down = awaiting(verbs.down)
    rollback = awaiting(verbs.rollback)
    resume = awaiting(verbs.resume)
    restore = awaiting(verbs.restore)
    status = awaiting(verbs.status)
    verify = awaiting(verbs.verify)
    devices = awaiting(verbs.devices)
    design = awaiting(verbs.design)
    runs = awaiting(verbs.runs)
    telemetry = awaiting(verbs.telemetry)

    @classmethod
    def emulated(
        cls,
        hosts: int = 4,
        ports: int = 4,
        *,
        driver: str | None = None,
        folder: str | Path | None = None,
        timeout_s: float | None = None,
        progress: Show | None = None,
    ) -> Self:
        """As `Lab.emulated`; the lab is started by `async with`."""
        return cls(
            private(
                hosts, ports, driver=driver, folder=folder, timeout_s=timeout_s, progress=progress
            )
        )

    @property
    def job(self) -> AsyncJob:
        """The latest job."""
        return AsyncJob(self._opened)

    async def close(self) -> None:
        """As `Lab.close`."""

        async def end() -> None:
            self._close()

        await awaited(self._opened, end)

    async def __aenter__(self) -> Self:
        if self._opened.private is not None:
            try:
                await awaited(self._opened, self._opened.start)
            except BaseException:
                await self.close()
                raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
