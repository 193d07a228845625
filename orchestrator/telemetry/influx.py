"""Write finished lines to one InfluxDB: choose its API, interpret its responses. HTTP with short
timeouts.

The server holds a copy: whatever it answers, the journal keeps the lines, so nothing is lost.
"""

from __future__ import annotations

import base64
import http.client
import json
import re
import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit

from optics.errors import Garbled, Refused, TestbedError
from optics.extras import extra
from orchestrator.telemetry.influx_api import (
    TOKEN,
    Denied,
    InfluxTarget,
    Later,
    Written,
    server_text,
)

CONNECT_S, ANSWER_S = 3.0, 15.0
_SPLITS = 64
"""How many further requests one batch with bad lines may cost to find them."""


class Influx:
    """A connection to one server; `version` and `api` are known once `ping` has answered."""

    def __init__(
        self, target: InfluxTarget, *, connect_s: float = CONNECT_S, answer_s: float = ANSWER_S
    ) -> None:
        self.target = target
        self.version = ""
        self.api = target.api
        self._patience = (connect_s, answer_s)
        self._writer: Any = None
        self._made = False

    def ping(self) -> str:
        """Query the server's version, choose the API, return the version. Raises: Later, Denied."""
        status, headers, body = self.ask("GET", "/ping")
        if status >= 500:
            raise Later(f"{self._who} answers {status} to /ping: {server_text(body)}")
        if status not in (200, 204):
            raise Denied(
                f"{self._who} answers {status} to /ping: {server_text(body)}",
                hint="check telemetry.influx.url and the token",
            )
        self.version = headers.get("x-influxdb-version", "")
        if self.target.api == "auto":
            old = re.match(r"v?1\.([0-7])(?:\D|$)", self.version)
            self.api = "v1" if old else "v2"
        return self.version

    def write(self, lines: bytes) -> Written:
        """Write whole lines; only the bad ones are refused. Raises: Later - the state of these
        lines is unknown. Denied.
        """
        if self._writer is None:
            self.ping()
            self._writer = self._opened()
        status, text, after_s = self._writer.post(lines)
        # 1.6.7 answers 500 where only the retention policy is not there
        if (status == 404 or "retention policy not found" in text) and not self._made:
            self._made = True
            self._make()
            status, text, after_s = self._writer.post(lines)
        return self._judged(lines, status, text, after_s, [_SPLITS])

    def query(self, text: str, *, epoch: str = "ns") -> list[dict[str, Any]]:
        """Send an InfluxQL query by GET /query; return its series. Raises: Later, Denied, Refused -
        its own words.
        """
        asked = {"db": self.target.db.partition("/")[0], "q": text, "epoch": epoch}
        status, _, body = self.ask("GET", f"/query?{urlencode(asked)}")
        if status >= 500:
            raise Later(f"{self._who} answers {status}: {server_text(body)}")
        if status in (401, 403):
            raise Denied(f"{self._who} refuses the token: {server_text(body)}", hint=f"set {TOKEN}")
        try:
            (result,) = json.loads(body)["results"]
        except (ValueError, KeyError, TypeError) as error:
            raise Garbled(f"{self._who} answers {status}: {server_text(body)}") from error
        if "error" in result:
            raise Refused(f"{self._who}: {result['error']}")
        return list(result.get("series", []))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def ask(
        self, method: str, path: str, body: bytes | None = None
    ) -> tuple[int, Mapping[str, str], bytes]:
        """One plain request. Raises: Later - no answer. Denied - the URL cannot be one."""
        parts = urlsplit(self.target.url)
        try:
            if parts.scheme == "https":
                link: http.client.HTTPConnection = http.client.HTTPSConnection(
                    parts.hostname or "",
                    parts.port,
                    timeout=self._patience[0],
                    context=ssl.create_default_context(),
                )
            else:
                link = http.client.HTTPConnection(
                    parts.hostname or "", parts.port, timeout=self._patience[0]
                )
        except ValueError as error:
            raise Denied(
                f"{self.target.url} is not a URL: {error}",
                hint="telemetry.influx.url = http://HOST:8086",
            ) from None
        try:
            link.connect()
            if link.sock is not None:
                link.sock.settimeout(self._patience[1])
            link.request(method, parts.path + path, body, self._authorization())
            answer = link.getresponse()
            return (
                answer.status,
                {k.lower(): v for k, v in answer.getheaders()},
                answer.read(1 << 26),
            )
        except (OSError, http.client.HTTPException) as error:
            raise Later(f"{self._who} does not answer: {_reason(error)}") from error
        finally:
            link.close()

    @property
    def _who(self) -> str:
        return f"InfluxDB at {self.target.url}"

    def _authorization(self) -> dict[str, str]:
        """A token with a colon is user:password of 1.x, which old versions accept as Basic only."""
        token = self.target.token
        if not token:
            return {}
        if ":" in token:
            return {"Authorization": f"Basic {base64.b64encode(token.encode()).decode('ascii')}"}
        return {"Authorization": f"Token {token}"}

    def _opened(self) -> Any:
        with extra("influx", self._who):
            from orchestrator.telemetry.influxwriter import Writer

        return Writer(self.target, self.api, self._authorization(), self._patience)

    def _make(self) -> None:
        """Create the missing database (1.x) or bucket (2.x). Raises: Later, Denied."""
        target = self.target
        if not re.match(r"v?1\.", self.version):
            try:
                self._writer.make_bucket()
            except TestbedError as error:
                kind = Later if isinstance(error, Later) else Denied
                raise kind(
                    f"{self._who} has no bucket {target.db!r}, and it cannot be created: {error}",
                    hint=error.hint,
                ) from None
            return
        name, _, policy = target.db.partition("/")
        kept = f" WITH DURATION {int(target.retention_s)}s" if target.retention_s else ""
        texts = [f'CREATE DATABASE "{name}"' + (kept if not policy else "")]
        if policy:
            duration = f"{int(target.retention_s)}s" if target.retention_s else "INF"
            texts.append(
                f'CREATE RETENTION POLICY "{policy}" ON "{name}" DURATION {duration} REPLICATION 1'
            )
        for text in texts:
            status, _, body = self.ask("POST", f"/query?{urlencode({'q': text})}")
            if status >= 500:
                raise Later(f"{self._who}: {text}: {server_text(body)}")
            if status != 200 or b'"error"' in body:
                raise Denied(
                    f"{self._who}: {text}: {server_text(body)}",
                    hint="ask its administrator to create the database",
                )

    def _judged(
        self, lines: bytes, status: int, text: str, after_s: float, budget: list[int]
    ) -> Written:
        """Interpret one response; where it does not say which lines were bad, halve the batch until
        they are isolated.
        """
        if status in (200, 204):
            return Written()
        if status in (401, 403):
            token = "the token" if self.target.token else "writing without a token"
            raise Denied(
                f"{self._who} refuses {token}: {text}",
                hint=f"set {TOKEN} (user:password for InfluxDB 1.x)",
            )
        if status == 404:
            raise Denied(
                f"{self._who} has no {self.target.db!r}: {text}",
                hint="check telemetry.influx.db and .org",
            )
        if status in (400, 413, 422):
            return self._sifted(lines, text, budget)
        if 300 <= status < 400 or status in (405, 501):
            raise Denied(
                f"{self._who} answers {status}, which InfluxDB never does: {text}",
                hint="check telemetry.influx.url and .api",
            )
        later = Later(
            f"{self._who} answers {status}: {text}"
            if status
            else f"{self._who} does not answer: {text}"
        )
        later.after_s = after_s
        raise later

    def _sifted(self, lines: bytes, text: str, budget: list[int]) -> Written:
        dropped = re.search(r"partial write: (?!unable to parse).*dropped=(\d+)", text, re.DOTALL)
        if dropped and int(dropped[1]):
            return Written(int(dropped[1]), text)  # 1.x has written all the others
        each = lines.splitlines(keepends=True)
        if len(each) <= 1 or budget[0] <= 0:
            return Written(len(each), text)
        written = Written()
        for half in (each[: len(each) // 2], each[len(each) // 2 :]):
            budget[0] -= 1
            status, reported, after_s = self._writer.post(b"".join(half))
            written += self._judged(b"".join(half), status, reported, after_s, budget)
        return written


def _reason(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
