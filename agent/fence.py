"""The fence: of two runs only the newer may change this host."""

from __future__ import annotations

import json

from agent.basics import VAR, Failure, integer, read_json, write

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.shapes import Json

FENCED = frozenset(("fence", "stage", "commit", "confirm", "revert", "clear", "arm", "disarm"))
FENCED |= {"job.start", "job.stop", "job.prepare", "job.hold", "job.go", "job.drop", "job.files", "slots.load", "slots.tick"}
FENCED |= {"slots.turn", "slots.stop", "networks.load", "networks.drop", "job.secret", "tap", "tap.stop", "congestion"}
"""Operations that change something; reading is open to every run."""


class Fence:
    """Every run has a token higher than all runs before it. A run with a lower one than was seen here has lost the lab.

    The highest is kept over restarts of this program and of the host. A request without a token comes from a user of the host
    itself, and passes. `overtaken()` is called when a newer run comes: what an older one armed or prepared must not happen then.
    """

    def __init__(self, overtaken: Callable[[], object]) -> None:
        self.overtaken = overtaken
        kept = read_json(VAR + "/fence.json") or {}
        self.highest: int = kept.get("token", 0) if isinstance(kept, dict) else 0

    def check(self, operation: str, request: Json) -> None:
        """Raises: Failure, overtaken - the request is of a run older than one seen here."""
        if operation not in FENCED or request.get("token") is None:
            return
        token = integer(request, "token", 1)
        if token < self.highest:
            raise Failure(
                "overtaken", f"{operation} of a run with token {token}: a newer run, with token {self.highest}, holds this host"
            )
        if token > self.highest:
            write(VAR + "/fence.json", json.dumps({"token": token}))
            self.highest = token
            self.overtaken()
