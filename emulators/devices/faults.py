"""The faults, each with a name. A fault is a name, a trigger and a few numbers; the dialects carry
them out.

Triggers: `match` (regular expression searched in the command, letter case ignored; None: every
command), `on` ("write": only commands that change the device, "read": only those that do not),
`after` (this many matches pass first), `count` (this many fire, None: no end), `probability`
(seeded), and time: `at_s` (seconds from now until it begins), `for_s` (how long it then lasts;
None: until removed). All that are given must agree.

For families that need more than the base does: `dialects.base.Dialect.struck`, `silent`, `half` and
`partial` say what strikes the command that is being executed; `log_out` and `step_clock` may be
overridden. A robot (`robot = True`) moves long after the command: there MOVES strike its moves
instead of commands, and it asks `self.faults.strike(kind)` once as each move begins. What happens
to hosts and fibres (swapped fibres, a link that never comes up, a host down, its sshd slow) is not
a device's fault: see control.py.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
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
    "unsolicited-before": "an unsolicited message precedes the reply",
    "unsolicited-inside": "... after the reply's first line",
    "unsolicited-after": "... after the reply",
    "stale-read": "reads show the state of `seconds` ago",
    "partial-bulk": "of a command's several items only some are done",
    "plna": "TL1: denied with PLNA, Login Not Active",
    "silent-failure": "the command is accepted and reported as done, and nothing is done",
    "half-duplex": "of a duplex pair only one direction is made",
    "session-ended": "an administrator ends the session: logged out where the family has logins, else disconnected",
    "reboot-keep": "the device reboots instead of executing; circuits come back",
    "reboot-lose": "the device reboots instead of executing; circuits are lost",
    "clock-step": "the device's own clock jumps by `seconds`",
}
IMMEDIATE = frozenset({"session-ended", "reboot-keep", "reboot-lose", "clock-step"})
"""These happen once, at once or `at_s` from now, when they wait for no command (no match, on,
after, count or probability).
"""
PERSISTENT_FAULTS: Mapping[str, str] = {
    "stuck-port": "the mirror of `port` does not move: no circuit on it is made or broken",
    "failed-port": "the hardware of `port` failed: no light, no new circuit",
    "dark-port": "the fibre at `port` is broken",
    "extra-loss": "`db` more loss at `port`",
    "drift": "the connector at `port` loses `db_per_hour` more and more; it is clean again when the fault is removed",
    "port-locked": "`port` is locked by another `user`: no circuit on it is made or broken",
    "robot-stalled": "the robot stops in the middle of its next move and moves nothing more until it is homed",
    "login-limit": "no more than `limit` sessions",
    "session-stolen": "a second login of the same user ends the first session",
    "idle-drop": "a session silent for `seconds` is dropped",
}
MOVES = frozenset({"silent-failure", "half-duplex", "robot-stalled"})
"""These strike the moves of a robot; on a robot `match`, `on` and `partial-bulk` do not choose
among its moves.
"""
ON_PORTS = frozenset(
    {"stuck-port", "failed-port", "dark-port", "extra-loss", "drift", "port-locked"}
)
NAMES = frozenset(COMMAND_FAULTS) | frozenset(PERSISTENT_FAULTS)
SECONDS: Mapping[str, float] = {
    "slow": 1.0, "late": 1.0, "split": 0.01, "merge": 0.05, "stale-read": 1.0, "idle-drop": 60.0, "clock-step": 3600.0,
}  # fmt: skip
"""Default `seconds` of the faults that have one; idle-drop: MonALISA pings its TL1 switches after
60 s.
"""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault as requested."""

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
    user: str = "bench2"
    at_s: float = 0.0
    for_s: float | None = None
    db_per_hour: float = 0.1

    @property
    def immediate(self) -> bool:
        """Whether it happens by itself, without a command."""
        waits = (
            self.match is not None
            or self.on is not None
            or self.after
            or self.count is not None
            or self.probability < 1.0
        )
        return self.kind in IMMEDIATE and not waits

    @property
    def seconds_or_default(self) -> float:
        return SECONDS.get(self.kind, 0.0) if self.seconds is None else self.seconds


_TYPES: Mapping[str, Callable[[Any], Any]] = {
    "match": str, "on": str, "after": int, "count": int, "probability": float, "seconds": float,
    "port": str, "db": float, "limit": int, "at_byte": int,
    "user": str, "at_s": float, "for_s": float, "db_per_hour": float,
}  # fmt: skip


def fault(kind: str, **values: object) -> Fault:
    """Return the fault so described. Raises ValueError: an unknown name or field, a bad pattern, a
    port missing.
    """
    if kind not in NAMES:
        near = difflib.get_close_matches(kind, sorted(NAMES), 1)
        raise ValueError(
            f"no fault is named {kind!r}"
            + (f"; did you mean {near[0]}?" if near else f"; one of {', '.join(sorted(NAMES))}")
        )
    for name in values:
        if name not in _TYPES:
            raise ValueError(f"fault {kind}: no field {name!r}; one of {', '.join(_TYPES)}")
    try:
        kept: dict[str, Any] = {
            name: None if value is None else _TYPES[name](value) for name, value in values.items()
        }
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
    if kind in ON_PORTS and not made.port:
        raise ValueError(f"fault {kind}: which port?")
    for name in ("at_s", "for_s", "seconds", "db_per_hour"):
        number = getattr(made, name)
        if number is not None and (math.isnan(number) or (number < 0 and kind != "clock-step")):
            raise ValueError(f"fault {kind}: {name} {number}: wanted seconds, not less than 0")
    return made


