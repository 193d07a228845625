"""What a change or a failure costs a designed job: dark time against gain, from plans read back as
topology and demand.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np

from optics import HostName, Infeasible, Link, LinkKind, Missing
from optics.plan import Plan, Traffic
from orchestrator.fabric.next_hops import lanes_of, next_hops
from orchestrator.inventory.lab import Lab
from orchestrator.plan.design.design import PAYLOAD, offered
from orchestrator.plan.design.flows import pair_flows, predicted_iteration, rate_mbps, ring_flows
from orchestrator.plan.design.periodic import forecast
from orchestrator.plan.ports import assign_ports
from orchestrator.plan.reader import read_plan
from orchestrator.plan.report import PlanReport
from orchestrator.results import JsonReport
from planner.model.demand import Demand, Group
from planner.model.shape import Lab as PlannerLab
from planner.model.shape import Ring, Shape
from planner.operate.repair import Replan, payoff, replan
from planner.predict.iteration import Prediction, spread
from planner.topology.methods import Wanted


@dataclass(frozen=True, slots=True)
class Rewiring(JsonReport):
    """The cost and gain of a change of topology. Times in s; break_even_s counts from the change,
    None if it gains nothing.

    stalled_bytes: traffic that waits while circuits are dark. iterations: until the time saved
    equals the time lost.
    """

    plan: str
    up: str
    made: int
    removed: int
    dark_s: float
    before_s: float
    after_s: float
    stalled_bytes: float
    iterations: float | None
    break_even_s: float | None
    time_scale: float


@dataclass(frozen=True)
class Degraded:
    """The options after a failure, for a plan."""

    plan: str
    failed: tuple[str, ...]
    options: Replan


def traffic_of(plan: Plan) -> Traffic:
    """The traffic of a designed plan. Raises: Missing - its job has no traffic model, or not over
    rings of optical links.
    """
    if plan.job is None or plan.job.traffic is None:
        raise Missing(
            f"{plan.name} does not say what its job moves",
            hint="design it: testbed design topoopt --workload examples/workloads/dlrm.yaml",
        )
    if any(group.schedule for group in plan.job.traffic.groups):
        raise Missing(
            f"{plan.name} all-reduces by a schedule; changes are predicted for rings only",
            hint="design it for --backend ring-groups",
        )
    if any(transfer.via for transfer in plan.job.traffic.transfers):
        raise Missing(
            f"{plan.name} has ranks that pass transfers on; changes are predicted without",
            hint="design it without --relay",
        )
    if plan.segments:
        raise Missing(
            f"{plan.name} goes over packet switches ({', '.join(plan.segments)}), where no light moves",
            hint="changes are predicted between plans of optical links",
        )
    return plan.job.traffic


def demand_of(plan: Plan) -> Demand:
    """The demand of a designed job, by ranks. Raises: Missing."""
    traffic = traffic_of(plan)
    assert plan.job is not None
    rank = {host: number for number, host in enumerate(plan.job.hosts)}
    mp = np.zeros((len(rank), len(rank)))
    for transfer in traffic.transfers:
        mp[rank[transfer.src], rank[transfer.dst]] += transfer.bytes
    groups = tuple(
        Group(g.id, tuple(sorted(rank[host] for host in g.rings[0])), g.bytes)
        for g in traffic.groups
    )
    return Demand(len(rank), groups, mp, traffic.compute_s)


def shape_of(plan: Plan) -> Shape:
    """The topology of a designed plan: rings where its orders have links of their own, the rest
    matched. Raises: Missing.
    """
    traffic = traffic_of(plan)
    assert plan.job is not None
    rank = {host: number for number, host in enumerate(plan.job.hosts)}
    duplex = all(link.kind is LinkKind.DUPLEX for link in plan.links)

    def key(a: int, b: int) -> tuple[int, int]:
        return (min(a, b), max(a, b)) if duplex else (a, b)

    left: Counter[tuple[int, int]] = Counter()
    for link in plan.links:
        if not set(link.hosts) <= rank.keys():
            raise Missing(
                f"{plan.name} links hosts that are not ranks of its job",
                hint="use a plan whose job runs on all its hosts",
            )
        left[key(*(rank[host] for host in link.hosts))] += 1
    degree = Counter(end for pair, count in left.items() for end in pair for _ in range(count))
    rings: list[Ring] = []
    for group in traffic.groups:
        for hosts in group.rings:
            order = tuple(rank[host] for host in hosts)
            if (
                any(ring.group == group.id and _reversed(ring.order, order) for ring in rings)
                and duplex
            ):
                continue
            steps = Counter(key(a, b) for a, b in zip(order, order[1:] + order[:1], strict=True))
            if len(order) == 2 and duplex:
                steps = Counter([key(*order)])
            if all(left[step] >= count for step, count in steps.items()):
                left -= steps
                rings.append(Ring(group.id, order))
    return Shape(
        len(rank), max(degree.values()), duplex, tuple(rings), tuple(sorted(left.elements()))
    )


def _reversed(one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether the two orders are the same cycle in opposite directions."""
    back = list(reversed(other))
    at = back.index(one[0])
    return list(one) == back[at:] + back[:at]


def planner_lab(plan: Plan, lab: Lab) -> PlannerLab:
    """The ports and rates of the plan's hosts, at the rate of payload."""
    assert plan.job is not None
    return offered(lab, plan.job.hosts, Wanted("replan"))


