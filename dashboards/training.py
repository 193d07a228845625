"""Training: the job's performance before and after each reconfiguration."""

from __future__ import annotations

from grafana_foundation_sdk.builders import barchart, statushistory, timeseries
from grafana_foundation_sdk.builders import common as common_b
from grafana_foundation_sdk.builders import dashboard as board
from grafana_foundation_sdk.models import common as kinds
from grafana_foundation_sdk.models import dashboard as models

from dashboards import influx
from dashboards.fabric import lines, mean
from dashboards.influx import HERE, HOST, JOB, Influx, pick
from dashboards.live import PAUSES, bars, curves, number, throughput
from dashboards.look import NO_TIME, colour, dashboard, dress, legend, variable
from orchestrator.telemetry.palette import PHASE_COLOURS

OURS = f"{HERE} AND {JOB}"
GPUS = f"{HERE} AND {HOST}"
GPU = ("host", "gpu")
PAUSE_MS = 10_000.0
"""Curves of the job end where it ended no step for longer than this (ms), so that a pause is seen
as one.
"""


def steps(title: str, what: str, unit: str, *queries: Influx, w: int = 12) -> timeseries.Panel:
    """Curves of the job, which break where it paused."""
    return lines(title, what, unit, *queries, w=w, over=PAUSE_MS)


def step_parts() -> timeseries.Panel:
    """Computing and communication of a step, one on the other."""
    query = (
        f'SELECT mean("compute_ms") AS "computing", mean("comm_ms") AS "communication" FROM "iteration" WHERE {OURS} '
        "GROUP BY time($__interval) fill(null)"
    )
    panel = dress(
        curves()
        .fill_opacity(50)
        .min(0)
        .stacking(common_b.StackingConfig().mode(kinds.StackingMode.NORMAL))
        .span_nulls(PAUSE_MS)
        .legend(legend("mean", right=True)),
        "What a step consists of",
        "Computing and communication of a training step, from iteration. Communication is what another topology can change.",
        "ms",
        Influx(query, alias="$col"),
        w=12,
        h=9,
        interval="1s",
    )
    return panel.override_by_name("computing", colour(PHASE_COLOURS["up"])).override_by_name(
        "communication", colour(PHASE_COLOURS["link"])
    )


def late_ranks() -> statushistory.Panel:
    """A row for each rank: what a step took it without the wait for others, the longer the
    redder.
    """
    query = f'SELECT mean("iter_ms") - mean("wait_ms") FROM "rank" WHERE {OURS} GROUP BY time($__interval), "rank" fill(none)'
    panel = (
        statushistory.Panel().show_value(kinds.VisibilityMode.NEVER).row_height(0.9).col_width(1.0)
    )
    return dress(
        panel.legend(legend()).color_scheme(
            board.FieldColor().mode(models.FieldColorModeId.CONTINUOUS_BL_YL_RD)
        ),
        "Which rank is late",
        "A row for each rank, from rank: a training step less the time in which it waited for other ranks. The others wait for one "
        "whose row is redder than theirs; `testbed job diagnose` says why it is late.",
        "ms",
        Influx(query, alias="$tag_rank"),
        w=12,
        nothing="no rank says how long it waits",
        interval="1s",
    )


def moves() -> barchart.Panel:
    """The job's step per run: each move of the light is a run."""
    shares = ", ".join(f'percentile("iter_ms", {n}) AS "p{n}"' for n in (50, 90, 99))
    return dress(
        bars("run", kinds.VizOrientation.AUTO)
        .fill_opacity(80)
        .show_value(kinds.VisibilityMode.AUTO),
        "Before and after each move",
        "A training step's median and slow end in each run, from iteration: every move of the light begins a "
        "run, so neighbours are "
        "before and after. Lower is better.",
        "ms",
        influx.table(f'SELECT {shares} FROM "iteration" WHERE {OURS} GROUP BY "run"'),
        w=12,
        h=9,
        transform=[NO_TIME],
    )


