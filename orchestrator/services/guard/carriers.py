"""The carriers of the hosts' ports: read when a host is connected, kept by its events, forgotten
when it falls silent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count

from optics import HostName, HostPort, TestbedError
from orchestrator.fabric.rules import Macs
from orchestrator.hosts import Hello, Hosts

RECONNECT_S = (0.5, 1.0, 2.0, 5.0, 10.0)


@dataclass
class Carriers:
    """lit: whether each port has carrier; ports of silent hosts are absent. patience_s: a host gets
    so long to answer (s).
    """

    hosts: Hosts
    patience_s: float
    lit: dict[HostPort, bool] = field(default_factory=dict)
    macs: dict[HostPort, Macs] = field(default_factory=dict)

    async def connect(
        self, names: Collection[HostName], lost: Callable[[HostName, str], None]
    ) -> None:
        """Connect and subscribe; `lost` is given each host that does not answer, and why."""
        answers = await self.hosts.channels.connect(names, self.patience_s)
        existing = [
            name
            for name, answer in answers.items()
            if isinstance(answer, Hello) and answer.installed
        ]
        for name, answer in answers.items():
            if name not in existing:
                lost(
                    name, str(answer) if isinstance(answer, TestbedError) else "no agent runs there"
                )

        async def subscribe(name: HostName) -> None:
            with suppress(TestbedError):  # a host lost meanwhile sends an event, and is reconnected
                self.lit |= await self.hosts.measure.watch_links([name])

        await asyncio.gather(*map(subscribe, existing))
        self.macs |= self.hosts.channels.macs()

    def forget(self, host: HostName) -> None:
        """Forget the ports of a host: its neighbours still report whether its light arrives."""
        for port in [port for port in self.lit if port.host == host]:
            del self.lit[port]

    async def reconnect(self, host: HostName) -> None:
        """Try until the host answers and its carriers are known."""
        for tries in count():
            await asyncio.sleep(RECONNECT_S[min(tries, len(RECONNECT_S) - 1)])
            answer = (await self.hosts.channels.connect([host], self.patience_s))[host]
            if not isinstance(answer, Hello) or not answer.installed:
                continue
            try:
                found = await self.hosts.measure.watch_links([host])
            except TestbedError:
                continue
            break
        self.lit |= found
        self.macs |= self.hosts.channels.macs()
