"""The progress of a call: events, and who takes them."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Event:
    """Progress of a call.

    kind: `phase`, one begins; `update`, `done` of `total` parts of it are complete; `done`, it
    ended after `seconds` (None: not measured); `note`, a message in `detail`. name: of the phase.
    """

    kind: Literal["phase", "update", "done", "note"]
    name: str = ""
    detail: str = ""
    done: int = 0
    total: int = 0
    seconds: float | None = None

    def __str__(self) -> str:
        took = "" if self.seconds is None else f" ({self.seconds:.2f} s)"
        share = f"{self.done}/{self.total} " if self.kind == "update" else ""
        return f"{self.name} {share}{self.detail}{took}".strip()


Show = Callable[[Event], object]
"""Takes the progress of a call."""


def _ignored(event: Event) -> None:
    """Where there is no one to show an event to."""


SHOW: ContextVar[Callable[[Event], None]] = ContextVar("show", default=_ignored)
"""What the call under way does with its events."""
