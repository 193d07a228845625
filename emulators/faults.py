"""What can go wrong, each with a name. A fault is a name, a trigger and a few numbers; the dialects carry them out.

Triggers: `match` (regular expression searched in the command, letter case ignored; None: every command), `on` ("write": only
commands that change the device, "read": only those that do not), `after` (so many matches pass first), `count` (so many fire,
None: no end), `probability` (seeded). All that are given must agree.
"""

from __future__ import annotations

import dataclasses
import difflib
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

COMMAND_FAULTS: Mapping[str, str] = {
    "refuse": "the device says no and does nothing",
    "swallow": "the command is lost: not executed, no reply",
    "hang": "the session stops answering for `seconds` (for ever by default); the command is not executed",
    "slow": "execution starts `seconds` later; commands behind it wait",
    "late": "executed now, the reply comes `seconds` later; commands behind it do not wait",
    "drop-before": "the connection ends, the command is not executed",
    "drop-after": "the command is executed, the connection ends without a reply",
    "split": "the reply is cut at `at_byte` (in the middle by default), the rest comes `seconds` later",
    "merge": "the reply is held and sent together with the next one, or after `seconds`",
    "garble": "some bytes of the reply are other bytes",
    "twice": "the reply is sent twice",
    "unsolicited-before": "a message nobody asked for stands before the reply",
    "unsolicited-inside": "... after the reply's first line",
    "unsolicited-after": "... after the reply",
    "stale-read": "reads show the state of `seconds` ago",
    "partial-bulk": "of a command's several items only some are done",
    "plna": "TL1: denied with PLNA, Login Not Active",
    "reboot-keep": "the device reboots instead of executing; circuits come back",
    "reboot-lose": "the device reboots instead of executing; circuits are lost",
}
STANDING_FAULTS: Mapping[str, str] = {
    "stuck-port": "the mirror of `port` does not move: no circuit on it is made or broken",
    "failed-port": "the hardware of `port` failed: no light, no new circuit",
    "dark-port": "the fibre at `port` is broken",
    "extra-loss": "`db` more loss at `port`",
    "login-limit": "no more than `limit` sessions",
    "idle-drop": "a session silent for `seconds` is dropped",
}
NAMES = frozenset(COMMAND_FAULTS) | frozenset(STANDING_FAULTS)
SECONDS: Mapping[str, float] = {"slow": 1.0, "late": 1.0, "split": 0.01, "merge": 0.05, "stale-read": 1.0, "idle-drop": 60.0}
"""Default `seconds` of the faults that have one; idle-drop: MonALISA pings its TL1 switches after 60 s."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault as asked for."""

    kind: str
    match: str | None = None
    on: str | None = None
    after: int = 0
    count: int | None = None
    probability: float = 1.0
    seconds: float | None = None
    port: str | None = None
    db: float = 10.0
    limit: int = 1
    at_byte: int | None = None

    @property
    def seconds_or_default(self) -> float:
        return SECONDS.get(self.kind, 0.0) if self.seconds is None else self.seconds


_TYPES: Mapping[str, Callable[[Any], Any]] = {
    "match": str, "on": str, "after": int, "count": int, "probability": float, "seconds": float,
    "port": str, "db": float, "limit": int, "at_byte": int,
}  # fmt: skip


def fault(kind: str, **values: object) -> Fault:
    """Return the fault so described. Raises ValueError: an unknown name or field, a bad pattern, a port missing."""
    if kind not in NAMES:
        near = difflib.get_close_matches(kind, sorted(NAMES), 1)
        raise ValueError(
            f"no fault is named {kind!r}" + (f"; did you mean {near[0]}?" if near else f"; one of {', '.join(sorted(NAMES))}")
        )
    for name in values:
        if name not in _TYPES:
            raise ValueError(f"fault {kind}: no field {name!r}; one of {', '.join(_TYPES)}")
    try:
        kept: dict[str, Any] = {name: None if value is None else _TYPES[name](value) for name, value in values.items()}
    except (TypeError, ValueError) as error:
        raise ValueError(f"fault {kind}: {error}") from error
    made = Fault(kind, **kept)
    if made.match is not None:
        try:
            re.compile(made.match)
        except re.error as error:
            raise ValueError(f"fault {kind}: match {made.match!r}: {error}") from error
    if made.on not in (None, "write", "read"):
        raise ValueError(f"fault {kind}: on {made.on!r}: wanted write or read")
    if (kind.endswith("-port") or kind == "extra-loss") and not made.port:
        raise ValueError(f"fault {kind}: which port?")
    return made


@dataclass(slots=True)
class _Armed:
    fault: Fault
    pattern: re.Pattern[str] | None
    seen: int = 0
    fired: int = 0


class Faults:
    """The faults of one device: added, listed and removed while it runs."""

    def __init__(self, seed: int = 0) -> None:
        self._armed: dict[int, _Armed] = {}
        self._next = 1
        self._random = random.Random(f"faults/{seed}")
        self.armed = False  # any command fault at all: the fast path asks this alone

    def add(self, new: Fault) -> int:
        """Arm `new`; return its number."""
        number, self._next = self._next, self._next + 1
        self._armed[number] = _Armed(new, re.compile(new.match, re.IGNORECASE) if new.match else None)
        self._note()
        return number

    def remove(self, number: int) -> Fault:
        """Disarm fault `number` and return it. Raises KeyError: there is none."""
        gone = self._armed.pop(number).fault
        self._note()
        return gone

    def list(self) -> list[dict[str, object]]:
        """Return every armed fault with its number and how often it fired."""
        return [{"id": number, **dataclasses.asdict(a.fault), "fired": a.fired} for number, a in self._armed.items()]

    def fire(self, command: str, writes: bool) -> dict[str, Fault]:
        """Return the faults that strike `command`, by name; `writes` tells whether it changes the device."""
        struck: dict[str, Fault] = {}
        for armed in self._armed.values():
            wanted = armed.fault
            if wanted.kind in STANDING_FAULTS or wanted.kind in struck:
                continue
            if armed.pattern is not None and not armed.pattern.search(command):
                continue
            if wanted.on is not None and (wanted.on == "write") is not writes:
                continue
            armed.seen += 1
            if armed.seen <= wanted.after or (wanted.count is not None and armed.fired >= wanted.count):
                continue
            if wanted.probability < 1.0 and self._random.random() >= wanted.probability:
                continue
            armed.fired += 1
            struck[wanted.kind] = wanted
        return struck

    def standing(self, kind: str) -> Fault | None:
        """Return the first armed fault named `kind`."""
        return next((a.fault for a in self._armed.values() if a.fault.kind == kind), None)

    def _note(self) -> None:
        self.armed = any(a.fault.kind in COMMAND_FAULTS for a in self._armed.values())
