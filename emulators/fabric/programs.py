"""The programs of jobs on an emulated host, as its first process treats them: stopped, continued,
killed, slowed, put before others; and their clock.

A job's programs are known by the environment that the agent gives them. The shell around each,
which notes its exit status, is the agent's and is left alone.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

from emulators.fabric import linux
from emulators.fabric.priority import Priority

SLICE_S = 0.004
"""How often a hog looks what programs used, and its shortest turn: about what the kernel's
scheduler gives (base_slice_ns of sched(7))."""
LONGEST_S = 0.1
"""The longest turn of a hog. On a busy machine it owes more than that at times, and programs that are
stopped for half a second look as if they were stopped for good, which busy threads never do."""
LOOK_S = 0.2  # so often a hog looks for programs that have started
ENVIRONMENT_BYTES = 1 << 20
ROUNDS = 5  # of looking for programs started while the others were stopped


def ranks() -> dict[int, int]:
    """Process number -> LOCAL_RANK of every program of a job on this host."""
    found: dict[int, int] = {}
    parents: dict[int, tuple[str, int]] = {}
    for pid in (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
        with suppress(OSError, ValueError):  # it has ended, or is no job's
            with Path(f"/proc/{pid}/environ").open("rb") as file:
                texts = dict(
                    word.partition(b"=")[::2] for word in file.read(ENVIRONMENT_BYTES).split(b"\0")
                )
            if b"TESTBED_JOB_DIR" not in texts:
                continue
            stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
            parents[pid] = (
                stat[stat.find("(") + 1 : stat.rfind(")")],
                int(stat[stat.rfind(")") + 2 :].split()[1]),
            )
            found[pid] = int(texts.get(b"LOCAL_RANK", b"0"))
    return {
        pid: rank
        for pid, rank in found.items()
        if parents[pid][0] != "sh" or parents[pid][1] in found
    }


def _signal(pids: Collection[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(OSError):
            os.kill(pid, number)


class Programs:
    """What was done to the programs of this host."""

    def __init__(self) -> None:
        self._hog = 0  # its process number
        self.priority = Priority()
        self._clock = 0.0, 0.0, 0.0  # seconds ahead, how much more per second, since when

    def obey(self, request: Mapping[str, object]) -> dict[str, object]:
        """Carry out a request: a `signal` to a `rank` or to `pids`, a `hog` that spares some, a
        `clock`, `priority` for a time. Raises: OSError."""
        match request:
            case {"do": "signal", "name": str(name), "rank": int(rank)}:
                return {"pids": self._strike(signal.Signals[name], rank)}
            case {"do": "signal", "name": str(name), "pids": list(pids)}:
                _signal(pids, signal.Signals[name])
            case {"do": "hog", "threads": int(threads), "sparing": list(sparing)}:
                self._slow(threads, frozenset(sparing))
            case {
                "do": "clock",
                "ahead_s": int() | float() as ahead_s,
                "rate": int() | float() as rate,
            }:
                self._clock = float(ahead_s), float(rate), time.monotonic()
                self.set_clock(always=True)
            case {"do": "priority", "user": str(user), "for_s": int() | float() as for_s}:
                return {"programs": self.priority.give(user, float(for_s))}
            case {"do": "no priority"}:
                self.priority.take_back()
                return {"lost": sorted(self.priority.lost.values())}
            case _:
                raise OSError(f"unknown request {request}")
        return {}

    def set_clock(self, *, always: bool = False) -> None:
        """Give programs started from now on the clock they are to have. Raises: OSError - the
        kernel has no time namespaces.
        """
        ahead_s, rate, since_s = self._clock
        if not always and not rate:
            return
        nanoseconds = round((ahead_s + rate * (time.monotonic() - since_s)) * 1e9)
        linux.unshare(linux.NEW_TIME)
        offset = " ".join(map(str, divmod(nanoseconds, 1_000_000_000)))
        Path("/proc/self/timens_offsets").write_text(f"monotonic {offset}\nboottime {offset}\n")

    def _strike(self, number: signal.Signals, rank: int) -> list[int]:
        struck: set[int] = set()
        for _ in range(ROUNDS):
            fresh = {pid for pid, at in ranks().items() if at == rank} - struck
            if not fresh:
                break
            _signal(fresh, number)
            struck |= fresh
        return sorted(struck)

    def _slow(self, threads: int, sparing: frozenset[int]) -> None:
        if self._hog:
            _signal([self._hog], signal.SIGKILL)
            _signal(sparing, signal.SIGSTOP)  # it may have continued them a moment ago
            _signal(ranks().keys() - sparing, signal.SIGCONT)
            self._hog = 0
        if threads:
            self._hog = os.fork()
            if not self._hog:
                linux.leave(lambda: _compete(threads, sparing))


def _compete(threads: int, sparing: frozenset[int]) -> int:
    """Take turns with the host's jobs, as so many busy threads would on a processor of its own.

    All hosts share the machine's processors, where busy threads would slow every host down, and
    where a program waits for its turn anyway. So the jobs' programs are stopped for `threads` times
    as long as they ran or waited for a processor, and one program spins with the lowest priority,
    on one processor, to be seen.
    """
    linux.close_all_but(set())
    os.setsid()
    linux.die_with_parent(signal.SIGKILL)
    if not os.fork():
        linux.leave(_spin)
    victims: set[int] = set()
    before: dict[str, int] = {}
    looked_s, owed_s = -LOOK_S, 0.0
    while True:
        now = time.monotonic()
        if now - looked_s > LOOK_S:
            victims, looked_s = set(ranks()) - sparing, now
        wanted = runnable(victims)
        if victims and not wanted:  # a kernel without these figures: as if they never slept
            owed_s += threads * SLICE_S
        owed_s += (
            threads
            * max(
                (ns - before[thread] for thread, ns in wanted.items() if thread in before),
                default=0,
            )
            / 1e9
        )
        before = wanted
        if owed_s >= SLICE_S:
            turn_s = min(owed_s, LONGEST_S)
            _signal(victims, signal.SIGSTOP)
            time.sleep(turn_s)
            _signal(victims, signal.SIGCONT)
            owed_s -= turn_s
        time.sleep(SLICE_S)


def runnable(pids: Collection[int]) -> dict[str, int]:
    """How long (ns) each thread of these processes has run or waited for a processor (schedstat of
    proc(5)).
    """
    found: dict[str, int] = {}
    for pid in pids:
        with suppress(OSError, ValueError):  # it has ended
            for thread in Path(f"/proc/{pid}/task").iterdir():
                ran, waited, _ = (thread / "schedstat").read_bytes().split()
                found[thread.name] = int(ran) + int(waited)
    return found


def _spin() -> int:
    linux.die_with_parent(signal.SIGKILL)
    if os.getppid() == 1:  # the hog has ended already
        return 0
    os.setsid()
    Path("/proc/self/comm").write_text("spin")
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        # busy on all of them, changes of links take 0.3 s (RCU)
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        Path("/proc/self/autogroup").write_text("19")
    while True:
        pass
