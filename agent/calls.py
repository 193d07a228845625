"""Requests to the daemon from a process on the same host."""

from __future__ import annotations

import errno
import json
import socket

from agent.basics import SOCKET

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agent.shapes import Json


def call(requests: list[Json], timeout: float = 60.0) -> list[Json]:
    """Send requests one after the other to the daemon and return its replies."""
    replies: list[Json] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s, s.makefile("rb") as lines:
        s.settimeout(timeout)
        s.connect(SOCKET)
        for n, request in enumerate(requests):
            s.sendall(json.dumps(dict(request, id=n)).encode() + b"\n")
            line = lines.readline()
            if not line.endswith(b"\n"):
                raise OSError(errno.ECONNRESET, "the agent closed the connection")
            replies.append(json.loads(line))
    return replies


def alive() -> Json | None:
    """What the daemon of this host says of itself; None where none answers."""
    try:
        return call([{"op": "hello"}], 5.0)[0]
    except (OSError, ValueError):
        return None
