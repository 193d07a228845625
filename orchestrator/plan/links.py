"""Reads the links of a plan file: hosts and ports exist, each port is used once, light arrives
within the loss limit.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from optics import HostName, HostPort, Infeasible, LinkKind
from optics.plain import did_you_mean, summary
from optics.plan import LinkEnd, WantedLink, host_of
from optics.ranks import host_of_rank
from orchestrator.fabric.circuits import circuit
from orchestrator.inventory.lab import Lab
from orchestrator.inventory.positions import Path, Problems, spell
from orchestrator.inventory.schema import attempt
from orchestrator.plan.edges import LinkEdge, PlanSegmentEdge


class Links:
    """Reads links and segments. edges: how many lead from host to host. complete: none had to be
    left out, so that a pair that is not in `edges` has no link in the file either."""

    def __init__(self, lab: Lab, problems: Problems) -> None:
        self.lab, self.problems = lab, problems
        self.complete = True
        self.edges: Counter[tuple[HostName, HostName]] = Counter()

    def known_host(self, name: str, path: Path) -> bool:
        if name in self.lab.hosts:
            return True
        hosts = self.lab.hosts
        if (host := host_of_rank(name)) != name and host in hosts:
            self.problems.add(
                path,
                f"wanted a host, got one of its ranks: write {host}, which stands for all of them",
            )
            return False
        self.problems.add(
            path,
            f"host {name} is not in the lab ({summary(hosts, 'host')}){did_you_mean(name, hosts)}",
        )
        return False

    def links(
        self, raw: Any, max_loss_db: float, at: Path = ("links",), always: Sequence[WantedLink] = ()
    ) -> tuple[WantedLink, ...]:
        """The links of the list `raw`, which is at `at` in the file. always: links that are lit
        beside them.
        """
        wanted: list[WantedLink] = []
        sides = {
            (end, role): link.place
            for link in always
            for end, role in _sides(link)
            if isinstance(end, HostPort)
        }
        for index, item in enumerate(raw if isinstance(raw, list) else ()):
            path: Path = (*at, index)
            place = spell(path)
            edge = attempt(LinkEdge, item)
            ends = (
                (self.end(edge.a, (*path, "a")), self.end(edge.b, (*path, "b")))
                if edge
                else (None, None)
            )
            a, b = ends
            if edge is None or a is None or b is None:
                self.complete = False
                continue
            duplex = edge.kind == "duplex"
            if host_of(a) == host_of(b):
                self.problems.add(path, f"both ends are at {host_of(a)}; a link joins two hosts")
                continue
            if edge.count > 1 and isinstance(a, HostPort) | isinstance(b, HostPort):
                self.problems.add(
                    (*path, "count"),
                    f"{edge.count} parallel links need ends without a port, but a port is named",
                )
            link = WantedLink(a, b, LinkKind(edge.kind), place)
            used: set[LinkEnd] = set()
            for end, role in _sides(link):
                if isinstance(end, HostPort) and end not in used:
                    if (end, role) in sides:
                        used.add(end)
                        key = "a" if end is a else "b"
                        self.problems.add(
                            (*path, key), f"port {end} is already used by {sides[end, role]}"
                        )
                    else:
                        sides[end, role] = place
            if isinstance(a, HostPort) and isinstance(b, HostPort):
                self.light(a, b, path, duplex, max_loss_db)
            wanted += [link] * edge.count
            pair = (host_of(a), host_of(b))
            self.edges[pair] += edge.count
            if duplex:
                self.edges[pair[::-1]] += edge.count
        self.degrees(wanted, at, always)
        return tuple(wanted)

    def segments(self, raw: Any) -> tuple[WantedLink, ...]:
        """A link for every pair of ports of the segments that the plan names."""
        wanted: list[WantedLink] = []
        seen: dict[str, int] = {}
        known = self.lab.segments
        for index, item in enumerate(raw if isinstance(raw, list) else ()):
            path: Path = ("segments", index)
            edge = attempt(PlanSegmentEdge, item)
            if edge is None:
                self.complete = False
                continue
            if edge.name not in known:
                listed = (
                    summary(known, "segment") if known else "it has none; fibres.yml lists them"
                )
                hint = did_you_mean(edge.name, known)
                self.problems.add(
                    (*path, "name"), f"segment {edge.name} is not in the lab ({listed}){hint}"
                )
                self.complete = False
                continue
            if edge.name in seen:
                self.problems.add(
                    (*path, "name"),
                    f"segment {edge.name} is already named by segments[{seen[edge.name]}]",
                )
                continue
            seen[edge.name] = index
            segment = known[edge.name]
            self.members(
                edge.hosts or [], {**segment.ports, **segment.partitions}, segment.name, path
            )
            for link in segment.links(edge.hosts if edge.hosts is not None else segment.ports):
                wanted.append(WantedLink(link.a, link.b, link.kind, f"segments[{index}]"))
                self.edges[link.a.host, link.b.host] += 1
                self.edges[link.b.host, link.a.host] += 1
        return tuple(wanted)

    def members(
        self, hosts: list[str], ports: Mapping[HostName, HostPort], segment: str, path: Path
    ) -> None:
        """The hosts of a segment that a plan names have a port there, and are named once."""
        for at, host in enumerate(hosts):
            place: Path = (*path, "hosts", at)
            if not self.known_host(host, place):
                self.complete = False
            elif host not in ports:
                self.problems.add(
                    place,
                    f"{host} has no port at segment {segment} ({summary(ports, 'host')} have)",
                )
                self.complete = False
            elif host in hosts[:at]:
                self.problems.add(place, f"host {host} is named twice")

    def end(self, text: str, path: Path) -> LinkEnd | None:
        name, _, port_text = text.partition(":p")
        if not self.known_host(name, path):
            return None
        if not port_text:
            return name
        number, ports = int(port_text), self.lab.hosts[name].ports
        port = HostPort(name, number)
        if number not in ports:
            listed = ", ".join(f"p{n}" for n in ports)
            self.problems.add(
                path,
                f"{name} has no port p{port_text} (it has {listed}){did_you_mean(f'p{number}', [f'p{n}' for n in ports])}",
            )
            return None
        if port not in self.lab.fibres:
            at = self.lab.segment_at.get(port)
            electrical = (
                f'; it is a port of the packet switch {at.name}: "segments": [{{"name": "{at.name}"}}]'
                if at
                else ""
            )
            self.problems.add(path, f"no fibre is attached to {port}{electrical}")
            return None
        return port

    def light(self, a: HostPort, b: HostPort, path: Path, duplex: bool, max_loss_db: float) -> None:
        """Light can pass from port to port, and the loss is within the plan's limit."""
        try:
            circuits = [circuit(a, b, self.lab)] + ([circuit(b, a, self.lab)] if duplex else [])
        except Infeasible as error:
            add = f" ({error.hint})" if error.hint else ""
            self.problems.add(path, str(error).partition(": ")[2] + add)
            return
        worst = max(circuits, key=lambda found: found.loss_db)
        if worst.loss_db > max_loss_db:
            at_a, at_b = self.lab.fibres[a], self.lab.fibres[b]
            passes = [f"{x.ingress.device} {self.lab.pass_loss_db(x):.1f}" for x in worst.path]
            trunks = [self.lab.onward[x.egress] for x in worst.path if x.egress in self.lab.onward]
            parts = [
                f"fibres {at_a.loss_db:.1f} + {at_b.loss_db:.1f}",
                *passes,
                *(f"{t.name} {t.loss_db:.1f}" for t in trunks),
            ]
            self.problems.add(
                path,
                f"{worst} loses {worst.loss_db:.1f} dB, more than acceptance.max_loss_db = {max_loss_db:g} ({', '.join(parts)})",
            )

    def degrees(self, wanted: Sequence[WantedLink], at: Path, always: Sequence[WantedLink]) -> None:
        """No host has more links than ports with fibres; transmitters and receivers are counted
        separately.
        """
        sends: Counter[HostName] = Counter()
        receives: Counter[HostName] = Counter()
        blame: dict[HostName, str] = {}
        fibred = Counter(port.host for port in self.lab.fibres)
        for link in [*(link for link in always if not self.lab.electrical(link)), *wanted]:
            a, b = link.hosts
            for sender, receiver in [(a, b), (b, a)] if link.kind is LinkKind.DUPLEX else [(a, b)]:
                sends[sender] += 1
                receives[receiver] += 1
            for host in (a, b):
                if max(sends[host], receives[host]) > fibred[host] and link not in always:
                    blame.setdefault(host, link.place)
        for host, place in blame.items():
            index = int(re.findall(r"\d+", place)[-1])
            has = f"{fibred[host]} port{'s' if fibred[host] != 1 else ''} with a fibre"
            self.problems.add(
                (*at, index), f"{host} is in {max(sends[host], receives[host])} links but has {has}"
            )


def _sides(link: WantedLink) -> list[tuple[LinkEnd, str]]:
    """What a link uses of the ports at its ends: what sends there, what receives."""
    existing = [(link.a, "sends"), (link.b, "receives")]
    return (
        [*existing, (link.a, "receives"), (link.b, "sends")]
        if link.kind is LinkKind.DUPLEX
        else existing
    )
