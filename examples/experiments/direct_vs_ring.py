"""Direct-connect graphs against a ring at small sizes, where steps count and not bytes: `python direct_vs_ring.py`.

Twelve ranks of degree 4. A ring takes 11 steps to gather, a graph of small diameter as many as that; each step costs alpha.
"""

from __future__ import annotations

from common import ANALYTIC, HOSTS, say

from planner.direct import pareto
from planner.shape import Lab

ALPHA_S, GBPS, DEGREE = 10e-6, 25.0, 4
SIZES = (1_000, 100_000, 10_000_000, 1_000_000_000)


def main() -> None:
    lab = Lab(HOSTS, DEGREE, GBPS, alpha_s=ALPHA_S)
    best = pareto(HOSTS, DEGREE)
    print(f"  {HOSTS} ranks, {DEGREE} x {GBPS:g} Gb/s, {ALPHA_S * 1e6:g} us a step; all-reduce is reduce-scatter and all-gather")
    for size in SIZES:
        ring_s = 2 * ((HOSTS - 1) * ALPHA_S + (HOSTS - 1) / HOSTS * size / (DEGREE * lab.port_bytes_per_s))
        found = min(best, key=lambda one: one.cost.time_s(size, lab))
        took_s = 2 * found.cost.time_s(size, lab)
        words = f"{size:>13,} B: rings {ring_s * 1e6:10.1f} us, {found.name} {took_s * 1e6:10.1f} us; rings / direct"
        say(words, ring_s / took_s, None, None, ANALYTIC)


if __name__ == "__main__":
    main()
