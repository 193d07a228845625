"""What slowed a rank down that is none of its own work: its threads waited for a processor, its
connections for something else.

A thread that is ready to run and has no processor waits: schedstat of proc(5), of each task, for
that of a process is its first thread's alone. Sums over all threads, so several that wait at once
count several times.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
from contextlib import suppress
from pathlib import Path

PROCESS = Path("/proc/self")
LOOK_NS = 1_000_000_000
"""How often connections are looked at: it takes some 10 us for each, and only sums over many
iterations are of use.
"""
INFO_BYTES = 184
RETRANSMITTED, RWND_LIMITED = struct.Struct("=100xI"), struct.Struct("=176xQ")
"""tcpi_total_retrans (TCP segments) and tcpi_rwnd_limited (us) of struct tcp_info (linux/tcp.h)."""


class Waits:
    """What one process waited for, each time since it was asked before. process: its directory
    below /proc.
    """

    def __init__(self, process: Path = PROCESS) -> None:
        self._process = str(process)
        self._files: dict[str, int] = {}  # schedstat of each thread, open: one call reads it
        self._waited: dict[str, int] = {}
        self._looked_ns = 0
        self._sockets: dict[int, tuple[int, int]] = {}
        self._errors = 0
        self.processor_ns()
        self.causes(LOOK_NS)

    def processor_ns(self) -> int:
        """How long (ns) its threads waited for a processor, all together, at least 1; 0: the kernel
        does not say.
        """
        try:
            tasks = os.listdir(f"{self._process}/task")  # noqa: PTH208 - a third of the time
        except OSError:
            tasks = []
        now = {task: ns for task in tasks if (ns := self._of(task)) is not None}
        for task in [task for task in self._files if task not in now]:
            os.close(self._files.pop(task))
        before, self._waited = self._waited, now
        return (
            max(1, sum(max(0, ns - before.get(task, 0)) for task, ns in now.items())) if now else 0
        )

    def _of(self, task: str) -> int | None:
        """How long (ns) a thread has waited since it began; None: it has ended, or the kernel does
        not say.
        """
        for _ in range(2):  # again, if the number is that of a new thread
            try:
                file = self._files.get(task)
                if file is None:
                    file = self._files[task] = os.open(
                        f"{self._process}/task/{task}/schedstat", os.O_RDONLY | os.O_CLOEXEC
                    )
                return int(os.pread(file, 64, 0).split()[1])
            except (OSError, ValueError, IndexError):
                if task in self._files:
                    os.close(self._files.pop(task))
        return None

    def causes(self, now_ns: int) -> tuple[int, int, int]:
        """How long (ns) its TCP connections could not send because the receiver's window was full,
        how many TCP segments they sent again, how many datagrams this host refused as a send buffer
        was full. Zeros until LOOK_NS have passed since it looked."""
        if now_ns - self._looked_ns < LOOK_NS:
            return 0, 0, 0
        self._looked_ns = now_ns
        before, self._sockets = self._sockets, self._connections()
        new = [(now, before.get(name, (0, 0))) for name, now in self._sockets.items()]
        limited, again = (sum(max(0, now[k] - then[k]) for now, then in new) for k in (0, 1))
        errors, self._errors = self._errors, self._refused()
        return limited, again, max(0, self._errors - errors)

    def _connections(self) -> dict[int, tuple[int, int]]:
        """Of each of its TCP sockets, by inode: ns without a window, TCP segments sent again."""
        found = {}
        with suppress(OSError):
            for number in map(int, os.listdir(f"{self._process}/fd")):  # noqa: PTH208
                with suppress(OSError, struct.error):  # closed meanwhile, or no TCP socket
                    known = os.fstat(number)
                    if not stat.S_ISSOCK(known.st_mode):
                        continue
                    one = socket.socket(
                        socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=number
                    )
                    try:
                        info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO_BYTES)
                    finally:
                        one.detach()  # it stays its owner's
                    found[known.st_ino] = (
                        1000 * RWND_LIMITED.unpack_from(info)[0],
                        RETRANSMITTED.unpack_from(info)[0],
                    )
        return found

    def _refused(self) -> int:
        """SndbufErrors of UDP (Udp: of /proc/net/snmp): of all processes of this host."""
        with suppress(OSError, ValueError):
            names, values = (
                line.split()
                for line in Path(f"{self._process}/net/snmp").read_text().splitlines()
                if line[:4] == "Udp:"
            )
            return int(values[names.index("SndbufErrors")])
        return 0


class Unknown(Waits):
    """Of a process that another one does the work for."""

    def __init__(self) -> None:
        pass

    def processor_ns(self) -> int:
        return 0

    def causes(self, now_ns: int) -> tuple[int, int, int]:
        return 0, 0, 0
