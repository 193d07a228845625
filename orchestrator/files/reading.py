"""Reads untrusted files: only regular files, up to a size, and Ctrl-C, SIGTERM and --timeout still
work meanwhile.
"""

from __future__ import annotations

import errno
import os
import signal
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import FrameType

from optics.errors import TimedOut

MAX_BYTES = 8 << 20
"""The largest plan, inventory or workload file (bytes): as many fixed routes as a plan may have
take 6 MB, an inventory of 64 hosts 0.1 MB."""
MAX_GRAPH_BYTES = 256 << 20
"""The largest task graph (bytes); FlexFlow writes tens of megabytes for its largest models."""

ALLOWED_S: ContextVar[float | None] = ContextVar("allowed_s", default=None)
"""How long (s) reading may take: the operator's limit for the whole command."""

_KINDS = (
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def bytes_of(path: Path, most: int = MAX_BYTES) -> bytes:
    """The content of a regular file of at most `most` bytes. Raises: OSError - with a complete
    message of its own.
    """
    # O_NONBLOCK: opening a FIFO that has no writer would block
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with open(fd, "rb") as file:  # noqa: PTH123 - a descriptor, not a path
        return read_whole(file.fileno(), most)


def read_whole(fd: int, most: int) -> bytes:
    """As `bytes_of`, of a file that is open already."""
    found = os.fstat(fd)
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(found.st_mode):
        kind = next((word for is_kind, word in _KINDS if is_kind(found.st_mode)), "something else")
        raise OSError(f"{kind} is there, wanted a regular file")
    pieces, size = [], 0
    while size <= most and (piece := os.read(fd, min(1 << 20, most + 1 - size))):
        pieces.append(piece)
        size += len(piece)
    if size > most:
        raise OSError(f"larger than {most / 1e6:.1f} MB, the most that is read")
    return b"".join(pieces)


def text_of(path: Path, most: int = MAX_BYTES) -> str:
    """As `bytes_of`, of a file of UTF-8 text. Raises: OSError, UnicodeDecodeError."""
    return bytes_of(path, most).decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")


@contextmanager
def attentive(what: str, done: str = "read") -> Iterator[None]:
    """Let Ctrl-C, SIGTERM and the command's --timeout end the body, which awaits nothing.

    An event loop would notice them only after the body. Signals that the process ignores stay
    ignored. Raises: KeyboardInterrupt. TimedOut.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread can handle signals
        return
    allowed_s = ALLOWED_S.get()

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    def late(number: int, frame: FrameType | None) -> None:
        raise TimedOut(
            f"{what}: not {done} after {allowed_s:g} s",
            hint="nothing was changed; --timeout 10m allows more",
        )

    wanted: dict[signal.Signals, Callable[[int, FrameType | None], None]] = {}
    # no other timer is running
    if allowed_s is not None and signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0):
        wanted[signal.SIGALRM] = late
    wanted |= {signal.SIGINT: stop, signal.SIGTERM: stop}
    before = {number: signal.getsignal(number) for number in wanted}
    try:
        for number, handler in wanted.items():
            if before[number] not in (signal.SIG_IGN, None) or number == signal.SIGALRM:
                signal.signal(number, handler)
        if signal.SIGALRM in wanted:
            signal.setitimer(signal.ITIMER_REAL, max(allowed_s or 0.0, 0.001))
        yield
    finally:
        if signal.SIGALRM in wanted:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, earlier in reversed(before.items()):
            if earlier is not None:
                signal.signal(number, earlier)
