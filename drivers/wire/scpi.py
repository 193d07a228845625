"""SCPI as the optical switches speak it: lines, channel lists, quoted strings, the error queue.

Sources: IEEE 488.2 and SCPI-99 for the grammar; the answers of Polatis switches kept in the
hpn-bristol and R. Polster clients.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from optics import Garbled

LONGEST_LINE = 1 << 20
"""Bytes of one answer without a line end after which it is no answer (576 ports need 5 kB)."""

_LIST = re.compile(r"\(\s*@([0-9,:\s]*)\)")
_ERROR = re.compile(r'([+-]?\d+)\s*,\s*("(?:[^"]|"")*"|[^",;]*)')
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")


class Lines:
    """Answers cut from a stream, however it is split: a line ends with LF, CR LF or CR; empty lines
    are not answers.

    Serial modules end with CR alone (DiCon's 1xN, `CF?` in instrumental-lib). The LF that follows a
    CR is an empty line.
    """

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> list[str]:
        """Take bytes, return the lines completed by them. Raises: Garbled - no line end in
        sight.
        """
        *whole, self._buffer = re.split(rb"[\r\n]", self._buffer + data)
        if len(self._buffer) > LONGEST_LINE:
            raise Garbled(
                f"no line end in {len(self._buffer)} bytes, beginning {self._buffer[:40]!r}"
            )
        lines = [line.decode("ascii", "backslashreplace").strip() for line in whole]
        return [line for line in lines if line]


@dataclass(frozen=True, slots=True)
class QueuedError:
    """One entry of the error queue; code 0 means the queue is empty."""

    code: int
    text: str

    def __str__(self) -> str:
        return f"{self.code}, {self.text}"


def channels(numbers: Iterable[int]) -> str:
    """Write a channel list.

    >>> channels([1, 2, 3]), channels([])
    ('(@1,2,3)', '(@)')
    """
    return f"(@{','.join(str(n) for n in numbers)})"


def parse_channels(text: str) -> list[tuple[int, ...]]:
    """Read the channel lists of an answer, in order; ranges (`1:3`) are written out.

    >>> parse_channels("(@1,2,3),(@19,18,22)")
    [(1, 2, 3), (19, 18, 22)]

    Raises: Garbled - anything but comma-separated channel lists.
    """
    found = _LIST.findall(text)
    if not found or re.sub(r"\s", "", _LIST.sub("L", text)) != ",".join("L" * len(found)):
        raise Garbled(f"not channel lists: {text[:120]!r}")
    return [_members(inside, text) for inside in found]


def _members(inside: str, text: str) -> tuple[int, ...]:
    numbers: list[int] = []
    for part in inside.split(",") if inside.strip() else []:
        ends = [end.strip() for end in part.split(":")]
        if (
            len(ends) > 2
            or not all(end.isdecimal() for end in ends)
            or any(len(end) > 6 for end in ends)
        ):
            raise Garbled(f"not a channel list: {text[:120]!r}")
        first, last = int(ends[0]), int(ends[-1])
        if abs(last - first) > 4096:
            raise Garbled(f"a channel range of {abs(last - first)} ports: {text[:120]!r}")
        step = 1 if last >= first else -1
        numbers.extend(range(first, last + step, step))
    return tuple(numbers)


def parse_error(text: str) -> QueuedError:
    """Read an answer to `:syst:err?`.

    >>> parse_error('-200,"Execution error"')
    QueuedError(code=-200, text='Execution error')

    Raises: Garbled.
    """
    match = _ERROR.fullmatch(text.strip())
    if not match:
        raise Garbled(f"not an error queue entry: {text[:120]!r}")
    return QueuedError(int(match[1]), parse_string(match[2]))


def parse_bare_error(text: str) -> QueuedError:
    """Read an error whose words stand without quotes, whatever is in them.

    >>> parse_bare_error('-222, Data out of range; SCAN 9')
    QueuedError(code=-222, text='Data out of range; SCAN 9')

    Raises: Garbled - no number and words, or 0 with words that are not "no error".
    """
    match = re.fullmatch(r"([+-]?\d{1,5})\s*,\s*(.+)", text.strip())
    if not match or (int(match[1]) == 0 and match[2].strip('"').lower() != "no error"):
        raise Garbled(f"not an error queue entry: {text[:120]!r}")
    return QueuedError(int(match[1]), match[2].strip('"'))


def parse_string(text: str) -> str:
    """Read a string, quoted (a doubled quote is one quote) or bare.

    >>> parse_string('"a ""b"" c"')
    'a "b" c'

    Raises: Garbled - a quote that never closes.
    """
    text = text.strip()
    if not text.startswith('"'):
        return text
    if len(text) < 2 or not text.endswith('"') or '"' in text[1:-1].replace('""', ""):
        raise Garbled(f"not a string: {text[:120]!r}")
    return text[1:-1].replace('""', '"')


def parse_integers(text: str, count: int) -> tuple[int, ...]:
    """Read `count` comma-separated integers. Raises: Garbled - another number of them, or no
    integers.
    """
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != count or not all(re.fullmatch(r"[+-]?\d{1,9}", part) for part in parts):
        raise Garbled(f"not {count} integers: {text[:120]!r}")
    return tuple(int(part) for part in parts)


def parse_numbers(text: str, count: int) -> tuple[float, ...]:
    """Read `count` numbers in brackets, as power meters answer.

    >>> parse_numbers("(-29.55,-30.05)", 2)
    (-29.55, -30.05)

    Raises: Garbled - another number of them, or something that is no number.
    """
    inside = text.strip()
    if inside.startswith("(") and inside.endswith(")"):
        inside = inside[1:-1]
    parts = [part.strip() for part in inside.split(",")]
    if len(parts) != count or not all(_NUMBER.fullmatch(part) for part in parts):
        raise Garbled(f"not {count} numbers: {text[:120]!r}")
    return tuple(float(part) for part in parts)


def parse_identity(text: str) -> tuple[str, str, str, str]:
    """Read an answer to `*IDN?`: maker, model, serial number, firmware. Raises: Garbled - not four
    fields.
    """
    fields = [field.strip() for field in text.split(",")]
    if len(fields) != 4 or not all(fields[:2]):
        raise Garbled(f"not an identity: {text[:120]!r}")
    return fields[0], fields[1], fields[2], fields[3]


def parse_size(text: str) -> tuple[int, int]:
    """Read how many common ports or inputs, and how many channels or outputs, a module has.

    >>> parse_size("1x12")
    (1, 12)

    Raises: Garbled.
    """
    match = re.fullmatch(r"([1-9]\d{0,2})x([1-9]\d{0,2})", parse_string(text), re.IGNORECASE)
    if not match:
        raise Garbled(f"not a size: {text[:80]!r}")
    return int(match[1]), int(match[2])
