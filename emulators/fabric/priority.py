"""Real-time priority for the programs of jobs on an emulated host, as its first process gives it
and takes it back.

All hosts of a lab, and often other work, share a few processors. Ranks use little of them but wait
long for their turn, which hosts of their own would not make them do; `nice` does not help, as the
kernel counts it inside a session (sched_autogroup_enabled).

Given for a time, and only to processes of the jobs' user that this host's first process can see,
which are its PID namespace's. New threads and children inherit it. A program that uses more than
`SHARE` of a processor loses it, so one that spins starves nobody for longer than `WINDOW_S`; beyond
that the kernel leaves 5 % to others (sched_rt_runtime_us of sched(7)).
"""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

RANKS, LAB = 1, 2
"""Levels: of ranks (SCHED_RR), and of what must stay above them: the devices, lines and switches of
a lab, and agents.
"""
WINDOW_S, SHARE = 2.0, 0.5
MOST_S = 7200.0
ROUNDS = 5  # of looking for threads that began while the others were treated
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class Priority:
    """The priority of this host's jobs."""

    def __init__(self) -> None:
        self._uid = 0
        self._until_s = 0.0
        self._looked_s = 0.0
        self._used_s: dict[int, float] = {}
        self.lost: dict[int, str] = {}
        """Programs that lost it: process number -> why."""

    @property
    def due_s(self) -> float | None:
        """When `look` is due (CLOCK_MONOTONIC); None: nobody has priority."""
        return min(self._looked_s + WINDOW_S, self._until_s) if self._uid else None

    def give(self, user: str, for_s: float) -> int:
        """Give it to all programs of `user` for so long from now; return their number. Raises:
        OSError - none is possible.
        """
        if not 0 < for_s <= MOST_S:
            raise OSError(f"priority for {for_s:g} s: wanted more than 0 and at most {MOST_S:g}")
        try:
            uid = pwd.getpwnam(user).pw_uid
        except KeyError as problem:
            raise OSError(f"priority: no user {user} here") from problem
        if uid == 0:
            raise OSError("priority: jobs run as root here, as the agent does")
        now = time.monotonic()
        if not self._uid:
            self.lost, self._used_s, self._looked_s = (
                {},
                {pid: _used_s(pid) for pid in _of(uid)},
                now,
            )
        self._uid, self._until_s = uid, now + for_s
        try:
            # Above the ranks, or it could not take back what they have; what it starts is not.
            os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(LAB))
            _moved(
                lambda: (pid for pid in _of(uid) if pid not in self.lost),
                os.SCHED_OTHER,
                os.SCHED_RR,
            )
        except BaseException:
            self.take_back()
            raise
        return sum(pid not in self.lost for pid in _of(uid))

    def take_back(self) -> None:
        """Take it from all programs; where new threads kept coming, `look` goes on."""
        if not self._uid:
            return
        self._until_s = time.monotonic()
        if _moved(lambda: _of(self._uid), os.SCHED_RR, os.SCHED_OTHER):
            self._uid = 0
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))

    def look(self) -> None:
        """Take back what is over its time, and from programs that used more than their share; call
        it when `due_s` is reached.
        """
        now = time.monotonic()
        if not self._uid:
            return
        if now >= self._until_s:
            self.take_back()
            return
        if now < self._looked_s + WINDOW_S:
            return
        used = {pid: _used_s(pid) for pid in _of(self._uid)}
        for pid, seconds in used.items():
            share = (seconds - self._used_s.get(pid, 0.0)) / (now - self._looked_s)
            if share > SHARE and pid not in self.lost:
                self.lost[pid] = (
                    f"{_name(pid)} used {share:.2f} of a processor over {now - self._looked_s:.1f} s"
                )
        _moved(lambda: self.lost.keys() & used.keys(), os.SCHED_RR, os.SCHED_OTHER)
        self._used_s, self._looked_s = used, now


def _moved(pids: Callable[[], Iterable[int]], before: int, after: int) -> bool:
    """Move all threads of these processes from one policy to another; false if new ones kept
    coming. Raises: OSError - refused.
    """
    return any(not sum(_threads_moved(pid, before, after) for pid in pids()) for _ in range(ROUNDS))


def _threads_moved(pid: int, before: int, after: int) -> int:
    moved = 0
    with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(ProcessLookupError):
                if os.sched_getscheduler(int(thread.name)) == before:
                    os.sched_setscheduler(
                        int(thread.name),
                        after,
                        os.sched_param(RANKS if after == os.SCHED_RR else 0),
                    )
                    moved += 1
    return moved


def _of(uid: int) -> Iterator[int]:
    """The processes of this host that are wholly of this user: a program that became another user
    is not the job's.
    """
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, StopIteration):  # it has ended
                lines = (entry / "status").read_text(errors="replace").splitlines()
                if (
                    next(line for line in lines if line.startswith("Uid:")).split()[1:]
                    == [str(uid)] * 4
                ):
                    yield int(entry.name)


def _used_s(pid: int) -> float:
    """Processor time of a process, its ended threads included (s); 0 if it has ended."""
    with suppress(OSError, IndexError):
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        user, system = stat[stat.rfind(")") + 2 :].split()[11:13]
        return (int(user) + int(system)) * _TICK_S
    return 0.0


def _name(pid: int) -> str:
    with suppress(OSError):
        return f"process {pid} ({Path(f'/proc/{pid}/comm').read_text(errors='replace').strip()})"
    return f"process {pid}"
