"""A rank's heartbeat: a small file of fixed size in its job's directory, mapped into memory, where the
agent of the host reads it.

It says what the rank does and since when, and how long its latest iterations took. Writing it is no
system call; what was written stays there however the process ends. Readers check it, for the job's
user may write anything there (agent/jobs/heartbeats.py).

    0    8s   MAGIC
    8    I    process id
    12   I    rank
    16   q    iteration, 0 before the first one
    24   q    CLOCK_MONOTONIC (ns) at which the phase began
    32   I    phase, its place in PHASES
    40   q    how many rows were written; row n is in place n modulo ROWS
    48   q    CLOCK_MONOTONIC (ns) of the latest sign of life in this phase, one a second while it carries bytes; 0: none is known
    56   q    how long the longest checkpoint so far took to write (ns); 0: none was written
    64        ROWS rows of 10 q: iteration, begin (wall ns), and ns: whole, compute, exposed, wait; then what waits.py knows,
              since the row before: ns without a processor, of all threads (0: not known), ns
              without a receiver's window, TCP segments sent again, datagrams that the host refused
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path

from ..transport.loop import Stall
from .waits import Waits

FILE = "heartbeat"
MAGIC = b"tbbeat2\0"
PHASES = ("start", "compute", "exchange", "hold", "end", "save")
"""Before the first iteration; in one; waiting for the exchange of one; pausing between two; after
one, or after the last; writing a checkpoint after one."""
START, COMPUTE, EXCHANGE, HOLD, END, SAVE = range(len(PHASES))
ROWS = 256
HIGHEST = 1 << 53
HEAD = struct.Struct("<8sII")
NOW = struct.Struct("<qqI")
ONE = struct.Struct("<q")
ROW = struct.Struct("<10q")
NOW_AT, WRITTEN_AT, ALIVE_AT, SAVE_AT, ROWS_AT = 16, 40, 48, 56, 64
SIZE = ROWS_AT + ROWS * ROW.size


class Heartbeat:
    """What a rank writes of itself. Where there is no file for it, it is written to no avail."""

    def __init__(self, directory: Path | None, rank: int, waits: Waits | None = None) -> None:
        """waits: those of the process that does the work, by default this one."""
        self.stall = Stall()
        self._waits = Waits() if waits is None else waits
        self._memory = _mapped(directory, rank)
        self._anchor_ns = time.time_ns() - time.monotonic_ns()  # a clock that is set bends no time
        self._iteration, self._last, self._written, self._phase, self._held = 0, -1, 0, START, False
        self._save_ns = 0
        self._restart(time.monotonic_ns())
        self._now(START, self._begin_ns)

    def follow(self, stall: Stall) -> None:
        """Take the time that others were waited for, and signs of life, from what the loop notes
        that carries the exchanges.
        """
        self.stall = stall
        stall.alive = self._alive

    def _alive(self, now_ns: int) -> None:
        ONE.pack_into(self._memory, ALIVE_AT, now_ns)

    def unheard(self) -> None:
        """What the rank waits for now is not carried by that loop: it gives no sign of life
        meanwhile.
        """
        self._alive(0)

    def _restart(self, now_ns: int) -> None:
        self._begin_ns = now_ns
        self._since_ns = self._exposed_ns = self._wait_ns = 0

    def _now(self, phase: int, now_ns: int) -> None:
        self._phase = phase
        NOW.pack_into(self._memory, NOW_AT, self._iteration, now_ns, HOLD if self._held else phase)
        self._alive(0)

    def moved(self) -> None:
        """What the rank does in this phase is another thing than before: it does not hang."""
        self._now(self._phase, time.monotonic_ns())

    def begin(self, iteration: int) -> None:
        """This iteration begins, with computing. One that began already begins again."""
        self._iteration = iteration
        self._restart(time.monotonic_ns())
        self._now(COMPUTE, self._begin_ns)

    def exchange(self) -> None:
        """The rank begins to wait for an exchange; called again: what went before was hidden by
        computing.
        """
        self._since_ns = now_ns = time.monotonic_ns()
        self._now(EXCHANGE, now_ns)
        self.stall.begin(now_ns)

    def waited(self, ns: int) -> None:
        """Of the exchange that the rank waits for, so long (ns) went by before the last of the
        others began with it.
        """
        self._wait_ns += ns

    def exchanged(self) -> None:
        """The rank has what it waited for, and it computes."""
        if self._phase != EXCHANGE:
            return
        now_ns = time.monotonic_ns()
        self._exposed_ns += max(1, now_ns - self._since_ns)
        self._wait_ns += self.stall.end()
        self._now(COMPUTE, now_ns)

    def counted(self) -> None:
        """An exchange of a program that has shown no iteration yet is over: until it does they are
        counted instead.
        """
        if self._last < 0:
            self._iteration += 1
            self._now(self._phase, time.monotonic_ns())

    def end(self) -> None:
        """The iteration has ended."""
        self.exchanged()
        now_ns = time.monotonic_ns()
        self._row(now_ns - self._begin_ns)
        self._now(END, now_ns)

    @contextlib.contextmanager
    def save(self) -> Iterator[None]:
        """While a checkpoint is written, between two iterations. How long the longest took is kept:
        the next may take as long.
        """
        began_ns = time.monotonic_ns()
        self._now(SAVE, began_ns)
        yield
        now_ns = time.monotonic_ns()
        self._save_ns = max(self._save_ns, now_ns - began_ns)
        ONE.pack_into(self._memory, SAVE_AT, self._save_ns)
        self._now(END, now_ns)

    def shown(self, iteration: int, took_ns: int) -> None:
        """A program showed that this iteration has ended, which took so long (ns); it computes the
        next.

        Without an exchange that was seen it is not known what of it was computing: compute, exposed
        and wait are then 0.
        """
        self.exchanged()
        now_ns = time.monotonic_ns()
        self._iteration, self._begin_ns = max(0, min(iteration, HIGHEST)), now_ns - max(0, took_ns)
        self._row(now_ns - self._begin_ns)
        self._iteration = min(self._iteration + 1, HIGHEST)
        self._restart(now_ns)
        self._now(COMPUTE, now_ns)

    def _row(self, took_ns: int) -> None:
        """Note the times of the iteration; one that is not after the last one is left out."""
        if self._iteration <= self._last:
            return
        compute_ns = max(0, took_ns - self._exposed_ns) if self._exposed_ns else 0
        times = took_ns, compute_ns, self._exposed_ns, min(self._wait_ns, self._exposed_ns)
        place = ROWS_AT + self._written % ROWS * ROW.size
        waited = self._waits.processor_ns(), *self._waits.causes(time.monotonic_ns())
        ROW.pack_into(
            self._memory, place, self._iteration, self._anchor_ns + self._begin_ns, *times, *waited
        )
        self._last = self._iteration
        self._written += 1
        # last: until then no reader looks at the row
        ONE.pack_into(self._memory, WRITTEN_AT, self._written)

    def hold(self, held: bool) -> None:
        """The rank pauses, or goes on. A program may compute on in a pause, until it needs what is
        held: that shows as a pause.
        """
        self._held = held
        self._now(self._phase, time.monotonic_ns())


def _mapped(directory: Path | None, rank: int) -> mmap.mmap:
    """The new file, mapped; memory without a file where there is no directory, or none can be
    written.
    """
    if directory is not None:
        fresh = directory / f"{FILE}.new"
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
            file = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                whole = HEAD.pack(MAGIC, os.getpid(), rank).ljust(SIZE, b"\0")
                # all of it: no write to the mapping can find the disk full
                if os.write(file, whole) == SIZE:
                    memory = mmap.mmap(file, SIZE)
                    fresh.replace(directory / FILE)  # never one that another process has mapped
                    return memory
            finally:
                os.close(file)
    return mmap.mmap(-1, SIZE)
