"""Training time that a running job loses when all 48 cross-connects move under it, and what a launch
takes instead.

Twelve ranks train over four rings. `testbed up` moves them back and forth between two plans that
share no circuit and list their rings in another order, so that every move is also a ring change of
the job. Lost is what the iterations of rank 0 took beyond the usual, from the first circuit that
went dark to the end of the first iteration over the new rings. It is computed here, from the
records of rank 0 and the emulated glass, not from what `testbed` reports; its own figure
(`paused_ms`) is printed next to it. An iteration counts from the end of the one before to its own
end, so a pause between two iterations is in it. Usual is the median of the 20 before for iterations
over the old rings, of the 20 after for those over the new ones. Dark: the longest time that any
port had no light, by the emulated light path. A rank stands still for as long as it was held plus
the longest time in which it had something to carry and no byte moved, as the ranks measure it.

Arms in one run, honesty label native (real time, real sockets in namespaces): switches of 50 ms
with the policies hold auto, never and always; of 25 ms; of 1 s, where the policy holds the job; and
`--job restart` at 50 ms. Lost by a restart: from the end of the last iteration to the end of the
first one after the launch, less a usual iteration, plus what was trained twice; that the new
processes' first iterations are slow is not counted. A move that ends in any other way than a ring
change is a failure, and one is enough to miss the limit. Afterwards the same moves at 50 ms under
an unmodified PyTorch script, examples/programs/gpt, over the back-end `testbed`. Its ranks change
over at a count of collectives, within an iteration or between two: by the time that rank 0 noted.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.bench_lab import ROOT, BenchLab, bench_lab, ring_links
from benchmarks.harness import verdict
from orchestrator.telemetry.reader import read_points
from orchestrator.views import sweep

HOSTS = [f"gpu{n:02d}" for n in range(1, 13)]
MOVES, FEW, RESTARTS = 10, 5, 3
PROGRAM = "gpt"
AROUND = 20
"""Iterations before and after a move whose median is the usual time."""
BUDGET_S = 900.0
"""After this time no further move is begun, so that the whole ends within a quarter of an hour; the
table says how many were.
"""
PROGRAM_S = 300.0
"""The moves under the program get so much longer."""
DARK_FACTOR = 2.0

Record = Mapping[str, Any]


@dataclass
class Move:
    """What one move cost (ms). ranks: how long each rank was paused; turned: the mode that
    `testbed` reports.
    """

    lost: float
    iteration: float
    dark: float
    window: float
    paused: float | None
    mode: str
    ranks: dict[str, float] = field(default_factory=dict)

    @property
    def worst(self) -> float:
        """The longest time a rank was paused (ms)."""
        return max(self.ranks.values(), default=float("nan"))


class NoFigure(RuntimeError):
    """A move from which nothing can be computed; the message says why."""


def ends(records: Sequence[Record]) -> list[float]:
    """When each iteration ended (ms of wall time)."""
    return [r["t_wall_ns"] / 1e6 + r["iter_ms"] for r in records]


def lost(records: Sequence[Record], dark_ms: float, after: int) -> tuple[float, float]:
    """Return the time lost and the usual time of an iteration before (ms).

    dark_ms: when the first circuit went dark (wall time). after: the last iteration on the old
    rings. Raises: NoFigure - too few iterations, or no ring change.
    """
    finished = ends(records)
    took = [
        finished[0] - records[0]["t_wall_ns"] / 1e6,
        *(b - a for a, b in itertools.pairwise(finished)),
    ]
    first = next((i for i, end in enumerate(finished) if end > dark_ms), None)
    changed = next((i for i, r in enumerate(records) if r["iter"] == after + 1), None)
    if first is None or changed is None:
        raise NoFigure(f"no iteration follows the ring change after {after}")
    last = max(first, changed)
    earlier, later = took[max(1, first - AROUND) : first], took[last + 1 : last + 1 + AROUND]
    if len(earlier) < AROUND // 2 or len(later) < AROUND // 2:
        raise NoFigure(f"{len(earlier)} iterations before and {len(later)} after are too few")
    old, new = statistics.median(earlier), statistics.median(later)
    return sum(
        max(0.0, took[i] - (old if i < changed else new)) for i in range(first, last + 1)
    ), old


def lost_by_restart(old: Sequence[Record], new: Sequence[Record]) -> float:
    """Return the time (ms) between two launches of one training in which it came no further."""
    usual = statistics.median(r["iter_ms"] for r in old[-AROUND:])
    twice = old[-1]["iter"] - (new[0]["iter"] - 1)
    return float(ends(new)[0] - ends(old)[-1] - usual + twice * usual)


class Bench:
    """A lab with the job running, and what was seen of it."""

    def __init__(self, lab: BenchLab) -> None:
        self.lab, self.side = lab, 0
        self.began = time.monotonic()
        # of the light path's clock, which is monotonic
        self.wall_ms = time.time() * 1e3 - time.monotonic() * 1e3
        self.moves: dict[str, list[Move]] = {}
        self.restarts: list[float] = []
        self.failures: list[str] = []
        self.devices = list(lab.ask("status")["devices"])
        self.seen = dict.fromkeys(self.devices, 0)
        self.plans = self.plans_of(
            {
                "name": "living",
                "workload": "train",
                "ranks": HOSTS,
                "args": {"iterations": 0, "checkpoint_every": 50},
            }
        )

    def plans_of(self, job: Mapping[str, Any]) -> dict[tuple[str, int], Path]:
        """The two plans, for each policy, with this job."""
        forward = [[HOSTS[k * stride % 12] for k in range(12)] for stride in (1, 11, 5, 7)]
        here, other = (
            ring_links(1, (1, 2)) + ring_links(5, (3, 4)),
            ring_links(5, (1, 2)) + ring_links(1, (3, 4)),
        )
        sides = ((here, forward), (other, forward[2:] + forward[:2]))
        return {
            (hold, side): self.lab.plan(
                f"{job['name']}-{side}-{hold}",
                links,
                job={**job, "rings": rings},
                transition={"hold": hold},
            )
            for hold in ("auto", "never", "always")
            for side, (links, rings) in enumerate(sides)
        }

    @property
    def late(self) -> bool:
        return time.monotonic() - self.began > BUDGET_S

    def records(self) -> tuple[str, list[Record]]:
        """The job's run and all its iterations so far, as brought home from rank 0."""
        status = self.lab.call("job", "status")
        (file,) = (self.lab.folder / "runs" / "runs" / str(status["run"])).glob(
            "*.iterations.jsonl"
        )
        return str(status["run"]), [json.loads(line) for line in file.read_text().splitlines()]

    def until(
        self, enough: Callable[[list[Record]], bool], within_s: float = 40.0
    ) -> tuple[str, list[Record]]:
        """Wait for enough iterations. Raises: NoFigure - they do not come."""
        give_up = time.monotonic() + within_s
        while True:
            run, records = self.records()
            if enough(records):
                return run, records
            if time.monotonic() > give_up:
                raise NoFigure(
                    f"the job comes no further than iteration {records[-1]['iter'] if records else 0}"
                )
            time.sleep(0.5)

    def skip(self) -> None:
        """What the light path did so far belongs to no move."""
        self.seen = {
            device: len(self.lab.ask("history", device=device)["history"])
            for device in self.devices
        }

    def light(self) -> tuple[float, float, float]:
        """Since the last call: when the first circuit broke (wall, ms), the longest dark of a port,
        first to last (ms).
        """
        darks, begin, end = [], float("inf"), 0.0
        for device in self.devices:
            events = self.lab.ask("history", device=device)["history"]
            broken: dict[str, float] = {}
            for at_s, what, _ingress, egress in (
                event[:4] for event in events[self.seen[device] :]
            ):
                if what == "broken":
                    broken.setdefault(str(egress), at_s * 1e3)
                    begin = min(begin, at_s * 1e3)
                elif what == "lit":
                    end = max(end, at_s * 1e3)
                    if str(egress) in broken:
                        darks.append(at_s * 1e3 - broken.pop(str(egress)))
            self.seen[device] = len(events)
        if not darks:
            raise NoFigure("no circuit moved")
        return begin + self.wall_ms, max(darks), end - begin

    def move(self, arm: str, hold: str) -> None:
        """One move by a ring change of the job."""
        self.side = 1 - self.side
        try:
            self.until(lambda seen: len(seen) > AROUND)
            move = self.judged(
                self.lab.call("up", "--topology", self.plans[hold, self.side], "--job", "live")
            )
            self.moves.setdefault(arm, []).append(move)
        except RuntimeError as error:
            self.failed(arm, error)
            return
        m = self.moves[arm][-1]
        paused = "?" if m.paused is None else f"{m.paused:.0f}"
        print(
            f"  {arm:<16} lost {m.lost:7.1f} ms (reported {paused}), dark {m.dark:.1f} (window {m.window:.1f}),"
            f" iteration {m.iteration:.0f}, worst rank {m.worst:.0f} ms, {m.mode}",
            flush=True,
        )

    def judged(self, report: Mapping[str, Any]) -> Move:
        """Compute what the move behind `report` cost. Raises: NoFigure - it was not the move that
        was to be measured.
        """
        if report["made"] != 48:
            raise NoFigure(f"{report['made']} cross-connects made, 48 were to move")
        step = report.get("ring_change")
        if not step or step.get("after") is None:
            raise NoFigure(f"the job did not change rings: {step}")
        begin, dark, window = self.light()
        after = self.changed(step)
        _, records = self.until(lambda seen: bool(seen) and seen[-1]["iter"] > after + AROUND + 1)
        cost, usual = lost(records, begin, after)
        ranks = {
            point.tags["rank"]: float(point.fields.get("held_ms") or 0.0)
            + float(point.fields.get("stall_ms") or 0.0)
            for point in read_points(Path(str(report["journal"])).parent, only=["ring_change_rank"])
            if point.fields.get("move") == step["move"]
        }
        if len(ranks) != len(HOSTS):
            raise NoFigure(f"{len(ranks)} of {len(HOSTS)} ranks said how long they paused")
        return Move(cost, usual, dark, window, step.get("paused_ms"), str(step["mode"]), ranks)

    def changed(self, step: Mapping[str, Any]) -> int:
        """The last iteration on the old rings: that before the record which carries the move, or
        the last that ended before.
        """
        jobs = Path(
            f"/proc/{self.lab.ask('status')['hosts'][HOSTS[0]]['pid']}/root/var/lib/testbed/jobs"
        )
        latest = max(jobs.glob("*/ring_changes.jsonl"), key=lambda file: file.stat().st_mtime_ns)
        noted = [json.loads(line) for line in latest.read_text().splitlines()]
        at_ms = next(entry["t_wall_ns"] / 1e6 for entry in noted if entry["move"] == step["move"])
        _, records = self.until(lambda seen: bool(seen) and ends(seen)[-1] > at_ms)
        marked = [r["iter"] - 1 for r in records if r.get("move") == step["move"]]
        return (
            int(marked[0])
            if marked
            else max(
                r["iter"] for r, end in zip(records, ends(records), strict=True) if end <= at_ms
            )
        )

    def failed(self, arm: str, error: Exception) -> None:
        """Note a move that went wrong, and let the job run again where it does not."""
        self.failures.append(f"{arm}: {error}")
        print(f"  {arm:<16} FAILED: {error}", flush=True)
        self.lab.call("up", "--topology", self.plans["auto", self.side], "--job", "restart")
        self.skip()

    def restart(self) -> None:
        """One move with the job stopped and launched again."""
        self.side = 1 - self.side
        run, _ = self.until(lambda seen: len(seen) > AROUND)
        self.lab.call("up", "--topology", self.plans["auto", self.side], "--job", "restart")
        (file,) = (self.lab.folder / "runs" / "runs" / run).glob("*.iterations.jsonl")
        old = [json.loads(line) for line in file.read_text().splitlines()]
        again, new = self.until(lambda seen: len(seen) > 1)
        self.skip()
        if again == run:
            raise RuntimeError(
                "--job restart did not launch the job again: there is nothing to compare with"
            )
        self.restarts.append(lost_by_restart(old, new))
        print(f"  {'restart':<16} lost {self.restarts[-1]:7.0f} ms", flush=True)


