"""The iterations of a job: fetched from rank 0 and kept with the run that launched the job."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from optics import Refused
from optics.plan import Job
from optics.ranks import RankName, host_of_rank
from orchestrator.jobs import follow
from orchestrator.jobs.rank_records import Sound, sound
from orchestrator.jobs.record import ranks_of, workload_name
from orchestrator.session import Session
from orchestrator.store.records import JobRecord
from orchestrator.telemetry.journal import Journal
from workloads.programs.options import OPTIONS

LATEST = 20
"""The median iteration time is taken over the latest this many."""
OF_REQUESTS = ("requests", "hits", "asked_bytes", "found_ms", "found_p99_ms")
OF_SERVING = (
    "served",
    "goodput",
    "ttft_ms",
    "ttft_p99_ms",
    "tpot_ms",
    "tpot_p99_ms",
    "kv_bytes",
    "kv_ms",
)


def median_ms(records: list[dict[str, Any]]) -> float | None:
    """Median time (ms) of the latest iterations, without the very first."""
    latest = [float(r["iter_ms"]) for r in records[1:][-LATEST:] if "iter_ms" in r]
    return round(statistics.median(latest), 2) if latest else None


def iteration_figures(wanted: Job, records: Sound) -> dict[str, Any]:
    """What a job's iterations come to, as the fields of `JobStatus`."""
    busbw = [r["busbw_gbps"] * 125 for r in (records[1:] or records)[-LATEST:] if "busbw_gbps" in r]
    busy = [float(r["busy"]) for r in records[1:][-LATEST:] if "busy" in r]
    first = records[0] if records else {}
    return {
        "iterations": sum(int(r.get("steps", 1)) for r in records),
        "iteration_ms": median_ms(records),
        "busbw_mbps": round(statistics.median(busbw), 3) if busbw else None,
        "busy": statistics.median(busy) if busy else None,
        "resumed_from": max(int(first.get("iter", 1)) - 1, 0),
        "damaged": first.get("damaged", 0),
        "sent": sent(wanted, records),
        "saves": saves(records),
        "bad_records": records.bad,
        "bad_record": records.why,
    }


async def collect_iterations(
    session: Session, name: str, record: JobRecord, run_dir: Path
) -> Sound:
    """Append what rank 0 wrote since last time to the run's directory and journal; return all of
    the job's iterations.

    Where the file cannot be read, as the job made something else of it, those that came home
    before.
    """
    run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    local = run_dir / f"{name}.iterations.jsonl"
    first = ranks_of(record, session.lab)[0]
    refused = ""

    def take(lines: list[bytes], ahead_ns: int) -> None:
        with Journal(run_dir, record.run, session.lab.name) as journal:
            for found in sound(lines):
                iteration_point(journal, record, found, ahead_ns)

    try:
        await follow.collect_lines(
            session,
            host_of_rank(first),
            local,
            lambda at: session.hosts.jobs.tail(name, first, "iterations.jsonl", at),
            take,
        )
    except Refused as error:
        refused = str(error)
    home = sound(local.read_bytes().splitlines())
    if refused:
        home.bad, home.why = 0, refused
    return home


RING_CHANGES_BYTES = 65536
"""Of the ring changes that rank 0 wrote down, so many bytes are read, from the end."""


async def rings_changed_at(session: Session, name: str, first: RankName, move: int) -> int | None:
    """When rank 0 changed over to the rings of `move` (wall time of its host, ns); None where it
    did not write that down.
    """
    piece = await session.hosts.jobs.tail(name, first, "ring_changes.jsonl", -RING_CHANGES_BYTES)
    found = [r for r in sound(piece.text.splitlines(), ("move", "t_wall_ns")) if r["move"] == move]
    return int(found[-1]["t_wall_ns"]) if found else None


def last_before(records: Iterable[Mapping[str, Any]], t_wall_ns: int) -> int:
    """The last iteration that had ended at that time (ns, of the clock of the records); 0 if none
    had.
    """
    ended = (
        int(r["iter"])
        for r in records
        if int(r["t_wall_ns"]) + int(float(r["iter_ms"]) * 1e6) <= t_wall_ns
    )
    return max(ended, default=0)


async def ahead_ns_of(session: Session, rank: RankName) -> int:
    """As `follow.ahead_ns`, of a rank's host."""
    host = host_of_rank(rank)
    return (await follow.ahead_ns(session, [host]))[host]


def whole_bytes(wanted: Job, r: Mapping[str, Any]) -> int | None:
    """What a rank would send over a ring for this record's sums, whole and in each iteration since
    the one before (`sync_every`).

    None where nothing was summed, or the bytes on the wire are not counted, as of programs of the
    lab's owner.
    """
    if not r.get("bytes") or r.get("wire_bytes") is None or wanted.program:
        return None
    ranks, every = len(wanted.ranks), int(wanted.args.get("sync_every", 1))
    return round((int(r["iter"]) % every or every) * 2 * (ranks - 1) / ranks * float(r["bytes"]))


