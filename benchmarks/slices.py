"""Slices after failures, and what a twist is worth: counts against enumeration, all-to-all against
hops.

First, the probability that a slice can be formed after k random failures is compared with the share
of all sets of k failed hosts that leave one, each set looked at; both must be the same fraction.
Then an all-to-all of 18 hosts is run on a private emulated lab over the 3x6 torus and over the
twisted one, in turns (A B B A). The ratio of the times of its transfers is compared with that of
hops: those that the fullest link carries when pairs divide their bytes over all paths at best (a
linear program of the planner's). Links are shaped to 10 Mb/s, so that bandwidth counts and not the
machine's processors. The limit: off by no more than a tenth.
"""

from __future__ import annotations

import statistics
import sys
from fractions import Fraction
from itertools import combinations, permutations, product
from math import comb
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from benchmarks.bench_lab import BenchLab, bench_lab
from benchmarks.harness import ahead, verdict
from planner.model.shape import Shape
from planner.operate.slices import Machine, Slice, probability
from planner.predict.flow import fullest
from planner.topology.direct import torus, twisted_torus

Sides = tuple[int, ...]
MACHINES: tuple[tuple[Sides, Sides, Sides], ...] = (
    ((3, 4), (1, 1), (2, 2)),
    ((3, 4), (1, 1), (2, 4)),
    ((4, 4), (1, 1), (2, 4)),
    ((4, 4), (2, 2), (2, 4)),
    ((2, 2, 4), (1, 1, 2), (2, 2, 2)),
    ((18,), (3,), (6,)),
)
FAILURES = 6
HOSTS, SIDES, RATE_MBPS, ITERATIONS = 18, (3, 6), 10, 4
ROUNDS = (False, True, True, False)
"""Whether the torus is twisted."""
LIMIT = 0.10
WITHIN_S = 240.0


def share(sides: Sides, block: Sides, wanted: Sides, failures: int, anywhere: bool) -> Fraction:
    """The share of sets of failed hosts that leave a slice, by looking at each."""
    hosts = list(product(*map(range, sides)))
    block_of = {
        host: tuple(at // part for at, part in zip(host, block, strict=True)) for host in hosts
    }
    each = len(hosts) // len({*block_of.values()})
    boxes = set()
    for rotated in set(permutations(wanted)):
        if all(
            side % part == 0 and side <= whole
            for side, part, whole in zip(rotated, block, sides, strict=True)
        ):
            for corner in product(
                *(range(0, whole, part) for whole, part in zip(sides, block, strict=True))
            ):
                inside = product(*map(range, rotated))
                at = (
                    (tuple((c + s) % w for c, s, w in zip(corner, step, sides, strict=True)))
                    for step in inside
                )
                boxes.add(frozenset(block_of[host] for host in at))
    size = len(next(iter(boxes)))
    good = 0
    for failed in combinations(hosts, failures):
        out = {block_of[host] for host in failed}
        good += (
            len(hosts) // each - len(out) >= size
            if anywhere
            else any(out.isdisjoint(box) for box in boxes)
        )
    return Fraction(good, comb(len(hosts), failures))


def counted() -> int:
    """Compare every count; return how many there were. Raises: SystemExit - one differs."""
    seen = 0
    for sides, block, wanted in MACHINES:
        form = Slice(Machine(sides, block), wanted)
        for failures, anywhere in product(range(FAILURES + 1), (True, False)):
            found = probability(form, failures, reconfigurable=anywhere)
            if found != (by_hand := share(sides, block, wanted, failures, anywhere)):
                sys.exit(
                    f"slice {wanted} of {sides}, blocks {block}, {failures} failures: {found}, enumerated {by_hand}"
                )
            seen += 1
    return seen


def measured(lab: BenchLab, plan: Path, predicted_ms: float) -> float:
    """The time (ms) of an iteration's transfers, the median of one run of the plan's job."""
    return float(
        lab.job_figures(plan, predicted_ms / 1e3 * ITERATIONS, WITHIN_S)["transfers"]["measured"]
    )


def main() -> int:
    """Measure and print; return the exit code."""
    ahead()
    seen = counted()
    print(
        f"  {seen} probabilities are the shares of all sets of up to {FAILURES} failures",
        flush=True,
    )
    shapes: dict[bool, Shape] = {False: torus(*SIDES), True: twisted_torus(*SIDES)}
    load = {twisted: fullest(shape, 1.0 - np.eye(HOSTS))[0] for twisted, shape in shapes.items()}
    hops, mean = load[True] / load[False], shapes[True].mean_hops() / shapes[False].mean_hops()
    took: dict[bool, list[float]] = {False: [], True: []}
    with bench_lab(HOSTS, "--rate-mbps", str(RATE_MBPS)) as lab:
        workload = lab.folder / "all-to-all.yaml"
        workload.write_text(
            f"schema: testbed.workload/1\nname: all-to-all\nranks: {HOSTS}\nrate_gbps: 25.0\ncompute_s: 0.001\n"
            "transfers:\n  - {among: all, bytes: 4000000}\n"
        )
        base = ("design", "torus", "--workload", workload, "--iterations", str(ITERATIONS))
        scale = str(lab.call(*base)["scale"] * 4)
        plans = {twisted: lab.folder / f"twisted-{twisted}.json" for twisted in shapes}
        more = {False: (), True: ("--twisted",)}
        here = {
            t: lab.call(*base, "--scale", scale, "--out", plans[t], *more[t])["here"]
            for t in shapes
        }
        for twisted in ROUNDS:
            took[twisted].append(measured(lab, plans[twisted], here[twisted]["iteration_ms"]))
            print(
                f"  {'twisted' if twisted else 'regular'}  transfers {took[twisted][-1]:.0f} ms",
                flush=True,
            )
    ratio = statistics.median(took[True]) / statistics.median(took[False])
    planned = here[True]["transfers_ms"] / here[False]["transfers_ms"]
    print(
        f"  twisted / regular: measured {ratio:.3f}; hops on the fullest link {hops:.3f}, planned routes {planned:.3f}"
    )
    print(f"  hops of a mean pair, which bound no link: {mean:.3f}")
    return verdict(
        "slices",
        abs(ratio / hops - 1),
        "off at most",
        LIMIT,
        "at most",
        counts=seen,
        measured=round(ratio, 4),
        hops=round(hops, 4),
        planned=round(planned, 4),
        mean_hops=round(mean, 4),
        hosts=HOSTS,
        rate_mbps=RATE_MBPS,
    )


if __name__ == "__main__":
    sys.exit(main())
