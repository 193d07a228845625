"""Events of a verb that goes on until it is stopped, printed as they come."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from optics.plain import printable
from orchestrator.cli.call import Usage
from orchestrator.files.atomic import check_links

if TYPE_CHECKING:
    from orchestrator.results import Json


class EventPrinter:
    """Prints events as they come, as text or as JSON lines, and appends them to a log file if one
    is given.
    """

    def __init__(self, verb: str, jsonl: bool, silent: bool, log: Path | None) -> None:
        self.jsonl, self.silent = jsonl, silent
        self._log = None
        if log is not None:
            try:
                check_links(log)
            except OSError as error:
                raise Usage(f"{verb}: --log {error.strerror}", hint="choose another file") from None
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
            print(
                line
                if self.jsonl
                else f"{at}  {event['event']!s:<13} {printable(str(event['message']), keep='')}",
                flush=True,
            )
        except BrokenPipeError:  # the reader has gone; the verb keeps running
            self.silent = True
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def close(self) -> None:
        if self._log is not None:
            os.close(self._log)