def shown(bench: Bench, arm: str) -> dict[str, float]:
    """Print an arm's line of the table and return its medians (ms), with the ends of the 95 %
    interval of `lost`, or of its range where an arm has five moves or fewer.
    """
    moves = bench.moves[arm]
    middle = {
        name: statistics.median(getattr(m, name) for m in moves)
        for name in ("lost", "dark", "iteration", "worst")
    }
    (low, high), (low_rank, high_rank) = (
        sweep.middle([getattr(m, name) for m in moves]).ends for name in ("lost", "worst")
    )
    limit = DARK_FACTOR * middle["dark"] + middle["iteration"]
    within = sum(m.lost <= DARK_FACTOR * m.dark + m.iteration for m in moves)
    off = (
        statistics.median(abs(m.paused - m.lost) for m in moves if m.paused is not None)
        if any(m.paused for m in moves)
        else -1.0
    )
    print(
        f"  {arm:<16} {len(moves):>2} moves: lost {middle['lost']:6.1f} ms ({low:.0f} to {high:.0f}), limit {limit:.0f},"
        f" {within} within;"
        f" worst rank {middle['worst']:.0f} ({low_rank:.0f} to {high_rank:.0f}, most {max(m.worst for m in moves):.0f}),"
        f" limit {DARK_FACTOR * middle['dark']:.0f}; report off by {off:.1f}; {'/'.join(sorted({m.mode for m in moves}))}"
    )
    return {
        **middle,
        "limit": limit,
        "low": low,
        "high": high,
        "rank_limit": DARK_FACTOR * middle["dark"],
    }


