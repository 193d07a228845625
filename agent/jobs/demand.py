"""What this host's ranks of a mixture of experts are about to send: files that jobs write, so
nothing in them is trusted.

`workloads/progress/demand.py` says what is where.
"""

from __future__ import annotations

import struct
import time

from agent.basics import integer, jobs_file, number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agent.shapes import Answer, Daemon, Json

FILE, MAGIC = "demand", b"tbdmnd1\0"
HEAD = struct.Struct("<8sIIqq")
TIMES = struct.Struct("<4q")
ROWS, MOST, ROWS_AT = 8, 256, 64
ROW_SIZE = TIMES.size + 4 * MOST
SIZE = ROWS_AT + ROWS * ROW_SIZE
HIGHEST = 1 << 53
LOOK_NS = 3_000_000  # between two looks at a file that is waited for
LONGEST_S = 30.0


def demand(server: Daemon, request: Json, answer: Answer) -> None:
    """Answer with what the rank of the job `name` wrote last, and its iterations after `after`.

    reach: answer once its step is as high, the job has ended, or `within_s` (at most 30) is over.
    Steps are counted as in workloads/progress/demand.py: 2 i: iteration i begins; 2 i + 1: its gate
    has decided. `error` says why there is nothing to read.
    """
    where = server.jobs.directory(request)
    after = integer(request, "after", -1) if "after" in request else -1
    reach = integer(request, "reach", 0) if "reach" in request else 0
    within_s = number(request, "within_s", 0.0) or 0.0
    give_up = time.monotonic_ns() + int(min(max(within_s, 0.0), LONGEST_S) * 1e9)

    def look() -> None:
        try:
            found = read(where + "/" + FILE, after)
        except (OSError, ValueError) as e:
            found = {"step": -1, "rows": [], "error": getattr(e, "strerror", None) or str(e)}
        now = time.monotonic_ns()
        if (
            found["step"] >= reach
            or now >= give_up
            or server.jobs.state(where)["state"] != "running"
        ):
            answer(dict(found, name=request["name"], state=server.jobs.state(where)["state"]))
            return
        server.timer(now + LOOK_NS, look)

    look()


def read(path: str, after: int) -> Json:
    """Read and check a file. Raises: OSError, ValueError - there is none, or it is none."""
    return parsed(jobs_file(path, SIZE), after, time.monotonic_ns())


def parsed(data: bytes, after: int, now: int) -> Json:
    """As `read`, of the bytes of the file. `now`: CLOCK_MONOTONIC, ns. Raises: ValueError - they
    are none.

    rows, by iteration: number, begin, the gate's decision and the end of the exchanges (0: not
    yet), all CLOCK_MONOTONIC (ns); then the bytes to each rank.
    """
    if len(data) != SIZE:
        raise ValueError("the file was cut off")
    magic, rank, world, step, since = HEAD.unpack_from(data)
    if (
        magic != MAGIC
        or not 0 < world <= MOST
        or rank >= world
        or not 0 <= step <= HIGHEST
        or not 0 <= since <= now
    ):
        raise ValueError("the file has other content than a demand")
    rows = {}
    for n in range(ROWS):
        at = ROWS_AT + n * ROW_SIZE
        iteration, begin, gate, end = TIMES.unpack_from(data, at)
        if (
            max(after, 0) < iteration <= step // 2
            and 0 < begin <= gate <= now
            and (not end or gate <= end <= now)
        ):
            to = struct.unpack_from(f"<{world}I", data, at + TIMES.size)
            rows[iteration] = [iteration, begin, gate, end, list(to)]
    return {
        "rank": rank,
        "world": world,
        "step": step,
        "since_ns": since,
        "rows": [rows[i] for i in sorted(rows)],
    }
