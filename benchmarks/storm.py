"""Goodput of a training job in a storm of faults under `guard --jobs`, and that nothing is lost but
iterations since a checkpoint.

Six hosts, of which two are spares; four train with a checkpoint every EVERY iterations. Windows
without faults and hours of storm take turns: `lab fault add all storm` draws links that are slow,
lossy or down, busy hosts, and ranks that hang or are killed, one in ten minutes for five minutes on
average. The storm runs SCALE times as fast: an hour takes 90 s. Detection and restart do not: a
recovery of ten seconds costs the job what one of seven minutes would in that hour, so this is no
forecast for a real lab.

The goodput of a round is how many iterations further the job is per second, from the beginning of
the storm to the first new iteration after its end, over the same of the windows before and after
it. Iterations made twice count once. The figure is the geometric mean of the rounds' goodputs. It
has no band.

What must hold (`problems`), by rank 0's records, the store's recoveries and the lab's own log of
faults:
- within a launch no iteration is missing or repeated; the next one goes on after a checkpoint, so
  that at most EVERY iterations and those in flight are made again, and none is left out;
- every recovery has a fault that explains it, at the hosts it names; every killed rank is followed
  by a recovery, or hit one;
- no period has more recoveries than the budget.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.bench_lab import BenchLab, bench_lab
from benchmarks.harness import verdict
from benchmarks.reroute import Events
from orchestrator.experiments.scenario.paired import Interval, paired_ratio
from orchestrator.services.guard.policy import Budget

HOSTS, EVERY, IN_FLIGHT = 6, 20, 1
"""Ranks are at most one iteration apart."""
SCALE, STORM_S, CALM_S, WARM_S = 40, 90.0, 20.0, 10.0
PER_S, LASTS_S = 600 / SCALE, 300 / SCALE
SETTLE_S = 8.0
"""What a fault at the end of a storm did has shown after this time (s): a hang is seen after 4 s,
looks are a second apart.
"""
WITHIN_S = 120.0
"""A fault explains a recovery for so long (s): pauses between attempts grow to 40 s, and the
budget's period is a minute.
"""
SEEDS = (2, 7, 8)
"""Of storms in which all kinds occur, and ranks of the job are killed in each."""
BUDGET = Budget(4, 60.0)
NAMES = [f"gpu{n:02d}" for n in range(1, HOSTS + 1)]
RANKS = NAMES[:4]
ENDS = ("kill-rank", "hang-rank")
"""Faults at a host that end a job or let it hang; a job may hang by what links do, too, and then no
host is named.
"""
Launch = Sequence[tuple[int, float]]
"""The iterations of one launch: number, end (wall s)."""


@dataclass(frozen=True, slots=True)
class Row:
    """A recovery as the store has it. at, ended: wall s."""

    at: float
    ended: float
    hosts: tuple[str, ...]
    action: str
    why: str
    outcome: str


@dataclass(frozen=True, slots=True)
class Round:
    """kept: iterations the job is further; seconds: within; usual: iterations a second without
    faults, next to it.
    """

    kept: int
    seconds: float
    usual: float

    @property
    def goodput(self) -> float:
        return self.kept / self.seconds / self.usual


def kept_share(rounds: Sequence[Round]) -> Interval:
    """What the rounds' goodputs have in common."""
    return paired_ratio([one.goodput for one in rounds]).found


def journal_problems(launches: Sequence[Launch], every: int = EVERY) -> tuple[list[str], list[int]]:
    """What the records of these launches, in order, show to be lost or repeated without reason;
    iterations made again at each.
    """
    problems, again = [], []
    for launch in launches:
        problems += [
            f"iteration {b} follows {a}" for (a, _), (b, _) in pairwise(launch) if b != a + 1
        ]
    if launches and launches[0][0][0] != 1:
        problems.append(f"the first iteration is {launches[0][0][0]}")
    for before, after in pairwise(launches):
        last, resumed = before[-1][0], after[0][0] - 1
        if resumed > last:
            problems.append(
                f"{resumed - last} iterations are in no record: {last} was the last, then came {resumed + 1}"
            )
        elif resumed % every:
            problems.append(
                f"it went on after iteration {resumed}, of which there is no checkpoint"
            )
        elif last - resumed > every + IN_FLIGHT:
            problems.append(f"{last - resumed} iterations were made again, after {resumed}")
        again.append(last - resumed)
    return problems, again


def fault_problems(log: Sequence[Mapping[str, Any]], rows: Sequence[Row]) -> list[str]:
    """Recoveries that no fault of the lab's log explains, and killed ranks that none followed."""
    begun = [
        (entry["t_wall_ns"] / 1e9, entry["host"], entry["kind"])
        for entry in log
        if entry["event"] == "begin"
    ]
    problems = []
    for row in rows:
        near = [
            (host, kind)
            for at, host, kind in begun
            if row.at - WITHIN_S <= at <= row.at and kind != "storm"
        ]
        if row.hosts:
            near = [(host, kind) for host, kind in near if host in row.hosts and kind in ENDS]
        if not near:
            problems.append(f"no fault explains the recovery {row.action}: {row.why}")
    for at, host, kind in begun:
        if kind == "kill-rank" and not any(
            row.ended >= at and row.at <= at + WITHIN_S for row in rows
        ):
            problems.append(f"no recovery followed the killed rank of {host}")
    return problems


