"""All-reduce as an MSCCL program (XML), in place: over several rings, or by a breadth-first
schedule.

Step types: s send, r receive, rrc receive-reduce-copy, rrs receive-reduce-send, rrcs the same and
copy, rcs receive-copy-send, nop. A step waits for one step of another thread block of its rank
(depid, deps); what waits for several has a nop before it for each but the last. The limits are
those of MSCCL's interpreter (Azure/msccl, src/include/msccl.h).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from xml.sax.saxutils import quoteattr

from planner.model.backend import Order
from planner.model.demand import Infeasible
from planner.schedule.bfb import Send

MOST_STEPS, MOST_BLOCKS, MOST_CHANNELS = 256, 32, 32
"""Steps of a thread block, thread blocks of a channel on a rank, channels."""
FINEST = 60
"""Most chunks a piece is cut into; a send of a whole one must stay below 72 chunks. Finer parts are
rounded.
"""

Kind = str
Block = tuple[int, int, int]
"""A thread block of a rank: the rank it sends to and the one it receives from (-1: none), and its
channel.
"""


def ranks_of(members: Iterable[int]) -> tuple[int, ...]:
    """The ranks of a group's communicator, in order: as `new_group` of PyTorch counts them."""
    return tuple(sorted(members))


def xml(name: str, orders: Sequence[Order], *, protocol: str = "Simple") -> str:
    """The program that sums over rings, for a communicator of the orders' ranks (`ranks_of`).

    The buffer is cut into rings x ranks chunks. On each ring a thread block of its own sends on and
    receives, in turns: its own chunk, then chunks it receives, reduces and sends on; the last of
    those it keeps, too; then whole chunks it receives, keeps and sends on. Raises: Infeasible - no
    order, orders of different ranks or with one twice, or more than MSCCL takes.
    """
    ranks = checked(orders)
    n, rings = len(ranks), len(orders)
    program = _Program(n, rings * n)
    for ring, order in enumerate(orders):
        places = [ranks.index(rank) for rank in order]
        for at, rank in enumerate(places):
            block = (places[(at + 1) % n], places[at - 1], ring)
            program.blocks[rank][block] = [
                _Step(kind, chunk) for kind, chunk in ring_steps(n, at, ring * n)
            ]
    return program.xml(name, protocol)


def checked(orders: Sequence[Order]) -> tuple[int, ...]:
    """The ranks of a communicator whose orders these are. Raises: Infeasible - no order, orders of
    different ranks or with one twice.
    """
    ranks = ranks_of(orders[0]) if orders else ()
    if (
        not ranks
        or len(set(ranks)) < len(ranks)
        or any(ranks_of(order) != ranks for order in orders)
    ):
        raise Infeasible(
            "an MSCCL program is for the ranks of a communicator, each once in every order",
            "name all of them",
        )
    return ranks


def ring_steps(n: int, at: int, first: int) -> list[tuple[Kind, int]]:
    """Type and chunk of each step of the rank at a place of a ring; `first`: the ring's first
    chunk.
    """
    chunks = [first + (at - step) % n for step in range(n)]
    reduced = [("s", chunks[0]), *(("rrs", chunk) for chunk in chunks[1:-1]), ("rrcs", chunks[-1])]
    return [*reduced, *(("rcs", chunk) for chunk in chunks[: n - 2]), ("r", chunks[n - 2])]


def scheduled(name: str, n: int, sends: Sequence[Send], *, protocol: str = "Simple") -> str:
    """The program of an all-gather's schedule, for a communicator of ranks 0 to n - 1: backwards to
    reduce, forwards to gather.

    A piece for each rank, a piece of so many chunks that the parts of all sends are whole numbers
    of them. Each link has a thread block of its own at both ends; parallel links are channels.
    Steps wait only for those that touched the same chunks before. Raises: Infeasible - no sends, or
    more than MSCCL allows.
    """
    if not sends:
        raise Infeasible("a schedule without sends sums nothing", "give one of 2 ranks or more")
    fine, cut = _cut(sends)
    program = _Program(n, n * fine)
    for forth in (False, True):
        for send, begin, end, channel in sorted(
            cut, key=lambda one: one[0].step if forth else -one[0].step
        ):
            src, dst = (send.src, send.dst) if forth else (send.dst, send.src)
            program.pass_on(
                src,
                dst,
                channel,
                range(send.shard * fine + begin, send.shard * fine + end),
                reduce=not forth,
            )
    return program.xml(name, protocol)


