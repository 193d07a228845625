"""All-to-all time of a mixture of experts: over circuits that follow it, over the best fixed ones, and over an oracle's.

The arms of the scenario mixnet-moe in turn, over one whole cycle of drift each: their mean times, which the iterations right after
a shift are part of. Then the same two with uniform traffic, as a control. The glass of the emulated switches says when it was dark,
the job's records in which iteration: attention lasts at least `compute_ms`, what is dark later counts as exposed. The interval is
over the times between two shifts of all measurements. `python benchmarks/adapt.py skewed` measures one of the two parts.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from bisect import bisect
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.bench_lab import ROOT, TESTBED
from benchmarks.harness import ahead, verdict
from conformance.truth import NoTruth, Truth
from orchestrator.engine.scenario import interval
from orchestrator.telemetry.reader import read

SCENARIO = ROOT / "examples" / "scenarios" / "mixnet-moe"
PARTS = {"skewed": (("adapt", "fixed", "oracle"), 12, 96), "uniform": (("uniform-adapt", "uniform-fixed"), 4, 24)}
"""Arms, iterations of each measurement that are not counted, and those that are: eight shifts are a whole cycle."""
REPEATS = 2
BUDGET_S = {"skewed": 620, "uniform": 240}
"""A part is stopped after so long (s), wherever it is: all must be done within 15 minutes, on a busy machine too."""
DRIFT, COMPUTE_MS = 12, 150.0  # of the scenario's plans
OVER_FIXED, OVER_ORACLE, CONTROL, EXPOSED = 0.75, 1.15, 0.05, 0.05
APART_S = 0.3
"""Two changes of the glass that lie further apart (s) are of two turns."""

Record = dict[str, Any]


@dataclass
class Arm:
    """What the measurements of one arm gave. comm_ms: a list for each time between two shifts. exposed, said: shares of an
    iteration, one a turn, by the glass and the records, and by the adapter. lost: iterations missing between first and last."""

    comm_ms: list[list[float]] = field(default_factory=list)
    iteration_ms: list[float] = field(default_factory=list)
    exposed: list[float] = field(default_factory=list)
    said: list[float] = field(default_factory=list)
    dark_ms: list[float] = field(default_factory=list)
    turns: int = 0
    failed: int = 0
    lost: int = 0


@dataclass
class Glass:
    """The changes of all switches of a lab that runs meanwhile, read again and again until it stops."""

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
        """From the first circuit that went to the last that came, of each turn (wall s)."""
        offset = time.time() - time.monotonic()
        events = sorted((event[0] + offset, event[1]) for events in self.seen.values() for event in events)
        turns: list[tuple[float, float]] = []
        for at, what in events:
            if what == "broken" and (not turns or at > turns[-1][1] + APART_S):
                turns.append((at, at))
            elif turns and at <= turns[-1][1] + APART_S:
                turns[-1] = (turns[-1][0], at)
        return turns


def scenario(folder: Path, part: str) -> Path:
    """Write the part of the scenario that is measured here; return its file."""
    arms, warm_up, iterations = PARTS[part]
    whole = yaml.safe_load((SCENARIO / "scenario.yaml").read_text())
    whole |= {"name": f"moe-{part}", "repeats": REPEATS, "warm_up": warm_up, "iterations": iterations}
    whole["arms"] = {name: arm for name, arm in whole["arms"].items() if name in arms}
    whole["compare"] = [each for each in whole["compare"] if {each["of"], each["over"]} <= set(arms)]
    whole["differs"] = ["plan.adapt", *(["plan.job.args.foretell"] if "oracle" in arms else [])]
    (place := folder / part).mkdir()
    shutil.copytree(SCENARIO / "plans", place / "plans")
    (place / "scenario.yaml").write_text(json.dumps(whole))
    return place / "scenario.yaml"


def measured(folder: Path, part: str) -> dict[str, Arm]:
    """Measure the arms of a part in turn, for as long as there is time. Raises: as `gathered`."""
    state = folder / "state"
    env = os.environ | {
        "TESTBED_STATE_DIR": str(state),
        "TESTBED_DATA_DIR": str(folder / "data"),
        "TESTBED_LOCK_DIR": str(folder / "locks"),
    }
    glass = Glass(state / "scenarios" / f"moe-{part}" / "state" / "control.sock")
    watching = threading.Thread(target=glass.watch)
    watching.start()
    running = subprocess.Popen([TESTBED, "reproduce", scenario(folder, part)], env=env, stdin=subprocess.DEVNULL)
    try:
        running.wait(BUDGET_S[part])
    except subprocess.TimeoutExpired:
        print(f"  {part}: stopped after {BUDGET_S[part]} s; what was measured until then counts", flush=True)
    finally:
        if running.poll() is None:
            running.send_signal(signal.SIGINT)  # it stops its lab
            running.wait(60)
        glass.ended.set()
        watching.join()
    return gathered(state, part, glass)


def gathered(state: Path, part: str, glass: Glass) -> dict[str, Arm]:
    """What the finished measurements of a part gave. Raises: RuntimeError - an arm has none."""
    (kept,) = (
        found
        for file in (state / "campaigns").glob("*/campaign.json")
        if (found := json.loads(file.read_text()))["scenario"]["name"] == f"moe-{part}"
    )
    arms = {name: Arm() for name in PARTS[part][0]}
    for slot in kept["slots"]:
        if slot["state"] == "done":
            take(arms[slot["arm"]], slot, state / "runs", glass.dark(), *PARTS[part][1:])
    for name, arm in arms.items():
        if not arm.comm_ms:
            why = next((slot["error"] for slot in kept["slots"] if slot["arm"] == name and slot.get("error")), "too slow")
            raise RuntimeError(f"{name}: not measured: {why}")
    return arms


def take(arm: Arm, slot: Record, runs: Path, dark: list[tuple[float, float]], warm_up: int, iterations: int) -> None:
    """Add one measurement to its arm."""
    (file,) = (runs / slot["jobs"]["trainer"][0]["run"]).glob("*.iterations.jsonl")
    records = [json.loads(line) for line in file.read_text().splitlines()]
    arm.lost += records[-1]["iter"] - records[0]["iter"] + 1 - len(records)
    counted = [r for r in records if warm_up < r["iter"] <= warm_up + iterations]
    arm.comm_ms += [[r["comm_ms"] for r in counted[at : at + DRIFT]] for at in range(0, len(counted), DRIFT)]
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
        for point in read(folder, only=["adapt"]):
            number = int(point.fields.get("iteration") or 0)
            at = (point.time_ns or 0) / 1e9
            if not begins[0] < at < begins[-1]:
                continue
            arm.failed += point.tags["what"] == "failed"
            if point.tags["what"] == "turned" and number in took:
                arm.turns += 1
                arm.said.append(float(point.fields["exposed_ms"] or 0.0) / took[number])


def ratio(of: Arm, over: Arm, words: str) -> interval.Interval:
    """Mean all-to-all time of one arm over that of another; printed."""
    found = interval.verdict(over.comm_ms, of.comm_ms, middle=fmean)
    assert found is not None, "both were measured"
    print(
        f"  {words:<40} {found.ratio.value:.3f} ({found.ratio.low:.3f} to {found.ratio.high:.3f});"
        f" {found.b.value:.0f} over {found.a.value:.0f} ms",
        flush=True,
    )
    return found.ratio


def main() -> int:
    """Measure and print; return the exit code."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    ahead()
    parts = sys.argv[1:] or [*PARTS]
    began, good, more = time.monotonic(), True, dict[str, Any]()
    value, limit = 1.0, None
    with tempfile.TemporaryDirectory(prefix="testbed-bench-") as name:
        for part in parts:
            arms = measured(Path(name), part)
            for arm, a in arms.items():
                cycles = f"{len(a.comm_ms) * DRIFT} iterations of {median(a.iteration_ms):.0f} ms"
                print(f"  {arm:<14} {cycles}, {a.turns} turns, {a.failed} failed, {a.lost} iterations lost")
            good &= not any(a.lost or a.failed for a in arms.values())
            more["turns"] = more.get("turns", 0) + sum(a.turns for a in arms.values())
            more["lost"] = more.get("lost", 0) + sum(a.lost for a in arms.values())
            if part == "uniform":
                control = ratio(arms["uniform-adapt"], arms["uniform-fixed"], "uniform: adapted over fixed")
                good &= abs(control.value - 1) <= CONTROL
                more["uniform"] = [control.value, control.low, control.high]
                continue
            over = ratio(arms["adapt"], arms["fixed"], "adapted over best fixed circuits")
            oracle = ratio(arms["adapt"], arms["oracle"], "adapted over circuits known in advance")
            exposed, said = arms["adapt"].exposed, arms["adapt"].said
            most = max([*exposed, *said], default=1.0)
            within = sum(share < EXPOSED for share in exposed), sum(share < EXPOSED for share in said)
            print(
                f"  dark {median(arms['adapt'].dark_ms or [0.0]):.0f} ms a turn; exposed, of an iteration: below {EXPOSED:.0%} in"
                f" {within[0]} of {len(exposed)} by the glass, {within[1]} of {len(said)} by the adapter; most {most:.1%}"
            )
            good &= oracle.value <= OVER_ORACLE and most < EXPOSED
            value, limit = over.value, OVER_FIXED
            more |= {"interval": [over.low, over.high], "over_oracle": [oracle.value, oracle.low, oracle.high]}
            more |= {"most_exposed": round(most, 4), "exposed_within": within, "exposed_of": (len(exposed), len(said))}
    print(f"  took {time.monotonic() - began:.0f} s, load {os.getloadavg()[0]:.1f}")
    return verdict("adapt", value, "x fixed", limit, "at most", also=good, label="native", **more)


if __name__ == "__main__":
    sys.exit(main())
