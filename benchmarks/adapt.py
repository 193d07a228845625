"""All-to-all time of a mixture of experts: over circuits that follow it, over the best fixed ones,
and over an oracle's.

The scenario mixnet-moe, measured whole: skewed traffic, and uniform as a control, the arms in turn,
over one whole cycle of drift each. Its own ratios are of medians; here they are of means, which the
iterations right after a shift are part of. The light path of the emulated switches says when it was
dark, the job's records in which iteration: attention lasts at least `compute_ms`, what is dark
later counts as exposed. Each whole round gives one ratio of means, and the interval is over the
rounds; losses, failures and darkness count in every measurement that was finished.

`python benchmarks/adapt.py changes` instead: traffic that shifts in every iteration, until circuits
have changed 200 times.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from bisect import bisect
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.bench_lab import ROOT, TESTBED, bench_lab
from benchmarks.harness import ahead, verdict
from benchmarks.job_rig import ratio
from conformance.truth import NoTruth, Truth
from orchestrator.telemetry.reader import read_points

SCENARIO = ROOT / "extensions" / "adapt" / "scenarios" / "mixnet-moe"
BUDGET_S = {"scenario": 1600.0, "changes": 300.0}
"""A part has so long (s), and is stopped then: what was measured until then counts. Three rounds of
the scenario take about 1300 s.
"""
FEWEST = 2  # rounds: one has no interval
COMPUTE_MS = 150.0  # of the scenario's plans
CHANGES = 200
OVER_FIXED, OVER_ORACLE, CONTROL, EXPOSED = 0.75, 1.15, 0.05, 0.05
APART_S = 0.3
"""Two changes of the light path that lie further apart (s) are of two changes."""

Record = dict[str, Any]


@dataclass
class Arm:
    """What the measurements of one arm gave. comm_ms: a list for each whole round. exposed,
    reported: shares of an iteration, one a change, by the light path and the records, and by the
    adapter. lost: iterations missing between first and last.
    """

    comm_ms: list[list[float]] = field(default_factory=list)
    iteration_ms: list[float] = field(default_factory=list)
    exposed: list[float] = field(default_factory=list)
    reported: list[float] = field(default_factory=list)
    dark_ms: list[float] = field(default_factory=list)
    changes: int = 0
    failed: int = 0
    lost: int = 0

    def __str__(self) -> str:
        took = f"{len(self.iteration_ms)} iterations of {median(self.iteration_ms):.0f} ms"
        return f"{took}, {self.changes} changes, {self.failed} failed, {self.lost} iterations lost"


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


def work(command: list[str], env: dict[str, str], within_s: float) -> None:
    """Run `testbed` with these words, and end it after so long as Ctrl-C would."""
    running = subprocess.Popen([TESTBED, *command], env=env, stdin=subprocess.DEVNULL)
    try:
        running.wait(within_s)
    except subprocess.TimeoutExpired:
        print(
            f"  {command[0]}: stopped, its time is over; what was measured until then counts",
            flush=True,
        )
    finally:
        if running.poll() is None:
            running.send_signal(signal.SIGINT)
            running.wait(60)


def measured(folder: Path) -> dict[str, Arm]:
    """Measure the arms of the scenario, and add up what the finished measurements gave. Raises:
    RuntimeError - too few rounds are whole.
    """
    state = folder / "state"
    env = os.environ | {
        "TESTBED_STATE_DIR": str(state),
        "TESTBED_DATA_DIR": str(folder / "data"),
        "TESTBED_LOCK_DIR": str(folder / "locks"),
    }
    with watched(state / "scenarios" / SCENARIO.name / "state" / "control.sock") as light:
        work(["experiment", "reproduce", SCENARIO.name], env, BUDGET_S["scenario"])
    (kept,) = (
        json.loads(file.read_text()) for file in (state / "campaigns").glob("*/campaign.json")
    )
    warm_up, iterations = kept["warm_up"], kept["iterations"]
    arms = {name: Arm() for name in kept["arms"]}
    finished = [slot for slot in kept["slots"] if slot["state"] == "done"]
    done = Counter(slot["round"] for slot in finished)
    whole = {number for number, count in done.items() if count == len(arms)}
    if len(whole) < FEWEST:
        why = (f"{slot['arm']}: {slot['error']}" for slot in kept["slots"] if slot.get("error"))
        text = f"{len(whole)} rounds of {SCENARIO.name} are whole, {FEWEST} are needed"
        raise RuntimeError(f"{text}: {next(why, 'too slow')}")
    for slot in finished:
        take(
            arms[slot["arm"]],
            slot["jobs"]["trainer"][0]["run"],
            state / "runs",
            light.dark(),
            warm_up,
            iterations,
            paired=slot["round"] in whole,
        )
    return arms


def fast() -> Arm:
    """changes in a job whose traffic shifts in every iteration: `CHANGES`, or as many as there is
    time for.
    """
    arm = Arm()
    with bench_lab(8, "--electrical", "ideal@20", "--rate-mbps", "50", "--settle-s", "0.05") as lab:
        plan = json.loads((SCENARIO / "plans" / "adapted.json").read_text())
        plan["job"]["args"]["drift"] = 1
        (path := lab.folder / "plan.json").write_text(json.dumps(plan))
        with watched(lab.state / "control.sock") as light:
            lab.call("up", "--topology", path)
            work(["service", "run", "adapt", "--turns", str(CHANGES)], lab.env, BUDGET_S["changes"])
            run = lab.call("job", "stop")["run"]
        take(arm, run, lab.folder / "runs" / "runs", light.dark())
    return arm


def take(
    arm: Arm,
    run: str,
    runs: Path,
    dark: list[tuple[float, float]],
    warm_up: int = 0,
    iterations: int = 1 << 30,
    *,
    paired: bool = True,
) -> None:
    """Add one measurement, the job launched by `run`, to its arm. paired: its round is whole."""
    (file,) = (runs / run).glob("*.iterations.jsonl")
    records = [json.loads(line) for line in file.read_text().splitlines()]
    arm.lost += records[-1]["iter"] - records[0]["iter"] + 1 - len({r["iter"] for r in records})
    counted = [r for r in records if warm_up < r["iter"] <= warm_up + iterations]
    if paired:
        arm.comm_ms.append([r["comm_ms"] for r in counted])
    arm.iteration_ms += [r["iter_ms"] for r in counted]
    begins = [r["t_wall_ns"] / 1e9 for r in records]
    for begin, end in dark:
        if begins[0] < begin < begins[-1]:
            record = records[bisect(begins, begin) - 1]
            late_s = min(end - begin, end - record["t_wall_ns"] / 1e9 - COMPUTE_MS / 1e3)
            arm.exposed.append(max(0.0, late_s) * 1e3 / record["iter_ms"])
            arm.dark_ms.append((end - begin) * 1e3)
    took = {r["iter"]: r["iter_ms"] for r in records}
    for folder in runs.iterdir():
        for point in read_points(folder, only=["adapt"]):
            number = int(point.fields.get("iteration") or 0)
            at = (point.time_ns or 0) / 1e9
            if not begins[0] < at < begins[-1]:
                continue
            arm.failed += point.tags["what"] == "failed"
            if point.tags["what"] == "changed" and number in took:
                arm.changes += 1
                arm.reported.append(float(point.fields["exposed_ms"] or 0.0) / took[number])


def means(of: Arm, over: Arm, text: str) -> list[float]:
    """Mean all-to-all time of one arm over that of another, with its interval; printed."""
    value, low, high = found = ratio(over.comm_ms, of.comm_ms, fmean)
    print(f"  {text:<40} {value:.3f} ({low:.3f} to {high:.3f})", flush=True)
    return found


def exposed(arm: Arm, more: Record) -> bool:
    """Whether all darkness fell into the job's computing but for a small share of an iteration;
    printed, and added to `more`.
    """
    most = max([*arm.exposed, *arm.reported], default=1.0)
    within = (
        sum(share < EXPOSED for share in arm.exposed),
        sum(share < EXPOSED for share in arm.reported),
    )
    print(
        f"  dark {median(arm.dark_ms or [0.0]):.0f} ms a change; exposed, of an iteration: below {EXPOSED:.0%} in"
        f" {within[0]} of {len(arm.exposed)} by the light path, {within[1]} of {len(arm.reported)} by the adapter; most {most:.1%}",
        flush=True,
    )
    more["exposed"] = {
        "most": round(most, 4),
        "within": within,
        "of": (len(arm.exposed), len(arm.reported)),
    }
    return most < EXPOSED


def main() -> int:
    """Measure and print; return the exit code."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("part", nargs="?", choices=[*BUDGET_S], default="scenario")
    part = parser.parse_args().part
    ahead()
    began, more = time.monotonic(), dict[str, Any]()
    if part == "changes":
        arms = {part: fast()}
    else:
        with tempfile.TemporaryDirectory(prefix="testbed-bench-") as name:
            arms = measured(Path(name))
    for arm, a in arms.items():
        print(f"  {arm:<14} {a}", flush=True)
    good = not any(a.lost or a.failed for a in arms.values())
    print(f"  took {time.monotonic() - began:.0f} s, load {os.getloadavg()[0]:.1f}")
    more = {"label": "native", "lost": sum(a.lost for a in arms.values())}
    if part == "changes":
        good &= exposed(arms[part], more)
        return verdict(
            "adapt_changes", arms[part].changes, "changes", CHANGES, "at least", also=good, **more
        )
    control = means(arms["uniform-adapt"], arms["uniform-fixed"], "uniform: adapted over fixed")
    over = means(arms["adapt"], arms["fixed"], "adapted over best fixed circuits")
    oracle = means(arms["adapt"], arms["oracle"], "adapted over circuits known in advance")
    good &= (
        exposed(arms["adapt"], more) and oracle[0] <= OVER_ORACLE and abs(control[0] - 1) <= CONTROL
    )
    more |= {"interval": over, "over_oracle": oracle, "uniform": control}
    more["rounds"] = len(arms["adapt"].comm_ms)
    return verdict("adapt", over[0], "x fixed", OVER_FIXED, "at most", also=good, **more)


if __name__ == "__main__":
    sys.exit(main())
