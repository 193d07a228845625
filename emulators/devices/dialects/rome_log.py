"""A ROME's log on its users' terminals: lines that come when they come, in the middle of a table
too.

Inside a row a log line is between a line break and an empty line, and the row goes on behind it;
behind a prompt it follows at once (both REAL, cloudshell-L1-w2w-rome). The prompt itself is never
cut (U).
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from emulators.devices.dialects.base import Session
from emulators.devices.dialects.cli import EOL, Screen


@dataclass(frozen=True, slots=True)
class _Kept:
    line: bytes
    until_s: float


class Log:
    """Lines for every listening session. torn: the share of lines kept to fall into the session's
    next output, hold_s at most.
    """

    def __init__(self, torn: float, hold_s: float, rng: random.Random) -> None:
        self.torn, self.hold_s, self._random = torn, hold_s, rng
        self._new: list[tuple[Session, bytes, float]] = []
        self._kept: dict[Session, list[_Kept]] = {}

    def add(self, line: str, at: float, sessions: Iterable[Session]) -> None:
        """Note `line`, written at `at` (s)."""
        for session in sessions:
            self._new.append((session, line.encode("latin-1", "replace") + EOL, at))

    def forget(self, session: Session) -> None:
        self._kept.pop(session, None)
        self._new = [entry for entry in self._new if entry[0] is not session]

    def next_event(self) -> float | None:
        """Return when a kept line is shown at the latest."""
        return min((kept.until_s for lines in self._kept.values() for kept in lines), default=None)

    def due(
        self, now: float, screens: Mapping[Session, Screen]
    ) -> Iterator[tuple[Session, float, bytes]]:
        """Yield what is to be shown now, to whom; lines keep their order."""
        new, self._new = self._new, []
        for session, line, at in new:
            waiting = self._kept.get(session)
            if waiting or (
                self.torn
                and not line.rstrip().endswith(b"CONNECTING...")
                and self._random.random() < self.torn
            ):
                self._kept.setdefault(session, []).append(_Kept(line, at + self.hold_s))
            else:
                yield session, now, self._shown(screens, session, line)
        for session, waiting in tuple(self._kept.items()):
            while waiting and waiting[0].until_s <= now:
                yield session, now, self._shown(screens, session, waiting.pop(0).line)
            if not waiting:
                del self._kept[session]

    def tear(self, session: Session, output: bytes, prompt: int) -> bytes:
        """Return `output`, the lines kept for `session` standing somewhere in it; its last `prompt`
        bytes stay whole.
        """
        room = len(output) - prompt
        for kept in reversed(self._kept.pop(session, []) if room > 0 else []):
            room = cut = self._random.randint(0, room)
            if output[cut - 1 : cut] == b"\r":
                cut += 1
            at_start = cut == 0 or output[cut - 1 : cut] == b"\n"
            line = kept.line if at_start else EOL + kept.line + EOL
            output = output[:cut] + line + output[cut:]
        return output

    def _shown(self, screens: Mapping[Session, Screen], session: Session, line: bytes) -> bytes:
        screen = screens[session]
        if screen.cursor == "mid":
            return EOL + line + EOL
        screen.cursor = "start"
        return line
