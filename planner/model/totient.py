"""Ring orders from strides coprime to the group's size, the choice among them, and paths along
them.

TotientPerms, SelectPermutations and CoinChangeMod are TopoOpt's (NSDI'23), the latter two as far as
its public descriptions go; `artifact` follows what its released planner does instead. Groups too
small for enough strides get Walecki's cycles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from planner.model.demand import Infeasible

Rules: TypeAlias = Literal["paper", "artifact"]


@dataclass(frozen=True)
class Choice:
    """A stride that was taken, the value it was to be near, and the other stride that was as near,
    if there was one.
    """

    wanted: float
    stride: int
    tie: int | None = None


def strides(size: int, *, duplex: bool = False) -> tuple[int, ...]:
    """Strides that visit all of `size` members once; of a stride and its reverse only the smaller
    if links are duplex.
    """
    last = size // 2 if duplex else size - 1
    return tuple(stride for stride in range(1, last + 1) if gcd(stride, size) == 1)


def ring(members: Sequence[int], stride: int) -> tuple[int, ...]:
    """The order in which steps of `stride` visit the members. Raises: Infeasible - it would not
    visit all of them.
    """
    size = len(members)
    if gcd(stride, size) != 1:
        near = min(strides(size), key=lambda other: (abs(other - stride), other))
        raise Infeasible(
            f"stride {stride} returns to its start before it has visited all {size} members",
            f"take stride {near}",
        )
    return tuple(members[step * stride % size] for step in range(size))


def select(size: int, count: int, *, duplex: bool, rules: Rules = "paper") -> tuple[Choice, ...]:
    """`count` strides spread so that sums of few of them reach every distance.

    paper: the smallest, then each time the unused one nearest to a value that grows by
    size^(1/count); the smaller of two as near. artifact: the first candidate not below a value that
    grows from the first to the last candidate; both of a stride and its reverse are candidates;
    where none is left above, the largest unused. Raises: Infeasible - there are fewer strides than
    that.
    """
    candidates = strides(size, duplex=duplex and rules == "paper")
    if not 1 <= count <= len(candidates):
        raise Infeasible(
            f"{count} ring(s) of different strides wanted, a group of {size} has {len(candidates)}",
            f"take 1 to {len(candidates)} rings" if candidates else "take a group of 2 or more",
        )
    return (
        _by_ratio(size, count, candidates)
        if rules == "paper"
        else _not_below(count, candidates, duplex)
    )


def _by_ratio(size: int, count: int, candidates: tuple[int, ...]) -> tuple[Choice, ...]:
    wanted = float(candidates[0])
    taken = [Choice(wanted, candidates[0])]
    unused = list(candidates[1:])
    for _ in range(count - 1):
        wanted *= size ** (1 / count)
        best, *rest = sorted(unused, key=lambda stride: (abs(stride - wanted), stride))
        tie = rest[0] if rest and abs(rest[0] - wanted) == abs(best - wanted) else None
        taken.append(Choice(wanted, best, tie))
        unused.remove(best)
    return tuple(taken)


def _not_below(count: int, candidates: tuple[int, ...], duplex: bool) -> tuple[Choice, ...]:
    first, last = candidates[0], candidates[-1]
    levels = count if duplex else count - 1
    ratio = (last / first) ** (1 / levels) if levels else 1.0
    wanted = float(first)
    unused = list(candidates)
    taken = []
    for _ in range(count):
        stride = next((candidate for candidate in unused if candidate >= wanted), unused[-1])
        taken.append(Choice(wanted, stride))
        unused.remove(stride)
        # the released code asserts this and fails by rounding
        wanted = min(wanted * ratio, float(last))
    return tuple(taken)


def walecki(size: int) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, int], ...]]:
    """Cycles through all of 0 to size - 1 that together with a perfect matching (even sizes) are
    the complete graph.

    Walecki's construction (Alspach, "The wonderful Walecki construction", 2008); for even sizes one
    more vertex is put into the edge of each cycle that joins opposite points, and these edges
    become the matching.
    """
    if size < 3:
        return (), (((0, 1),) if size == 2 else ())
    half = (size - 1) // 2
    circle, centre = 2 * half, 2 * half
    zigzag = [0] + [
        point
        for step in range(1, half + 1)
        for point in ((step, circle - step) if step < half else (half,))
    ]
    cycles, pairs = [], []
    for step_number in range(half):
        cycle = [(point + step_number) % circle for point in zigzag]
        if size % 2 == 0:
            at = next(i for i in range(circle - 1) if (cycle[i] - cycle[i + 1]) % circle == half)
            pairs.append((cycle[at], cycle[at + 1]))
            cycle.insert(at + 1, size - 1)
        cycles.append((centre, *cycle))
    if size % 2 == 0:
        pairs.append((centre, size - 1))
    return tuple(cycles), tuple(pairs)


@dataclass(frozen=True, eq=False)
class Coins:
    """Fewest steps, each one of `coins`, from a member to the one any distance further on in a ring
    of `size`.

    hops: by distance, -1 where no sum reaches. last: the coin that ends the path, 0 where there is
    none.
    """

    size: int
    coins: tuple[int, ...]
    hops: NDArray[np.int64]
    last: NDArray[np.int64]

    def steps(self, distance: int) -> tuple[int, ...]:
        """The coins to spend, in order. Raises: Infeasible - no sum of them makes this distance."""
        distance %= self.size
        if self.hops[distance] < 0:
            raise Infeasible(
                f"steps of {self.coins} never go {distance} further on in {self.size}",
                "add a stride coprime to the size",
            )
        spent: list[int] = []
        while distance:
            spent.append(int(self.last[distance]))
            distance = (distance - spent[-1]) % self.size
        return tuple(reversed(spent))

    def path(self, source: int, target: int) -> tuple[int, ...]:
        """The members passed from one to another, both included, by their places in the group."""
        path = [source]
        for step in self.steps(target - source):
            path.append((path[-1] + step) % self.size)
        return tuple(path)


def coin_change(
    size: int, chosen: Sequence[int], *, duplex: bool, rng: np.random.Generator | None = None
) -> Coins:
    """CoinChangeMod: one search over distances serves all pairs. Ties go to the smallest coin, or
    as `rng` has it.
    """
    coins = sorted({*chosen, *(size - stride for stride in chosen)} if duplex else set(chosen))
    hops = np.full(size, -1, dtype=np.int64)
    last = np.zeros(size, dtype=np.int64)
    hops[0] = 0
    frontier = np.zeros(1, dtype=np.int64)
    while len(frontier):
        order = coins if rng is None else [coins[i] for i in rng.permutation(len(coins))]
        fresh = []
        for coin in order:
            reached = (frontier + coin) % size
            reached = np.unique(reached[hops[reached] < 0])
            hops[reached] = hops[frontier[0]] + 1
            last[reached] = coin
            fresh.append(reached)
        frontier = np.concatenate(fresh)
    return Coins(size, tuple(coins), hops, last)
