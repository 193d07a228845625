"""JSON lines through descriptors: what a peer of the daemon and a rank of a job have in common."""

from __future__ import annotations

import json
import os
import select

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agent.shapes import Daemon, Json


LINE_LIMIT = 1 << 20
BACKLOG_LIMIT = 8 << 20


class Lines:
    """JSON lines in and out through two descriptors. Never blocks; a peer that exceeds a limit
    (bytes) is cut off.
    """

    line_limit, backlog_limit = LINE_LIMIT, BACKLOG_LIMIT

    def __init__(self, server: Daemon, rfd: int, wfd: int) -> None:
        self.server, self.rfd, self.wfd = server, rfd, wfd
        self.inbox, self.outbox = b"", b""
        self.closed = self.blocked = False
        for fd in (rfd, wfd):
            os.set_blocking(fd, False)
        server.register(rfd, self.readable)

    def take(self, line: bytes) -> None:
        """Called with each line that comes in. A peer that may not send any is cut off."""
        self.close()

    def overlong(self) -> None:
        """Called when a line is longer than `line_limit`."""
        self.close()

    def read(self) -> bytes:
        return os.read(self.rfd, 1 << 18)

    def readable(self, _: int) -> None:
        try:
            data = self.read()
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        *lines, self.inbox = (self.inbox + data).split(b"\n")
        for line in lines:
            if len(line) > self.line_limit:
                self.overlong()
            if self.closed:
                return
            self.take(line)
        if len(self.inbox) > self.line_limit:
            self.overlong()

    def send(self, message: Json) -> None:
        if self.closed:
            return
        self.outbox += json.dumps(message, separators=(",", ":")).encode() + b"\n"
        if len(self.outbox) > self.backlog_limit:
            self.close()
        elif not self.blocked:
            self.flush(0)

    def flush(self, _: int) -> None:
        try:
            while self.outbox:
                self.outbox = self.outbox[os.write(self.wfd, self.outbox) :]
        except BlockingIOError:
            if not self.blocked:
                self.blocked = True
                self.server.register(self.wfd, self.flush, select.EPOLLOUT)
            return
        except OSError:
            self.close()
            return
        if self.blocked:
            self.blocked = False
            self.server.unregister(self.wfd)

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        if self.blocked:
            self.server.unregister(self.wfd)
        self.server.unregister(self.rfd)
        for fd in {self.rfd, self.wfd}:
            os.close(fd)
