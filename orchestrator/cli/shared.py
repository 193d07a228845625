"""Shared by several verbs: declarations of options, durations, output files, results of changes."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.call import Call, Result, Usage
from orchestrator.cli.completing import runs
from orchestrator.verbs.invoke import is_stopped_lab

if TYPE_CHECKING:
    from orchestrator.change.report import DownReport, PrewireReport, UpReport

Run = Annotated[
    str | None,
    typer.Argument(
        metavar="[RUN]", help="Run ID, its last digits, or `last`.", autocompletion=runs
    ),
]
ExitCode = Annotated[
    bool, typer.Option("--exit-code", help="Exit with 8 if there are differences.")
]
Jsonl = Annotated[
    bool, typer.Option("--jsonl", help="Print each event as one JSON object per line.")
]
GuardJobs = Annotated[
    bool,
    typer.Option(
        "--jobs",
        help="The guard also restarts the job from its newest checkpoint, and replaces dead hosts by spares.",
    ),
]
Restarts = Annotated[
    str | None,
    typer.Option(
        "--restarts",
        metavar="N/TIME",
        help="With --jobs: at most N recoveries in TIME (default 3/h).",
    ),
]
Junit = Annotated[
    Path | None, typer.Option("--junit", metavar="FILE", help="Write the result as JUnit XML.")
]
Pairs = Annotated[
    str | None,
    typer.Option(
        "--pairs",
        metavar="N|all",
        help="Ask at most N pairs of hosts for their hops (10000), or all.",
    ),
]
Passive = Annotated[
    bool, typer.Option("--passive", help="Only read files; do not connect to hosts.")
]
Wait = Annotated[
    str | None,
    typer.Option(
        "--wait", metavar="TIME", help="Wait up to this long for locks that others hold: 10m."
    ),
]
Unicode = Annotated[
    bool, typer.Option("--unicode/--no-unicode", help="Draw with block characters.")
]


def seconds(option: str, text: str, example: str) -> float:
    """The value of an option that is a duration. Raises: Usage - it is none."""
    from orchestrator.settings import duration

    try:
        return duration(text)
    except ValueError as error:
        raise Usage(f"{option}: {error}", hint=f"{option} {example}") from None


def one_of(value: str, known: Collection[str], option: str) -> str:
    """The value. Raises: Usage - it is not one of these."""
    if value not in known:
        from optics.plain import did_you_mean

        meant = did_you_mean(value, known)
        nearest = meant.removeprefix("; did you mean ").removesuffix("?") or next(iter(known))
        raise Usage(
            f"{option} {value}: not one of {', '.join(known)}{meant}", hint=f"{option} {nearest}"
        )
    return value


def moment(flag: str, text: str | None) -> float | None:
    """A time given as an age or as a date, in s since the epoch. Raises: Usage."""
    import time

    from orchestrator.settings import duration

    if text is None:
        return None
    try:
        return time.time() - duration(text)
    except ValueError:
        pass
    return wall_time(
        flag, text, "neither an age (7d, 12h) nor a time (2026-11-21, 2026-11-21T14:00)"
    )


def wall_time(flag: str, text: str, else_: str) -> float:
    """A date and time, of the local zone unless it has an offset, in s since the epoch.

    Raises: Usage - it is `else_`; or a local time that does not exist, or twice, as clocks change.
    """
    from datetime import datetime

    try:
        at = datetime.fromisoformat(text)
        first, second = (at.replace(fold=fold).timestamp() for fold in (0, 1))
        early, late = sorted((first, second))
        either = [
            datetime.fromtimestamp(s).astimezone().isoformat(" ", "minutes") for s in (early, late)
        ]
    except (ValueError, OverflowError, OSError):
        raise Usage(f"{flag}: {text!r} is {else_}") from None
    if first == second:
        return first
    what = (
        "does not exist: clocks are set forward"
        if first > second
        else "is twice: clocks are set back"
    )
    raise Usage(f"{flag}: {text!r} {what} then", hint=f'{flag} "{either[0]}" or "{either[1]}"')


def write_file(path: Path, text: str) -> None:
    """Write a file as a whole. Raises: Usage - it cannot be written there."""
    from orchestrator.files.atomic import write_whole

    try:
        write_whole(path, text)
    except OSError as error:
        raise Usage(
            f"{path}: {error.strerror or error}", hint="choose a file that can be written"
        ) from error


def require_running_lab(inventory: Path) -> None:
    """Raises: Unreachable - the inventory is one of an emulated lab that is not running."""
    from optics.errors import Unreachable

    if is_stopped_lab(inventory):
        raise Unreachable("the emulated lab is not running", hint="testbed lab start")


def own_tenancy(call: Call) -> str:
    """The key of the caller's part of the chosen lab in the run store."""
    from orchestrator.session import load_lab
    from orchestrator.store.keys import tenancy_of

    return tenancy_of(load_lab(call.settings.inventory), call.settings)


def own_lab(call: Call) -> str:
    """The key of the chosen lab in the run store."""
    from orchestrator.session import load_lab
    from orchestrator.store.keys import key_of

    return key_of(load_lab(call.settings.inventory))


def changed(report: UpReport | DownReport | PrewireReport, call: Call, retry: str = "") -> Result:
    """The result of a verb that changed the lab. retry: the command to run after the manual
    repair.
    """
    from orchestrator.change.report import PrewireReport, UpReport
    from orchestrator.cli import render

    if isinstance(report, PrewireReport):
        return Result(report.to_json(), render.prewire(report, call.colour, call.reported))
    if isinstance(report, UpReport):
        return Result(
            report.to_json(), render.up(report, call.colour, call.started, call.here, call.reported)
        )
    text = render.down(report, call.colour, call.here, call.reported)
    if not report.left:
        return Result(report.to_json(), text)
    message = (
        "manual repair is needed: 1 item"
        if len(report.left) == 1
        else f"manual repair is needed: {len(report.left)} items"
    )
    hint = f"once it is repaired: {retry or f'testbed resume {report.run}'}"
    return Result(report.to_json(), text, "E-HANDS-NEEDED", 7, message, hint, ok=False)
