"""Rings of several strides: a small example of a topology generator."""

from __future__ import annotations

from math import gcd

from planner.model.demand import Demand, Infeasible
from planner.model.shape import Lab, Ring, Shape
from planner.topology.methods import Found, Wanted


def chords(demand: Demand, lab: Lab, wanted: Wanted) -> list[Found]:
    """One ring through all ranks for each of the smallest strides coprime to their number, as many
    as the ports allow.
    """
    # links of a rank that a ring takes, in each direction
    each = 2 if lab.duplex and lab.n > 2 else 1
    strides = [stride for stride in range(1, lab.n // 2 + 1) if gcd(stride, lab.n) == 1][
        : lab.degree // each
    ]
    if not strides:
        raise Infeasible(
            f"degree {lab.degree}: a ring takes {each} ports of each host",
            f"give each host {each} ports",
        )
    rings = tuple(
        Ring("all", tuple(k * stride % lab.n for k in range(lab.n)), stride) for stride in strides
    )
    why = f"one ring for each of the strides {', '.join(map(str, strides))}"
    return [Found(Shape(lab.n, lab.degree, lab.duplex, rings), "acme-chords", (why,))]
