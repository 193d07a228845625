"""The heartbeats of this host's ranks: files that jobs write (`workloads/progress/heartbeat.py`
says what is where), so none is trusted.
"""

from __future__ import annotations

import struct
import time

from agent.basics import integer, jobs_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agent.shapes import Daemon, Json

FILE, MAGIC = "heartbeat", b"tbbeat2\0"
PHASES = ("start", "compute", "exchange", "hold", "end", "save")
ROWS, ROWS_AT = 256, 64
HEAD = struct.Struct("<8sIIqqI4xqqq")
ROW = struct.Struct("<10q")
COUNTS = 2  # the last numbers of a row are counts, those before them ns
SIZE = ROWS_AT + ROWS * ROW.size
HIGHEST = 1 << 53
LONGEST_NS = 1_000_000_000_000_000  # 12 days: no iteration takes longer
LATEST_NS = 1 << 62  # the year 2116: clocks' offsets may be added, and 64 bits still hold it


def heartbeats(server: Daemon, request: Json) -> Json:
    """The state of the job `name`, what its rank wrote last, and its iterations after `after`."""
    where = server.jobs.directory(request)
    server.flows.asked()
    after = integer(request, "after", -1) if "after" in request else -1
    found = dict(server.jobs.state(where), name=request["name"])
    found.pop("directory", None)
    try:
        return dict(found, **read(where + "/" + FILE, after))
    except (OSError, ValueError) as e:
        return dict(found, heartbeat=None, times=[], error=getattr(e, "strerror", None) or str(e))


def read(path: str, after: int) -> Json:
    """Read and check a heartbeat. `times`: iteration, begin (wall ns), and us: all, compute,
    exposed, wait, without a processor (0: not known), without a receiver's window; then TCP
    segments sent again, datagrams that the host refused.

    Raises: OSError, ValueError - there is none, or it is none.
    """
    return parsed(jobs_file(path, SIZE), after, time.monotonic_ns())


def parsed(data: bytes, after: int, now: int) -> Json:
    """As `read`, of the bytes of the file. `now`: CLOCK_MONOTONIC, ns. Raises: ValueError - they
    are none.
    """
    if len(data) != SIZE:
        raise ValueError("the file was cut off")
    magic, pid, rank, iteration, since, phase, written, alive, save = HEAD.unpack_from(data)
    if (
        magic != MAGIC
        or phase >= len(PHASES)
        or not 0 <= iteration <= HIGHEST
        or not 0 <= written <= HIGHEST
    ):
        raise ValueError("the file has other content than a heartbeat")
    if not (0 <= since <= now and 0 <= alive <= now):
        raise ValueError("the file has a time that is yet to come")
    if not 0 <= save <= LONGEST_NS:
        raise ValueError("the file has a checkpoint that took longer than 12 days")
    times = []
    # the oldest row may be the one that is written just now
    for n in range(max(0, written - ROWS + 1), written):
        number, begin, *spans = ROW.unpack_from(data, ROWS_AT + n % ROWS * ROW.size)
        if (
            after < number <= HIGHEST
            and 0 <= begin <= LATEST_NS
            and all(0 <= span <= LONGEST_NS for span in spans)
        ):
            times.append(
                [number, begin, *(-(-span // 1000) for span in spans[:-COUNTS]), *spans[-COUNTS:]]
            )
            after = number
    ages = {
        "age_s": round((now - since) / 1e9, 6),
        "alive_s": round((now - alive) / 1e9, 6) if alive else None,
    }
    ages["save_s"] = round(save / 1e9, 6)
    heartbeat = {"pid": pid, "rank": rank, "iteration": iteration, "phase": PHASES[phase]}
    return {"heartbeat": dict(heartbeat, **ages), "times": times}
