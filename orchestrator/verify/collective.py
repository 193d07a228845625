"""A short all-reduce over the plan's hosts, compared with what its links allow."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

from optics import Garbled, HostName, Link, NotVerified, TimedOut
from optics.plain import counted, natural
from optics.plan import Job, Plan, ring_steps
from optics.ranks import RankName, hosts_of
from orchestrator.fabric.next_hops import Hop, follow, lanes_of, next_hops
from orchestrator.hosts import Hosts, job_name
from orchestrator.hosts.output import last_line
from orchestrator.inventory.lab import Lab
from orchestrator.verify.qualification import Direction, rates
from orchestrator.verify.report import CollectiveFigures

NAME, RUN = "collective", "verify"
"""The job's name on the hosts: always the same, so that each one replaces the previous one."""
AIM_S = 0.25
"""One all-reduce should take about this long (s): long compared with latency, short for a waiting
operator.
"""
LEAST_BYTES, MOST_BYTES = 1 << 20, 1 << 30
ITERATIONS = 3
MIN_SHARE = 0.5
"""Required share of the expected bus bandwidth if the plan gives none."""
DEADLINE_S = 180.0
POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Expected:
    """The upper bound for a ring all-reduce: bus bandwidth (MB/s) of all rings together, and the
    hop that limits it.
    """

    busbw_mbps: float
    link_mbps: float
    slowest: str


def rings_of(
    plan: Plan, links: Sequence[Link]
) -> tuple[tuple[RankName, ...], tuple[tuple[HostName, ...], ...]]:
    """Ranks and rings (of hosts) of the plan's job; without a job, all linked hosts in one ring in
    the order of their names.
    """
    if plan.job is not None:
        whole = tuple(order for order in plan.job.orders if len(order) == len(plan.job.hosts))
        return plan.job.ranks, whole or (plan.job.hosts,)
    hosts = tuple(sorted({p.host for link in links for p in (link.a, link.b)}, key=natural))
    return hosts, (hosts,)


def expected(
    plan: Plan,
    links: Sequence[Link],
    lab: Lab,
    rings: Sequence[Sequence[HostName]],
    measured: Mapping[Direction, float | None],
) -> Expected:
    """Every ring carries an equal part at the rate of its slowest hop, shared with all users of the
    hop; the slowest ends last.

    Raises: NotVerified - a ring step has no path.
    """
    lanes = lanes_of(lab, links)
    chosen = next_hops(links, lanes, plan.routes, plan.rings)
    paths: list[list[Hop]] = []
    for index, order in enumerate(rings):
        hops: list[Hop] = []
        for host, follower in ring_steps(order):
            path = follow(chosen, lab, host, follower, index % lanes)
            if not path:
                raise NotVerified(
                    f"ring {index} steps from {host} to {follower}, and no path joins them"
                )
            hops += path
        paths.append(hops)
    users: Counter[str] = Counter()
    rates_: dict[str, float] = {}
    for hop in (hop for hops in paths for hop in hops):
        for name, mbps in _limits(hop, lab, measured.get(Direction(hop.out, hop.into)) or 0.0):
            users[name] += 1
            # a port that reaches some hosts slowly is not slow itself
            rates_[name] = max(mbps, rates_.get(name, 0.0))
    slowest = min(users, key=lambda name: rates_[name] / users[name])
    rate = rates_[slowest] / users[slowest]
    return Expected(
        len(rings) * rate / 8,
        rates_[slowest],
        slowest + (f" by {users[slowest]} rings' steps" if users[slowest] > 1 else ""),
    )


def _limits(hop: Hop, lab: Lab, mbps: float) -> list[tuple[str, float]]:
    """What limits a hop that carries `mbps` alone, by name: the hop itself, or the shared ports and
    uplinks of packet switches.
    """
    segment = lab.segment_at.get(hop.out)
    if segment is None:
        return [(str(hop), mbps)]
    # An uplink's rate is the inventory's; a port's rate is what was measured of it.
    shared = segment.limits(hop.out.host, hop.into.host)
    return [(name, mbps if rate == segment.link_mbps else rate) for name, rate in shared]


def size(limit: Expected, ranks: int) -> int:
    """Bytes to reduce so that one all-reduce takes about AIM_S, a power of two."""
    wanted = limit.busbw_mbps * 1e6 * AIM_S / (2 * (ranks - 1) / ranks)
    found = LEAST_BYTES
    while found * 2 <= min(wanted, MOST_BYTES):
        found *= 2
    return found


async def all_reduce(
    hosts: Hosts,
    lab: Lab,
    plan: Plan,
    links: Sequence[Link],
    measured: Mapping[Direction, float | None] | None = None,
) -> CollectiveFigures:
    """Run it and return its figures. measured: rates of the links, if known already (Mb/s).

    Raises: NotVerified - it has no prediction, failed, or its sums are wrong. TimedOut - it has not
    ended after `DEADLINE_S`.
    """
    ranks, rings = rings_of(plan, links)
    if len(hosts_of(ranks)) < 2:
        raise NotVerified("an all-reduce needs two hosts or more")
    limit = expected(plan, links, lab, rings, measured or await rates(hosts, lab, links))
    if not limit.busbw_mbps:
        raise NotVerified(f"nothing arrives on {limit.slowest}, so no all-reduce can end")
    count = size(limit, len(ranks))
    job = Job(
        NAME,
        "allreduce",
        ranks,
        tuple(map(tuple, rings)),
        {"minbytes": count, "iters": ITERATIONS},
        dict(plan.job.env) if plan.job else {},
        plan.job.backend if plan.job else "auto",
    )
    name = job_name(NAME, RUN)
    try:
        await hosts.jobs.launch(job, RUN)
        await _end(hosts, name, ranks)
        text = (await hosts.jobs.tail(name, ranks[0], "allreduce.json")).text
    finally:
        if any(
            state.state == "running" for state in (await hosts.jobs.states(name, ranks)).values()
        ):
            await hosts.jobs.stop(name, 2.0, ranks)
    try:
        result = json.loads(text)
        row = result["rows"][0]
        busbw, wrong = float(row["busbw_gbytes_per_s"]) * 1e3, int(result["wrong"])
        if not isfinite(busbw):
            raise ValueError(f"busbw {busbw}")
    except (ArithmeticError, ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
        raise Garbled(f"{ranks[0]}: the all-reduce wrote {text[:200]!r} for its result") from error
    if wrong:
        raise NotVerified(f"{wrong} elements of the sum are wrong")
    return CollectiveFigures(
        len(ranks),
        len(rings),
        count,
        round(busbw, 2),
        round(limit.busbw_mbps, 2),
        round(limit.link_mbps, 1),
        limit.slowest,
    )


async def _end(hosts: Hosts, name: str, ranks: Sequence[RankName]) -> None:
    """Wait until every rank has ended successfully. Raises: NotVerified - one failed; with its last
    line. TimedOut.
    """
    give_up = time.monotonic() + DEADLINE_S
    while True:
        states = await hosts.jobs.states(name, ranks)
        if bad := [h for h, s in states.items() if s.state in ("killed", "absent") or s.code]:
            more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
            raise NotVerified(
                f"the all-reduce failed on {bad[0]}{more}: {await last_line(hosts, name, bad[0]) or 'no output'}"
            )
        running = [rank for rank, s in states.items() if s.state != "exited"]
        if not running:
            return
        if time.monotonic() > give_up:
            raise TimedOut(
                f"the all-reduce has not ended after {DEADLINE_S:g} s: {counted(len(running), 'rank')} still run"
            )
        await asyncio.sleep(POLL_S)
