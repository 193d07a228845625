"""Living jobs: whoever takes part in a ring change is killed in each of its states; the job goes on
or is resumed, nobody is held.

`make drill NAME=living` runs all, which takes about an hour; NAME="living REGEX" runs the cases
whose name matches, for example "living ^operator"; NAME="living REGEX SECONDS" begins no case after
so many seconds. Each case prints a line; the last one is JSON.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from optics import TestbedError
from tests.drills.living_jobs import Case, LivingJobs
from tests.drills.living_trouble import Trouble
from tests.drills.moments import STATES
from tests.end_to_end.conftest import ROOT, Lab

SOME: Mapping[str, tuple[str, ...]] = {
    "frozen": ("held", "dark", "changed"),
    "second": ("prepared", "held"),
}
"""Cases that are tried in some states only: an operator that does nothing until all leases have
ended, and a second operator.
"""
FIRST = [Case("rank", state, host="gpu01") for state in ("preparing", "held", "changed")]
FIRST += [
    Case("host", "held", host="gpu01"),
    Case("agent", "held", host="gpu01"),
    Case("watchdog", "changed", host="gpu01"),
]
"""Rank 0 keeps the store in which the ranks decide."""
Look = Callable[[], list[str]]


def cases() -> list[Case]:
    found = [Case("operator", state, then) for state in STATES for then in ("rollback", "resume")]
    found += [
        Case(who, state)
        for who in ("agent", "watchdog", "interrupt", "rank", "host")
        for state in STATES
    ]
    found += [Case(who, state) for who, states in SOME.items() for state in states]
    return [*found, *FIRST]


def named(drill: LivingJobs) -> dict[str, Look]:
    """All that is looked at, by name."""
    trouble = Trouble(drill)
    found: dict[str, Look] = {
        "job: four moves in a row": trouble.in_a_row,
        "job: light that never comes while it is paused": partial(trouble.stuck, "dark"),
        "job: light that never comes while it goes on": partial(trouble.stuck, "riding"),
        "job: verification fails after its ring change": trouble.failed,
        "job: one rank cannot, nothing else is allowed": trouble.cannot,
        "job: weights of a replay": trouble.weights_then_another,
        "job: one rank cannot, so it is resumed": partial(trouble.cannot, live=False),
    }
    found |= {str(each): partial(drill.case, each) for each in cases() if each.who == "rank"}
    found["rank: weights of a replay of all launches"] = partial(
        trouble.weights_then_another, resumed=True
    )
    return found | {str(each): partial(drill.case, each) for each in cases() if each.who != "rank"}


def whole(only: str = "", within_s: str = "inf") -> int:
    """The drill on a lab of its own. only: a regular expression that chooses cases. within_s: no
    case begins later (s).
    """
    with tempfile.TemporaryDirectory(prefix="testbed-drill-") as made:
        lab = Lab(Path(made))
        generate = [
            sys.executable,
            "-m",
            "emulators.generate",
            "--hosts",
            "6",
            "--ports",
            "4",
            "--free-ports",
        ]
        where = ["--out", str(lab.inventory), "--state", str(lab.folder / "lab")]
        subprocess.run([*generate, *where], check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
        lab.testbed("lab", "start").must()
        try:
            drill = LivingJobs(lab)
            chosen = {name: look for name, look in named(drill).items() if re.search(only, name)}
            if not chosen:
                print(
                    f"no case matches {only!r}; there are:",
                    *named(drill),
                    sep="\n  ",
                    file=sys.stderr,
                )
                return 2
            drill.ready()
            return judged(drill, chosen, only, float(within_s))
        finally:
            lab.testbed("lab", "stop")


def judged(drill: LivingJobs, chosen: Mapping[str, Look], only: str, within_s: float) -> int:
    """Look at each, print what was found, and return the exit code."""
    began, number = time.monotonic(), 0
    wrong: list[str] = []
    print(f"  {len(chosen)} cases", flush=True)
    for name, look in chosen.items():
        at = time.monotonic()
        if at - began > within_s:
            break
        number += 1
        found = _looked(look)
        took, passed = time.monotonic() - at, time.monotonic() - began
        left = passed / number * (len(chosen) - number)
        verdict = "WRONG" if found else "ok"
        print(
            f"  {number:>3}/{len(chosen)} {took:4.0f} s, {left / 60:2.0f} min left  {verdict:<5}  {name}",
            flush=True,
        )
        for line in found:
            print(f"        {line}", flush=True)
        if found:
            wrong.append(name)
            if lost := _looked(drill.recover):
                print(f"        the first plan cannot be brought back: {lost}", flush=True)
                break
    counts = {
        "cases": number,
        "passed": number - len(wrong),
        "wrong": wrong,
        "not_run": [*chosen][number:],
        "seconds": round(time.monotonic() - began),
    }
    print(json.dumps({"drill": "living", "only": only, **counts}))
    return int(bool(wrong) or number < len(chosen))


def _looked(look: Look) -> list[str]:
    try:
        return look()
    except (
        AssertionError,
        LookupError,
        TypeError,
        ValueError,
        OSError,
        subprocess.SubprocessError,
        TestbedError,
    ) as error:
        return [f"{type(error).__name__}: {error}"]


if __name__ == "__main__":
    assert os.geteuid() == 0, "namespaces need root"
    sys.exit(whole(*sys.argv[1:3]))
