"""One rank's connection to the hand-off socket. Whatever it sends is checked and bounded; what it
may cost the daemon is, too.
"""

from __future__ import annotations

import json
import os
import time

from agent.lines import Lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from agent.shapes import Daemon, Json

    class Job(Protocol):
        """The job of a rank, which it tells what it said. cut_off: why a connection was, the
        latest.
        """

        cut_off: str | None

        def joined(self, rank: Rank, message: Json) -> None: ...
        def changed(self, message: Json) -> None: ...
        def look(self) -> None: ...
        def left(self, rank: Rank) -> None: ...


RANK_LINE = 16 << 10  # bytes: the longest line that a rank may send
RANK_BACKLOG = 4 << 20  # bytes that a rank may leave unread: a few of the longest requests
# bytes at once, bytes a second after that; each line counts LINE_COST more
RANK_SENDS = (128 << 10, 32 << 10)
LINE_COST = 256
REPORTS_KEPT = 4  # moves of which a rank's last message is kept
WHOLE = {
    "rank": (0, 65535),
    "world": (1, 65536),
    "move": (0, 1 << 53),
    "iteration": (-1, 1 << 53),
    "after": (-1, 1 << 53),
}
WHOLE["t_ns"] = (0, (1 << 63) - 1)
TIMES = ("took_ms", "held_ms", "stall_ms")
TIME_MOST_MS = 1e9


def checked(line: bytes) -> Json:
    """What a rank said: its known fields, of the right type and in range; other fields are left
    out.

    Raises: ValueError - not a JSON object, a field is missing, or has the wrong type or range.
    """
    try:
        reply = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError("not a JSON line") from None
    if not isinstance(reply, dict):
        raise ValueError("not a JSON object")
    found: Json = {}
    for key, (least, most) in WHOLE.items():
        value = reply.get(key)
        if value is not None:
            if type(value) is not int or not least <= value <= most:
                raise ValueError(f"{key}: a whole number from {least} to {most} is needed")
            found[key] = value
    for key in TIMES:
        value = reply.get(key)
        if value is not None:
            if type(value) not in (int, float) or not 0 <= value <= TIME_MOST_MS:
                raise ValueError(f"{key}: milliseconds from 0 to {TIME_MOST_MS:.0f} are needed")
            found[key] = value
    state, error = reply.get("state"), reply.get("error")
    if not isinstance(state, str) or not (state.isascii() and state.isalpha() and len(state) <= 16):
        raise ValueError("state: a word is needed")
    if "rank" not in found or "move" not in found:
        raise ValueError("rank, move: both are needed")
    found["state"] = state
    if isinstance(error, str):
        found["error"] = "".join(c if c.isprintable() else " " for c in error[:500])
    return found


class Allowance:
    """So much at once, and so much a second after that."""

    def __init__(self, most: float, per_s: float) -> None:
        self.most, self.per_s = most, per_s
        self.left, self.at = most, time.monotonic()

    def take(self, amount: float) -> bool:
        now = time.monotonic()
        self.left = min(self.most, self.left + (now - self.at) * self.per_s) - amount
        self.at = now
        return self.left >= 0


class Rank(Lines):
    """One connection of a rank; it is one from its first message on."""

    line_limit, backlog_limit = RANK_LINE, RANK_BACKLOG

    def __init__(self, job: Job, server: Daemon, fd: int) -> None:
        self.job = job
        self.number: int | None = None
        self.world = self.last_ns = 0
        self.reported: dict[int, Json] = {}  # move -> last message about it, the latest last
        self.allowance = Allowance(*RANK_SENDS)
        super().__init__(server, fd, os.dup(fd))

    def read(self) -> bytes:
        return os.read(self.rfd, 8192)  # little at a time: other peers of the daemon wait meanwhile

    def take(self, line: bytes) -> None:
        if not self.allowance.take(len(line) + LINE_COST):
            self.cut("too many messages")
            return
        try:
            message = checked(line)
            if self.number is None and message.get("world", 0) <= message["rank"]:
                raise ValueError("world: a number above rank is needed")
            if self.number not in (None, message["rank"]):
                raise ValueError(f"rank: was {self.number} before")
        except ValueError as e:
            self.cut(str(e))
            return
        self.last_ns = time.monotonic_ns()
        first, self.number, self.world = (
            self.number is None,
            message["rank"],
            message.pop("world", self.world),
        )
        before = self.reported.pop(message["move"], None)
        self.reported[message["move"]] = message = {**(before or {}), **message}
        while len(self.reported) > REPORTS_KEPT:
            del self.reported[next(iter(self.reported))]
        if first:
            self.job.joined(self, message)
        elif before is None or before["state"] != message["state"]:
            self.job.changed(message)
        self.job.look()

    def overlong(self) -> None:
        self.cut(f"a line is longer than {RANK_LINE} bytes")

    def cut(self, why: str) -> None:
        self.job.cut_off = (f"rank {self.number}: " if self.number is not None else "") + why
        self.close()

    def close(self) -> None:
        if not self.closed:
            super().close()
            self.job.left(self)
