"""Reads the shadow of a plan's job: where it runs, and where the job's traffic is copied for it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from optics import HostPort, Infeasible, Link
from optics.plan import Plan, Shadow, WantedLink
from optics.ranks import hosts_of
from orchestrator.inventory.positions import Path
from orchestrator.plan.edges import JobEdge
from orchestrator.plan.links import Links
from planner.operate.taps import unseen

ALONE = {"exchange": "wires", "compress": "none", "sync_every": 1}
"""Arguments of `train` that a shadow can follow with one value only, which is the default: it reads sums as rings carry them."""


def seen_taps(plan: Plan, links: Sequence[Link]) -> None:
    """links: those of the plan, with their ports, which may have been chosen only now.

    Raises: Infeasible - at a port that is to be tapped no link of theirs ends, so nothing would be copied.
    """
    shadow = plan.job.shadow if plan.job is not None else None
    if shadow is None or not isinstance(shadow.taps, tuple) or plan.schedule is not None:
        return
    ends = sorted({end for link in links for end in (link.a, link.b)})
    for at, tap in enumerate(shadow.taps):
        if tap not in ends:
            there = ", ".join(str(end) for end in ends if end.host == tap.host)
            words = f"the links of {plan.name} do not end at {tap}, so nothing arrives there (they end at {there})"
            raise Infeasible(
                f"job.shadow.taps[{at}]: {words}",
                hint="taps auto follows the ports that are chosen; or name ports in links, too",
            )


def read_shadow(edge: JobEdge, links: Links, wanted: Sequence[WantedLink]) -> Shadow | None:
    """The shadow of a job. wanted: the links of the plan, in any slot. What is wrong is added to the problems of `links`."""
    if edge.shadow is None:
        return None
    path: Path = ("job", "shadow")
    problems, lab = links.problems, links.lab
    hosts = hosts_of(edge.ranks)
    if links.known_host(edge.shadow.host, (*path, "host")) and edge.shadow.host in hosts:
        words = f"{edge.shadow.host} is a host of the job's ranks: a shadow there would be lost with them; name another host"
        problems.add((*path, "host"), words)
    if edge.workload != "train":
        problems.add(path, f"a shadow follows train; this job is {edge.workload}")
    elif edge.backend == "nccl" or (edge.backend == "auto" and all(lab.hosts[host].gpus for host in hosts if host in lab.hosts)):
        problems.add(path, "a shadow follows sums over the project's own connections; this job's are carried by nccl (job.backend)")
    for name, value in ALONE.items():
        if edge.args.get(name, value) != value:
            problems.add(("job", "args", name), f"a shadow needs {name} {value}, got {edge.args[name]}")
    if len(hosts) < 2:
        problems.add(path, "a job on one host sends nothing that could be copied: it needs ranks on two hosts")
    if edge.shadow.taps == "auto":
        return Shadow(edge.shadow.host)
    used = {end for link in wanted for end in (link.a, link.b) if isinstance(end, HostPort)}
    chosen = {end for link in wanted for end in (link.a, link.b) if not isinstance(end, HostPort)}
    taps = []
    for at, text in enumerate(edge.shadow.taps):
        place: Path = (*path, "taps", at)
        host, _, number = text.partition(":p")
        if not links.known_host(host, place):
            continue
        port = HostPort(host, int(number or 0))
        if port.number not in lab.hosts[host].ports:
            problems.add(place, f"{host} has no port p{number} (it has {', '.join(f'p{n}' for n in lab.hosts[host].ports)})")
        elif host not in hosts:
            problems.add(place, f"{host} is not a host of the job, so nothing for its ranks arrives there")
        elif port not in used and host not in chosen:
            problems.add(place, f"{port} is a port that this plan does not use, so nothing arrives there")
        elif port in taps:
            problems.add(place, f"{port} is named twice")
        taps.append(port)
    at_hosts = {tap.host for tap in taps}
    orders = edge.rings or [list(hosts)]
    if not problems and any(unseen(order, at_hosts) for order in orders):
        words = f"taps at {', '.join(sorted(at_hosts))} alone do not see every sum: tap ports of two hosts, or write auto"
        problems.add((*path, "taps"), words)
    return Shadow(edge.shadow.host, tuple(taps))
