"""One peer of the daemon: lines in, lines out."""

from __future__ import annotations

import array
import json
import os
import select
import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agent.daemon import Server
    from agent.gpus import Gpus
    from agent.samples import Series
    from agent.shapes import Json

LINE_LIMIT = 1 << 20
BACKLOG_LIMIT = 8 << 20


class Client:
    """One peer: lines in, lines out, through one or two descriptors."""

    def __init__(self, server: Server, rfd: int, wfd: int, hold: socket.socket | None = None) -> None:
        self.server, self.rfd, self.wfd, self.hold = server, rfd, wfd, hold
        self.inbox, self.outbox = b"", b""
        self.watching = self.links = self.closed = self.blocked = False
        self.counting: Series | None = None
        self.gpus: Gpus | None = None
        self.files: list[int] = []
        for fd in (rfd, wfd):
            os.set_blocking(fd, False)
        server.register(rfd, self.readable)
        if hold is not None:
            server.register(hold.fileno(), lambda _: self.close())

    def readable(self, _: int) -> None:
        try:
            data = self.first_read() if self.hold is None and not self.inbox else os.read(self.rfd, 1 << 18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        *lines, self.inbox = (self.inbox + data).split(b"\n")
        for line in lines:
            if len(line) > LINE_LIMIT:
                self.overlong()
                return
            if line.strip() and not self.closed:
                self.server.handle(self, line)
        if len(self.inbox) > LINE_LIMIT:
            self.overlong()

    def first_read(self) -> bytes:
        """A line on the Unix socket may carry the descriptors of an attaching process."""
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

    def send(self, message: Json) -> None:
        if self.closed:
            return
        self.outbox += json.dumps(message, separators=(",", ":")).encode() + b"\n"
        if len(self.outbox) > BACKLOG_LIMIT:
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
        if self.gpus is not None:
            self.gpus.stop()
        if self.counting is not None:
            self.counting.end()
        if self.blocked:
            self.server.unregister(self.wfd)
        if self.hold is not None:
            self.server.unregister(self.hold.fileno())
        self.server.unregister(self.rfd)
        for fd in {self.rfd, self.wfd, *self.files}:
            os.close(fd)
        if self.hold is not None:
            self.hold.close()
        self.server.clients.discard(self)
