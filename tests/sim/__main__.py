"""`python -m tests.sim SEED [COUNT]`: tell stories, and print which promises were broken in them.

`make drill NAME=seeds` does it for as long as one likes. `python -m tests.sim mutants [NAME ...]`
plants faults in copies of the program, and prints who notices them.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from tests.sim.catalogue import decisions, names
from tests.sim.planting import main as mutants
from tests.sim.seeds import Found, children, shrink

REPLAY = "python -m tests.sim {} --trace"
"""What tells a story again, to the bit."""


def arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument(
        "seeds",
        nargs="+",
        help="SEED, SEED COUNT for so many from there on, or more than two seeds",
    )
    parser.add_argument("--trace", action="store_true", help="print what happens")
    parser.add_argument(
        "--stop", action="store_true", help="end at the first promise that is broken"
    )
    parser.add_argument(
        "--shrink", action="store_true", help="leave out what a broken promise does not need"
    )
    parser.add_argument(
        "--only", default="", help="decisions that the story is told with: c0,k0,f3"
    )
    return parser.parse_args(argv)


def smaller(found: Found) -> None:
    """Print the smallest story that breaks the promise."""
    out, last = shrink(found.seed, found.bad)
    typed, fates = decisions(found.seed, out)
    text = "\n  ".join(map(str, (*typed, *fates)))
    print(f"with {len(typed) + len(fates)} decisions: {last.bad}\n  {text}")
    print(
        f"replay: {REPLAY.format(found.seed)} --only {','.join(name for name in names(found.seed) if name not in out)}",
        flush=True,
    )


def main(argv: list[str]) -> int:
    """Returns 1 if a promise was broken, or kept by a mutant."""
    if argv[:1] == ["mutants"]:
        return mutants(argv[1:])
    asked = arguments(argv)
    first, *more = asked.seeds
    plot, dash, number = first.rpartition("-")
    seeds = (
        [f"{plot}{dash}{int(number) + n}" for n in range(int(more[0]))]
        if len(more) == 1
        else asked.seeds
    )
    without = (
        [name for name in names(first) if name not in asked.only.split(",")] if asked.only else []
    )
    bad, notice, cpu_s, virtual_s = 0, 0, 0.0, 0.0
    ends: Counter[str] = Counter()
    for found in children(seeds, trace=asked.trace, without=without):
        notice, cpu_s, virtual_s = notice + 1, cpu_s + found.cpu_s, virtual_s + found.virtual_s
        ends.update(found.ends)
        print(*found.trace, sep="\n", end="\n" if found.trace else "")
        if found.bad:
            bad += 1
            print(
                f"seed {found.seed}: {found.bad}\nreplay: {REPLAY.format(found.seed)}", flush=True
            )
            if asked.shrink:
                smaller(found)
            if asked.stop:
                break
        elif len(seeds) == 1:
            print(f"{found.digest} after {found.steps} steps")
    rate = f"{notice / cpu_s * 60:.0f} seeds a minute of a core" if cpu_s else ""
    print(
        f"{notice} seeds, {bad} bad, {sum(ends.values())} commands, {virtual_s:.0f} virtual s in {cpu_s:.1f} s of a core: {rate}"
    )
    print(", ".join(f"{end} {count}" for end, count in sorted(ends.items())))
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
