"""Circuits that change under a running job, again and again: iterations lost, and darkness outside
its computing.

The job of the scenario mixnet-moe, with traffic that shifts in every iteration, under `testbed
service run adapt` until circuits have changed 200 times. The light path of the emulated switches
says when it was dark, the job's records in which iteration: attention lasts at least `compute_ms`,
what is dark later counts as exposed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from bisect import bisect
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.bench_lab import ROOT, TESTBED, BenchLab, bench_lab
from benchmarks.harness import ahead, verdict
from conformance.truth import NoTruth, Truth
from orchestrator.telemetry.reader import read_points

PLAN = ROOT / "extensions" / "adapt" / "scenarios" / "mixnet-moe" / "plans" / "adapted.json"
BUDGET_S = 300.0
"""The service is stopped after this (s): what was seen until then counts."""
COMPUTE_MS = 150.0  # of the plan
CHANGES, EXPOSED = 200, 0.05
APART_S = 0.3
"""Two changes of the light path that lie further apart (s) are of two changes."""


@dataclass
class Seen:
    """What was seen of the changes under a job. exposed, reported: shares of an iteration, one a
    change, by the light path and the records, and by the adapter. lost: iterations missing between
    first and last.
    """

    iterations: int = 0
    lost: int = 0
    exposed: list[float] = field(default_factory=list)
    reported: list[float] = field(default_factory=list)
    dark_ms: list[float] = field(default_factory=list)
    failed: int = 0

    @property
    def most(self) -> float:
        """The largest share of an iteration that was exposed."""
        return max([*self.exposed, *self.reported], default=1.0)


@dataclass
class FibrePlant:
    """The changes of all switches of a lab that runs meanwhile, read again and again until it
    stops.
    """

    socket: Path
    seen: dict[str, list[list[Any]]] = field(default_factory=dict)
    ended: threading.Event = field(default_factory=threading.Event)

    def watch(self) -> None:
        """Read until `ended`."""
        while not self.ended.wait(5.0):
            with suppress(NoTruth):
                truth = Truth(self.socket)
                for device in truth.ask("status")["devices"]:
                    self.seen[device] = truth.ask("history", device=device)["history"]

    def dark(self) -> list[tuple[float, float]]:
        """From the first circuit that went to the last that came, of each change (wall s)."""
        offset = time.time() - time.monotonic()
        events = sorted(
            (event[0] + offset, event[1]) for events in self.seen.values() for event in events
        )
        changes: list[tuple[float, float]] = []
        for at, what in events:
            if what == "broken" and (not changes or at > changes[-1][1] + APART_S):
                changes.append((at, at))
            elif changes and at <= changes[-1][1] + APART_S:
                changes[-1] = (changes[-1][0], at)
        return changes


@contextmanager
def watched(socket: Path) -> Iterator[FibrePlant]:
    """The changes of a lab's switches while this block runs."""
    light = FibrePlant(socket)
    watching = threading.Thread(target=light.watch)
    watching.start()
    try:
        yield light
    finally:
        light.ended.set()
        watching.join()


def adapted(lab: BenchLab) -> None:
    """Have the service change circuits `CHANGES` times, and end it after `BUDGET_S` as Ctrl-C
    would.
    """
    command = [str(TESTBED), "service", "run", "adapt", "--turns", str(CHANGES)]
    running = subprocess.Popen(command, env=lab.env, stdin=subprocess.DEVNULL)
    try:
        running.wait(BUDGET_S)
    except subprocess.TimeoutExpired:
        print("  stopped, its time is over; what was seen until then counts", flush=True)
    finally:
        if running.poll() is None:
            running.send_signal(signal.SIGINT)
            running.wait(60)


def seen(run: str, runs: Path, dark: list[tuple[float, float]]) -> Seen:
    """What the records of the job launched by `run` give, with the dark times of the light path."""
    (file,) = (runs / run).glob("*.iterations.jsonl")
    records = [json.loads(line) for line in file.read_text().splitlines()]
    took = {r["iter"]: r["iter_ms"] for r in records}
    missing = records[-1]["iter"] - records[0]["iter"] + 1 - len(took)
    found, begins = Seen(len(took), missing), [r["t_wall_ns"] / 1e9 for r in records]
    for begin, end in dark:
        if begins[0] < begin < begins[-1]:
            record = records[bisect(begins, begin) - 1]
            late_s = min(end - begin, end - record["t_wall_ns"] / 1e9 - COMPUTE_MS / 1e3)
            found.exposed.append(max(0.0, late_s) * 1e3 / record["iter_ms"])
            found.dark_ms.append((end - begin) * 1e3)
    for folder in runs.iterdir():
        for point in read_points(folder, only=["adapt"]):
            number = int(point.fields.get("iteration") or 0)
            at = (point.time_ns or 0) / 1e9
            if not begins[0] < at < begins[-1]:
                continue
            found.failed += point.tags["what"] == "failed"
            if point.tags["what"] == "changed" and number in took:
                found.reported.append(float(point.fields["exposed_ms"] or 0.0) / took[number])
    return found


def main() -> int:
    """Measure and print; return the exit code."""
    ahead()
    with bench_lab(8, "--electrical", "ideal@20", "--rate-mbps", "50", "--settle-s", "0.05") as lab:
        plan = json.loads(PLAN.read_text())
        plan["job"]["args"]["drift"] = 1
        (path := lab.folder / "plan.json").write_text(json.dumps(plan))
        with watched(lab.state / "control.sock") as light:
            lab.call("up", "--topology", path)
            adapted(lab)
            run = lab.call("job", "stop")["run"]
        found = seen(run, lab.folder / "runs" / "runs", light.dark())
    changes = len(found.reported)
    print(
        f"  {found.iterations} iterations, {found.lost} lost; {changes} changes, {found.failed} failed; dark"
        f" {median(found.dark_ms or [0.0]):.0f} ms a change, exposed at most {found.most:.1%} of an iteration in"
        f" {len(found.exposed)} by the light path and {changes} by the adapter; load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    return verdict(
        "adapt",
        changes,
        "changes",
        CHANGES,
        "at least",
        also=not found.lost and not found.failed and found.most < EXPOSED,
        lost=found.lost,
        iterations=found.iterations,
        exposed=round(found.most, 4),
        label="native",
    )


if __name__ == "__main__":
    sys.exit(main())
