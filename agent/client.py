"""Peers of the daemon: lines in, lines out."""

from __future__ import annotations

import array
import json
import os
import select
import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from agent.gpus import Gpus
    from agent.samples import Series
    from agent.shapes import Daemon, Json

    class Served(Daemon, Protocol):
        """A daemon that serves clients."""

        clients: set[Client]

        def handle(self, client: Client, line: bytes) -> None: ...


LINE_LIMIT = 1 << 20
BACKLOG_LIMIT = 8 << 20


class Lines:
    """JSON lines in and out through two descriptors. Never blocks; a peer that exceeds a limit (bytes) is cut off."""

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


class Client(Lines):
    """One peer that sends requests: an operator's channel, or a process of this host on the Unix socket."""

    server: Served

    def __init__(self, server: Served, rfd: int, wfd: int, hold: socket.socket | None = None) -> None:
        self.hold = hold
        self.watching = self.links = False
        self.counting: Series | None = None
        self.gpus: Gpus | None = None
        self.files: list[int] = []
        super().__init__(server, rfd, wfd)
        if hold is not None:
            server.register(hold.fileno(), lambda _: self.close())

    def take(self, line: bytes) -> None:
        if line.strip():
            self.server.handle(self, line)

    def read(self) -> bytes:
        """The first line on the Unix socket may carry the descriptors of an attaching process."""
        if self.hold is not None or self.inbox:
            return super().read()
        s = socket.socket(fileno=os.dup(self.rfd))
        try:
            data, ancillary, _, _ = s.recvmsg(1 << 16, socket.CMSG_SPACE(8))
        finally:
            s.close()
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds = array.array("i")
                fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
                self.files += fds
        return data

    def overlong(self) -> None:
        self.send({"id": None, "ok": False, "code": "bad-request", "error": f"a line is longer than {LINE_LIMIT} bytes"})
        self.close()

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        if self.gpus is not None:
            self.gpus.stop()
        if self.counting is not None:
            self.counting.end()
        for fd in self.files:
            os.close(fd)
        if self.hold is not None:
            self.server.unregister(self.hold.fileno())
            self.hold.close()
        self.server.clients.discard(self)
