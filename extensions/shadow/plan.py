"""The shadow of a plan's job: where it runs, and where the job's traffic is copied for it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from optics import HostName, HostPort, Infeasible, Link
from optics.plan import Job, Plan
from optics.ranks import hosts_of
from orchestrator.inventory.positions import Path
from orchestrator.inventory.schema import PORT
from orchestrator.plan.attached import Site
from orchestrator.plan.keeper import KeeperEdge, PlannedKeeper
from planner.operate.taps import unseen

if TYPE_CHECKING:
    from orchestrator.plan.edges import JobEdge

ALONE = {"exchange": "wires", "compress": "none", "sync_every": 1, "site_every": 0}
"""Arguments of `train` that a shadow can follow with one value only, which is the default: it reads
sums as rings carry them.
"""


@dataclass(frozen=True, slots=True)
class Shadow:
    """A process on `host`, where the job has no rank, that keeps the job's weights by following its
    traffic.

    taps: ports of the job's hosts at which it is copied; auto: all ports of two of them, which see
    every sum.
    """

    host: HostName
    taps: Literal["auto"] | tuple[HostPort, ...] = "auto"


class ShadowEdge(KeeperEdge):
    """A process that keeps the job's weights by following its traffic: a checkpoint of every
    iteration.
    """

    taps: Annotated[
        Literal["auto"]
        | Annotated[list[Annotated[str, Field(pattern=PORT)]], Field(min_length=1, max_length=256)],
        Field(
            description="ports of the job's hosts at which its traffic is copied; auto: all ports of two of them"
        ),
    ] = "auto"


class PlannedShadow(PlannedKeeper[Shadow]):
    """The key `shadow` of a job."""

    key = "shadow"
    section = ShadowEdge | None
    unpartitioned = "a tap sees the packets of all partitions"

    def read_section(self, section: ShadowEdge, edge: JobEdge, at: Site) -> Shadow:
        problems, lab, hosts = at.links.problems, at.links.lab, hosts_of(edge.ranks)
        if edge.workload == "train" and (
            edge.backend == "nccl"
            or (
                edge.backend == "auto"
                and all(lab.hosts[host].gpus for host in hosts if host in lab.hosts)
            )
        ):
            text = "a shadow follows sums over the project's own connections; this job's are carried by nccl (job.backend)"
            problems.add(self.where, text)
        for name, value in ALONE.items():
            if edge.args.get(name, value) != value:
                problems.add(
                    ("job", "args", name), f"a shadow needs {name} {value}, got {edge.args[name]}"
                )
        if len(hosts) < 2:
            text = (
                "a job on one host sends nothing that could be copied: it needs ranks on two hosts"
            )
            problems.add(self.where, text)
        return Shadow(
            section.host,
            "auto" if section.taps == "auto" else self._taps(section.taps, at, hosts, edge.rings),
        )

    def _taps(
        self,
        written: Sequence[str],
        at: Site,
        hosts: Sequence[HostName],
        rings: Sequence[Sequence[HostName]],
    ) -> tuple[HostPort, ...]:
        """Ports of the job's hosts that the plan uses, of two hosts at least."""
        problems, lab = at.links.problems, at.links.lab
        used = {end for link in at.wanted for end in (link.a, link.b) if isinstance(end, HostPort)}
        chosen = {
            end for link in at.wanted for end in (link.a, link.b) if not isinstance(end, HostPort)
        }
        taps: list[HostPort] = []
        for index, text in enumerate(written):
            place: Path = (*self.where, "taps", index)
            host, _, number = text.partition(":p")
            if not at.links.known_host(host, place):
                continue
            port = HostPort(host, int(number or 0))
            if port.number not in lab.hosts[host].ports:
                problems.add(
                    place,
                    f"{host} has no port p{number} (it has {', '.join(f'p{n}' for n in lab.hosts[host].ports)})",
                )
            elif host not in hosts:
                problems.add(
                    place,
                    f"{host} is not a host of the job, so nothing for its ranks arrives there",
                )
            elif port not in used and host not in chosen:
                problems.add(
                    place, f"{port} is a port that this plan does not use, so nothing arrives there"
                )
            elif port in taps:
                problems.add(place, f"{port} is named twice")
            taps.append(port)
        at_hosts = {tap.host for tap in taps}
        if not problems and any(unseen(order, at_hosts) for order in rings or [list(hosts)]):
            message = f"taps at {', '.join(sorted(at_hosts))} alone do not see every sum: tap ports of two hosts, or write auto"
            problems.add((*self.where, "taps"), message)
        return tuple(taps)

    def of(self, data: Mapping[str, Any]) -> Shadow:
        taps = data["taps"]
        return Shadow(
            data["host"], "auto" if taps == "auto" else tuple(HostPort(**port) for port in taps)
        )

    def write(self, value: Shadow, document: dict[str, Any]) -> None:
        taps = "auto" if value.taps == "auto" else [str(port) for port in value.taps]
        document["job"][self.key] = {"host": value.host, "taps": taps}

    def renamed(self, section: Any, name: Callable[[str], str]) -> Any:
        taps = section.get("taps")
        return super().renamed(section, name) | (
            {"taps": [*map(name, taps)]} if isinstance(taps, list) else {}
        )

    def without(self, section: Any, host: HostName) -> Any:
        """Other hosts get other ports: taps become those of `auto`."""
        kept = super().without(section, host)
        return kept | {"taps": "auto"} if kept and "taps" in kept else kept

    def placed(self, value: Shadow, plan: Plan, links: Sequence[Link]) -> None:
        """At each port that is to be tapped a link has to end, or nothing would be copied."""
        if value.taps == "auto" or plan.schedule is not None:
            return
        ends = sorted({end for link in links for end in (link.a, link.b)})
        for at, tap in enumerate(value.taps):
            if tap not in ends:
                place = ", ".join(str(end) for end in ends if end.host == tap.host)
                text = f"the links of {plan.name} do not end at {tap}, so nothing arrives there (they end at {place})"
                raise Infeasible(
                    f"job.shadow.taps[{at}]: {text}",
                    hint="taps auto follows the ports that are chosen; or name ports in links, too",
                )


def shadow_of(job: Job) -> Shadow | None:
    """That of a job, if it has one."""
    found: Shadow | None = job.attached.get(PlannedShadow.key)
    return found


PLANNED = PlannedShadow()
