"""Fibres cut under a training job: how soon the guard reports it, and how soon traffic is rerouted,
job running all the while.

A lab of six hosts carries a ring with three chords and a training job. Twelve times one of its
cables is cut through; the guard learns it from the hosts, routes traffic around it, and puts the
planned routes back when the cable is whole again. Detection counts from before the cut to the
guard's word; the reroute from the first host's loss of carrier to the last host's commit. The job
must have finished iterations after every reroute; how long it stalled is reported.
"""

from __future__ import annotations

import json
import queue
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.bench_lab import TESTBED, BenchLab, bench_lab, ring_links
from benchmarks.harness import verdict

HOSTS, CUTS = 6, 12
DETECTED_S, COMMITTED_S = 1.0, 2.0
NAMES = [f"gpu{n:02d}" for n in range(1, HOSTS + 1)]


class Events:
    """The output of a guard in the foreground, in order."""

    def __init__(self, lab: BenchLab, *options: str) -> None:
        argv = [str(TESTBED), "service", "run", "guard", "--jsonl", "--hold", "500ms", *options]
        self._guard = subprocess.Popen(argv, env=lab.env, stdout=subprocess.PIPE, text=True)
        self._reported: queue.Queue[dict[str, Any]] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._guard.stdout is not None
        for line in self._guard.stdout:
            self._reported.put(json.loads(line))

    def wait(self, kind: str, limit_s: float = 30.0) -> dict[str, Any]:
        """The next event of this kind. Raises: RuntimeError - it does not come."""
        give_up = time.monotonic() + limit_s
        while time.monotonic() < give_up:
            try:
                event = self._reported.get(timeout=max(give_up - time.monotonic(), 0.001))
            except queue.Empty:
                break
            if event["event"] == "failed":
                raise RuntimeError(f"the guard failed: {event['message']}")
            if event["event"] == kind:
                return event
        raise RuntimeError(f"the guard did not say {kind!r} within {limit_s:g} s")

    def end(self) -> None:
        self._guard.terminate()
        self._guard.wait(20)
        self._reader.join(5)


@contextmanager
def guarded(lab: BenchLab) -> Iterator[Events]:
    events = Events(lab)
    try:
        yield events
    finally:
        events.end()


def plan_of(lab: BenchLab) -> tuple[Path, list[str]]:
    """The plan, and the cables that carry it."""
    links = ring_links(1, (1, 2), HOSTS) + [
        (f"gpu{n:02d}:p3", f"gpu{n + HOSTS // 2:02d}:p3") for n in range(1, HOSTS // 2 + 1)
    ]
    job = {
        "name": "mlp",
        "workload": "train",
        "ranks": NAMES,
        "rings": [NAMES],
        "args": {"iterations": 0, "hidden": 64},
    }
    cables = sorted({f"f-{end.replace(':', '-')}" for link in links for end in link})
    return lab.plan("ring-and-chords", links, job=job), cables


def longest_gap_s(lab: BenchLab, begin: float, end: float) -> float:
    """The longest time the job finished no iteration in, between two wall times (s)."""
    files = (lab.folder / "runs").rglob("*.iterations.jsonl")
    at = sorted(
        json.loads(line)["t_wall_ns"] / 1e9
        for file in files
        for line in file.read_text().splitlines()
    )
    inside = [t for t in at if begin <= t <= end]
    return max((b - a for a, b in pairwise(inside)), default=end - begin)


def main() -> int:
    with bench_lab(HOSTS) as lab:
        plan, cables = plan_of(lab)
        lab.call("up", "--topology", plan)
        detected, committed, stalls, went_on = [], [], [], True
        with guarded(lab) as guard:
            guard.wait("watching")
            time.sleep(1.0)
            for step in range(CUTS):
                cable = cables[step * 5 % len(cables)]
                begin = time.time()
                lab.ask("fibre", name=cable, cut=True)
                detected.append(guard.wait("dark")["at"] - begin)
                rerouted = guard.wait("rerouted")
                committed.append(rerouted["committed_ms"] / 1e3)
                before = lab.call("job", "status")["iterations"]
                after = lab.call("job", "status")
                went_on = went_on and after["state"] == "running" and after["iterations"] > before
                stalls.append(longest_gap_s(lab, begin - 0.5, time.time()))
                lab.ask("fibre", name=cable, cut=False)
                guard.wait("restored", 60.0)
                print(
                    f"  cut {step + 1:2} {cable}: detected {detected[-1] * 1e3:6.1f} ms, committed {committed[-1] * 1e3:6.1f} ms,"
                    f" job lost {stalls[-1] * 1e3:6.0f} ms, iteration {after['iterations']}",
                    flush=True,
                )
    for what, values in (("detected", detected), ("committed", committed), ("stalled", stalls)):
        ordered = sorted(values)
        print(
            f"  {what:<12} min {ordered[0] * 1e3:7.1f}  median {statistics.median(ordered) * 1e3:7.1f}"
            f"  p90 {ordered[int(0.9 * (len(ordered) - 1))] * 1e3:7.1f}  max {ordered[-1] * 1e3:7.1f} ms over {len(ordered)} cuts"
        )
    return verdict(
        "reroute",
        max(committed),
        "s",
        COMMITTED_S,
        "at most",
        also=max(detected) <= DETECTED_S and went_on,
        detected_worst_s=round(max(detected), 4),
        detected_median_s=round(statistics.median(detected), 4),
        committed_median_s=round(statistics.median(committed), 4),
        job_gap_median_s=round(statistics.median(stalls), 3),
        job_went_on=went_on,
        cuts=len(committed),
    )


if __name__ == "__main__":
    sys.exit(main())
