"""`testbed watch`: the lab as it is now, painted again and again on a terminal, told in lines elsewhere."""

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
from orchestrator.atomic import write_whole
from orchestrator.cli.call import Call, Result, Usage, verb
from orchestrator.cli.tones import coloured

if TYPE_CHECKING:
    from rich.console import Console

    from orchestrator.views.live import Event, Watcher

PAINT_S = 0.15
"""The screen is painted at most this often (s), and once a second when nothing happens."""
SUMMARY_S = 5.0
RATES_S = 1.0
ONCE_S = 1.5
"""A single picture waits so long (s) for two samples of every port."""
SVG_COLUMNS, SVG_ROWS = 110, 46


def register(root: typer.Typer) -> None:
    @verb(
        root,
        "watch",
        "Show the lab live: circuits, devices, rates, iterations, the last move.",
        examples="""
testbed watch                          until Ctrl-C
testbed watch --jsonl | jq -c 'select(.event == "reconfig")'
testbed watch --once                   one picture
testbed watch --once --svg watch.svg   one picture as a file
""",
        more="""
On a terminal one screen; elsewhere a line per event, and every 5 s the figures. It follows the journals and the store, and hears
carriers, counters and iterations from the hosts (not with --passive). No device is asked. Ctrl-C ends it with 0.
""",
    )
    def watch(
        call: Call,
        jsonl: Annotated[bool, typer.Option("--jsonl", help="Print each event as a JSON object on a line.")] = False,
        once: Annotated[bool, typer.Option("--once", help="One picture, then end.")] = False,
        svg: Annotated[
            Path | None, typer.Option("--svg", metavar="FILE", help="With --once: write it as a picture.", show_default=False)
        ] = None,
        length: Annotated[
            str | None,
            typer.Option(
                "--for", metavar="TIME", help="End after this long; with --once: look so long before.", show_default=False
            ),
        ] = None,
        passive: Annotated[bool, typer.Option("--passive", help="Read files alone; ask no host.")] = False,
    ) -> Result:
        import asyncio

        from orchestrator.settings import duration

        if svg is not None and not once:
            raise Usage("--svg is for one picture", hint="testbed watch --once --svg watch.svg")
        try:
            seconds = float("inf") if length is None else duration(length)
        except ValueError as error:
            raise Usage(f"--for: {error}") from None
        with call.store() as store:
            from orchestrator.views.live import Watcher
            from orchestrator.views.live.sections import whole

            with Watcher(call.settings, store) as watcher:
                looker = _Once(call, watcher, svg) if once else _looker(call, watcher, jsonl)
                if once and length is None:
                    seconds = 0.0 if passive else ONCE_S
                try:
                    asyncio.run(_watch(watcher, looker, seconds, passive))
                except (KeyboardInterrupt, asyncio.CancelledError):
                    pass
                except BrokenPipeError:  # whoever read has seen enough
                    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                finally:
                    looker.close()
                return Result(whole(watcher.picture) if call.json else {}, looker.last)


class _Looker:
    """One way of showing what changed. `last`: what is printed at the end."""

    last = ""

    def __init__(self, call: Call, watcher: Watcher) -> None:
        self.call, self.picture = call, watcher.picture
        self._seen = 0

    def show(self, changed: bool) -> None:
        """Show the picture as it is now."""

    def close(self) -> None:
        """Leave the terminal as it was."""

    def _news(self) -> list[Event]:
        found = self.picture.since(self._seen)
        self._seen = found[-1].number if found else self._seen
        return found


class _Silent(_Looker):
    """For `--json`: everything is in the envelope at the end."""


class _Json(_Looker):
    def __init__(self, call: Call, watcher: Watcher) -> None:
        from orchestrator.views.live.sections import whole

        super().__init__(call, watcher)
        self._say({"at": time.time(), "event": "picture", **whole(watcher.picture)})
        self._due = 0.0

    def show(self, changed: bool) -> None:
        for event in self._news():
            self._say(event.json())
        rates = {port: r for port, r in self.picture.rates.items() if r[0] is not None}
        if rates and time.monotonic() >= self._due:
            self._due = time.monotonic() + RATES_S
            self._say({"at": time.time(), "event": "rates", "ports": rates})

    @staticmethod
    def _say(said: object) -> None:
        print(json_safe(json.dumps(said, ensure_ascii=False)), flush=True)


