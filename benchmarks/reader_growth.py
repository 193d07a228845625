"""How the time of every reader of foreign bytes grows with its input: eight times the bytes, how
many times the time.

The longest inputs of each codec's kept corpus, repeated to 16 KiB and to 128 KiB. A reader that
examines each byte a bounded number of times takes eight times as long; a quadratic one sixty-four
times. Times below the resolution of a few scheduler ticks say nothing and count as growth 8.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.harness import undisturbed, verdict
from tests.fuzz.targets import Fuzz, targets

SMALL, TIMES, LIMIT, ROUNDS, FLOOR_S = 16 * 1024, 8, 16.0, 5, 0.002
CORPUS = Path(__file__).resolve().parents[1] / "tests" / "fuzz" / "corpus"


def taken(read: Fuzz, data: bytes) -> float:
    """Processor seconds for one input: the best of several."""
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.thread_time()
        read(data)
        best = min(best, time.thread_time() - began)
        if best > 1:
            break
    return best


def main() -> int:
    undisturbed()
    growths: dict[str, float] = {}
    for name, fuzz in targets().items():
        if name.startswith(("driver-", "emulated-")):
            continue
        read: Fuzz = fuzz.__wrapped__  # type: ignore[attr-defined]
        worst = 0.0
        for file in sorted((CORPUS / name).iterdir(), key=lambda f: f.stat().st_size)[-3:]:
            data = file.read_bytes()
            repeated = SMALL // max(1, len(data))
            small, large = taken(read, data * repeated), taken(read, data * (repeated * TIMES))
            worst = max(worst, large / small if large > FLOOR_S else TIMES)
        growths[name] = worst
        print(f"  {name:<22} {worst:6.2f} x", flush=True)
    slowest = max(growths, key=growths.__getitem__)
    return verdict(
        "reader_growth",
        growths[slowest],
        "x",
        LIMIT,
        "at most",
        slowest=slowest,
        median=round(statistics.median(growths.values()), 2),
        readers=len(growths),
        bytes=[SMALL, SMALL * TIMES],
        cores=os.cpu_count(),
    )


if __name__ == "__main__":
    sys.exit(main())
