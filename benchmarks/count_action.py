"""Inference in an emulated network card, begun by counts or by software: cycles of both, and of
their latency model.

Analytic: cycles counted by a state machine (begun_by_counts.py), with the published multiplier's 16
lanes and 10 cycles, no light and no time. A network of 784, 300, 100 and 10 values with weights
drawn at random; a word of the query comes after 1 to 7 cycles, drawn too. The figure is how far the
ratio of cycles, counts over software, is off that of the model, at worst of software that takes 0,
100 and 1000 cycles a row (assumed); every sum is compared with numpy's.
"""

from __future__ import annotations

import sys
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.begun_by_counts import Core, Layer, expected_cycles, infer
from benchmarks.harness import verdict
from tests.oracles.photonic import inference

SHAPE = (784, 300, 100, 10)
SHIFTS = (4, 2, 0)  # most of a layer's sums use the 8 bits then
CONTROL = (0, 100, 1000)
QUERIES = 3
MOST = 0.10


def main() -> int:
    """Count and print; return the exit code."""
    chance = np.random.default_rng(18)
    matrices = [chance.integers(-255, 256, (rows, width)) for width, rows in pairwise(SHAPE)]
    layers = [Layer(matrix.tolist(), shift) for matrix, shift in zip(matrices, SHIFTS, strict=True)]
    off, ratios, equal, total = 0.0, {}, 0, 0
    for control in CONTROL:
        core = Core(control=control)
        for _ in range(QUERIES):
            query = chance.integers(0, 256, SHAPE[0])
            arrivals = list(accumulate(chance.integers(1, 8, core.words(SHAPE[0])).tolist()))
            both = [
                infer(core, layers, query.tolist(), arrivals, stop_and_go=stop)
                for stop in (False, True)
            ]
            equal += sum(list(answer.sums) == inference(matrices, SHIFTS, query) for answer in both)
            total += len(both)
            ratio = both[0].cycles / both[1].cycles
            model = expected_cycles(core, SHAPE, 4) / expected_cycles(
                core, SHAPE, 4, stop_and_go=True
            )
            off = max(off, abs(ratio / model - 1))
            ratios[control] = round(ratio, 4)
        print(
            f"  software {control:4} cycles a row: counts {both[0].cycles}, software {both[1].cycles} cycles,"
            f" {ratio:.3f}, model {model:.3f}"
        )
    return verdict(
        "count_action",
        off,
        "of model",
        MOST,
        "at most",
        also=equal == total,
        ratios=ratios,
        equal=f"{equal} of {total}",
        label="analytic",
    )


if __name__ == "__main__":
    sys.exit(main())
