"""Listening sockets that do not keep a client waiting."""

from __future__ import annotations

import socket
from contextlib import suppress

TCP_DELACK_MAX_US = 46  # linux/tcp.h, since 6.16; Python does not name it
TWO_TICKS_US = 8000  # at 250 Hz: the kernel takes no less


def listen(port: int, address: str = "127.0.0.1") -> socket.socket:
    """Listen in the network namespace this thread is in. Raises: OSError."""
    listener = socket.create_server((address, port), backlog=128)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with suppress(OSError):  # an older kernel: a cold SSH connection waits 40 ms for a delayed ACK
        listener.setsockopt(socket.IPPROTO_TCP, TCP_DELACK_MAX_US, TWO_TICKS_US)
    return listener
