"""Reads a plan file (`testbed.plan/1`) against a lab: every mistake at once, each with its line and column."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

from optics import BadFile, HostName, HostPort, Infeasible, LinkKind
from optics.plain import did_you_mean, summary
from optics.plan import Acceptance, FixedRoute, Job, LinkEnd, Plan, Traffic, TransitionPolicy, WantedLink, host_of, ring_steps
from orchestrator.fabric.circuits import circuit
from orchestrator.inventory.lab import Lab
from orchestrator.inventory.positions import Path, Problems, read_json
from orchestrator.inventory.schema import attempt, check, show
from orchestrator.plan.edges import GroupEdge, JobEdge, LinkEdge, PlanEdge, RouteEdge, SegmentEdge, json_schema
from orchestrator.plan.interchangeable import alike, difference
from orchestrator.plan.job_args import check_program
from orchestrator.plan.other_lab import refuse_another_labs

__all__ = ["json_schema", "read_plan"]


def read_plan(text: str, filename: str, lab: Lab) -> Plan:
    """The plan `text` describes, checked against `lab`.

    Links between bare hosts keep their bare ends; `circuits.assign_ports` chooses the ports.
    Raises: BadFile - everything wrong with it, in the order of the file.
    """
    document = read_json(text, filename)
    refuse_another_labs(document, lab)
    problems, notes = Problems(document), Problems(document)
    edge = check(PlanEdge, document.value, problems)
    raw: Mapping[str, Any] = document.value if isinstance(document.value, Mapping) else {}
    checker = _Checker(lab, problems, notes)
    links = checker.links(raw.get("links"), edge.acceptance.max_loss_db if edge else Acceptance().max_loss_db)
    links += checker.segments(raw.get("segments"))
    if edge is not None and not edge.links and not edge.segments:
        problems.add(("links",) if "links" in raw else (), "nothing joins hosts: a plan has links, or segments, or both")
    job = checker.job(raw.get("job"))
    if job is not None and edge is not None and edge.predicted is not None:
        job = replace(job, predicted=edge.predicted.model_dump(exclude_none=True))
    routes = checker.routes(raw.get("routes"))
    groups = checker.interchangeable(edge.interchangeable if edge else [], links)
    if problems or edge is None:
        raise BadFile(problems.lines(), hint="correct the plan; nothing was changed")
    return Plan(
        name=edge.name,
        links=links,
        job=job,
        routes=routes,
        acceptance=Acceptance(**edge.acceptance.model_dump()),
        transition=TransitionPolicy(**edge.transition.model_dump()),
        description=edge.description,
        sha256=hashlib.sha256(text.encode()).hexdigest(),
        warnings=tuple(notes.lines()),
        interchangeable=groups,
        segments=tuple(segment.name for segment in edge.segments),
    )


class _Checker:
    """What the schema cannot say: names that exist, ports used once, rings and routes that follow links."""

    def __init__(self, lab: Lab, problems: Problems, notes: Problems) -> None:
        self.lab, self.problems, self.notes = lab, problems, notes
        self.complete = True  # every link could be read, so a missing one is truly missing
        self.edges: Counter[tuple[HostName, HostName]] = Counter()

    def known_host(self, name: str, path: Path) -> bool:
        if name in self.lab.hosts:
            return True
        hosts = self.lab.hosts
        self.problems.add(path, f"host {name} is not in the lab ({summary(hosts, 'host')}){did_you_mean(name, hosts)}")
        return False

    def interchangeable(self, groups: str | list[list[str]], links: tuple[WantedLink, ...]) -> tuple[tuple[HostName, ...], ...]:
        """Groups of hosts that may take each other's place: like ones, none in two groups."""
        if isinstance(groups, str):
            return alike((host for link in links for host in link.hosts), self.lab)
        seen: dict[str, int] = {}
        for index, group in enumerate(groups):
            first = next((host for host in group if host in self.lab.hosts), "")
            for at, host in enumerate(group):
                path: Path = ("interchangeable", index, at)
                if not self.known_host(host, path):
                    continue
                if host in seen:
                    where = "twice in this group" if seen[host] == index else f"in interchangeable[{seen[host]}] already"
                    self.problems.add(path, f"host {host} is {where}")
                seen.setdefault(host, index)
                if words := difference(first, host, self.lab):
                    self.problems.add(path, f"{host} cannot take the place of {first}: {first} has {words}")
        return tuple(tuple(group) for group in groups if len(group) > 1)

    # links

    def links(self, raw: Any, max_loss_db: float) -> tuple[WantedLink, ...]:
        wanted: list[WantedLink] = []
        sides: dict[tuple[HostPort, str], int] = {}
        for index, item in enumerate(raw if isinstance(raw, list) else ()):
            path: Path = ("links", index)
            edge = attempt(LinkEdge, item)
            ends = (self.end(edge.a, (*path, "a")), self.end(edge.b, (*path, "b"))) if edge else (None, None)
            a, b = ends
            if edge is None or a is None or b is None:
                self.complete = False
                continue
            duplex = edge.kind == "duplex"
            if host_of(a) == host_of(b):
                self.problems.add(path, f"both ends are at {host_of(a)}; a link joins two hosts")
                continue
            if edge.count > 1 and isinstance(a, HostPort) | isinstance(b, HostPort):
                self.problems.add((*path, "count"), f"{edge.count} parallel links need bare hosts, but a port is named")
            for end, key, roles in ((a, "a", ("sends", "receives")), (b, "b", ("receives", "sends"))):
                for role in roles if duplex else roles[:1]:
                    if isinstance(end, HostPort):
                        if (end, role) in sides:
                            self.problems.add((*path, key), f"port {end} is used already, by links[{sides[end, role]}]")
                            break
                        sides[end, role] = index
            if isinstance(a, HostPort) and isinstance(b, HostPort):
                self.light(a, b, path, duplex, max_loss_db)
            for _ in range(edge.count):
                wanted.append(WantedLink(a, b, LinkKind(edge.kind), f"links[{index}]"))
            pair = (host_of(a), host_of(b))
            self.edges[pair] += edge.count
            if duplex:
                self.edges[pair[::-1]] += edge.count
        self.degrees(wanted)
        return tuple(wanted)

    def segments(self, raw: Any) -> tuple[WantedLink, ...]:
        """A link for every pair of ports of the segments that the plan names."""
        wanted: list[WantedLink] = []
        seen: dict[str, int] = {}
        known = self.lab.segments
        for index, item in enumerate(raw if isinstance(raw, list) else ()):
            path: Path = ("segments", index)
            edge = attempt(SegmentEdge, item)
            if edge is None:
                self.complete = False
                continue
            if edge.name not in known:
                listed = summary(known, "segment") if known else "it has none; fibres.yml lists them"
                hint = did_you_mean(edge.name, known)
                self.problems.add((*path, "name"), f"segment {edge.name} is not in the lab ({listed}){hint}")
                self.complete = False
                continue
            if edge.name in seen:
                self.problems.add((*path, "name"), f"segment {edge.name} is named already, by segments[{seen[edge.name]}]")
                continue
            seen[edge.name] = index
            segment = known[edge.name]
            self.members(edge.hosts or [], segment.ports, segment.name, path)
            for link in segment.links(edge.hosts if edge.hosts is not None else segment.ports):
                wanted.append(WantedLink(link.a, link.b, link.kind, f"segments[{index}]"))
                self.edges[link.a.host, link.b.host] += 1
                self.edges[link.b.host, link.a.host] += 1
        return tuple(wanted)

    def members(self, hosts: list[str], ports: Mapping[HostName, HostPort], segment: str, path: Path) -> None:
        """The hosts of a segment that a plan names have a port there, and are named once."""
        for at, host in enumerate(hosts):
            place: Path = (*path, "hosts", at)
            if not self.known_host(host, place):
                self.complete = False
            elif host not in ports:
                self.problems.add(place, f"{host} has no port at segment {segment} ({summary(ports, 'host')} have)")
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
                path, f"{name} has no port p{port_text} (it has {listed}){did_you_mean(f'p{number}', [f'p{n}' for n in ports])}"
            )
            return None
        if port not in self.lab.fibres:
            at = self.lab.segment_at.get(port)
            electrical = f'; it is a port of the packet switch {at.name}: "segments": [{{"name": "{at.name}"}}]' if at else ""
            self.problems.add(path, f"no fibre is attached to {port}{electrical}")
            return None
        return port

    def light(self, a: HostPort, b: HostPort, path: Path, duplex: bool, max_loss_db: float) -> None:
        """Light can go from port to port, and the loss is within the plan's limit."""
        try:
            ways = [circuit(a, b, self.lab)] + ([circuit(b, a, self.lab)] if duplex else [])
        except Infeasible as error:
            add = f" ({error.hint})" if error.hint else ""
            self.problems.add(path, str(error).partition(": ")[2] + add)
            return
        worst = max(ways, key=lambda way: way.loss_db)
        if worst.loss_db > max_loss_db:
            at_a, at_b = self.lab.fibres[a], self.lab.fibres[b]
            passes = [f"{x.ingress.device} {self.lab.insertion_loss_db(x.ingress.device):.1f}" for x in worst.path]
            trunks = [self.lab.onward[x.egress] for x in worst.path if x.egress in self.lab.onward]
            parts = [f"fibres {at_a.loss_db:.1f} + {at_b.loss_db:.1f}", *passes, *(f"{t.name} {t.loss_db:.1f}" for t in trunks)]
            self.problems.add(
                path,
                f"{worst} loses {worst.loss_db:.1f} dB, more than acceptance.max_loss_db = {max_loss_db:g} ({', '.join(parts)})",
            )

    def degrees(self, wanted: list[WantedLink]) -> None:
        """No host has more links than ports with fibres; transmitters and receivers are counted apart."""
        sends: Counter[HostName] = Counter()
        receives: Counter[HostName] = Counter()
        blame: dict[HostName, str] = {}
        fibred = Counter(port.host for port in self.lab.fibres)
        for link in wanted:
            a, b = link.hosts
            for sender, receiver in [(a, b), (b, a)] if link.kind is LinkKind.DUPLEX else [(a, b)]:
                sends[sender] += 1
                receives[receiver] += 1
            for host in (a, b):
                if max(sends[host], receives[host]) > fibred[host]:
                    blame.setdefault(host, link.place)
        for host, place in blame.items():
            index = int(re.sub(r"\D", "", place))
            has = f"{fibred[host]} port{'s' if fibred[host] != 1 else ''} with a fibre"
            self.problems.add(("links", index), f"{host} is in {max(sends[host], receives[host])} links but has {has}")

    # job

    def job(self, raw: Any) -> Job | None:
        edge = attempt(JobEdge, raw) if raw is not None else None
        if edge is None:
            return None
        known = True
        ranks: dict[str, int] = {}
        for index, host in enumerate(edge.ranks):
            path: Path = ("job", "ranks", index)
            known &= self.known_host(host, path)
            if host in ranks:
                self.problems.add(path, f"host {host} is rank {ranks[host]} already; one rank per host")
                known = False
            ranks.setdefault(host, index)
        check_program(edge, self.lab, self.problems)
        if known and self.complete:
            self.reachable(edge.ranks)
        own: list[tuple[Path, list[str], list[str]]]
        own = [(("job", "rings", index), order, edge.ranks) for index, order in enumerate(edge.rings)]
        rings = own + self.traffic(edge)
        whole = [self.ring(order, path, members, known, far=edge.traffic is not None) for path, order, members in rings]
        if all(whole) and self.complete:
            self.disjoint([(path, order) for path, order, _ in rings])
        return Job(
            name=edge.name,
            workload=edge.workload,
            ranks=tuple(edge.ranks),
            rings=tuple(tuple(order) for order in edge.rings),
            args=dict(edge.args),
            env=dict(edge.env),
            backend=edge.backend,
            traffic=Traffic.of(edge.traffic.model_dump()) if edge.traffic else None,
        )

    def traffic(self, edge: JobEdge) -> list[tuple[Path, list[str], list[str]]]:
        """Where each ring of a replay's groups stands, its order and its group's members; hosts and lanes are looked at here."""
        path: Path = ("job", "traffic")
        if (edge.traffic is None) == (edge.workload == "replay"):
            words = "a replay needs it" if edge.traffic is None else f"{edge.workload} has none; only a replay does"
            self.problems.add(path, words)
        if edge.traffic is None:
            return []
        if edge.rings:
            self.problems.add(("job", "rings"), "the rings of a replay stand with its groups, in traffic")
        found: list[tuple[Path, list[str], list[str]]] = []
        for at, group in enumerate(edge.traffic.groups):
            where = (*path, "groups", at)
            if group.id in (other.id for other in edge.traffic.groups[:at]):
                self.problems.add((*where, "id"), f"another group is named {group.id}")
            members = [host for host in edge.ranks if any(host in order for order in group.rings)]
            if group.schedule:
                self.schedule(group, where)
                continue
            found += [((*where, "rings", index), order, members) for index, order in enumerate(group.rings)]
        lanes = min((self.lab.hosts[host].lanes for host in edge.ranks if host in self.lab.hosts), default=1)
        for at, transfer in enumerate(edge.traffic.transfers):
            where = (*path, "transfers", at)
            for key, host in (("src", transfer.src), ("dst", transfer.dst)):
                if self.known_host(host, (*where, key)) and host not in edge.ranks:
                    self.problems.add((*where, key), f"{host} is not a rank of the job")
            if transfer.src == transfer.dst:
                self.problems.add(where, f"both ends are {transfer.src}")
            if transfer.lane >= lanes:
                self.problems.add((*where, "lane"), f"wanted a lane of 0..{lanes - 1}, got {transfer.lane}")
        return found

    def schedule(self, group: GroupEdge, path: Path) -> None:
        """Every member gets every other's piece once and whole, over links, from one that has it already."""
        members = set(group.rings[0])
        if len(group.rings) > 1:
            self.problems.add((*path, "rings"), "one ring names the members of a group that goes by a schedule")
        got: dict[tuple[HostName, HostName], list[tuple[int, float, float]]] = {}
        for at, send in enumerate(group.schedule):
            where = (*path, "schedule", at)
            if strange := [host for host in (send.src, send.dst, send.shard) if host not in members]:
                self.problems.add(where, f"{strange[0]} is not in the group's ring")
            elif self.complete and not self.edges[send.src, send.dst]:
                self.problems.add(where, f"no link leads from {send.src} to {send.dst}")
            elif send.dst != send.shard and send.begin < send.end:
                got.setdefault((send.dst, send.shard), []).append((send.step, send.begin, send.end))
            else:
                self.problems.add(where, f"nothing is sent: {send.dst} gets {send.begin:g} to {send.end:g} of {send.shard}'s piece")
        for (host, shard), parts in got.items():
            parts.sort(key=lambda part: part[1])
            ends = [0.0, *(end for _, _, end in parts)]
            if any(abs(begin - end) > 1e-6 for (_, begin, _), end in zip(parts, ends, strict=False)) or abs(ends[-1] - 1) > 1e-6:
                self.problems.add((*path, "schedule"), f"{host} does not get {shard}'s piece once and whole")
        if missing := [f"{host} {shard}'s" for host in members for shard in members - {host} if (host, shard) not in got]:
            self.problems.add((*path, "schedule"), f"some pieces do not arrive: {', '.join(sorted(missing)[:4])}")
        for at, send in enumerate(group.schedule):
            if send.src != send.shard and not self._covered(got.get((send.src, send.shard), []), send.begin, send.end, send.step):
                self.problems.add(
                    (*path, "schedule", at), f"{send.src} does not have that of {send.shard}'s piece before step {send.step}"
                )

    def _covered(self, parts: list[tuple[int, float, float]], begin: float, end: float, step: int) -> bool:
        return sum(max(0.0, min(end, e) - max(begin, b)) for s, b, e in parts if s < step) > end - begin - 1e-6

    def ring(self, order: list[str], path: Path, ranks: list[str], known: bool, far: bool = False) -> bool:
        """A ring visits every rank once and each of its steps is a link; the first missing link of each ring is named.

        far: a step may go over several links, which is noted.
        """
        good = True
        seen: dict[str, int] = {}
        for at, host in enumerate(order):
            if host not in self.lab.hosts:
                good &= self.known_host(host, (*path, at))
            elif host not in ranks:
                self.problems.add((*path, at), f"{host} is not a rank of the job")
                good = False
            elif host in seen:
                self.problems.add((*path, at), f"the ring visits {host} twice, first at position {seen[host]}")
                good = False
            seen.setdefault(host, at)
        missing = [host for host in ranks if host not in seen]
        if good and known and missing:
            few = ", ".join(missing[:4]) + (", ..." if len(missing) > 4 else "")
            self.problems.add(path, f"the ring visits {len(seen)} of {len(ranks)} ranks; missing: {few}")
            good = False
        if not good or not self.complete:
            return False
        for at, (host, follower) in enumerate(ring_steps(order)):
            if not self.edges[host, follower]:
                one_way = "; the link there goes the other way" if self.edges[follower, host] else ""
                words = f"the ring steps from {host} to {follower}, but no link joins them{one_way}"
                (self.notes if far else self.problems).add((*path, at), words)
                good = far
                if far:
                    break
        return good

    def disjoint(self, rings: list[tuple[Path, list[str]]]) -> None:
        """Note rings that share a link in one direction: they still work, each slower."""
        used: dict[tuple[HostName, HostName], list[int]] = {}
        for index, (_, order) in enumerate(rings):
            for step in ring_steps(order):
                if self.edges[step]:
                    used.setdefault(step, []).append(index)
        for (host, follower), users in used.items():
            has = self.edges[host, follower]
            if len(users) > has:
                listed = ", ".join(str(user) for user in users)
                links = f"{has} link{'s' if has != 1 else ''}"
                self.notes.add(rings[users[-1]][0], f"rings {listed} all step from {host} to {follower} over {links}")
                return

    def reachable(self, ranks: list[str]) -> None:
        onward: dict[HostName, list[HostName]] = {}
        for a, b in self.edges:
            onward.setdefault(a, []).append(b)
        for index, host in enumerate(ranks):
            seen, open_ = {host}, [host]
            while open_:
                fresh = [b for b in onward.get(open_.pop(), ()) if b not in seen]
                seen.update(fresh)
                open_ += fresh
            lost = [other for other in ranks if other not in seen]
            if lost:
                few = ", ".join(lost[:4]) + (", ..." if len(lost) > 4 else "")
                self.problems.add(("job", "ranks", index), f"{host} cannot reach {few} over the links of this plan")
                return

    # routes

    def routes(self, raw: Any) -> tuple[FixedRoute, ...]:
        fixed: list[FixedRoute] = []
        chosen: dict[tuple[HostName, HostName, int], tuple[HostName, int]] = {}
        for index, item in enumerate(raw if isinstance(raw, list) else ()):
            path: Path = ("routes", index)
            edge = attempt(RouteEdge, item)
            if edge is None:
                continue
            places: list[Path] = [(*path, "src"), *((*path, "via", at) for at in range(len(edge.via))), (*path, "dst")]
            hops = [edge.src, *edge.via, edge.dst]
            known = [self.known_host(host, place) for host, place in zip(hops, places, strict=True)]  # every one, for its complaint
            if not all(known):
                continue
            twice = next((at for at, host in enumerate(hops) if host in hops[:at]), None)
            if twice is not None:
                self.problems.add(places[twice], f"the route visits {hops[twice]} twice")
                continue
            if self.complete and not self.follows(hops, places):
                continue
            host = self.lab.hosts[edge.src]
            lanes = host.lanes
            if edge.lane is not None and host.forwarding == "npar-rdma":
                self.problems.add((*path, "lane"), "npar-rdma relays cannot tell lanes apart; leave the lane out")
                continue
            if edge.lane is not None and edge.lane >= lanes:
                self.problems.add((*path, "lane"), f"wanted a lane of 0..{lanes - 1}, got {show(edge.lane)}")
                continue
            for lane in range(lanes) if edge.lane is None else (edge.lane,):
                clash = self.clash(hops, lane, index, chosen)
                if clash:
                    self.problems.add(path, clash)
                    break
            fixed.append(FixedRoute(edge.src, edge.dst, tuple(edge.via), edge.lane))
        return tuple(fixed)

    def clash(
        self, hops: list[str], lane: int, index: int, chosen: dict[tuple[HostName, HostName, int], tuple[HostName, int]]
    ) -> str:
        """Hosts route by destination, so two routes to one target must leave each host they share alike."""
        target = hops[-1]
        for host, follower in pairwise(hops):
            other, by = chosen.setdefault((host, target, lane), (follower, index))
            if other != follower:
                return f"{host} cannot send traffic for {target} to {follower}: routes[{by}] sends it to {other}"
        return ""

    def follows(self, hops: list[str], places: list[Path]) -> bool:
        for at, (host, follower) in enumerate(pairwise(hops)):
            if not self.edges[host, follower]:
                self.problems.add(places[at + 1], f"the route steps from {host} to {follower}, but no link joins them")
                return False
        return True
