"""A TCP window for each of two networks that come in turn, over cubic and over its own ablation, on
the rig of line_rig.py.

Rounds of four arms whose order alternates: cubic, one window, a window for each network, and that
without word of the networks. Then the other three conditions, rates and round trips equal or not,
once each, which are only reported. Goodput of one flow; the interval is of the rounds' ratios.
Needs root and Linux 6.4 with BPF.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.harness import verdict
from benchmarks.job_rig import ratio
from orchestrator.experiments.scenario.record import order

ARMS = ("cubic", "one", "two", "unsaid")
ROUNDS = 4
SECONDS, ELSEWHERE_S = 20, 15
"""Counted of a measurement (s); 10 s before are not."""
AT_LEAST, ALIKE = 1.20, 0.07
FAVOURABLE = ("10,100", "100,40")
OTHERS = (("10,100", "100,100"), ("10,10", "100,40"), ("10,10", "100,100"))
"""Mb/s and round trip (ms) of the packet network and the optical one."""
RATIOS = {
    "over cubic": ("cubic", "two"),
    "over one window": ("one", "two"),
    "not told over one window": ("one", "unsaid"),
}


def goodput(arm: str, rates: str, rtts: str, seconds: float) -> float:
    """Mb/s of one measurement. Raises: CalledProcessError - the rig failed; its words went to
    standard error.
    """
    rig = [sys.executable, str(Path(__file__).with_name("line_rig.py")), arm]
    done = subprocess.run(
        [*rig, "--rates", rates, "--rtts", rtts, "--seconds", str(seconds)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=120,
    )
    found = json.loads(done.stdout)
    print(
        f"  {rates:<7} Mb/s {rtts:<8} ms {arm:<7} {found['mbps']:6.2f} Mb/s, {found['of_most']:.0%} of the most",
        flush=True,
    )
    return float(found["mbps"])


def main() -> int:
    """Measure and print; return the exit code."""
    found: dict[str, list[list[float]]] = {arm: [] for arm in ARMS}
    for arm in order(ARMS, ROUNDS):
        found[arm].append([goodput(arm, *FAVOURABLE, SECONDS)])
    ratios: dict[str, list[float]] = {}
    for name, (a, b) in RATIOS.items():
        ratios[name] = value, low, high = ratio(found[a], found[b])
        print(f"  {name:<25} {value:.3f} ({low:.3f} to {high:.3f})", flush=True)
    others = {}
    for rates, rtts in OTHERS:
        here = {arm: goodput(arm, rates, rtts, ELSEWHERE_S) for arm in ARMS[:3]}
        others[f"{rates} Mb/s, {rtts} ms"] = [round(here["two"] / here[arm], 3) for arm in ARMS[:2]]
    print(f"  load {os.getloadavg()[0]:.1f}")
    over, ablation, control = ratios.values()
    return verdict(
        "transports",
        over[0],
        "x cubic",
        AT_LEAST,
        "at least",
        also=ablation[0] >= AT_LEAST and abs(control[0] - 1) <= ALIKE,
        interval=over[1:],
        over_one_window=ablation,
        not_notified_over_one_window=control,
        mbps={
            arm: round(statistics.median(value for (value,) in values), 2)
            for arm, values in found.items()
        },
        elsewhere_over_cubic_and_one_window=others,
        rounds=ROUNDS,
        label="dilated",
    )


if __name__ == "__main__":
    sys.exit(main())
