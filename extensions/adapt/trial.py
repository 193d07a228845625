"""Circuits of a region on trial: changed one by one, and how long an all-to-all over them takes.
Pure.

A pair's bytes are split freely between its circuits and the packet switch, where a rank's traffic
shares its port. Where a pair uses one path (`Fabric.split` false), one with circuits sends over
them alone, and the slowest part decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from planner.model.demand import Infeasible

Bytes: TypeAlias = NDArray[np.float64]
Circuit: TypeAlias = tuple[int, int, int]
"""Two ranks, the smaller first, and the plane (switch) that joins them."""
Circuits: TypeAlias = tuple[Circuit, ...]
"""Sorted; parallel ones as often as they are there."""
Pair: TypeAlias = tuple[int, int]
Cost: TypeAlias = tuple[float, float]
State: TypeAlias = tuple[NDArray[np.int64], list[list[int]], list[Circuit]]
FINE = 1e-9
"""Relative gain below which one choice is no better than another."""


@dataclass(frozen=True)
class Fabric:
    """What joins the ranks of a trial.

    room: for each rank, its ports at each plane. circuit_bytes_per_s, packet_bytes_per_s: of a
    port, per direction. split: a pair with circuits may send a part over the packet switch.
    """

    room: tuple[tuple[int, ...], ...]
    circuit_bytes_per_s: float
    packet_bytes_per_s: float
    split: bool = True

    def __post_init__(self) -> None:
        if min(self.circuit_bytes_per_s, self.packet_bytes_per_s) <= 0:
            raise Infeasible("a port that carries nothing", "give rates above 0")

    @property
    def n(self) -> int:
        return len(self.room)


@dataclass(frozen=True)
class Choice:
    """Circuits, and how long (s) the all-to-all takes over them."""

    circuits: Circuits
    seconds: float


class Trial:
    """Circuits that can be changed one by one, and their cost."""

    def __init__(self, demand: Bytes, fabric: Fabric, circuits: Sequence[Circuit] = ()) -> None:
        n = fabric.n
        if demand.shape != (n, n) or not np.isfinite(demand).all() or (demand < 0).any():
            raise Infeasible(
                f"a demand that is no {n} x {n} square of bytes, 0 or more",
                "give bytes from each rank to each other",
            )
        self.circuit_s = np.maximum(demand, demand.T) / fabric.circuit_bytes_per_s
        self.packet_s = demand / fabric.packet_bytes_per_s
        self.split, self.faster = (
            fabric.split,
            np.float64(fabric.circuit_bytes_per_s / fabric.packet_bytes_per_s),
        )
        np.fill_diagonal(self.circuit_s, 0.0)
        np.fill_diagonal(self.packet_s, 0.0)
        self.pairs = [(a, b) for a in range(n) for b in range(a + 1, n) if self.circuit_s[a, b] > 0]
        self.room = [list(row) for row in fabric.room]
        self.links = np.zeros((n, n), dtype=np.int64)
        self.circuits: list[Circuit] = []
        for circuit in circuits:
            a, b, plane = circuit
            if (
                not 0 <= a < b < n
                or not 0 <= plane < len(self.room[a])
                or min(self.room[a][plane], self.room[b][plane]) < 1
            ):
                raise Infeasible(
                    f"a circuit of ranks {a} and {b} at plane {plane} without a free port",
                    "take circuits that fit",
                )
            self.add(circuit)

    def add(self, circuit: Circuit, count: int = 1) -> None:
        a, b, plane = circuit
        self.links[a, b] += count
        self.links[b, a] += count
        self.room[a][plane] -= count
        self.room[b][plane] -= count
        if count > 0:
            self.circuits.append(circuit)
        else:
            self.circuits.remove(circuit)

    def drop(self, circuit: Circuit) -> None:
        self.add(circuit, -1)

    def state(self) -> State:
        return self.links.copy(), [list(row) for row in self.room], list(self.circuits)

    def back_to(self, state: State) -> None:
        links, room, circuits = state
        self.links, self.room, self.circuits = (
            links.copy(),
            [list(row) for row in room],
            list(circuits),
        )

    def join(self, a: int, b: int) -> bool:
        """Add a circuit between two ranks with free ports; others change planes for it where that
        is enough. False: it does not.
        """
        a, b = min(a, b), max(a, b)
        if existing := self.open_planes(a, b):
            self.add((a, b, existing[0]))
            return True
        free_a, free_b = (
            [plane for plane, free in enumerate(self.room[rank]) if free] for rank in (a, b)
        )
        for first in free_a:
            for second in free_b:
                chain = self.chain(b, first, second)
                if chain is None or a in {rank for circuit in chain for rank in circuit[:2]}:
                    continue
                for circuit in chain:
                    self.drop(circuit)
                for x, y, plane in chain:
                    self.add((x, y, second if plane == first else first))
                self.add((a, b, first))
                return True
        return False

    def chain(self, rank: int, first: int, second: int) -> Circuits | None:
        """The circuits that change places between two planes so that `rank` gets its port at
        `first` free (a Kempe chain), if the last rank has a port for it."""
        found: list[Circuit] = []
        seen = {rank}
        plane, other = first, second
        while (
            at := next(
                (
                    c
                    for c in self.circuits
                    if c[2] == plane and rank in c[:2] and not {*c[:2]} <= seen
                ),
                None,
            )
        ) is not None:
            found.append(at)
            rank = at[1] if at[0] == rank else at[0]
            seen.add(rank)
            if self.room[rank][other]:
                return tuple(found)
            plane, other = other, plane
        return None

    def parts(self) -> tuple[Bytes, Bytes, Bytes]:
        """Seconds of each pair's circuits, and of what each rank sends and receives over the packet
        switch.

        Where traffic is split, circuits last as long as their ranks' ports: theirs are 0.
        """
        if self.split:
            helped = self.links * self.faster
            return (
                np.zeros_like(self.packet_s),
                split_s(self.packet_s, helped),
                split_s(self.packet_s.T, helped),
            )
        dark = self.links == 0
        rest = np.where(dark, self.packet_s, 0.0)
        return (
            np.where(dark, 0.0, self.circuit_s / np.maximum(self.links, 1)),
            rest.sum(axis=1),
            rest.sum(axis=0),
        )

    def cost(self) -> Cost:
        """The time (s), and the sum of squares of the times of all parts, by which equals are
        distinguished apart.
        """
        every = np.concatenate([part.ravel() for part in self.parts()])
        return float(every.max(initial=0.0)), float(every @ every)

    def choice(self) -> Choice:
        return Choice(tuple(sorted(self.circuits)), self.cost()[0])

    def open_planes(self, a: int, b: int) -> list[int]:
        """The planes that could join the pair, each as often as it could."""
        rooms = zip(self.room[a], self.room[b], strict=True)
        return [plane for plane, (at_a, at_b) in enumerate(rooms) for _ in range(min(at_a, at_b))]

    def slowest(self, done: set[Pair]) -> Pair | None:
        """The pair whose part takes longest, of those not done: its own circuits, or the fuller of
        its ranks' packet ports.
        """
        pairs = [pair for pair in self.pairs if pair not in done]
        return max(pairs, key=self._takes(), default=None)

    def _takes(self) -> Callable[[Pair], tuple[float, float]]:
        own, sent, received = self.parts()
        ports = np.maximum(sent, received)
        left = self._left(float(ports.max(initial=0.0)))

        def takes(pair: Pair) -> tuple[float, float]:
            a, b = pair
            if self.links[pair] and not self.split:
                return float(own[pair]), 0.0
            return float(max(ports[a], ports[b])), float(left[pair])

        return takes

    def slow_pairs(self) -> list[Pair]:
        """The pairs that a circuit more would take out of what is slowest, the ones with most bytes
        first.
        """
        own, sent, received = self.parts()
        ports = np.maximum(sent, received)
        slowest = max(float(own.max(initial=0.0)), float(ports.max(initial=0.0))) * (1 - FINE)
        full = {int(rank) for rank in np.flatnonzero(ports >= slowest)}
        left = self._left(slowest)

        def slow(pair: Pair) -> bool:
            if self.links[pair] and not self.split:
                return bool(own[pair] >= slowest)
            return bool(full & {*pair}) and left[pair] > 0

        return sorted(filter(slow, self.pairs), key=lambda pair: -float(left[pair]))

    def _left(self, seconds: float) -> Bytes:
        """What a circuit more could take of each pair, in seconds of a circuit: all, or what is not
        done by then.
        """
        return np.maximum(self.circuit_s - (self.links * seconds if self.split else 0.0), 0.0)

    def exchanges(self, pairs: Sequence[Pair]) -> Iterator[Cost]:
        """The cost of each way to give one of `pairs` a circuit more, or one less; it is in place
        when its cost is given.
        """
        before = self.state()
        for a, b in pairs:
            for out in self.freeing(a, b):
                for circuit in out:
                    self.drop(circuit)
                if self.join(a, b):
                    yield self.cost()
                    lost = [rank for circuit in out for rank in circuit[:2] if rank not in (a, b)]
                    if len(lost) == 2 and lost[0] != lost[1] and self.join(*lost):
                        yield self.cost()
                    elif not out:
                        while self.join(a, b):
                            yield self.cost()
                self.back_to(before)
            if (
                one := next((circuit for circuit in self.circuits if circuit[:2] == (a, b)), None)
            ) is not None:
                self.drop(one)
                yield self.cost()
                self.back_to(before)

    def freeing(self, a: int, b: int) -> list[Circuits]:
        """The circuits of other pairs, each choice of which leaves both ranks a port."""
        at = [
            sorted(
                {
                    circuit
                    for circuit in self.circuits
                    if rank in circuit[:2] and circuit[:2] != (a, b)
                }
            )
            for rank in (a, b)
        ]
        full = [not any(self.room[rank]) for rank in (a, b)]
        choices: list[Circuits] = [()]
        for circuits, none_left in zip(at, full, strict=True):
            if none_left:
                choices = [(*so_far, circuit) for so_far in choices for circuit in circuits]
        return choices


def split_s(packet_s: Bytes, helped: Bytes) -> Bytes:
    """How long (s) each rank takes to send, if what circuits take of a pair's bytes is chosen as
    well as can be.

    packet_s: seconds of each pair's bytes over the packet switch alone; helped: rates of its
    circuits, as multiples of the packet port's. In T seconds circuits take T x helped, and the rest
    has to fit the port: so T is the largest, of all sets of pairs, of their seconds over 1 + their
    circuits' rates; the set is that of the pairs with the most seconds for a circuit's rate.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        order = np.argsort(-np.where(helped > 0, packet_s / helped, np.inf), axis=1, kind="stable")
    load, rate = (
        np.take_along_axis(every, order, axis=1).cumsum(axis=1) for every in (packet_s, helped)
    )
    return np.asarray((load / (1 + rate)).max(axis=1, initial=0.0))
