"""The planner's methods behind one interface: demand and lab in, candidate topologies with reasons
out. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from optics import HostName, HostPort
from planner.model.backend import Backend, single_order
from planner.model.demand import Demand
from planner.model.shape import Lab, Ring, Shape
from planner.topology.alternating import PATIENCE
from planner.workers import Workers

RELAYS = ("chunks", "whole")
"""How ranks pass transfers on: while they come in, or once all of them have."""
TRIED = 4
"""Answers of a method that are evaluated on the hosts; the fastest is taken."""


@dataclass(frozen=True)
class Wanted:
    """How to design. ports: of each host, None for all. hosts: which, in rank order; none: the
    first of the lab that no other plan has (`taken`: host to plan). domain: hosts of a rail-only
    domain. search: strategies of parallelism to try, 0 for the workload's own alone. segments:
    names of packet switches, patterns too, for methods that use those. relay: how ranks pass on
    transfers between hosts that no packet switch joins; empty: hosts forward packets. twisted: of a
    torus."""

    method: str
    rules: Literal["paper", "artifact"] = "paper"
    seed: int = 1
    backend: Backend = "ring-groups"
    hosts: tuple[HostName, ...] = ()
    taken: Mapping[HostName, str] = field(default_factory=dict)
    ports: int | None = None
    simplex: bool = False
    alpha_s: float = 0.0
    scale: float | None = None
    iterations: int = 20
    domain: int = 2
    search: int = 0
    patience: int = PATIENCE
    segments: tuple[str, ...] = ()
    relay: Literal["", "chunks", "whole"] = ""
    twisted: bool = False
    wavelengths: int = 0
    """Of a ring of switches that select them, at most so many; 0: all."""
    held: tuple[tuple[HostPort, HostPort], ...] = ()
    """Ends of the links of plans that stay."""
    schedule: str = ""
    """Of all-reduce by the back-end msccl; empty: breadth-first where it is faster than rings."""
    chains: int = 1
    """Searches for parallelism with dice of their own; the best answer counts."""
    workers: Workers | None = field(default=None, compare=False, repr=False)
    """Who carries out pieces of a search (None: this process). The answer does not depend on
    them.
    """


@dataclass(frozen=True)
class Found:
    """One answer of a method: the topology, its name among the others, and why in words, a line
    each. segments: the packet switches that are this topology, each with its hosts; none for light.
    order: which of the hosts each rank is on, by number; empty: the first on the first, and so on.
    ports: at both ends of each of `shape.cables`, empty where any will do."""

    shape: Shape
    name: str
    why: tuple[str, ...] = ()
    segments: tuple[tuple[str, tuple[HostName, ...]], ...] = ()
    order: tuple[int, ...] = ()
    ports: tuple[tuple[HostPort, HostPort], ...] = ()


def topoopt(demand: Demand, lab: Lab, wanted: Wanted) -> list[Found]:
    """TopologyFinder's answer, and for a back-end of one order the same with parallel links."""
    from planner.topology.topofinder import find

    finding = find(demand, lab, rules=wanted.rules, seed=wanted.seed)
    split = finding.split
    why = [
        f"all-reduce is {split.allreduce_share:.1%} of the bytes on the wire, so {split.degree_allreduce} of {lab.degree} ports "
        f"are for rings, {split.degree_mp} for matched pairs ({wanted.rules} rules)"
    ]
    for group, choices in finding.choices:
        rings = [ring for ring in finding.shape.rings if ring.group == group]
        if choices and all(ring.stride is not None for ring in rings):
            wished = ", ".join(
                f"{c.wanted:.2f}" + (f" ({c.tie} is as near)" if c.tie else "") for c in choices
            )
            how = "nearest to" if wanted.rules == "paper" else "first not below"
            why.append(
                f"group {group}: strides {', '.join(str(ring.stride) for ring in rings)}, {how} the wished {wished}"
            )
        else:
            why.append(f"group {group}: {len(rings)} ring(s)")
    why += [
        f"round {k} of matching joins {len(match.pairs)} pairs"
        for k, match in enumerate(finding.matches, 1)
    ]
    return _for_backend(
        [Found(finding.shape, f"topoopt {wanted.rules}", (*why, *finding.notes))], wanted
    )


def exact(demand: Demand, lab: Lab, wanted: Wanted) -> list[Found]:
    """The Pareto list of the search of small clusters, the fastest first."""
    from planner.topology.exact import search

    found = search(
        demand, lab, seed=wanted.seed, schedules=wanted.backend == "msccl", workers=wanted.workers
    )
    counted = ", ".join(
        f"{count} {kind}s" if kind != "exchanged" else f"{count} by exchanges"
        for kind, count in found.counts
    )
    counted += "; another graph may still be better"
    least = f"no graph of this degree has a diameter below {found.moore[0]} or fewer mean hops than {found.moore[1]:.3f}"
    answers = []
    for one in found.best[:TRIED]:
        figures = f"{one.name}: diameter {one.score.diameter}, {one.score.hops:.3f} hops a byte, survives {one.score.fails - 1} failures"
        answers.append(
            Found(
                _ringed(one.shape),
                one.name,
                (f"looked at {counted}", least, found.beaten(), figures),
            )
        )
    return _for_backend(answers, wanted)


