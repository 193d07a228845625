"""Averages between sites: how far weights have come since all ranks last held the same is taken for
a gradient, by which all step with Nesterov's momentum (A. Douillard et al., DiLoCo: Distributed
Low-Communication Training of Language Models, 2023).
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any


class Outer:
    """The weights that all ranks held last, and the step from these."""

    def __init__(
        self,
        torch: Any,
        parameters: Sequence[Any],
        speed: Sequence[Any],
        lr: float,
        momentum: float,
    ) -> None:
        """speed: a tensor for each parameter, which is kept here; without momentum none."""
        self._torch, self._speed, self._lr, self._momentum = torch, speed, lr, momentum
        self._agreed = [parameter.detach().clone() for parameter in parameters]

    def removed(self, parameters: Sequence[Any], weight: float = 1.0) -> list[Any]:
        """By how much each parameter has fallen since, times the weight of this rank in the average.
        With 0 it is nothing, whatever the parameters: those of a diverged rank spoil no sum.
        """
        with self._torch.no_grad():
            if not weight:
                return [self._torch.zeros_like(before) for before in self._agreed]
            fallen = [before - now for now, before in zip(parameters, self._agreed, strict=True)]
            return fallen if weight == 1.0 else [each.mul_(weight) for each in fallen]

    def step(self, parameters: Sequence[Any], removed: Sequence[Any]) -> None:
        """Give the parameters what follows from `removed`, which is the same on all ranks."""
        with self._torch.no_grad():
            for speed, change in zip(self._speed, removed, strict=bool(self._speed)):
                speed.mul_(self._momentum).add_(change)
                change.add_(speed, alpha=self._momentum)
            for parameter, before, change in zip(parameters, self._agreed, removed, strict=True):
                parameter.copy_(before.sub_(change, alpha=self._lr))


def taking_part(sites: Sequence[str], share: float, seed: int, iteration: int) -> frozenset[str]:
    """The sites whose ranks take part in the average after this iteration, the same on all ranks.

    >>> [sorted(taking_part(("a", "a", "b", "c"), 0.5, 1, n)) for n in (8, 16, 24)]
    [['a', 'b'], ['b', 'c'], ['a', 'c']]
    >>> sorted(taking_part(("a", "b"), 1.0, 1, 8))
    ['a', 'b']
    """
    names = sorted(set(sites))
    count = math.ceil(round(share * len(names), 6))
    return frozenset(random.Random(f"{seed} {iteration}").sample(names, count))
