"""InfluxDB line protocol, text only: escape, format, parse.

Two rewrites keep one point on one line and mean the same on every server: a line break in a value
becomes a space, and a backslash in a tag value becomes a slash (servers disagree on a backslash
before a separator). Everything else is read back unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import TypeAlias

FieldValue: TypeAlias = int | float | str

INT_MIN, INT_MAX = -(2**63), 2**63 - 1

_TAG = str.maketrans({",": r"\,", "=": r"\=", " ": r"\ ", "\n": r"\ ", "\r": r"\ ", "\\": "/"})
_TEXT = str.maketrans({'"': r"\"", "\\": r"\\", "\n": " ", "\r": " "})

EMPTY_TAG = "none"
"""Stands for an empty tag value: the protocol has no empty tag, and a missing one would change the
tag set.
"""


@dataclass(frozen=True, slots=True)
class Point:
    """One parsed line; `time_ns` is wall time in nanoseconds since the epoch."""

    measurement: str
    tags: Mapping[str, str]
    fields: Mapping[str, FieldValue]
    time_ns: int


def tag(value: str) -> str:
    """Escape a tag value (or a tag's or field's name)."""
    return value.translate(_TAG) if value else EMPTY_TAG


def text(value: str) -> str:
    """Quote a string field."""
    return f'"{value.translate(_TEXT)}"'


def number(value: float) -> str:
    """Format a float so that it reads back exactly. Raises: ValueError - not a finite number; the
    protocol cannot express it.
    """
    if not isfinite(value):
        raise ValueError(f"{value} cannot be written as a field")
    return repr(float(value))


def integer(value: int) -> str:
    """Format an integer with its `i`. Raises: ValueError - outside 64 bits."""
    if not INT_MIN <= value <= INT_MAX:
        raise ValueError(f"{value} does not fit 64 bits")
    return f"{int(value)}i"


_SERIES = re.compile(r"((?:\\.|[^, \\])+)((?:,(?:\\.|[^,= \\])+=(?:\\.|[^,= \\])+)*) ", re.DOTALL)
_PAIR = re.compile(r",((?:\\.|[^,= \\])+)=((?:\\.|[^,= \\])+)", re.DOTALL)
_FIELD = re.compile(
    r'((?:\\.|[^,= \\])+)=(?:"((?:\\.|[^"\\])*)"|(-?\d+)i|(-?\d[0-9.eE+-]*))([, ])', re.DOTALL
)
_ESCAPED = re.compile(r"\\([,= ])")
_QUOTED = re.compile(r'\\(["\\])')


def _plain(escaped: str) -> str:
    return _ESCAPED.sub(r"\1", escaped) if "\\" in escaped else escaped


def parse(line: str) -> Point:
    """Parse one line as this program writes it, without its line end. Raises: ValueError - not a
    whole line with a timestamp.
    """
    series = _SERIES.match(line)
    if series is None:
        raise ValueError(f"no measurement: {line[:80]!r}")
    fields: dict[str, FieldValue] = {}
    at = series.end()
    while True:
        found = _FIELD.match(line, at)
        if found is None:
            raise ValueError(f"bad field at column {at + 1}: {line[at : at + 80]!r}")
        name, quoted, whole, real, end = found.groups()
        if quoted is not None:
            fields[_plain(name)] = _QUOTED.sub(r"\1", quoted) if "\\" in quoted else quoted
        elif whole is not None:
            fields[_plain(name)] = count = int(whole)
            if not INT_MIN <= count <= INT_MAX:
                raise ValueError(f"{name} does not fit 64 bits: {whole[:80]}")
        else:
            fields[_plain(name)] = value = float(real)
            if not isfinite(value):
                raise ValueError(f"{name} is not a finite number: {real[:80]}")
        at = found.end()
        if end == " ":
            break
    stamp = line[at:]
    if not stamp.lstrip("-").isascii() or not stamp.lstrip("-").isdigit():
        raise ValueError(f"no timestamp: {stamp[:80]!r}")
    tags = {_plain(k): _plain(v) for k, v in _PAIR.findall(series[2])}
    return Point(_plain(series[1]), tags, fields, int(stamp))
