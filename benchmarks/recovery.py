"""Time from a fault to iterations again, over waiting for the collective's own timeout: rank
killed, rank hung, fibre cut.

Six hosts train over a ring with three chords; the guard with `--jobs` watches. Each trial hurts
another rank or fibre, and counts from before the fault to the end of the first iteration that the
job had not made before, by the records of rank 0: iterations that are trained twice are part of the
cost. The other arm is a rank that hangs without the guard: the others wait for the collective's
timeout (`TESTBED_TIMEOUT_S` of workloads/host/place.py, 60 s), and then end. Only the time until
then counts, to its advantage: somebody still has to launch the job again.

Also reported: iterations lost by going back to a checkpoint (every 20), and that no attempt was
made that no fault had caused.
"""

from __future__ import annotations

import json
import signal
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.bench_lab import BenchLab, bench_lab, ring_links
from benchmarks.harness import verdict
from benchmarks.reroute import Events
from orchestrator.services.guard.policy import CALM_S, FIRST_BACKOFF_S
from tests.rank_signals import send

HOSTS, TRIALS, LIMIT = 6, 3, 0.2
NAMES = [f"gpu{n:02d}" for n in range(1, HOSTS + 1)]
SIGNALS = {"kill": signal.SIGKILL, "hang": signal.SIGSTOP}


@contextmanager
def guarded(lab: BenchLab) -> Iterator[Events]:
    events = Events(lab, "--jobs", "--restarts", "60/h")
    try:
        yield events
    finally:
        events.end()


def plan_of(lab: BenchLab) -> Path:
    links = ring_links(1, (1, 2), HOSTS) + [
        (f"gpu{n:02d}:p3", f"gpu{n + HOSTS // 2:02d}:p3") for n in range(1, HOSTS // 2 + 1)
    ]
    args = {"iterations": 0, "hidden": 64, "checkpoint_every": 20}
    return lab.plan(
        "recovery",
        links,
        job={"name": "mlp", "workload": "train", "ranks": NAMES, "rings": [NAMES], "args": args},
    )


def iterations(lab: BenchLab) -> list[tuple[int, float]]:
    """Every iteration recorded so far, of all launches: its number, and when it ended (wall s)."""
    lab.call("job", "status", check=False)  # brings the newest home
    rows = [
        json.loads(line)
        for file in (lab.folder / "runs").rglob("*.iterations.jsonl")
        for line in file.read_text().splitlines()
    ]
    return sorted(
        ((r["iter"], r["t_wall_ns"] / 1e9 + r["iter_ms"] / 1e3) for r in rows),
        key=lambda row: row[1],
    )


def again(lab: BenchLab, fault: tuple[float, float], within_s: float = 90.0) -> tuple[float, int]:
    """How long after a fault the job made an iteration it had not made before, and how many it had
    made twice by then.

    fault: when it began to be brought about, and when that was done (wall s): counted from the one;
    the iterations that the job still ended before the other are not new. Raises: RuntimeError - it
    makes none.
    """
    began, done = fault
    give_up = time.monotonic() + within_s
    while time.monotonic() < give_up:
        found = iterations(lab)
        made = max((number for number, at in found if at <= done), default=0)
        if new := [at for number, at in found if at > done and number > made]:
            twice = sum(number <= made for number, at in found if at > done)
            return new[0] - began, twice
        time.sleep(0.5)
    raise RuntimeError(f"no new iteration within {within_s:g} s of the fault")


def hurt(lab: BenchLab, what: str, step: int) -> tuple[float, float]:
    """Bring a fault about; when that began and was done (wall s)."""
    host = NAMES[1 + step % (HOSTS - 1)]  # not rank 0, whose store tells the others at once
    at = time.time()
    if what == "cut":
        lab.ask("fibre", name=f"f-{host}-p1", cut=True)
    else:
        send(lab.env, host, SIGNALS[what])
    return at, time.time()


def unguarded(lab: BenchLab) -> float:
    """How long (s) a job whose rank hangs stands until it ends, with nobody watching. Raises:
    RuntimeError - it does not.
    """
    at, _ = hurt(lab, "hang", 0)
    while lab.call("job", "status", check=False)["state"] == "running":
        if time.time() > at + 180.0:
            raise RuntimeError("the job neither goes on nor ends")
        time.sleep(0.5)
    return time.time() - at


def main() -> int:
    took: dict[str, list[float]] = {"kill": [], "hang": [], "cut": []}
    twice = []
    with bench_lab(HOSTS) as lab:
        lab.call("up", "--topology", plan_of(lab))
        with guarded(lab) as guard:
            guard.wait("watching")
            time.sleep(5.0)
            for step in range(TRIALS):
                for what, times in took.items():
                    at = hurt(lab, what, step)
                    seconds, repeated = again(lab, at)
                    times.append(seconds)
                    twice.append(repeated)
                    print(
                        f"  {what} {step + 1}: {seconds:5.2f} s to a new iteration, {repeated} iterations made twice",
                        flush=True,
                    )
                    if what == "cut":
                        lab.ask("fibre", name=f"f-{NAMES[1 + step % (HOSTS - 1)]}-p1", cut=False)
                    time.sleep(CALM_S + FIRST_BACKOFF_S + 5.0)  # each trial is the first of a row
        attempts = len(lab.call("status")["recoveries"])
        waited_s = unguarded(lab)
        print(
            f"  without the guard: {waited_s:5.2f} s until a job with a hanging rank ends",
            flush=True,
        )
    medians = {what: statistics.median(times) for what, times in took.items()}
    return verdict(
        "recovery",
        statistics.median([seconds for times in took.values() for seconds in times]) / waited_s,
        "of the wait without it",
        LIMIT,
        "at most",
        also=attempts <= 2 * TRIALS,
        **{f"{what}_median_s": round(value, 2) for what, value in medians.items()},
        worst_s=round(max(max(times) for times in took.values()), 2),
        twice_median=statistics.median(twice),
        attempts=attempts,
        waited_s=round(waited_s, 2),
        label="native",
    )


if __name__ == "__main__":
    sys.exit(main())
