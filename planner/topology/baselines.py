"""Baselines for a topology: regular graphs that ignore traffic, and electrical switches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import numpy as np

from planner.model.demand import Infeasible
from planner.model.shape import Lab, Ring, Shape
from planner.topology import direct
from planner.topology.topofinder import BASE

MIXING = 20
"""Exchanges tried for each link before a graph counts as random."""


def rings(lab: Lab, group: str = BASE) -> Shape:
    """The same ring in rank order on all ports: parallel links, all that a back-end with one order
    can use.
    """
    each = 2 if lab.duplex and lab.n > 2 else 1
    if lab.degree < each:
        raise Infeasible(
            f"degree {lab.degree}: a duplex ring takes {each} ports",
            f"give hosts {each} ports, or take simplex links",
        )
    return Shape(
        lab.n,
        lab.degree,
        lab.duplex,
        tuple(Ring(group, tuple(range(lab.n)), 1) for _ in range(lab.degree // each)),
    )


def torus(lab: Lab) -> Shape:
    """The torus of degree / 2 dimensions whose sides are nearest to equal. Raises: Infeasible - the
    ranks do not divide so.
    """
    dimensions = lab.degree // 2
    sides = min(_sides(lab.n, dimensions, 3), key=lambda sides: sides[-1] / sides[0], default=None)
    if sides is None or not lab.duplex:
        raise Infeasible(
            f"{lab.n} ranks make no duplex torus of {dimensions} sides of 3 or more",
            f"take {3 ** max(dimensions, 1)} ranks, or degree 2",
        )
    return direct.torus(*sides)


def twisted_torus(lab: Lab) -> tuple[Shape, tuple[int, ...]]:
    """The twisted torus of degree / 2 dimensions whose sides are nearest to equal without being so,
    and its sides.

    Raises: Infeasible - the ranks do not divide so.
    """
    dimensions = lab.degree // 2
    unequal = (sides for sides in _sides(lab.n, dimensions, 2) if len(set(sides)) > 1)
    sides = min(unequal, key=lambda sides: sides[-1] / sides[0], default=None)
    if sides is None or not lab.duplex:
        least = 2**dimensions * 2
        raise Infeasible(
            f"{lab.n} ranks of degree {lab.degree} make no duplex twisted torus of 2 sides or more, not all of them equal",
            f"take {least} ranks (k x 2k for k = 2)"
            if dimensions > 1
            else "degree 4, for two sides",
        )
    return direct.twisted_torus(*sides), sides


def torus_hops(sides: Sequence[int]) -> float:
    """Hops of an average pair of the torus of these sides: along a ring of s ranks, floor(s * s /
    4) / s from any to all.
    """
    n = prod(sides)
    return sum((side * side // 4) / side for side in sides) * n / (n - 1)


def _sides(n: int, dimensions: int, least: int) -> Iterator[tuple[int, ...]]:
    """All ways to write n as a product of so many sides of `least` or more, in ascending order."""
    if dimensions <= 1:
        yield from [(n,)] if dimensions == 1 and n >= least else []
        return
    for side in range(least, n + 1):
        if side**dimensions > n:
            return
        if n % side == 0:
            yield from ((side, *rest) for rest in _sides(n // side, dimensions - 1, side))


def random_regular(lab: Lab, *, seed: int = 0) -> Shape:
    """A connected graph of this degree, by random exchanges of links, without parallel ones.

    Raises: Infeasible - an odd number of ports in all, or more ports than other ranks.
    """
    n, degree = lab.n, lab.degree
    if degree >= n:
        raise Infeasible(
            f"degree {degree} among {n} ranks without parallel links", f"take degree {n - 1}"
        )
    if lab.duplex and n * degree % 2:
        raise Infeasible(
            f"{n} ranks of degree {degree} have an odd number of ports",
            f"take degree {degree - 1} or {degree + 1}",
        )
    if degree < 2:
        raise Infeasible(f"degree {degree} joins no more than pairs", "take degree 2 or more")
    half = (n // 2,) if lab.duplex and degree % 2 else ()
    steps = range(1, (degree // 2 if lab.duplex else degree) + 1)
    start = direct.circulant(n, (*steps, *half), duplex=lab.duplex)
    rng = np.random.default_rng(seed)
    while True:
        shape = direct.graph(n, _mixed(start.cables.tolist(), lab.duplex, rng), duplex=lab.duplex)
        if shape.connected:
            return shape


def _mixed(links: list[list[int]], duplex: bool, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Exchange ends of two links drawn by chance, many times over; never a loop or a link twice."""

    def key(a: int, b: int) -> tuple[int, int]:
        return (a, b) if not duplex or a < b else (b, a)

    existing = {key(a, b) for a, b in links}
    order = sorted(existing)
    for first, second, step in zip(
        rng.integers(len(order), size=MIXING * len(order)).tolist(),
        rng.integers(len(order), size=MIXING * len(order)).tolist(),
        rng.integers(2, size=MIXING * len(order)).tolist(),
        strict=True,
    ):
        (a, b), (c, d) = order[first], order[second]
        if duplex and step:
            c, d = d, c
        new = key(a, d), key(c, b)
        if len({a, b, c, d}) == 4 and new[0] not in existing and new[1] not in existing:
            existing -= {order[first], order[second]}
            existing |= {*new}
            order[first], order[second] = new
    return order


def expander(lab: Lab, *, seed: int = 0, tries: int = 16) -> Shape:
    """Of some random regular graphs the one with the widest spectral gap."""
    return max(
        (random_regular(lab, seed=seed * tries + number) for number in range(tries)),
        key=spectral_gap,
    )


def spectral_gap(shape: Shape) -> float:
    """The degree less the largest other eigenvalue (modulus); Ramanujan graphs have at least degree
    - 2 sqrt(degree - 1).
    """
    adjacency = shape.adjacency.astype(float)
    values = (
        np.linalg.eigvalsh(adjacency)
        if shape.duplex
        else np.linalg.svd(adjacency, compute_uv=False)
    )
    sizes = np.sort(np.abs(values))[::-1]
    return float(sizes[0] - sizes[1])
