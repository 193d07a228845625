"""The planner's methods behind one door: a demand and what a lab offers in, topologies to choose from and why out. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from optics import HostName
from planner.backend import Backend, single_order
from planner.demand import Demand, Infeasible
from planner.shape import Lab, Ring, Shape

TRIED = 4
"""So many of a method's answers are reckoned with on the hosts; the fastest is taken."""


@dataclass(frozen=True)
class Wanted:
    """How to design. ports: of each host, None for all. hosts: which, in rank order; none: the first of the lab."""

    method: str
    rules: Literal["paper", "artifact"] = "paper"
    seed: int = 1
    backend: Backend = "ring-groups"
    hosts: tuple[HostName, ...] = ()
    ports: int | None = None
    simplex: bool = False
    alpha_s: float = 0.0
    scale: float | None = None
    iterations: int = 20


@dataclass(frozen=True)
class Found:
    """One answer of a method: the topology, its name among the others, and why in words, a line each."""

    shape: Shape
    name: str
    why: tuple[str, ...] = ()


def topoopt(demand: Demand, lab: Lab, wanted: Wanted) -> list[Found]:
    """TopologyFinder's answer, and for a back-end of one order the same with parallel links."""
    from planner.topofinder import find

    finding = find(demand, lab, rules=wanted.rules, seed=wanted.seed)
    split = finding.split
    why = [
        f"all-reduce is {split.allreduce_share:.1%} of the bytes on the wire, so {split.degree_allreduce} of {lab.degree} ports "
        f"are for rings, {split.degree_mp} for matched pairs ({wanted.rules} rules)"
    ]
    for group, choices in finding.choices:
        rings = [ring for ring in finding.shape.rings if ring.group == group]
        if choices and all(ring.stride is not None for ring in rings):
            wished = ", ".join(f"{choice.wanted:.2f}" for choice in choices)
            why.append(f"group {group}: strides {', '.join(str(ring.stride) for ring in rings)}, nearest to the wished {wished}")
        else:
            why.append(f"group {group}: {len(rings)} ring(s)")
    why += [f"round {k} of matching joins {len(match.pairs)} pairs" for k, match in enumerate(finding.matches, 1)]
    return _for_backend([Found(finding.shape, f"topoopt {wanted.rules}", (*why, *finding.notes))], wanted)


def exact(demand: Demand, lab: Lab, wanted: Wanted) -> list[Found]:
    """The Pareto list of the exact search, the fastest first."""
    from planner.exact import search

    found = search(demand, lab, seed=wanted.seed, schedules=wanted.backend == "msccl")
    counted = ", ".join(f"{count} {kind}s" if kind != "exchanged" else f"{count} by exchanges" for kind, count in found.counts)
    least = f"no graph of this degree has a diameter below {found.moore[0]} or fewer mean hops than {found.moore[1]:.3f}"
    answers = []
    for one in found.best[:TRIED]:
        figures = (
            f"{one.name}: diameter {one.score.diameter}, {one.score.hops:.3f} hops a byte, survives {one.score.fails - 1} failures"
        )
        answers.append(Found(_ringed(one.shape), one.name, (f"looked at {counted}", least, found.beaten(), figures)))
    return _for_backend(answers, wanted)


def direct(demand: Demand, lab: Lab, wanted: Wanted) -> list[Found]:
    """Graphs from bases and expansions, fewest steps first."""
    from planner.direct import pareto

    answers = []
    for one in pareto(demand.n, lab.degree, duplex=lab.duplex):
        cost = f"{one.name}: all-gather in {one.cost.steps} steps, {float(one.cost.load):.4f} M/B"
        answers.append(
            Found(_ringed(one.build()), one.name, (cost, f"least load of any graph {(demand.n - 1) / demand.n:.4f} M/B"))
        )
    return _for_backend(answers[:TRIED], wanted)


def ring(demand: Demand, lab: Lab, wanted: Wanted) -> list[Found]:
    """Parallel links along one ring in rank order. Raises: Infeasible - too few ports."""
    each = 2 if lab.duplex and demand.n > 2 else 1
    count = lab.degree // each
    if not count:
        raise Infeasible(f"degree {lab.degree}: a ring takes {each} ports of each host", f"use {each} ports")
    rings = tuple(Ring("all", tuple(range(demand.n)), 1) for _ in range(count))
    return [Found(Shape(demand.n, lab.degree, lab.duplex, rings), "ring", (f"{count} parallel ring(s) in rank order",))]


def _ringed(shape: Shape) -> Shape:
    """The same links as rings through all ranks and what is left, where they can be taken apart so."""
    if shape.rings:
        return shape
    from planner.hamilton import decompose

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
        replace(one, shape=single_order(one.shape), name=f"{one.name}, parallel", why=(*one.why, why))
        for one in found
        if one.shape.rings
    ]
    return [*alike, *found]


METHODS: Mapping[str, Callable[[Demand, Lab, Wanted], list[Found]]] = {
    "topoopt": topoopt,
    "exact": exact,
    "direct": direct,
    "ring": ring,
}
