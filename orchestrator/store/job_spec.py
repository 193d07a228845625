"""What the store keeps of a launched job: what its plan wanted, and what has happened to it
since.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from optics.plan import Job
from orchestrator.extensions import job_of
from orchestrator.files.fields import of_fields, stored
from orchestrator.results import Json, to_json


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause of a job: its move, the token of the run that asked for it, and until when (wall s)
    at the longest.
    """

    move: int
    token: int
    until: float


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A launched job. wanted: as its plan has it, with the rings that it has changed to; it alone
    decides whether another job is the same. on_hosts: its name on the hosts. backend: of its
    collectives.

    given: what it was given of its attachments, by kind, as they keep it: secrets are among it.
    unlaunched: its launch failed, so that no rank ran; the record's detail says why. changing: the
    number of a move that may have changed its rings and whose result is not known; 0 for none.
    pause: the latest. stopping: why its ranks were asked to stop. Ranks that were asked exit with
    0, so this alone tells "stopped" from "finished".
    """

    wanted: Job
    on_hosts: str
    backend: str
    given: Mapping[str, Any] = field(default_factory=dict, repr=False)
    unlaunched: bool = False
    changing: int = 0
    pause: Pause | None = None
    stopping: str = ""

    def to_json(self) -> Json:
        """As the store keeps it."""
        return to_json(self)

    @classmethod
    @stored
    def of_json(cls, data: Mapping[str, Any]) -> JobSpec:
        """Read what `to_json` wrote. Raises: StoreFailed - it is not what this version writes."""
        read: dict[str, Any] = {
            "wanted": job_of(data["wanted"]),
            "given": {kind: dict(given) for kind, given in data["given"].items()},
            "pause": of_fields(Pause, data["pause"]) if data["pause"] else None,
        }
        return of_fields(cls, {**data, **read})
