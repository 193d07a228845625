"""Outage seen by host pairs while all 24 circuits move, divided by the switches' own switching time.

Six disjoint pairs, so every host, probe each other in both directions every millisecond over real sockets in the hosts'
namespaces; `testbed up` moves the lab back and forth between two plans that share no circuit. The outage of a direction is the time
from its last packet before to its first packet after. The figure is the median over the moves of the median direction; the worst
direction of each move is printed and reported with it.
"""

from __future__ import annotations

import json
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.bench_lab import BenchLab, bench_lab, ring_links
from benchmarks.harness import verdict

MOVES, LIMIT = 10, 1.25


def measure(lab: BenchLab, plans: list[Path], settle_s: float, moves: int) -> tuple[float, float]:
    """Return the median over `moves` of the worst and of the median direction's outage (s)."""
    lab.settle(settle_s)
    status = lab.ask("status")["hosts"]
    names = sorted(status)
    hosts = {name: {"pid": status[name]["pid"], "address": f"10.255.0.{i + 1}"} for i, name in enumerate(names)}
    pairs = [(names[i], names[i + 1]) for i in range(0, len(names), 2)]
    worst, middle = [], []
    for move in range(moves):
        prober = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("prober.py"), "60", "1"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert prober.stdin is not None and prober.stdout is not None
        prober.stdin.write(json.dumps({"hosts": hosts, "pairs": pairs}))
        prober.stdin.close()
        prober.stdout.readline()
        time.sleep(0.3)
        report = lab.call("up", "--topology", plans[move % 2], "--no-job")
        time.sleep(0.3)
        prober.send_signal(signal.SIGTERM)
        directions = [json.loads(line) for line in prober.stdout]
        prober.wait()
        if any(not d["gaps"] for d in directions):
            raise RuntimeError("a direction saw no outage: the move did not touch it, so the figure would mean nothing")
        outages = [max(b - a for a, b in d["gaps"]) / 1e9 for d in directions]
        worst.append(max(outages))
        middle.append(statistics.median(outages))
        print(
            f"  {settle_s * 1e3:.0f} ms switches, move {move + 1:2}: outage worst {worst[-1] * 1e3:6.1f} ms,"
            f" median {middle[-1] * 1e3:6.1f} ms (up reports dark {report['dark_ms']:.1f}, link {report['link_ms']:.1f},"
            f" commit {report['commit_ms']:.1f} ms)",
            flush=True,
        )
    return statistics.median(worst), statistics.median(middle)


def main() -> int:
    with bench_lab() as lab:
        plans = [
            lab.plan("here", ring_links(1, (1, 2)) + ring_links(5, (3, 4))),
            lab.plan("there", ring_links(5, (1, 2)) + ring_links(1, (3, 4))),
        ]
        lab.call("up", "--topology", plans[1], "--no-job")
        worst25, middle25 = measure(lab, plans, 0.025, MOVES)
        worst, middle = measure(lab, plans, 0.05, MOVES)
    print(f"  at 25 ms: worst {worst25 / 0.025:.2f} x, median direction {middle25 / 0.025:.2f} x (reported, no limit)")
    return verdict(
        "dark_window",
        middle / 0.05,
        "x",
        LIMIT,
        "at most",
        median_ms=round(middle * 1e3, 1),
        worst_direction=round(worst / 0.05, 3),
        at_25ms=round(middle25 / 0.025, 3),
        switching_ms=50,
    )


if __name__ == "__main__":
    sys.exit(main())
