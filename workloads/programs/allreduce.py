"""All-reduce benchmark over several rings, with nccl-tests' columns:
`python -m workloads.programs.allreduce -b 1M -e 64M -f 4`.

Sums float32 in place. Rank 0 prints the table and writes the same numbers to `allreduce.json` in
TESTBED_JOB_DIR. As in nccl-tests, sizes are bytes per rank with K = 1024, algbw is size / time,
busbw is algbw x 2 (n - 1) / n, both in GB/s (10^9), and #wrong counts the elements that differ from
the known sum. More digits than nccl-tests prints, for links that are a hundred times slower.
`--loop` repeats the first size until stopped (SIGTERM, as in train.py) or for --seconds, and writes
begin and end of each to `iterations.jsonl`: what a moving circuit costs shows as a long one.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .options import read

if TYPE_CHECKING:
    from ..progress.records import Clock
    from .program import Job

HEADER = """\
#       size         count      type   redop         time      algbw      busbw  #wrong
#        (B)    (elements)                           (us)     (GB/s)     (GB/s)        """
PERIOD = 7919  # prime, so that a piece in the wrong place shows as wrong values


def sizes(begin: int, end: int, factor: int) -> Iterator[int]:
    """Yield begin, begin x factor, ... up to end."""
    while begin <= end:
        yield begin
        begin *= factor


def row(record: dict[str, Any]) -> str:
    """Return one line of the table."""
    return (
        f"{record['size_bytes']:>12}  {record['count']:>12}  {record['type']:>8}  {record['redop']:>6}  {record['time_us']:>11.1f}"
        f"  {record['algbw_gbytes_per_s']:>9.6f}  {record['busbw_gbytes_per_s']:>9.6f}  {record['wrong']:>6}"
    )


def main() -> None:
    arguments = read("allreduce", "All-reduce benchmark over several rings at once.")

    from .program import run

    def work(job: Job) -> dict[str, Any]:
        job.carry_on_rings()
        return loop(job, arguments) if arguments.loop else table(job, arguments)

    run("workloads.programs.allreduce", work)


