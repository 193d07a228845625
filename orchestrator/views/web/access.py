"""Access control of the page's server: by `Host` header, by origin, and by the key needed to move
light.

A browser that reaches this server under a foreign name (DNS rebinding) is refused by its `Host`
header; a foreign page by the `Origin` and `Sec-Fetch-Site` headers that browsers send. No response
grants another origin any access.
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
"""Number of pages that may hold a key at a time; one more revokes the oldest."""


def is_loopback(address: str) -> bool:
    """Whether an address, or `localhost`, is one of this machine alone."""
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


class Names:
    """The names the server answers to: addresses, which cannot be rebound, `localhost`, and the
    name given to listen on.
    """

    def __init__(self, listen: str, port: int) -> None:
        self.listen, self.port = listen.lower(), port

    def allow(self, host: str) -> bool:
        """Whether a `Host` header names this server."""
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


class Listeners:
    """ASGI middleware: refuses requests that do not come from this server's own page, and sets the
    matching headers.
    """

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
            report = (
                PlainTextResponse(f"{why}\n", 403)
                if scope["method"] in ("GET", "HEAD")
                else JSONResponse({"message": why}, 403)
            )
            await report(scope, receive, with_headers)
            return
        await self.app(scope, receive, with_headers)

    def _refusal(self, scope: Scope) -> str:
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self.names.allow(hosts[0]):
            return f"this is not {hosts[0] if hosts else 'named'}: open the address that it printed, or start it with --listen NAME"
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
        if origin is not None and origin != f"http://{hosts[0]}":
            return f"a page of {origin} may not access this server"
        if site not in ("none", "same-origin") and headers.get("sec-fetch-mode") != "navigate":
            return "another page may not access this server"
        if scope["method"] not in ("GET", "HEAD"):
            if origin is None:
                return "only the page of this server may change anything"
            if not is_loopback((scope.get("client") or ("",))[0]):
                return "light is moved from this machine only: open the page on it"
        return ""


class Keys:
    """The one-time key in the printed address, and the tokens issued for it. on_new_key: receives
    each new key.
    """

    def __init__(self, on_new_key: Callable[[str], None] = lambda key: None) -> None:
        self.once = secrets.token_urlsafe(32)
        self._on_new_key = on_new_key
        self._held: deque[bytes] = deque(maxlen=SESSIONS)

    def enter(self, key: str) -> str | None:
        """Redeem the one-time key; return the page's token, None if the key is wrong."""
        if not hmac.compare_digest(key.encode("utf-8", "replace"), self.once.encode()):
            return None
        token = secrets.token_urlsafe(32)
        self._held.append(token.encode())
        self.once = secrets.token_urlsafe(32)
        self._on_new_key(self.once)
        return token

    def holds(self, token: str) -> bool:
        """Whether this token was issued to a page; compared in constant time."""
        given = token.encode("utf-8", "replace")
        return sum(hmac.compare_digest(given, held) for held in self._held) > 0
