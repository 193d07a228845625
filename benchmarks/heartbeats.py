"""What its heartbeat costs a rank of a training job, and the host that reads it once a second, as a
share of the time they have.

Four ranks of the program `train` run on this machine, over loopback. In each, every call of the
heartbeat is timed from outside (no switch turns heartbeats off, so the time they take is set
against the time of the same iterations), as time of a processor; the timing itself is counted as
theirs. So is what the loop that carries the sums looks at for them, once for each time it wakes.
Then the agent's reading of one of the files is timed, with the rows of a second.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.harness import verdict
from tests.workloads.ranks import records

WORLD, ITERATIONS, READS = 4, 300, 200
RINGS = [[0, 1, 2, 3], [0, 3, 2, 1]]
LIMIT_PERCENT = 0.5
SUMS = "sums.json"
CALLS = ("begin", "exchange", "waited", "exchanged", "end")


def inside() -> None:
    """`workloads.programs.train` with its arguments, its heartbeats timed; the sums go to the job's
    directory.
    """
    from workloads.programs import train
    from workloads.progress.heartbeat import Heartbeat
    from workloads.progress.records import Records
    from workloads.transport.loop import Loop

    spent_ns, depth, looks = 0, 0, 0

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*argv: Any) -> Any:
            nonlocal spent_ns, depth
            began, depth = time.thread_time_ns(), depth + 1
            try:
                return function(*argv)
            finally:
                depth -= 1
                spent_ns += 0 if depth else time.thread_time_ns() - began

        return call

    for name in CALLS:
        setattr(Heartbeat, name, timed(getattr(Heartbeat, name)))
    step, summary = Loop.step, Records.summary

    def counted(loop: Loop) -> bool:
        nonlocal looks
        looks += loop._stall.summing
        return step(loop)

    def written(self: Records, record: dict[str, Any]) -> None:
        took_ns = _look_ns() * looks
        sums = {
            "calls_us": spent_ns / 1e3 / ITERATIONS,
            "looks_us": took_ns / 1e3 / ITERATIONS,
            "looks": looks / ITERATIONS,
        }
        (Path(os.environ["TESTBED_JOB_DIR"]) / SUMS).write_text(json.dumps(sums))
        summary(self, record)

    Loop.step, Records.summary = counted, written  # type: ignore[method-assign,assignment]
    train.main()


def _look_ns() -> float:
    """What it takes (ns) to look whether one of four rings waits for a rank that has not begun,
    where none does.
    """
    from workloads.transport.tasks import Passing, Segment

    class Ring:
        def __init__(self) -> None:
            self.passing = Passing(
                None,  # type: ignore[arg-type]
                None,  # type: ignore[arg-type]
                memoryview(b""),
                [Segment(memoryview(bytes(1 << 20)))],
                0,
            )
            self.passing.reset()
            self.passing._at, self.passing._slice = 1000, 1000

        @property
        def late(self) -> bool:
            return self.passing.late

    tasks = {n: Ring() for n in range(4)}
    began = time.thread_time_ns()
    for _ in range(1000):
        any(task.late for task in tasks.values())
    return (time.thread_time_ns() - began) / 1000


def main() -> int:
    if sys.argv[1:2] == ["inside"]:
        del sys.argv[1]
        inside()
        return 0
    from agent.jobs import heartbeats
    from tests.workloads.ranks import ranks

    with TemporaryDirectory() as folder:
        where = Path(folder)
        command = (
            __file__,
            "inside",
            "--model",
            "mlp",
            "--iterations",
            str(ITERATIONS),
            "--checkpoint-every",
            "0",
        )
        with ranks(WORLD, *command, directory=where, rings=RINGS, timeout_s=120.0) as job:
            ended = job.finish(600.0)
        if any(code for code, _, _ in ended):
            raise RuntimeError("; ".join(reported for _, _, reported in ended))
        took_ms = statistics.median(float(str(record["iter_ms"])) for record in records(where)[1:])
        sums = [json.loads((where / str(rank) / SUMS).read_text()) for rank in range(WORLD)]
        after, began = ITERATIONS - round(1000 / took_ms), time.thread_time_ns()
        for _ in range(READS):
            json.dumps(heartbeats.read(str(where / "0" / heartbeats.FILE), after))
        read_us = (time.thread_time_ns() - began) / READS / 1e3
    each_us = [one["calls_us"] + one["looks_us"] for one in sums]
    percent = 100 * max(each_us) / (took_ms * 1e3) + 100 * read_us / 1e6
    print(
        f"  a rank: {max(each_us):.1f} us of an iteration of {took_ms:.1f} ms; the agent: {read_us:.0f} us a second"
    )
    return verdict(
        "heartbeats",
        percent,
        "%",
        LIMIT_PERCENT,
        "at most",
        iteration_ms=round(took_ms, 2),
        rank_us=round(max(each_us), 2),
        looks_us=round(max(one["looks_us"] for one in sums), 2),
        read_us=round(read_us, 1),
        looks=round(max(one["looks"] for one in sums), 1),
    )


if __name__ == "__main__":
    sys.exit(main())
