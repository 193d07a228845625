"""`python -m tests.sim SEED [COUNT]`: tell stories, and print which promises were broken in them."""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from tests.sim.seeds import Found, children, shrink
from tests.sim.story import decisions

REPLAY = "python -m tests.sim {} --trace"
"""What tells a story again, to the bit."""


def arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("seed", help="the first seed, a number; or any words, told once")
    parser.add_argument("count", nargs="?", type=int, default=1, help="how many seeds from there on")
    parser.add_argument("--trace", action="store_true", help="print what happens")
    parser.add_argument("--stop", action="store_true", help="end at the first promise that is broken")
    parser.add_argument("--shrink", action="store_true", help="leave out what a broken promise does not need")
    parser.add_argument("--without", default="", help="decisions that are left out: c0,k0,f3")
    return parser.parse_args(words)


def smaller(found: Found) -> None:
    """Print the smallest story that breaks the promise."""
    out, last = shrink(found.seed, found.bad)
    typed, fates = decisions(found.seed, out)
    words = "\n  ".join(map(str, (*typed, *fates)))
    print(f"without {len(out)} decisions: {last.bad}\n  {words}")
    print(f"replay: {REPLAY.format(found.seed)} --without {','.join(out)}", flush=True)


def main(words: list[str]) -> int:
    """Returns 1 if a promise was broken."""
    asked = arguments(words)
    seeds = [str(int(asked.seed) + n) for n in range(asked.count)] if asked.seed.isdigit() else [asked.seed]
    without = [name for name in asked.without.split(",") if name]
    bad, told, cpu_s, virtual_s = 0, 0, 0.0, 0.0
    ends: Counter[str] = Counter()
    for found in children(seeds, trace=asked.trace, without=without):
        told, cpu_s, virtual_s = told + 1, cpu_s + found.cpu_s, virtual_s + found.virtual_s
        ends.update(found.ends)
        print(*found.trace, sep="\n", end="\n" if found.trace else "")
        if found.bad:
            bad += 1
            print(f"seed {found.seed}: {found.bad}\nreplay: {REPLAY.format(found.seed)}", flush=True)
            if asked.shrink:
                smaller(found)
            if asked.stop:
                break
        elif len(seeds) == 1:
            print(f"{found.digest} after {found.steps} steps")
    rate = f"{told / cpu_s * 60:.0f} seeds a minute of a core" if cpu_s else ""
    print(f"{told} seeds, {bad} bad, {sum(ends.values())} commands, {virtual_s:.0f} virtual s in {cpu_s:.1f} s of a core: {rate}")
    print(", ".join(f"{end} {count}" for end, count in sorted(ends.items())))
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
