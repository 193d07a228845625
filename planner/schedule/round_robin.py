"""Schedules in which every pair meets in turn, and the share of time they have light. Values only.

A schedule is a tuple of slots, a slot a tuple of matchings, one for each plane; a plane is a port
of every rank, all at one switch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil
from typing import TypeAlias

from planner.model.demand import Infeasible
from planner.model.shape import Lab, Shape

Matching: TypeAlias = tuple[tuple[int, int], ...]
"""Pairs of ranks (the smaller first), no rank twice."""
Slots: TypeAlias = tuple[tuple[Matching, ...], ...]


def round_robin(n: int) -> tuple[Matching, ...]:
    """Matchings that join every pair once: n - 1 of them for even n, n with one rank idle in each
    for odd n (circle method).
    """
    seats = n + n % 2
    rounds = []
    for step in range(seats - 1):
        circle = [(place + step) % (seats - 1) for place in range(seats - 1)]
        pairs = [(seats - 1, circle[0])] + [
            (circle[i], circle[seats - 1 - i]) for i in range(1, seats // 2)
        ]
        rounds.append(tuple(sorted((min(pair), max(pair)) for pair in pairs if max(pair) < n)))
    return tuple(rounds)


def round_robin_slots(lab: Lab) -> tuple[Shape, ...]:
    """A schedule in which every pair meets: ceil((n-1)/d) slots of d matchings, the last filled up
    from the first.
    """
    matchings = round_robin(lab.n)
    slots = ceil(len(matchings) / lab.degree)
    width = min(lab.degree, len(matchings))
    dealt = [
        [matchings[(slot * width + port) % len(matchings)] for port in range(width)]
        for slot in range(slots)
    ]
    links = [[pair for matching in slot for pair in matching] for slot in dealt]
    if not lab.duplex:
        links = [[pair for a, b in pairs for pair in ((a, b), (b, a))] for pairs in links]
    return tuple(Shape(lab.n, lab.degree, lab.duplex, (), tuple(pairs)) for pairs in links)


def shapes(slots: Slots, n: int) -> tuple[Shape, ...]:
    """The slots as topologies of duplex links."""
    return tuple(
        Shape(n, len(slot), True, (), tuple(pair for matching in slot for pair in matching))
        for slot in slots
    )


def together(n: int, planes: int) -> Slots:
    """All planes show the same matching: as many slots as the circle has matchings, `planes`
    parallel links to one partner each.
    """
    return tuple((matching,) * planes for matching in round_robin(n))


def staggered(n: int, planes: int) -> Slots:
    """Each plane goes through its own part of the circle: ceil((n-1)/planes) slots for even n,
    ceil(n/planes) for odd n.

    The last plane is filled up from the first matchings. RotorNet (SIGCOMM 2017) divides matchings
    among its switches so.
    """
    matchings = round_robin(n)
    slots = ceil(len(matchings) / planes)
    return tuple(
        tuple(matchings[(plane * slots + slot) % len(matchings)] for plane in range(planes))
        for slot in range(slots)
    )


def opera(n: int, planes: int) -> Slots:
    """As `staggered`, but one plane moves at a time, so that the others have light while it is
    dark: planes times as many slots.

    Opera (NSDI 2020) sends small messages over several hops of the planes that stay.
    """
    parts = staggered(n, planes)
    if len(parts) == 1:
        return parts
    steps = [(slot // planes, slot % planes) for slot in range(len(parts) * planes)]
    return tuple(
        tuple(parts[(step + (plane <= moved)) % len(parts)][plane] for plane in range(planes))
        for step, moved in steps
    )


PATTERNS: Mapping[str, Callable[[int, int], Slots]] = {
    "round-robin": together,
    "staggered": staggered,
    "opera": opera,
}


def expanded(pattern: str, n: int, planes: int) -> Slots:
    """The slots of a pattern by its name. Raises: Infeasible - fewer than 2 ranks, or no plane."""
    if n < 2 or planes < 1:
        raise Infeasible(
            f"a schedule over {n} hosts and {planes} ports", "give it at least 2 hosts and 1 port"
        )
    return PATTERNS[pattern](n, planes)


def fewest_slots(n: int, planes: int) -> int:
    """Slots below which no schedule joins every pair: a plane joins floor(n/2) of the n(n-1)/2
    pairs at once.
    """
    return ceil(n * (n - 1) / 2 / (planes * (n // 2)))


def duty(dwell_s: float, dark_s: float, guard_s: float = 0.0) -> float:
    """Share of the time that hosts may send: `guard_s` of each dwell they do not, `dark_s` between
    two slots they cannot.
    """
    return (dwell_s - guard_s) / (dwell_s + dark_s)
