"""The notification socket of a job: which of its peers it reaches, and until when, at every slot of
a schedule.

A line goes to each connection when it is made, when a slot begins and when its hold begins. Only
the newest matters, so a program that reads late is sent that one alone. What it sends may be one
thing: that an iteration ended.
"""

from __future__ import annotations

import json
import os
import socket
from collections import OrderedDict

from agent.basics import VAR
from agent.jobs.job_socket import GuardedSocket, clean, job_socket, socket_name
from agent.jobs.rank import Allowance
from agent.lines import Lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.shapes import Daemon, Json

FOLDER = VAR + "/slots"
LINE_LIMIT = 256  # bytes of a line that a program may send
LINES = (256, 64.0)  # lines at once, lines a second after that
UNREAD = 32 << 10  # bytes that the kernel keeps for a program that reads late


class Listener(Lines):
    """One program that is notified of slots."""

    line_limit = LINE_LIMIT

    def __init__(self, listener: SlotSocket, server: Daemon, fd: int) -> None:
        self.listener, self.newest = listener, b""
        self.boundary = -1  # the latest iteration that it said has ended
        self.allowance = Allowance(*LINES)
        with socket.socket(fileno=os.dup(fd)) as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNREAD)
        super().__init__(server, fd, os.dup(fd))

    def notify(self, line: bytes) -> None:
        """Send a line, or keep it until the one before it is read."""
        self.newest = line
        if not self.closed and not self.outbox:
            self.begin()

    def begin(self) -> None:
        self.outbox, self.newest = self.newest, b""
        self.flush(0)

    def flush(self, mask: int) -> None:
        super().flush(mask)
        if not self.closed and not self.outbox and self.newest:
            self.begin()

    def read(self) -> bytes:
        return os.read(self.rfd, 4096)

    def take(self, line: bytes) -> None:
        try:
            reply = json.loads(line) if self.allowance.take(1) else None
        except (ValueError, RecursionError):
            reply = None
        ended = reply.get("ended") if isinstance(reply, dict) else None
        if type(ended) is not int or not 0 <= ended <= 1 << 53:
            self.listener.cut_off = "a line that is none of this socket's"
            self.close()
        elif ended > self.boundary:
            self.boundary = ended
            self.listener.ended()

    def close(self) -> None:
        if not self.closed:
            super().close()
            self.listener.connections.discard(self)


class SlotSocket(GuardedSocket):
    """The notification socket of one running job. boundary: called when every connection that says
    so has ended an iteration.
    """

    def __init__(
        self,
        notices: Notices,
        name: str,
        pid: int,
        listener: socket.socket,
        uid: int,
        boundary: Callable[[int], None],
    ) -> None:
        self.notices, self.boundary, self.last = notices, boundary, -1
        super().__init__(notices.server, name, pid, listener, uid)

    def enter(self, fd: int) -> None:
        listener = Listener(self, self.server, fd)
        self.connections.add(listener)
        listener.notify(self.notices.line)

    def ended(self) -> None:
        lines = [c.boundary for c in self.connections if c.boundary >= 0]
        if min(lines) > self.last:
            self.last = min(lines)
            self.boundary(self.last)


class Notices:
    """The notification sockets of this host's running jobs, and the line that is current."""

    def __init__(self, server: Daemon, boundary: Callable[[str, int], None]) -> None:
        self.server, self.boundary = server, boundary
        self.listeners: OrderedDict[str, SlotSocket] = OrderedDict()
        self.emit({"slot": None})

    def emit(self, message: Json) -> None:
        self.line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        for server in self.listeners.values():
            for listener in list(server.connections):
                listener.notify(self.line)

    def path(self, name: str) -> str:
        return FOLDER + "/" + socket_name(name)

    def open(self, name: str, pid: int) -> None:
        """Listen for the processes of a job that runs as `pid`. Without a socket the job runs all
        the same.
        """
        if (found := job_socket(FOLDER, name, "notification")) is not None:
            self.listeners[name] = SlotSocket(
                self, name, pid, *found, lambda ended: self.boundary(name, ended)
            )

    def close(self, name: str) -> None:
        """The job ended."""
        if (listener := self.listeners.pop(name, None)) is not None:
            listener.shut()
            self.clean()

    def clean(self) -> None:
        clean(FOLDER, {socket_name(name) for name in self.listeners})