class _Lines(_Looker):
    def __init__(self, call: Call, watcher: Watcher) -> None:
        super().__init__(call, watcher)
        self._summary = ""
        self._due = 0.0

    def show(self, changed: bool) -> None:
        from orchestrator.cli.watchscreen import clock, summary

        for event in self._news():
            if event.event != "iteration":
                print(coloured(f"{clock(event.at)}  {printable(event.words, keep='')}"), flush=True)
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + SUMMARY_S
            words = summary(self.picture)
            trouble = "".join(f"; {printable(w, keep='')}" for w in self.picture.trouble.values())
            if (words := words + trouble) != self._summary:
                self._summary = words
                print(f"{clock(time.time() * 1e3)}  {words}", flush=True)


class _Screen(_Looker):
    def __init__(self, call: Call, watcher: Watcher) -> None:
        from rich.console import Console
        from rich.live import Live

        super().__init__(call, watcher)
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
        self._live.update(screen(self.picture, width, height, unicode=self.call.unicode), refresh=True)

    def close(self) -> None:
        self._live.stop()


class _Once(_Looker):
    def __init__(self, call: Call, watcher: Watcher, svg: Path | None) -> None:
        super().__init__(call, watcher)
        self._svg = svg

    def close(self) -> None:
        from orchestrator.results import path_text

        if self._svg is not None:
            drawn = _console(self, SVG_COLUMNS, SVG_ROWS, record=True).export_svg(title="testbed watch")
            try:  # letters come from the machine it is looked at on: rich would have them fetched from elsewhere
                write_whole(self._svg, re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL))
            except OSError as error:
                raise Usage(f"--svg {self._svg}: {error.strerror or error}") from None
            self.last = f"Written: {path_text(self._svg)}"
            return
        from shutil import get_terminal_size

        size = get_terminal_size((100, 60))
        console = _console(self, size.columns, max(60, size.lines), record=False)
        self.last = console.file.getvalue().rstrip()  # type: ignore[attr-defined]


def _console(looker: _Once, columns: int, rows: int, *, record: bool) -> Console:
    """A console that holds the picture."""
    from io import StringIO

    from rich.console import Console

    from orchestrator.cli.watchscreen import screen

    colour = record or looker.call.colour
    console = Console(
        file=StringIO(), record=record, width=columns, height=rows, force_terminal=colour, no_color=not colour, highlight=False
    )
    console.print(screen(looker.picture, columns, rows, unicode=record or looker.call.unicode))
    return console


def _looker(call: Call, watcher: Watcher, jsonl: bool) -> _Looker:
    if jsonl:
        return _Json(call, watcher)
    if call.json:
        return _Silent(call, watcher)
    if sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        return _Screen(call, watcher)
    return _Lines(call, watcher)


def _listening() -> Callable[[], bool]:
    """A question: whether somebody still reads what we print. A lab at rest has nothing to print by which one would notice."""
    poll = select.poll()
    with suppress(OSError, ValueError):  # no stdout at all
        poll.register(sys.stdout.fileno(), 0)
    return lambda: not any(said & (select.POLLERR | select.POLLHUP) for _, said in poll.poll(0))


async def _watch(watcher: Watcher, looker: _Looker, seconds: float, passive: bool) -> None:
    """Look until told to end, or for so long."""
    import asyncio
    import signal

    from orchestrator.views.live.collect import collect
    from orchestrator.views.live.sections import changes
    from orchestrator.views.live.watcher import LOOK_S

    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    asking = None if passive else asyncio.create_task(collect(watcher))
    end = time.monotonic() + seconds
    listening = _listening()
    try:
        while True:
            if not listening():
                raise BrokenPipeError
            watcher.look()
            looker.show(bool(changes(watcher.picture)))
            if time.monotonic() >= end:
                return
            await asyncio.sleep(LOOK_S)
    finally:
        if asking is not None:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