def table(job: Job, arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure every size, print the table on rank 0 and return the rows for the summary."""
    from ..progress.records import Clock

    def report(line: str) -> None:
        if job.place.rank == 0:
            print(line, flush=True)

    clock = Clock()
    report(
        f"# ranks {job.place.world}, rings {len(job.place.rings)}, backend {job.rings.backend}, in-place"
    )
    report(HEADER)
    rows = []
    for count in (
        size // 4
        for size in sizes(
            arguments.minbytes, arguments.maxbytes or arguments.minbytes, arguments.stepfactor
        )
    ):
        job.iteration += 1
        begin_ns = time.monotonic_ns()
        job.heartbeat.begin(job.iteration)
        rows.append(
            measure(job, count, arguments.warmup_iters, arguments.iters, bool(arguments.check))
        )
        report(row(rows[-1]))
        # the table says it
        job.records.iteration(record_of(job, rows[-1], begin_ns, clock), aloud=False)
    result = {"rows": rows, "wrong": sum(record["wrong"] for record in rows)}
    report(
        f"# Out of bounds values : {result['wrong']} {'OK' if not result['wrong'] else 'FAILED'}"
    )
    if job.place.rank == 0:
        (job.place.job_dir / "allreduce.json").write_text(
            json.dumps(job.started | result, indent=2) + "\n"
        )
    return result


def record_of(job: Job, measured: dict[str, Any], begin_ns: int, clock: Clock) -> dict[str, Any]:
    """Return the iteration record of one size: its mean all-reduce."""
    from ..progress.records import rates

    took_ms = round(measured["time_us"] / 1e3, 3)
    return {
        "iter": job.iteration,
        "t_wall_ns": clock.wall_ns(begin_ns),
        "iter_ms": took_ms,
        "comm_ms": took_ms,
        "bytes": measured["size_bytes"],
        **rates(measured["size_bytes"], measured["time_us"] / 1e6, job.place.world),
    }


def measure(job: Job, count: int, warmup: int, iterations: int, check: bool) -> dict[str, Any]:
    """Return the row for `count` float32 elements; wrong elements of all ranks are added up."""
    from ..collectives.rings import bus_factor

    torch, rings, world = job.torch, job.rings, job.place.world
    index = (
        torch.arange(count, device=rings.device, dtype=torch.int64)
        .remainder_(PERIOD)
        .to(torch.float32)
    )
    known = index * world + world * (world - 1) / 2
    values = torch.empty_like(index)

    def wrong() -> int:
        values.copy_(index).add_(job.place.rank)
        rings.all_reduce(values)
        return int((values != known).sum())

    job.heartbeat.exchange()
    found = wrong() if check else 0
    values.zero_()  # zeros stay zeros, however often they are summed
    for _ in range(warmup):
        rings.all_reduce(values)
    job.synchronize()
    begin_ns = time.monotonic_ns()
    for _ in range(iterations):
        rings.all_reduce(values)
    job.synchronize()
    seconds = (time.monotonic_ns() - begin_ns) / 1e9 / iterations
    found += wrong() if check else 0
    reports = job.accord.gather(f"measure/{job.iteration}", [seconds, found])
    job.heartbeat.end()
    seconds = sum(report[0] for report in reports) / world
    algbw = count * 4 / 1e9 / seconds
    return {
        "size_bytes": count * 4,
        "count": count,
        "type": "float",
        "redop": "sum",
        "time_us": round(seconds * 1e6, 1),
        "algbw_gbytes_per_s": round(algbw, 6),
        "busbw_gbytes_per_s": round(algbw * bus_factor(world), 6),
        "wrong": sum(report[1] for report in reports),
    }


def loop(job: Job, arguments: argparse.Namespace) -> dict[str, Any]:
    """All-reduce one size again and again, recording each; every one is checked where the sum is
    cheap to know.
    """
    from ..progress.records import Clock, rates

    torch, rings, world = job.torch, job.rings, job.place.world
    values = torch.empty(arguments.minbytes // 4, device=rings.device)
    sum_of_ranks = world * (world + 1) / 2
    clock, took_ms, wrong, stopped = Clock(), [], 0, False
    until_ns = time.monotonic_ns() + int(arguments.seconds * 1e9) if arguments.seconds else None
    while not stopped:
        iteration = job.iteration + 1
        if until_ns is not None and time.monotonic_ns() >= until_ns:
            job.accord.ask_to_stop()
        job.before(iteration)
        values.fill_(job.place.rank + 1)
        job.synchronize()
        job.heartbeat.exchange()
        begin_ns = time.monotonic_ns()
        rings.all_reduce(values)
        job.synchronize()
        end_ns = time.monotonic_ns()
        job.heartbeat.end()
        wrong += int((values != sum_of_ranks).sum()) if arguments.check else 0
        took_ms.append((end_ns - begin_ns) / 1e6)
        job.records.iteration(
            {
                "iter": iteration,
                "t_wall_ns": clock.wall_ns(begin_ns),
                "begin_ns": begin_ns,  # CLOCK_MONOTONIC, which all processes of one kernel share
                "end_ns": end_ns,
                "iter_ms": round(took_ms[-1], 3),
                "comm_ms": round(took_ms[-1], 3),
                "bytes": arguments.minbytes // 4 * 4,
                **rates(arguments.minbytes, (end_ns - begin_ns) / 1e9, world),
            }
        )
        stopped = job.last(iteration)
    took_ms.sort()
    wrongs = job.accord.gather("wrong", wrong)
    return {
        "iterations": job.iteration,
        "median_iter_ms": round(took_ms[len(took_ms) // 2], 3),
        "wrong": sum(wrongs),
    }


if __name__ == "__main__":
    main()
