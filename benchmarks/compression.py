"""Gradients that travel in half precision, as their largest numbers or as two factors, against
whole ones: bytes, time, loss.

    python benchmarks/compression.py [ROUNDS] Four hosts with links of 20 Mb/s train a perceptron of
399 370 parameters over one ring, as in examples/scenarios/compression, whose arms, arithmetic and
bands these are. Bytes: what the hosts' ports counted, without headers, and what rank 0 says its
sockets took (`wire_bytes`); both within 3 % of the arithmetic. Time: the part of an iteration in
which computing is done and sums are waited for (`comm_ms`), whose ratio to that of whole gradients
is within 10 % of the bytes' ratio; that of all of an iteration is reported. Loss: medians of
iterations 101 to 120. The figure is the worst ratio of times over the ratio of bytes, either way;
of `powersgd` too, though its exchange is two round trips and the scenario has an upper limit for
it.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.bench_lab import BenchLab, bench_lab, ring_links
from benchmarks.harness import verdict
from benchmarks.job_rig import TCP_BYTES, Trained, ratio, trained
from orchestrator.experiments.scenario.record import order

HOSTS = [f"gpu{n:02d}" for n in range(1, 5)]
ARMS = {"none": "none", "fp16": "fp16", "topk": "topk:0.05", "powersgd": "powersgd:4"}
SHAPES = [(512, 256), (512,), (512, 512), (512,), (10, 512), (10,)]
"""Of the model's tensors: three layers of 256, 512 and 512 inputs."""
ROUNDS, ITERATIONS, WARM = 3, 120, 20
BYTES, TIMES = 0.03, 0.10
LOSSES = {"fp16": (0.98, 1.02), "topk": (0.0, 1.15), "powersgd": (0.0, 1.15)}


def arithmetic(arm: str) -> float:
    """Bytes that a rank sends in an iteration (docs/how-to/send-less.md)."""
    n, numbers = len(HOSTS), sum(map(math.prod, SHAPES))
    around = 2 * (n - 1) / n
    if arm == "fp16":
        return around * 2 * numbers
    if arm == "topk":
        return (n - 1) * 8 * sum(math.ceil(0.05 * math.prod(shape)) for shape in SHAPES)
    if arm == "powersgd":
        factors = sum(
            4 * sum(shape)
            for shape in SHAPES
            if len(shape) > 1 and 4 * sum(shape) < math.prod(shape)
        )
        return around * 4 * (factors + sum(math.prod(shape) for shape in SHAPES if len(shape) == 1))
    return around * 4 * numbers


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


def judged(found: dict[str, list[Trained]]) -> dict[str, dict[str, Any]]:
    """Each arm's figures, printed; off: of bytes, from the arithmetic; time: its ratio over the
    bytes' ratio.
    """
    figures: dict[str, dict[str, Any]] = {}
    ports = {
        arm: statistics.fmean(one.sent(WARM, ITERATIONS - 1, TCP_BYTES) for one in runs)
        for arm, runs in found.items()
    }
    for arm, runs in found.items():
        wire = statistics.fmean(value for one in runs for value in one.values("wire_bytes", WARM))
        losses = {
            name: statistics.median(v for one in of for v in one.values("loss", 100))
            for name, of in found.items()
        }
        seen: dict[str, Any] = {
            "bytes": round(ports[arm]),
            "off": round(ports[arm] / arithmetic(arm) - 1, 4),
            "wire_off": round(wire / arithmetic(arm) - 1, 4),
            "comm_ms": round(
                statistics.median(v for one in runs for v in one.values("comm_ms", WARM)), 1
            ),
            "iteration_ms": round(
                statistics.median(v for one in runs for v in one.took_ms(WARM)), 1
            ),
            "loss": round(losses[arm], 4),
            "same_weights": all(one.summary["weights_identical"] for one in runs),
        }
        if arm != "none":
            share = ports[arm] / ports["none"]
            whole = found["none"]
            seen["comm_ratio"] = ratio(
                [one.values("comm_ms", WARM) for one in whole],
                [one.values("comm_ms", WARM) for one in runs],
            )
            seen["iteration_ratio"] = ratio(
                [one.took_ms(WARM) for one in whole], [one.took_ms(WARM) for one in runs]
            )
            for kind in ("comm", "iteration"):
                seen[f"{kind}_over_bytes"] = round(seen[f"{kind}_ratio"][0] / share, 4)
            seen["bytes_ratio"] = round(share, 4)
            seen["loss_ratio"] = round(losses[arm] / losses["none"], 4)
        print(f"  {arm:<9} {seen}", flush=True)
        figures[arm] = seen
    return figures


def main() -> int:
    """Measure and print; return the exit code."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    found: dict[str, list[Trained]] = {arm: [] for arm in ARMS}
    with bench_lab(len(HOSTS), "--rate-mbps", "20", "--settle-s", "0.02") as lab:
        for arm in order(list(ARMS), rounds):
            found[arm].append(trained(lab, plan(lab, arm), "ddp", HOSTS, 240))
            last = found[arm][-1]
            comm, bytes_ = (
                statistics.median(last.values("comm_ms", WARM)),
                last.sent(WARM, ITERATIONS - 1, TCP_BYTES),
            )
            print(
                f"  {arm:<9} exchange {comm:7.1f} ms, {bytes_:9.0f} bytes, loss {last.records[-1]['loss']:.4f}",
                flush=True,
            )
        lab.call("down", "--yes")
    figures = judged(found)
    print(f"  load {os.getloadavg()[0]:.1f}")
    less = {arm: seen for arm, seen in figures.items() if arm != "none"}
    held = {
        "bytes": all(
            max(abs(seen["off"]), abs(seen["wire_off"])) <= BYTES for seen in figures.values()
        ),
        "loss": {
            arm: LOSSES[arm][0] <= seen["loss_ratio"] <= LOSSES[arm][1]
            for arm, seen in less.items()
        },
    }
    worst = max(abs(seen["comm_over_bytes"] - 1) for seen in less.values())
    return verdict(
        "compression",
        worst,
        "off bytes' ratio",
        TIMES,
        "at most",
        also=held["bytes"] is True and all(held["loss"].values()),  # type: ignore[attr-defined]
        met=held,
        arms=figures,
        rounds=rounds,
        label="native",
    )


if __name__ == "__main__":
    sys.exit(main())
