"""The cost of an unresponsive InfluxDB to a change: `testbed up` with one against without any, in
turns.

A private emulated lab goes to and fro between two plans that share no circuit. The address takes
connections and requests and never says a word, the worst a server can do to whoever waits for it.
Every change with it also starts the sink again. The order is none, hole, hole, none, so that
neither plan nor drift counts for one of them; the figure is the ratio of the medians of how long
the command took.
"""

from __future__ import annotations

import argparse
import socket
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.bench_lab import bench_lab, ring_links
from benchmarks.harness import spread, verdict

LIMIT = 1.02
CHANGES = 16


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, default=CHANGES, help="of each kind")
    chosen = parser.parse_args()
    found: dict[str, list[float]] = {"none": [], "hole": []}
    inside: dict[str, list[float]] = {"none": [], "hole": []}
    with bench_lab() as lab, socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(256)
        urls = {"none": "none", "hole": f"http://127.0.0.1:{listener.getsockname()[1]}"}
        plans = [
            lab.plan("here", ring_links(1, (1, 2)) + ring_links(5, (3, 4))),
            lab.plan("there", ring_links(5, (1, 2)) + ring_links(1, (3, 4))),
        ]
        for plan in (*plans, *plans):
            lab.call("up", "--topology", plan, "--no-job")
        for step in range(2 * chosen.changes):
            name = ("none", "hole", "hole", "none")[step % 4]
            lab.env["TESTBED_INFLUX_URL"] = urls[name]
            began = time.perf_counter()
            report = lab.call("up", "--topology", plans[step % 2], "--no-job")
            found[name].append(time.perf_counter() - began)
            inside[name].append(
                sum(
                    p["seconds"]
                    for p in report["phases"]
                    if p["name"] in ("drain", "switch", "link", "verify")
                )
            )
            if report["made"] != 48:
                raise RuntimeError(f"not the change that was to be timed: {report['made']} made")
            lab.call("service", "stop", "sink")
        lab.env["TESTBED_INFLUX_URL"] = "none"
        lab.call("down", "--yes")
    without, with_ = (statistics.median(found[name]) for name in ("none", "hole"))
    moved = [statistics.median(inside[name]) for name in ("none", "hole")]
    print(
        f"change        {without:.3f} s without InfluxDB, {with_:.3f} s with a hole, medians of {chosen.changes}"
    )
    print(f"from drain to verified, of that: {moved[0]:.3f} s, {moved[1]:.3f} s")
    return verdict(
        "influx_hole",
        with_ / without,
        "times",
        LIMIT,
        "at most",
        spread=round(max(spread(values) for values in found.values()), 3),
        moving_ratio=round(moved[1] / moved[0], 4),
    )


if __name__ == "__main__":
    sys.exit(main())
