"""How many points a second the sink writes into influxd, compared with raw lines posted without it.

The ceiling is measured in the same run, in turns: the same batches of 5000 lines posted by a bare
HTTP connection. What a server that is silent costs a change is `influx_hole`.
"""

from __future__ import annotations

import argparse
import http.client
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.harness import spread, undisturbed, verdict
from orchestrator.telemetry import Journal, influxd
from orchestrator.telemetry.influx import Influx
from orchestrator.telemetry.influx_api import InfluxTarget
from orchestrator.telemetry.sink import Sink
from orchestrator.telemetry.tail import BATCH_LINES

LIMIT = 200_000.0
LIMIT_RATIO = 0.85
POINTS = 400_000
ROUNDS = 3


def journal(run_dir: Path, points: int) -> bytes:
    """A journal of port counters and what is in it."""
    with Journal(run_dir, run_dir.name, "lab") as written:
        for n in range(points):
            tags = {"host": f"gpu{n % 16:02}", "port": f"p{n % 4}", "layer": "nic"}
            counters = {"rx_bytes": 1500 * n, "tx_bytes": 1500 * n, "drops": 0, "oper": 1}
            written.point("port", tags, counters)
    return (run_dir / "telemetry" / "000.lp").read_bytes()


def raw(port: int, db: str, data: bytes) -> float:
    """Seconds to post the lines in batches over one connection, with nothing around it."""
    lines = data.splitlines(keepends=True)
    batches = [b"".join(lines[at : at + BATCH_LINES]) for at in range(0, len(lines), BATCH_LINES)]
    link = http.client.HTTPConnection("127.0.0.1", port)
    began = time.perf_counter()
    for batch in batches:
        link.request("POST", f"/write?db={db}&precision=n", batch)
        answer = link.getresponse()
        answer.read()
        assert answer.status == 204, answer.status
    link.close()
    return time.perf_counter() - began


def sunk(url: str, db: str, state: Path) -> float:
    """Seconds the sink takes for the journals below `state`, reading, writing and noting; libraries
    are loaded before.
    """
    sink = Sink(InfluxTarget(url, db), state, idle_s=0.0)
    began = time.perf_counter()
    while sink.round():
        pass
    return time.perf_counter() - began


def rates(points: int, rounds: int) -> tuple[list[float], list[float]]:
    """Points a second of the sink and of raw lines, in turns; every round counts what has
    arrived.
    """
    sink: list[float] = []
    ceiling: list[float] = []
    undisturbed()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        server = influxd.start_influxd(home / "influx", port=0)
        try:
            for step in range(-1, rounds):
                size = points if step >= 0 else 5000
                data = journal(home / f"state{step}" / "runs" / "r", size)
                for name in ("raw", "sink") if step % 2 else ("sink", "raw"):
                    db = f"{name}{step + 1}"
                    target = Influx(InfluxTarget(server.url, db))
                    target.ask("POST", f"/query?q=CREATE+DATABASE+{db}")
                    seconds = (
                        raw(server.port, db, data)
                        if name == "raw"
                        else sunk(server.url, db, home / f"state{step}")
                    )
                    arrived = target.query("SELECT COUNT(oper) FROM port")[0]["values"][0][1]
                    assert arrived == size, f"{name}: {arrived} of {size} points arrived"
                    target.ask("POST", f"/query?q=DROP+DATABASE+{db}")
                    if step >= 0:
                        (ceiling if name == "raw" else sink).append(size / seconds)
        finally:
            influxd.stop_influxd(home / "influx")
    return sink, ceiling


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=POINTS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    chosen = parser.parse_args()
    sink, ceiling = rates(chosen.points, chosen.rounds)
    value, most = statistics.median(sink), statistics.median(ceiling)
    ratio = statistics.median(a / b for a, b in zip(sink, ceiling, strict=True))
    print(f"sink       {value:10.0f} points/s   of {len(sink)} rounds, spread {spread(sink):.2f}")
    print(f"raw lines  {most:10.0f} points/s   spread {spread(ceiling):.2f}   ratio {ratio:.3f}")
    return verdict(
        "influx_sink",
        value,
        "points/s",
        LIMIT,
        "at least",
        also=ratio >= LIMIT_RATIO,
        ceiling=round(most),
        of_ceiling=round(ratio, 3),
        of_ceiling_limit=LIMIT_RATIO,
    )


if __name__ == "__main__":
    sys.exit(main())
