"""Processes that a job leaves behind: found by its session, or by the environment they were started
with, and killed.
"""

from __future__ import annotations

import contextlib
import os
import signal

from agent.basics import read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

MARK = "TESTBED_JOB_DIR"  # in the environment of all that a job starts, with a directory of its own
ENVIRONMENT = 1 << 20  # bytes of a process's environment that are searched for it
ROUNDS = 8  # looks for what was started while others were killed


def kill_session(leader: int) -> Iterator[None]:
    """SIGKILL to all processes of a session: a program may put some into process groups of their
    own. Pauses at each process.
    """
    for name in os.listdir("/proc"):
        yield
        if name.isdigit() and read(f"/proc/{name}/stat").rpartition(")")[2].split()[3:4] == [
            str(leader)
        ]:
            with contextlib.suppress(OSError):
                os.kill(int(name), signal.SIGKILL)


def of_job(pid: str, mark: bytes, uid: int) -> bool:
    """Whether a process was started with this in its environment, and runs as this user."""
    rows = [
        line.split() for line in read(f"/proc/{pid}/status").splitlines() if line.startswith("Uid:")
    ]
    if not rows or rows[0][1] != str(uid):
        return False
    try:
        with open(f"/proc/{pid}/environ", "rb") as f:
            return mark in f.read(ENVIRONMENT).split(b"\0")
    except OSError:
        return False


def kill_left(where: str) -> Iterator[None]:
    """SIGKILL to what a job that has ended left behind, also in sessions of its own: it would hold
    GPUs and ports of the next one.

    Pauses at each process. It is recognised by the environment it was started with, so a program
    that cleared its own is not found; and only what runs as the job's user, for others may write
    there what they like.
    """
    try:
        uid = os.lstat(where).st_uid
    except OSError:
        return
    mark, killed = f"{MARK}={where}".encode(), {str(os.getpid())}
    for _ in range(ROUNDS):
        found = []
        for name in os.listdir("/proc"):
            yield
            if name.isdigit() and name not in killed and of_job(name, mark, uid):
                found.append(name)
        for pid in found:
            with contextlib.suppress(OSError):
                fd = os.pidfd_open(int(pid))  # the number may be another process's by now
                try:
                    if of_job(pid, mark, uid):
                        signal.pidfd_send_signal(fd, signal.SIGKILL)
                finally:
                    os.close(fd)
        killed.update(found)
        if not found:
            break
