"""What each rank of a mixture of experts, or of what answers requests, is about to send to the others: a small file of fixed size
beside its heartbeat.

Port counters do not say for whom bytes are; the gate does, before they are sent. The agent of the
host reads the file (agent/jobs/demand.py) and checks it, for the job's user may write anything
there.

    0    8s   MAGIC
    8    I    rank
    12   I    number of ranks
    16   q    step: twice the iteration, and one more once its gate has decided; 0 before the first one
    24   q    CLOCK_MONOTONIC (ns) at which the step began
    64        ROWS rows, iteration i in row i modulo ROWS: 4 q: iteration, and CLOCK_MONOTONIC (ns) of its begin, of the gate's
              decision and of the end of its last exchange, 0 where that is yet to come; then MOST
              I: bytes to each rank in one of its exchanges
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import time
from collections.abc import Sequence
from pathlib import Path

FILE = "demand"
MAGIC = b"tbdmnd1\0"
HEAD = struct.Struct("<8sII")
STEP = struct.Struct("<qq")
TIMES = struct.Struct("<4q")
ROWS, MOST = 8, 256
STEP_AT, ROWS_AT = 16, 64
ROW_SIZE = TIMES.size + 4 * MOST
SIZE = ROWS_AT + ROWS * ROW_SIZE
HIGHEST = (1 << 32) - 1


class Demand:
    """The file of one rank. Where none can be written, it is written to no avail. Raises:
    ValueError - more than MOST ranks.
    """

    def __init__(self, directory: Path | None, rank: int, world: int) -> None:
        if world > MOST:
            raise ValueError(f"of {MOST} ranks at most is known what they send, not of {world}")
        self._memory = _mapped(directory, HEAD.pack(MAGIC, rank, world))
        self._iteration = self._begin_ns = 0

    def attention(self, iteration: int) -> None:
        """An iteration begins; no expert is needed before its gate has decided."""
        self._iteration, self._begin_ns = iteration, time.monotonic_ns()
        self._step(2 * iteration, self._begin_ns)

    def gate(self, sizes: Sequence[int]) -> None:
        """The gate has decided: so many bytes go to each rank."""
        now_ns = time.monotonic_ns()
        at = ROWS_AT + self._iteration % ROWS * ROW_SIZE
        # no reader takes the row while it is written
        TIMES.pack_into(self._memory, at, -1, 0, 0, 0)
        struct.pack_into(
            f"<{len(sizes)}I",
            self._memory,
            at + TIMES.size,
            *(min(size, HIGHEST) for size in sizes),
        )
        TIMES.pack_into(self._memory, at, self._iteration, self._begin_ns, now_ns, 0)
        self._step(2 * self._iteration + 1, now_ns)

    def end(self) -> None:
        """The iteration's last exchange is over."""
        at = ROWS_AT + self._iteration % ROWS * ROW_SIZE
        STEP.pack_into(
            self._memory, at + 16, STEP.unpack_from(self._memory, at + 16)[0], time.monotonic_ns()
        )

    def _step(self, step: int, now_ns: int) -> None:
        STEP.pack_into(self._memory, STEP_AT, step, now_ns)


def _mapped(directory: Path | None, head: bytes) -> mmap.mmap:
    """The new file, mapped; memory without a file where there is no directory, or none can be
    written.
    """
    if directory is not None:
        fresh = directory / f"{FILE}.new"
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
            file = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                # all of it: no write to the mapping finds the disk full
                if os.write(file, head.ljust(SIZE, b"\0")) == SIZE:
                    memory = mmap.mmap(file, SIZE)
                    fresh.replace(directory / FILE)
                    return memory
            finally:
                os.close(file)
    return mmap.mmap(-1, SIZE)
