"""`testbed watch`: the lab live, as a screen on a terminal and as lines elsewhere."""

from __future__ import annotations

import json
import os
import re
import select
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from optics.plain import json_safe, printable
from orchestrator.cli.call import Call, Result, Usage, verb
from orchestrator.cli.shared import Jsonl, Passive, seconds, write_file
from orchestrator.cli.tones import coloured

if TYPE_CHECKING:
    from rich.console import Console

    from orchestrator.views.live import Event, Watcher

PAINT_S = 0.15
"""Shortest time (s) between two updates of the screen; it is updated once a second when nothing
happens.
"""
SUMMARY_S = 5.0
RATES_S = 1.0
ONCE_S = 1.5
"""A single picture waits this long (s) for two samples of every port."""
SVG_COLUMNS, SVG_ROWS = 110, 46


app = typer.Typer()


@verb(
    app,
    "watch",
    "Show the lab live in the terminal.",
    examples="""
testbed watch                          until Ctrl-C
testbed watch --jsonl | jq -c 'select(.event == "reconfig")'
testbed watch --once                   one picture
testbed watch --once --svg watch.svg   one picture as a file
""",
    more="""
On a terminal it draws one screen; otherwise it prints a line per event, and a summary every 5 s. It follows the journals and
the run store, and receives carrier states, counters and iterations from the hosts (not with --passive). Devices are not
contacted. The exit code after Ctrl-C is 0.
""",
)
def watch(
    call: Call,
    jsonl: Jsonl = False,
    once: Annotated[bool, typer.Option("--once", help="Show one picture, then end.")] = False,
    svg: Annotated[
        Path | None,
        typer.Option(
            "--svg", metavar="FILE", help="With --once: write the picture to this SVG file."
        ),
    ] = None,
    length: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="TIME",
            help="End after this time; with --once: collect data for this time first.",
        ),
    ] = None,
    passive: Passive = False,
) -> Result:
    import asyncio

    if svg is not None and not once:
        raise Usage("--svg requires --once", hint="testbed watch --once --svg watch.svg")
    length_s = float("inf") if length is None else seconds("--for", length, "10s")
    with call.store() as store:
        from orchestrator.views.live import Watcher
        from orchestrator.views.live.sections import whole_picture

        with Watcher(call.settings, store) as watcher:
            view = _Once(call, watcher, svg) if once else _view(call, watcher, jsonl)
            if once and length is None:
                length_s = 0.0 if passive else ONCE_S
            try:
                asyncio.run(_watch(watcher, view, length_s, passive))
            except (KeyboardInterrupt, asyncio.CancelledError):
                pass
            except BrokenPipeError:  # the reader has closed the pipe
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            finally:
                view.close()
            return Result(whole_picture(watcher.picture) if call.json else {}, view.last)


class _View:
    """A display of changes. `last`: the text printed at the end."""

    last = ""

    def __init__(self, call: Call, watcher: Watcher) -> None:
        self.call, self.picture = call, watcher.picture
        self._seen = 0

    def show(self, changed: bool) -> None:
        """Show the current picture."""

    def close(self) -> None:
        """Restore the terminal."""

    def _news(self) -> list[Event]:
        found = self.picture.events.since(self._seen)
        self._seen = found[-1].number if found else self._seen
        return found


class _Silent(_View):
    """For `--json`: prints nothing, as the envelope at the end has everything."""


class _Json(_View):
    def __init__(self, call: Call, watcher: Watcher) -> None:
        from orchestrator.views.live.sections import whole_picture

        super().__init__(call, watcher)
        self._emit({"at": time.time(), "event": "picture", **whole_picture(watcher.picture)})
        self._due = 0.0

    def show(self, changed: bool) -> None:
        for event in self._news():
            self._emit(event.json())
        rates = {port: r for port, r in self.picture.rates.items() if r[0] is not None}
        if rates and time.monotonic() >= self._due:
            self._due = time.monotonic() + RATES_S
            self._emit({"at": time.time(), "event": "rates", "ports": rates})

    @staticmethod
    def _emit(reported: object) -> None:
        print(json_safe(json.dumps(reported, ensure_ascii=False)), flush=True)


