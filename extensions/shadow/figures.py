"""What a shadow's verdicts come to, wherever they are shown."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

LATEST = 20
"""The lag is the median of so many iterations."""


def judged(verdicts: Sequence[Mapping[str, Any]]) -> dict[str, int | float | str]:
    """verdicts: records of the shadow, or fields of its measurement, in order. lost: packets that
    the taps had no room for. lag_ms: only where one was measured.
    """
    newest = verdicts[-1] if verdicts else {}
    lags = [float(each["lag_ms"]) for each in verdicts[-LATEST:] if "lag_ms" in each]
    figures: dict[str, int | float | str] = {
        "iterations": len(verdicts),
        **{name: sum(int(each.get(name, 0)) for each in verdicts) for name in ("equal", "fetched")},
        **{name: int(newest.get(name, 0)) for name in ("checkpoint", "lost")},
    }
    return figures | ({"lag_ms": round(statistics.median(lags), 3)} if lags else {})
