"""A connection over loopback that uses one congestion control, for looks at its window."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def joined(control: str, buffer_bytes: int) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connection with this congestion control, in segments of 500 bytes, and its far end.
    buffer_bytes: of either side.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        near = socket.socket()
        near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 500)
        near.connect(listener.getsockname())
        far = listener.accept()[0]
    near.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control.encode())
    with near, far:
        yield near, far
