"""The time a warm `testbed up` of 24 moved circuits spends on safety: its store, its journal of
telemetry, and its verification.

Each command runs in a fresh process in which every transaction and read of the store, every
checkpoint of a fence and every point of the journal is timed from outside (no switch in the program
turns them off, so the time they take is taken out of the time of the same run). The verification is
the phase of that name: the whole ladder up to all pairs. Both are part of the change: summed, they
are what the command would be faster by without them.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.bench_lab import BenchLab, bench_lab, ring_links
from benchmarks.harness import spread, verdict
from orchestrator.telemetry import read_points

RUNS, LIMIT_S = 7, 0.5
INTO = "TESTBED_BENCH_JOURNAL_COST"


class Stopwatch:
    """Sums the time spent inside the wrapped functions, each moment once, per thread."""

    def __init__(self) -> None:
        self.ns, self.calls = 0, 0
        self._inside = threading.local()

    @contextmanager
    def running(self) -> Iterator[None]:
        if getattr(self._inside, "yes", False):
            yield
            return
        self._inside.yes, began = True, time.monotonic_ns()
        try:
            yield
        finally:
            self._inside.yes = False
            self.ns += time.monotonic_ns() - began
            self.calls += 1

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def timed(*argv: Any, **more: Any) -> Any:
            with self.running():
                return function(*argv, **more)

        return timed

    def around_block(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @contextmanager
        def timed(*argv: Any, **more: Any) -> Iterator[Any]:
            with self.running(), function(*argv, **more) as value:
                yield value

        return timed


def inside() -> None:
    """`testbed` with its arguments, timed; the sums go to the file that the environment names."""
    from orchestrator.cli.main import main as testbed
    from orchestrator.store.store import Store
    from orchestrator.telemetry.journal import Journal

    store, points = Stopwatch(), Stopwatch()
    Store.transaction = store.around_block(Store.transaction)  # type: ignore[method-assign]
    for name in ("__init__", "_read", "close"):
        setattr(Store, name, store.around(getattr(Store, name)))
    for name in ("__init__", "point", "flush", "close"):
        setattr(Journal, name, points.around(getattr(Journal, name)))
    try:
        testbed()
    finally:
        sums = {
            "store_ns": store.ns,
            "store_calls": store.calls,
            "points_ns": points.ns,
            "points_calls": points.calls,
        }
        Path(os.environ[INTO]).write_text(json.dumps(sums))


def one(lab: BenchLab, plan: Path) -> tuple[float, float, float, float]:
    """Bring `plan` up; return the seconds of all of it, of the store, of the points and of the
    verification.
    """
    sums = lab.folder / "sums.json"
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, __file__, "inside", "up", "--topology", str(plan), "--no-job", "--json"],
        env=lab.env | {INTO: str(sums)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    seconds = time.perf_counter() - began
    envelope = json.loads(done.stdout)
    if not envelope["ok"] or envelope["data"]["made"] != 48 or envelope["data"]["pairs_ok"] != 132:
        raise RuntimeError(f"not the change that was to be timed: {envelope['message']}")
    (run,) = (lab.folder / "runs" / "runs").glob(f"*{envelope['data']['run']}")
    phases = (
        p
        for p in read_points(run, only=["phase"])
        if (p.tags["phase"], p.tags["kind"]) == ("verify", "run")
    )
    verified_ns = sum(int(p.fields["duration_ns"]) for p in phases)
    spent = json.loads(sums.read_text())
    print(
        f"  up {seconds:.2f} s: store {spent['store_ns'] / 1e6:.0f} ms in {spent['store_calls']} calls,"
        f" telemetry {spent['points_ns'] / 1e6:.0f} ms in {spent['points_calls']},"
        f" verification {verified_ns / 1e6:.0f} ms",
        flush=True,
    )
    return seconds, spent["store_ns"] / 1e9, spent["points_ns"] / 1e9, verified_ns / 1e9


def main() -> int:
    if sys.argv[1:2] == ["inside"]:
        del sys.argv[1]
        inside()
        return 0
    with bench_lab() as lab:
        plans = [
            lab.plan("here", ring_links(1, (1, 2)) + ring_links(5, (3, 4))),
            lab.plan("there", ring_links(5, (1, 2)) + ring_links(1, (3, 4))),
        ]
        lab.call("up", "--topology", plans[1], "--no-job")
        runs = [one(lab, plans[k % 2]) for k in range(RUNS)]
    totals, stores, points, verified = (list(column) for column in zip(*runs, strict=True))
    cost = [a + b + c for a, b, c in zip(stores, points, verified, strict=True)]
    return verdict(
        "journal_cost",
        statistics.median(cost),
        "s",
        LIMIT_S,
        "at most",
        store_s=round(statistics.median(stores), 4),
        telemetry_s=round(statistics.median(points), 4),
        verification_s=round(statistics.median(verified), 4),
        of_up_s=round(statistics.median(totals), 3),
        spread=round(spread(cost), 2),
    )


if __name__ == "__main__":
    sys.exit(main())
