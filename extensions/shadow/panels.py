"""What the dashboards show of a shadow."""

from __future__ import annotations

from typing import Any

from dashboards.influx import OURS, pick
from dashboards.schedules import curve, over

NO_SHADOW = "no shadow"

NUMBERS = (
    (
        "Shadow's checkpoint",
        "The iteration of its newest state that is equal to the job's, from shadow.",
        "none",
        pick('last("checkpoint")', "shadow", OURS),
    ),
    (
        "Iterations equal",
        "The share of iterations that the shadow judged equal to the job's, from shadow. The others are flagged, never used.",
        "percentunit",
        pick('mean("equal")', "shadow", OURS),
    ),
    (
        "States fetched",
        "How often the shadow was sent the job's state after it had missed something, from shadow.",
        "short",
        pick('sum("fetched")', "shadow", OURS),
    ),
    (
        "Lag, p99",
        "From the job's word that an iteration is over to the shadow's verdict, from shadow.",
        "ms",
        pick('percentile("lag_ms", 99)', "shadow", OURS),
    ),
)


def panels() -> tuple[Any, ...]:
    """The larger ones."""
    return (
        curve(
            "How far the shadow is behind",
            "The longest in each interval, from the job's word that an iteration is over to the verdict, from shadow. It may grow "
            "for a while; if it grows on, the shadow's host is too slow for the job.",
            "ms",
            over("max", "lag_ms", "shadow", OURS, "job"),
            nothing=NO_SHADOW,
        ),
        curve(
            "Bytes and packets the shadow missed",
            "Bytes of sums that no tap saw, and packets that taps had no room for since the job began, from shadow. Both are "
            "repaired by fetching the state; many mean that the management network or a host does not keep up.",
            "short",
            over("sum", "missing", "shadow", OURS, ref="A", word="bytes missed"),
            over("max", "lost", "shadow", OURS, ref="B", word="packets dropped"),
            nothing=NO_SHADOW,
        ),
    )
