"""Wavelengths that jobs need on a ring: ranks placed and links coloured together, against first fit
with ranks in order.

Random demands on rings of 8, 12 and 16 nodes: the ranks are dealt at random into two to four groups
with a ring each, and some pairs send bytes besides. In order means rank k on node k, every link the
shorter way round on the first wavelength free, one link after the other. Placed:
`planner.topology.wavelengths` chooses nodes, ways round and wavelengths. Judged is the number of
wavelengths, which a count of the links over each stretch checks: no wavelength twice, and never
fewer than the largest cut. What colouring alone gives, with ranks in order, is shown beside it.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from benchmarks.harness import verdict
from planner.model.demand import Demand, Group
from planner.topology.wavelengths import (
    Colouring,
    Span,
    coloured,
    first_fit,
    flows,
    placed,
    ring_order,
    routed,
    steps_of,
)

SIZES, DEMANDS = (8, 12, 16), 20
RATIO, AT_CUT = 0.80, 0.90


def demand(n: int, seed: int) -> Demand:
    rng = np.random.default_rng((n, seed))
    dealt = np.array_split(rng.permutation(n), int(rng.integers(2, 5)))
    groups = tuple(
        Group(f"g{k}", tuple(int(r) for r in sorted(members)), 10**6)
        for k, members in enumerate(dealt)
    )
    mp = np.zeros((n, n))
    for _ in range(n // 4):
        a, b = rng.choice(n, 2, replace=False)
        mp[a, b] = mp[b, a] = 10**6
    return Demand(n, groups, mp)


def links(given: Demand, at: tuple[int, ...]) -> list[tuple[int, int]]:
    return [
        (at[a], at[b]) for flow in flows(given) for a, b in steps_of(ring_order(flow.members, at))
    ]


def check(spans: list[Span], found: Colouring, n: int) -> None:
    """Raises: AssertionError - a wavelength twice over a stretch, or fewer wavelengths than links
    over one.
    """
    over: list[list[int]] = [[] for _ in range(n)]
    for span, colour in zip(spans, found.colours, strict=True):
        for step in range(span.length):
            over[(span.start + step) % n].append(colour)
    assert all(len(set(colours)) == len(colours) <= found.count for colours in over)


def main() -> int:
    ratios, least, cut = [], [], []
    for n in SIZES:
        rows = []
        for seed in range(DEMANDS):
            given = demand(n, seed)
            naive = first_fit(links(given, tuple(range(n))), n)
            spans = list(routed(links(given, placed(given, range(n), n)), n))
            found = coloured(spans, n)
            check(spans, found, n)
            alone = coloured(routed(links(given, tuple(range(n))), n), n)
            rows.append((naive.count, alone.count, found.count))
            ratios.append(found.count / naive.count)
            least.append(found.least)
            cut.append(found.count == found.cut)
        text = "{:.2f} wavelengths in order by first fit, {:.2f} in order, {:.2f} placed"
        print(
            f"  {n} nodes: {text.format(*map(statistics.mean, zip(*rows, strict=True)))} (means of {DEMANDS})",
            flush=True,
        )
    share = sum(cut) / len(cut)
    print(
        f"  as many as the largest cut in {sum(cut)} of {len(cut)}; known to be the least for these places in {sum(least)}"
    )
    more = {"at_cut": round(share, 4), "least": sum(least), "demands": len(cut)}
    return verdict(
        "wavelengths",
        statistics.median(ratios),
        "x",
        RATIO,
        "at most",
        also=share >= AT_CUT,
        **more,
    )


if __name__ == "__main__":
    sys.exit(main())
