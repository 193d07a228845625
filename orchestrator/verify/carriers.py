"""Carrier and speed at both ends of links, and why a port has none."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence

from optics import HostName, HostPort, Link
from orchestrator.hosts import Hello, Hosts
from orchestrator.inventory.lab import Lab
from orchestrator.verify.power import Reading


def has_carrier(hellos: Mapping[HostName, Hello], port: HostPort) -> bool:
    """Whether the port had carrier when its host last reported."""
    state = hellos[port.host].ports.get(port.number) if port.host in hellos else None
    return state is not None and state.carrier


async def carriers(
    hosts: Hosts, wanted: Collection[HostPort], timeout_s: float
) -> Mapping[HostPort, bool]:
    """Collects the carriers of these ports' hosts and waits for events until all of `wanted` are up
    or time is over.
    """
    queue = hosts.channels.subscribe()
    names = sorted({port.host for port in wanted})
    try:
        up = dict(await hosts.measure.watch_links(names))
        try:
            async with asyncio.timeout(timeout_s):
                while not all(up.get(port) for port in wanted):
                    event = await queue.get()
                    if event.kind == "link":
                        up[HostPort(event.host, int(event.values["port"]))] = bool(
                            event.values["carrier"]
                        )
        except TimeoutError:
            pass
        return up
    finally:
        hosts.channels.unsubscribe(queue)


def speeds(hellos: Mapping[HostName, Hello], links: Iterable[Link]) -> tuple[str, ...]:
    """Links whose two ends came up with different speeds, as their drivers report."""
    found = []
    for link in links:
        ends = [
            hellos[p.host].ports.get(p.number) if p.host in hellos else None
            for p in (link.a, link.b)
        ]
        one, other = (
            state.speed_mbps if state is not None and state.carrier else None for state in ends
        )
        if one and other and one != other:
            found.append(f"{link.a} came up with {one} Mb/s and {link.b} with {other} Mb/s")
    return tuple(found)


def no_carrier(
    port: HostPort, readings: Sequence[Reading], lab: Lab, silent: Mapping[str, str]
) -> str:
    """Why a planned receiver is dark, as far as the meters and the hosts show."""
    reading = next((r for r in readings if r.circuit.receiver == port), None)
    if (segment := lab.segment_at.get(port)) is not None:
        return f"{port} has no carrier: its cable to the packet switch {segment.name}, or that switch's port, or {port.host}'s"
    if reading is None:
        return f"{port} has no carrier"
    sender = reading.circuit.transmitter
    cable = lab.fibres[port].name
    if why := reading.where_lost(lab):
        lost = f"; {sender.host} does not answer either" if sender.host in silent else ""
        return f"{port} has no carrier: {why}{lost}"
    if not reading.measured:
        return f"{port} has no carrier; no meter measures its light"
    leaves = f"light leaves {reading.path[-1].egress} ({reading.points[-1].power:.1f} dBm) but {port} has no carrier"
    back = next((r for r in readings if r.circuit.transmitter == port), None)
    if back is not None and back.points and not back.points[0].lit:
        return f"{leaves}, and nothing arrives from it: fibre {cable} is cut or unplugged, or {port.host} is off"
    return f"{leaves}: fibre {cable}, or the receiver of {port.host}"
