"""One colour per phase, the same in every dashboard, report and live view."""

from __future__ import annotations

from collections.abc import Mapping

PHASE_COLOURS: Mapping[str, str] = {
    "command": "#5794F2",
    "ack": "#5794F2",
    "dark": "#8F3BB8",
    "power": "#FADE2A",
    "settle": "#FADE2A",
    "link": "#FF9830",
    "route": "#33B5A5",
    "first_packet": "#CA95E5",
    "resume": "#8AB8FF",
    "pause": "#8AB8FF",
    "idle": "#8E8E8E",
    "up": "#73BF69",
    "fault": "#F2495C",
    "total": "#8E8E8E",
}
"""Of the phases of a reconfiguration (`*_ms` of `reconfig`) and of a device (`device_phase`). Red
is for faults alone.
"""

_LIKE: Mapping[str, str] = {
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
    "prepare": "resume",
    "hold": "pause",
    "rings": "resume",
}
ALL_COLOURS: Mapping[str, str] = {
    **PHASE_COLOURS,
    **{name: PHASE_COLOURS[like] for name, like in _LIKE.items()},
}
"""With the phases of a run, as live views and reports draw them."""

MARK = "#F2CC0C"
"""Marks the start of a reconfiguration on every time axis."""

RING_CHANGE = "#26C6DA"
"""Where a running job took over other rings, on every time axis."""
