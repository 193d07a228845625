"""`testbed guard`: watch the plan that is up, lead traffic round circuits that lose their light."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from optics.plain import printable
from orchestrator.atomic import own_way
from orchestrator.cli.call import Call, Result, Usage, verb

if TYPE_CHECKING:
    from orchestrator.results import Json


def _seconds(name: str, text: str) -> float:
    from orchestrator.settings import duration

    try:
        return duration(text)
    except ValueError as error:
        raise Usage(f"{name}: {error}") from None


class Teller:
    """Prints events as they come, as lines for people or as JSON, and keeps them in a file if there is one."""

    def __init__(self, jsonl: bool, silent: bool, log: Path | None) -> None:
        self.jsonl, self.silent = jsonl, silent
        self._log = None
        if log is not None:
            try:
                own_way(log)
            except OSError as error:
                raise Usage(f"guard: --log {error.strerror}", hint="name another file") from None
            log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def __call__(self, event: Mapping[str, Json]) -> None:
        line = json.dumps(event)
        if self._log is not None:
            os.write(self._log, line.encode() + b"\n")
        if self.silent:
            return
        at = time.strftime("%H:%M:%S", time.localtime(float(str(event["at"]))))
        try:
            print(line if self.jsonl else f"{at}  {event['event']!s:<13} {printable(str(event['words']), keep='')}", flush=True)
        except BrokenPipeError:  # whoever read has gone; guarding goes on
            self.silent = True
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def close(self) -> None:
        if self._log is not None:
            os.close(self._log)


app = typer.Typer()


@verb(
    app,
    "guard",
    "Watch the plan that is up; lead traffic round circuits that lose their light.",
    examples="""
testbed guard                     until the plan is taken down, or Ctrl-C
testbed guard --jsonl --stay      for systemd: wait for plans, one JSON object per event
testbed up -t examples/ring-12.json --guard     start one in the background
testbed guard --stop              end the one in the background
""",
    more="It moves no light: `testbed up --avoid PORT` does that. While another run holds the lab it stands back.",
)
def guard(
    call: Call,
    jsonl: Annotated[bool, typer.Option("--jsonl", help="Print each event as a JSON object on a line.")] = False,
    stay: Annotated[bool, typer.Option("--stay", help="Wait for a plan to come up, and for the next one.")] = False,
    stop: Annotated[bool, typer.Option("--stop", help="End the guard that runs.")] = False,
    look: Annotated[str, typer.Option("--look", metavar="TIME", help="How often devices are read.")] = "10s",
    hold: Annotated[str, typer.Option("--hold", metavar="TIME", help="How long light must stay before it is used again.")] = "3s",
    log: Annotated[Path | None, typer.Option("--log", metavar="FILE", help="Keep the events here too.")] = None,
) -> Result:
    if stop:
        return _stopped(call)
    from orchestrator.engine.guard.guard import GuardOptions
    from orchestrator.engine.guard.guard import guard as work

    manner = GuardOptions(_seconds("--look", look), _seconds("--hold", hold), stay, str(log or ""))
    teller = Teller(jsonl, call.json, log)
    try:
        report = call.work(work, tell=teller, manner=manner)
    finally:
        teller.close()
    moves = f"{report.reroutes} times round dead circuits, {report.restores} times back"
    return Result(report.to_json(), "" if jsonl else f"Guarded {report.plan or report.lab}: {moves}")


def _stopped(call: Call) -> Result:
    from orchestrator.engine.guard import process as guardfile
    from orchestrator.results import to_json
    from orchestrator.session import load_lab
    from orchestrator.store.keys import slice_of

    there = guardfile.stop(call.settings, slice_of(load_lab(call.settings.inventory), call.settings))
    if there is None:
        return Result({"stopped": False}, "No guard was running")
    text = f"Guard of {there.plan or 'no plan'} ended (pid {there.pid})"
    hint = ""
    if there.around:
        text += f"; traffic stays on the way round {', '.join(there.around)}"
        hint = "testbed guard"
    return Result({"stopped": True, "guard": to_json(there)}, text, hint=hint)
