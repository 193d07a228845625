"""Bytes that a rank sends of compressed gradients, at its ports and by its own count, against the
arithmetic.

Four hosts with links of 20 Mb/s train a perceptron of 399 370 parameters over one ring. Bytes: what
the hosts' ports counted, without headers, and what rank 0 says its sockets took (`wire_bytes`);
both within 3 % of the arithmetic. What they save in time, and what they do to the loss, are the
scenarios examples/scenarios/compression and compression-2. The figure is the worst share, either
way.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.bench_lab import BenchLab, bench_lab, ring_links
from benchmarks.harness import verdict
from benchmarks.job_rig import trained

HOSTS = [f"gpu{n:02d}" for n in range(1, 5)]
ARMS = {"fp16": "fp16", "topk": "topk:0.05", "powersgd": "powersgd:4"}
SHAPES = [(512, 256), (512,), (512, 512), (512,), (10, 512), (10,)]
"""Of the model's tensors: three layers of 256, 512 and 512 inputs."""
ITERATIONS, WARM = 60, 20
OFF = 0.03


def arithmetic(arm: str) -> float:
    """Bytes that a rank sends in an iteration (docs/how-to/send-less.md)."""
    n = len(HOSTS)
    around = 2 * (n - 1) / n
    if arm == "topk":
        return (n - 1) * 8 * sum(math.ceil(0.05 * math.prod(shape)) for shape in SHAPES)
    if arm == "powersgd":
        factors = sum(
            4 * sum(shape)
            for shape in SHAPES
            if len(shape) > 1 and 4 * sum(shape) < math.prod(shape)
        )
        return around * 4 * (factors + sum(math.prod(shape) for shape in SHAPES if len(shape) == 1))
    return around * 2 * sum(map(math.prod, SHAPES))


def plan(lab: BenchLab, arm: str) -> Path:
    args = {
        "hidden": 512,
        "batch": 16,
        "iterations": ITERATIONS,
        "checkpoint_every": 0,
        "compress": ARMS[arm],
    }
    job = {"name": "ddp", "workload": "train", "ranks": HOSTS, "rings": [HOSTS], "args": args}
    return lab.plan(arm, ring_links(1, (1, 2), len(HOSTS)), job=job)


def main() -> int:
    """Measure and print; return the exit code."""
    found: dict[str, dict[str, float]] = {}
    with bench_lab(len(HOSTS), "--rate-mbps", "20", "--settle-s", "0.02") as lab:
        for arm in ARMS:
            one = trained(lab, plan(lab, arm), "ddp", HOSTS, 240)
            counts = {
                "off": one.sent(WARM, ITERATIONS - 1),
                "wire_off": statistics.fmean(one.values("wire_bytes", WARM)),
            }
            found[arm] = {name: round(n / arithmetic(arm) - 1, 4) for name, n in counts.items()}
            print(f"  {arm:<9} {counts['off']:9.0f} bytes, {found[arm]}", flush=True)
        lab.call("down", "--yes")
    print(f"  load {os.getloadavg()[0]:.1f}")
    worst = max(abs(share) for off in found.values() for share in off.values())
    return verdict(
        "compression", worst, "off arithmetic", OFF, "at most", arms=found, label="native"
    )


if __name__ == "__main__":
    sys.exit(main())
