"""Records every phase of a run: on the operator's screen, in the journal and in the report."""

from __future__ import annotations

import time
from asyncio import CancelledError
from collections.abc import Iterator
from contextlib import contextmanager

from optics.errors import first_line
from orchestrator.telemetry.journal import Journal
from orchestrator.telemetry.phases import PartTime, PhaseTime
from orchestrator.telemetry.progress import Progress


class Phase:
    """The current phase; set `detail` to a short text shown after its name."""

    __slots__ = ("begin_ns", "detail", "end_ns", "name")

    def __init__(self, name: str, detail: str) -> None:
        self.name, self.detail = name, detail
        self.begin_ns = time.monotonic_ns()
        self.end_ns = 0


class Recorder:
    """Times phases on one monotonic clock. `journal` None: nothing is kept (dry run, status)."""

    def __init__(self, progress: Progress, journal: Journal | None = None) -> None:
        self.progress = progress
        self.journal = journal
        if journal is not None:
            journal.notify = progress.note
        self.start_ns = time.monotonic_ns()
        self.phases: list[PhaseTime] = []
        self.parts: list[PartTime] = []
        self.reconfig_id = ""

    @contextmanager
    def phase(self, name: str, detail: str = "") -> Iterator[Phase]:
        """Time the body as phase `name`; a phase that raises is recorded as failed with the error's
        first line.
        """
        phase = Phase(name, detail)
        self.progress.phase(name, detail)
        if self.journal:
            self.journal.phase_begin(name, phase.begin_ns)
        try:
            yield phase
        except BaseException as error:
            interrupted = isinstance(error, (CancelledError, KeyboardInterrupt))
            phase.detail = "interrupted" if interrupted else first_line(error)
            self._close(phase, ok=False)
            raise
        self._close(phase, ok=True)

    def part(
        self,
        kind: str,
        subject: str,
        phase: str,
        begin_ns: int,
        end_ns: int,
        detail: str = "",
        time_scale: float = 1.0,
    ) -> None:
        """Record the time of one device or host inside a phase; monotonic ns of this machine.
        time_scale: of the device.
        """
        begin_ms = (begin_ns - self.start_ns) / 1e6
        self.parts.append(
            PartTime(kind, subject, phase, (end_ns - begin_ns) / 1e6, detail, begin_ms, time_scale)
        )
        if self.journal:
            self.journal.phase(
                phase,
                begin_ns,
                end_ns,
                kind=kind,
                subject=subject,
                detail=detail,
                reconfig_id=self.reconfig_id,
            )

    def add(self, name: str, begin_ns: int, end_ns: int, detail: str) -> None:
        """Record a phase that was timed elsewhere (by the hosts or the devices)."""
        phase = Phase(name, detail)
        phase.begin_ns = begin_ns
        self.progress.phase(name, detail)
        self._close(phase, ok=True, end_ns=end_ns)

    def _close(self, phase: Phase, *, ok: bool, end_ns: int | None = None) -> None:
        phase.end_ns = time.monotonic_ns() if end_ns is None else end_ns
        seconds = (phase.end_ns - phase.begin_ns) / 1e9
        self.phases.append(
            PhaseTime(phase.name, seconds, phase.detail, (phase.begin_ns - self.start_ns) / 1e9, ok)
        )
        self.progress.done(phase.name, phase.detail, seconds)
        if self.journal:
            self.journal.phase(
                phase.name,
                phase.begin_ns,
                phase.end_ns,
                detail=phase.detail,
                reconfig_id=self.reconfig_id,
                ok=ok,
            )
