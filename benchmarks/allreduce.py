"""All-reduce of 64 MB over 12 ranks: one ring against one link's rate, and four ring groups against
one ring.

Both jobs run on the TopoOpt plan (examples/topoopt-12.json) on a private emulated lab, by
`testbed up`, as a user's job runs; they differ in the plan's `job.rings` alone. The two are
measured in turn, several times. One link's rate is what the lab shapes to, less the headers of its
frames: 250 Mb/s x 8948 / 9014 payload bytes for an MTU of 9000 (TCP with timestamps over Ethernet).
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.bench_lab import ROOT, BenchLab, bench_lab
from benchmarks.harness import spread, verdict

ROUNDS, SIZE = 3, "64M"
LINK_MBPS = 250.0
GOODPUT = 8948 / 9014
LEAST_OF_LINK, LEAST_RATIO = 0.95, 3.0
JOB_WITHIN_S = 120.0


def plan(lab: BenchLab, rings: int) -> Path:
    """Write the TopoOpt plan with an all-reduce job over its first `rings` rings; return its
    path.
    """
    body: dict[str, Any] = json.loads((ROOT / "examples" / "topoopt-12.json").read_text())
    body.pop("$schema", None)
    body["name"] = f"allreduce-{rings}-rings"
    job = body["job"]
    arguments = {"minbytes": SIZE, "iters": 3, "warmup_iters": 1}
    body["job"] = {
        "name": body["name"],
        "workload": "allreduce",
        "ranks": job["ranks"],
        "rings": job["rings"][:rings],
        "args": arguments,
        "backend": "gloo",
    }
    path = lab.folder / f"{body['name']}.json"
    path.write_text(json.dumps(body))
    return path


def busbw_mbps(lab: BenchLab, path: Path) -> float:
    """Bring `path` up, wait for its job and return the bus bandwidth it printed (Mb/s). Raises
    RuntimeError when it failed.
    """
    rows = [
        line.split()
        for line in lab.job_output(path, JOB_WITHIN_S)
        if line and not line.startswith("#")
    ]
    [row] = [row for row in rows if len(row) == 8 and row[0] == str(64 << 20)]
    if row[7] != "0":
        raise RuntimeError(f"{path.name}: {row[7]} wrong elements")
    return float(row[6]) * 8000


def main() -> int:
    """Measure and print; return the exit code."""
    seen: dict[int, list[float]] = {1: [], 4: []}
    with bench_lab() as lab:
        plans = {rings: plan(lab, rings) for rings in seen}
        for step in range(ROUNDS):
            for rings, path in plans.items():
                seen[rings].append(busbw_mbps(lab, path))
                share = seen[rings][-1] / (LINK_MBPS * GOODPUT)
                print(
                    f"  round {step + 1}, {rings} ring(s): busbw {seen[rings][-1]:7.1f} Mb/s, {share:.3f} of one link",
                    flush=True,
                )
    one, four = (statistics.median(values) for values in seen.values())
    of_link = one / (LINK_MBPS * GOODPUT)
    return verdict(
        "allreduce",
        four / one,
        "times one ring",
        LEAST_RATIO,
        "at least",
        also=of_link >= LEAST_OF_LINK,
        single_ring_of_link=round(of_link, 4),
        single_ring_limit=LEAST_OF_LINK,
        one_ring_mbps=round(one, 1),
        four_rings_mbps=round(four, 1),
        spread=round(max(spread(values) for values in seen.values()), 4),
        size=SIZE,
        ranks=12,
    )


if __name__ == "__main__":
    sys.exit(main())
