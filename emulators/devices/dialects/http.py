"""HTTP/1.1 as devices serve it (RFC 9110, 9112): requests in, responses out; the family defines
their meaning.

Parsing is h11's, a fresh parser for every request; a response is written here. Whatever is no
request gets 400, or what fits better, and the connection ends, as RFC 9112 asks (2.2, 3, 6.3).
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TypeVar
from urllib.parse import parse_qsl, unquote

import h11

from emulators.devices.dialects.base import Dialect, Outgoing, Session
from emulators.optics.plant import Plant

State = TypeVar("State")
MAX_HEAD = 16_384  # bytes of request line and headers
MAX_BODY = 1_048_576  # bytes; more is 413
MAX_WAITING = 8  # requests sent ahead on one connection; more than that and it ends
_BROKEN = "!"  # begins what `split` makes of something that is no request; no method begins so


@dataclass(frozen=True, slots=True)
class Request:
    """One request. Header names are lower case; `path` is decoded, `query` in the order given."""

    method: str
    path: str
    query: Sequence[tuple[str, str]]
    headers: Mapping[str, str]
    body: bytes
    last: bool = False

    def asked(self, name: str, default: str = "") -> str:
        """Return the first value of a query parameter."""
        return next((value for key, value in self.query if key == name), default)

    def json(self) -> object:
        """Return the body. Raises ValueError."""
        try:
            return json.loads(self.body)
        except RecursionError:
            raise ValueError("nested too deeply") from None


@dataclass(frozen=True, slots=True)
class Response:
    """One response; `headers` in addition to length, type and what ends the connection."""

    status: int
    body: bytes = b""
    kind: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_json(
        cls, value: object, status: int = 200, kind: str = "application/json", **headers: str
    ) -> Response:
        return cls(status, json.dumps(value).encode(), kind, headers)


class _Parser:
    """The requests of one connection. closes: the first is the last. `dead`: nothing more is read
    from it.
    """

    def __init__(self, closes: bool) -> None:
        self._closes = closes
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)
        self._request: h11.Request | None = None
        self._body = bytearray()
        self.dead = False
        self.continues = False  # the client waits for 100 Continue

    def feed(self, data: bytes) -> list[str]:
        """Return the commands that `data` completes."""
        commands: list[str] = []
        self.continues = False
        try:
            self._h11.receive_data(data)
            while not self.dead and len(commands) <= MAX_WAITING:
                event = self._h11.next_event()
                if event is h11.NEED_DATA:
                    self.continues = self._h11.they_are_waiting_for_100_continue
                    break
                if isinstance(event, h11.Request):
                    self._request = event
                elif isinstance(event, h11.Data):
                    self._body += event.data
                    if len(self._body) > MAX_BODY:
                        self.dead = True
                        commands.append(f"{_BROKEN}413")
                elif isinstance(event, h11.EndOfMessage):
                    commands.append(command := self._command())
                    rest, _ = self._h11.trailing_data
                    request = parse(command)
                    self.__init__(self._closes)  # type: ignore[misc]
                    self.dead = self._closes or request is None or request.last
                    if rest and not self.dead:
                        self._h11.receive_data(rest)
                else:
                    break
        except h11.RemoteProtocolError as problem:
            self.dead = True
            commands.append(f"{_BROKEN}{problem.error_status_hint}")
        return commands

    def _command(self) -> str:
        """One text for faults to match: method and target, then body, then headers."""
        request = self._request
        assert request is not None
        version = request.http_version.decode("latin-1")
        lines = [f"{k.decode('latin-1')}: {v.decode('latin-1')}" for k, v in request.headers]
        target = request.target.decode("latin-1")
        head = f"{request.method.decode('latin-1')} {target} HTTP/{version}"
        return "\n".join((head, self._body.decode("latin-1"), "\0", *lines))


class HttpDialect(Dialect[State]):
    """A device with an HTTP server. A family implements `answer`.

    username None: no login is required. `closes`: the connection ends with every response.
    `chunks`: bodies are chunked.
    """

    longest = MAX_HEAD + MAX_BODY
    realm = "device"
    server: str | None = None
    closes = chunks = False

    def __init__(
        self,
        plant: Plant,
        *,
        username: str | None = None,
        password: str | None = None,
        seed: int = 0,
        idle_s: float | None = None,
        boot_s: float = 1.0,
    ) -> None:
        super().__init__(plant, seed=seed, idle_s=idle_s, boot_s=boot_s)
        self.username, self.password = username, password
        self._parsers: dict[Session, _Parser] = {}
        self._ending: set[Session] = set()

    # ---- defined by a family

    @abstractmethod
    def answer(self, request: Request, now: float) -> Response:
        """Do `request` and return the response."""

    def denied(self, request: Request, now: float) -> Response:
        """Return the refusal of a request that the device would otherwise carry out."""
        return Response(503, b"Service Unavailable\n", "text/plain")

    def error(self, status: int, request: Request | None = None) -> Response:
        """Return an answer about the request itself: 400, 401, 404, 405, 413, ..."""
        return Response(status, f"{_phrase(status)}\n".encode(), "text/plain")

    def who(self, request: Request, now: float) -> str | None:
        """Return the user, None: not let in. Basic authentication (RFC 7617) by default."""
        if self.username is None:
            return ""
        scheme, _, word = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "basic":
            return None
        try:
            name, _, secret = base64.b64decode(word.strip(), validate=True).partition(b":")
        except (binascii.Error, ValueError):
            return None
        wanted = self.username.encode(), (self.password or "").encode()
        return (
            self.username
            if hmac.compare_digest(name, wanted[0]) and hmac.compare_digest(secret, wanted[1])
            else None
        )

    def dress(self, request: Request, response: Response, now: float) -> Response:
        """Last change to a response to an authorised client."""
        return response

    # ---- the protocol

    def close(self, session: Session) -> None:
        super().close(session)
        self._parsers.pop(session, None)
        self._ending.discard(session)

    def split(self, session: Session) -> list[str]:
        parser = self._parser(session)
        data, session.buffer = session.buffer, b""
        if parser.dead or not data:
            return []
        commands = parser.feed(data)
        if parser.continues:
            self.send(session, session.last_s, b"HTTP/1.1 100 Continue\r\n\r\n")
        if len(session.queue) + len(commands) > MAX_WAITING:
            parser.dead = True
            return [*commands[: MAX_WAITING - len(session.queue)], f"{_BROKEN}503"]
        return commands

    def execute(self, session: Session, command: str, now: float) -> bytes:
        return self._reply(session, command, now, refused=False)

    def refuse(self, session: Session, command: str, now: float) -> bytes:
        return self._reply(session, command, now, refused=True)

    def not_logged_in(self, session: Session, command: str, now: float) -> bytes:
        request = parse(command)
        return self._written(
            session, request, self._unknown(request) if request else self.error(400)
        )

    def unsolicited(self, now: float) -> bytes:
        """The unsolicited message that servers do send: that they waited too long for a request
        (RFC 9110 15.5.9).
        """
        return b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"

    def drain(self) -> list[Outgoing]:
        """End the connections whose last response has been sent."""
        out = super().drain()
        for session in tuple(self._ending):
            times = [at for whose, at, data in out if whose is session and data]
            if times and not session.held:
                out.append((session, max(times), None))
                self._ending.discard(session)
        return out

    # ---- inside

    def _reply(self, session: Session, command: str, now: float, *, refused: bool) -> bytes:
        if not command:
            return b""
        request = parse(command)
        if request is None:
            return self._written(
                session, None, self.error(int(command[1:]) if command[1:].isdecimal() else 400)
            )
        user = self.who(request, now)
        if user is None:
            return self._written(session, request, self._unknown(request))
        session.user = user
        response = self.denied(request, now) if refused else self.answer(request, now)
        return self._written(session, request, self.dress(request, response, now))

    def _parser(self, session: Session) -> _Parser:
        return self._parsers.setdefault(session, _Parser(self.closes))

    def _unknown(self, request: Request | None) -> Response:
        error = self.error(401, request)
        return Response(
            401,
            error.body,
            error.kind,
            {"www-authenticate": f'Basic realm="{self.realm}"', **error.headers},
        )

    def _written(self, session: Session, request: Request | None, response: Response) -> bytes:
        last = request is None or request.last or self.closes
        bare = response.status in (204, 304) or response.status < 200
        lines = [f"HTTP/1.1 {response.status} {_phrase(response.status)}"]
        if self.server is not None:
            lines.append(f"server: {self.server}")
        lines += [f"{name}: {value}" for name, value in response.headers.items()]
        body = b"" if bare else response.body
        if body and response.kind:
            lines.append(f"content-type: {response.kind}")
        chunked = self.chunks and bool(body)
        if chunked:
            lines.append("transfer-encoding: chunked")
        elif not bare:
            lines.append(f"content-length: {len(body)}")
        if last:
            lines.append("connection: close")
            self._ending.add(session)
            self._parser(session).dead = True
        if request is not None and request.method == "HEAD":
            body = b""
        elif chunked:
            body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        return "\r\n".join((*lines, "", "")).encode("latin-1", "replace") + body


def parse(command: str) -> Request | None:
    """Take apart what `split` made of a request; None: it was none."""
    if not command or command.startswith(_BROKEN):
        return None
    first, _, rest = command.partition("\n")
    body, _, head = rest.rpartition("\n\0")
    method, _, target = first.rpartition(" ")[0].partition(" ")
    path, _, query = target.partition("?")
    headers: dict[str, str] = {}
    for line in head.split("\n"):
        name, _, value = line.partition(": ")
        headers.setdefault(name.lower(), value)
    tokens = [word.strip().lower() for word in headers.get("connection", "").split(",")]
    last = "close" in tokens or (first.endswith("HTTP/1.0") and "keep-alive" not in tokens)
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=100)
    except ValueError:
        pairs = []
    return Request(method, unquote(path), pairs, headers, body.encode("latin-1"), last)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"
