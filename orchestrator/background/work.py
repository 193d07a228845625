"""The work of a service, from its own side: its file held, its events, its retries, and what it
says when it ends.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import ClassVar

from optics.errors import NotVerified, TestbedError, first_line
from optics.plain import counted
from orchestrator.background.kind import StateFile
from orchestrator.background.state import S
from orchestrator.deadline import endless
from orchestrator.results import Json, JsonReport

Notify = Callable[[Mapping[str, Json]], None]
"""Receives every event as it happens: `event`, `at` (wall s), `message`, and fields of its own."""


class ServiceReport(JsonReport):
    """What a service did, when it has ended. verbatim: its words are the text of a file, whose
    lines are not to be broken.
    """

    __slots__ = ()
    verbatim: ClassVar[bool] = False

    @abstractmethod
    def text(self) -> str:
        """For the operator."""


@dataclass(frozen=True, slots=True)
class ServiceNote:
    """What there is to report when a service is started or stopped, besides its process. done:
    something was.
    """

    message: str = ""
    data: Mapping[str, Json] = field(default_factory=dict)
    hint: str = ""
    done: bool = False


def emit(notify: Notify, event: str, text: str, **fields: Json) -> None:
    """Emit one event."""
    notify({"event": event, "at": time.time(), "message": text, **fields})


@contextmanager
def serving(file: StateFile[S]) -> Iterator[StateFile[S]]:
    """Be the service with this file, however long it takes; the file then says that it ended, and
    why. Raises: as `StateFile`.
    """
    endless()
    with file:
        error = ""
        try:
            yield file
        except asyncio.CancelledError:
            raise
        except BaseException as failure:
            error = first_line(failure)
            raise
        finally:  # only what kills it leaves another state there
            file.now(state="ended", error=error)


@dataclass
class Retries:
    """What fails is tried again after `first_s` (s), then after twice as long each time, `last_s`
    at most.

    most: so many failures in a row end the service; 0: none do. row: those so far.
    """

    first_s: float
    last_s: float
    most: int = 0
    row: int = 0
    wait_s: float = field(default=0.0, init=False)

    def failed(
        self, what: str = "attempt", error: TestbedError | None = None, hint: str = ""
    ) -> float:
        """Count a failure; return how long to wait (s). what: was tried. Raises: NotVerified - it
        was one too many.
        """
        self.row += 1
        if self.most and self.row >= self.most:
            raise NotVerified(
                f"{counted(self.row, what)} in a row failed, the last one: {error}", hint=hint
            ) from error
        self.wait_s = min(2 * self.wait_s or self.first_s, self.last_s)
        return self.wait_s

    def worked(self) -> None:
        """The next failure is the first one again."""
        self.row, self.wait_s = 0, 0.0


def ready() -> None:
    """Report to systemd that the process works, by sd_notify(3), if it asked."""
    if not (address := os.environ.get("NOTIFY_SOCKET")):
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as link:
        link.connect("\0" + address[1:] if address.startswith("@") else address)
        link.sendall(b"READY=1\n")
