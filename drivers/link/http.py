"""HTTP and HTTPS: one request, one answer, each on its own connection."""

from __future__ import annotations

import asyncio
import socket
import ssl
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from drivers.link.base import Dropped, farthest_s, reset_at_the_end
from drivers.link.recorder import pass_on
from optics import BadFile, Garbled, TimedOut, Unreachable

if TYPE_CHECKING:
    import httpx

LONGEST_BODY = 1 << 24
"""Bytes after which an answer is rejected; the longest real one here, a whole WSP profile, has 0.25
MB.
"""


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP answer, whole; the names of `headers` are in lower case."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


class HttpLink:
    """Questions to the device `who` at `address` (`http://host:port`, `https://host:port/prefix`).

    A new connection for every question: HTTP/1.1 answers carry no tag, so one that comes late or
    twice must not meet the next question. Cookies are kept until `close`. Redirects are answers,
    not followed; proxies and `.netrc` of the environment are not used. Answers are asked for
    uncompressed; one that is compressed all the same is expanded up to LONGEST_BODY. ca_file:
    certificates to trust instead of the system's. ca_option: what errors call it.
    """

    def __init__(
        self,
        who: str,
        address: str,
        timeout_s: float,
        *,
        username: str = "",
        password: str = "",
        ca_file: str = "",
        ca_option: str = "the option ca_file",
    ) -> None:
        self.who = who
        self.timeout_s = timeout_s
        self.username = username
        self._password = password
        self._ca_file, self._ca_option = ca_file, ca_option
        self._client: httpx.AsyncClient | None = None
        self._lock = asyncio.Lock()
        try:
            parts = urlsplit(address)
            port = parts.port
        except ValueError as error:
            raise BadFile([f"{who}: address {address!r}: {error}"]) from None
        if (
            parts.scheme not in ("http", "https")
            or not parts.hostname
            or parts.query
            or parts.fragment
            or "@" in parts.netloc
        ):
            raise BadFile(
                [
                    f"{who}: address {address!r}: known forms: http://host:port, https://host:port/prefix"
                ]
            )
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        self.address = f"{parts.scheme}://{host}" + (f":{port}" if port else "")
        self.prefix = parts.path.rstrip("/")

    async def exchange(
        self,
        method: str,
        path: str,
        *,
        question: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Answer:
        """Ask for `path` (below the address's prefix) and return the whole answer, whatever its
        status.

        `question` names it in errors (no secrets). `timeout_s` is the longest silence (s). Raises:
        Unreachable - no connection; nothing was sent. Dropped - it ended before the answer.
        TimedOut - silence. Garbled - not HTTP, cut short, longer than LONGEST_BODY, or compressed
        by an unknown method.
        """
        import httpx

        silence_s = self.timeout_s if timeout_s is None else timeout_s
        received = bytearray()
        where = f'"{question}" from {self.address}'
        async with self._lock:
            client = self._open()
            times = httpx.Timeout(silence_s, connect=self.timeout_s)
            loop = asyncio.get_running_loop()
            began = loop.time()
            sockets: list[socket.socket] = []

            async def connected(event: str, what: Mapping[str, Any]) -> None:
                if event == "connection.connect_tcp.complete":
                    sockets.append(what["return_value"].get_extra_info("socket"))
                    reset_at_the_end(sockets[-1], True)

            more: dict[str, Any] = {
                "headers": headers,
                "timeout": times,
                "extensions": {"trace": connected},
            }
            try:
                async with asyncio.timeout(self.timeout_s + farthest_s(silence_s)):
                    url = f"{self.address}{self.prefix}{path}"
                    pass_on(
                        self.who, ">", _head(f"{method} {self.prefix}{path}", headers or {}) + body
                    )
                    async with client.stream(method, url, content=body or None, **more) as response:
                        for sock in sockets:  # the device has read the request
                            reset_at_the_end(sock, False)
                        expand = _expander(response.headers.get("content-encoding", ""))
                        async for chunk in response.aiter_raw():
                            received += (
                                expand.decompress(chunk, LONGEST_BODY + 1 - len(received))
                                if expand
                                else chunk
                            )
                            if len(received) > LONGEST_BODY:
                                raise Garbled(
                                    f"{self.who}: the answer to {where} has more than {LONGEST_BODY} bytes"
                                )
                        if expand and not expand.eof:
                            raise Garbled(
                                f"{self.who}: the answer to {where} is compressed and cut short: {_quote(received)}"
                            )
                        fields = {k.lower(): v for k, v in response.headers.items()}
                        pass_on(
                            self.who,
                            "<",
                            _head(f"HTTP/1.1 {response.status_code}", fields) + bytes(received),
                        )
                        return Answer(response.status_code, bytes(received), fields)
            except httpx.ConnectTimeout:
                raise Unreachable(
                    f"{self.who}: no connection to {self.address} in {loop.time() - began:.1f} s"
                ) from None
            except httpx.ConnectError as error:
                raise self._unreachable(error) from error
            except httpx.RemoteProtocolError as error:
                if "without sending a response" in str(error):
                    raise Dropped(
                        f"{self.who}: connection ended before the answer to {where}"
                    ) from error
                raise Garbled(
                    f"{self.who}: the answer to {where} is not HTTP or cut short ({error}): {_quote(received)}"
                ) from error
            except (zlib.error, _UnknownCoding) as error:
                raise Garbled(
                    f"{self.who}: the answer to {where} cannot be decoded: {error}"
                ) from error
            except httpx.NetworkError as error:
                raise Dropped(
                    f"{self.who}: connection to {self.address} broke at {where}: {error}"
                ) from error
            except (httpx.TimeoutException, TimeoutError) as error:
                last = f"; last received {_quote(received)}" if received else ""
                took_s = loop.time() - began
                raise TimedOut(
                    f"{self.who}: no answer to {where} in {took_s:.1f} s{last}"
                ) from error
            except httpx.HTTPError as error:
                raise Dropped(f"{self.who}: {where}: {error}") from error

    def forget(self) -> None:
        """Forget the cookies: a session that the device no longer knows."""
        if self._client is not None:
            self._client.cookies.clear()

    @property
    def remembered(self) -> bool:
        """Whether there are cookies to forget."""
        return self._client is not None and bool(self._client.cookies)

    async def close(self) -> None:
        """Forget everything; safe to call twice and on a link that never asked."""
        async with self._lock:
            client, self._client = self._client, None
            if client is not None:
                await client.aclose()

    def _open(self) -> httpx.AsyncClient:
        if self._client is None:
            import httpx

            self._client = httpx.AsyncClient(
                auth=httpx.BasicAuth(self.username, self._password) if self.username else None,
                headers={
                    "Accept-Encoding": "identity",
                    "Connection": "close",
                    "User-Agent": "optical-testbed",
                },
                verify=self._trust() if self.address.startswith("https:") else False,
                follow_redirects=False,
                trust_env=False,
                limits=httpx.Limits(max_keepalive_connections=0),
            )
        return self._client

    def _trust(self) -> ssl.SSLContext:
        try:
            return ssl.create_default_context(
                cafile=str(Path(self._ca_file).expanduser()) if self._ca_file else None
            )
        except (OSError, ValueError) as error:
            raise Unreachable(
                f"{self.who}: cannot read certificates from {self._ca_file!r}: {error}",
                hint=f"{self._ca_option}: a PEM file",
            ) from error

    def _unreachable(self, error: Exception) -> Unreachable:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, ssl.SSLError):
                hint = f"put the device's certificate, or that of its CA, into a PEM file and name it in {self._ca_option}"
                why = getattr(cause, "verify_message", "") or cause.reason or str(cause)
                return Unreachable(f"{self.who}: {self.address} is not trusted: {why}", hint=hint)
            if isinstance(cause, ConnectionRefusedError):
                return Unreachable(
                    f"{self.who}: cannot connect to {self.address}: Connection refused"
                )
            cause = cause.__cause__ or cause.__context__
        return Unreachable(f"{self.who}: cannot connect to {self.address}: {error}")


class _UnknownCoding(Exception):
    """An answer compressed by an unknown method."""


def _expander(coding: str) -> zlib._Decompress | None:
    """What expands a body of this Content-Encoding, bounded by its caller; None where there is
    nothing to expand.

    httpx's own decoders have no bound: 1 MB of gzip becomes hundreds of megabytes at once.
    """
    match coding.strip().lower():
        case "" | "identity":
            return None
        case "gzip" | "x-gzip" | "deflate":
            return zlib.decompressobj(zlib.MAX_WBITS + 32)  # reads both headers
    raise _UnknownCoding(f"it is in {coding[:40]!r}, though identity was asked for")


_SHOWN = ("content-type", "etag", "if-match")


def _head(first: str, headers: Mapping[str, str]) -> bytes:
    """The start of a message as a transcript keeps it: the first line, the headers that mean
    something, an empty line.
    """
    kept = [f"{name}: {value}" for name, value in headers.items() if name.lower() in _SHOWN]
    return "\n".join([first, *kept, "", ""]).encode("utf-8", "replace")


def _quote(body: bytes | bytearray) -> str:
    return repr(bytes(body[:120]).decode("utf-8", "backslashreplace"))
