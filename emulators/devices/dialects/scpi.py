"""SCPI as instruments speak it: headers, compounding, lists, the error queue. IEEE 488.2 and
SCPI-99 are the sources.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable
from itertools import product

from emulators.devices.dialects.base import Dialect, Session, State
from emulators.optics.plant import Pair, Plant

# SCPI-99 volume 2 chapter 21. Which of them Polatis uses for what is not published.
NO_ERROR = (0, "No error")
COMMAND, MISSING, PARAMETER_TYPE, UNDEFINED, SUFFIX = -100, -109, -104, -113, -114
EXECUTION, CONFLICT, RANGE, HARDWARE, OVERFLOW = -200, -221, -222, -240, -350
TEXT = {
    COMMAND: "Command error", MISSING: "Missing parameter", PARAMETER_TYPE: "Data type error", UNDEFINED: "Undefined header",
    SUFFIX: "Header suffix out of range", EXECUTION: "Execution error", CONFLICT: "Settings conflict",
    RANGE: "Data out of range", HARDWARE: "Hardware error", OVERFLOW: "Queue overflow",
}  # fmt: skip

MOST_LISTED = 4096  # no switch has more ports; a range may not ask for more
_CHANNELS = re.compile(r"\(\s*@\s*([^()]*)\)")


class ScpiError(Exception):
    """The command is wrong: `code` goes into the error queue."""

    def __init__(self, code: int, detail: str = "") -> None:
        super().__init__(code, detail)
        self.code, self.detail = code, detail


def spellings(header: str) -> Iterable[str]:
    """Return every accepted spelling of a header given as in a manual, upper case.

    >>> sorted(spellings("SYSTem:ERRor?"))
    ['SYST:ERR?', 'SYST:ERROR?', 'SYSTEM:ERR?', 'SYSTEM:ERROR?']
    """
    body, query = header.rstrip("?"), "?" if header.endswith("?") else ""
    forms = [
        {"".join(c for c in node if not c.islower()), node.upper()} for node in body.split(":")
    ]
    return (":".join(nodes) + query for nodes in product(*forms))


def units(message: str) -> list[str]:
    """Split a program message at the semicolons outside quotes and parentheses."""
    if '"' not in message and "'" not in message and message.count(";") == 0:
        return [message]
    parts, start, quote, depth = [], 0, "", 0
    for index, char in enumerate(message):
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        elif char in "()":
            depth += 1 if char == "(" else -1
        elif char == ";" and depth <= 0:
            parts.append(message[start:index])
            start = index + 1
    return [*parts, message[start:]]


def channels(text: str) -> list[list[str]]:
    """Return the channel lists of a parameter: `(@1,2),(@17,18)` gives two. Raises ScpiError.

    Ranges (`1:3`, `3:1`) are SCPI-99 volume 1, 8.3.2; no public Polatis material has one.
    """
    lists = [
        [item.strip() for item in body.split(",")] if body.strip() else []
        for body in _CHANNELS.findall(text)
    ]
    if not lists or _CHANNELS.sub("", text).replace(",", "").strip():
        raise ScpiError(MISSING if not text.strip() else PARAMETER_TYPE, text.strip())
    return [[str(number) for item in items for number in _numbers(item)] for items in lists]


def _numbers(item: str) -> range:
    ends = re.fullmatch(r"([0-9]{1,6})(?:\s*:\s*([0-9]{1,6}))?", item)
    if ends is None:
        raise ScpiError(PARAMETER_TYPE, item)
    first, last = int(ends[1]), int(ends[2] or ends[1])
    if abs(last - first) >= MOST_LISTED:
        raise ScpiError(RANGE, item)
    return range(first, last + 1) if first <= last else range(first, last - 1, -1)


class ErrorQueue:
    """First in, first out; when full the newest becomes "Queue overflow" (SCPI-99 21.8.1)."""

    def __init__(self, size: int = 32) -> None:
        self._errors: deque[tuple[int, str]] = deque()
        self._size = size

    def __len__(self) -> int:
        return len(self._errors)

    def add(self, code: int, detail: str = "") -> None:
        text = f"{TEXT[code]};{detail}" if detail else TEXT[code]
        if len(self._errors) >= self._size:
            code, text = OVERFLOW, TEXT[OVERFLOW]
            self._errors.pop()
        self._errors.append(
            (code, "".join(c if " " <= c <= "~" and c != '"' else "?" for c in text))
        )

    def clear(self) -> None:
        self._errors.clear()

    def take(self) -> tuple[int, str]:
        """Return and forget the oldest error."""
        return self._errors.popleft() if self._errors else NO_ERROR

    def next(self) -> str:
        """Return and forget the oldest error, as sent."""
        return '{},"{}"'.format(*self.take())

    def all(self) -> str:
        """Return and forget every error, comma separated."""
        return ",".join([self.next()] + [self.next() for _ in range(len(self._errors))])


Handler = Callable[[str, float], str | None]


class Commands:
    """Headers to handlers, with the current path that a header without a leading colon continues
    (SCPI-99 6.2.4).
    """

    def __init__(self, handlers: dict[str, Handler]) -> None:
        self._handlers = {
            spelling: handler
            for header, handler in handlers.items()
            for spelling in spellings(header)
        }

    def find(self, header: str, path: str) -> tuple[Handler, str]:
        """Return the handler of `header` and the path after it. Raises ScpiError."""
        header = header.upper()
        if header.startswith("*"):
            full = header
        else:
            full = header[1:] if header.startswith(":") else path + header
            path = full[: full.rfind(":") + 1]
        handler = self._handlers.get(full)
        if handler is None:
            raise ScpiError(UNDEFINED, header)
        return handler, path


class ScpiDialect(Dialect[State]):
    """A device of one command a line, whose complaints wait in an error queue."""

    def __init__(self, plant: Plant, *, seed: int, idle_s: float | None, boot_s: float) -> None:
        super().__init__(plant, seed=seed, idle_s=idle_s, boot_s=boot_s)
        self.errors = ErrorQueue()
        self._saved: tuple[Pair, ...] = ()  # circuits that come back after a power cut

    def split(self, session: Session) -> list[str]:
        if b"\n" not in session.buffer:
            return []
        *lines, session.buffer = session.buffer.split(b"\n")
        return [text for line in lines if (text := line.decode("latin-1").strip())]

    def refuse(self, session: Session, command: str, now: float) -> bytes:
        self.errors.add(EXECUTION, command[:40])
        return b""
