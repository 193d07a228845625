"""Gradient descent with momentum, as `train` steps and as those step who follow it: the same
operations, so the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

MOMENTUM = 0.9

State = tuple[Sequence[Any], Sequence[Any]]
"""Parameters, and the speed of each."""


def step(
    torch: Any, before: State, gradients: Sequence[Any], lr: float, after: State | None = None
) -> None:
    """Write the state after one step into `after`, tensors of the same shapes, which may be those
    of `before` (None: they are).
    """
    with torch.no_grad():
        for was, speed, gradient, parameter, onward in zip(
            *before, gradients, *(after or before), strict=True
        ):
            torch.mul(speed, MOMENTUM, out=onward).add_(gradient)
            torch.add(was, onward, alpha=-lr, out=parameter)
