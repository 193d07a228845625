"""Grafana over HTTP: the few calls this program makes; no other module imports the client library.

Classic dashboard JSON and `/api` work from Grafana 10 to 13. The library (`grafana-api-sdk`, import
name `grafana_api`) reports failures by text and log; here every answer is judged by its status,
nothing is retried, an error names the server and the call.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from optics.errors import Garbled, Missing, Refused, Unreachable, Usage
from optics.extras import extra

if TYPE_CHECKING:
    from orchestrator.results import Json

OLDEST = 10
"""The first Grafana that loads what we send: classic JSON of schemaVersion 42 and the panels in
it.
"""
NOTE_TAGS = ("testbed", "testbed-note")
"""The dashboards show every annotation with the second of them."""
TIMEOUT_S = 10.0

Model = Mapping[str, Any]
"""JSON whose words are Grafana's."""


@dataclass(frozen=True, slots=True)
class Annotation:
    """An operator's annotation at a time (ms since the epoch), up to `end_ms` if it covers a
    span.
    """

    text: str
    time_ms: int
    end_ms: int | None = None
    tags: Sequence[str] = NOTE_TAGS


class GrafanaApi:
    """A Grafana reached with a service account's token.

    Every call raises: Unreachable - no answer. Refused - Grafana refused, in its own words. Garbled
    - the server is not Grafana.
    """

    def __init__(self, url: str, token: str, *, timeout_s: float = TIMEOUT_S) -> None:
        parts = urlsplit(url)
        if (
            not re.fullmatch(r"https?://([^\s/@?#]+@)?[\w.:\[\]-]+(/[^\s]*)?", url)
            or not parts.hostname
            or not _port(parts.netloc)
        ):
            raise Usage(
                f"{url!r} is not the URL of a Grafana", hint="such as http://grafana.lab:3000"
            )
        if parts.username or parts.password or parts.query or parts.fragment:
            raise Usage(
                f"the URL of Grafana has more than host and path: {parts.hostname}",
                hint="the token goes into --token",
            )
        if not token.isascii() or not token.isprintable() or " " in token:
            raise Usage(
                "the token is not one of Grafana's",
                hint="make one under Administration, Service accounts",
            )
        self.url = url.rstrip("/")
        self._token = token
        self._timeout_s = timeout_s

    def version(self) -> str:
        """Its version, empty if it hides it from anonymous users. Raises: Missing - too old for the
        dashboards.
        """
        version = str(self._done("read its version", "GET", "/api/health").get("version", ""))
        major = version.partition(".")[0]
        if major.isdigit() and int(major) < OLDEST:
            raise Missing(
                f"{self.url} is Grafana {version}; the dashboards need {OLDEST} or newer",
                hint="update Grafana",
            )
        return version

    def folder(self, uid: str, title: str) -> None:
        """Make the folder unless there is one of this uid."""
        status, _ = self._call(
            "read the folder", "GET", f"/api/folders/{quote(uid, safe='')}", fine=(404,)
        )
        if status == 404:
            self._done("make the folder", "POST", "/api/folders", {"uid": uid, "title": title})

    def data_source(self, spec: Model) -> bool:
        """Make or update the data source with this uid; False for one that came from files and
        stays as it is.
        """
        path = f"/api/datasources/uid/{quote(str(spec['uid']), safe='')}"
        status, existing = self._call("read the data source", "GET", path, fine=(404,))
        if status == 404:
            self._done("make the data source", "POST", "/api/datasources", spec)
        elif existing.get("readOnly"):
            return False
        else:
            self._done("update the data source", "PUT", path, spec)
        return True

    def data_source_answer(self, uid: str) -> str:
        """The error of Grafana's own health check of the data source; empty if it works."""
        path = f"/api/datasources/uid/{quote(uid, safe='')}/health"
        status, reply = self._call("check the data source", "GET", path, fine=(400, 404, 500, 501))
        return "" if status == 200 else str(reply.get("message") or f"status {status}")

    def dashboard(self, model: Model, folder_uid: str, message: str) -> str:
        """Store a dashboard, replacing an existing one; return the path of its page."""
        body = {"dashboard": model, "folderUid": folder_uid, "overwrite": True, "message": message}
        return str(
            self._done(
                f"store the dashboard {model['uid']}", "POST", "/api/dashboards/db", body
            ).get("url", "")
        )

    def annotate(self, note: Annotation) -> int:
        """Store an annotation; return its id."""
        body = {
            "time": note.time_ms,
            "timeEnd": note.end_ms if note.end_ms is not None else note.time_ms,
            "tags": list(note.tags),
            "text": note.text,
        }
        number = self._done("store the annotation", "POST", "/api/annotations", body).get("id")
        if not isinstance(number, int):
            raise Garbled(f"{self.url}: wanted the annotation's id, got none")
        return number

    def _done(
        self, what: str, method: str, path: str, body: Model | None = None
    ) -> Mapping[str, Json]:
        return self._call(what, method, path, body)[1]

    def _call(
        self,
        what: str,
        method: str,
        path: str,
        body: Model | None = None,
        *,
        fine: Sequence[int] = (),
    ) -> tuple[int, Mapping[str, Json]]:
        """One request through the library: the status of the response, 2xx or one of `fine`, and
        its object.
        """
        import httpx

        with extra("grafana", "Grafana"):
            from grafana_api.api import Api
            from grafana_api.model import APIModel, RequestsMethods

        host = APIModel(
            host=self.url,
            token=self._token,
            timeout=self._timeout_s,
            retries=0,
            num_pools=1,
            follow_redirects=False,
        )
        content = None if body is None else json.dumps(body)
        try:
            with _quiet():
                reply = Api(host).call_the_api(
                    path, RequestsMethods[method], content, response_status_code=True
                )
        except httpx.ConnectError as error:
            if "API key" in str(error):  # so the library reports a token Grafana does not know
                raise self._refused(what, 401, str(error)) from None
            raise self._silent(what, error) from None
        except httpx.HTTPError as error:
            raise self._silent(what, error) from None
        # the library writes the status into lists, and measures what has no length
        except (IndexError, AttributeError, TypeError):
            reply = None
        if not isinstance(reply, dict) or not isinstance(reply.get("status"), int):
            raise Garbled(
                f"{self.url}: wanted to {what}, got a reply that is not Grafana's",
                hint="is this the URL of Grafana itself?",
            )
        status = int(reply["status"])
        if status in fine:
            return status, reply
        if not 200 <= status < 300:
            raise self._refused(what, status, str(reply.get("message") or reply.get("data") or ""))
        # the form in which the library returns a body that is not JSON
        if "data" in reply and len(reply) == 2:
            raise Garbled(
                f"{self.url}: wanted to {what}, got a page instead of JSON",
                hint="is this the URL of Grafana itself?",
            )
        return status, reply

    def _refused(self, what: str, status: int, message: str) -> Refused:
        text = " ".join(message.split())[:200]
        hints = {
            401: "make a token under Administration, Service accounts; pass it in TESTBED_GRAFANA_TOKEN",
            403: "the token's service account needs the role Editor, for the data source Admin",
            301: "give the URL Grafana itself has (https?)",
            302: "give the URL Grafana itself has (https?)",
        }
        hint = (
            "it came from files: change it there"
            if "provisioned" in text
            else hints.get(status, "")
        )
        return Refused(
            f"{self.url} refused to {what}: {status}{', ' + text if text else ''}", hint=hint
        )

    def _silent(self, what: str, error: Exception) -> Unreachable:
        reason = str(error) or type(error).__name__
        hint = "start Grafana, or correct --url (TESTBED_GRAFANA_URL); testbed telemetry grafana provision --out DIR needs none"
        return Unreachable(
            f"{self.url}: wanted to {what}, no answer ({reason}); waited {self._timeout_s:g} s at most",
            hint=hint,
        )


def _port(place: str) -> bool:
    """Whether the port of host:port, if there is one, can be one."""
    found = re.search(r":([^:\]]*)$", place)
    return found is None or (found[1].isdigit() and int(found[1]) < 65536)


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the library's log: our errors carry the same text."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
