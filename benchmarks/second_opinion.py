"""The planner's times of transfers and ring all-reduces beside those of SimGrid's model of a
network, on twenty graphs.

    python benchmarks/second_opinion.py [PYTHON] Rings, tori, expanders, and trees of racks with
shared uplinks, with seeded bytes between all pairs and a seeded order of ranks for the all-reduce.
The planner divides transfers over at most four paths of a pair by its linear program, and says that
a phase lasts as long as the fullest link (`planner.predict.iteration`). SimGrid gets the same links,
paths and bytes, without latency and headers; a ring's step begins when the one before has arrived.
Twice: `fair`, flows share links max-min fairly, as TCP would at its best; `paced`, each flow has no
more than its bytes over the planner's time. If the planner's division of links is right, `paced`
takes its time exactly, and what `fair` takes longer is due to max-min sharing: a flow that is held
up at one link leaves another idle, which the arithmetic of the fullest link does not know. It cannot
take less. PYTHON: one with SimGrid, by default this one or the system's (Debian package
python3-simgrid); without any the benchmark is skipped.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import numpy as np

from benchmarks.harness import verdict
from planner.model.shape import Lab, Shape
from planner.predict import routing
from planner.predict.iteration import (
    FlowPath,
    PairFlow,
    RingFlow,
    Shared,
    allreduce_s,
    pair_loads,
    spread,
    transfers_s,
)
from planner.topology import direct
from planner.topology.baselines import expander

PATHS = 4
RATE = 2.5e7
"""Bytes a second of a link: 200 Mb/s."""
PAIR_BYTES, BUFFER_BYTES = 1e7, 1e9
MEDIAN, PACED = 1.10, 0.001
"""Limits: of the median of fair over planner in transfers, and of how far paced is from the planner
in all phases."""
PYTHONS = (sys.executable, "/usr/bin/python3")
WITHIN_S = 300.0


@dataclass(frozen=True)
class Graph:
    """Hosts, and the paths of every pair over links of the planner."""

    family: str
    name: str
    n: int
    paths: Mapping[tuple[int, int], tuple[FlowPath, ...]]


@dataclass(frozen=True)
class Case:
    """One phase on a graph: what the planner says, and what SimGrid is to send."""

    graph: Graph
    phase: str
    planner_s: float
    chains: Sequence[dict[str, Any]]

    def flows(self, *, paced: bool) -> dict[str, Any]:
        """As `simgrid_flows` takes it."""
        links = dict.fromkeys(link for chain in self.chains for link in chain["links"])
        names = {link: str(number) for number, link in enumerate(links)}
        speeds = {
            names[link]: RATE * (link.speed if isinstance(link, Shared) else 1.0) for link in links
        }
        chains = [
            chain | {"links": [names[link] for link in chain["links"]]} for chain in self.chains
        ]
        if paced:  # by a link of its own
            for number, chain in enumerate(chains):
                chain["links"].append(f"pace {number}")
                speeds[f"pace {number}"] = chain["bytes"] * chain["steps"] / self.planner_s
        return {"links": speeds, "chains": chains}


def joined(family: str, name: str, shape: Shape) -> Graph:
    """Hosts that circuits join."""
    links = {
        (a, b): Shared((a, b), float(shape.adjacency[a, b])) for a, b in dict.fromkeys(shape.links)
    }
    paths = {
        pair: tuple(tuple(links[step] for step in pairwise(path)) for path, _ in found)
        for pair, found in routing.k_shortest(shape, PATHS).paths.items()
    }
    return Graph(family, name, shape.n, paths)


def tree(racks: int, each: int, factor: float) -> Graph:
    """Racks whose hosts share an uplink of each direction, of a `factor`th of their rates."""

    def path(src: int, dst: int) -> FlowPath:
        here, there = src // each, dst // each
        shared: Sequence[Hashable] = (
            [Shared((end, rack), each / factor) for end, rack in (("up", here), ("down", there))]
            if here != there
            else ()
        )
        return (("from", src), *shared, ("to", dst))

    n = racks * each
    paths = {(a, b): (path(a, b),) for a in range(n) for b in range(n) if a != b}
    return Graph("trees", f"{racks} racks of {each}, {factor:g}:1", n, paths)


def graphs() -> Iterator[Graph]:
    for n in (4, 6, 8, 10, 12):
        yield joined("rings", f"{n} hosts", direct.ring(n))
    for sides in ((3, 3), (3, 4), (3, 5), (4, 4), (2, 3, 3)):
        yield joined("tori", " x ".join(map(str, sides)), direct.torus(*sides))
    for seed, (n, degree) in enumerate(((8, 3), (10, 3), (12, 3), (12, 4), (16, 4))):
        shape = expander(Lab(n, degree), seed=seed)
        yield joined("expanders", f"{n} hosts of degree {degree}", shape)
    for racks, each, factor in ((2, 4, 2), (2, 6, 4), (3, 4, 2), (4, 3, 3), (4, 4, 4)):
        yield tree(racks, each, factor)


def transfers(graph: Graph, rng: np.random.Generator) -> Case:
    """Bytes from each host to each other one."""
    pairs = sorted(graph.paths)
    sizes = PAIR_BYTES * rng.lognormal(sigma=0.7, size=len(pairs))
    flows = [
        PairFlow(float(size), graph.paths[pair]) for pair, size in zip(pairs, sizes, strict=True)
    ]
    parts = spread(flows)
    chains = [
        {
            "src": f"{a}.{k}",
            "dst": f"{b}.{k}",
            "links": path,
            "bytes": share * flow.bytes,
            "steps": 1,
            "next": 0,
        }
        for (a, b), flow, shares in zip(pairs, flows, parts, strict=True)
        for k, (path, share) in enumerate(zip(flow.paths, shares, strict=True))
        if share
    ]
    return Case(graph, "transfers", transfers_s(pair_loads(flows, parts), RATE), chains)


def allreduce(graph: Graph, rng: np.random.Generator) -> Case:
    """One ring through all hosts, in an order that the graph was not made for."""
    order = rng.permutation(graph.n).tolist()
    pairs = [*pairwise(order), (order[-1], order[0])]
    ring = RingFlow(BUFFER_BYTES, tuple(graph.paths[pair][0] for pair in pairs))
    chains = [
        {
            "src": f"{a}.0",
            "dst": f"{b}.0",
            "links": path,
            "bytes": BUFFER_BYTES / graph.n,
            "steps": 2 * (graph.n - 1),
            "next": (number + 1) % graph.n,
        }
        for number, ((a, b), path) in enumerate(zip(pairs, ring.steps, strict=True))
    ]
    return Case(graph, "all-reduce", allreduce_s([ring], RATE), chains)


def with_simgrid(wanted: Sequence[str]) -> str:
    """The first of these Pythons that has SimGrid; empty if none has."""
    for python in wanted:
        try:
            found = subprocess.run([python, "-I", "-c", "import simgrid"], capture_output=True)
        except OSError:
            continue
        if found.returncode == 0:
            return python
    return ""


def simulated(python: str, cases: Sequence[dict[str, Any]]) -> list[float]:
    """The time (s) of each by SimGrid."""
    program = Path(__file__).with_name("simgrid_flows.py")
    done = subprocess.run(
        [python, "-I", str(program)],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
    )
    if done.returncode != 0:
        raise SystemExit(f"SimGrid ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    reply: list[float] = json.loads(done.stdout)
    return reply


def main() -> int:
    """Compare and print; return the exit code."""
    python = with_simgrid(sys.argv[1:] or PYTHONS)
    if not python:
        text = "no Python here has SimGrid (Debian package python3-simgrid)"
        line = {
            "name": "second_opinion",
            "value": None,
            "unit": "x",
            "limit": MEDIAN,
            "ratio": None,
        }
        print(f"  skipped: {text}")
        print(json.dumps(line | {"pass": True, "skipped": text}))
        return 0
    cases = [
        phase(graph, np.random.default_rng(seed))
        for seed, graph in enumerate(graphs())
        for phase in (transfers, allreduce)
    ]
    ratios = {
        paced: [
            time / case.planner_s
            for case, time in zip(
                cases, simulated(python, [case.flows(paced=paced) for case in cases]), strict=True
            )
        ]
        for paced in (False, True)
    }
    fair, paced = ratios[False], ratios[True]
    phases: dict[str, list[float]] = {}
    families: dict[str, list[float]] = {}
    for case, ratio, exact in zip(cases, fair, paced, strict=True):
        phases.setdefault(case.phase, []).append(ratio)
        families.setdefault(f"{case.phase}, {case.graph.family}", []).append(ratio)
        print(
            f"  {case.graph.family:<10} {case.graph.name:<24} {case.phase:<10} planner {case.planner_s:8.3f} s, fair {ratio:.4f} x,"
            f" paced {exact:.4f} x",
            flush=True,
        )
    off = max(abs(exact - 1) for exact in paced)
    return verdict(
        "second_opinion",
        statistics.median(phases["transfers"]),
        "x",
        MEDIAN,
        "at most",
        also=off <= PACED and min(fair) >= 1 - PACED,
        least=round(min(fair), 4),
        worst={phase: round(max(found), 4) for phase, found in phases.items()},
        paced_off=round(off, 6),
        cases=len(cases),
        families={
            name: [round(statistics.median(found), 4), round(max(found), 4)]
            for name, found in families.items()
        },
    )


if __name__ == "__main__":
    sys.exit(main())