def declare(inventory: Path) -> dict[str, Any]:
    """Write the inventory's programs.yml, with the GPT; return a job that runs it."""
    folder = inventory / "programs" / "gpt"
    shutil.copytree(
        ROOT / "examples" / "programs" / "gpt", folder, ignore=shutil.ignore_patterns("__pycache__")
    )
    program = {
        "command": [sys.executable, "{files}/train.py"],
        "files": "programs/gpt",
        "env": {"OMP_NUM_THREADS": "1"},
        "args": {
            "iterations": {"kind": "int"},
            "preset": {"kind": "choice", "of": ["tiny", "small", "medium"]},
        },
        "iterations": {"pattern": r"iter (?P<iter>\d+) loss (?P<loss>[-+.\deE]+)"},
        "backend": "testbed",
    }
    # JSON is YAML
    (inventory / "programs.yml").write_text(json.dumps({"programs": {"gpt": program}}))
    args = {"iterations": 1_000_000, "preset": "tiny"}
    return {"name": PROGRAM, "workload": "program", "program": "gpt", "ranks": HOSTS, "args": args}


def carry_out_program(bench: Bench) -> None:
    """Moves under the GPT."""
    bench.lab.call("job", "stop")
    bench.plans = bench.plans_of(declare(bench.lab.inventory))
    bench.lab.settle(0.05)
    bench.lab.call("up", "--topology", bench.plans["auto", bench.side], "--job", "restart")
    bench.skip()
    for _ in range(MOVES):
        if time.monotonic() - bench.began < BUDGET_S + PROGRAM_S:
            bench.move(PROGRAM, "auto")


