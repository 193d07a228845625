"""Progress of a run on stderr: a live table on a terminal, plain lines elsewhere, nothing with
`--json`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

from optics.plain import indented, printable, seconds_text

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.live import Live
    from rich.table import Table


class Progress:
    """Receives the phases of a run; this one shows nothing. Cheap to call; never raises.

    Every phase ends with `done` or with the run.
    """

    def phase(self, name: str, detail: str = "") -> None:
        """Phase `name` begins."""

    def update(self, name: str, done: int, total: int, detail: str = "") -> None:
        """`done` of `total` parts (devices, hosts, ports) of the phase are complete; total 0: only
        `detail` is shown.
        """

    def done(self, name: str, detail: str = "", seconds: float | None = None) -> None:
        """Phase `name` has ended; `seconds` as measured by the caller, else since `phase`."""

    def note(self, text: str) -> None:
        """Show a message that belongs to no phase."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass


class Silent(Progress):
    """Shows nothing: for `--json` and for tests."""


class Lines(Progress):
    """One plain line per finished phase or note; for a phase longer than 5 s also its progress,
    whenever that has changed.
    """

    def __init__(
        self, stream: TextIO, every_s: float = 5.0, reworded: Callable[[str], str] = str
    ) -> None:
        self._stream = stream
        self._reworded = reworded
        self._every_s = every_s
        self.reported: set[str] = set()
        """The finished phases, by name, and the notes."""
        self._began: dict[str, float] = {}
        self._where = ""
        self._reported = time.monotonic()

    def phase(self, name: str, detail: str = "") -> None:
        self._where = ""
        self._began[name] = self._reported = time.monotonic()

    def update(self, name: str, done: int, total: int, detail: str = "") -> None:
        where = f"{name:<10} {f'{done}/{total} ' if total else ''}{detail}"
        if where != self._where and time.monotonic() - self._reported >= self._every_s:
            self._where = where
            self._emit(where)

    def done(self, name: str, detail: str = "", seconds: float | None = None) -> None:
        if seconds is None:
            seconds = time.monotonic() - self._began.get(name, time.monotonic())
        self._began.pop(name, None)
        self.reported.add(name)
        # `rollback hosts`: one column of names, whatever their length
        group, _, part = name.partition(" ")
        self._emit(
            f"{group:<10} {f'{part}: {detail}' if part else detail:<55} {seconds_text(seconds)}"
        )

    def note(self, text: str) -> None:
        self.reported.add(text)
        self._emit(self._reworded(text))

    def _emit(self, text: str) -> None:
        self._reported = time.monotonic()
        try:
            print(indented(text.rstrip()), file=self._stream, flush=True)
        except (OSError, ValueError):
            pass  # a closed stderr must not stop a change half way


@dataclass
class _Row:
    name: str
    detail: str
    began: float
    seconds: float | None = None
    done: int = 0
    total: int = 0


_NAME, _DETAIL, _CLOCK, _CLOCKS = 12, 55, 10, 30
"""Widths of the table's columns, as the lines of the report have them; the last:
`1 min 37 s of about 2 min 03 s`.
"""
_WIDE = 76
"""In narrower terminals the table has no usual times."""


@dataclass
class _Rows:
    """The table's content; the painting thread only reads it."""

    expected: Mapping[str, float]
    rows: dict[str, _Row] = field(default_factory=dict)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        from rich.table import Table
        from rich.text import Text

        # Columns have widths of their own, so that none moves whatever the rows say.
        wide = options.max_width >= _WIDE
        clock_width = _CLOCKS if wide else _CLOCK
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
        table.add_column(width=_NAME, no_wrap=True)
        table.add_column(width=max(12, min(_DETAIL, options.max_width - _NAME - clock_width - 4)))
        table.add_column(width=clock_width, no_wrap=True)
        for row in list(self.rows.values()):
            share = f"{row.done}/{row.total} " if row.total and row.seconds is None else ""
            if row.seconds is not None:
                clock = seconds_text(row.seconds)
            else:
                clock = seconds_text(time.monotonic() - row.began)
                if wide and (usual := self.expected.get(row.name)) is not None:
                    clock += f" of about {seconds_text(usual)}"
            mark, style = ("…", "bold") if row.seconds is None else ("✓", "")
            table.add_row(
                Text(f"{mark} {row.name}", style=style),
                Text(share + printable(row.detail)),
                Text(clock),
            )
        yield table


class LiveTable(Progress):
    """A live table of phases with elapsed time and, from history, the usual time; it vanishes when
    the report is printed.
    """

    def __init__(
        self,
        stream: TextIO,
        *,
        colour: bool = True,
        expected: Mapping[str, float] | None = None,
        reworded: Callable[[str], str] = str,
    ) -> None:
        from rich.console import Console
        from rich.live import Live

        self._rows = _Rows(expected or {})
        self._reworded = reworded
        self._console = Console(file=stream, no_color=not colour, highlight=False)
        # Four a second: drawing costs milliseconds of the interpreter, which would lengthen the
        # dark time.
        self._live: Live = Live(
            self._rows, console=self._console, refresh_per_second=4, transient=True
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.transient = error is None  # the phases under way stay readable above the error
        self._live.stop()

    def phase(self, name: str, detail: str = "") -> None:
        self._rows.rows[name] = _Row(name, detail, time.monotonic())

    def update(self, name: str, done: int, total: int, detail: str = "") -> None:
        row = self._rows.rows.setdefault(name, _Row(name, detail, time.monotonic()))
        row.done, row.total, row.detail = done, total, detail or row.detail

    def done(self, name: str, detail: str = "", seconds: float | None = None) -> None:
        row = self._rows.rows.setdefault(name, _Row(name, detail, time.monotonic()))
        row.detail = detail or row.detail
        row.seconds = seconds if seconds is not None else time.monotonic() - row.began

    def note(self, text: str) -> None:
        self._console.print(indented(self._reworded(text)), markup=False, soft_wrap=True)


def progress_for(
    stream: TextIO,
    *,
    json: bool = False,
    colour: bool = True,
    expected: Mapping[str, float] | None = None,
    reworded: Callable[[str], str] = str,
) -> Progress:
    """The progress display that suits `stream`.

    expected: usual seconds per phase, from earlier runs. reworded: applied to a note before it is
    shown.
    """
    if json:
        return Silent()
    if stream.isatty():
        return LiveTable(stream, colour=colour, expected=expected, reworded=reworded)
    return Lines(stream, reworded=reworded)
