"""All-reduce over several rings as an MSCCL program (XML), in place.

The buffer is cut into rings x ranks chunks. On each ring a thread block of its own sends on and receives, in turns: its own chunk,
then chunks it receives, reduces and sends on; the last of those it keeps, too; then whole chunks it receives, keeps and sends on.
Step types: s send, rrs receive-reduce-send, rrcs the same and copy, rcs receive-copy-send, r receive.
"""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import quoteattr

from planner.backend import Order
from planner.demand import Infeasible


def xml(name: str, orders: Sequence[Order], *, protocol: str = "Simple") -> str:
    """The program. Raises: Infeasible - no order, or orders that are not of the same ranks 0 to n - 1, each once."""
    ranks = sorted(orders[0]) if orders else []
    if not ranks or any(sorted(order) != list(range(len(ranks))) for order in orders):
        raise Infeasible(
            "MSCCL programs are for all ranks of a communicator, each once in every order", "export a group of all ranks"
        )
    n, rings = len(ranks), len(orders)
    lines = [
        f'<algo name={quoteattr(name)} proto="{protocol}" nchannels="{rings}" nchunksperloop="{rings * n}" ngpus="{n}" '
        'coll="allreduce" inplace="1" outofplace="0" minBytes="0" maxBytes="0">'
    ]
    for rank in range(n):
        lines.append(f'  <gpu id="{rank}" i_chunks="{rings * n}" o_chunks="0" s_chunks="0">')
        for ring, order in enumerate(orders):
            at = order.index(rank)
            lines.append(f'    <tb id="{ring}" send="{order[(at + 1) % n]}" recv="{order[at - 1]}" chan="{ring}">')
            lines += [
                f'      <step s="{step}" type="{kind}" srcbuf="i" srcoff="{chunk}" dstbuf="i" dstoff="{chunk}" cnt="1" depid="-1" '
                'deps="-1" hasdep="0"/>'
                for step, (kind, chunk) in enumerate(_steps(n, at, ring * n))
            ]
            lines.append("    </tb>")
        lines.append("  </gpu>")
    return "\n".join([*lines, "</algo>", ""])


def _steps(n: int, at: int, first: int) -> list[tuple[str, int]]:
    """Type and chunk of each step of the rank at a place of a ring; `first`: the ring's first chunk."""
    chunks = [first + (at - step) % n for step in range(n)]
    reduced = [("s", chunks[0]), *(("rrs", chunk) for chunk in chunks[1:-1]), ("rrcs", chunks[-1])]
    return [*reduced, *(("rcs", chunk) for chunk in chunks[: n - 2]), ("r", chunks[n - 2])]