def loss_bound(wanted: Job) -> float:
    """The share of a sum that the job's datagrams may lose."""
    usual: Any = next(option.default for option in OPTIONS["train"] if option.name == "loss_bound")
    return float(wanted.args.get("loss_bound", usual))


def sent(wanted: Job, records: Sequence[Mapping[str, Any]]) -> dict[str, float] | None:
    """What the latest exchanges sent, as `JobStatus.sent`; None where it is not known."""
    found = list(
        islice(
            ((r, whole) for r in reversed(records[1:]) if (whole := whole_bytes(wanted, r))), LATEST
        )
    )
    if not found:
        return None
    wire = sum(float(r["wire_bytes"]) for r, _ in found)
    reply = {"wire_bytes": wire, "whole_bytes": float(sum(whole for _, whole in found))}
    if lost := [float(r["lost_share"]) for r, _ in found if "lost_share" in r]:
        reply |= {
            "lost_share": statistics.mean(lost),
            "lost_most": max(lost),
            "loss_bound": loss_bound(wanted),
        }
        reply["resent_bytes"] = sum(float(r.get("resent_bytes", 0)) for r, _ in found)
    return reply


def saves(records: Sequence[Mapping[str, Any]]) -> dict[str, float] | None:
    """What the latest checkpoints cost, as `JobStatus.saves`; None where there were none."""
    found = [r for r in records if "save_ms" in r][-LATEST:]
    if not found:
        return None
    every = (
        (found[-1]["iter"] - found[0]["iter"]) / (len(found) - 1)
        if len(found) > 1
        else found[0]["iter"]
    )
    each_ms = statistics.median(float(r["save_ms"]) for r in found)
    return {"each_ms": each_ms, "every": every, "iteration_ms": each_ms / max(1.0, every)}


def iteration_point(
    journal: Journal, record: JobRecord, r: Mapping[str, Any], ahead_ns: int
) -> None:
    """Record what rank 0 reported of one iteration: the step, and the all-reduce in it. ahead_ns:
    its clock minus the local one.
    """
    wanted = record.spec.wanted
    took, comm = float(r["iter_ms"]), r.get("comm_ms")
    at = int(r["t_wall_ns"]) - ahead_ns - journal.anchor_ns
    journal.point(
        "iteration",
        {"job": record.name, "workload": workload_name(wanted)},
        {
            "iter": r["iter"],
            "iter_ms": took,
            "comm_ms": comm,
            "compute_ms": took - comm if comm is not None else None,
            "loss": r.get("loss"),
            "samples_per_s": r["samples"] / took * 1e3 if r.get("samples") and took else None,
            "ring_groups": max(1, len(wanted.rings)),
            "save_ms": r.get("save_ms"),
        },
        at,
    )
    if "requests" in r:
        found = {name: r.get(name) for name in OF_REQUESTS}
        journal.point("requests", {"job": record.name}, {"iter": r["iter"], **found}, at)
    if "served" in r:
        found = {name: r.get(name) for name in OF_SERVING}
        journal.point("serving", {"job": record.name}, {"iter": r["iter"], **found}, at)
    size, algbw, summed = r.get("bytes"), r.get("algbw_gbps"), r.get("allreduce_ms")
    if not size or not (algbw or summed):
        return
    summed = size * 8 / algbw / 1e6 if algbw else summed
    journal.point(
        "collective",
        {"job": record.name, "op": "all_reduce", "algo": "ring"},
        {
            "size_bytes": size,
            "iter": r["iter"],
            "iter_ms": summed,
            "algbw_gbps": size * 8 / summed / 1e6,
            "busbw_gbps": r.get("busbw_gbps"),
            "wire_bytes": r.get("wire_bytes"),
            "wide_bytes": r.get("wide_bytes"),
            "resent_bytes": r.get("resent_bytes"),
            "whole_bytes": whole_bytes(wanted, r),
            "lost_share": r.get("lost_share"),
            "loss_bound": loss_bound(wanted) if "lost_share" in r else None,
            "exposed_comm_ms": comm,
        },
        at,
    )


def ends_of(records: Iterable[Mapping[str, Any]], ahead_ns: int) -> list[int]:
    """When iterations ended; ahead_ns: their clock minus the reference clock."""
    return [int(r["t_wall_ns"]) - ahead_ns + int(float(r["iter_ms"]) * 1e6) for r in records]


async def ends_before(
    session: Session, record: JobRecord | None, runs_dir: Path, anchor_ns: int
) -> list[int]:
    """When the iterations of a stopped job ended, as far as they were fetched."""
    if record is None or not (ranks := ranks_of(record, session.lab)):
        return []
    file = runs_dir / record.run / f"{record.spec.on_hosts}.iterations.jsonl"
    try:
        lines = file.read_bytes().splitlines()
    except OSError:
        return []
    return ends_of(sound(lines), await ahead_ns_of(session, ranks[0]) + anchor_ns)
