"""Several designed jobs on one lab: the hosts that earlier plans use, and the hosts left for
another. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from itertools import count as numbers

from optics import HostName, Infeasible
from optics.plain import did_you_mean, natural
from optics.plan import Plan
from orchestrator.inventory.lab import Lab


def occupied_hosts(plan: Plan) -> frozenset[HostName]:
    """Every host that a plan links, runs its job on, or routes over."""
    routed = {host for route in plan.routes for host in route.path}
    return frozenset(routed | {*plan.hosts} | set(plan.job.hosts if plan.job else ()))


def taken(plans: Mapping[str, Plan]) -> dict[HostName, str]:
    """The plan file that uses each host. Raises: Infeasible - two of them need the same host."""
    whose: dict[HostName, str] = {}
    whole: dict[HostName, str] = {}
    for file, plan in plans.items():
        hosts = occupied_hosts(plan)
        if twice := sorted(
            (h for h in hosts if h in whose or h.partition("/")[0] in whole), key=natural
        ):
            other = whose.get(twice[0]) or whole[twice[0].partition("/")[0]]
            raise Infeasible(
                f"{file} and {other} both need {', '.join(twice[:6])}",
                hint=f"only one of them can be up at a time: leave {file} out, or design it with --beside {other}",
            )
        whole |= {host: file for host in hosts if "/" not in host}
        whose |= {
            name: file for host in occupied_hosts(plan) for name in (host, host.partition("/")[0])
        }
    return whose


def chosen_hosts(
    lab: Lab,
    count: int,
    named: Sequence[HostName],
    whose: Mapping[HostName, str] | None = None,
    each: int = 1,
) -> tuple[HostName, ...]:
    """The hosts of ranks 0, 1, ..., `each` on one: those named, else the first of the lab that no
    other plan uses (`whose`).

    Raises: Infeasible - one does not exist, is used by another plan, is named twice, or holds fewer
    ranks; there are too few or too many.
    """
    found = _chosen_hosts(lab, count, named, whose or {}, each)
    if small := [host for host in found if each > lab.hosts[host].max_ranks]:
        most = lab.hosts[small[0]].max_ranks
        raise Infeasible(
            f"the workload has {each} ranks per host, {small[0]} holds {most} (testbed_ranks in hosts.yml)",
            hint=f"set ranks_per_host to {most} or less in the workload",
        )
    return found


def _chosen_hosts(
    lab: Lab, count: int, named: Sequence[HostName], whose: Mapping[HostName, str], each: int
) -> tuple[HostName, ...]:
    has = f"{count} ranks" if each == 1 else f"{count * each} ranks on {count} hosts"
    whole = {name for name, host in lab.hosts.items() if host.partition is None}
    free = sorted(whole - whose.keys(), key=natural)
    for index, host in enumerate(named):
        if host not in lab.hosts:
            raise Infeasible(
                f"host {host} is not in {lab.name}{did_you_mean(host, lab.hosts)}",
                hint="testbed status lists the hosts",
            )
        if host not in whole:
            raise Infeasible(
                f"{host} is a slice of a host",
                hint="design for whole hosts, then write the slices' names into the plan",
            )
        if host in whose:
            raise Infeasible(
                f"host {host} is used by {whose[host]}", hint=f"free: {', '.join(free) or 'none'}"
            )
        if host in named[:index]:
            raise Infeasible(f"host {host} is named twice", hint=f"name {count} different hosts")
    if len(named) > count:
        raise Infeasible(
            f"{len(named)} hosts are named, the workload has {has}",
            hint=f"name {count} of them: {','.join(named[:count])}, or set ranks to {len(named) * each} in the workload",
        )
    existing = tuple(named) or tuple(free)
    if len(existing) >= count:
        return existing[:count]
    if named:
        text = f"the hosts named are {len(existing)}"
    elif whose:
        text = f"{', '.join(dict.fromkeys(whose.values()))} leave {len(existing)} of {len(whole)} hosts free"
    else:
        text = f"{lab.name} are {len(existing)}"
    set_to = (
        f"set ranks to {len(existing) * each} in the workload, or " if len(existing) > 1 else ""
    )
    other = f"name {count} hosts" if named else f"take a lab of {count + len(whose)} hosts"
    raise Infeasible(f"the workload has {has}, {text}", hint=set_to + other)


def unused_name(name: str, others: Iterable[str]) -> str:
    """The name, or the first of `name-2`, `name-3`, ... that is not taken."""
    existing = set(others)
    numbered = (f"{name[:59]}-{number}" for number in numbers(2))
    return next(one for one in chain((name,), numbered) if one not in existing)


def owner_for(name: str, others: Iterable[str]) -> str:
    """A slice name for a plan: its own name, limited to the characters that slice names may
    have.
    """
    return unused_name(re.sub(r"[^\w.-]", "-", name)[:64], others)


def shared(
    lab: Lab, hosts: Collection[HostName], segments: Iterable[str], plans: Mapping[str, Plan]
) -> list[tuple[str, str]]:
    """The plans that share an uplink with these hosts: plan and segment. Uplinks with full
    bandwidth do not count.
    """
    found = []
    for name in segments:
        segment = lab.segments[name]
        racks = {segment.rack(host) for host in segment.ports.keys() & set(hosts)}
        for file, plan in plans.items() if not segment.full and len(racks) > 1 else ():
            used = (
                {segment.rack(host) for host in segment.ports.keys() & occupied_hosts(plan)}
                if name in plan.segments
                else set()
            )
            if len(used) > 1 and racks & used:
                found.append((file, name))
    return found
