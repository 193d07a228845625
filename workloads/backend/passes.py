"""What a rank does on one ring of a group for each kind of collective. Ranks are those of the
group.

A collective's numbers are cut into a piece for each ring, so that all rings carry at once; few
numbers go over one ring.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..collectives.carrier import Ring, Whole
from ..transport.buffers import Buffer, pieces
from ..transport.tasks import Segment, all_reduce_steps

LEAST = 65536
"""Bytes for which a further ring is taken: below, what a ring saves is less than what its messages
cost.
"""


@dataclass(frozen=True, slots=True)
class Lap:
    """A ring of a group: this rank's place on it, and the ranks by place."""

    ring: Ring
    order: tuple[int, ...]

    def rank(self, place: int) -> int:
        return self.order[place % len(self.order)]


Pass = Callable[[Lap, int, int, Whole], None]
"""Queue this rank's part of a collective for the elements from a begin to an end of each of its
buffers.
"""


def split(elements: int, total_bytes: int, rings: int) -> list[tuple[int, int]]:
    """The elements [begin, end) of each buffer for each ring that is taken. `total_bytes`: of all
    ranks' buffers.
    """
    taken = max(1, min(rings, total_bytes // LEAST))
    return [piece for piece in pieces(elements, taken) if piece[0] < piece[1]]


def all_reduce(buffer: Buffer, function: Any) -> Pass:
    """Combine `buffer` of all ranks, in place."""

    def queue(lap: Lap, begin: int, end: int, whole: Whole) -> None:
        size = len(lap.order)
        chunks = [
            buffer.part(begin + first, begin + last) for first, last in pieces(end - begin, size)
        ]
        own, incoming = all_reduce_steps(chunks, lap.ring.at)
        lap.ring.carry(own, incoming, len(incoming) - 1, whole, function, buffer.tensor.dtype)

    return queue


def all_gather(outputs: Sequence[Buffer]) -> Pass:
    """Fill `outputs`, by rank, of which this rank's own is there."""

    def queue(lap: Lap, begin: int, end: int, whole: Whole) -> None:
        at, size = lap.ring.at, len(lap.order)
        incoming = [
            Segment(outputs[lap.rank(at - 1 - step)].part(begin, end).memory)
            for step in range(size - 1)
        ]
        lap.ring.carry(outputs[lap.rank(at)].part(begin, end).memory, incoming, size - 2, whole)

    return queue


def reduce_scatter(inputs: Sequence[Buffer], output: Buffer, function: Any) -> Pass:
    """Combine `inputs`, by rank, of all ranks; each gets its own in `output`. The inputs stay as
    they are.
    """

    def queue(lap: Lap, begin: int, end: int, whole: Whole) -> None:
        at, size = lap.ring.at, len(lap.order)
        incoming = []
        for step in range(size - 1):
            addend = inputs[lap.rank(at - 2 - step)].part(begin, end)
            into = (
                output.part(begin, end)
                if step == size - 2
                else Buffer.over(torch.empty_like(addend.tensor))
            )
            incoming.append(Segment(into.memory, into.tensor, addend.tensor))
        own = inputs[lap.rank(at - 1)].part(begin, end).memory
        lap.ring.carry(own, incoming, size - 2, whole, function, output.tensor.dtype)

    return queue


def broadcast(buffer: Buffer, root: int) -> Pass:
    """Give all ranks what `root` has in `buffer`."""

    def queue(lap: Lap, begin: int, end: int, whole: Whole) -> None:
        part = buffer.part(begin, end)
        if lap.rank(lap.ring.at) == root:
            lap.ring.carry(part.memory, [], 0, whole)
        else:
            lap.ring.carry(
                memoryview(b""), [Segment(part.memory)], lap.rank(lap.ring.at + 1) != root, whole
            )

    return queue


def reduce(buffer: Buffer, root: int, function: Any) -> Pass:
    """Combine `buffer` of all ranks in that of `root`; the others' stay as they are."""

    def queue(lap: Lap, begin: int, end: int, whole: Whole) -> None:
        part, at = buffer.part(begin, end), lap.ring.at
        if lap.rank(at - 1) == root:
            lap.ring.carry(part.memory, [], 0, whole)
            return
        last = lap.rank(at) == root
        into = part if last else Buffer.over(torch.empty_like(part.tensor))
        incoming = [Segment(into.memory, into.tensor, part.tensor)]
        lap.ring.carry(memoryview(b""), incoming, not last, whole, function, part.tensor.dtype)

    return queue
