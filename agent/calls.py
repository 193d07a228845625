"""Requests to the daemon from a process on the same host."""

import errno
import json
import socket

from agent.basics import SOCKET


def call(requests, timeout=60.0):
    """Send requests one after the other to the daemon and return its replies."""
    s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    s.settimeout(timeout)
    try:
        s.connect(SOCKET)
        inbox, replies = b"", []
        for n, request in enumerate(requests):
            s.sendall(json.dumps(dict(request, id=n)).encode() + b"\n")
            while b"\n" not in inbox:
                data = s.recv(1 << 18)
                if not data:
                    raise OSError(errno.ECONNRESET, "the committer closed the connection")
                inbox += data
            line, inbox = inbox.split(b"\n", 1)
            replies.append(json.loads(line))
        return replies
    finally:
        s.close()


def alive():
    try:
        return call([{"op": "hello"}], 5.0)[0]
    except (OSError, ValueError):
        return None
