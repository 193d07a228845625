"""Access control of the page's server: by `Host` header, by origin, and by the key needed to move light.

A browser that was led here under a foreign name (DNS rebinding) is refused by the name in its `Host` line; a foreign page by the
`Origin` and `Sec-Fetch-Site` lines that browsers send. No answer allows another origin anything.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from collections import deque
from collections.abc import Callable
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
SESSIONS = 16
"""So many pages may hold a key at a time; one more, and the oldest loses its."""


def is_loopback(address: str) -> bool:
    """Whether an address, or `localhost`, is one of this machine alone."""
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


class Names:
    """The names the server answers to: addresses, which nobody can rebind, `localhost`, and the one it was told to listen on."""

    def __init__(self, listen: str, port: int) -> None:
        self.listen, self.port = listen.lower(), port

    def allow(self, host: str) -> bool:
        """Whether a `Host` line names this server."""
        try:
            parts = urlsplit(f"//{host}")
            name, port = parts.hostname or "", parts.port or 80
        except ValueError:
            return False
        if port != self.port or parts.username is not None or parts.path:
            return False
        if is_loopback(name) or name == self.listen:
            return True
        if is_loopback(self.listen):
            return False
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


class Doors:
    """ASGI middleware: refuses what does not come from this server's own page, and says so to browsers in headers."""

    def __init__(self, app: ASGIApp, names: Names) -> None:
        self.app, self.names = app, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        if why := self._refusal(scope):
            said = PlainTextResponse(f"{why}\n", 403) if scope["method"] in ("GET", "HEAD") else JSONResponse({"words": why}, 403)
            await said(scope, receive, with_headers)
            return
        await self.app(scope, receive, with_headers)

    def _refusal(self, scope: Scope) -> str:
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self.names.allow(hosts[0]):
            return f"this is not {hosts[0] if hosts else 'named'}: open the address that testbed ui printed"
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
        if origin is not None and origin != f"http://{hosts[0]}":
            return f"a page of {origin} may not ask this server"
        if site not in ("none", "same-origin") and headers.get("sec-fetch-mode") != "navigate":
            return "another page may not ask this server"
        if scope["method"] not in ("GET", "HEAD"):
            if origin is None:
                return "only the page of this server may change anything"
            if not is_loopback((scope.get("client") or ("",))[0]):
                return "light is moved from this machine only: open the page on it"
        return ""


class Keys:
    """The one-time key in the printed address, and what pages got for it. told: hears the next key when one was used."""

    def __init__(self, told: Callable[[str], None] = lambda key: None) -> None:
        self.once = secrets.token_urlsafe(32)
        self._told = told
        self._held: deque[bytes] = deque(maxlen=SESSIONS)

    def enter(self, key: str) -> str | None:
        """Take the one-time key; return what the page shows from then on, None if it is not the key."""
        if not hmac.compare_digest(key.encode("utf-8", "replace"), self.once.encode()):
            return None
        token = secrets.token_urlsafe(32)
        self._held.append(token.encode())
        self.once = secrets.token_urlsafe(32)
        self._told(self.once)
        return token

    def holds(self, token: str) -> bool:
        """Whether a page got this; takes as long for a token that is nearly right as for any other."""
        given = token.encode("utf-8", "replace")
        return sum(hmac.compare_digest(given, held) for held in self._held) > 0