def direct(demand: Demand, lab: Lab, wanted: Wanted) -> list[Found]:
    """Graphs from bases and expansions, fewest steps first."""
    from planner.predict.score import moore
    from planner.topology.direct import best_known, pareto
    from planner.topology.known import LARGEST

    found = pareto(demand.n, lab.degree, duplex=lab.duplex)
    best = best_known(demand.n, lab.degree, duplex=lab.duplex)
    if best is not None and best.name not in {one.name for one in found}:
        found = (best, *found)
    steps, hops = moore(demand.n, lab.degree, duplex=lab.duplex)
    bound = f"Moore bound: no graph of this degree has a diameter below {steps} or fewer mean hops than {hops:.3f}"
    answers = []
    for one in found[:TRIED]:
        shape = one.build()
        why = [
            f"{one.name}: all-gather in {one.cost.steps} steps, {float(one.cost.load):.4f} M/B",
            f"diameter {shape.diameter}, {shape.mean_hops():.3f} mean hops",
            f"least load of any graph {(demand.n - 1) / demand.n:.4f} M/B",
            bound,
        ]
        if (
            best is not None
            and one.name == best.name
            and (source := LARGEST.get((demand.n, lab.degree)))
        ):
            why.append(source)
        answers.append(Found(_ringed(shape), one.name, tuple(why)))
    return _for_backend(answers, wanted)


def ring(demand: Demand, lab: Lab, wanted: Wanted) -> list[Found]:
    """Parallel links along one ring in rank order."""
    from planner.topology.baselines import rings

    shape = rings(lab)
    return [Found(shape, "ring", (f"{len(shape.rings)} parallel ring(s) in rank order",))]


def torus(demand: Demand, lab: Lab, wanted: Wanted) -> list[Found]:
    """The squarest torus, or the squarest that can be twisted."""
    from planner.topology import baselines

    if not wanted.twisted:
        found = Found(
            _ringed(baselines.torus(lab)),
            "torus",
            ("a ring along each side, sides as equal as the hosts divide",),
        )
        return _for_backend([found], wanted)
    shape, sides = baselines.twisted_torus(lab)
    half = " and ".join(str(side // 2) for side in sorted(set(sides))[1:])
    why = (
        f"sides {'x'.join(map(str, sides))}; links that close a side of {sides[0]} also step {half} along the longer side(s)",
        f"a pair is {shape.mean_hops():.3f} hops apart, {baselines.torus_hops(sides):.3f} without the twist",
    )
    return _for_backend([Found(_ringed(shape), "twisted torus", why)], wanted)


def random(demand: Demand, lab: Lab, wanted: Wanted) -> list[Found]:
    """A random regular graph."""
    from planner.topology.baselines import random_regular

    why = (f"drawn by seed {wanted.seed}, whatever the traffic",)
    return _for_backend(
        [Found(_ringed(random_regular(lab, seed=wanted.seed)), "random", why)], wanted
    )


def expander(demand: Demand, lab: Lab, wanted: Wanted) -> list[Found]:
    """The random regular graph of the largest spectral gap among a few."""
    from planner.topology import baselines

    shape = baselines.expander(lab, seed=wanted.seed)
    why = (
        f"spectral gap {baselines.spectral_gap(shape):.3f}, the largest of those drawn by seed {wanted.seed}",
    )
    return _for_backend([Found(_ringed(shape), "expander", why)], wanted)


def rail_only(demand: Demand, lab: Lab, wanted: Wanted) -> list[Found]:
    """Domains and rails, half of the ports each."""
    from planner.topology.railonly import template

    shape, apart = template(lab, wanted.domain), lab.n // wanted.domain
    why = (
        f"{apart} domains of {wanted.domain}, {wanted.domain} rails of {apart}, half of the ports for each",
        "links of domains are as fast as rails here: it shows traffic and its paths, not the ratio of rates",
    )
    found = [Found(shape, f"rail-only, domains of {wanted.domain}", why)]
    through = _ringed(
        replace(shape, rings=(), matched=tuple((a, b) for a, b in shape.cables.tolist()))
    )
    if through.rings:  # the same links, for sums of all ranks
        whole = f"sums of all ranks go round {len(through.rings)} ring(s) through domains and rails"
        found.append(Found(through, f"{found[0].name}, rings through all", (*why, whole)))
    return _for_backend(found, wanted)


def _ringed(shape: Shape) -> Shape:
    """The same links as rings through all ranks and what is left, where they can be taken apart
    so.
    """
    if shape.rings:
        return shape
    from planner.topology.hamilton import decompose

    parts = decompose(shape)
    if parts is None:
        return shape
    orders, rest = parts
    return replace(shape, rings=tuple(Ring("all", order) for order in orders), matched=rest)


def _for_backend(found: list[Found], wanted: Wanted) -> list[Found]:
    if wanted.backend != "single-order":
        return found
    why = "single-order back-end: parallel links along one order, which is all that it can fill"
    alike = [
        replace(
            one, shape=single_order(one.shape), name=f"{one.name}, parallel", why=(*one.why, why)
        )
        for one in found
        if one.shape.rings
    ]
    return [*alike, *found]


METHODS: Mapping[str, Callable[[Demand, Lab, Wanted], list[Found]]] = {
    "topoopt": topoopt,
    "exact": exact,
    "direct": direct,
    "ring": ring,
    "torus": torus,
    "random": random,
    "expander": expander,
    "rail-only": rail_only,
}
