"""Which bytes of which connection are which part of an averaged gradient, in a ring all-reduce as
wires.Round carries it. Pure.

The member at position p of a ring of n receives every summed chunk but chunk p + 1, which it is the
one to complete. So any two members of each ring see all chunks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from workloads.transport.buffers import pieces

UNIT = 4
"""Bytes of a number: float32."""

Orders = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class Chunk:
    """A summed chunk: `size` bytes of bucket `bucket` from byte `begin` on.

    seen: connection, and where in what it carries of one iteration the chunk begins (bytes).
    """

    bucket: int
    begin: int
    size: int
    seen: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Iteration:
    """One iteration over a set of rings: its chunks, and how many bytes each connection carries of
    it.
    """

    chunks: tuple[Chunk, ...]
    carried: Mapping[str, int]


def connection(ring: int, before: int) -> str:
    """What wires.py calls the connection into the rank that follows rank `before` in ring number
    `ring`.
    """
    return f"{ring}/{before}"


def incoming(
    numbers: Sequence[int], rings: int, ring: int, position: int, size: int
) -> Iterator[tuple[int, int, int, bool]]:
    """What a member of a ring receives in one iteration: (bucket, first number, how many, whether
    it is summed over all ranks).

    numbers: of each bucket, in the order in which they are sent.
    """
    for bucket, count in enumerate(numbers):
        begin, end = pieces(count, rings)[ring]
        parts = pieces(end - begin, size)
        for whole in (False, True):
            for step in range(size - 1):
                first, last = parts[(position - step - (not whole)) % size]
                if last > first:
                    yield bucket, begin + first, last - first, whole


def iteration(numbers: Sequence[int], orders: Orders, seen: Sequence[str]) -> Iteration:
    """One iteration as the connections in `seen` carry it."""
    found: dict[tuple[int, int, int], list[tuple[str, int]]] = {}
    carried = {}
    for ring, order in enumerate(orders):
        for position, before in enumerate((order[-1], *order[:-1])):
            name, at = connection(ring, before), 0
            kept = name in seen
            for bucket, first, count, whole in incoming(
                numbers, len(orders), ring, position, len(order)
            ):
                if whole:
                    found.setdefault((bucket, first, count), []).extend(
                        [(name, at)] if kept else []
                    )
                at += UNIT * count
            if kept:
                carried[name] = at
    chunks = tuple(
        Chunk(b, UNIT * first, UNIT * count, tuple(where))
        for (b, first, count), where in found.items()
    )
    return Iteration(chunks, carried)
