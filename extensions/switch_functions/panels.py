"""What the dashboards show of functions that packet switches lend."""

from __future__ import annotations

from typing import Any

from grafana_foundation_sdk.builders import table as tables

from dashboards.influx import OURS, Influx, pick, table
from dashboards.look import NO_TIME, dress, rows
from dashboards.schedules import curve

AGGREGATE, CACHE = (f"{OURS} AND \"function\" = '{name}'" for name in ("aggregate", "cache"))
NO_FUNCTION = "no function is lent"

NUMBERS = (
    (
        "Answered by caches",
        "The share of questions that packet switches answered, from function.",
        "percentunit",
        pick('last("hits") / last("gets")', "function", CACHE),
    ),
)


def counted(field: str, where: str, word: str, ref: str = "A") -> Influx:
    """A curve per segment: a switch's counter, by the second."""
    return Influx(
        f'SELECT non_negative_derivative(last("{field}"), 1s) FROM "function" WHERE {where}'
        ' GROUP BY time($__interval), "segment" fill(none)',
        ref,
        alias=f"$tag_segment {word}",
    )


def leases() -> tables.Panel:
    """What each job has of which packet switch."""
    columns = ", ".join(
        f'last("{field}") AS "{name}"'
        for field, name in (
            ("size", "has"),
            ("total", "of"),
            ("each_bytes", "bytes each"),
            ("lease_left_s", "lease left, s"),
        )
    )
    return dress(
        rows(),
        "Functions lent",
        "Slots or entries that each job had of a packet switch, and how long the lease of then still lasted, from function. One "
        "that runs out is not renewed any more: the job's ranks will miss their sums.",
        "none",
        table(
            f'SELECT {columns} FROM "function" WHERE {OURS} GROUP BY "job", "segment", "function"'
        ),
        w=12,
        h=8,
        nothing=NO_FUNCTION,
        transform=[NO_TIME],
    )


def panels() -> tuple[Any, ...]:
    """The larger ones."""
    return (
        leases(),
        curve(
            "Packets at packet switches",
            "Of the jobs' ranks to the switch and back, from function. Without packets while a job runs: its ranks wait.",
            "pps",
            counted("packets_in", OURS, "in"),
            counted("packets_out", OURS, "out", "B"),
            nothing=NO_FUNCTION,
        ),
        curve(
            "Sums of packet switches",
            "Chunks whose sum was complete, and parts that had been sent again though they were in, from function. Many of the "
            "latter: packets are lost, or queues are full.",
            "short",
            counted("sums", AGGREGATE, "sums"),
            counted("duplicates", AGGREGATE, "sent again", "B"),
            nothing=NO_FUNCTION,
        ),
        curve(
            "Questions to caches",
            "Questions, those answered, and entries that made room for others, from function. As many of the last as questions: "
            "the cache is too small for the keys.",
            "short",
            counted("gets", CACHE, "questions"),
            counted("hits", CACHE, "answered", "B"),
            counted("evicted", CACHE, "made room", "C"),
            nothing=NO_FUNCTION,
        ),
    )
