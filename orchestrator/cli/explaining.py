"""Why a design is as it is: how the hosts route, beside how the planner would; what else was reckoned with. In words."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np

from orchestrator.cli.text import ms_text
from orchestrator.fabric.next_hops import follow, lanes_of, next_hops
from orchestrator.inventory.lab import Lab
from orchestrator.plan.design.design import PAYLOAD, Design, routing
from planner.flow import fullest
from planner.periodic import fitted
from planner.predict import PairFlow, pair_loads
from planner.routing import Pair, Path, Routes, planned
from planner.topofinder import find

MOST_RANKS = 32
"""For more the division over all paths takes longer than it is worth in a sentence."""
WAYS = 4
"""Shortest paths of a pair that TopoOpt's routing spreads model-parallel traffic over."""


def explained(found: Design, lab: Lab) -> list[str]:
    """Routing, rules, shares, and a periodic schedule for comparison, a line each."""
    return [*routing(found, lab), *beside_planner(found, lab), *divided(found), *scheduled(found, lab)]


def taken(found: Design, lab: Lab) -> dict[Pair, frozenset[Path]]:
    """The ways of all lanes from each rank to each other, as hosts route, in ranks."""
    rank = {host: number for number, host in enumerate(found.hosts)}
    rings = [tuple(found.hosts[r] for r in order) for g, each in found.orders.items() if g not in found.schedules for order in each]
    chosen = next_hops(found.links, lanes_of(lab), (), rings)
    ways: dict[Pair, frozenset[Path]] = {}
    for a, b in permutations(found.hosts, 2):
        paths = (follow(chosen, lab, a, b, lane) for lane in range(lanes_of(lab)))
        ways[rank[a], rank[b]] = frozenset((rank[a], *(rank[hop.into.host] for hop in path)) for path in paths)
    return ways


def beside_planner(found: Design, lab: Lab) -> list[str]:
    """TopoOpt's own routing against that of the hosts; nothing for other methods and topologies."""
    if found.wanted.method != "topoopt":
        return []
    demand, rules = found.read.demand, found.wanted.rules
    finding = find(demand, found.lab, rules=rules, seed=found.wanted.seed)
    if finding.shape != found.shape:
        return ["TopoOpt's routing is for its own rings; these links are parallel to one of them"]
    theirs = planned(finding, demand.mp, k=WAYS, seed=found.wanted.seed)
    light = [pair for pair, ways in theirs.paths.items() if len(ways) == 1 and not demand.mp[pair]]
    coins = Routes(found.shape.n, {pair: theirs.paths[pair] for pair in light})
    ours = taken(found, lab)
    same = sum(paths <= {path for path, _ in theirs.paths[pair]} for pair, paths in ours.items())
    short = {pair: min(len(path) for path, _ in theirs.paths[pair]) for pair in ours}
    longer = sum(any(len(path) > short[pair] for path in paths) for pair, paths in ours.items())
    heavy = len(ours) - len(light)
    how = f"up to {WAYS} shortest paths" if rules == "paper" else "one path drawn by the seed"
    words = f"TopoOpt's routing ({rules}): {len(light)} pairs by strides (coin change), {heavy} by {how}; "
    words += f"hosts go by none but these between {same} of {len(ours)} pairs, by longer ones between {longer or 'none'}"
    lines = [words]
    if light:
        can = "go by destination alone, so that next hops can carry them" if coins.by_destination else "need a choice by source"
        lines.append(f"ways by strides {can}")
    if heavy and not theirs.by_destination:
        lines.append(
            "several paths of a pair need a choice by source, which next hops do not make: "
            "hosts choose by destination and lane, for all sources alike"
        )
    return lines


def divided(found: Design) -> list[str]:
    """How much of the transfers goes several ways, and what a division over all paths (a linear program) would come to."""
    size: dict[Pair, list[int]] = {}
    for one in found.transfers:
        size.setdefault((one.src, one.dst), []).append(one.bytes)
    if not size:
        return []
    total = sum(map(sum, size.values()))
    several = sum(sum(parts) for parts in size.values() if len(parts) > 1) / total
    words = f"transfers: {several:.0%} of the bytes go several ways, divided over lanes so that the fullest link carries least"
    if found.shape.n <= MOST_RANKS and not found.found.segments:
        loads = pair_loads([PairFlow(one.bytes, (one.way,)) for one in found.transfers], [(1.0,)] * len(found.transfers))
        mp = np.zeros((found.shape.n, found.shape.n))
        for pair, parts in size.items():
            mp[pair] = sum(parts)
        least, _ = fullest(found.shape, mp)
        words += f"; over all paths it would carry {least / max(loads.values()):.0%} of that"
    return [words]


def scheduled(found: Design, lab: Lab) -> list[str]:
    """What a round robin of matchings would take, at the workload's own rate: for schedules to come, reckoned only."""
    if found.found.segments:
        return []
    home = replace(found.lab, rate_gbps=found.read.workload.rate_gbps * PAYLOAD)
    dark = max((lab.traits_of(device).settle_s for device in lab.devices), default=0.0)
    best = fitted(found.read.demand, home, dark)
    seconds = best.iteration_s(found.read.demand, home)
    return [
        f"analytic: a round robin of matchings, {len(best.slots)} slots, dark {ms_text(dark * 1e3)} each (the switches alone): "
        f"iteration {ms_text(seconds * 1e3)} at best, with a dwell of {ms_text(best.dwell_s * 1e3)} (duty {best.duty:.0%})"
    ]
