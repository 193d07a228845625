"""How the attachments of a job (`orchestrator/extensions.py`) are shown, one kind a class. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from orchestrator.extensions import extension_parts
from orchestrator.results import Json
from orchestrator.telemetry.lineprotocol import Point

if TYPE_CHECKING:
    from orchestrator.views.report.model import ReportContext, ReportSection

Figures = Mapping[str, int | float | str]
Mark = dict[str, Json]


class View(ABC):
    """One kind."""

    key: ClassVar[str]
    """As `Planned.key`."""
    measurement: ClassVar[str]
    """The name of its points in journals."""
    outlives: ClassVar[bool] = False
    """Whether it is shown of a job that has ended."""

    @abstractmethod
    def text(self, found: Figures) -> str:
        """In a line, what is known of it; `found`: as in `JobStatus.attached`."""

    def marks(self, points: Sequence[Point]) -> Sequence[Mark]:
        """What viewers show of it; points: the latest, at least one."""
        return ()

    def copies(self, points: Sequence[Point]) -> tuple[str, list[str]]:
        """The host that packets are copied to, and those where they arrive; empty: none are."""
        return "", []

    def section(self, c: ReportContext, made: ReportSection, where: str) -> None:
        """Add to the report what is known of it, if anything. where: the condition in SQL for its
        points.
        """
        return


class KeeperView(View):
    """Of one that keeps a job's checkpoints on a host (`plan/keeper.py`)."""

    @abstractmethod
    def kept(self, found: Figures) -> str:
        """What it has of a job that was launched with it."""

    def text(self, found: Figures) -> str:
        """`storage on gpu07: ...`; of a job that was launched without, why."""
        if "missing" in found:
            return str(found["missing"])
        text, state = f"{self.key} on {found['host']}: {self.kept(found)}", found.get("state")
        return text if state in (None, "running") else f"{text}; it is {state}"


def views() -> tuple[View, ...]:
    """Every kind that shows something, in order."""
    return extension_parts("view", "VIEW")


def made_mark(
    name: str, text: str, *, share: float | None = None, bad: bool = False, cells: Json = None
) -> Mark:
    """A mark: `share` of a bar (0 to 1), or `cells`, one word each. bad: it is trouble."""
    return {
        "name": name,
        "message": text,
        "bad": bad,
        "share": None if share is None else round(share, 4),
        "cells": cells,
    }
