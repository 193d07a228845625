"""What became of requests, and how many were answered in time. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Answered:
    """ttft_s: from its arrival to its first token. tpot_s: from there to its last, over the tokens
    after the first; 0 of a request for one. moved_s: what moving its keys and values took after its
    prompt was computed.
    """

    ttft_s: float
    tpot_s: float
    moved_s: float


class Books:
    """The requests of one rank: when each had `arrived`, its prompt was `computed`, its keys and
    values were `there`, where its tokens are made, and it had its `first` and its `last` token.
    Nothing happens to one twice.
    """

    def __init__(self) -> None:
        self._times: dict[int, dict[str, float]] = {}

    def note(self, request: int, what: str, at_s: float) -> None:
        """Raises: RuntimeError - it happened already."""
        times = self._times.setdefault(request, {})
        if what in times:
            raise RuntimeError(f"request {request} is {what} twice")
        times[what] = at_s

    def answered(self, request: int, output: int) -> Answered | None:
        """None: it has not had its last token."""
        times = self._times.get(request, {})
        if "last" not in times:
            return None
        first, there = times["first"], times.get("there", 0.0)
        return Answered(
            first - times["arrived"],
            (times["last"] - first) / (output - 1) if output > 1 else 0.0,
            max(0.0, there - times["computed"]) if there else 0.0,
        )


def percentile(values: Sequence[float], share: float) -> float:
    """The least of these that at least this share of them does not exceed.

    >>> percentile([3.0, 1.0, 2.0], 0.5), percentile(range(1, 201), 0.99)
    (2.0, 198)
    """
    ordered = sorted(values)
    return ordered[max(1, math.ceil(len(ordered) * share)) - 1]


def figures(
    answered: Sequence[Answered], asked: int, ttft_s: float, tpot_s: float
) -> dict[str, Any]:
    """What a record says of an iteration's requests, `asked` of them. ttft_s, tpot_s: the targets.

    goodput: the share of all requests that met both.
    """
    met = sum(one.ttft_s <= ttft_s and one.tpot_s <= tpot_s for one in answered)
    found: dict[str, Any] = {
        "served": len(answered),
        "lost": asked - len(answered),
        "goodput": round(met / asked, 4),
    }
    for name in ("ttft", "tpot"):
        each = [getattr(one, f"{name}_s") for one in answered]
        # a request for one token has no time per token after it
        values = [value for value in each if value or name == "ttft"] or [0.0]
        found[f"{name}_ms"] = round(1e3 * percentile(values, 0.5), 3)
        found[f"{name}_p99_ms"] = round(1e3 * percentile(values, 0.99), 3)
    return found
