"""How long the phases of a verb took, and the parts of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PhaseTime:
    """One phase of a run on the operator's clock. `begin_s` counts from the start of the run."""

    name: str
    seconds: float
    detail: str = ""
    begin_s: float = 0.0
    ok: bool = True


@dataclass(frozen=True, slots=True)
class PartTime:
    """What one device or host took inside a phase. `kind` is `device` or `host`; `begin_ms` counts
    from the start of the run.

    `time_scale` times `ms` is the time of a real device of its kind.
    """

    kind: str
    name: str
    phase: str
    ms: float
    detail: str = ""
    begin_ms: float = 0.0
    time_scale: float = 1.0
