"""The period of what is sent, from how much was sent when. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from planner.model.demand import Infeasible


def period_of(counts: Sequence[float] | NDArray[np.float64], step_ms: float) -> tuple[float, float]:
    """The period (ms) of bytes sent in steps of `step_ms`, and how sure that is, 0 to 1: their
    autocorrelation's first high peak.

    Raises: Infeasible - nothing was sent, or no period shows at least three times.
    """
    values = np.asarray(counts, float)
    if len(values) < 8 or not values.any():
        raise Infeasible(
            "a job that sends nothing, so that no period shows", "start it, or let it run on"
        )
    values = values - values.mean()
    size = len(values)
    spectrum = np.fft.rfft(values, 2 * size)
    found = np.fft.irfft(spectrum * np.conj(spectrum))[:size] / np.arange(size, 0, -1)
    if found[0] <= 0:
        raise Infeasible(
            "a job that sends at a steady rate, so that no period shows",
            "nothing needs to be shifted for it",
        )
    found = found[: size // 3 + 1] / found[0]
    begin = int(np.argmax(found < 0))  # past the peak at 0
    peaks = [
        at
        for at in range(max(begin, 2), len(found) - 1)
        if begin and found[at - 1] <= found[at] >= found[at + 1]
    ]
    best = max((found[at] for at in peaks), default=0.0)
    if best < 0.3:
        raise Infeasible(
            "no period shows in what the job sends", "sample for longer, at least four iterations"
        )
    at = next(at for at in peaks if found[at] >= 0.9 * best)  # not a multiple of it
    left, here, right = found[at - 1 : at + 2]
    bend = left - 2 * here + right
    return float(at + (0.5 * (left - right) / bend if bend < 0 else 0.0)) * step_ms, float(
        min(1.0, here)
    )
