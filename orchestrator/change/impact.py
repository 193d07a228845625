"""The effect of a reconfiguration on light, packets and bytes, measured by devices and hosts while
it runs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable, Mapping
from types import TracebackType

from drivers.api import CircuitSwitch, PowerMeter
from optics import Change, DeviceName, HostName, HostPort, Link, LinkKind, Port, TestbedError
from optics.plan import FixedRoute, Ring
from orchestrator.fabric.next_hops import lanes_of, next_hops
from orchestrator.hosts import HostEvent, Hosts, PortCounters
from orchestrator.inventory.lab import Lab
from orchestrator.verify.power import LOS_DBM

LOOK_S, LOOKS = 0.002, 200
"""Interval (s) between two readings of a meter while its ports are dark, and their maximum
number.
"""
GRACE_S = 0.2
"""How long (s) a pending meter reading may delay the end."""


class Impact:
    """Use as a context around the change; `power` and `crossed` fill while it runs."""

    def __init__(self, hosts: Hosts, devices: Mapping[DeviceName, CircuitSwitch]) -> None:
        self._hosts, self._devices = hosts, devices
        self._queue = hosts.channels.subscribe()
        self._asking: asyncio.Future[list[None]] | None = None
        self._over = False
        self._before: Mapping[HostPort, PortCounters] = {}
        self._before_ns = 0
        self._unlit: set[DeviceName] = set()
        self._power: dict[DeviceName, int] = {}
        self._neighbours: Mapping[HostName, Collection[str]] = {}

    def neighbours(
        self,
        rising: Mapping[HostName, Iterable[int]],
        links: Iterable[Link],
        lab: Lab,
        fixed: Iterable[FixedRoute],
        rings: Iterable[Ring],
    ) -> Mapping[HostName, Collection[str]]:
        """One address per port that gets new light: the neighbour behind it, by the route this host
        will use.
        """
        found: dict[HostName, dict[HostPort, str]] = {}
        links = tuple(links)
        for (host, target, lane), hop in sorted(
            next_hops(links, lanes_of(lab, links), fixed, tuple(rings)).items()
        ):
            direct = hop.into.host == target and hop.out.number in rising.get(host, ())
            if direct and all(lab.hosts[name].forwarding == "kernel" for name in (host, target)):
                found.setdefault(host, {}).setdefault(hop.out, lab.hosts[target].lane_address(lane))
        self._neighbours = {host: tuple(addresses.values()) for host, addresses in found.items()}
        return self._neighbours

    async def before(self, broken: Iterable[Link]) -> None:
        """Read the counters of the ports that will lose their light; raises nothing."""
        names = sorted({port.host for link in broken for port in (link.a, link.b)})
        self._before_ns = time.monotonic_ns()
        try:
            self._before = await self._hosts.measure.counters(names) if names else {}
        except TestbedError:
            self._before = {}

    def moved(self, changes: Mapping[DeviceName, Change], lit: Collection[Port]) -> None:
        """When a device reports its new state, poll its meters until light leaves those ports of
        `lit` that it changed.
        """
        wanted: dict[DeviceName, tuple[PowerMeter, list[Port]]] = {}
        for name, change in changes.items():
            device = self._devices.get(name)
            ports = sorted({s.egress for s in change.add if s.egress in lit})
            if isinstance(device, PowerMeter) and ports:
                wanted[name] = (device, ports)
        self._unlit = set(wanted)
        self._asking = asyncio.ensure_future(
            asyncio.gather(*(self._ask(n, d, p) for n, (d, p) in wanted.items()))
        )

    async def _ask(self, name: DeviceName, device: PowerMeter, ports: list[Port]) -> None:
        for _ in range(LOOKS):
            try:
                seen = await device.power(ports)
            except TestbedError:
                return
            if all(seen.get(port, LOS_DBM - 1) >= LOS_DBM for port in ports):
                self._power[name] = time.monotonic_ns()
                self._unlit.discard(name)
                return
            if self._over:
                return
            await asyncio.sleep(LOOK_S)

    async def settle(self) -> None:
        """Stop polling: others need the devices now."""
        self._over = True
        if self._asking is not None:
            await asyncio.wait([self._asking], timeout=GRACE_S)
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
            self._asking = None

    @property
    def power(self) -> Mapping[DeviceName, int]:
        """When light left all new ports of each device with meters (monotonic ns); empty if a port
        was never seen lit.
        """
        return {} if self._unlit else self._power

    def crossed(self, generation: int) -> Mapping[HostName, int]:
        """When each host with new light had answers from all its neighbours over it; empty if one
        did not answer.
        """
        found: dict[HostName, int] = {}
        while not self._queue.empty():
            event: HostEvent = self._queue.get_nowait()
            expected = event.kind == "crossed" and event.values.get("generation") == generation
            if expected and event.values["answered"] == event.values["asked"]:
                found[event.host] = event.at_ns
        return found if found.keys() == self._neighbours.keys() else {}

    async def lost_bytes(self, broken: Collection[Link]) -> int | None:
        """Bytes sent into broken circuits and not received, since `before`; None if a port never
        noticed the loss of light.

        Exact if the ports were drained before, else accurate to what flows while the hosts are
        asked.
        """
        if not broken:
            return 0
        try:
            after = await self._hosts.measure.counters(
                sorted({port.host for link in broken for port in (link.a, link.b)})
            )
        except TestbedError:
            return None
        lost = 0
        for link in broken:
            for sender, receiver in ((link.a, link.b), (link.b, link.a))[
                : 2 if link.kind is LinkKind.DUPLEX else 1
            ]:
                sent, received = (self._counted(port, after) for port in (sender, receiver))
                if sent is None or received is None:
                    return None
                lost += max(0, sent[1] - received[0])
        return lost

    def _counted(
        self, port: HostPort, after: Mapping[HostPort, PortCounters]
    ) -> tuple[int, int] | None:
        """Bytes received and sent between `before` and the moment the port lost its carrier."""
        before, down = self._before.get(port), after[port].down if port in after else None
        if before is None or down is None or down.at_ns < self._before_ns:
            return None
        return down.rx_bytes - before.rx_bytes, down.tx_bytes - before.tx_bytes

    async def __aenter__(self) -> Impact:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over = True
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
        self._hosts.channels.unsubscribe(self._queue)