def build() -> board.Dashboard:
    built = dashboard(
        "testbed-training",
        "The job's steps, bandwidth and exposed communication, before and after each reconfiguration.",
        [
            variable("run", "Run", "iteration", "run", of_runs=False, newest=True),
            variable("job", "Job", "iteration", "job"),
            variable("host", "Host", "port", "host"),
        ],
        since="1h",
        refresh="5s",
    )
    for title, what, unit, query in (
        (
            "Step, median",
            "How long half of the training steps take at most, from iteration.",
            "ms",
            pick('percentile("iter_ms", 50)', "iteration", OURS),
        ),
        (
            "Step, p99",
            "The slow ones, from iteration. Moves of the light are among them.",
            "ms",
            pick('percentile("iter_ms", 99)', "iteration", OURS),
        ),
        (
            "Steps",
            "How many there were in this time, from iteration.",
            "short",
            pick('count("iter_ms")', "iteration", OURS),
        ),
        (
            "Samples a second",
            "Over all ranks, the mean of this time, from iteration.",
            "short",
            pick('mean("samples_per_s")', "iteration", OURS),
        ),
        (
            "Bandwidth",
            "Median bus bandwidth of collective operations by nccl-tests' definition, from collective (Gb/s). "
            "Compare with the links' rate.",
            "Gbits",
            pick('percentile("busbw_gbps", 50)', "collective", OURS),
        ),
        *PAUSES,
        (
            "Loss of training",
            "The last value, from iteration. It must fall; a reconfiguration must not move it.",
            "none",
            pick('last("loss")', "iteration", OURS),
        ),
    ):
        built.with_panel(number(title, what, unit, query, w=3))
    built.with_panel(
        steps(
            "Iteration time",
            "A training step, mean and slowest, from iteration. A peak at a mark is the move itself, a step "
            "after it the new topology.",
            "ms",
            mean("iter_ms", "iteration", OURS, "job", fill="null"),
            Influx(
                f'SELECT max("iter_ms") FROM "iteration" WHERE {OURS} GROUP BY time($__interval), "job" fill(null)',
                "B",
                alias="$tag_job slowest",
            ),
            w=24,
        )
    )
    built.with_panel(step_parts())
    built.with_panel(moves())
    built.with_panel(
        steps(
            "Bus bandwidth",
            "Of collective operations, from collective: one line per operation. After a move it should be at least what it was.",
            "Gbits",
            mean("busbw_gbps", "collective", OURS, "op", "algo", fill="null"),
        )
    )
    built.with_panel(
        steps(
            "Exposed communication",
            "Communication not overlapped by computing, from collective: what the job waits for.",
            "ms",
            mean("exposed_comm_ms", "collective", OURS, "job", fill="null"),
        )
    )
    built.with_panel(throughput(24, 7))
    built.with_panel(late_ranks())
    built.with_panel(
        steps(
            "Loss",
            "Of training, from iteration. A reconfiguration must not show here.",
            "none",
            mean("loss", "iteration", OURS, "job", fill="null"),
        )
    )
    built.with_row(
        board.Row("GPUs")
        .collapsed(True)
        .with_panel(
            lines(
                "Busy",
                "How busy each GPU is, from gpu. A valley at a mark is the move.",
                "percent",
                mean("util", "gpu", GPUS, *GPU),
            )
            .min(0)
            .max(100)
        )
        .with_panel(
            lines(
                "Power",
                "What each GPU draws, from gpu. Idle GPUs wait for the fabric.",
                "watt",
                mean("power_w", "gpu", GPUS, *GPU),
            )
        )
        .with_panel(
            lines(
                "Memory",
                "In use on each GPU, from gpu. A step up means another batch or model.",
                "bytes",
                mean("mem_bytes", "gpu", GPUS, *GPU),
            )
        )
        .with_panel(
            lines(
                "NVLink",
                "What each host's GPUs receive over NVLink, from gpu: traffic that never sees the fabric.",
                "Bps",
                Influx(
                    f'SELECT non_negative_derivative(last("nvlink_rx_bytes"), 1s) FROM "gpu" WHERE {GPUS} '
                    'GROUP BY time($__interval), "host", "gpu" fill(none)',
                    alias="$tag_host $tag_gpu",
                ),
            )
        )
    )
    return built
