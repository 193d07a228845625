"""A topology (rings and matched pairs over ranks) and what a lab offers. Values only; the graph is
derived from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from planner.model.demand import Infeasible


@dataclass(frozen=True)
class Lab:
    """The ports that hosts and switches offer.

    rate_gbps: of one port, per direction. alpha_s: time a step of a collective costs in addition to
    its bytes. duplex: a link takes a port at both ends and carries both directions; else each joins
    a transmitter to a receiver. planes: port k of every host ends on switch k, so that no two links
    of a host may share a switch; else one switch has all ports.
    """

    n: int
    degree: int
    rate_gbps: float = 25.0
    duplex: bool = True
    planes: bool = False
    alpha_s: float = 0.0

    def __post_init__(self) -> None:
        if self.n < 2:
            raise Infeasible(f"{self.n} host(s) cannot be joined", "take at least 2 hosts")
        if self.degree < 1:
            raise Infeasible(
                f"degree {self.degree}: no port to join hosts by", "give each host at least 1 port"
            )
        if not (np.isfinite(self.rate_gbps) and self.rate_gbps > 0):
            raise Infeasible(
                f"a port of {self.rate_gbps} Gb/s carries nothing", "give a rate above 0 Gb/s"
            )
        if not (np.isfinite(self.alpha_s) and self.alpha_s >= 0):
            raise Infeasible(f"a step costs {self.alpha_s} s", "give a finite time, 0 s or more")

    @property
    def port_bytes_per_s(self) -> float:
        """Bytes one port carries per second and direction."""
        return self.rate_gbps * 1e9 / 8


@dataclass(frozen=True)
class Ring:
    """An order in which a group's members pass data on; `stride` says i to i + stride in the group,
    None an order of no stride.
    """

    group: str
    order: tuple[int, ...]
    stride: int | None = None


@dataclass(frozen=True)
class Shape:
    """A topology over ranks. In duplex shapes a ring and a matched pair carry both directions, in
    simplex ones forwards only.
    """

    n: int
    degree: int
    duplex: bool
    rings: tuple[Ring, ...]
    matched: tuple[tuple[int, int], ...] = ()

    @cached_property
    def cables(self) -> NDArray[np.int64]:
        """A row of two ranks for each link: a duplex link once, a simplex link from transmitter to
        receiver.
        """
        parts = [np.array(self.matched, dtype=np.int64).reshape(-1, 2)]
        for ring in self.rings:
            order = np.array(ring.order, dtype=np.int64)
            if self.duplex and len(order) == 2:
                # there and back are the two directions of one link
                parts.append(order.reshape(1, 2))
            elif len(order) > 1:
                parts.append(np.column_stack([order, np.roll(order, -1)]))
        return np.concatenate(parts)

    @cached_property
    def arcs(self) -> NDArray[np.int64]:
        """A row (source, destination) for each direction light carries data in; parallel links as
        often as they are there.
        """
        return np.concatenate([self.cables, self.cables[:, ::-1]]) if self.duplex else self.cables

    @property
    def links(self) -> tuple[tuple[int, int], ...]:
        """`arcs`, as plain values."""
        return tuple((int(src), int(dst)) for src, dst in self.arcs)

    @cached_property
    def adjacency(self) -> NDArray[np.int64]:
        """How many directed links lead from row to column, shape (n, n)."""
        flat = np.bincount(self.arcs[:, 0] * self.n + self.arcs[:, 1], minlength=self.n * self.n)
        return flat.astype(np.int64, copy=False).reshape(self.n, self.n)

    @cached_property
    def hops(self) -> NDArray[np.int16]:
        """Least number of links from row to column, -1 if unreachable, shape (n, n)."""
        return distances(self.n, self.arcs)

    @property
    def connected(self) -> bool:
        """Whether every rank can reach every other."""
        return bool((self.hops >= 0).all())

    @property
    def diameter(self) -> int:
        """Most hops between two connected ranks."""
        return int(self.hops.max())

    def mean_hops(self, weights: NDArray[np.float64] | None = None) -> float:
        """Hops of an average pair, or of an average byte of `weights` (n, n): then the bandwidth
        tax of shortest paths.

        Raises: Infeasible - bytes for an unreachable rank.
        """
        where = ~np.eye(self.n, dtype=bool) if weights is None else weights > 0
        if not where.any():
            return 0.0
        if (self.hops[where] < 0).any():
            src, dst = map(int, np.argwhere(where & (self.hops < 0))[0])
            raise Infeasible(
                f"no path leads from rank {src} to rank {dst}",
                "give the topology a ring through all ranks",
            )
        return float(
            np.average(self.hops[where], weights=None if weights is None else weights[where])
        )


def distances(n: int, arcs: NDArray[np.int64]) -> NDArray[np.int16]:
    """Hops from row to column along `arcs` (rows of source, destination), -1 if unreachable; all
    sources at once, as bits.
    """
    order = np.argsort(arcs[:, 0], kind="stable")
    sources, starts = np.unique(arcs[order, 0], return_index=True)
    targets = arcs[order, 1]
    each = len(arcs) // max(len(sources), 1)
    regular = (
        len(arcs) > 0
        and bool((starts == np.arange(len(sources)) * each).all())
        and each * len(sources) == len(arcs)
    )
    reached = np.packbits(np.eye(n, dtype=bool), axis=1)
    hops = np.full((n, n), -1, dtype=np.int16)
    np.fill_diagonal(hops, 0)
    for step in range(1, n):
        further = reached.copy()
        if regular:  # many times faster than reduceat
            further[sources] |= np.bitwise_or.reduce(
                reached[targets].reshape(len(sources), each, -1), axis=1
            )
        elif len(sources):
            further[sources] |= np.bitwise_or.reduceat(reached[targets], starts, axis=0)
        fresh = further ^ reached
        if not fresh.any():
            break
        hops[np.unpackbits(fresh, axis=1, count=n).view(bool)] = step
        reached = further
    return hops
