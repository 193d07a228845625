"""Who sends when: bursts of packets that were seen from outside, and what follows from them. Pure.

A job computes, then sends; what it sends in one iteration is a burst, and its iteration lasts from
the beginning of one burst to that of the next. Nothing here asks the job or the program.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

LEAST_BYTES = 200
"""Of a packet with data: acknowledgements and probes of the path are smaller."""

Packet = tuple[float, int]
"""When it passed (s) and how long it is (bytes)."""


@dataclass(frozen=True, slots=True)
class Burst:
    """Packets without a pause between them. Times in s, from the first packet to the last."""

    begin_s: float
    end_s: float
    bytes: int


def bursts(packets: Iterable[Packet], pause_s: float, share: float = 0.5) -> list[Burst]:
    """The bursts between pauses of `pause_s` or more; those of less than this share of the median's
    bytes are none of them.
    """
    found: list[Burst] = []
    for at_s, length in packets:
        if length < LEAST_BYTES:
            continue
        if found and at_s - found[-1].end_s < pause_s:
            found[-1] = Burst(found[-1].begin_s, at_s, found[-1].bytes + length)
        else:
            found.append(Burst(at_s, at_s, length))
    least = share * statistics.median(burst.bytes for burst in found) if found else 0.0
    return [burst for burst in found if burst.bytes >= least]


def took(found: Sequence[Burst]) -> list[float]:
    """How long each iteration took (s): from the beginning of its burst to that of the next."""
    return [after.begin_s - before.begin_s for before, after in pairwise(found)]


def gaps(one: Sequence[Burst], other: Sequence[Burst]) -> list[float]:
    """By how much (s) each burst of `other` begins after one of `one`: after the latest, or before
    the next (below 0) if that is nearer; what is before the first or after the last is left out."""
    found = []
    for burst in other:
        before = max((b.begin_s for b in one if b.begin_s <= burst.begin_s), default=None)
        after = min((b.begin_s for b in one if b.begin_s > burst.begin_s), default=None)
        if before is not None and after is not None:
            late, early = burst.begin_s - before, after - burst.begin_s
            found.append(late if late <= early else -early)
    return found


def drifting(gap_s: float, burst_s: float, slope: float, intercept: float) -> Iterator[float]:
    """The gaps (s) after this one, iteration by iteration, of two equal jobs whose windows grow by
    F(x) = slope x + intercept.

    burst_s: how long one sends alone. A gap D grows by slope D (burst - D) / (burst intercept +
    slope D) in an iteration (MLTCP, HotNets'24, with a gradient descent's step written out).
    """
    while True:
        gap_s += slope * gap_s * max(0.0, burst_s - gap_s) / (burst_s * intercept + slope * gap_s)
        yield gap_s


def together(one: Sequence[Burst], other: Sequence[Burst]) -> float:
    """The share of the sending of `one` during which `other` sends, too."""
    both = sum(
        max(0.0, min(a.end_s, b.end_s) - max(a.begin_s, b.begin_s)) for a in one for b in other
    )
    sending = sum(a.end_s - a.begin_s for a in one)
    return both / sending if sending else 0.0