class _Lines(_View):
    def __init__(self, call: Call, watcher: Watcher) -> None:
        super().__init__(call, watcher)
        self._summary = ""
        self._due = 0.0

    def show(self, changed: bool) -> None:
        from orchestrator.cli.watchscreen import clock, summary

        for event in self._news():
            if event.event != "iteration":
                print(
                    coloured(f"{clock(event.at)}  {printable(event.message, keep='')}"), flush=True
                )
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + SUMMARY_S
            text = "; ".join(
                filter(None, (summary(self.picture), printable(self.picture.slots.text(), keep="")))
            )
            trouble = "".join(f"; {printable(w, keep='')}" for w in self.picture.trouble.values())
            if (text := text + trouble) != self._summary:
                self._summary = text
                print(f"{clock(time.time() * 1e3)}  {text}", flush=True)


class _Screen(_View):
    def __init__(self, call: Call, watcher: Watcher) -> None:
        from rich.console import Console
        from rich.live import Live

        super().__init__(call, watcher)
        # asked now: while rich draws, stdout is an object of its own, without an encoding
        self._unicode = call.unicode
        self._console = Console(no_color=not call.colour, highlight=False)
        self._live = Live(console=self._console, screen=True, auto_refresh=False)
        self._live.start()
        self._painted = 0.0
        self._stale = True

    def show(self, changed: bool) -> None:
        from orchestrator.cli.watchscreen import screen

        self._stale = self._stale or changed
        if time.monotonic() - self._painted < (PAINT_S if self._stale else 1.0):
            return
        self._stale, self._painted = False, time.monotonic()
        width, height = self._console.size
        self._live.update(screen(self.picture, width, height, unicode=self._unicode), refresh=True)

    def close(self) -> None:
        self._live.stop()


class _Once(_View):
    def __init__(self, call: Call, watcher: Watcher, svg: Path | None) -> None:
        super().__init__(call, watcher)
        self._svg = svg

    def close(self) -> None:
        from orchestrator.results import path_text

        if self._svg is not None:
            drawn = _console(self, SVG_COLUMNS, SVG_ROWS, record=True).export_svg(
                title="testbed watch"
            )
            # Without the fonts that rich would have the viewer fetch from elsewhere.
            write_file(self._svg, re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL))
            self.last = f"Written: {path_text(self._svg)}"
            return
        from shutil import get_terminal_size

        size = get_terminal_size((100, 60))
        console = _console(self, size.columns, max(60, size.lines), record=False)
        self.last = console.file.getvalue().rstrip()  # type: ignore[attr-defined]


def _console(view: _Once, columns: int, rows: int, *, record: bool) -> Console:
    """A console with the picture drawn on it."""
    from io import StringIO

    from rich.console import Console

    from orchestrator.cli.watchscreen import screen

    colour = record or view.call.colour
    console = Console(
        file=StringIO(),
        record=record,
        width=columns,
        height=rows,
        force_terminal=colour,
        no_color=not colour,
        highlight=False,
    )
    console.print(screen(view.picture, columns, rows, unicode=record or view.call.unicode))
    return console


def _view(call: Call, watcher: Watcher, jsonl: bool) -> _View:
    if jsonl:
        return _Json(call, watcher)
    if call.json:
        return _Silent(call, watcher)
    if sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        return _Screen(call, watcher)
    return _Lines(call, watcher)


def _reader_check() -> Callable[[], bool]:
    """A function that returns whether stdout still has a reader, which printing would not show
    while nothing happens.
    """
    poll = select.poll()
    with suppress(OSError, ValueError):  # no stdout at all
        poll.register(sys.stdout.fileno(), 0)
    return lambda: (
        not any(reported & (select.POLLERR | select.POLLHUP) for _, reported in poll.poll(0))
    )


async def _watch(watcher: Watcher, view: _View, length_s: float, passive: bool) -> None:
    """Update the view until cancelled, or for this many seconds."""
    import asyncio
    import signal

    from orchestrator.views.live.collect import collect
    from orchestrator.views.live.sections import changed_sections
    from orchestrator.views.live.watcher import LOOK_S

    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    asking = None if passive else asyncio.create_task(collect(watcher))
    end = time.monotonic() + length_s
    has_reader = _reader_check()
    try:
        while True:
            if not has_reader():
                raise BrokenPipeError
            watcher.refresh()
            view.show(bool(changed_sections(watcher.picture)))
            if time.monotonic() >= end:
                return
            await asyncio.sleep(LOOK_S)
    finally:
        if asking is not None:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
