"""What a lab can do for a job, derived from its inventory and its drivers' numbers. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from optics import HostName, HostPort
from optics.plain import counted, seconds_text
from orchestrator.inventory.lab import Lab, kind_of
from orchestrator.plan.design.flows import rate_mbps
from orchestrator.plan.schedule import SETTLINGS
from orchestrator.results import JsonReport


@dataclass(frozen=True, slots=True)
class Line:
    """What the traffic of a port passes on its way out: its rate (Mb/s, 0: the port's), a time one
    way (s), and the share that is lost.
    """

    mbps: float = 0.0
    delay_s: float = 0.0
    loss: float = 0.0


Lines = Mapping[HostPort, Line]


def slowest(lines: Lines, ports: Collection[HostPort]) -> Line:
    """The worst of the lines at these ports in each respect."""
    found = [lines[port] for port in ports if port in lines]
    return Line(
        min((line.mbps for line in found if line.mbps), default=0.0),
        max((line.delay_s for line in found), default=0.0),
        max((line.loss for line in found), default=0.0),
    )


@dataclass(frozen=True, slots=True)
class Family:
    """Optical devices of one driver. dwell_s: least time of light of a slot, of the device itself
    where it stores slots. wavelengths: that its hosts send, where it selects them.
    """

    driver: str
    kind: str
    devices: int
    settle_s: float
    dwell_s: float
    wavelengths: int = 0

    def __str__(self) -> str:
        text = f"{counted(self.devices, 'device')} of {self.driver} ({self.kind}), {seconds_text(self.settle_s)} to move"
        text += f", slots from {seconds_text(self.dwell_s)}"
        return text + (f", {counted(self.wavelengths, 'wavelength')}" if self.wavelengths else "")


@dataclass(frozen=True, slots=True)
class Switch:
    """The packet switches of a segment, and what they can do with packets: by function, how much."""

    name: str
    hosts: int
    mbps: float
    racks: int
    functions: Mapping[str, Mapping[str, int]]

    def __str__(self) -> str:
        text = f"packet switch {self.name}: {counted(self.hosts, 'host')} at {self.mbps:g} Mb/s"
        text += f" in {counted(self.racks, 'rack')}" if self.racks else ""
        each = [
            f"{name} ({', '.join(f'{key} {value}' for key, value in much.items())})"
            for name, much in self.functions.items()
        ]
        return f"{text}, {', '.join(each)}" if each else text


@dataclass(frozen=True, slots=True)
class Capabilities(JsonReport):
    """ports: with a fibre, of the host that has fewest. storage_mbps: of the slowest host's storage,
    0 where one does not say. lines: ports with one, and the worst of all. turns: ports that all
    hosts have in common, over which circuits can take turns.
    """

    hosts: int
    ports: int
    link_mbps: float
    storage_mbps: float
    turns: tuple[str, ...]
    families: tuple[Family, ...]
    switches: tuple[Switch, ...]
    lines: int
    worst_line: Line

    @property
    def texts(self) -> list[str]:
        """All of it, a line each."""
        found = [
            f"{counted(self.hosts, 'host')} of {counted(self.ports, 'optical port')} at {self.link_mbps:g} Mb/s"
        ]
        found += [*map(str, self.families), *map(str, self.switches)]
        if self.families:
            found.append(
                f"circuits in turn over {', '.join(self.turns)}"
                if self.turns
                else "no circuits in turn: three hosts with a port in common are needed"
            )
        if self.lines:
            worst = self.worst_line
            found.append(
                f"lines at {counted(self.lines, 'port')}: up to {seconds_text(worst.delay_s)} one way, {worst.loss:.2%} lost"
                + (f", {worst.mbps:g} Mb/s" if worst.mbps else "")
            )
        if self.storage_mbps:
            found.append(f"storage of {self.storage_mbps:g} Mb/s a host")
        return found


def capabilities(lab: Lab, hosts: Collection[HostName], lines: Lines) -> Capabilities:
    """Those of a lab for a job on these hosts."""
    numbers = [{p.number for p in lab.fibres if p.host == host} for host in hosts]
    common = set.intersection(*numbers) if len(hosts) > 2 else set()
    storage = [lab.hosts[host].storage_mbps for host in hosts]
    ours = {port: line for port, line in lines.items() if port.host in hosts}
    return Capabilities(
        len(hosts),
        min(map(len, numbers)),
        rate_mbps(lab, [*hosts]),
        min(storage),
        tuple(f"p{number}" for number in sorted(common)),
        _families(lab),
        tuple(
            Switch(
                one.name,
                sum(host in one.ports for host in hosts),
                one.link_mbps,
                len(one.racks),
                one.functions,
            )
            for one in lab.segments.values()
        ),
        len(ours),
        slowest(ours, [*ours]),
    )


def _families(lab: Lab) -> tuple[Family, ...]:
    found: dict[tuple[str, str], list[str]] = {}
    for name, device in lab.devices.items():
        found.setdefault((device.driver, kind_of(lab, name)), []).append(name)
    families = []
    for (driver, kind), names in found.items():
        traits = [lab.traits_of(name) for name in names]
        dwells = [
            SETTLINGS * one.settle_s if one.stored_dwell_s is None else one.stored_dwell_s
            for one in traits
        ]
        slots = {f.slot for f in lab.fibres.values() if f.device in names and f.slot is not None}
        settle_s = max(one.settle_s for one in traits)
        count = len(slots) if kind == "wss" else 0
        families.append(Family(driver, kind, len(names), settle_s, max(dwells), count))
    return tuple(families)
