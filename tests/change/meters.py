"""What the hosts of `fleet`, which stands above this, measure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from optics import HostName, HostPort
from orchestrator.hosts.api import ClockReading, Heartbeat, PortCounters, Probe, Stream


class Meters:
    """The measurements of a fleet's hosts."""

    def __init__(self, fleet: Any) -> None:
        self.fleet = fleet

    async def watch_links(self, names: Collection[HostName]) -> Mapping[HostPort, bool]:
        self.fleet.links = True
        return {
            HostPort(name, port): up
            for name in names
            for port, up in self.fleet.all[name].carrier.items()
        }

    async def stream(self, ends: Mapping[HostName, str], seconds: float) -> str:
        assert len(ends) == 2 and seconds > 0
        self.fleet.changes.clear()
        return "token"

    async def streamed(
        self, token: str, names: Collection[HostName], timeout_s: float
    ) -> Mapping[HostName, Stream]:
        """As if traffic paused from the first loss of light to its return."""
        times = [event.at_ns for event in self.fleet.changes]
        return {
            name: Stream(name, self.fleet.received, ((min(times), max(times)),), False)
            for name in names
        }

    async def probe(
        self, targets: Mapping[HostName, Mapping[str, int | None]], timeout_s: float
    ) -> Any:
        with self.fleet.points.point("hosts", "probe"):
            return {
                name: {a: Probe(name, a, True, hops) for a, hops in asked.items()}
                for name, asked in targets.items()
            }

    async def counters(
        self, names: Collection[HostName] | None = None
    ) -> Mapping[HostPort, PortCounters]:
        for name in names or ():
            self.fleet.present(name)
        return {
            p: PortCounters(0, 0, 0, 0, 0, True)
            for p in self.fleet.lab.fibres
            if names is None or p.host in names
        }

    async def stream_counters(
        self, interval_s: float | None, names: Collection[HostName] | None = None, **more: float
    ) -> None:
        pass

    def leave_counters(self) -> None:
        pass

    async def clocks(
        self, names: Collection[HostName] | None = None, within_s: float = 5.0
    ) -> Mapping[HostName, ClockReading]:
        return {name: ClockReading(0, 1) for name in names or ()}

    async def heartbeats(
        self, job: str, names: Collection[HostName], after: Mapping[HostName, int] | None = None
    ) -> Mapping[str, Heartbeat]:
        return {}