@dataclass(slots=True)
class _Armed:
    fault: Fault
    pattern: re.Pattern[str] | None
    begins_s: float
    ends_s: float
    state: str = "waiting"  # "waiting", "active", "over"
    seen: int = 0
    fired: int = 0

    @property
    def spent(self) -> bool:
        """Whether it has struck as often as it was to."""
        return self.fault.count is not None and self.fired >= self.fault.count

    @property
    def next_s(self) -> float:
        return {"waiting": self.begins_s, "active": self.ends_s}.get(self.state, math.inf)


class Faults:
    """The faults of one device: added, listed and removed while it runs."""

    def __init__(self, seed: int = 0, *, robot: bool = False) -> None:
        # no command is struck by these
        self._aside = frozenset(PERSISTENT_FAULTS) | (MOVES if robot else frozenset())
        self._armed: dict[int, _Armed] = {}
        self._next = 1
        self._random = random.Random(f"faults/{seed}")
        self.armed = False  # any command fault at all: the fast path checks only this
        self.next_s = math.inf  # when the next one begins or ends by itself

    def add(self, new: Fault, now: float = 0.0) -> int:
        """Note `new`; return its number. It takes effect once `toggle` has reported it, or at once
        if it has no `at_s`.
        """
        number, self._next = self._next, self._next + 1
        pattern = re.compile(new.match, re.IGNORECASE) if new.match else None
        begins_s = now + new.at_s
        made = _Armed(
            new, pattern, begins_s, math.inf if new.for_s is None else begins_s + new.for_s
        )
        if not new.at_s:
            made.state = "active"
        self._armed[number] = made
        self._note()
        return number

    def toggle(self, now: float) -> list[tuple[Fault, bool]]:
        """Return the faults that are due to begin (True) or to end (False), in order of time."""
        if now < self.next_s:
            return []
        toggled: list[tuple[float, Fault, bool]] = []
        for armed in self._armed.values():
            if armed.state == "waiting" and armed.begins_s <= now:
                toggled.append((armed.begins_s, armed.fault, True))
                armed.state = "over" if armed.fault.immediate else "active"
                armed.fired += armed.fault.immediate
            if armed.state == "active" and armed.ends_s <= now:
                toggled.append((armed.ends_s, armed.fault, False))
                armed.state = "over"
        self._note()
        toggled.sort(key=lambda each: each[0])
        return [(what, begins) for _, what, begins in toggled]

    def remove(self, number: int) -> tuple[Fault, bool]:
        """Disarm fault `number`; return it and whether it was active. Raises KeyError: there is
        none.
        """
        ended = self._armed.pop(number)
        self._note()
        return ended.fault, ended.state == "active"

    def active(self) -> list[Fault]:
        """Return the faults in force now."""
        return [a.fault for a in self._armed.values() if a.state == "active"]

    def list(self) -> list[dict[str, object]]:
        """Return every fault with its number, its state ("waiting", "active", "over") and how often
        it fired.
        """
        return [
            {
                "id": number,
                **dataclasses.asdict(a.fault),
                "state": "over" if a.spent else a.state,
                "fired": a.fired,
            }
            for number, a in self._armed.items()
        ]

    def fire(self, command: str, writes: bool) -> dict[str, Fault]:
        """Return the faults that strike `command`, by name; `writes`: whether it changes the
        device.
        """
        struck: dict[str, Fault] = {}
        for armed in self._armed.values():
            wanted = armed.fault
            if armed.state != "active" or wanted.kind in self._aside or wanted.kind in struck:
                continue
            if armed.pattern is not None and not armed.pattern.search(command):
                continue
            if wanted.on is not None and (wanted.on == "write") is not writes:
                continue
            if self._strikes(armed):
                struck[wanted.kind] = wanted
        return struck

    def strike(self, kind: str) -> Fault | None:
        """Return the fault named `kind` that strikes now, and count it: for events that are not
        commands (a robot's move).
        """
        return next(
            (
                a.fault
                for a in self._armed.values()
                if a.state == "active" and a.fault.kind == kind and self._strikes(a)
            ),
            None,
        )

    def _strikes(self, armed: _Armed) -> bool:
        wanted = armed.fault
        armed.seen += 1
        if armed.seen <= wanted.after or armed.spent:
            return False
        if wanted.probability < 1.0 and self._random.random() >= wanted.probability:
            return False
        armed.fired += 1
        return True

    def persistent(self, kind: str) -> Fault | None:
        """Return the first active fault named `kind`."""
        return next(
            (a.fault for a in self._armed.values() if a.state == "active" and a.fault.kind == kind),
            None,
        )

    def _note(self) -> None:
        self.armed = any(
            a.fault.kind in COMMAND_FAULTS and a.state == "active" for a in self._armed.values()
        )
        self.next_s = min((a.next_s for a in self._armed.values()), default=math.inf)
