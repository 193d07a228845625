"""What the hosts say while their slots change, and hosts that do not answer brought back."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from optics import HostName, Locked, Refused, TestbedError, Unreachable
from orchestrator.fabric.rules import Rules
from orchestrator.hosts import Hello, HostEvent, Hosts
from orchestrator.hosts.render import CONGCTL, PER_NETWORK
from orchestrator.services.schedule.points import record_host
from orchestrator.telemetry.journal import Journal

BATCH = 16
"""Generations that are staged at once: a request of an agent has a limit."""
RECONNECT_S = 2.0


@dataclass
class HostWatch:
    """The hosts of one schedule. generations: the routes of every slot and hold. requests: what
    each host loads. networks: what each loads so that TCP keeps a window for each network, if it is
    to.

    silent: hosts that did not answer the last word, and why. overtaken: set when a newer run took a
    host. errors_ms: per host, how much later than it expected its latest slot ended.
    """

    hosts: Hosts
    names: tuple[HostName, ...]
    generations: Mapping[int, Mapping[HostName, Rules]]
    requests: Mapping[HostName, Mapping[str, Any]]
    journal: Journal | None
    plan: str
    job_hosts: tuple[HostName, ...] = ()
    networks: Mapping[HostName, Mapping[str, Any]] = field(default_factory=dict)
    silent: dict[HostName, str] = field(default_factory=dict)
    errors_ms: dict[HostName, float] = field(default_factory=dict)
    overtaken: Locked | None = None

    def __post_init__(self) -> None:
        self.count = 0
        self._returning: dict[HostName, asyncio.Task[None]] = {}
        self._ended: dict[HostName, int] = {}
        self._boundary = asyncio.Condition()

    async def load(self, names: Collection[HostName]) -> None:
        """Stage every generation over the channels, and load the schedule. Raises: as
        `Routes.stage_warm`, `Slots.load`.
        """
        if self.networks:
            await self.hosts.slots.load_networks({host: self.networks[host] for host in names})
        numbers = sorted(self.generations)
        for at in range(0, len(numbers), BATCH):
            chosen = {
                n: {h: r for h, r in self.generations[n].items() if h in names}
                for n in numbers[at : at + BATCH]
            }
            await self.hosts.routes.stage_warm(
                chosen, 15.0, congctl=PER_NETWORK if self.networks else CONGCTL
            )
        await self.hosts.slots.load({h: {**self.requests[h], "count": self.count} for h in names})

    async def notify(
        self, count: int, ends_s: float | None, lease_s: float, timeout_s: float
    ) -> None:
        """Tell all hosts which slot it is; those that do not answer are brought back in the
        background.
        """
        self.count = count
        failed = await self.hosts.slots.tick(self.names, count, ends_s, lease_s, timeout_s)
        self.silent = {host: error.line for host, error in failed.items()}
        for host, error in failed.items():
            if isinstance(error, Locked):
                self.overtaken = error
            elif isinstance(error, (Unreachable, Refused)) and (
                host not in self._returning or self._returning[host].done()
            ):
                self._returning[host] = asyncio.create_task(self._back(host))

    async def _back(self, host: HostName) -> None:
        """A host's agent died, or the host did: it goes on by itself if it still has the schedule,
        else it is given it again.
        """
        with suppress(TestbedError):
            hello = (await self.hosts.channels.connect([host], RECONNECT_S))[host]
            if not isinstance(hello, Hello) or not hello.installed:
                return
            if not (await self.hosts.slots.states([host]))[host].get("loaded"):
                await self.load([host])

    async def listen(self, events: asyncio.Queue[HostEvent]) -> None:
        """Record what hosts say, until cancelled."""
        while True:
            event = await events.get()
            if event.kind == "slot" and event.values.get("why") == "light":
                self._slot(event)
            elif event.kind == "boundary" and isinstance(
                ended := event.values.get("iteration"), int
            ):
                self._ended[event.host] = ended
                async with self._boundary:
                    self._boundary.notify_all()

    def _slot(self, event: HostEvent) -> None:
        if isinstance(error_ns := event.values.get("error_ns"), int):
            self.errors_ms[event.host] = error_ns / 1e6
        if self.journal is not None:
            record_host(self.journal, self.plan, event)

    def worst(self) -> tuple[HostName | str, float]:
        """The host whose latest expectation was most wrong, and by how much (ms)."""
        return max(self.errors_ms.items(), key=lambda item: abs(item[1]), default=("", 0.0))

    async def boundary(self) -> int:
        """Wait until the ranks of all hosts of the job have ended another iteration; return
        which.
        """
        seen = dict(self._ended)

        def further() -> bool:
            return all(self._ended.get(host, -1) > seen.get(host, -1) for host in self.job_hosts)

        async with self._boundary:
            await self._boundary.wait_for(further)
        return min(self._ended.values())

    async def leave(self) -> None:
        """Stop bringing hosts back."""
        for task in self._returning.values():
            task.cancel()
        await asyncio.gather(*self._returning.values(), return_exceptions=True)
