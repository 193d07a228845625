"""Shared by the experiments: a private emulated lab, plans measured alternately, a ratio with its confidence interval."""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from benchmarks.bench_lab import BenchLab, bench_lab  # noqa: E402
from benchmarks.harness import ahead  # noqa: E402

RATE_MBPS, HOSTS = 20, 12
SIZE = 1.5
"""Times the bytes that `testbed design` would choose for about one second: the fixed cost per step is then small."""
WITHIN_S = 300.0
NATIVE = "native: measured on the emulated lab, real hosts' kernels and links shaped to 20 Mb/s; compute is waited for, not done"
ANALYTIC = "analytic: bandwidth arithmetic over routes, nothing was run"

__all__ = [
    "ANALYTIC",
    "HOSTS",
    "NATIVE",
    "RATE_MBPS",
    "ROOT",
    "BenchLab",
    "Design",
    "bench_lab",
    "measure",
    "options",
    "ratio",
    "say",
]


@dataclass(frozen=True)
class Design:
    """A plan to measure: its design, and its prediction (ms)."""

    name: str
    plan: Path
    predicted_ms: float
    time_scale: float

    @classmethod
    def of(cls, lab: BenchLab, name: str, method: str, workload: Path, *more: str, size: float = SIZE) -> Design:
        plan = lab.folder / f"{name}.json"
        words = ["design", method, "--workload", workload, "--out", plan, "--name", name, *more]
        scale = lab.call(*words)["scale"] * size
        found = lab.call(*words, "--scale", str(scale))
        return cls(name, plan, found["here"]["iteration_ms"], found["time_scale"])


def options(description: str, repeats: int = 3, iterations: int = 5) -> argparse.Namespace:
    """The command line of all experiments."""
    ahead()
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--repeats", type=int, default=repeats, help=f"measurements of each plan, alternating (default {repeats})")
    parser.add_argument("--iterations", type=int, default=iterations, help=f"iterations of each measurement (default {iterations})")
    return parser.parse_args()


def measure(lab: BenchLab, designs: Sequence[Design], repeats: int) -> dict[str, list[float]]:
    """Median iteration (ms) of each repeat of each plan; the order alternates: A B B A A B."""
    seen: dict[str, list[float]] = {design.name: [] for design in designs}
    for turn in range(repeats):
        for design in designs if turn % 2 == 0 else designs[::-1]:
            lab.call("up", "--topology", design.plan, "--no-job")
            lab.call("job", "launch")
            iterations = json.loads(design.plan.read_text())["job"]["args"]["iterations"]
            time.sleep(design.predicted_ms / 1e3 * iterations)  # every query slows the job down
            deadline_s = time.monotonic() + WITHIN_S
            while (status := lab.call("job", "status", check=False))["state"] in ("starting", "running"):
                if time.monotonic() > deadline_s:
                    raise SystemExit(f"{design.name}: still {status['state']} after {WITHIN_S:g} s")
                time.sleep(0.5)
            if status["state"] != "finished":
                raise SystemExit(f"{design.name}: {status['state']}: {status['detail']}")
            seen[design.name].append(status["iteration_ms"])
            off = status["iteration_ms"] / design.predicted_ms - 1
            print(
                f"  round {turn + 1}  {design.name:<16} iteration {status['iteration_ms']:8.1f} ms, {off:+.1%} of predicted",
                flush=True,
            )
    return seen


def ratio(over: Sequence[float], under: Sequence[float], draws: int = 10_000) -> tuple[float, float, float]:
    """Ratio of medians and its 95 % interval, by resampling the repeats with replacement (percentile bootstrap, seeded)."""
    rng = random.Random(1)

    def drawn() -> float:
        return statistics.median(rng.choices(over, k=len(over))) / statistics.median(rng.choices(under, k=len(under)))

    found = sorted(drawn() for _ in range(draws))
    middle = statistics.median(over) / statistics.median(under)
    return middle, found[int(0.025 * draws)], found[min(draws - 1, math.ceil(0.975 * draws))]


def say(words: str, value: float, low: float | None, high: float | None, label: str) -> None:
    """Print one result with its interval and its basis: native or analytic."""
    interval = "" if low is None or high is None else f"  [{low:.3f}, {high:.3f}] at 95 %"
    print(f"{words}: {value:.3f}{interval}\n    {label}", flush=True)
