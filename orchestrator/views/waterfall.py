"""The phases of a run as bars of a waterfall, as `run show` and the live views draw them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import median, quantiles

from orchestrator.results import Json
from orchestrator.telemetry.lineprotocol import Point


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: `begin_ms` counts from the start of the run. `kind`: run, device or host."""

    kind: str
    subject: str
    phase: str
    begin_ms: float
    ms: float
    ok: bool = True
    detail: str = ""

    @property
    def end_ms(self) -> float:
        return self.begin_ms + self.ms


@dataclass(frozen=True, slots=True)
class IterationSummary:
    """Times of a job's iterations, ms; `run` launched it; `busbw_gbps` is the median bus
    bandwidth.
    """

    run: str
    job: str
    what: str
    count: int
    median_ms: float
    p99_ms: float
    max_ms: float
    busbw_gbps: float | None = None


def bars(points: Iterable[Point]) -> list[Bar]:
    """The `phase` points of a journal in order of their begin."""
    found = [
        Bar(
            p.tags["kind"],
            p.tags["subject"],
            p.tags["phase"],
            float(p.fields["begin_ns"]) / 1e6,
            float(p.fields["duration_ns"]) / 1e6,
            bool(p.fields.get("ok", 1)),
            str(p.fields.get("detail", "")),
        )
        for p in points
        if p.measurement == "phase"
    ]
    return sorted(found, key=lambda b: (b.begin_ms, b.kind != "run"))


def summarise_iterations(points: Iterable[Point]) -> list[IterationSummary]:
    """The `iteration` and `collective` points, summarised by job and operation."""
    times: dict[tuple[str, str, str], list[float]] = {}
    rates: dict[tuple[str, str, str], list[float]] = {}
    for p in points:
        if p.measurement in ("iteration", "collective") and "iter_ms" in p.fields:
            key = (
                p.tags["run"],
                p.tags["job"],
                p.tags["workload" if p.measurement == "iteration" else "op"],
            )
            times.setdefault(key, []).append(float(p.fields["iter_ms"]))
            if "busbw_gbps" in p.fields:
                rates.setdefault(key, []).append(float(p.fields["busbw_gbps"]))
    return [
        IterationSummary(
            run,
            job,
            what,
            len(ms),
            median(ms),
            quantiles(ms, n=100, method="inclusive")[98] if len(ms) > 1 else ms[0],
            max(ms),
            median(rates[run, job, what]) if (run, job, what) in rates else None,
        )
        for (run, job, what), ms in sorted(times.items())
    ]


def bar_json(bar: Bar) -> dict[str, Json]:
    """A bar for `--json`."""
    return asdict(bar)


OVERLAPPING = frozenset({"resume"})
"""Phases that run in parallel with others: listed last and drawn hatched, so that their times are
not added up.
"""


def run_rows(all_bars: Iterable[Bar]) -> list[tuple[str, tuple[Bar, ...]]]:
    """The phases of a run in order of their begin, a repeated one once; those that overlap others
    come last.
    """
    found: dict[str, list[Bar]] = {}
    for bar in sorted((b for b in all_bars if b.kind == "run"), key=lambda b: b.begin_ms):
        found.setdefault(bar.phase, []).append(bar)
    return sorted(
        ((name, tuple(some)) for name, some in found.items()), key=lambda row: row[0] in OVERLAPPING
    )


def part_rows(parts: Sequence[Bar]) -> list[tuple[str, Bar]]:
    """The parts of devices and hosts: a row per device and phase, one per phase for all hosts
    together.
    """
    rows = [(f"{b.subject} {b.phase}", b) for b in parts if b.kind != "host"]
    return rows + host_rows([b for b in parts if b.kind == "host"])


def host_rows(bars_of_hosts: Sequence[Bar]) -> list[tuple[str, Bar]]:
    """All hosts of one phase as one bar from the first begin to the last end; its detail names the
    slowest.
    """
    groups: dict[str, list[Bar]] = {}
    for bar in bars_of_hosts:
        groups.setdefault(bar.phase, []).append(bar)
    rows = []
    for phase, group in groups.items():
        begin, end = min(b.begin_ms for b in group), max(b.end_ms for b in group)
        slow = max(group, key=lambda b: b.end_ms)
        middle = median(b.ms for b in group)
        detail = f"{len(group)} hosts, median {middle:.1f}, last {slow.subject}"
        rows.append(
            (
                f"hosts {phase}",
                Bar("host", "", phase, begin, end - begin, all(b.ok for b in group), detail),
            )
        )
    return sorted(rows, key=lambda row: row[1].begin_ms)
