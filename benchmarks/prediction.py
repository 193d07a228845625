"""Prediction beside measurement: iteration and all-reduce of designed jobs on a private emulated lab, ten plans and sizes.

Each case is designed, brought up and run as a user would; the figures are those of `testbed design compare`: medians over the job's
iterations, the first left out. Links are shaped to 20 Mb/s and iterations take seconds, so that what counts is bandwidth and not
this machine's processors. What a step costs beside its bytes on this machine now (twelve ranks wait for each other, 22 times in an
all-reduce) is measured before each plan, with a buffer of next to nothing, and given to the planner as --alpha-us. The limit: no
case is off by more than a tenth.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.bench_lab import ROOT, BenchLab, bench_lab
from benchmarks.harness import ahead, verdict

CASES = (
    ("topoopt", "dlrm", "ring-groups"),
    ("ring", "dlrm", "ring-groups"),
    ("exact", "dlrm", "single-order"),
    ("topoopt", "moe", "ring-groups"),
    ("torus", "bert", "ring-groups"),
)
SIZES = (2.5, 5.0)
"""Times the bytes that `testbed design` would choose for about one second."""
RATE_MBPS, HOSTS, ITERATIONS = 20, 12, 5
LIMIT = 0.10
WITHIN_S = 180.0


TINY = """\
schema: testbed.workload/1
name: tiny
ranks: 12
layers: [{kind: dense, parameters: 3000}]
"""


def figures(lab: BenchLab, words: list[str | Path], name: str) -> dict[str, dict[str, float]]:
    """Design, bring up, run; return the figures, predicted and measured."""
    plan = lab.folder / f"{name}.json"
    lab.call(*words, "--out", plan, "--iterations", str(ITERATIONS))
    lab.call("up", "--topology", plan)
    deadline_s = time.monotonic() + WITHIN_S
    while (status := lab.call("job", "status", check=False))["state"] in ("starting", "running"):
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"job {status['name']}: still {status['state']} after {WITHIN_S:g} s")
        time.sleep(0.5)
    if status["state"] != "finished":
        raise RuntimeError(f"job {status['name']}: {status['state']}: {status['detail']}")
    return {row["figure"]: row for row in lab.call("design", "compare")["figures"]}


def step_us(lab: BenchLab) -> float:
    """What one of an all-reduce's steps costs when it carries next to nothing (us)."""
    workload = lab.folder / "tiny.yaml"
    workload.write_text(TINY)
    found = figures(lab, ["design", "topoopt", "--workload", workload], "tiny")
    return found["all-reduce"]["measured"] * 1e3 / (2 * (HOSTS - 1))


def main() -> int:
    """Measure and print; return the exit code."""
    ahead()
    worst, seen, costs = 0.0, 0, list[float]()
    with bench_lab(HOSTS, "--rate-mbps", str(RATE_MBPS)) as lab:
        for method, workload, backend in CASES:
            costs.append(alpha_us := step_us(lab))
            given: list[str | Path] = ["design", method, "--workload", ROOT / "examples" / "workloads" / f"{workload}.yaml"]
            given += ["--backend", backend, "--alpha-us", f"{alpha_us:.0f}"]
            for size in SIZES:
                scale = lab.call(*given)["scale"] * size
                found = figures(lab, [*given, "--scale", str(scale)], f"{method}-{workload}-{size:g}")
                off = {name: found[name]["off"] for name in ("iteration", "all-reduce")}
                worst, seen = max(worst, *map(abs, off.values())), seen + 1
                words = ", ".join(f"{name} {value:+.1%}" for name, value in off.items())
                print(f"  {method:<8} {workload:<8} {backend:<12} x {scale:<7.3g} {words} ({alpha_us:.0f} us a step)", flush=True)
    more = {"cases": seen, "rate_mbps": RATE_MBPS, "hosts": HOSTS, "alpha_us": [round(cost) for cost in costs]}
    return verdict("prediction", worst, "off at most", LIMIT, "at most", **more)


if __name__ == "__main__":
    sys.exit(main())
