"""`train` on a schedule: a step whose ranks send to whom there is light, against one whose ranks do not ask; and its prediction.

Four hosts, one port each, three slots in which each meets each, 450 ms of light and 50 ms dark, links of 50 Mb/s. An MLP of 1.3 M
parameters trains over one ring, in both arms by turns on the same turning fabric, the hosts holding in both. Not gated: the ranks'
copy of workloads/slots.py says that every peer is always reached. Predicted: `planner.periodic.ring_mean_s`, from the bytes of the
gradients and the computing time of an iteration.
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
from benchmarks.slot_rig import pids
from orchestrator.plan.design.periodic import ring_iteration_s
from orchestrator.plan.reader import read_plan
from orchestrator.plan.schedule import REACTION_S
from orchestrator.session import load_lab

HOSTS = [f"gpu{n:02d}" for n in range(1, 5)]
DWELL_S, GUARD_S, SETTLE_S, RATE_MBPS = 0.45, 0.02, 0.05, 50
ROUNDS, ITERATIONS, WARM = 2, 8, 2
RATIO, OFF = 0.85, 0.10
UNGATED = "\n\nSlots.until = lambda self, peer: (self.read(), math.inf)[1]  # type: ignore[method-assign]\n"


def gate(lab: BenchLab, on: bool) -> None:
    """Have the ranks that start from now on ask who is reached, or not."""
    for pid in pids(lab).values():
        (file,) = Path(f"/proc/{pid}/root/var/lib/testbed/workloads").glob("*/workloads/slots.py")
        text = file.read_text().removesuffix(UNGATED)
        file.write_text(text if on else text + UNGATED)
        for compiled in file.parent.glob("__pycache__/slots.*.pyc"):
            compiled.unlink()


def steps(lab: BenchLab) -> tuple[list[float], list[float], dict[str, object]]:
    """Run the job; the times of its iterations without the first ones (ms), and of each what it computed (ms)."""
    lab.call("job", "launch")
    give_up = time.monotonic() + 150
    while (status := lab.call("job", "status", check=False))["state"] in ("starting", "running"):
        if time.monotonic() > give_up:
            lab.call("job", "stop", check=False)
            break
        time.sleep(1.0)
    (file,) = (lab.folder / "runs" / "runs" / str(status["run"])).glob("*.iterations.jsonl")
    records = [json.loads(line) for line in file.read_text().splitlines()]
    ends = [r["t_wall_ns"] / 1e6 + r["iter_ms"] for r in records]
    took = [b - a for a, b in zip(ends[WARM - 1 :], ends[WARM:], strict=False)]
    return took, [r["iter_ms"] - r["comm_ms"] for r in records[WARM:]], records[-1] if records else {}


def main() -> int:
    took: dict[bool, list[float]] = {True: [], False: []}
    computing: list[float] = []
    with bench_lab(len(HOSTS), "--settle-s", str(SETTLE_S), "--rate-mbps", str(RATE_MBPS)) as lab:
        schedule = {"pattern": "round-robin", "ports": ["p1"], "dwell_s": DWELL_S, "guard_s": GUARD_S}
        args = {"iterations": ITERATIONS, "checkpoint_every": 0}
        job = {"name": "steps", "workload": "train", "ranks": HOSTS, "rings": [HOSTS], "args": args}
        path = lab.plan("gated", [], schedule=schedule, job=job)
        lab.call("up", "--topology", path, "--no-job")
        for number in range(ROUNDS):
            for on in (True, False) if number % 2 == 0 else (False, True):
                gate(lab, on)
                found, computed, last = steps(lab)
                took[on] += found
                computing += computed if on else []
                words = ", ".join(f"{ms:.0f}" for ms in found)
                print(f"  {'gated' if on else 'not gated'}: {words} ms; last record {last}", flush=True)
        gate(lab, True)
        lab.call("turn", "--stop")
        inventory = load_lab(lab.inventory)
        plan = read_plan(path.read_text(), str(path), inventory)
        parameters = 256 * 1024 + 1024 + 1024 * 1024 + 1024 + 1024 * 10 + 10
        dark_s = SETTLE_S + REACTION_S
        predicted = ring_iteration_s(plan, inventory, 4.0 * parameters, statistics.median(computing) / 1e3, dark_s)
        lab.call("down", "--yes")
    gated, ungated = (statistics.fmean(took[on]) for on in (True, False))
    off = gated / 1e3 / predicted - 1
    print(
        f"  gated {gated:.0f} ms, not gated {ungated:.0f} ms (means of {len(took[True])} and {len(took[False])});"
        f" predicted {predicted * 1e3:.0f} ms, off by {off:+.1%}; load {os.getloadavg()[0]:.1f}"
    )
    return verdict(
        "gated",
        gated / ungated,
        "x",
        RATIO,
        "at most",
        also=abs(off) <= OFF,
        gated_ms=round(gated),
        ungated_ms=round(ungated),
        predicted_ms=round(predicted * 1e3),
        prediction_off=round(off, 4),
    )


if __name__ == "__main__":
    sys.exit(main())
