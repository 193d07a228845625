"""Explanations of a design as text: the hosts' routing against the planner's, division over paths,
a periodic schedule.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np

from optics.plain import seconds_text
from orchestrator.fabric.next_hops import NextHops, follow, lanes_of, next_hops
from orchestrator.inventory.lab import Lab
from orchestrator.plan.design.design import PAYLOAD, Design
from planner.predict.flow import fullest
from planner.predict.iteration import PairFlow, pair_loads
from planner.predict.routing import Pair, Path, Routes, deadlock, lossless_classes
from planner.schedule.periodic import fitted
from planner.topology.planned import planned
from planner.topology.topofinder import find

MOST_RANKS = 32
"""With more ranks the linear program over all paths takes too long."""
PATHS = 4
"""Shortest paths of a pair that TopoOpt's routing spreads model-parallel traffic over."""


def explained(found: Design, lab: Lab) -> list[str]:
    """Routing, rules, shares, and a periodic schedule for comparison, one line each."""
    return [
        *routing(found, lab),
        *against_planner(found, lab),
        *divided(found),
        *scheduled(found, lab),
    ]


def taken(found: Design, lab: Lab, lanes: int) -> tuple[NextHops, dict[Pair, tuple[Path, ...]]]:
    """The hosts' next hops, and the paths of the first `lanes` lanes between each pair of ranks, in
    ranks.
    """
    rank = {host: number for number, host in enumerate(found.hosts)}
    rings = [
        tuple(found.hosts[r] for r in order)
        for g, each in found.orders.items()
        if g not in found.schedules
        for order in each
    ]
    chosen = next_hops(found.links, lanes_of(lab), (), rings)
    return chosen, {
        (rank[a], rank[b]): tuple(
            (rank[a], *(rank[hop.into.host] for hop in follow(chosen, lab, a, b, lane)))
            for lane in range(lanes)
        )
        for a, b in permutations(found.hosts, 2)
    }


def routing(found: Design, lab: Lab) -> list[str]:
    """How the hosts route: rules per host, and whether lossless forwarding could deadlock."""
    chosen, paths = taken(found, lab, 1)
    ranks = len(found.hosts)
    routes = Routes(ranks, {pair: ((path, 1.0),) for pair, (path,) in paths.items()})
    rules = routes.rules()
    lines = [
        f"routing: shortest paths, one next hop per destination and lane; {len(chosen) // ranks} routes a host"
        f" (RDMA functions: {max(one.routes for one in rules)} and as many neighbours, "
        f"at most {max(one.filters for one in rules)} filters)"
    ]
    if circle := deadlock(routes):
        stops = " ".join(f"{found.hosts[a]}->{found.hosts[b]}" for a, b in circle[:6])
        more, classes = " ..." * (len(circle) > 6), max(lossless_classes(routes).values()) + 1
        lines.append(
            f"lossless forwarding could deadlock: {stops}{more}; {classes} priorities prevent it"
        )
    else:
        lines.append(
            "lossless forwarding cannot deadlock: no cycle in the dependencies of channels"
        )
    return lines


def against_planner(found: Design, lab: Lab) -> list[str]:
    """TopoOpt's own routing compared with the hosts'; empty for other methods and topologies."""
    if found.wanted.method != "topoopt":
        return []
    demand, rules = found.read.demand, found.wanted.rules
    finding = find(demand, found.lab, rules=rules, seed=found.wanted.seed)
    if finding.shape != found.shape:
        return [
            "TopoOpt's routing applies to its own rings; these links are parallel to one of them"
        ]
    planner_routes = planned(finding, demand.mp, k=PATHS, seed=found.wanted.seed)
    light = [
        pair
        for pair, each in planner_routes.paths.items()
        if len(each) == 1 and not demand.mp[pair]
    ]
    coins = Routes(found.shape.n, {pair: planner_routes.paths[pair] for pair in light})
    _, host_paths = taken(found, lab, lanes_of(lab))
    same = sum(
        {*paths} <= {path for path, _ in planner_routes.paths[pair]}
        for pair, paths in host_paths.items()
    )
    short = {pair: min(len(path) for path, _ in planner_routes.paths[pair]) for pair in host_paths}
    longer = sum(
        any(len(path) > short[pair] for path in paths) for pair, paths in host_paths.items()
    )
    heavy = len(host_paths) - len(light)
    how = f"up to {PATHS} shortest paths" if rules == "paper" else "one path drawn by the seed"
    text = f"TopoOpt's routing ({rules}): {len(light)} pairs by strides (coin change), {heavy} by {how}; "
    text += f"hosts use only these between {same} of {len(host_paths)} pairs, and longer ones between {longer or 'none'}"
    lines = [text]
    if light:
        can = (
            "depend on the destination only, so that next hops can express them"
            if coins.by_destination
            else "depend on the source"
        )
        lines.append(f"paths by strides {can}")
    if heavy and not planner_routes.by_destination:
        lines.append(
            "several paths per pair depend on the source, which next hops cannot express: "
            "hosts route by destination and lane, for all sources alike"
        )
    return lines


def divided(found: Design) -> list[str]:
    """The share of transfers that uses several paths, and what the best division over all paths (a
    linear program) would reach.
    """
    size: dict[Pair, list[int]] = {}
    for one in found.transfers:
        size.setdefault((one.src, one.dst), []).append(one.bytes)
    if not size:
        return []
    total = sum(map(sum, size.values()))
    several = sum(sum(parts) for parts in size.values() if len(parts) > 1) / total
    text = f"transfers: {several:.0%} of the bytes use several paths, divided over lanes to minimise the load of the fullest link"
    if found.shape.n <= MOST_RANKS and not found.found.segments:
        loads = pair_loads(
            [PairFlow(one.bytes, (one.path,)) for one in found.transfers],
            [(1.0,)] * len(found.transfers),
        )
        mp = np.zeros((found.shape.n, found.shape.n))
        for pair, parts in size.items():
            mp[pair] = sum(parts)
        least, _ = fullest(found.shape, mp)
        text += f"; divided over all paths it would carry {least / max(loads.values()):.0%} of that"
    return [text]


def scheduled(found: Design, lab: Lab) -> list[str]:
    """The iteration time with a round robin of matchings at the workload's own rate;
    `testbed design periodic` makes a plan.
    """
    if found.found.segments:
        return []
    home = replace(found.lab, rate_gbps=found.read.workload.rate_gbps * PAYLOAD)
    dark = max((lab.traits_of(device).settle_s for device in lab.devices), default=0.0)
    best = fitted(found.read.demand, home, dark)
    seconds = best.iteration_s(found.read.demand, home)
    return [
        f"analytic: a round robin of matchings, {len(best.slots)} slots, dark {seconds_text(dark)} each (the switches alone): "
        f"iteration {seconds_text(seconds)} at best, with a dwell of {seconds_text(best.dwell_s)} (duty {best.duty:.0%})"
    ]
