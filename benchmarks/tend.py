"""What a loop that tries plans gains: the real loop, guard and proposer of `testbed service run tend`
over a simulated lab, in which each of twenty phases of a job gives six plans iterations of 60 to 140 ms by chance.

A phase has 6,000 iterations; a rehearsal takes 5 s, a change 2 s and 50 ms in the dark. Regret is what a mean
iteration takes beyond that of an oracle, who knows each phase's best plan and changes for nothing. The limit: at most
half the regret of the plan that is best if it stays up.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.harness import verdict
from tests.extensions.tend.simulated import regrets

SEEDS = 10


def main() -> int:
    found = []
    for seed in range(SEEDS):
        with TemporaryDirectory() as folder:
            ms, loop = regrets(seed, Path(folder))
        words = ", ".join(f"{name} {value:.1f} ms" for name, value in ms.items())
        print(f"  seed {seed}: {words}; {len(loop.trials)} trials", flush=True)
        found.append(ms)
    oracle, tend, fixed = (
        mean(each[name] for each in found) for name in ("oracle", "tend", "best fixed")
    )
    return verdict(
        "tend",
        (tend - oracle) / (fixed - oracle),
        "of the regret of the best fixed plan",
        0.5,
        "at most",
        oracle_ms=round(oracle, 1),
        tend_ms=round(tend, 1),
        fixed_ms=round(fixed, 1),
        seeds=SEEDS,
    )


if __name__ == "__main__":
    sys.exit(main())
