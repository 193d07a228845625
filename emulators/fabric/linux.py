"""The few system calls Python 3.11 does not wrap: namespaces and mounts. Each raises OSError naming
the call.
"""

from __future__ import annotations

import ctypes
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

NEW_NS = 0x00020000
NEW_UTS = 0x04000000
NEW_IPC = 0x08000000
NEW_PID = 0x20000000
NEW_NET = 0x40000000
NEW_TIME = 0x00000080

MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *args: object, what: str = "") -> None:
    if getattr(_libc, name)(*args) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}{f' {what}' if what else ''}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """Leave the given namespaces for new ones. NEW_PID takes effect for the next child only."""
    _call("unshare", ctypes.c_int(flags))


def setns(fd: int, kind: int) -> None:
    """Enter the namespace behind `fd`."""
    _call("setns", ctypes.c_int(fd), ctypes.c_int(kind))


def mount(
    source: str,
    target: str | Path,
    kind: str | None = None,
    flags: int = 0,
    data: str | None = None,
) -> None:
    """mount(2)."""
    tokens = [w.encode() if w is not None else None for w in (source, str(target), kind)]
    _call(
        "mount",
        *tokens,
        ctypes.c_ulong(flags),
        data.encode() if data else None,
        what=f"{source} on {target}",
    )


def bind(source: str | Path, target: str | Path, *, recursive: bool = False) -> None:
    """Show `source` at `target` as well."""
    mount(str(source), target, flags=MS_BIND | (MS_REC if recursive else 0))


def unmount(target: str | Path) -> None:
    """Take away the last mount at `target`, at once for whoever looks there, else when it is no
    longer used (MNT_DETACH).
    """
    _call("umount2", str(target).encode(), ctypes.c_int(2), what=str(target))


def die_with_parent(signal_number: int) -> None:
    """Ask the kernel for `signal_number` when the parent process ends; 0 withdraws it."""
    _call("prctl", PR_SET_PDEATHSIG, ctypes.c_ulong(signal_number), 0, 0, 0)


def leave(body: Callable[[], int]) -> NoReturn:
    """Run `body` in a forked child and end the process with its status, never returning into the
    parent's code.
    """
    status = 1
    try:
        status = body()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def close_all_but(keep: set[int]) -> None:
    """Close every descriptor that is neither standard nor in `keep`: a forked process must not hold
    its parent's sockets open.
    """
    for fd in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if fd > 2 and fd not in keep:
            with suppress(OSError):
                os.close(fd)


def own_namespace(kind: str) -> int:
    """Open this process's `net`, `mnt`, `uts` or `pid` namespace."""
    return os.open(f"/proc/self/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)


@contextmanager
def inside(net: int) -> Iterator[None]:
    """Be in network namespace `net` for a moment: sockets made here stay in it for good."""
    here = own_namespace("net")
    try:
        setns(net, NEW_NET)
        try:
            yield
        finally:
            setns(here, NEW_NET)
    finally:
        os.close(here)


def new_network() -> int:
    """Make a network namespace and return its descriptor; it lives as long as a process holds
    it.
    """
    here = own_namespace("net")
    try:
        unshare(NEW_NET)
        try:
            return own_namespace("net")
        finally:
            setns(here, NEW_NET)
    finally:
        os.close(here)
