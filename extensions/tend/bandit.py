"""Chooses which candidate of `design match` is tried next: successive elimination within a phase of
the job. Pure.

A phase ends when the plan that is up gets faster or slower by itself; then all candidates may be
tried again. Within one each is tried at most once, the most promising first; one that was measured three
times and was never as fast as the plan that is up now is left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from extensions.tend.guard import KEPT, OVER, REFUSED

SHIFT = 0.1
"""The plan that is up takes this share more or less: another phase of the job."""
KNOWN = 3
"""So often a candidate was measured before it may be left out."""


def propose(view: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The candidate to try, None: none promises anything now. view: as `Loop.view`."""
    predicted = {one["name"]: one["predicted_ms"] for one in view["candidates"]}
    measured: dict[str, list[float]] = defaultdict(list)
    ratios = [1.0]  # predictors leave out what a host does
    for one in (one for one in view["trials"] if one["ended"] != REFUSED):
        for name, ms in ((one["name"], one["after_ms"]), (one["over"], one["before_ms"])):
            if ms is not None and name in predicted:
                measured[name].append(ms)
                ratios.append(ms / predicted[name])
    hoped = {name: ms * median(ratios) for name, ms in predicted.items()}
    for name, times in measured.items():
        hoped[name] = min([*times, *([hoped[name]] if len(times) < KNOWN else [])])
    phase = _phase(view["trials"], view["now_ms"])
    over = {one["name"] for one in phase if one["why"].startswith(OVER)}  # the next hour has room
    rest = [one for one in phase if not one["why"].startswith(OVER)]
    tried = {view["up"], *(one[key] for one in rest for key in ("name", "over"))}
    able = [
        one
        for one in view["candidates"]
        if (name := one["name"]) not in tried
        and (len(measured[name]) < KNOWN or hoped[name] < view["now_ms"])
    ]
    return min(
        able,
        key=lambda one: (one["name"] in over, hoped[one["name"]], one["name"]),
        default=None,
    )


def _phase(trials: Sequence[Mapping[str, Any]], now_ms: float) -> Sequence[Mapping[str, Any]]:
    """Those of the phase that it is now."""
    begin, left = 0, None
    for number, one in enumerate(trials):
        if left is not None and abs(one["before_ms"] / left - 1) > SHIFT:
            begin = number
        left = one["after_ms"] if one["ended"] == KEPT else one["before_ms"]
    return [] if left is not None and abs(now_ms / left - 1) > SHIFT else trials[begin:]
