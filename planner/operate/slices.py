"""Slices of a machine after failures: which hosts can form one, and how likely that is. Exact
counts, pure.

A machine is a torus of hosts, built of equal blocks; a block with a failed host is out as a whole.
Where optical switches join the blocks (reconfigurable), any whole blocks form a slice; where cables
do (static), only blocks beside each other in its shape. TPU v4 (ISCA'23) is such a machine: 64
blocks of 4 x 4 x 4 chips, and slices of blocks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import islice, permutations, product
from math import comb, prod

from planner.model.demand import Infeasible

Sides = tuple[int, ...]
WORK = 20_000_000
"""Steps after which the count of a static machine's failures gives up; some seconds."""


@dataclass(frozen=True)
class Machine:
    """Hosts numbered row by row. sides: hosts along each side, which closes to a ring. block: hosts
    of a block along each side.
    """

    sides: Sides
    block: Sides

    def __post_init__(self) -> None:
        fits = len(self.sides) == len(self.block) and all(
            0 < part <= side and side % part == 0
            for side, part in zip(self.sides, self.block, strict=False)
        )
        if not fits or not self.sides:
            text = f"blocks of {times(self.block)} do not fill a grid of {times(self.sides)}"
            raise Infeasible(text, f"take blocks of {times((1,) * len(self.sides))}")

    @property
    def hosts(self) -> int:
        return prod(self.sides)

    @cached_property
    def grid(self) -> Sides:
        """Blocks along each side."""
        return tuple(side // part for side, part in zip(self.sides, self.block, strict=True))

    @property
    def blocks(self) -> int:
        return prod(self.grid)

    def block_of(self, host: int) -> int:
        """The block, numbered row by row, that a host is in."""
        return number(
            [at // part for at, part in zip(place(host, self.sides), self.block, strict=True)],
            self.grid,
        )


@dataclass(frozen=True)
class Slice:
    """A shape on a machine, however it is turned. sides: hosts along each of its sides."""

    machine: Machine
    sides: Sides

    def __post_init__(self) -> None:
        if not self.boxes:
            text = f"a slice of {times(self.sides)} is not made of whole blocks of {times(self.machine.block)}"
            raise Infeasible(text, f"take a slice of {times(self.machine.block)}, or a multiple")
        if self.size > self.machine.blocks:
            few = f"{self.machine.hosts} hosts of {times(self.machine.sides)}"
            raise Infeasible(
                f"a slice of {times(self.sides)} has {prod(self.sides)} hosts, the machine has {few}",
                f"take at most {few}",
            )

    @cached_property
    def boxes(self) -> tuple[Sides, ...]:
        """The slice as blocks along each side of the machine, for each order of its sides that
        blocks divide.
        """
        if len(self.sides) != len(self.machine.sides) or min(self.sides) < 1:
            return ()
        rotated = dict.fromkeys(permutations(self.sides))
        divided = [
            [divmod(side, part) for side, part in zip(one, self.machine.block, strict=True)]
            for one in rotated
        ]
        return tuple(
            tuple(blocks for blocks, _ in one)
            for one in divided
            if not any(rest for _, rest in one)
        )

    @property
    def size(self) -> int:
        """Blocks of the slice."""
        return prod(self.sides) // prod(self.machine.block)

    @cached_property
    def places(self) -> tuple[tuple[int, ...], ...]:
        """Where a static machine has the slice: blocks beside each other, round the ends too, once
        each however they are turned.
        """
        found: dict[frozenset[int], tuple[int, ...]] = {}
        for box in self.boxes:
            if any(side > whole for side, whole in zip(box, self.machine.grid, strict=True)):
                continue
            for start in product(*map(range, self.machine.grid)):
                blocks = tuple(self._blocks(start, box))
                found.setdefault(frozenset(blocks), blocks)
        return tuple(found.values())

    def _blocks(self, start: Sequence[int], box: Sides) -> Iterator[int]:
        """The blocks of a box that begins at `start`, row by row."""
        grid = self.machine.grid
        for step in product(*map(range, box)):
            yield number(
                [(a + b) % whole for a, b, whole in zip(start, step, grid, strict=True)], grid
            )


def failed_blocks(machine: Machine, failed: Collection[int]) -> frozenset[int]:
    """The blocks that failed hosts take out."""
    return frozenset(machine.block_of(host) for host in failed)


def choices(wanted: Slice, failed: Collection[int], *, reconfigurable: bool) -> int:
    """In how many ways the blocks of the slice can be chosen."""
    out = failed_blocks(wanted.machine, failed)
    if reconfigurable:
        return comb(wanted.machine.blocks - len(out), wanted.size)
    return sum(out.isdisjoint(blocks) for blocks in wanted.places)


def formed(wanted: Slice, failed: Collection[int], *, reconfigurable: bool) -> tuple[int, ...]:
    """The hosts of the first slice that can be formed, in order; none if no slice can be."""
    machine, out = wanted.machine, failed_blocks(wanted.machine, failed)
    if reconfigurable:
        whole = tuple(islice((b for b in range(machine.blocks) if b not in out), wanted.size))
        chosen = whole if len(whole) == wanted.size else ()
    else:
        chosen = next((blocks for blocks in wanted.places if out.isdisjoint(blocks)), ())
    return tuple(host for host in range(machine.hosts) if machine.block_of(host) in chosen)


def probability(wanted: Slice, failures: int, *, reconfigurable: bool) -> Fraction:
    """How likely a slice can still be formed after so many hosts have failed, every set of hosts
    being as likely.

    Raises: Infeasible - more failures than hosts, or a count that takes too long.
    """
    machine = wanted.machine
    if not 0 <= failures <= machine.hosts:
        raise Infeasible(
            f"{failures} failures among {machine.hosts} hosts", f"take 0 to {machine.hosts}"
        )
    each = prod(machine.block)
    touched = range(-(-failures // each), min(failures, machine.blocks) + 1)
    paths = sum(
        _survived(wanted, blocks, reconfigurable) * covering(blocks, each, failures)
        for blocks in touched
    )  # sets of blocks that leave a slice, and ways to fail in just these
    return Fraction(paths, comb(machine.hosts, failures))


def covering(blocks: int, each: int, failures: int) -> int:
    """In how many ways hosts can fail in blocks of `each` hosts so that every block has a failure
    (inclusion and exclusion).
    """
    return sum(
        (-1) ** left_out * comb(blocks, left_out) * comb(each * (blocks - left_out), failures)
        for left_out in range(blocks + 1)
    )


@lru_cache(maxsize=1024)
def _survived(wanted: Slice, lost: int, reconfigurable: bool) -> int:
    """How many sets of `lost` blocks leave a slice that can be formed."""
    every = wanted.machine.blocks
    if reconfigurable:
        return comb(every, lost) if every - lost >= wanted.size else 0
    if not wanted.places:
        return 0
    masks = frozenset(sum(1 << block for block in blocks) for blocks in wanted.places)
    return comb(every, lost) - _Hitting().sets(_least(masks), every, lost)


class _Hitting:
    """Counts the sets of blocks that have a block in each of some places: they leave no place
    whole.
    """

    def __init__(self) -> None:
        self.known: dict[tuple[frozenset[int], int, int], int] = {}
        self.work = 0

    def sets(self, places: frozenset[int], free: int, size: int) -> int:
        """The sets of `size` blocks out of `free` ones that hit all places, bit masks of free
        blocks. Raises: Infeasible.
        """
        if not places:
            return comb(free, size)
        self.work += 10 + 2 * len(places)
        if self.work > WORK:
            raise Infeasible(
                "counting the sets of failures that leave a slice takes too long",
                "ask for fewer failures",
            )
        if 0 in places or _apart(places) > size:
            return 0
        key = places, free, size
        if key not in self.known:
            # One block of the first place is in the set. By the first that is: those before it are
            # not.
            count, left = 0, places
            for left_out, block in enumerate(
                _bits(min(places, key=lambda place: (place.bit_count(), place)))
            ):
                hit = frozenset(place for place in left if not place & block)
                count += self.sets(hit, free - left_out - 1, size - 1)
                self.work += len(left) ** 2 // 8
                left = _least({place & ~block for place in left})
            self.known[key] = count
        return self.known[key]


def _bits(mask: int) -> Iterator[int]:
    while mask:
        yield mask & -mask
        mask &= mask - 1


def _least(places: Collection[int]) -> frozenset[int]:
    """The places that contain no other: whatever hits these hits all."""
    found: list[int] = []
    for place in sorted(places, key=int.bit_count):
        if not any(place & other == other for other in found):
            found.append(place)
    return frozenset(found)


def _apart(places: Collection[int]) -> int:
    """How many places without a common block are found in one pass: no fewer blocks hit all."""
    seen = count = 0
    for mask in sorted(places, key=lambda place: (place.bit_count(), place)):
        if not mask & seen:
            seen, count = seen | mask, count + 1
    return count


def place(at: int, sides: Sequence[int]) -> tuple[int, ...]:
    """The position of number `at` in a grid that is numbered row by row."""
    found: list[int] = []
    for side in reversed(sides):
        at, rest = divmod(at, side)
        found.append(rest)
    return tuple(reversed(found))


def number(position: Sequence[int], sides: Sequence[int]) -> int:
    """The number of a position, row by row."""
    at = 0
    for where, side in zip(position, sides, strict=True):
        at = at * side + where
    return at


def times(sides: Sequence[int]) -> str:
    """`3x4`."""
    return "x".join(map(str, sides))
