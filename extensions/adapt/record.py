"""One look at a job's traffic, as a point of the journal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from extensions.adapt.region import Proposal
from extensions.adapt.region_change import RegionChanged
from extensions.adapt.traffic import Bytes, skew
from orchestrator.telemetry.journal import Journal


@dataclass(frozen=True, slots=True)
class Look:
    """The job's traffic in one iteration, and the region that gains most from other circuits."""

    iteration: int
    traffic: Bytes
    best: Proposal


def record_look(
    journal: Journal | None,
    plan: str,
    what: Literal["changed", "skipped", "failed"],
    why: str,
    look: Look | None = None,
    changed: RegionChanged | None = None,
    figures: Mapping[str, float] | None = None,
) -> None:
    """Write what came of a look. why: as the field. changed, figures: of a change (planned_ms,
    exposed_ms).
    """
    if journal is None:
        return
    fields: dict[str, float | int | str | None] = {
        "why": why,
        "iteration": look.iteration if look else 0,
        **(figures or {}),
    }
    if look is not None:
        best = look.best
        fields |= {
            "skew": skew(look.traffic),
            "gain": best.gain,
            "now_ms": best.now_s * 1e3,
            "then_ms": best.then_s * 1e3,
        }
    if changed is not None:
        fields |= {
            "change_ms": changed.change_ms,
            "dark_ms": changed.dark_ms,
            "moved": changed.moved,
        }
    at = changed.begun_ns if changed is not None else None
    journal.point("adapt", {"plan": plan, "what": what}, fields, at)