def reckon(
    plan: Plan,
    links: Sequence[Link],
    lab: Lab,
    orders: Mapping[str, Sequence[Sequence[HostName]]] | None = None,
) -> Prediction:
    """An iteration of the plan's job on links that may be another plan's, its transfers divided
    again. orders: of groups that use others than the plan's."""
    traffic, demand = traffic_of(plan), demand_of(plan)
    assert plan.job is not None
    given = {
        group.id: tuple((orders or {}).get(group.id) or group.rings) for group in traffic.groups
    }
    every = [tuple(order) for group in given.values() for order in group]
    chosen = next_hops(links, lanes_of(lab), (), every)
    sizes = {group.id: group.bytes for group in traffic.groups}
    flows = [flow for _, flow in ring_flows(sizes, given, chosen, lab)]
    pairs, _ = pair_flows(demand, plan.job.hosts, chosen, lab)
    rate = rate_mbps(lab, plan.job.hosts) * 1e6 / 8 * PAYLOAD
    return predicted_iteration(demand, flows, pairs, spread(pairs), rate, 0.0)


def predicted_of(document: Mapping[str, Any], text: str, file: str, lab: Lab) -> dict[str, Any]:
    """What a plan file says in `predicted`, or else what its job is reckoned to take on its schedule
    or its links; empty: slots that no model has. Raises: Missing, Infeasible - no model applies;
    BadFile - it is no plan of this lab.
    """
    if document.get("predicted"):
        return dict(document["predicted"])
    plan = read_plan(text, file, lab)
    if plan.schedule is not None:
        return {**forecast(plan, lab)}
    found = reckon(plan, assign_ports(plan.links, lab), lab)
    parts = ("compute", "transfers", "allreduce", "iteration")
    return {f"{part}_ms": getattr(found, f"{part}_s") * 1e3 for part in parts}


def rewiring(wanted: Plan, up: Plan, change: PlanReport, lab: Lab, link_up_s: float) -> Rewiring:
    """Dark time of the change against the time an iteration of the wanted plan's job saves. Raises:
    Missing, Infeasible.
    """
    if change.dark_ms_expected is None and not change.nothing_to_do:
        raise Infeasible(
            "no device says how long it switches",
            hint="give it a settling time: traits: {settle_s: 0.05}",
        )
    traffic = traffic_of(wanted)
    after = reckon(wanted, assign_ports(wanted.links, lab), lab)
    current_rings = (
        {g.id: g.rings for g in up.job.traffic.groups}
        if up.job is not None and up.job.traffic is not None
        else {}
    )
    fit = {
        g.id: current_rings[g.id]
        for g in traffic.groups
        if g.id in current_rings and set(current_rings[g.id][0]) == set(g.rings[0])
    }
    live = assign_ports(up.links, lab)
    before = min(
        (reckon(wanted, live, lab, orders) for orders in ({}, fit)),
        key=lambda found: found.iteration_s,
    )
    moves = change.made + change.removed
    dark = (change.dark_ms_expected or 0.0) / 1e3 + (link_up_s if moves else 0.0)
    size = demand_of(wanted)
    worth = payoff(
        moves, dark, before.iteration_s, after.iteration_s, size.allreduce_bytes + size.mp_bytes
    )
    pays = worth.iterations < inf
    return Rewiring(
        wanted.name,
        up.name,
        change.made,
        change.removed,
        dark,
        before.iteration_s,
        after.iteration_s,
        worth.stalled_bytes,
        worth.iterations if pays else None,
        worth.break_even_s if pays else None,
        traffic.time_scale,
    )


def _of_hosts(text: str, hosts: Sequence[HostName]) -> str:
    """The text with host names for `rank 3`, `ranks 0 and 1`."""
    return re.sub(
        r"\branks? (\d+)(?: and (\d+))?",
        lambda m: " and ".join(hosts[int(k)] for k in m.groups() if k),
        text,
    )


def repair_options(
    plan: Plan,
    lab: Lab,
    links: Sequence[tuple[HostName, HostName]],
    hosts: Sequence[HostName],
    link_up_s: float,
) -> Degraded:
    """The options when links or hosts of a designed plan have failed. Raises: Missing; Infeasible -
    not there, or none left.
    """
    shape, demand = shape_of(plan), demand_of(plan)
    assert plan.job is not None
    rank = {host: number for number, host in enumerate(plan.job.hosts)}
    for host in (*hosts, *(host for link in links for host in link)):
        if host not in rank:
            raise Infeasible(
                f"{host} is not a rank of {plan.name}",
                hint=f"its ranks: {', '.join(plan.job.hosts)}",
            )
    left = Counter(shape.links)
    for a, b in links:
        for ends in ((rank[a], rank[b]), (rank[b], rank[a]))[: 2 if shape.duplex else 1]:
            left[ends] -= 1
        if left[rank[a], rank[b]] < 0:
            neighbour = ", ".join(
                plan.job.hosts[existing] for existing in np.flatnonzero(shape.adjacency[rank[a]])
            )
            raise Infeasible(
                f"{plan.name} has no such link from {a} to {b}",
                hint=f"{a} has links to {neighbour}",
            )
    traits = [lab.traits_of(device) for device in lab.devices]
    many = [found.at_once for found in traits if found.at_once is not None]
    found = replan(
        shape,
        demand,
        replace(planner_lab(plan, lab), degree=shape.degree),
        links=[(rank[a], rank[b]) for a, b in links],
        hosts=[rank[host] for host in hosts],
        settle_s=max(found.settle_s for found in traits),
        at_once=min(many) if many else None,
        link_up_s=link_up_s,
    )
    if not hosts:  # ranks are then the plan's own
        found = replace(found, why_not=_of_hosts(found.why_not, plan.job.hosts))
    return Degraded(plan.name, (*(f"{a}--{b}" for a, b in links), *hosts), found)