def _cut(sends: Sequence[Send]) -> tuple[int, list[tuple[Send, int, int, int]]]:
    """Chunks of a piece; each send with its first chunk, the one after its last, its channel. Empty
    parts are left out.
    """
    ends: dict[tuple[int, int], float] = {}
    laid = []
    for send in sends:
        begin = ends.get((send.dst, send.shard), 0.0)
        ends[send.dst, send.shard] = begin + send.part
        laid.append((send, begin, begin + send.part))
    fine = next(
        (
            f
            for f in range(1, FINEST)
            if all(abs(e * f - round(e * f)) < 1e-6 * f for _, _, e in laid)
        ),
        FINEST,
    )
    neighbours: dict[tuple[int, int, int, int], int] = defaultdict(int)
    found = []
    for send, first, last in laid:
        begin, end = round(first * fine), round(last * fine)
        if begin < end:
            key = (send.step, send.src, send.dst, send.shard)
            found.append((send, begin, end, neighbours[key]))
            neighbours[key] += 1
    return fine, found


@dataclass
class _Step:
    kind: Kind
    chunk: int
    count: int = 1
    after: tuple[Block, int] | None = None
    awaited: bool = False


@dataclass
class _Touched:
    """The last writer of a chunk of a rank (block, step), and its readers since."""

    written: tuple[Block, int] | None = None
    read: list[tuple[Block, int]] = field(default_factory=list)


class _Program:
    """Thread blocks of n ranks over a buffer of a number of chunks."""

    def __init__(self, n: int, chunks: int) -> None:
        self.n, self.chunks = n, chunks
        self.blocks: list[dict[Block, list[_Step]]] = [{} for _ in range(n)]
        self.touched: list[dict[int, _Touched]] = [defaultdict(_Touched) for _ in range(n)]
        self.known: dict[tuple[int, Block, Block], int] = {}

    def pass_on(self, src: int, dst: int, channel: int, chunks: range, *, reduce: bool) -> None:
        """Chunks go from rank to rank, where they are added to what is there or take its place."""
        self._add(src, (dst, -1, channel), "s", chunks)
        self._add(dst, (-1, src, channel), "rrc" if reduce else "r", chunks)

    def _add(self, rank: int, block: Block, kind: Kind, chunks: range) -> None:
        last: dict[Block, int] = {}
        for chunk in chunks:
            seen = self.touched[rank][chunk]
            for other, step in ([seen.written] if seen.written else []) + (
                [] if kind == "s" else seen.read
            ):
                if other != block and self.known.get((rank, block, other), -1) < step:
                    last[other] = max(step, last.get(other, step))
        steps = self.blocks[rank].setdefault(block, [])
        waits = sorted(last.items())
        for other, at in waits:
            self.known[rank, block, other] = at
            self.blocks[rank][other][at].awaited = True
        steps += [_Step("nop", 0, 0, wait) for wait in waits[:-1]]
        steps.append(_Step(kind, chunks.start, len(chunks), waits[-1] if waits else None))
        here = (block, len(steps) - 1)
        for chunk in chunks:
            if kind == "s":
                self.touched[rank][chunk].read.append(here)
            else:
                self.touched[rank][chunk] = _Touched(here)

    def xml(self, name: str, protocol: str) -> str:
        channels = 1 + max(channel for blocks in self.blocks for _, _, channel in blocks)
        self._check(channels)
        lines = [
            f'<algo name={quoteattr(name)} proto="{protocol}" nchannels="{channels}" nchunksperloop="{self.chunks}" '
            f'ngpus="{self.n}" coll="allreduce" inplace="1" outofplace="0" minBytes="0" maxBytes="0">'
        ]
        for rank, blocks in enumerate(self.blocks):
            number = {block: place for place, block in enumerate(blocks)}
            lines.append(f'  <gpu id="{rank}" i_chunks="{self.chunks}" o_chunks="0" s_chunks="0">')
            for block, steps in blocks.items():
                to, of, channel = block
                lines.append(
                    f'    <tb id="{number[block]}" send="{to}" recv="{of}" chan="{channel}">'
                )
                for place, step in enumerate(steps):
                    other, at = (number[step.after[0]], step.after[1]) if step.after else (-1, -1)
                    lines.append(
                        f'      <step s="{place}" type="{step.kind}" srcbuf="i" srcoff="{step.chunk}" dstbuf="i" '
                        f'dstoff="{step.chunk}" cnt="{step.count}" depid="{other}" deps="{at}" hasdep="{int(step.awaited)}"/>'
                    )
                lines.append("    </tb>")
            lines.append("  </gpu>")
        return "\n".join([*lines, "</algo>", ""])

    def _check(self, channels: int) -> None:
        """Raises: Infeasible - more than MSCCL takes."""
        longest = max(len(steps) for blocks in self.blocks for steps in blocks.values())
        widest = max(
            len([b for b in blocks if b[2] == channel])
            for blocks in self.blocks
            for channel in range(channels)
        )
        for what, count, most in (
            ("steps in a thread block", longest, MOST_STEPS),
            ("thread blocks in a channel", widest, MOST_BLOCKS),
            ("channels", channels, MOST_CHANNELS),
        ):
            if count > most:
                raise Infeasible(
                    f"{self.n} ranks take {count} {what}, MSCCL {most} at most",
                    "take a group of fewer ranks",
                )
