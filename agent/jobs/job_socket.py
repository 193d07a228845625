"""A Unix socket for the processes of one running job, which this job alone may open and which costs
the daemon little.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
import sys
import time

from agent.basics import VAR
from agent.jobs.processes import start_time
from agent.jobs.rank import Allowance

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any

    from agent.shapes import Daemon


CONNECTIONS = 64  # of one job
ACCEPTS = (128, 8.0)  # connections at once, connections a second after that


class GuardedSocket:
    """The socket of one job that runs as process `pid`; who comes from another job or user is
    refused.
    """

    def __init__(
        self, server: Daemon, name: str, pid: int, listener: socket.socket, uid: int
    ) -> None:
        self.server, self.name, self.pid, self.listener, self.uid = server, name, pid, listener, uid
        self.born = start_time(pid)
        self.connections: set[Any] = set()
        self.cut_off: str | None = None
        self.allowance = Allowance(*ACCEPTS)
        self.listening(0)

    def enter(self, fd: int) -> None:
        """Called with each connection. Raises: OSError - no descriptor is left."""
        os.close(fd)

    def listening(self, _: int) -> None:
        if self.listener.fileno() >= 0:
            self.server.register(self.listener.fileno(), self.accept)

    def rest(self) -> None:
        """Accept nothing for a second: the job connects all too often, or descriptors are short."""
        self.server.unregister(self.listener.fileno())
        self.server.timer(time.monotonic_ns() + 1_000_000_000, lambda: self.listening(0))

    def accept(self, _: int) -> None:
        if not self.allowance.take(1):
            self.allowance.left = 0
            self.rest()
            return
        try:
            peer, _address = self.listener.accept()
        except BlockingIOError:
            return
        except OSError:
            self.rest()
            return
        why = self.refusal(peer)
        if why is not None:
            self.cut_off = why
            peer.close()
            return
        fd = peer.detach()
        try:
            self.enter(fd)
        except OSError:  # no descriptor is left
            os.close(fd)
            self.rest()

    def refusal(self, peer: socket.socket) -> str | None:
        """Why a connection does not come from this job; None where it does."""
        pid, uid, _ = struct.unpack(
            "=iII", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        )
        if uid not in (0, self.uid):
            return f"process {pid} is of user {uid}, not of the job's, {self.uid}"
        try:
            session = os.getsid(pid) if pid > 0 else 0
        except OSError:
            session = 0
        if session != self.pid:
            return f"process {pid} is of session {session}, not of the job's, {self.pid}"
        return (
            f"more than {CONNECTIONS} connections" if len(self.connections) >= CONNECTIONS else None
        )

    def shut(self) -> None:
        """End every connection, because the job ended."""
        self.server.unregister(self.listener.fileno())
        self.listener.close()
        for connection in list(self.connections):
            connection.close()


def opened(folder: str) -> int:
    """A descriptor of a directory of sockets. Raises: OSError - none, or others than root may write
    there.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    found = os.fstat(fd)
    if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        os.close(fd)
        raise OSError(f"{folder}: others than root may write there")
    return fd


def bound(where: str, base: str, uid: int, gid: int) -> socket.socket:
    """Listen on a socket that this user alone may open. Its path may be long, that of its
    directory's descriptor is not.
    """
    folder = opened(where)
    listener = socket.socket(
        socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
    )
    mask = os.umask(0o177)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(base, dir_fd=folder)
        listener.bind(f"/proc/self/fd/{folder}/{base}")
        os.chown(base, uid, gid, dir_fd=folder, follow_symlinks=False)
        listener.listen(CONNECTIONS)
    except OSError:
        listener.close()
        raise
    finally:
        os.umask(mask)
        os.close(folder)
    return listener


def job_socket(where: str, name: str, what: str) -> tuple[socket.socket, int] | None:
    """The socket `what` of the running job `name`, and its user. None where there is none, which
    the log says: the job runs on.
    """
    try:
        owner = os.lstat(f"{VAR}/jobs/{name}")
        return bound(where, socket_name(name), owner.st_uid, owner.st_gid), owner.st_uid
    except OSError as e:
        sys.stderr.write(f"agent: job {name} has no {what} socket: {e}\n")
        sys.stderr.flush()
        return None


def clean(where: str, used: Collection[str]) -> None:
    """Remove the sockets that no running job has."""
    with contextlib.suppress(OSError):
        folder = opened(where)
        for base in set(os.listdir(folder)) - set(used):
            with contextlib.suppress(OSError):
                os.unlink(base, dir_fd=folder)
        os.close(folder)


def socket_name(name: str) -> str:
    """The file of a job's socket: a digest, because a socket's path has 108 bytes (unix(7)) and a
    job's name may have 100.
    """
    import hashlib

    return hashlib.sha256(name.encode()).hexdigest()[:16]
