"""The colour of every phase a run records, from the one palette of dashboards, reports and live views."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.telemetry.palette import PHASE_COLOURS

_AS: Mapping[str, str] = {
    "observe": "idle",
    "plan": "idle",
    "provision": "idle",
    "prewire": "dark",
    "stage": "route",
    "arm": "command",
    "drain": "settle",
    "switch": "dark",
    "move": "dark",
    "light": "link",
    "routes": "route",
    "commit": "route",
    "confirm": "route",
    "verify": "up",
    "equalise": "power",
    "job": "resume",
    "launch": "resume",
}


def phase_colours() -> dict[str, str]:
    """Colour by name, of phases of runs, of reconfigurations and of devices."""
    return {**PHASE_COLOURS, **{name: PHASE_COLOURS[like] for name, like in _AS.items()}}
