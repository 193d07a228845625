"""Prediction compared with measurement: iteration and all-reduce of designed jobs on a private
emulated lab, ten plans and sizes.

Each case is designed, brought up and run as a user would; the figures are those of
`testbed design compare`: medians over the job's iterations, the first left out. Links are shaped to
20 Mb/s and iterations take several seconds, so that bandwidth counts and not the machine's
processors: twelve ranks wait for each other 22 times in an all-reduce. The limit: no case is off by
over a tenth.
"""

from __future__ import annotations

import sys
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
SIZES = (4.0, 8.0)
"""Times the bytes that `testbed design` would choose for about one second."""
RATE_MBPS, HOSTS, ITERATIONS = 20, 12, 4
LIMIT = 0.10
WITHIN_S = 180.0


def measured(
    lab: BenchLab, method: str, workload: str, backend: str, size: float
) -> tuple[float, dict[str, float]]:
    """Design, bring up, run; return the size's scale and how far iteration and all-reduce are
    off.
    """
    plan = lab.folder / f"{method}-{workload}-{size:g}.json"
    needs = ROOT / "examples" / "workloads" / f"{workload}.yaml"
    base: list[str | Path] = ["design", method, "--workload", needs, "--backend", backend]
    scale = lab.call(*base)["scale"] * size
    predicted_ms = lab.call(
        *base, "--out", plan, "--scale", str(scale), "--iterations", str(ITERATIONS)
    )["here"]["iteration_ms"]
    figures = lab.job_figures(plan, predicted_ms / 1e3 * ITERATIONS, WITHIN_S)
    return scale, {name: figures[name]["off"] for name in ("iteration", "all-reduce")}


def main() -> int:
    """Measure and print; return the exit code."""
    ahead()
    worst, seen = 0.0, 0
    with bench_lab(HOSTS, "--rate-mbps", str(RATE_MBPS)) as lab:
        for method, workload, backend in CASES:
            for size in SIZES:
                scale, off = measured(lab, method, workload, backend, size)
                worst, seen = max(worst, *map(abs, off.values())), seen + 1
                text = ", ".join(f"{name} {value:+.1%}" for name, value in off.items())
                print(
                    f"  {method:<8} {workload:<8} {backend:<12} x {scale:<7.3g} {text}", flush=True
                )
    return verdict(
        "prediction",
        worst,
        "off at most",
        LIMIT,
        "at most",
        cases=seen,
        rate_mbps=RATE_MBPS,
        hosts=HOSTS,
    )


if __name__ == "__main__":
    sys.exit(main())
