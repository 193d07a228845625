"""What happened, newest last, for viewers who read it at their own pace."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from orchestrator.results import Json

LOG = 200
NEWS = ("run", "device", "circuits", "reconfig", "job", "ring_change", "slow")
"""Events that viewers are notified of; phases and iterations are shown elsewhere."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event: `number` counts, `at` is wall ms, `message` are for people, `fields` for
    programs.
    """

    number: int
    at: float
    event: str
    message: str
    fields: Mapping[str, Json]

    def json(self) -> dict[str, Json]:
        return {
            "at": round(self.at / 1e3, 6),
            "event": self.event,
            "message": self.message,
            **self.fields,
        }


class Events:
    """The latest events: `log` those of `NEWS` and of `live`, the others apart. hush: history is
    being read, which makes none.
    """

    def __init__(self, live: Collection[str]) -> None:
        self.log: deque[Event] = deque(maxlen=LOG)
        self.replaying = False
        self._live = live
        self._rest: deque[Event] = deque(maxlen=LOG)
        self._numbers = 0
        self._sent = 0

    def emit(self, at: float, event: str, text: str, **fields: Json) -> None:
        """Record an event."""
        if not self.replaying:
            self._numbers += 1
            kept = self.log if event in NEWS or event in self._live else self._rest
            kept.append(Event(self._numbers, at, event, text, fields))

    def not_before(self, at: float) -> float:
        """This time, or that of the log's newest event if it is later: some points are written at
        the end of what they tell.
        """
        return max(at, self.log[-1].at if self.log else 0.0)

    def since(self, number: int) -> list[Event]:
        """The events after the one of this number, as far as they are kept."""
        return sorted(
            (e for e in (*self.log, *self._rest) if e.number > number), key=lambda e: e.number
        )

    def taken(self) -> list[Event]:
        """Those of the log since the last call."""
        news = [e for e in self.log if e.number > self._sent]
        self._sent = self._numbers
        return news
