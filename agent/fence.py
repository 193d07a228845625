"""The fence: of two runs only the newer may change this host."""

from __future__ import annotations

import json
import os
import sys

from agent.basics import VAR, Failure, integer, keep, read_json, refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.shapes import Json

FILE = VAR + "/fence.json"
OWN = frozenset(("fence", "stage", "commit", "confirm", "revert", "clear", "arm", "disarm"))
OWN |= {
    "job.start",
    "job.stop",
    "job.prepare",
    "job.hold",
    "job.go",
    "job.drop",
    "job.files",
    "job.secret",
}
OWN |= {"slots.load", "slots.tick", "slots.change", "slots.stop"}
"""The daemon's own operations that change something; mechanisms name theirs. Reading is open to
every run.
"""


class Fence:
    """Every run has a token higher than all runs before it. A run with a lower one than was seen
    here has lost the lab.

    The highest is kept over restarts of this program and of the host, power cuts included. A
    request without a token comes from a user of the host itself, and passes. `overtaken()` is
    called when a newer run comes: what an older one armed or prepared must not happen then. fenced:
    the operations that change something.
    """

    def __init__(self, overtaken: Callable[[], object], fenced: frozenset[str] = OWN) -> None:
        self.overtaken, self.fenced = overtaken, fenced
        self.highest = self._kept()

    def _kept(self) -> int | None:
        """The highest token seen; 0 on a new host, None if there was one and the file does not say
        it any more.
        """
        if not os.path.lexists(FILE):
            return 0
        kept = read_json(FILE)
        token = kept.get("token") if isinstance(kept, dict) else None
        if type(token) is int and token > 0:
            return token
        sys.stderr.write(
            f"{FILE} cannot be read: the next run that begins here counts as the newest, older ones are refused\n"
        )
        sys.stderr.flush()
        return None

    def check(self, operation: str, request: Json) -> None:
        """Raises: Failure, overtaken - the request is of a run older than one seen here."""
        if operation not in self.fenced or request.get("token") is None:
            return
        token = integer(request, "token", 1)
        # a run sends that when it has got its lock; an overtaken one does not
        if self.highest is None and operation != "fence":
            raise refused(
                f"{operation}: this host lost the number of its newest run ({FILE} cannot be read); repeat the command"
            )
        if self.highest is not None and token < self.highest:
            raise Failure(
                "overtaken",
                f"{operation} of a run with token {token}: a newer run, with token {self.highest}, holds this host",
            )
        if self.highest is None or token > self.highest:
            keep(FILE, json.dumps({"token": token}))
            self.highest = token
            self.overtaken()
