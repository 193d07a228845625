"""Port counters while a job runs, kept in a file of this host until the operator fetches them.

Once a second at first, then more sparsely, down to a sample every 8 s: about a megabyte a day. All
hosts sample at the same moment of the second, as far as their clocks agree, so that their rates can
be added up.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import time
import zlib

from agent.basics import VAR, bad, integer, number, refused
from agent.jobs.processes import job_name, start_time
from agent.measure.samples import Host, Samples, lowly

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agent.shapes import Daemon, Json

FOLDER = VAR + "/ports"
FILES = 4  # of so many jobs
MOMENT_NS = 100_000_000  # into each second: in the middle of a dashboard's shortest interval
LEAST_NS, LONGEST_NS = 100_000_000, 8_000_000_000
ROWS = 5  # in a line of the file
SPARSER = 200  # after so many samples the time between two is doubled
LIMIT = 128 << 10  # bytes of an answer


def keep(server: Daemon, request: Json) -> Json:
    """Sample this host's ports every `interval_s` (s) until the job `name` ends."""
    path, step_ns = f"{FOLDER}/{job_name(request)}", int(number(request, "interval_s", 1.0) * 1e9)
    if not LEAST_NS <= step_ns <= LONGEST_NS:
        raise bad(f"interval_s: 0.1 to 8 seconds are possible, got {request.get('interval_s')!r}")
    job = server.jobs.status(request)
    if job["state"] != "running":
        raise refused("job {} does not run".format(request["name"]))
    os.makedirs(FOLDER, mode=0o700, exist_ok=True)
    older = sorted((entry for entry in os.scandir(FOLDER)), key=lambda entry: entry.stat().st_mtime)
    for entry in older[: max(0, len(older) - FILES + 1)]:
        os.unlink(entry.path)
    out = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    child = os.fork()
    if not child:  # the grandchild is adopted by init: nothing here has to wait for it
        try:
            if not os.fork():
                lowly(out)
                kept(1, server.ports, job["pid"], start_time(job["pid"]), step_ns)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(out)
    return {"name": request["name"]}


def kept(out: int, ports: dict[int, str], pid: int, born: int | None, step_ns: int) -> None:
    """Sample until the process `pid` that was born then is gone; a JSON line for every few
    samples.
    """
    host = Host(ports)
    samples = Samples(host)
    rows: list[bytes] = []
    numbers, count = samples.numbers, 0
    while born is not None and start_time(pid) == born:
        time.sleep((step_ns - (time.time_ns() - MOMENT_NS) % step_ns) / 1e9)
        host.hear()
        existing, row = samples.row()
        if rows and existing is not numbers:
            put(out, numbers, rows)
            rows = []
        numbers = existing
        rows.append(row)
        count += 1
        if len(rows) >= ROWS:
            put(out, numbers, rows)
            rows = []
        if count >= SPARSER and step_ns < LONGEST_NS:
            step_ns, count = min(2 * step_ns, LONGEST_NS), 0
    if rows:
        put(out, numbers, rows)


def put(out: int, numbers: list[int], rows: list[bytes]) -> None:
    packed = base64.b64encode(zlib.compress(b"".join(rows), 6)).decode()
    line = {
        "t_ns": time.monotonic_ns(),
        "wall_ns": time.time_ns(),
        "numbers": numbers,
        "rows": packed,
    }
    os.write(out, json.dumps(line, separators=(",", ":")).encode() + b"\n")


def fetch(request: Json) -> Json:
    """Return whole lines of what was kept of the job `name` from byte `offset` on."""
    path, offset = (
        f"{FOLDER}/{job_name(request)}",
        integer(request, "offset", 0) if "offset" in request else 0,
    )
    data, size = b"", 0
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        data = os.pread(file.fileno(), LIMIT, offset)
    data = data[: data.rfind(b"\n") + 1]
    return {"data": data.decode(), "offset": offset + len(data), "size": size}
