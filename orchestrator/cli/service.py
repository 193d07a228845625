"""A service as its verb starts it, stops it, and does its work in this process: which options go together, and what is printed."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from orchestrator.cli.call import Call, Result, Usage
from orchestrator.cli.events import EventPrinter

if TYPE_CHECKING:
    from orchestrator.background.kind import Kind
    from orchestrator.background.state import ServiceState

T = TypeVar("T")

Foreground = Annotated[bool, typer.Option("--foreground", help="Do it in this process, and print its events, until Ctrl-C.")]
Log = Annotated[Path | None, typer.Option("--log", metavar="FILE", help="Also append events to this file.")]


def in_background(call: Call, log: Path | None, here: bool, options: str) -> bool:
    """Whether the work is for a process in the background: none of the `options` asks for it `here`.

    Raises: Usage - `--log` does, and they do not.
    """
    if not here and log is not None:
        raise Usage(f"{call.verb}: --log goes with {options}", hint="in the background events go to a file that is named")
    return not here


def worked(
    call: Call, work: Callable[..., Coroutine[Any, Any, T]], jsonl: bool, log: Path | None, /, *, kept: bool = False, **options: Any
) -> T:
    """What the service reports that did its work in this process. kept: a parent of it starts it again when it is killed."""
    from orchestrator.background.supervise import supervised

    if kept:
        supervised()
    printer = EventPrinter(call.verb, jsonl, call.json, log)
    try:
        return call.work(work, notify=printer, **options)
    finally:
        printer.close()


def started(kind: Kind[Any], state: ServiceState) -> Result:
    """Of a verb that started one in the background, or found it there."""
    from orchestrator.results import to_json

    text = f"{kind.noun}: {state}; events in {state.log}"
    return Result({kind.noun: to_json(state)}, text, hint=f"testbed {kind.name} {kind.stops}")


def stopped(kind: Kind[Any], state: ServiceState | None, did: str = "", hint: str = "") -> Result:
    """Of a verb that stopped one. did: what it leaves, behind a comma or a semicolon."""
    from orchestrator.results import to_json

    if state is None:
        return Result({"stopped": False}, f"No {kind.noun} was running")
    text = f"{kind.noun.capitalize()}{state.of} stopped (pid {state.pid}){did}"
    return Result({"stopped": True, kind.noun: to_json(state)}, text, hint=hint)
