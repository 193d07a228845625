"""Progress: lines without a terminal, a table with one, silence for programs."""

from __future__ import annotations

import io
import os
import pty
import re
import time
from contextlib import suppress
from typing import cast

import pytest
from rich.console import Console

from optics.plain import seconds_text
from orchestrator.telemetry.progress import Lines, LiveTable, Silent, _Row, _Rows, progress_for


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_without_a_terminal_each_finished_phase_is_one_plain_line() -> None:
    out = io.StringIO()
    with progress_for(out) as progress:
        assert isinstance(progress, Lines)
        progress.phase("stage", "132 routes")
        progress.update("stage", 3, 12)
        progress.done("stage", "132 routes on 12 hosts", 1.1)
        progress.note("a job is running: it will be drained")
    assert out.getvalue().splitlines() == [
        f"stage      {'132 routes on 12 hosts':<55} 1.1 s",
        "a job is running: it will be drained",
    ]


def test_a_long_phase_says_where_it_is() -> None:
    out = io.StringIO()
    progress = Lines(out, every_s=0.0)
    progress.phase("link")
    progress.update("link", 47, 48, "gpu03:p2 is dark")
    assert out.getvalue() == "link       47/48 gpu03:p2 is dark\n"


def test_what_has_no_total_is_said_without_a_count() -> None:
    out = io.StringIO()
    Lines(out, every_s=-1.0).update("job", 12, 0, "waiting for 4 ranks")
    assert out.getvalue() == "job        waiting for 4 ranks\n"


def test_the_same_is_not_said_again_and_a_phase_that_begins_anew_is() -> None:
    out = io.StringIO()
    progress = Lines(out, every_s=0.0)
    for _ in range(2):
        progress.phase("job")
        for done, text in (
            (0, "starting"),
            (0, "starting"),
            (0, "starting"),
            (3, "running"),
            (3, "running"),
        ):
            progress.update("job", done, 4, text)
    assert out.getvalue().splitlines() == ["job        0/4 starting", "job        3/4 running"] * 2


def test_a_closed_stream_does_not_stop_a_change() -> None:
    out = io.StringIO()
    out.close()
    Lines(out).note("nobody hears this")


def test_for_a_program_nothing_is_said() -> None:
    out = Terminal()
    progress = progress_for(out, json=True)
    assert isinstance(progress, Silent)
    progress.phase("stage")
    progress.done("stage")
    assert out.getvalue() == ""


def test_on_a_terminal_the_table_shows_phase_share_and_usual_time() -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as stream:
        progress = progress_for(stream, expected={"switch": 0.05})
        assert isinstance(progress, LiveTable)
        with progress:
            progress.phase("stage", "[/bold] is no markup")
            progress.done("stage", "", 1.1)
            progress.phase("switch", "ocs1 12/12")
            progress.update("switch", 2, 4)
            progress.note("a [note]")
    shown = ""
    with os.fdopen(ours, "rb", 0) as screen, suppress(OSError):  # EIO: the other side is closed
        while piece := screen.read(4096):
            shown += piece.decode("utf-8", "replace")
    assert "✓ stage" in shown and "[/bold] is no markup" in shown and "a [note]" in shown
    assert "2/4 ocs1 12/12" in shown and "of about 50 ms" in shown


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_column_of_the_table_moves_whatever_its_rows_say(width: int) -> None:
    rows, starts = _Rows({"stage": 1.5, "verify": 123.0}), set()
    for name, detail in (
        ("plan", "24 links"),
        ("stage", "132 routes on 12 hosts " * 3),
        ("verify", "x" * 70),
    ):
        rows.rows[name] = _Row(name, detail, time.monotonic(), 0.0021 if name == "plan" else None)
        console = Console(file=io.StringIO(), width=width)
        console.print(rows)
        lines = cast(io.StringIO, console.file).getvalue().splitlines()
        assert all(len(line.rstrip()) <= width for line in lines)
        starts |= {
            found.start()
            for line in lines
            if (found := re.search(r"(?<=  )[\d.]+ (ms|us|ns|µs)( of about .*)? *$", line))
        }
        assert ("of about" in "".join(lines)) == (width >= 80 and name != "plan")
    assert len(starts) == 1, "times begin in one column"


def test_durations_have_the_unit_that_suits_them() -> None:
    assert [seconds_text(s) for s in (0.0004, 0.031, 0.5, 2.14, 185)] == [
        "0.4 ms",
        "31 ms",
        "500 ms",
        "2.1 s",
        "3 min 05 s",
    ]


def test_the_phases_of_a_rollback_stand_in_the_same_columns_as_the_others() -> None:
    out = io.StringIO()
    lines = Lines(out)
    lines.done("verify", "pairs 2/2", 0.21)
    lines.done("rollback hosts", "4 hosts taken back", 0.21)
    first, second = out.getvalue().splitlines()
    assert second.startswith("rollback   hosts: 4 hosts taken back") and first.index(
        "210 ms"
    ) == second.index("210 ms")
