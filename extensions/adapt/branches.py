"""The fastest circuits of a small region, by branch and bound: every choice that may still be
faster is looked at. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np

from extensions.adapt.trial import FINE, Bytes, Choice, Fabric, Trial, split_s


class Branches:
    """Pairs one after the other, the heaviest first: how many circuits, and at which planes;
    bounded from below.
    """

    def __init__(self, demand: Bytes, fabric: Fabric, start: Choice, nodes: int) -> None:
        self.trial = Trial(demand, fabric)
        self.found, self.left = start, nodes
        self.pairs = sorted(self.trial.pairs, key=lambda pair: -float(self.trial.circuit_s[pair]))
        # what pairs without a circuit send and receive, s
        self.load = [[0.0] * fabric.n, [0.0] * fabric.n]

    def run(self) -> tuple[Choice, bool]:
        """The fastest choice found, `start` if none is faster, and whether no other can be faster
        still.
        """
        self.pair(0, 0.0)
        return self.found, self.left >= 0

    def pair(self, index: int, slowest: float) -> None:
        self.left -= 1
        if self.left < 0:
            return
        if max(slowest, self.least(index)) >= self.found.seconds * (1 - FINE):
            return
        if index == len(self.pairs):
            self.found = self.trial.choice()
            return
        a, b = self.pairs[index]
        for planes in self.options(a, b):
            for plane in planes:
                self.trial.add((a, b, plane))
            if planes or self.trial.split:
                own = 0.0 if self.trial.split else float(self.trial.circuit_s[a, b]) / len(planes)
                self.pair(index + 1, max(slowest, own))
            else:
                self.packets(a, b, 1.0)
                self.pair(index + 1, slowest)
                self.packets(a, b, -1.0)
            for plane in planes:
                self.trial.drop((a, b, plane))

    def packets(self, a: int, b: int, sign: float) -> None:
        for src, dst in ((a, b), (b, a)):
            seconds = sign * float(self.trial.packet_s[src, dst])
            self.load[0][src] += seconds
            self.load[1][dst] += seconds

    def options(self, a: int, b: int) -> Iterator[tuple[int, ...]]:
        """Which planes join the pair: all, ..., one, last none."""
        existing = self.trial.open_planes(a, b)
        for count in range(len(existing), -1, -1):
            yield from sorted(set(combinations(existing, count)))

    def least(self, index: int) -> float:
        """No choice for the pairs from `index` on is faster: each rank's ports take its heaviest
        pairs off its packets.
        """
        if self.trial.split:
            return self.least_split(index)
        rest: list[tuple[list[float], list[float]]] = [([], []) for _ in self.load[0]]
        for a, b in self.pairs[index:]:
            for src, dst in ((a, b), (b, a)):
                seconds = float(self.trial.packet_s[src, dst])
                rest[src][0].append(seconds)
                rest[dst][1].append(seconds)
        longest = 0.0
        for rank, both in enumerate(rest):
            ports = sum(self.trial.room[rank])
            for path, parts in enumerate(both):
                parts.sort(reverse=True)
                longest = max(longest, self.load[path][rank] + sum(parts[ports:]))
        return longest

    def least_split(self, index: int) -> float:
        """As `least`: what is decided takes as long as it takes, and all ports that are left help
        all pairs.
        """
        trial = self.trial
        decided, helped = trial.packet_s.copy(), trial.links * trial.faster
        for a, b in self.pairs[index:]:
            decided[a, b] = decided[b, a] = 0.0
        room = np.array([sum(row) for row in trial.room]) * trial.faster
        longest = 0.0
        for whole, part in ((trial.packet_s, decided), (trial.packet_s.T, decided.T)):
            together = whole.sum(axis=1) / (1 + helped.sum(axis=1) + room)
            longest = max(
                longest,
                float(split_s(part, helped).max(initial=0.0)),
                float(together.max(initial=0.0)),
            )
        return longest
