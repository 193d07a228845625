"""Time an all-reduce loop loses when one of its circuits is moved: drained first, and moved as it
is, interleaved.

Twelve ranks all-reduce 1 MB over one ring without a pause while `testbed up` moves the link between
gpu01 and gpu02 to a spare port and back. Other circuits join the two hosts by a longer path, so
that draining has somewhere to go. Lost time is what the slow iterations that overlap the move, from
the first phase that touches traffic (drain, or switch) to the last commit, took beyond the usual
one (median before the command); a stall that the move causes lasts until its iteration ends, so it
is counted whole. Staging before and verification after touch no circuit of the loop; that Ansible
and probes slow every rank while they run is the price of twelve hosts on one machine's two cores,
not of the move.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.bench_lab import BenchLab, bench_lab, ring_links
from benchmarks.harness import verdict

EVENTS = 5
LIMIT_MS = {0.05: 60.0, 1.0: 300.0}
HOSTS = [f"gpu{n:02d}" for n in range(1, 13)]


def records(lab: BenchLab) -> list[dict[str, float]]:
    """All iterations of the running job so far."""
    status = lab.call("job", "status")
    (found,) = (lab.folder / "runs" / "runs" / str(status["run"])).glob("*.iterations.jsonl")
    return [json.loads(line) for line in found.read_text().splitlines()]


def lost_ms(lab: BenchLab, plan: Path) -> float:
    """Move to `plan` under the running job; return the time (ms) its loop lost by the move."""
    time.sleep(1.5)
    asked = time.monotonic_ns()
    report = lab.call("up", "--topology", plan, "--no-job")
    time.sleep(2.5)
    start = json.loads((Path(str(report["journal"])) / "anchor.json").read_text())["start_ns"]
    phases = {
        p["name"]: (start + p["begin_s"] * 1e9, start + (p["begin_s"] + p["seconds"]) * 1e9)
        for p in report["phases"]
    }
    begin = phases["drain" if "drain" in phases else "switch"][0]
    end = phases["routes" if "routes" in phases else "link"][1]
    seen = records(lab)
    usual = statistics.median(r["iter_ms"] for r in seen if asked - 1.5e9 < r["begin_ns"] < asked)
    return float(
        sum(
            max(0.0, r["iter_ms"] - usual)
            for r in seen
            if r["end_ns"] > begin and r["begin_ns"] < end
        )
    )


def main() -> int:
    job = {
        "name": "loop",
        "workload": "allreduce",
        "ranks": HOSTS,
        "rings": [HOSTS],
        "args": {"loop": True, "minbytes": "1M", "check": 0},
    }
    found: dict[tuple[float, bool], list[float]] = {}
    with bench_lab() as lab:
        rest = ring_links(1, (1, 2))[1:] + ring_links(5, (3, 4))[1:]
        ends = [("gpu01:p1", "gpu02:p1"), ("gpu01:p3", "gpu02:p3")]
        free = [link for link in rest if not {"gpu01:p3", "gpu02:p3"} & set(link)]
        plans = {
            (side, drain): lab.plan(
                f"side{side}-{drain}", [ends[side], *free], transition={"drain": drain}
            )
            for side in (0, 1)
            for drain in (True, False)
        }
        first = lab.plan("first", [ends[0], *free], job=job)
        lab.call("up", "--topology", first)
        side = 0
        for settle_s in LIMIT_MS:
            lab.settle(settle_s)
            for _ in range(EVENTS):
                for drain in (True, False):
                    side = 1 - side
                    found.setdefault((settle_s, drain), []).append(lost_ms(lab, plans[side, drain]))
                    how = "drained" if drain else "direct "
                    print(
                        f"  dark {settle_s * 1e3:.0f} ms, {how}: lost {found[settle_s, drain][-1]:7.1f} ms",
                        flush=True,
                    )
        lab.call("job", "stop")
    middle = {key: statistics.median(values) for key, values in found.items()}
    for settle_s, limit in LIMIT_MS.items():
        print(
            f"  dark {settle_s * 1e3:.0f} ms: drained {middle[settle_s, True]:.0f} ms (limit {limit:.0f}),"
            f" direct {middle[settle_s, False]:.0f} ms"
        )
    return verdict(
        "move_cost",
        middle[1.0, True],
        "ms",
        LIMIT_MS[1.0],
        "at most",
        also=middle[0.05, True] <= LIMIT_MS[0.05],
        drained_50ms=round(middle[0.05, True], 1),
        limit_50ms=LIMIT_MS[0.05],
        direct_1s=round(middle[1.0, False], 1),
        direct_50ms=round(middle[0.05, False], 1),
    )


if __name__ == "__main__":
    sys.exit(main())
