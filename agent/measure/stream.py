"""A TCP connection between two hosts along the routes in use, and the gaps in what arrives: how
long traffic paused.
"""

from __future__ import annotations

import contextlib
import hmac
import socket
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agent.shapes import Json

GAP_NS = 2_000_000
"""Shorter gaps between two arrivals are not reported."""
GAPS = 64
"""The longest ones, at most so many."""
PIECE = b"\0" * 65536
GREETING_S = 1.0
"""A connection that has not begun with the stream's token by then is closed, and another is waited
for.
"""


def greeted(link: socket.socket, token: bytes, end: float) -> bool:
    """Whether the connection begins with the token; the data fabric is not trusted, so anyone may
    have connected.
    """
    received = b""
    until = min(end, time.monotonic() + GREETING_S)
    while len(received) < len(token):
        link.settimeout(max(until - time.monotonic(), 0.001))
        try:
            piece = link.recv(len(token) - len(received))
        except OSError:
            return False
        if not piece:
            return False
        received += piece
    return hmac.compare_digest(received, token)


def accept(s: socket.socket, token: bytes, end: float) -> Json:
    """Receive over one connection that begins with `token` until its sender closes it, or `end`
    (monotonic s).

    gaps: begin and end (monotonic ns) of the longest times without data. open: whether data was
    still missing at the end.
    """
    total = 0
    gaps: list[tuple[int, int]] = []
    missing = True
    with contextlib.suppress(OSError):
        while True:
            s.settimeout(max(end - time.monotonic(), 0.001))
            link, _ = s.accept()
            if greeted(link, token, end):
                break
            link.close()
        last = time.monotonic_ns()
        with link:
            while True:
                link.settimeout(max(end - time.monotonic(), 0.001))
                try:
                    data = link.recv(1 << 18)
                except OSError:
                    gaps.append((last, time.monotonic_ns()))
                    break
                now = time.monotonic_ns()
                if now - last > GAP_NS:
                    gaps.append((last, now))
                last = now
                total += len(data)
                if not data:
                    missing = False
                    break
    return {
        "bytes": total,
        "gaps": sorted(sorted(gaps, key=lambda gap: gap[0] - gap[1])[:GAPS]),
        "open": missing,
    }


def pour(s: socket.socket, token: bytes, peer: str, port: int, end: float) -> Json:
    """Connect, and send the token and then as fast as it goes until `end` (monotonic s)."""
    total = 0
    error = ""
    try:
        s.settimeout(max(end - time.monotonic(), 0.001))
        s.connect((peer, port))
        s.sendall(token)
        while time.monotonic() < end:
            s.settimeout(max(end - time.monotonic(), 0.001))
            total += s.send(PIECE)
    except OSError as e:
        error = str(e.strerror or e)
    return {"bytes": total, "error": error}
