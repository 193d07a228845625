"""`train` on a schedule: ranks that ask for slots, on hosts that hold, against ranks and hosts that
do not; and its prediction.

    python benchmarks/gated.py [GUARD_S] Four hosts, one port each, three slots in which each meets
each, 450 ms of light and 50 ms dark, links of 50 Mb/s. An MLP of 1.3 M parameters trains over one
ring. Arms by turns in one run: gated; held, whose ranks do not ask while their hosts still hold
what has no path; ungated, whose ranks do not ask, and whose hosts keep a slot's routes in dark
windows (as in slot_holds; sockets to hosts that the next slot reaches are pushed all the same). The
limit is on gated over ungated: to ask and to hold are one gate, in program and kernel. What asking
alone gives is gated over held. Predicted: `ring_iteration_s`, from the bytes of the gradients, the
devices' settling time and the computing time of an iteration.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.bench_lab import BenchLab, bench_lab
from benchmarks.harness import verdict
from benchmarks.slot_holds import HELD, NOT, scheduled
from benchmarks.slot_rig import ring_iteration_s
from orchestrator.plan.reader import read_plan
from orchestrator.plan.schedule import REACTION_S
from orchestrator.session import load_lab

HOSTS = [f"gpu{n:02d}" for n in range(1, 5)]
DWELL_S, SETTLE_S, RATE_MBPS = 0.45, 0.05, 50
GUARD_S = float(sys.argv[1]) if len(sys.argv) > 1 else 0.02
ROUNDS, ITERATIONS, WARM = 2, 9, 3
RATIO, OFF = 0.85, 0.10
ARMS = {"gated": (False, HELD), "held": (True, HELD), "ungated": (True, NOT)}
"""Whether ranks go without asking, and whether hosts hold."""


def plan(lab: BenchLab, arm: str) -> Path:
    args = {"iterations": ITERATIONS, "checkpoint_every": 0} | (
        {"ungated": True} if ARMS[arm][0] else {}
    )
    schedule = {"pattern": "round-robin", "ports": ["p1"], "dwell_s": DWELL_S, "guard_s": GUARD_S}
    return lab.plan(
        "steps",
        [],
        schedule=schedule,
        job={"name": "steps", "workload": "train", "ranks": HOSTS, "rings": [HOSTS], "args": args},
    )


def steps(lab: BenchLab, arm: str) -> list[dict[str, float]]:
    """Run the job; the records of its iterations without the first ones, each with `took_ms`, from
    the end of the one before.
    """
    lab.call("up", "--topology", plan(lab, arm), "--no-job")
    lab.call("service", "stop", "schedule")
    with scheduled(lab, ARMS[arm][1]):
        lab.call("job", "launch")
        give_up = time.monotonic() + 240
        while (status := lab.call("job", "status", check=False))["state"] in (
            "starting",
            "running",
        ):
            if time.monotonic() > give_up:
                lab.call("job", "stop", check=False)
                break
            time.sleep(2.0)
    (file,) = (lab.folder / "runs" / "runs" / str(status["run"])).glob("*.iterations.jsonl")
    records = [json.loads(line) for line in file.read_text().splitlines()]
    ends = [r["t_wall_ns"] / 1e6 + r["iter_ms"] for r in records]
    if len(ends) <= WARM:
        raise RuntimeError(f"{arm}: {len(ends)} iterations: {status}")
    return [
        r | {"took_ms": b - a}
        for r, a, b in zip(records[WARM:], ends[WARM - 1 :], ends[WARM:], strict=False)
    ]


def predicted_s(lab: BenchLab, records: list[dict[str, float]]) -> float:
    """The planner's time of an iteration that computes and sums as these did."""
    inventory, path = load_lab(lab.inventory), plan(lab, "gated")
    compute_ms = statistics.median(r["iter_ms"] - r["comm_ms"] for r in records)
    wanted = read_plan(path.read_text(), str(path), inventory)
    return ring_iteration_s(
        wanted, inventory, records[0]["bytes"], compute_ms / 1e3, SETTLE_S + REACTION_S
    )


def main() -> int:
    found: dict[str, list[dict[str, float]]] = {arm: [] for arm in ARMS}
    with bench_lab(len(HOSTS), "--settle-s", str(SETTLE_S), "--rate-mbps", str(RATE_MBPS)) as lab:
        for number in range(ROUNDS):
            for arm in [*ARMS][:: 1 if number % 2 == 0 else -1]:
                records = steps(lab, arm)
                found[arm] += records
                text = ", ".join(f"{r['took_ms']:.0f}" for r in records)
                print(f"  {arm}: {text} ms", flush=True)
        predicted_ms = predicted_s(lab, found["gated"]) * 1e3
        lab.call("down", "--yes")
    took = {arm: statistics.fmean(r["took_ms"] for r in records) for arm, records in found.items()}
    off = took["gated"] / predicted_ms - 1
    print(
        f"  {', '.join(f'{arm} {ms:.0f} ms' for arm, ms in took.items())} (means of {len(found['gated'])});"
        f" gated over held {took['gated'] / took['held']:.3f}; predicted {predicted_ms:.0f} ms, off by {off:+.1%};"
        f" load {os.getloadavg()[0]:.1f}"
    )
    figures = {f"{arm}_ms": round(ms) for arm, ms in took.items()} | {
        "predicted_ms": round(predicted_ms)
    }
    value, asking = took["gated"] / took["ungated"], round(took["gated"] / took["held"], 4)
    also = abs(off) <= OFF
    return verdict(
        "gated",
        value,
        "x",
        RATIO,
        "at most",
        also=also,
        over_held=asking,
        prediction_off=round(off, 4),
        **figures,
    )


if __name__ == "__main__":
    sys.exit(main())
