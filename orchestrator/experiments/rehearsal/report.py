"""What a rehearsal showed, and afterwards how the change itself compared; kept in the run's
directory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.change.report import JobChange, UpReport
from orchestrator.files.atomic import write_whole
from orchestrator.files.reading import text_of
from orchestrator.plan.report import DeviceDiff
from orchestrator.results import JsonReport, to_json
from orchestrator.telemetry.phases import PartTime, PhaseTime

KEPT = "rehearsal.json"
"""In the directory of the run that made the rehearsed change."""


@dataclass(frozen=True, slots=True)
class LinkDark:
    """How long the light of a link was away at the twin's light path, of both directions (ms);
    None: its ports were dark before.
    """

    link: str
    dark_ms: float | None


@dataclass(frozen=True, slots=True)
class StallEstimate:
    """How long traffic would stand (ms) by the lab's stall curve, in the mode of the change;
    `points` of the curve were used.
    """

    mode: str
    dark_ms: float
    lost_ms: float
    points: int


@dataclass(frozen=True, slots=True)
class GoingBack:
    """What a rollback after the change took on the twin: seconds in all, dark time (ms), None if no
    light was moved back.
    """

    seconds: float
    dark_ms: float | None = None
    failed: str = ""


@dataclass(frozen=True, slots=True)
class RehearsalReport(JsonReport):
    """A change as it went on the twin; times are the twin's, which are to be expected of the lab.

    failed: why the change failed there, empty if it did not. left: manual repairs that the lab
    would then need. cut_off: ordered pairs of hosts without any path while circuits are dark.
    switching: per device the time that the twin was given, in words. devices_alone: the twin had no
    hosts, so `phases` are those of its devices. missing: what the twin does not have, and what
    therefore does not show. took_s: of the whole rehearsal. fingerprint: as of `PlanReport`: the
    lab for which this holds.
    """

    plan: str
    lab: str
    fingerprint: str = ""
    failed: str = ""
    left: tuple[str, ...] = ()
    devices_alone: bool = False
    phases: tuple[PhaseTime, ...] = ()
    parts: tuple[PartTime, ...] = ()
    diff: tuple[DeviceDiff, ...] = ()
    nothing_to_do: bool = False
    dark_ms: float | None = None
    dark_ms_expected: float | None = None
    dark_time_scale: float = 1.0
    links: tuple[LinkDark, ...] = ()
    cut_off: tuple[str, ...] = ()
    stall: StallEstimate | None = None
    ring_change: JobChange | None = None
    job_change: str = ""
    back: GoingBack | None = None
    switching: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    took_s: float = 0.0

    derived = ("total_s", "ok")

    @property
    def total_s(self) -> float:
        """How long the change takes (s)."""
        return max((p.begin_s + p.seconds for p in self.phases), default=0.0)

    @property
    def ok(self) -> bool:
        return not self.failed


@dataclass(frozen=True, slots=True)
class ComparedFigure:
    """One figure of a change: as rehearsed and as measured (ms); None: there was none."""

    what: str
    rehearsed_ms: float | None
    measured_ms: float | None

    @property
    def off(self) -> float | None:
        """By which share of the measured value the rehearsed one was off; None where one is missing
        or nothing took time.
        """
        if self.rehearsed_ms is None or not self.measured_ms:
            return None
        return self.rehearsed_ms / self.measured_ms - 1


def compare_rehearsal(rehearsed: RehearsalReport, measured: UpReport) -> tuple[ComparedFigure, ...]:
    """Dark time, total and the job's standstill, then every phase, in the order in which the change
    had them.
    """
    total_ms = None if rehearsed.devices_alone else rehearsed.total_s * 1e3
    rows = [
        ComparedFigure("dark", rehearsed.dark_ms, measured.dark_ms),
        ComparedFigure("total", total_ms, measured.total_s * 1e3),
    ]
    paused = [
        report.ring_change.paused_ms if report.ring_change is not None else None
        for report in (rehearsed, measured)
    ]
    if any(ms is not None for ms in paused):
        rows.append(ComparedFigure("job lost", paused[0], paused[1]))
    existing, here = _phases(rehearsed.phases), _phases(measured.phases)
    return (
        *rows,
        *(
            ComparedFigure(f"phase {name}", existing.get(name), here.get(name))
            for name in dict.fromkeys((*here, *existing))
        ),
    )


def _phases(phases: tuple[PhaseTime, ...]) -> dict[str, float]:
    found: dict[str, float] = {}
    for phase in phases:
        found[phase.name] = found.get(phase.name, 0.0) + phase.seconds * 1e3
    return found


def save_comparison(
    run_dir: Path, rehearsed: RehearsalReport, rows: tuple[ComparedFigure, ...]
) -> None:
    """Keep both in the run's directory. Raises: OSError."""
    write_whole(
        run_dir / KEPT, json.dumps({"rehearsed": rehearsed.to_json(), "comparison": to_json(rows)})
    )


def load_comparison(run_dir: Path) -> tuple[ComparedFigure, ...]:
    """What `save_comparison` kept of a run; empty if the run was not rehearsed, or the file is not
    readable.
    """
    try:
        rows: Any = json.loads(text_of(run_dir / KEPT))["comparison"]
        return tuple(
            ComparedFigure(
                str(row["what"]), _number(row["rehearsed_ms"]), _number(row["measured_ms"])
            )
            for row in rows
        )
    except (OSError, ValueError, KeyError, TypeError):
        return ()


def _number(value: object) -> float | None:
    return None if value is None else float(value)  # type: ignore[arg-type]
