"""When a measurement does not count: its ranks waited for processors for too much of an iteration.
Pure.

The rule looks at the ranks' waits alone, never at what was measured, and is the same for all arms.
What else slowed a job down is noted beside it, and voids nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from optics.ranks import host_of_rank

VOID = "void"
WAIT_LIMIT = 0.2
"""Share of an iteration that the threads of a rank may wait for processors, all together. Of 39
measurements of two scenarios on two cores at loads up to 38, those below it were off by 0.5 to 2 %
in the median and 7.6 % at most, those above 100 % by 29 %. Load and pressure (PSI) did not separate
them: rank correlation with the error -0.10, that of the waits 0.74."""
KNOWN_LEAST = 0.5
"""Share of the iterations whose waits must be known, or their median says nothing of all: a rank
keeps its latest ones alone, and those of short iterations are gone before they are asked for."""


@dataclass(frozen=True, slots=True)
class Slowed:
    """What slowed the ranks of a measurement down. share: of an iteration, the median of them, that
    the threads of the worst `rank` waited for processors; None: no rank says it. known: share of
    the iterations that count of which it is known. Of all iterations and ranks, TCP segments sent
    again, time (ms) that connections had no receiver's window, datagrams that hosts refused as a
    send buffer was full."""

    share: float | None = None
    rank: str = ""
    known: float = 0.0
    retransmitted: int = 0
    rwnd_limited_ms: float = 0.0
    refused: int = 0

    @property
    def void(self) -> bool:
        return self.share is not None and self.share > WAIT_LIMIT

    @property
    def message(self) -> str:
        """Why it is void, or may be without that being known; empty: it counts."""
        if self.share is not None and self.void:
            return f"{self.rank} waited for processors {self.share:.0%} of an iteration, {WAIT_LIMIT:.0%} are the most"
        if self.known >= KNOWN_LEAST:
            return ""
        return f"how long ranks waited for processors is not known of {1 - self.known:.0%} of the iterations that count"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "limit": WAIT_LIMIT}


def slowed(rows: Sequence[Mapping[str, Any]], known: float = 1.0) -> Slowed:
    """Of the iterations that count, of all ranks: `rank`, `iter_ms`, and what of `processor_ms`,
    ... is known (else None). known: as in `Slowed`.
    """
    shares: dict[str, list[float]] = {}
    refused: dict[tuple[str, str], int] = {}
    for row in rows:
        rank = str(row["rank"])
        if row["processor_ms"] is not None and row["iter_ms"]:
            shares.setdefault(rank, []).append(row["processor_ms"] / row["iter_ms"])
        host = host_of_rank(rank)
        refused[host, rank] = refused.get((host, rank), 0) + (row["refused"] or 0)
    # each of them counts all
    each = {
        host: max(count for (at, _), count in refused.items() if at == host) for host, _ in refused
    }
    share, rank = max(
        ((median(values), rank) for rank, values in shares.items()), default=(None, "")
    )
    return Slowed(
        share,
        rank,
        round(known, 3) if shares else 0.0,
        sum(row["retransmitted"] or 0 for row in rows),
        round(sum(row["rwnd_limited_ms"] or 0.0 for row in rows), 3),
        sum(each.values()),
    )
