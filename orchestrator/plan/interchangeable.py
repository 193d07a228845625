"""Interchangeable hosts, and the text of a plan with some of them exchanged. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from optics import HostName, HostPort
from optics.ranks import host_of_rank
from orchestrator.inventory.lab import Lab
from orchestrator.plan.attached import rewrite_attachments

Labels: TypeAlias = Mapping[HostName, HostName]
"""Host in the plan -> host that takes its place."""


def interchange_properties(host: HostName, lab: Lab) -> Mapping[str, object]:
    """The properties in which interchangeable hosts agree."""
    it = lab.hosts[host]
    wired = {
        n: str(lab.fibres[HostPort(host, n)].device)
        for n in it.ports
        if HostPort(host, n) in lab.fibres
    }
    devices = ", ".join(f"p{n} at {device}" for n, device in wired.items())
    segments = ", ".join(
        f"p{port.number} at {s.name}" + (f" rack {s.rack(host) + 1}" if s.racks else "")
        for s in lab.segments.values()
        if (port := s.port(host)) is not None
    )
    same = {
        "forwarding": it.forwarding,
        "lanes": it.partition.lanes if it.partition else it.lanes,
        "GPUs": it.gpus,
        "ranks": it.max_ranks,
        "ports": len(it.ports),
        "fibres": devices,
    }
    return same | {"segments": segments}


def difference(one: HostName, other: HostName, lab: Lab) -> str:
    """Why two hosts cannot take each other's place, empty if they can: `GPUs 8, gpu07 has 4`."""
    first, second = interchange_properties(one, lab), interchange_properties(other, lab)
    return "; ".join(
        f"{what} {first[what]}, {other} has {second[what]}"
        for what in first
        if first[what] != second[what]
    )


def alike(hosts: Iterable[HostName], lab: Lab) -> tuple[tuple[HostName, ...], ...]:
    """The hosts grouped by equal facts; hosts without an equal are left out."""
    groups: dict[tuple[object, ...], list[HostName]] = {}
    for host in dict.fromkeys(hosts):
        groups.setdefault(tuple(interchange_properties(host, lab).values()), []).append(host)
    return tuple(tuple(group) for group in groups.values() if len(group) > 1)


def relabelled_text(text: str, by: Labels) -> str:
    """The same plan file with other hosts: links, slots, ranks, rings, traffic, attachments and
    routes follow the labels.
    """
    if not by:
        return text
    body = json.loads(text)

    def end(name: str, mark: str = ":") -> str:
        host, existing, number = name.partition(mark)
        return by.get(host, host) + existing + number

    schedule = body.get("schedule") or {}
    for links in (body.get("links", ()), *(slot["links"] for slot in schedule.get("slots", ()))):
        for link in links:
            link["a"], link["b"] = end(link["a"]), end(link["b"])
    if "hosts" in schedule:
        schedule["hosts"] = [by.get(host, host) for host in schedule["hosts"]]
    for segment in body.get("segments", ()):
        if segment.get("hosts"):
            segment["hosts"] = [by.get(host, host) for host in segment["hosts"]]
    if job := body.get("job"):
        job["ranks"] = [end(rank, "/") for rank in job["ranks"]]
        _follow(job, end)
        if "rings" in job:
            job["rings"] = [[by.get(host, host) for host in ring] for ring in job["rings"]]
        for group in (job.get("traffic") or {}).get("groups", ()):
            group["rings"] = [[by.get(host, host) for host in ring] for ring in group["rings"]]
            for send in group.get("schedule", ()):
                send |= {key: by.get(send[key], send[key]) for key in ("src", "dst", "shard")}
        rewrite_attachments(job, lambda kind, section: kind.renamed(section, end))
        for transfer in (job.get("traffic") or {}).get("transfers", ()):
            ends = [key for key in ("src", "dst", "via") if transfer.get(key)]
            transfer |= {key: by.get(transfer[key], transfer[key]) for key in ends}
    for route in body.get("routes", ()):
        route["src"], route["dst"] = (
            by.get(route["src"], route["src"]),
            by.get(route["dst"], route["dst"]),
        )
        route["via"] = [by.get(host, host) for host in route["via"]]
    return json.dumps(body, indent=2, ensure_ascii=False) + "\n"


def _follow(job: dict[str, Any], end: Callable[[str, str], str]) -> None:
    """Have ranks that joined, or took another's place, be ranks of the job. Of hosts that only swap
    places it is the same training, so none is renamed: `launch.identity` is of all ranks at once.
    """

    def now(rank: str) -> str:
        return rank if not rank or rank in job["ranks"] else end(rank, "/")

    if "joined" in job:
        job["joined"] = [now(rank) for rank in job["joined"]]
    if "evicted" in job:
        job["evicted"] = {before: now(rank) for before, rank in job["evicted"].items()}


def labels_between(text: str, other: str) -> dict[HostName, HostName] | None:
    """The labels that turn `text` into `other`, None if that is another plan."""
    try:
        one, two = json.loads(text), json.loads(other)
        by: dict[HostName, HostName] = {}
        for a, b in zip(_names(one), _names(two), strict=True):
            if by.setdefault(a, b) != b:
                return None
        if json.loads(relabelled_text(text, by)) != two or len(set(by.values())) < len(by):
            return None
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return {old: new for old, new in by.items() if old != new}


def _names(body: Any) -> Iterable[str]:
    """Every host that a plan names in its links and ranks, in the order of the file."""
    for link in body.get("links", ()):
        yield link["a"].partition(":")[0]
        yield link["b"].partition(":")[0]
    yield from map(host_of_rank, (body.get("job") or {}).get("ranks", ()))
