"""The options of the service that shifts jobs. Pure: arms of scenarios have them too."""

from __future__ import annotations

from dataclasses import dataclass

from optics.errors import Usage
from orchestrator.background.options import TIME, ServiceOptions, option

SAMPLED_S = 3.0
"""How long ports are sampled; as a period must show three times, up to iterations of 0.9 s
(`measure.LONGER` iterations else).
"""
SHIFT, WINDOWS, TOGETHER = "shift", "mltcp", "together"
GRID = "Shifts and periods are multiples of this."
FOR = "How long ports are sampled."


@dataclass(frozen=True, slots=True)
class CoordinateOptions(ServiceOptions):
    """by: shift; mltcp, a congestion control whose windows move jobs apart; or together: all begin
    at once, once, to compare with. force: longer periods where jobs do not fit."""

    by: str = option(
        SHIFT,
        "--by",
        "What is done.",
        metavar="shift|mltcp|together",
        known=(SHIFT, WINDOWS, TOGETHER),
    )
    force: bool = option(False, "--force", "Make periods longer until the jobs fit.")
    grid_ms: float = option(1.0, "--grid", GRID, metavar="MS", least=0.1)
    seconds: float = option(SAMPLED_S, "--for", FOR, metavar=TIME)

    def __post_init__(self) -> None:
        if self.by == WINDOWS and self.force:
            text = "service start pacing: --by mltcp cannot be combined with --force"
            raise Usage(text, hint="testbed service start pacing --by mltcp")