def budget_problems(rows: Sequence[Row], budget: Budget) -> list[str]:
    """Periods with more recoveries than allowed."""
    counts = {
        row.at: sum(row.at <= other.at < row.at + budget.per_s for other in rows) for row in rows
    }
    return [
        f"{count} recoveries in {budget.per_s:g} s"
        for count in counts.values()
        if count > budget.restarts
    ]


def launches_of(lab: BenchLab) -> list[list[tuple[int, float]]]:
    """The records of rank 0 of every launch that ended an iteration, in order."""
    lab.call("job", "status", check=False)  # brings the newest home
    found = []
    for file in (lab.folder / "runs").rglob("*.iterations.jsonl"):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        found.append([(row["iter"], row["t_wall_ns"] / 1e9 + row["iter_ms"] / 1e3) for row in rows])
    return sorted(filter(None, found), key=lambda launch: launch[0][1])


def reached(launches: Sequence[Launch], at: float) -> int:
    """The highest iteration that had ended at this time (wall s)."""
    return max((number for launch in launches for number, end in launch if end <= at), default=0)


def calm(lab: BenchLab) -> float:
    """Iterations a second without faults."""
    began = time.time()
    time.sleep(CALM_S)
    launches, ended = launches_of(lab), began + CALM_S
    return (reached(launches, ended) - reached(launches, began)) / CALM_S


def storm(lab: BenchLab, seed: int) -> tuple[int, float]:
    """An hour of storm: how many iterations further the job is, and in what time (s). Raises:
    RuntimeError - it does not go on.
    """
    began = time.time()
    argv = [
        "--per",
        f"{PER_S:g}s",
        "--seconds",
        f"{LASTS_S:g}",
        "--for",
        f"{STORM_S:g}s",
        "--seed",
        str(seed),
    ]
    lab.call("lab", "fault", "add", "all", "storm", *argv)
    time.sleep(max(0.0, began + STORM_S + SETTLE_S - time.time()))
    ended = time.time()
    give_up = time.monotonic() + WITHIN_S
    while time.monotonic() < give_up:
        launches = launches_of(lab)
        before = reached(launches, ended)
        if new := [end for launch in launches for number, end in launch if number > before]:
            return before + 1 - reached(launches, began), min(new) - began
        time.sleep(1.0)
    raise RuntimeError(
        f"no new iteration within {WITHIN_S:g} s of the storm: {lab.call('status', check=False).get('recoveries')}"
    )


def recoveries_of(lab: BenchLab) -> list[Row]:
    """The store's recoveries, oldest first."""
    with closing(
        sqlite3.connect(f"file:{lab.folder}/data/testbed.sqlite3?mode=ro", uri=True)
    ) as store:
        rows = store.execute(
            "SELECT at, ended, hosts, action, why, outcome FROM recoveries ORDER BY seq"
        ).fetchall()
    return [
        Row(at, ended or time.time(), tuple(filter(None, hosts.split(","))), *more)
        for at, ended, hosts, *more in rows
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=SEEDS, help="of the hours of storm (default: 2 7 8)"
    )
    seeds = parser.parse_args().seeds
    links = [
        *zip(RANKS, RANKS[1:] + RANKS[:1], strict=True),
        (RANKS[0], RANKS[2]),
        (RANKS[1], RANKS[3]),
    ]
    # 80 ms on the links: not bound by the processors
    args = {"iterations": 0, "hidden": 512, "checkpoint_every": EVERY}
    job = {"name": "mlp", "workload": "train", "ranks": RANKS, "rings": [RANKS], "args": args}
    rounds: list[Round] = []
    with bench_lab(HOSTS) as lab:
        lab.call("up", "--topology", lab.plan("storm", links, job=job, spares=NAMES[4:]))
        guard = Events(lab, "--jobs", "--restarts", str(BUDGET))
        try:
            guard.wait("watching")
            time.sleep(WARM_S)
            before = calm(lab)
            for seed in seeds:
                kept, seconds = storm(lab, seed)
                after = calm(lab)
                rounds.append(Round(kept, seconds, (before + after) / 2))
                text = (
                    f"{kept} iterations kept in {seconds:.0f} s, goodput {rounds[-1].goodput:.2f}"
                )
                print(
                    f"  storm {seed}: {text}; without faults {before:.1f} and {after:.1f} iterations a second",
                    flush=True,
                )
                before = after
        finally:
            guard.end()
        launches, rows, log = launches_of(lab), recoveries_of(lab), lab.ask("faults.list")["log"]
    found, again = journal_problems(launches)
    problems = found + fault_problems(log, rows) + budget_problems(rows, BUDGET)
    faults = [
        entry["kind"] for entry in log if entry["event"] == "begin" and entry["kind"] != "storm"
    ]
    counts = {kind: faults.count(kind) for kind in sorted(set(faults))}
    for row in rows:
        print(
            f"  recovery: {row.action}, {row.outcome or 'goes on'}, {row.ended - row.at:.1f} s; because {row.why}",
            flush=True,
        )
    for problem in problems:
        print(f"  problem: {problem}", flush=True)
    share = kept_share(rounds)
    return verdict(
        "storm",
        share.value,
        "of the undisturbed",
        None,
        "at least",
        also=not problems,
        interval=[end and round(end, 3) for end in (share.low, share.high)],
        rounds=[round(one.goodput, 3) for one in rounds],
        storms=len(rounds),
        faults=counts,
        recoveries=len(rows),
        failed=sum(row.outcome != "ok" for row in rows),
        made_again=again,
        problems=len(problems),
        label="native",
    )


if __name__ == "__main__":
    sys.exit(main())
