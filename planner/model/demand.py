"""The traffic of a job in one iteration: all-reduce buffers by group, bytes between pairs. Values
only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import optics


class Infeasible(optics.Infeasible):
    """No topology meets the request. `condition`: what is not met; `alternative`: the nearest
    request that would be.
    """

    def __init__(self, condition: str, alternative: str) -> None:
        super().__init__(condition, hint=alternative)
        self.condition = condition
        self.alternative = alternative

    def __reduce__(self) -> tuple[type[Infeasible], tuple[str, str]]:
        """From another process: exceptions are otherwise made again of `args`, which lack the
        alternative.
        """
        return type(self), (self.condition, self.alternative)


@dataclass(frozen=True)
class Group:
    """Ranks that all-reduce a buffer together. `bytes`: of the buffer, in each member, per
    iteration.
    """

    id: str
    members: tuple[int, ...]
    bytes: int

    @property
    def wire_bytes(self) -> float:
        """Bytes all members together send for it: a ring moves 2(k-1)/k of the buffer out of each
        of k members.
        """
        return 2.0 * (len(self.members) - 1) * self.bytes


@dataclass(frozen=True, eq=False)
class Demand:
    """Traffic of one iteration over ranks 0 to n - 1.

    mp: bytes from row to column that no order of a ring can change (model parallel traffic), shape
    (n, n), zero diagonal. compute_s: time of an iteration without any communication. Groups of one
    rank carry nothing and are dropped. Raises: Infeasible - a rank outside 0 to n - 1 or twice in a
    group, an amount that is negative or no number, a wrong shape.
    """

    n: int
    groups: tuple[Group, ...]
    mp: NDArray[np.float64]
    compute_s: float = 0.0

    def __post_init__(self) -> None:
        if self.n < 2:
            raise Infeasible(
                f"{self.n} rank(s) exchange no traffic", "give the job at least 2 hosts"
            )
        ids = [group.id for group in self.groups]
        for group in self.groups:
            _check_group(group, self.n)
            if ids.count(group.id) > 1:
                raise Infeasible(
                    f"{ids.count(group.id)} groups are named {group.id}",
                    "give each group a name of its own",
                )
        matrix = np.array(self.mp, dtype=np.float64)
        if matrix.shape != (self.n, self.n):
            seen = " x ".join(map(str, matrix.shape))
            raise Infeasible(
                f"the traffic matrix is {seen} for {self.n} ranks",
                f"give one of {self.n} x {self.n}",
            )
        bad = np.argwhere(~(np.isfinite(matrix) & (matrix >= 0)))
        if len(bad):
            src, dst = map(int, bad[0])
            raise Infeasible(
                f"rank {src} sends {matrix[src, dst]} bytes to rank {dst}",
                "give a finite number of bytes, 0 or more",
            )
        own = np.flatnonzero(matrix.diagonal())
        if len(own):
            raise Infeasible(
                f"rank {int(own[0])} sends bytes to itself",
                "leave the diagonal of the traffic matrix at 0",
            )
        if not (np.isfinite(self.compute_s) and self.compute_s >= 0):
            raise Infeasible(
                f"an iteration computes for {self.compute_s} s", "give a finite time, 0 s or more"
            )
        matrix.flags.writeable = False
        object.__setattr__(self, "mp", matrix)
        object.__setattr__(
            self, "groups", tuple(group for group in self.groups if len(group.members) > 1)
        )

    @property
    def allreduce_bytes(self) -> float:
        """Bytes on the wire for all groups."""
        return sum(group.wire_bytes for group in self.groups)

    @property
    def mp_bytes(self) -> float:
        """Bytes between pairs."""
        return float(self.mp.sum())


def _check_group(group: Group, n: int) -> None:
    if not group.members:
        raise Infeasible(f"group {group.id} has no members", "leave it out, or name its ranks")
    for rank in group.members:
        if not 0 <= rank < n:
            raise Infeasible(
                f"group {group.id} names rank {rank}; there are {n}",
                f"name ranks from 0 to {n - 1}",
            )
    if len(set(group.members)) < len(group.members):
        twice = next(rank for rank in group.members if group.members.count(rank) > 1)
        raise Infeasible(
            f"group {group.id} names rank {twice} twice",
            f"name each rank once: {sorted(set(group.members))}",
        )
    if not (np.isfinite(group.bytes) and group.bytes >= 0):
        raise Infeasible(
            f"group {group.id} reduces {group.bytes} bytes",
            "give a finite number of bytes, 0 or more",
        )
