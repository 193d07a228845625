"""What knows a job's traffic: shadow, functions of packet switches, what is sent in place of whole sums, checkpoints."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as board
from grafana_foundation_sdk.builders import table as tables

from dashboards.influx import HERE, JOB, Influx, pick, table
from dashboards.live import number
from dashboards.look import NO_TIME, dashboard, dress, variable
from dashboards.turning import curve, over

OURS = f"{HERE} AND {JOB}"
AGGREGATE, CACHE = (f"{OURS} AND \"function\" = '{name}'" for name in ("aggregate", "cache"))
NO_SHADOW, NO_FUNCTION, NO_SUMS = "no shadow", "no function is lent", "no bytes were counted"


def ratio(above: str, below: str, name: str, where: str, ref: str = "A", word: str = "") -> Influx:
    """A curve: the sums of two fields over each interval, one divided by the other."""
    return Influx(
        f'SELECT sum("{above}") / sum("{below}") FROM "{name}" WHERE {where} GROUP BY time($__interval) fill(none)', ref, alias=word
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
        for field, name in (("size", "has"), ("total", "of"), ("each_bytes", "bytes each"), ("lease_left_s", "lease left, s"))
    )
    return dress(
        tables.Panel(),
        "Functions lent",
        "Slots or entries that each job had of a packet switch, and how long the lease of then still lasted, from function. One "
        "that runs out is not renewed any more: the job's ranks will miss their sums.",
        "none",
        table(f'SELECT {columns} FROM "function" WHERE {OURS} GROUP BY "job", "segment", "function"'),
        w=12,
        h=8,
        nothing=NO_FUNCTION,
        transform=[NO_TIME],
    )


def build() -> board.Dashboard:
    built = dashboard(
        "testbed-traffic",
        "What knows a job's traffic: its shadow, functions of packet switches, compressed sums, datagrams, checkpoints.",
        [variable("run", "Run", "iteration", "run", of_runs=False, newest=True), variable("job", "Job", "iteration", "job")],
        since="15m",
        refresh="5s",
    )
    for title, what, unit, query in (
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
            "Lag, 99th percentile",
            "From the job's word that an iteration is over to the shadow's verdict, from shadow.",
            "ms",
            pick('percentile("lag_ms", 99)', "shadow", OURS),
        ),
        (
            "Sent of whole sums",
            "Bytes that rank 0 sent, over those of whole sums over a ring in every iteration, from collective.",
            "percentunit",
            pick('sum("wire_bytes") / sum("whole_bytes")', "collective", OURS),
        ),
        (
            "Sums lack at most",
            "The largest share of all ranks' numbers that the sums of an iteration lacked, from collective.",
            "percentunit",
            pick('max("lost_share")', "collective", OURS),
        ),
        (
            "Answered by caches",
            "The share of questions that packet switches answered, from function.",
            "percentunit",
            pick('last("hits") / last("gets")', "function", CACHE),
        ),
        (
            "Checkpoint, median",
            "How long training stood for a checkpoint: until it was written, or copied, from iteration.",
            "ms",
            pick('percentile("save_ms", 50)', "iteration", OURS),
        ),
    ):
        built.with_panel(number(title, what, unit, query, w=3))
    for panel in (
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
        curve(
            "Bytes sent of whole sums",
            "Of rank 0, over those of whole sums over a ring in every iteration, from collective: 1 without compression, and with "
            "sync_every also fewer exchanges.",
            "percentunit",
            ratio("wire_bytes", "whole_bytes", "collective", OURS, word="sent"),
            nothing=NO_SUMS,
        ),
        curve(
            "Loss of datagrams, and its bound",
            "The share of all ranks' numbers that sums lacked, the most in each interval, beside what was allowed, from "
            "collective. Never above; near it, most of what is lost is asked for again.",
            "percentunit",
            over("max", "lost_share", "collective", OURS, ref="A", word="lacked"),
            over("max", "loss_bound", "collective", OURS, ref="B", word="allowed"),
            nothing="no datagrams carry sums",
        ),
        curve(
            "Sent again by datagrams",
            "Of the bytes that rank 0 sent, from collective.",
            "percentunit",
            ratio("resent_bytes", "wire_bytes", "collective", OURS, word="sent again"),
            nothing="no datagrams carry sums",
        ),
        curve(
            "Checkpoints",
            "How long training stood for each, the longest in each interval, beside a usual iteration, from iteration. Much with "
            "checkpoint async: the one before was still being written.",
            "ms",
            over("max", "save_ms", "iteration", OURS, ref="A", word="checkpoint"),
            over("median", "iter_ms", "iteration", OURS, ref="B", word="iteration"),
            nothing="no checkpoint was written",
        ),
    ):
        built.with_panel(panel)
    return built
