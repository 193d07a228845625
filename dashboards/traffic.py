"""What knows a job's traffic: its attachments, what is sent in place of whole sums, checkpoints."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as board

from dashboards.influx import OURS, Influx, pick
from dashboards.live import number
from dashboards.look import dashboard, variable
from dashboards.schedules import curve, over
from orchestrator.extensions import extension_parts

NO_SUMS = "no bytes were counted"


def ratio(above: str, below: str, name: str, where: str, ref: str = "A", word: str = "") -> Influx:
    """A curve: the sums of two fields over each interval, one divided by the other."""
    return Influx(
        f'SELECT sum("{above}") / sum("{below}") FROM "{name}" WHERE {where} GROUP BY time($__interval) fill(none)',
        ref,
        alias=word,
    )


def build() -> board.Dashboard:
    built = dashboard(
        "testbed-traffic",
        "What knows a job's traffic: its attachments, compressed sums, datagrams, checkpoints.",
        [
            variable("run", "Run", "iteration", "run", of_runs=False, newest=True),
            variable("job", "Job", "iteration", "job"),
        ],
        since="15m",
        refresh="5s",
    )
    for title, what, unit, query in (
        *(each for found in extension_parts("panels", "NUMBERS") for each in found),
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
            "Checkpoint, median",
            "How long training paused for a checkpoint: until it was written, or copied, from iteration.",
            "ms",
            pick('percentile("save_ms", 50)', "iteration", OURS),
        ),
    ):
        built.with_panel(number(title, what, unit, query, w=6))
    for panel in (
        *(each for found in extension_parts("panels", "panels") for each in found()),
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
            "How long training paused for each, the longest in each interval, beside a usual iteration, from iteration. Much with "
            "checkpoint async: the one before was still being written.",
            "ms",
            over("max", "save_ms", "iteration", OURS, ref="A", word="checkpoint"),
            over("median", "iter_ms", "iteration", OURS, ref="B", word="iteration"),
            nothing="no checkpoint was written",
        ),
    ):
        built.with_panel(panel)
    return built
