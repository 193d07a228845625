"""Planned links that are dark now: which, at which ends, and on which side of which switch the
light is lost, by the meters.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from drivers.api import CircuitSwitch
from optics import Circuit, DeviceName, HostName, HostPort, Link, TestbedError
from orchestrator.fabric.circuits import receivers
from orchestrator.fabric.detour import dark_circuits, dead_links, link_text
from orchestrator.hosts import Hello
from orchestrator.inventory.lab import Lab
from orchestrator.verify.power import Reading, measure


def carriers_of(hellos: Mapping[HostName, Hello]) -> dict[HostPort, bool]:
    """The carriers that hosts report."""
    return {
        HostPort(name, number): port.carrier
        for name, hello in hellos.items()
        for number, port in hello.ports.items()
    }


def where(reading: Reading, lab: Lab) -> str:
    """Where the light of a circuit is lost on its path to the receiver; empty if no meter can show
    it.
    """
    if why := reading.where_lost(lab):
        return why
    if reading.out_dbm is None:
        return ""
    last, port = reading.path[-1].egress, reading.circuit.receiver
    blame = f"fibre {lab.fibres[port].name}, or its receiver"
    return f"light leaves {last} ({reading.out_dbm:.1f} dBm) but does not arrive at {port}: {blame}"


async def sides(
    devices: Mapping[DeviceName, CircuitSwitch], lab: Lab, circuits: Collection[Circuit]
) -> tuple[dict[Circuit, str], str]:
    """Where the light of each dark circuit is lost, as far as meters show; and why they could not
    be read, in words.
    """
    try:
        readings = await measure(devices, lab, circuits)
    except TestbedError as error:
        return {}, f"the meters cannot be asked: {error.line}"
    return {reading.circuit: why for reading in readings if (why := where(reading, lab))}, ""


async def degraded(
    devices: Mapping[DeviceName, CircuitSwitch],
    lab: Lab,
    links: Iterable[Link],
    circuits: Iterable[Circuit],
    hellos: Mapping[HostName, Hello],
) -> tuple[str, ...]:
    """A line per dark planned link: its ends without light, and where the light is lost."""
    links, carriers = tuple(links), carriers_of(hellos)
    dead = sorted(dead_links(links, carriers), key=link_text)
    if not dead:
        return ()
    dark = dark_circuits(circuits, carriers)
    found, trouble = await sides(devices, lab, dark)
    lines = []
    for link in dead:
        ends = sorted(port for port in receivers([link]) if carriers.get(port) is False)
        why = [found[c] for c in dark if c.receiver in ends and c in found]
        if lab.electrical(link):
            continue
        at = (
            f"no light at {', '.join(map(str, ends))}"
            if ends
            else "its sender sees no light and sends none"
        )
        lines.append(
            "; ".join(
                filter(None, [f"{link_text(link)} is dark: {at}", *dict.fromkeys(why), trouble])
            )
        )
    cables = dict.fromkeys(
        port
        for link in dead
        if lab.electrical(link)
        for port in (link.a, link.b)
        if carriers.get(port) is False
    )
    return (*lines, *packet_switches(cables, lab))


def packet_switches(dark: Iterable[HostPort], lab: Lab) -> list[str]:
    """A line for each packet switch of two hosts or more whose ports are all without carrier, then
    for each other port.
    """
    lines, left = [], dict.fromkeys(dark)
    for segment in lab.segments.values():
        for switch, ports in segment.switches.items():
            if len(ports) > 1 and left.keys() >= {*ports}:
                few = ", ".join(map(str, ports[:4])) + (", ..." if len(ports) > 4 else "")
                named = f"of {switch}" if segment.racks else switch
                lines.append(f"the packet switch {named} is down, or all its cables: {few}")
                left = {port: None for port in left if port not in ports}
    lines += [
        f"{port} is down: its cable to the packet switch {lab.segment_at[port].name}, or a port at its ends"
        for port in left
    ]
    return lines
