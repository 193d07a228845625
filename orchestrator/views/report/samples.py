"""What the measurements of a comparison or a scenario gave: values of metrics, from the journals of
their runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from orchestrator.experiments.files.scenario.values import OF_A_CHANGE, Compared
from orchestrator.experiments.scenario.judging import Samples, compared_of
from orchestrator.experiments.scenario.record import dilation_of
from orchestrator.experiments.scenario.void import Slowed, slowed
from orchestrator.jobs import heartbeats
from orchestrator.views.report.ledger import Answer, Ledger, quoted

USUAL = 20
"""The usual time of an iteration is the median of so many before and after a change, as in
`engine.change.standstill`.
"""
SETTLED = 3
"""Iterations after light and routes are back that still count for the change: the first ones on new
rings, or of new processes.
"""
LAST_PART = 0.2
"""Of the seconds after which a loss is compared: iterations that end in this part of them count."""
_NO_PARTS = "(-1, '', '', 0, 0)"


@dataclass(frozen=True, slots=True)
class IterationEnd:
    """One iteration: its number, when it ended (wall ns), and the time (ms) since the end of the
    one before, of any launch.
    """

    number: int
    end_ns: int
    took_ms: float


def compared_iterations(book: Ledger, kept: Mapping[str, Any]) -> Answer:
    """The iterations that count of every finished measurement, in order of time: after the warm-up,
    or after the change.
    """
    most, warm_up = int(kept["iterations"]), int(kept.get("warm_up", 1))
    parts = []
    for number, slot in _done(kept):
        for tenant, jobs in _jobs(slot).items():
            after = jobs[-1].get("after")
            skip = jobs[-1]["first"] - 1 + warm_up if after is None else after
            parts.append(
                f"({number}, {quoted(tenant)}, {quoted(str(jobs[-1]['run']))}, {skip}, {skip + most})"
            )
    return book.query(
        "compared",
        f"{most} iterations of each measurement, without those that warmed it up",
        f"WITH part(measurement, tenant, run, skip, last) AS (VALUES {', '.join(parts) or _NO_PARTS})"
        " SELECT run, iter, iter_ms, comm_ms, loss, measurement, tenant FROM"
        " (SELECT *, ROW_NUMBER() OVER (PARTITION BY run ORDER BY time_ns) AS n FROM iteration) JOIN part USING (run)"
        " WHERE n > skip AND n <= last AND iter_ms IS NOT NULL ORDER BY measurement, tenant, time_ns",
    )


OF_ITERATIONS = {
    "busbw_gbps": (
        "busbw",
        "bus bandwidth of the all-reduces in those iterations, as nccl-tests count it",
        "collective",
    ),
    "wire_bytes": (
        "wire",
        "bytes that rank 0 sent in those iterations, without headers of TCP, UDP and IP",
        "collective",
    ),
    "asked_bytes": (
        "asked",
        "bytes of values that ranks had to send each other in those iterations",
        "requests",
    ),
    "ttft_p99_ms": (
        "ttft",
        "99th percentile of the times from a request to its first token in those iterations",
        "serving",
    ),
    "goodput": (
        "goodput",
        "share of requests that met both targets in those iterations",
        "serving",
    ),
}
"""Metrics of what happened in iterations: what the answer is called, what it is, and the
measurement that has it.
"""


def of_iterations(book: Ledger, metric: str, answer: Answer) -> Answer:
    """A metric of OF_ITERATIONS in the iterations that `compared_iterations` answered."""
    name, text, measurement = OF_ITERATIONS[metric]
    return book.query(
        name,
        text,
        f"WITH it AS ({answer.sql}) SELECT it.measurement, it.tenant, c.run, c.iter, {metric} FROM it"
        f" JOIN {measurement} c ON c.run = it.run AND c.iter = it.iter"
        f" WHERE {metric} IS NOT NULL ORDER BY it.measurement, c.time_ns",
    )


def slowed_ranks(book: Ledger, answer: Answer) -> Answer:
    """What slowed each rank down in the iterations that `compared_iterations` answered."""
    return book.query(
        "slowed",
        "of each rank in those iterations: time without a processor, without a receiver's window; TCP segments sent again;"
        " datagrams that its host refused",
        f"WITH it AS ({answer.sql}) SELECT it.measurement, it.tenant, r.rank, r.iter_ms, r.processor_ms, r.rwnd_limited_ms,"
        " r.retransmitted, r.refused FROM it JOIN rank r ON r.run = it.run AND r.iter = it.iter ORDER BY it.measurement, r.time_ns",
    )


def measured_slowed(book: Ledger, kept: Mapping[str, Any], slot: Mapping[str, Any]) -> Slowed:
    """What slowed the ranks of one measurement down, whatever its state."""
    alone = compared_iterations(book, {**kept, "slots": [{**slot, "state": "done"}]})
    ranks = _by_measurement(slowed_ranks(book, alone))
    known = [_known(lines, ranks.get(job, ())) for job, lines in _by_measurement(alone).items()]
    return slowed([line for lines in ranks.values() for line in lines], min(known, default=0.0))


def _known(iterations: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]) -> float:
    """The share of a job's iterations, but for those that heartbeats leave out, of which the waits
    of the rank are known that tells of the fewest.
    """
    told = Counter[str]()
    for row in rows:
        told[row["rank"]] += row["processor_ms"] is not None
    wanted = sum(heartbeats.kept(line["iter"]) for line in iterations)
    return min(1.0, min(told.values(), default=0) / max(1, wanted))


def training(book: Ledger, kept: Mapping[str, Any]) -> Answer:
    """All iterations of every finished measurement with a change, also those before it."""
    parts = [
        f"({number}, {quoted(tenant)}, {quoted(str(part['run']))}, {part['first']}, {part['last']})"
        for number, slot in _done(kept)
        for tenant, jobs in _jobs(slot).items()
        for part in jobs
    ]
    return book.query(
        "training",
        "all iterations of each measurement, those before the change and during it too",
        f"WITH part(measurement, tenant, run, first, last) AS (VALUES {', '.join(parts) or _NO_PARTS})"
        " SELECT measurement, tenant, run, n, iter, iter_ms, time_ns, loss FROM"
        " (SELECT *, ROW_NUMBER() OVER (PARTITION BY run ORDER BY time_ns) AS n FROM iteration) JOIN part USING (run)"
        " WHERE n >= first AND (last = 0 OR n <= last) AND iter_ms IS NOT NULL ORDER BY measurement, tenant, time_ns",
    )


def measured_changes(book: Ledger, kept: Mapping[str, Any]) -> Answer:
    """The change in each finished measurement: first command, light and routes back (wall ns),
    darkness, circuits.
    """
    parts = [
        f"({number}, {quoted(tenant)}, {quoted(str(run))})"
        for number, slot in _done(kept)
        for tenant, run in slot.get("changes", {}).items()
    ]
    ends = "MAX(d.time_ns + COALESCE(d.t_route_ns, d.t_link_up_ns, d.t_dark_end_ns))"
    return book.query(
        "changes",
        "the change of each measurement: first command, light and routes back, darkness, circuits made and broken",
        f"WITH part(measurement, tenant, run) AS (VALUES {', '.join(parts) or '(-1, {0}, {0})'.format(quoted(''))})"
        " SELECT measurement, tenant, part.run, MIN(r.time_ns) AS begin_ns,"
        f" (SELECT {ends} FROM reconfig_device d WHERE d.run = part.run) AS back_ns,"
        " MAX(r.dark_ms) AS dark_ms, SUM(r.n_circuits) AS circuits"
        " FROM part JOIN reconfig r ON r.run = part.run GROUP BY measurement, tenant ORDER BY measurement, tenant",
    )


def steps(lines: Sequence[Mapping[str, Any]]) -> list[IterationEnd]:
    """The iterations of a measurement in order. An iteration counts from the end of the one before,
    so that a pause between two, or a launch, counts for the second."""
    found: list[IterationEnd] = []
    for line in lines:
        end_ns = int(line["time_ns"] + line["iter_ms"] * 1e6)
        took = (end_ns - found[-1].end_ns) / 1e6 if found else float(line["iter_ms"])
        found.append(IterationEnd(int(line["iter"]), end_ns, took))
    return found


def lost_ms(found: Sequence[IterationEnd], begin_ns: int, back_ns: int) -> float | None:
    """The time lost by a change: what the iterations from the first command until `SETTLED` after
    light and routes were back took beyond the usual, and all of those that were made a second time.
    None: too few iterations around it.

    The same for a job that went on and for one that was launched again. Usual: the median of at
    most `USUAL` before the change, for iterations that ended before `back_ns`; of as many after it
    for the others.
    """
    first = next((at for at, step in enumerate(found) if step.end_ns > begin_ns), None)
    back = next((at for at, step in enumerate(found) if step.end_ns > back_ns), None)
    if first is None or back is None:
        return None
    last = back + SETTLED - 1
    before, after = found[max(1, first - USUAL) : first], found[last + 1 : last + 1 + USUAL]
    if len(before) < SETTLED or len(after) < SETTLED:
        return None
    old, new = median(step.took_ms for step in before), median(step.took_ms for step in after)
    furthest = max(step.number for step in found[:first])
    lost = 0.0
    for step in found[first : last + 1]:
        usual = old if step.end_ns <= back_ns else new
        lost += step.took_ms if step.number <= furthest else max(0.0, step.took_ms - usual)
        furthest = max(furthest, step.number)
    return lost


def span_ms(found: Sequence[IterationEnd], begin: int, iterations: int) -> float | None:
    """The time from the end of iteration `found[begin]` until the job was `iterations` further;
    None: it never was.
    """
    wanted = found[begin].number + iterations
    end = next((step.end_ns for step in found[begin:] if step.number >= wanted), None)
    return None if end is None else (end - found[begin].end_ns) / 1e6


def loss_after(
    found: Sequence[IterationEnd], losses: Sequence[float | None], begin: int, seconds: float
) -> float | None:
    """The median loss of the iterations that ended in the last part of so many seconds after the end
    of `found[begin]`; None: none did, or one has no loss.
    """
    until = found[begin].end_ns + seconds * 1e9
    since = until - LAST_PART * seconds * 1e9
    ended = [loss for step, loss in zip(found, losses, strict=True) if since < step.end_ns <= until]
    return median(ended) if ended and None not in ended else None  # type: ignore[type-var]


def percentile_99(values: Sequence[float]) -> float:
    """The least of these that at least 99 % do not exceed.

    >>> percentile_99([3.0, 1.0, 2.0]), percentile_99(range(1, 201))
    (3.0, 198)
    """
    return sorted(values)[-(-99 * len(values) // 100) - 1]


def metric_samples(book: Ledger, kept: Mapping[str, Any]) -> Samples:
    """The values of the metrics that the scenario compares, and iteration times, from the
    journals.
    """
    found: dict[tuple[str, str, str, float], dict[int, list[float]]] = {}
    wanted = compared_of(kept)
    arms = [str(slot["arm"]) for slot in kept["slots"]]

    def add(number: int, tenant: str, metric: str, values: list[float], extent: float = 0) -> None:
        found.setdefault((arms[number], tenant, metric, extent), {})[number] = values

    answer = compared_iterations(book, kept)
    for (number, tenant), lines in _by_measurement(answer).items():
        for metric, column in (("iteration_ms", "iter_ms"), ("comm_ms", "comm_ms")):
            if values := [line[column] for line in lines if line[column] is not None]:
                add(number, tenant, metric, values)
        # One value: losses of single iterations differ by their samples, which are the same in
        # every arm.
        losses = [line["loss"] for line in lines]
        if None not in losses:  # one that is no number is not recorded: the training diverged
            add(number, tenant, "loss", [median(losses)])
        add(
            number, tenant, "iteration_p99_ms", [percentile_99([line["iter_ms"] for line in lines])]
        )
    metrics = {one.metric for one in wanted}
    for metric in sorted(metrics & set(OF_ITERATIONS)):
        for (number, tenant), lines in _by_measurement(of_iterations(book, metric, answer)).items():
            add(number, tenant, metric, [line[metric] for line in lines])
    far = [one for one in wanted if one.extent]
    if far or metrics & OF_A_CHANGE:
        _of_changes(book, kept, far, add)
    return found


def _of_changes(
    book: Ledger, kept: Mapping[str, Any], far: Sequence[Compared], add: Callable[..., None]
) -> None:
    """Add the metrics of a change: what it cost, and how far the job came from it on. far: what is
    compared after so many iterations or seconds.
    """
    trained, made = (
        _by_measurement(training(book, kept)),
        _by_measurement(measured_changes(book, kept)),
    )
    for (number, tenant), lines in trained.items():
        found, moved = steps(lines), made.get((number, tenant))
        part = _jobs(kept["slots"][number])[tenant][0]
        after = part.get("after")
        if moved is None:  # it stayed: from the last iteration of the warm-up on
            after = part["first"] - 1 + int(kept.get("warm_up", 1)) if after is None else after
            begin = next((at for at, line in enumerate(lines) if line["n"] == after), None)
        else:
            change = moved[0]
            add(
                number,
                tenant,
                "dark_ms",
                [change["dark_ms"]] if change["dark_ms"] is not None else [],
            )
            add(number, tenant, "circuits_moved", [float(change["circuits"] or 0)])
            lost = (
                lost_ms(found, change["begin_ns"], change["back_ns"])
                if change["back_ns"] is not None
                else None
            )
            add(number, tenant, "lost_ms", [] if lost is None else [lost])
            begin = max(
                (at for at, step in enumerate(found) if step.end_ns <= change["begin_ns"]),
                default=None,
            )
        if begin is None:
            continue
        losses, k = [line["loss"] for line in lines], dilation_of(kept)
        for one in far:
            value = (
                loss_after(found, losses, begin, k * one.seconds)
                if one.seconds
                else span_ms(found, begin, one.iterations)
            )
            add(number, tenant, one.metric, [] if value is None else [value], one.extent)


def by_arm(
    found: Samples, kept: Mapping[str, Any], metric: str = "iteration_ms", extent: float = 0
) -> dict[str, list[list[float]]]:
    """The values of a metric of each arm, measurement by measurement, of all tenants."""
    return {
        arm: [
            list(v)
            for key, each in found.items()
            if key[0] == arm and key[2:] == (metric, extent)
            for v in each.values()
        ]
        for arm in kept["arms"]
    }


def _done(kept: Mapping[str, Any]) -> list[tuple[int, Mapping[str, Any]]]:
    return [(number, slot) for number, slot in enumerate(kept["slots"]) if slot["state"] == "done"]


def _jobs(slot: Mapping[str, Any]) -> Mapping[str, list[dict[str, Any]]]:
    """By tenant, the parts of job runs that belong to a measurement."""
    return slot.get("jobs") or {"": [{"run": slot["job_run"], "first": 1, "last": 0}]}


def _by_measurement(answer: Answer) -> dict[tuple[int, str], list[dict[str, Any]]]:
    found: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for row in answer.rows:
        line = dict(zip(answer.columns, row, strict=True))
        found.setdefault((line["measurement"], line["tenant"]), []).append(line)
    return found
