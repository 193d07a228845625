"""The links that a job's traffic takes on a topology, and how long they carry it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from itertools import cycle
from typing import cast

from optics import HostName, Infeasible, Link, LinkKind
from optics.plan import ring_steps
from orchestrator.fabric.next_hops import NextHops, follow, lanes_of
from orchestrator.inventory.lab import Lab
from orchestrator.plan.design import electrical
from planner.model.demand import Demand, Group
from planner.predict.iteration import (
    FlowPath,
    PairFlow,
    Prediction,
    RingFlow,
    StepFlow,
    allreduce_s,
    is_link,
    on_links,
    pair_loads,
    ring_loads,
    transfers_s,
)
from planner.predict.relays import relays_s
from planner.schedule.bfb import Send


def rate_mbps(lab: Lab, hosts: Sequence[HostName]) -> float:
    """The rate of the slowest of these hosts' ports (Mb/s)."""
    return min(lab.hosts[host].link_mbps for host in hosts)


def path(chosen: NextHops, lab: Lab, src: HostName, dst: HostName, lane: int) -> FlowPath:
    """The links that traffic of a lane takes, and what else limits it. Raises: Infeasible - there
    is no path.
    """
    path = follow(chosen, lab, src, dst, lane)
    if not path:
        raise Infeasible(
            f"no path leads from {src} to {dst}", hint="give the topology a ring through all ranks"
        )
    return (
        electrical.path_limits(path, lab, rate_mbps(lab, [*lab.hosts]), lane)
        if lab.segments
        else cast(FlowPath, path)
    )


def ring_flows(
    sizes: Mapping[str, float],
    orders: Mapping[str, Sequence[Sequence[HostName]]],
    chosen: NextHops,
    lab: Lab,
) -> list[tuple[str, RingFlow]]:
    """The rings of each group of so many bytes, with its name: equal parts, on the lanes in turn.
    Raises: Infeasible - a step has no path.
    """
    lanes, found = cycle(range(lanes_of(lab))), []
    for group, size in sizes.items():
        for order in orders[group]:
            lane = next(lanes)
            steps = tuple(path(chosen, lab, a, b, lane) for a, b in ring_steps(list(order)))
            found.append((group, RingFlow(size / len(orders[group]), steps)))
    return found


def step_flow(
    group: Group, sends: Sequence[Send], hosts: Sequence[HostName], chosen: NextHops, lab: Lab
) -> StepFlow:
    rows = [
        (send.step, send.part, path(chosen, lab, hosts[send.src], hosts[send.dst], 0))
        for send in sends
    ]
    return StepFlow(group.bytes, len(group.members), tuple(rows))


def link_rates(
    links: Sequence[Link], hosts: Sequence[HostName], lab: Lab
) -> dict[tuple[int, int], float]:
    """From rank to rank the rate of the fastest link (Mb/s)."""
    rank = {host: number for number, host in enumerate(hosts)}
    found: dict[tuple[int, int], float] = {}
    for link in links:
        segment = lab.segment_at.get(link.a)
        mbps = rate_mbps(lab, [link.a.host, link.b.host]) if segment is None else segment.link_mbps
        ends = rank[link.a.host], rank[link.b.host]
        for pair in (ends, ends[::-1]) if link.kind is LinkKind.DUPLEX else (ends,):
            found[pair] = max(mbps, found.get(pair, 0.0))
    return found


def pair_flows(
    given: Demand,
    hosts: Sequence[HostName],
    chosen: NextHops,
    lab: Lab,
    vias: Mapping[tuple[int, int], int] | None = None,
) -> tuple[list[PairFlow], list[tuple[int, int, list[int]]]]:
    """The different paths of each transfer, and a lane for each. vias: the ranks that pass
    transfers on.
    """
    flows, lanes = [], []
    for src, dst in ((int(s), int(d)) for s, d in zip(*given.mp.nonzero(), strict=True)):
        if (via := (vias or {}).get((src, dst))) is not None:
            first, then = (
                path(chosen, lab, hosts[a], hosts[b], 0) for a, b in ((src, via), (via, dst))
            )
            flows.append(PairFlow(float(given.mp[src, dst]), ((*first, *then),), len(first)))
            lanes.append((src, dst, [0]))
            continue
        paths: dict[FlowPath, int] = {}
        for lane in range(lanes_of(lab)):
            paths.setdefault(path(chosen, lab, hosts[src], hosts[dst], lane), lane)
        flows.append(PairFlow(float(given.mp[src, dst]), tuple(paths)))
        lanes.append((src, dst, list(paths.values())))
    return flows, lanes


def predicted_iteration(
    given: Demand,
    rings: Sequence[RingFlow],
    pairs: Sequence[PairFlow],
    shares: Sequence[Sequence[float]],
    bytes_per_s: float,
    alpha_s: float,
    stepped: Sequence[StepFlow] = (),
    *,
    whole: bool = False,
) -> Prediction:
    """An iteration of rings, schedules and pairs, each pair's bytes divided over its paths by
    `shares`. whole: ranks pass on what they have received whole.
    """
    loads: Mapping[Hashable, float] = pair_loads(pairs, shares)
    hops = max((sum(map(is_link, route)) for flow in pairs for route in flow.paths), default=0)
    took = allreduce_s(rings, bytes_per_s, alpha_s) + sum(
        flow.seconds(bytes_per_s, alpha_s) for flow in stepped
    )
    sent: Counter[int] = Counter()
    for group in given.groups:
        for rank in group.members:
            sent[rank] += 2 * (len(group.members) - 1) / len(group.members) * group.bytes  # type: ignore[assignment]
    moved = sum(flow.bytes for flow in pairs)
    every = sum((flow.loads for flow in stepped), Counter(loads) + ring_loads(rings))
    sent_in_all = moved + sum(group.wire_bytes for group in given.groups)
    # rank 0 is the one whose iterations are recorded
    mine = sent[0] if sent[0] else max(sent.values(), default=0.0)
    return Prediction(
        given.compute_s,
        transfers_s(loads, bytes_per_s, alpha_s, hops)
        + relays_s(pairs, shares, bytes_per_s, whole=whole),
        took,
        mine / took if took else 0.0,
        on_links(every) / sent_in_all if sent_in_all else 1.0,
        on_links(loads) / moved if moved else 0.0,
        every,
    )
