"""Checks what a plan says of partitions of hosts. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from optics import HostName
from optics.plan import Plan
from optics.ranks import host_of_rank
from orchestrator.inventory.hosts import Host
from orchestrator.inventory.positions import Path, Problems
from orchestrator.plan.attached import attachments_of, planned
from orchestrator.plan.edges import PlanEdge
from orchestrator.plan.links import Links


def check_partitions(plan: Plan, edge: PlanEdge | None, links: Links, problems: Problems) -> None:
    """One partition of a host at most, the same lanes everywhere, and nothing that is of a whole
    port.
    """
    known = links.lab.hosts
    hosts = [
        known[name]
        for name in dict.fromkeys((*plan.hosts, *(plan.job.needed if plan.job else ())))
        if name in known
    ]
    first = next((host for host in hosts if host.partition), None)
    if first is None or edge is None:
        return
    seen: dict[HostName, HostName] = {}
    for host in hosts:
        if host.machine in seen:
            text = f"{host.name} beside {seen[host.machine]}: a plan uses one partition of a host; or use {host.machine} whole"
            problems.add(_place(edge, host.name), text)
        elif numbers(host) != numbers(first):
            text = f"{host.name} has {_lanes(host)}, {first.name} has {_lanes(first)}: hosts reach each other lane by lane, "
            problems.add(_place(edge, host.name), text + "so the hosts of a plan need the same")
        seen.setdefault(host.machine, host.name)
    for path, present, why in (
        (("schedule",), edge.schedule, "what holds in a slot is a port, which others use"),
        (("interchangeable",), edge.interchangeable, "name whole hosts"),
        (("spares",), edge.spares, "name whole hosts"),
        *(
            (kind.where, True, kind.unpartitioned)
            for kind, _ in attachments_of(plan.job)
            if kind.unpartitioned
        ),
        *(
            ((key,), getattr(edge, key), kind.unpartitioned)
            for kind in planned()
            for key in kind.outside
        ),
    ):
        if present:
            problems.add(path, f"{first.name} is a partition of a host: {why}")


def numbers(host: Host) -> tuple[int, ...]:
    """The lanes of a host as the whole host counts them."""
    return host.partition.lanes if host.partition else tuple(range(host.lanes))


def _lanes(host: Host) -> str:
    found = numbers(host)
    return f"lane{'s' if len(found) > 1 else ''} {', '.join(map(str, found))}"


def _place(edge: PlanEdge, host: HostName) -> Path:
    """Where the plan names a host."""
    listed: Iterable[tuple[Path, Iterable[str]]] = (
        *(
            (("segments", at, "hosts"), segment.hosts or ())
            for at, segment in enumerate(edge.segments)
        ),
        (("job", "ranks"), map(host_of_rank, edge.job.ranks) if edge.job else ()),
    )
    return next(
        ((*path, at) for path, names in listed for at, name in enumerate(names) if name == host),
        ("segments",),
    )
