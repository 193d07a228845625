"""Which host makes an all-reduce slow: halves of the hosts are tried, then the slow half's halves,
down to one host.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from optics import HostName, Link, TestbedError
from optics.plan import Job, Plan
from optics.ranks import host_of_rank
from orchestrator.hosts import Hosts
from orchestrator.inventory.lab import Lab
from orchestrator.telemetry.progress import Progress
from orchestrator.verify.collective import MIN_SHARE, NAME, all_reduce, rings_of
from orchestrator.verify.qualification import Direction

Test: TypeAlias = Callable[[tuple[HostName, ...]], Awaitable[float]]
"""The share of the expected bus bandwidth that an all-reduce of these hosts reaches, 0 if it
fails.
"""


async def slow_hosts(hosts: Sequence[HostName], test: Test) -> dict[tuple[HostName, ...], str]:
    """The smallest sets of hosts that are slow by themselves, with sentences; empty if all together
    are fast.

    A set of more than one host: each half of it is fast, or both are slow, so it cannot be
    determined who is at fault.
    """
    hosts = tuple(hosts)
    share = await test(hosts)
    if share >= MIN_SHARE:
        return {}
    text = f"an all-reduce of {len(hosts)} hosts reaches {share:.0%} of what their links allow (at least {MIN_SHARE:.0%} is wanted)"
    spare: HostName | None = None
    while len(hosts) > 2:
        halves = hosts[: len(hosts) // 2], hosts[len(hosts) // 2 :]
        shares = [await test(half) if len(half) > 1 else MIN_SHARE for half in halves]
        slow = [half for half, each in zip(halves, shares, strict=True) if each < MIN_SHARE]
        # three hosts: the single one may be it, beside one of the fast pair
        if len(halves[0]) == 1 and not slow:
            single = await test((halves[0][0], halves[1][0]))
            return (
                {halves[0]: f"{text}; {halves[0][0]} alone slows another host to {single:.0%}"}
                if single < MIN_SHARE
                else {hosts: text}
            )
        if len(slow) != 1:
            return {hosts: f"{text}, {'both' if slow else 'neither'} of its halves for itself"}
        (hosts,) = slow
        spare = next(half for half in halves if half != hosts)[0]
        named = ", ".join(hosts[:4]) + (" and others" if len(hosts) > 4 else "")
        text = f"an all-reduce of {named} reaches {min(shares):.0%} of what their links allow, one of the other half is fast enough"
    if spare is None:
        return {hosts: text}
    found = {host: await test((host, spare)) for host in hosts}
    guilty = [host for host, each in found.items() if each < MIN_SHARE]
    if len(guilty) != 1:
        return {hosts: text}
    return {
        (
            guilty[0],
        ): f"{text}; {guilty[0]} with {spare} reaches {found[guilty[0]]:.0%} of what the links allow"
    }


async def bisected(
    hosts: Hosts,
    lab: Lab,
    plan: Plan,
    links: Sequence[Link],
    rates: Mapping[Direction, float | None],
    progress: Progress,
) -> dict[tuple[HostName, ...], str] | None:
    """`slow_hosts` of the plan's hosts by short all-reduces on them, which no job may run beside.
    None: it cannot be run.
    """
    ranks, rings = rings_of(plan, links)
    base = plan.job or Job(NAME, "allreduce", ranks, rings)
    order = rings[0]
    tried = 0

    async def test(chosen: tuple[HostName, ...]) -> float:
        nonlocal tried
        tried += 1
        progress.update(
            "all-reduce", tried, 1 + 2 * len(order).bit_length(), f"of {len(chosen)} hosts"
        )
        mine = tuple(rank for rank in ranks if host_of_rank(rank) in chosen)
        some = replace(
            base, ranks=mine, rings=(tuple(host for host in order if host in chosen),), traffic=None
        )
        return (await all_reduce(hosts, lab, replace(plan, job=some), links, rates)).share

    try:
        return await slow_hosts(order, test)
    except TestbedError:
        return None
