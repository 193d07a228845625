"""Every shard along a tree of its own: a small example of a collective schedule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from planner.model.demand import Infeasible
from planner.model.shape import Shape
from planner.schedule.bfb import Send


def trees(shape: Shape) -> Iterator[Send]:
    """All-gather: each rank's shard travels whole along a breadth-first tree, over the links that
    are least used so far.
    """
    onward: dict[int, set[int]] = {rank: set() for rank in range(shape.n)}
    for src, dst in shape.links:
        onward[src].add(dst)
    used: Counter[tuple[int, int]] = Counter()
    for shard in range(shape.n):
        reached, step = {shard: 0}, 0
        while len(reached) < shape.n:
            step += 1
            edge = [rank for rank, at in reached.items() if at == step - 1]
            fresh = sorted({dst for src in edge for dst in onward[src]} - reached.keys())
            if not fresh:
                raise Infeasible(
                    f"rank {shard} cannot send to all others",
                    "give the topology a ring through all ranks",
                )
            for dst in fresh:
                src = min(
                    (rank for rank in edge if dst in onward[rank]),
                    key=lambda rank: (used[rank, dst], rank),
                )
                used[src, dst] += 1
                reached[dst] = step
                yield Send(step, src, dst, shard, 1.0)
