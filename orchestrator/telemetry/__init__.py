"""Telemetry: names declared once, the journal every point goes to first, and its reader."""

from orchestrator.measurement import Measurement
from orchestrator.telemetry.journal import Clock, Journal
from orchestrator.telemetry.lineprotocol import Point
from orchestrator.telemetry.names import MEASUREMENTS
from orchestrator.telemetry.progress import Progress, Silent, progress_for
from orchestrator.telemetry.reader import read_points

__all__ = [
    "MEASUREMENTS",
    "Clock",
    "Journal",
    "Measurement",
    "Point",
    "Progress",
    "Silent",
    "progress_for",
    "read_points",
]