def carry_out(bench: Bench) -> None:
    """All moves; the arms alternate, so that a slow minute of the machine strikes them all and a
    short run has some of each.
    """
    cycle = (
        ("50 ms", "auto"),
        ("50 ms never", "never"),
        ("25 ms", "auto"),
        ("50 ms", "auto"),
        ("50 ms always", "always"),
    )
    for number in range(FEW):
        for arm, hold in (*cycle, ("1000 ms", "always")):
            if not bench.late:
                bench.lab.settle(float(arm.split()[0]) / 1e3)
                bench.move(arm, hold)
        if number % 2 == 0 and len(bench.restarts) < RESTARTS and not bench.late:
            bench.lab.settle(0.05)
            bench.restart()


def main() -> int:
    """Measure and print; return the exit code."""
    with bench_lab() as lab:
        bench = Bench(lab)
        lab.call("up", "--topology", bench.plans["auto", 0])
        bench.skip()
        carry_out(bench)
        carry_out_program(bench)
        lab.call("job", "stop")
    found = {arm: shown(bench, arm) for arm in bench.moves}
    restart = statistics.median(bench.restarts) if bench.restarts else float("nan")
    judged = [arm for arm in ("50 ms", "25 ms", "1000 ms") if arm in found]
    good = len(judged) == 3 and not bench.failures and len(bench.moves["50 ms"]) == MOVES
    good &= all(
        found[arm]["lost"] <= found[arm]["limit"]
        and found[arm]["worst"] <= found[arm]["rank_limit"]
        for arm in judged
    )
    good &= PROGRAM in found and found[PROGRAM]["lost"] <= found[PROGRAM]["limit"]
    good &= len(bench.moves.get(PROGRAM, ())) > sweep.FEW
    if "50 ms" not in found:
        print("  no move at 50 ms gave a figure")
        return 1
    print(f"  {'restart':<16} {len(bench.restarts):>2} moves: lost {restart:.0f} ms")
    print(
        f"  {'failures':<16} {len(bench.failures):>2}; load {os.getloadavg()[0]:.1f}; took {time.monotonic() - bench.began:.0f} s"
    )
    return verdict(
        "job_pause",
        found["50 ms"]["lost"],
        "ms",
        round(found["50 ms"]["limit"], 1),
        "at most",
        also=good,
        interval=[round(found["50 ms"][end], 1) for end in ("low", "high")],
        restart_ms=round(restart),
        arms={
            arm: {name: round(value, 1) for name, value in values.items()}
            for arm, values in found.items()
        },
        moves={arm: len(moves) for arm, moves in bench.moves.items()},
        ranges=[arm for arm, moves in bench.moves.items() if len(moves) <= sweep.FEW],
        failures=bench.failures,
        label="native",
    )


if __name__ == "__main__":
    sys.exit(main())
