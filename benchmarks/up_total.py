"""The whole of `testbed up`, from process start to exit: 24 circuits moved, 132 host pairs verified, on a warm lab; then again.

Warm: the lab runs and its hosts are provisioned. Every run is a fresh process, as an operator's is. The second figure is the same
command again: nothing to do, and not one write on any device (the devices' own counters).
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.bench_lab import BenchLab, bench_lab, ring_links
from benchmarks.harness import verdict

RUNS, LIMIT_S, AGAIN_LIMIT_S = 5, 4.0, 1.0


def timed(lab: BenchLab, plan: Path) -> tuple[float, dict[str, object]]:
    """Bring `plan` up; return the seconds from start to exit and the report."""
    began = time.perf_counter()
    report = lab.call("up", "--topology", plan, "--no-job")
    return time.perf_counter() - began, report


def main() -> int:
    first, again = [], []
    with bench_lab() as lab:
        plans = [
            lab.plan("here", ring_links(1, (1, 2)) + ring_links(5, (3, 4))),
            lab.plan("there", ring_links(5, (1, 2)) + ring_links(1, (3, 4))),
        ]
        lab.call("up", "--topology", plans[1], "--no-job")
        wrote = 0
        for run in range(RUNS):
            seconds, report = timed(lab, plans[run % 2])
            if (report["made"], report["pairs_ok"]) != (48, 132):
                raise RuntimeError(f"not the change that was to be timed: {report['made']} made, {report['pairs_ok']} pairs")
            first.append(seconds)
            before = lab.ask("writes")["writes"]
            seconds, report = timed(lab, plans[run % 2])
            if not report["nothing_to_do"]:
                raise RuntimeError("the second up found something to do")
            again.append(seconds)
            wrote += sum(after - before[name] for name, after in lab.ask("writes")["writes"].items())
            print(f"  run {run + 1}: up {first[-1]:.2f} s, again {again[-1]:.2f} s", flush=True)
    second = statistics.median(again)
    return verdict(
        "up_total",
        statistics.median(first),
        "s",
        LIMIT_S,
        "at most",
        also=second <= AGAIN_LIMIT_S and not wrote,
        again_s=round(second, 3),
        again_limit_s=AGAIN_LIMIT_S,
        again_writes=wrote,
    )


if __name__ == "__main__":
    sys.exit(main())
