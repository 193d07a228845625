"""One sum over a ring in blocks, of which some may be lost on the way.

The numbers are cut into a chunk for each rank, and these into blocks of a datagram each. A block
goes from rank to rank; each adds its own numbers, and after n - 1 hops the last divides by the
number of ranks whose numbers are in it: the *mean of those that came*. Over n - 1 further hops that
mean goes to all others as it is, and none of those may be lost, so that all ranks hold the same
numbers, bit by bit.

A receiver goes on with its own numbers alone where what it should have added to them was lost. What
it may lose in a sum of E numbers is `bound` x E contributions, a contribution being one number of
one rank; with a datagram of hop h it loses h + 1 of each at most. There are n x E contributions and
n ranks, so at most `bound` of all contributions are missing, whatever is lost. What would be more
is asked for again, and so are the DEAR blocks: those in which a rank's own numbers are the largest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..transport.buffers import Buffer, pieces
from ..transport.datagrams import BLOCKS, HOPS, Block

DEAR = 0.25
"""This share of a rank's blocks, those with the largest numbers (root mean square), is never done
without.
"""

Forward = Callable[[Block, memoryview, int], None]
"""Has a block sent to the next rank: its name, its bytes, and of how many ranks it is."""


class BlockRound:
    """A rank's part in one sum over one ring."""

    def __init__(
        self,
        number: int,
        ring: int,
        position: int,
        size: int,
        part: Buffer,
        unit: int,
        bound: float,
        torch: Any,
        forward: Forward,
        sender: int = -1,
    ) -> None:
        """unit: bytes of a block, of which all ranks have the same. bound: the share of
        contributions that may be missing (0 to 1). sender: the rank before this one on the ring.

        Raises: ValueError - the sum is too large for its blocks to be numbered, or has too many
        ranks.
        """
        self.number, self.ring, self.sender = number, ring, sender
        self._position, self._size, self._forward = position, size, forward
        self._length = unit // part.tensor.element_size()
        bounds = pieces(part.tensor.numel(), size)
        self._tensors = [
            part.tensor[begin:end].split(self._length) if end > begin else ()
            for begin, end in bounds
        ]
        self._memories = [_cut(part.part(begin, end).memory, unit) for begin, end in bounds]
        if max(map(len, self._memories)) > BLOCKS or 2 * size > HOPS:
            raise ValueError(
                f"a sum of {part.tensor.numel()} numbers of {size} ranks has too many blocks for datagrams"
            )
        self._counts = [[1] * len(blocks) for blocks in self._memories]
        self._dear = self._largest(part.tensor, bounds, torch)
        self._settled = [
            bytearray(len(self._memories[self._chunk(hop)])) for hop in range(2 * size - 2)
        ]
        self._left = sum(map(len, self._settled))
        self._may_lose = bound * part.tensor.numel()
        self.begun = False
        """Whether a block has come in."""
        self.forgone = 0
        """Datagrams that this rank went on without."""

    def _largest(self, flat: Any, bounds: list[tuple[int, int]], torch: Any) -> list[list[bool]]:
        """Which blocks are dear, by this rank's own numbers."""
        sizes = []
        for begin, end in bounds:
            whole = (end - begin) // self._length * self._length
            rows = torch.linalg.vector_norm(
                flat[begin : begin + whole].view(-1, self._length), dim=1, dtype=torch.float32
            )
            sizes.append([*rows.tolist(), *([0.0] if begin + whole < end else [])])
        every = sorted(size for some in sizes for size in some)
        limit = every[min(int((1 - DEAR) * len(every)), len(every) - 1)] if every else 0.0
        return [[size > limit for size in some] for some in sizes]

    def _chunk(self, hop: int) -> int:
        """Which chunk comes in over this hop."""
        return (self._position - hop - 1) % self._size

    def begin(self) -> None:
        """Send this rank's own chunk, the blocks with the largest numbers first."""
        dear = self._dear[self._position]
        for at in sorted(range(len(dear)), key=lambda at: not dear[at]):
            self._send(0, self._position, at)

    def _send(self, hop: int, chunk: int, at: int) -> None:
        name = Block(self.number, self.ring, hop, at, self._dear[chunk][at])
        self._forward(name, self._memories[chunk][at], self._counts[chunk][at])

    @property
    def done(self) -> bool:
        """Whether all that comes in is there, or was done without."""
        return not self._left

    def length(self, hop: int, at: int) -> int:
        """Bytes of a block that comes in; 0: there is none such."""
        if hop >= 2 * self._size - 2:
            return 0
        blocks = self._memories[self._chunk(hop)]
        return len(blocks[at]) if at < len(blocks) else 0

    def settled(self, hop: int, at: int) -> bool:
        return bool(self._settled[hop][at])

    def take(self, hop: int, at: int, count: int, numbers: Any) -> bool:
        """A block came in, of this one's `length`. False: its count is impossible, and it was not
        taken.
        """
        if not 1 <= count <= (hop + 1 if hop < self._size - 1 else self._size):
            return False
        if self._settled[hop][at]:
            return True
        self.begun = True
        chunk = self._chunk(hop)
        if hop < self._size - 1:
            self._tensors[chunk][at].add_(numbers)
            self._counts[chunk][at] += count
        else:
            self._tensors[chunk][at].copy_(numbers)
            self._counts[chunk][at] = count
        self._go_on(hop, chunk, at)
        return True

    def forgo(self, hop: int, at: int, dear: bool) -> bool:
        """A block was lost: whether this rank goes on without it."""
        if self._settled[hop][at]:
            return True
        chunk = self._chunk(hop)
        cost = (hop + 1) * self._tensors[chunk][at].numel()
        if hop >= self._size - 1 or dear or cost > self._may_lose:
            return False
        self._may_lose -= cost
        self.forgone += 1
        self._go_on(hop, chunk, at)
        return True

    def _go_on(self, hop: int, chunk: int, at: int) -> None:
        self._settled[hop][at] = 1
        self._left -= 1
        if hop == self._size - 2 and self._counts[chunk][at] < self._size:
            self._tensors[chunk][at].mul_(self._size / self._counts[chunk][at])
        if hop < 2 * self._size - 3:
            self._send(hop + 1, chunk, at)

    def missing(self) -> Iterator[tuple[int, int]]:
        """When done, of each block: the contributions that are missing, and all of them. All ranks
        know the same.
        """
        for counts, tensors in zip(self._counts, self._tensors, strict=True):
            for count, block in zip(counts, tensors, strict=True):
                yield (self._size - count) * block.numel(), self._size * block.numel()


def _cut(memory: memoryview, unit: int) -> list[memoryview]:
    return [memory[begin : begin + unit] for begin in range(0, len(memory), unit)]
