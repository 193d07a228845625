"""Peers of the daemon that send requests."""

from __future__ import annotations

import array
import os
import socket

from agent.lines import LINE_LIMIT, Lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from agent.measure.gpus import Gpus
    from agent.measure.samples import Series
    from agent.shapes import Daemon

    class Served(Daemon, Protocol):
        """A daemon that serves clients."""

        clients: set[Client]

        def handle(self, client: Client, line: bytes) -> None: ...


class Client(Lines):
    """One peer that sends requests: an operator's channel, or a process of this host on the Unix
    socket.
    """

    server: Served

    def __init__(
        self, server: Served, rfd: int, wfd: int, hold: socket.socket | None = None
    ) -> None:
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
        self.send(
            {
                "id": None,
                "ok": False,
                "code": "bad-request",
                "error": f"a line is longer than {LINE_LIMIT} bytes",
            }
        )
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
