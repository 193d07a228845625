"""Reads the job of a plan file: ranks reach each other, rings follow links, schedules deliver every
piece.
"""

from __future__ import annotations

from typing import Any

from optics import HostName
from optics.plan import Job, Traffic, ring_steps
from optics.ranks import RankName, host_of_rank, hosts_of, parsed
from orchestrator.inventory.positions import Path, Problems
from orchestrator.inventory.schema import attempt
from orchestrator.plan.edges import GroupEdge, JobEdge, TransferEdge
from orchestrator.plan.job_args import check_program
from orchestrator.plan.job_ranks import check_ranks
from orchestrator.plan.links import Links
from orchestrator.plan.programs import job_as_declared


class JobReader:
    """Reads a plan's job against its links. notes: what works, but not optimally.

    edge: the job as it is written, once `job` has read it.
    """

    def __init__(self, links: Links, notes: Problems) -> None:
        self.lab, self.links, self.problems, self.notes = links.lab, links, links.problems, notes
        self.edge: JobEdge | None = None
        self.hosts: list[HostName] = []

    def job(self, raw: Any) -> Job | None:
        edge = self.edge = attempt(JobEdge, raw) if raw is not None else None
        if edge is None:
            return None
        ranks = check_ranks(edge, self.links, self.problems)
        known = ranks is not None
        self.hosts = list(hosts_of(edge.ranks))
        check_program(edge, self.lab, self.problems)
        if known and self.links.complete:
            self.reachable(self.hosts, edge.ranks)
        own: list[tuple[Path, list[str], list[str]]]
        own = [
            (("job", "rings", index), order, self.hosts) for index, order in enumerate(edge.rings)
        ]
        rings = own + self.traffic(edge)
        whole = [
            self.ring(order, path, members, known, far=edge.traffic is not None)
            for path, order, members in rings
        ]
        if all(whole) and self.links.complete:
            self.disjoint([(path, order) for path, order, _ in rings])
            self.between_sites([(path, order) for path, order, _ in rings])
        self.sites(edge)
        job = Job(
            name=edge.name,
            workload=edge.workload,
            ranks=ranks or tuple(edge.ranks),
            rings=tuple(tuple(order) for order in edge.rings),
            args=dict(edge.args),
            env=dict(edge.env),
            backend=edge.backend,
            traffic=Traffic.of(edge.traffic.model_dump()) if edge.traffic else None,
            evicted=self.evicted(edge),
            joined=self.joined(edge),
        )
        return job_as_declared(job, edge.program or "", self.lab)

    def evicted(self, edge: JobEdge) -> dict[RankName, RankName]:
        """Each names a rank that the job no longer has, and one that it has and that took one place
        only.
        """
        for before, now in edge.evicted.items():
            path: Path = ("job", "evicted", before)
            if parsed(before) is None or "/" in host_of_rank(before):  # a partition is not evicted
                self.problems.add(
                    path,
                    f"wanted a host such as gpu01, or one of its ranks such as gpu01/0, got {before!r}",
                )
            elif before in edge.ranks:
                self.problems.add(path, f"{before} is a rank of the job, so nobody took its place")
            elif now and now not in edge.ranks:
                self.problems.add(path, f"{now} is not a rank of the job")
            elif now and list(edge.evicted.values()).count(now) > 1:
                self.problems.add(path, f"{now} took more than one place")
        return dict(edge.evicted)

    def joined(self, edge: JobEdge) -> tuple[RankName, ...]:
        for index, rank in enumerate(edge.joined):
            if rank not in edge.ranks or rank in edge.joined[:index]:
                text = "is named twice" if rank in edge.ranks else "is not a rank of the job"
                self.problems.add(("job", "joined", index), f"{rank} {text}")
        return tuple(edge.joined)

    def traffic(self, edge: JobEdge) -> list[tuple[Path, list[str], list[str]]]:
        """The rings of a replay's groups: path in the file, order, and members of the group. Checks
        hosts and lanes of transfers."""
        path: Path = ("job", "traffic")
        if (edge.traffic is None) == (edge.workload == "replay"):
            text = (
                "a replay needs traffic"
                if edge.traffic is None
                else f"only a replay has traffic; this job is {edge.workload}"
            )
            self.problems.add(path, text)
        if edge.traffic is None:
            return []
        if edge.rings:
            self.problems.add(
                ("job", "rings"), "the rings of a replay belong to its groups, in traffic"
            )
        found: list[tuple[Path, list[str], list[str]]] = []
        for at, group in enumerate(edge.traffic.groups):
            where = (*path, "groups", at)
            if group.id in (other.id for other in edge.traffic.groups[:at]):
                self.problems.add((*where, "id"), f"group id {group.id} is already used")
            members = [host for host in self.hosts if any(host in order for order in group.rings)]
            if group.schedule:
                self.schedule(group, where)
                continue
            found += [
                ((*where, "rings", index), order, members)
                for index, order in enumerate(group.rings)
            ]
        lanes = min(
            (self.lab.hosts[host].lanes for host in self.hosts if host in self.lab.hosts), default=1
        )
        if edge.args.get("credits") not in (None, 0, "0"):
            if not edge.traffic.transfers:
                self.problems.add(
                    ("job", "args", "credits"),
                    "this traffic has no transfers, which alone wait for credits; leave it out",
                )
            if any(transfer.via is not None for transfer in edge.traffic.transfers):
                self.problems.add(
                    ("job", "args", "credits"),
                    "a transfer that another rank passes on has no credits; leave out credits, or via",
                )
        for at, transfer in enumerate(edge.traffic.transfers):
            where = (*path, "transfers", at)
            ends = [("src", transfer.src), ("dst", transfer.dst)]
            ends += [] if transfer.via is None else [("via", transfer.via)]
            for key, host in ends:
                if self.links.known_host(host, (*where, key)) and host not in self.hosts:
                    self.problems.add((*where, key), f"{host} is not a host of the job")
            if transfer.src == transfer.dst:
                self.problems.add(where, f"src and dst are both {transfer.src}")
            self.relay(transfer, (*where, "via"))
            if transfer.lane >= lanes:
                self.problems.add(
                    (*where, "lane"), f"wanted a lane of 0..{lanes - 1}, got {transfer.lane}"
                )
        return found

    def relay(self, transfer: TransferEdge, path: Path) -> None:
        """The host that passes a transfer on is neither of its ends, and links join it with both."""
        ends, via = (transfer.src, transfer.dst), transfer.via
        if via in ends:
            self.problems.add(path, f"{via} is an end of the transfer; omit via, or name another")
        elif via is not None and self.links.complete and {via, *ends} <= {*self.hosts}:
            for a, b in ((ends[0], via), (via, ends[1])):
                if not self.links.edges[a, b]:
                    text = f"no link leads from {a} to {b}, so {via} cannot pass on from {ends[0]} to {ends[1]}"
                    self.problems.add(path, text)

    def schedule(self, group: GroupEdge, path: Path) -> None:
        """Every member receives every other's piece exactly once and complete, over links, from a
        member that already has it.
        """
        members = set(group.rings[0])
        if len(group.rings) > 1:
            self.problems.add(
                (*path, "rings"), "a group with a schedule has one ring, which lists its members"
            )
        got: dict[tuple[HostName, HostName], list[tuple[int, float, float]]] = {}
        for at, send in enumerate(group.schedule):
            where = (*path, "schedule", at)
            if strange := [
                host for host in (send.src, send.dst, send.shard) if host not in members
            ]:
                self.problems.add(where, f"{strange[0]} is not in the group's ring")
            elif self.links.complete and not self.links.edges[send.src, send.dst]:
                self.problems.add(where, f"no link leads from {send.src} to {send.dst}")
            elif send.dst != send.shard and send.begin < send.end:
                got.setdefault((send.dst, send.shard), []).append((send.step, send.begin, send.end))
            else:
                self.problems.add(
                    where,
                    f"empty send: {send.dst} gets {send.begin:g} to {send.end:g} of {send.shard}'s piece",
                )
        for (host, shard), parts in got.items():
            parts.sort(key=lambda part: part[1])
            ends = [0.0, *(end for _, _, end in parts)]
            if (
                any(
                    abs(begin - end) > 1e-6 for (_, begin, _), end in zip(parts, ends, strict=False)
                )
                or abs(ends[-1] - 1) > 1e-6
            ):
                self.problems.add(
                    (*path, "schedule"),
                    f"{host} does not get {shard}'s piece exactly once and complete",
                )
        if missing := [
            f"{host} {shard}'s"
            for host in members
            for shard in members - {host}
            if (host, shard) not in got
        ]:
            self.problems.add(
                (*path, "schedule"), f"pieces never received: {', '.join(sorted(missing)[:4])}"
            )
        for at, send in enumerate(group.schedule):
            if send.src != send.shard and not self._covered(
                got.get((send.src, send.shard), []), send.begin, send.end, send.step
            ):
                self.problems.add(
                    (*path, "schedule", at),
                    f"{send.src} has not received that part of {send.shard}'s piece before step {send.step}",
                )

    @staticmethod
    def _covered(
        parts: list[tuple[int, float, float]], begin: float, end: float, step: int
    ) -> bool:
        return (
            sum(max(0.0, min(end, e) - max(begin, b)) for s, b, e in parts if s < step)
            > end - begin - 1e-6
        )

    def ring(
        self, order: list[str], path: Path, hosts: list[str], known: bool, far: bool = False
    ) -> bool:
        """A ring visits every host once, however many ranks it has, and each of its steps is a
        link; the first missing link of each ring is named.

        far: a step may go over several links, which is noted.
        """
        good = True
        seen: dict[str, int] = {}
        for at, host in enumerate(order):
            if host not in self.lab.hosts:
                good &= self.links.known_host(host, (*path, at))
            elif host not in hosts:
                self.problems.add((*path, at), f"{host} is not a host of the job")
                good = False
            elif host in seen:
                self.problems.add(
                    (*path, at), f"the ring visits {host} twice, first at position {seen[host]}"
                )
                good = False
            seen.setdefault(host, at)
        missing = [host for host in hosts if host not in seen]
        if good and known and missing:
            few = ", ".join(missing[:4]) + (", ..." if len(missing) > 4 else "")
            self.problems.add(
                path, f"the ring visits {len(seen)} of {len(hosts)} hosts; missing: {few}"
            )
            good = False
        if not good or not self.links.complete:
            return False
        for at, (host, follower) in enumerate(ring_steps(order)):
            if not self.links.edges[host, follower]:
                one_direction = (
                    "; the link there runs the other way"
                    if self.links.edges[follower, host]
                    else ""
                )
                text = f"the ring steps from {host} to {follower}, but no link joins them{one_direction}"
                (self.notes if far else self.problems).add((*path, at), text)
                good = far
                if far:
                    break
        return good

    def disjoint(self, rings: list[tuple[Path, list[str]]]) -> None:
        """Note rings that share a link in one direction: they work, but slower."""
        used: dict[tuple[HostName, HostName], list[int]] = {}
        for index, (_, order) in enumerate(rings):
            for step in ring_steps(order):
                if self.links.edges[step]:
                    used.setdefault(step, []).append(index)
        for (host, follower), users in used.items():
            has = self.links.edges[host, follower]
            if len(users) > has:
                listed = ", ".join(str(user) for user in users)
                links = f"{has} link{'s' if has != 1 else ''}"
                self.notes.add(
                    rings[users[-1]][0],
                    f"rings {listed} all step from {host} to {follower} over {links}",
                )
                return

    def between_sites(self, rings: list[tuple[Path, list[str]]]) -> None:
        """Note rings that go between sites more often than it takes: each time costs a delay."""
        for path, order in rings:
            sites = [self.lab.hosts[host].site for host in order]
            steps, least = sum(a != b for a, b in ring_steps(sites)), len(set(sites))
            if all(sites) and steps > least:
                self.notes.add(path, f"the ring goes between sites {steps} times; {least} would do")

    def sites(self, edge: JobEdge) -> None:
        """A training that averages between sites knows the site of every host."""
        if edge.workload != "train" or not edge.args.get("site_every"):
            return
        found = {host: self.lab.hosts[host].site for host in self.hosts if host in self.lab.hosts}
        path: Path = ("job", "args", "site_every")
        if missing := [host for host, site in found.items() if not site]:
            few = ", ".join(missing[:4]) + (", ..." if len(missing) > 4 else "")
            self.problems.add(path, f"no site is known of {few} (testbed_site in hosts.yml)")
        elif len(set(found.values())) == 1:
            site = next(iter(found.values()))
            self.problems.add(path, f"all hosts are of site {site}; leave it out")

    def reachable(self, hosts: list[str], ranks: list[RankName]) -> None:
        onward: dict[HostName, list[HostName]] = {}
        for a, b in self.links.edges:
            onward.setdefault(a, []).append(b)
        for host in hosts:
            seen, open_ = {host}, [host]
            while open_:
                fresh = [b for b in onward.get(open_.pop(), ()) if b not in seen]
                seen.update(fresh)
                open_ += fresh
            lost = [other for other in hosts if other not in seen]
            if lost:
                few = ", ".join(lost[:4]) + (", ..." if len(lost) > 4 else "")
                index = next(i for i, rank in enumerate(ranks) if host_of_rank(rank) == host)
                self.problems.add(
                    ("job", "ranks", index),
                    f"{host} cannot reach {few} over the links of this plan",
                )
                return
