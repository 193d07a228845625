"""The regions of a plan's job, whose circuits follow its traffic, and how they do. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from optics import HostName, HostPort
from optics.plain import did_you_mean, summary
from optics.plan import Job, WantedLink
from optics.ranks import host_of_rank
from orchestrator.inventory.edges import Name
from orchestrator.inventory.lab import Lab
from orchestrator.inventory.positions import Path
from orchestrator.inventory.schema import PORT, Edge
from orchestrator.inventory.segments import Segment
from orchestrator.plan.attached import Planned, Site
from orchestrator.results import to_json


@dataclass(frozen=True, slots=True)
class Region:
    """Ports of a job's hosts whose circuits follow the traffic between these hosts; no port is in
    two regions.

    fallback: a packet switch (one of the plan's segments) that joins all of `hosts`, and carries
    their traffic while circuits move.
    """

    name: str
    hosts: tuple[HostName, ...]
    ports: tuple[HostPort, ...]
    fallback: str


@dataclass(frozen=True, slots=True)
class Adapt:
    """How the circuits of the job's regions follow its traffic: looked at after every `every`
    iterations.

    predict: the next traffic is the last seen, an exponentially weighted mean, or what was seen a
    period before, as far as one shows. gain: predicted
    time on the circuits of now over that on the proposed ones, below which nothing is changed.
    dark_share: of an iteration, that a change may stop the job at most.
    """

    every: int
    predict: Literal["last", "ewma", "period"] = "last"
    gain: float = 1.1
    dark_share: float = 0.05


@dataclass(frozen=True, slots=True)
class Regions:
    """Those of a job. how: its circuits follow its traffic; None: they stay."""

    regions: tuple[Region, ...]
    how: Adapt | None = None


class RegionEdge(Edge):
    """Hosts of the job whose circuits follow the traffic between them, while a packet switch joins
    them all.
    """

    name: Name
    hosts: Annotated[list[str], Field(min_length=2, max_length=256)]
    ports: Annotated[
        list[Annotated[str, Field(pattern=PORT)]],
        Field(
            min_length=2,
            max_length=1024,
            description="the hosts' ports whose circuits may change; in no other region",
        ),
    ]
    fallback: Annotated[
        Name,
        Field(
            description="a segment of the plan that joins all of `hosts`: traffic without a circuit"
        ),
    ]


class AdaptEdge(Edge):
    """How the circuits of the job's regions follow its traffic."""

    every: Annotated[
        int,
        Field(
            ge=1, le=1_000_000, description="iterations from one look at the traffic to the next"
        ),
    ]
    predict: Annotated[
        Literal["last", "ewma", "period"],
        Field(
            description="the next traffic: the last, an exponentially weighted mean, or that of a period before"
        ),
    ] = "last"
    gain: Annotated[
        float,
        Field(
            ge=1,
            le=1000,
            description="circuits change where the predicted time falls by this factor or more",
        ),
    ] = 1.1
    dark_share: Annotated[
        float,
        Field(
            gt=0,
            le=1,
            description="of an iteration, that a change of circuits may stop the job at most",
        ),
    ] = 0.05


class PlannedRegions(Planned[Regions]):
    """The keys `regions` of a job and `adapt` of a plan. The job's ranks know neither."""

    key = "regions"
    adjusts = True
    section = Annotated[
        list[RegionEdge] | None,
        Field(
            max_length=64,
            description="hosts whose circuits follow their traffic (`testbed service start adapt`)",
        ),
    ]
    outside: ClassVar[Mapping[str, Any]] = {"adapt": AdaptEdge | None}
    unpartitioned = "circuits are of whole ports"

    def read(self, at: Site) -> Regions | None:
        written: list[RegionEdge] = getattr(at.edge, self.key, None) or []
        how: AdaptEdge | None = getattr(at.plan, "adapt", None)
        if how is not None and not written:
            at.links.problems.add(
                ("adapt",),
                "no circuits to adapt: give the job regions, whose ports may be joined again",
            )
        if how is not None and at.plan is not None and at.plan.schedule is not None:
            at.links.problems.add(("adapt",), "the plan has a schedule too; wanted one of the two")
        regions = _regions(written, at)
        return Regions(regions, Adapt(**how.model_dump()) if how else None) if regions else None

    def of(self, data: Mapping[str, Any]) -> Regions:
        regions = (
            Region(
                r["name"],
                tuple(r["hosts"]),
                tuple(HostPort(**port) for port in r["ports"]),
                r["fallback"],
            )
            for r in data["regions"]
        )
        return Regions(tuple(regions), Adapt(**data["how"]) if data["how"] else None)

    def write(self, value: Regions, document: dict[str, Any]) -> None:
        document["job"][self.key] = [
            {
                "name": r.name,
                "hosts": [*r.hosts],
                "ports": [*map(str, r.ports)],
                "fallback": r.fallback,
            }
            for r in value.regions
        ]
        document |= {"adapt": to_json(value.how)} if value.how else {}

    def renamed(self, section: Any, name: Callable[[str], str]) -> Any:
        return [
            {**r, "hosts": [*map(name, r["hosts"])], "ports": [*map(name, r["ports"])]}
            for r in section
        ]

    def without(self, section: Any, host: HostName) -> Any:
        """A region with one host left has no more circuits."""
        left = [
            {
                **region,
                "hosts": [name for name in region["hosts"] if name != host],
                "ports": [port for port in region["ports"] if port.partition(":")[0] != host],
            }
            for region in section
        ]
        return [region for region in left if len(region["hosts"]) > 1]


def _regions(written: Sequence[RegionEdge], at: Site) -> tuple[Region, ...]:
    """Each has a packet switch to fall back on, and ports that nothing else uses."""
    found = []
    owner: dict[HostPort, int] = {}
    problems = at.links.problems
    for index, region in enumerate(written):
        path: Path = ("job", "regions", index)
        if region.name in (other.name for other in written[:index]):
            problems.add((*path, "name"), f"region {region.name} is already there")
        hosts = _hosts(region, at, path)
        ports = []
        for number, text in enumerate(region.ports):
            place: Path = (*path, "ports", number)
            port = at.links.end(text, place)
            if not isinstance(port, HostPort):
                continue
            if port.host not in region.hosts:
                problems.add(place, f"{port.host} is not a host of region {region.name}")
            elif port in owner:
                other = written[owner[port]].name
                where = (
                    "named twice"
                    if other == region.name
                    else f"a port of region {other} too; a port follows one region's traffic"
                )
                problems.add(place, f"{port} is {where}")
            owner.setdefault(port, index)
            ports.append(port)
        _fallback(region, hosts, at, path)
        found.append(Region(region.name, tuple(hosts), tuple(ports), region.fallback))
    _circuits(found, owner, at)
    return tuple(found)


def _hosts(region: RegionEdge, at: Site, path: Path) -> list[HostName]:
    known = []
    ranked = {host_of_rank(rank) for rank in at.edge.ranks} if at.edge is not None else ()
    for number, host in enumerate(region.hosts):
        place: Path = (*path, "hosts", number)
        if not at.links.known_host(host, place):
            continue
        if host not in ranked:
            at.links.problems.add(
                place, f"{host} is not a host of the job, so it has no traffic to follow"
            )
        elif host in region.hosts[:number]:
            at.links.problems.add(place, f"host {host} is named twice")
        known.append(host)
    return known


def _fallback(region: RegionEdge, hosts: Sequence[HostName], at: Site, path: Path) -> None:
    """A segment of the plan that joins all hosts of the region: without one their traffic would
    stop while circuits move.
    """
    place: Path = (*path, "fallback")
    lab, problems = at.links.lab, at.links.problems
    segment = lab.segments.get(region.fallback)
    used = {found.name for link in at.always if (found := _segment(link, lab))}
    if segment is None or region.fallback not in used:
        why = "not a segment of this plan" if segment else "not in the lab"
        listed = summary(sorted(used), "segment") if used else "it uses none; name one in segments"
        text = f"segment {region.fallback} is {why} ({listed}){did_you_mean(region.fallback, sorted(used))}"
        problems.add(place, f"{text}: traffic of region {region.name} needs it while circuits move")
        return
    joined = {host for link in at.always if _segment(link, lab) is segment for host in link.hosts}
    if lost := [host for host in hosts if host not in joined]:
        text = f"segment {segment.name} does not join {', '.join(lost[:4])} in this plan"
        problems.add(
            place, f"{text}: traffic of region {region.name} there would stop while circuits move"
        )


def _circuits(regions: Sequence[Region], owner: Mapping[HostPort, int], at: Site) -> None:
    """A link of the plan at a region's port is a circuit of the region; and one that could take
    such a port names another.
    """
    inside = {host: region for region in regions for host in region.hosts}
    for link in at.always:
        if at.links.lab.electrical(link):
            continue
        path: Path = ("links", int(link.place.partition("[")[2].rstrip("]")))
        owners = [owner.get(end) if isinstance(end, HostPort) else None for end in (link.a, link.b)]
        if owners[0] != owners[1]:
            region = regions[next(index for index in owners if index is not None)]
            at.links.problems.add(
                path, f"one end is a port of region {region.name}, whose circuits stay inside it"
            )
        for key, end in (("a", link.a), ("b", link.b)):
            if not isinstance(end, HostPort) and end in inside:
                text = (
                    f"name a port of {end}: some of its ports belong to region {inside[end].name}"
                )
                at.links.problems.add((*path, key), text)


def _segment(link: WantedLink, lab: Lab) -> Segment | None:
    """The packet switch that carries the link, None if light does."""
    return (
        lab.segment_at.get(link.a)
        if isinstance(link.a, HostPort) and lab.electrical(link)
        else None
    )


def regions_of(job: Job | None) -> Regions:
    """Those of a job; none if it has none."""
    found: Regions = (
        job.attached.get(PlannedRegions.key, Regions(())) if job is not None else Regions(())
    )
    return found


PLANNED = PlannedRegions()
