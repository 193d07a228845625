"""Sockets that the web page and the service `metrics` listen on."""

from __future__ import annotations

import errno
import socket

from optics.errors import Usage

LISTEN = "Address or host name to listen on."


def listener_on(verb: str, address: str, port: int) -> socket.socket:
    """A listening socket. Raises: Usage - the port is in use, or the address is not one of this
    machine.
    """
    try:
        family, kind, proto, _, where = socket.getaddrinfo(
            address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, proto)
    except OSError as error:
        raise Usage(
            f"--listen {address}: {error.strerror or error}",
            hint=f"testbed {verb} --listen 127.0.0.1",
        ) from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(64)
    except OSError as error:
        listener.close()
        text = f"cannot listen on {address}:{port}: {error.strerror or error}"
        if error.errno != errno.EADDRINUSE:
            raise Usage(text, hint=f"testbed {verb} --listen 127.0.0.1 --port 0") from None
        raise Usage(
            f"{text}; another one may be using it", hint=f"testbed {verb} --port 0"
        ) from None
    return listener


def url_of(listener: socket.socket, listen: str) -> tuple[str, int]:
    """The URL to open on this machine, and the port."""
    at, port = listener.getsockname()[:2]
    here = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(at, at)
    named = listen != "localhost" and any(c.isalpha() for c in listen) and ":" not in listen
    return f"http://{listen if named else f'[{here}]' if ':' in here else here}:{port}/", port
