"""Text for people: durations, marks, tables, line wrapping."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence

from optics.plain import scaled_text, seconds_text
from orchestrator.cli.tones import colour, one_line

_CODES = {"red": 31, "green": 32, "yellow": 33, "bold": 1, "dim": 2}


def paint(text: str, tone: str, on: bool) -> str:
    """Colour `text` (red, green, yellow, bold, dim) if `on`; `tones.coloured` must print it."""
    return colour(text, _CODES[tone]) if on else text


def mark(ok: bool, on: bool) -> str:
    """`ok` or `FAIL`, in its colour."""
    return paint("ok  ", "green", on) if ok else paint("FAIL", "red", on)


def ms_text(ms: float | None) -> str:
    """Milliseconds with a suitable unit; a dash if not measured."""
    return "-" if ms is None else seconds_text(ms / 1e3)


def scaled_ms_text(ms: float | None, time_scale: float) -> str:
    """As `ms_text`; of a device that runs faster than real ones
    `61 s of device time (1.0 s here, x60)`.
    """
    return "-" if ms is None else scaled_text(ms / 1e3, time_scale)


def expected_ms_text(ms: float | None, expected_ms: float | None, time_scale: float) -> str:
    """A measured time beside the expected one: `27 ms (25 ms expected)`;
    `2 min 02 s of 2 min 00 s expected (x60: 2.0 s here)`.
    """
    if ms is None or expected_ms is None:
        return scaled_ms_text(ms, time_scale)
    if time_scale == 1:
        return f"{ms_text(ms)} ({ms_text(expected_ms)} expected)"
    place, planned = (seconds_text(each * time_scale / 1e3) for each in (ms, expected_ms))
    return f"{place} of {planned} expected (x{time_scale:g}: {ms_text(ms)} here)"


def when(wall_s: float | None) -> str:
    """A wall time (s since the epoch), local."""
    return "-" if wall_s is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(wall_s))


def phase_line(name: str, detail: str, seconds: float, width: int = 55) -> str:
    """One line of the phase table, the same while it runs and in the report."""
    # two spaces at least: `wrapped` tells a time by them
    return f"  {name:<10} {f'{detail} ':<{width}} {seconds_text(seconds)}"


def flat(text: str) -> str:
    """One printable line: the first line with its indentation, further ones behind semicolons."""
    first, *rest = text.split("\n")
    return one_line("; ".join([first, *filter(None, map(str.strip, rest))]))


def page(lines: Iterable[str]) -> str:
    """Text of these lines; each stays one line, whatever text of devices, hosts or other users it
    contains.
    """
    return "\n".join(map(flat, lines))


def columns(rows: Iterable[Sequence[str]], gap: int = 2) -> list[str]:
    """Align rows of cells, each on one line whatever it contains; trailing blanks are cut."""
    table = [[flat(cell) for cell in row] for row in rows]
    width = [
        max((len(row[i]) for row in table if i < len(row)), default=0)
        for i in range(max(map(len, table), default=0))
    ]
    return [
        (" " * gap).join(cell.ljust(width[i]) for i, cell in enumerate(row)).rstrip()
        for row in table
    ]


_SGR = re.compile(r"\x1b\[[0-9;]*m")
_TIMED = re.compile(r"(.*\S) {2,}([\d.]+ (?:ns|us|µs|ms|s|min \d+ s|h \d+ min))")
_LABEL = re.compile(r"\s*(?:\x1b\[[0-9;]*m)?\S+\s{2,}")


def wrapped(text: str, width: int) -> str:
    """The text with lines longer than `width` (columns) broken between words, and continuation
    lines indented.

    A time in a column at the end of a line stays there, at the right. A word longer than a line
    stays whole, so that paths and commands can be copied.
    """
    return "\n".join(
        _fitted(line, width) if len(line) > width else line for line in text.split("\n")
    )


def _fitted(line: str, width: int) -> str:
    timed = _TIMED.fullmatch(line)
    if timed is None:
        return _wrapped(line, width)
    text, time_text = timed.groups()
    room = width - len(time_text) - 2
    first, *rest = (_wrapped(text, room) if len(text) > room else text).split("\n")
    return "\n".join([f"{first:<{room}}  {time_text}", *rest])


def _wrapped(line: str, width: int) -> str:
    label = _LABEL.match(line)
    column = len(_SGR.sub("", label[0])) if label else len(line) - len(line.lstrip()) + 4
    column = min(column, width // 3)
    lines, length = [""], 0
    for blanks, word in re.findall(r"( *)([^ ]+)", line):
        size = len(_SGR.sub("", word))
        if (
            label
            and length == len(_SGR.sub("", label[0]).rstrip())
            and width - column < size <= width - 4
        ):
            lines.append(" " * 4 + word)  # a path: beside its label the terminal would break it
            length = 4 + size
        elif length > column and length + len(blanks) + size > width:
            lines.append(" " * column + word)
            length = column + size
        else:
            lines[-1] += blanks + word
            length += len(blanks) + size
    return "\n".join(lines)


def listed(items: Sequence[str], most: int = 8) -> str:
    """The first few of a list, and how many more there are."""
    return " ".join(items[:most]) + (f" and {len(items) - most} more" if len(items) > most else "")
