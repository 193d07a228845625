"""The destination of points and the errors of a server, whatever its version."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from optics.errors import Refused, Unreachable

if TYPE_CHECKING:
    from orchestrator.settings import Settings

TOKEN = "TESTBED_INFLUX_TOKEN"
_TRY = "start it, or correct --to or telemetry.influx.url; the journals are complete without"


class Later(Unreachable):
    """The server cannot accept points now; the same request may succeed in `after_s` (s, 0: it did
    not say).
    """

    after_s = 0.0

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint or _TRY)


class Denied(Refused):
    """The server refuses every write: wrong token, no such bucket, not an InfluxDB."""


@dataclass(frozen=True, slots=True)
class InfluxTarget:
    """Where points go. `private`: the influxd that this program starts itself, at whatever port.
    `db` may be `db/policy`.
    """

    url: str
    db: str = "testbed"
    org: str = ""
    api: str = "auto"
    gzip: bool = False
    retention_s: float = 0.0
    token: str = field(default="", repr=False)
    private: bool = False

    @property
    def name(self) -> str:
        """The key of a checkpoint: equal for equal destinations, whatever the port of a private
        server.
        """
        return " ".join(
            word for word in ("private" if self.private else self.url, self.org, self.db) if word
        )

    @property
    def key(self) -> str:
        """`name` as part of a file's name."""
        return hashlib.sha256(self.name.encode()).hexdigest()[:10]


def target_of(settings: Settings, url: str | None = None) -> InfluxTarget | None:
    """The InfluxDB of the settings, at `url` where given; None where there is to be none."""
    chosen = settings.influx
    where = chosen.url if url is None else url.rstrip("/")
    if where == "none":
        return None
    token = "" if where == "auto" else os.environ.get(TOKEN, "")
    place = "" if where == "auto" else where
    return InfluxTarget(
        place,
        chosen.db,
        chosen.org,
        chosen.api,
        chosen.gzip,
        chosen.retention_s,
        token,
        private=where == "auto",
    )


@dataclass(frozen=True, slots=True)
class Written:
    """The result of a write: how many lines were refused for their content, and the server's words
    for the first of them.
    """

    refused: int = 0
    message: str = ""

    def __add__(self, other: Written) -> Written:
        return Written(self.refused + other.refused, self.message or other.message)


def server_text(body: bytes) -> str:
    """The server's own words, taken from its JSON if it is JSON."""
    text = body.decode("utf-8", "replace").strip()
    try:
        reply = json.loads(text)
        text = str(reply.get("error") or reply.get("message") or text)
    except (ValueError, AttributeError):
        pass
    return " ".join(text.split())[:300] or "no words"
