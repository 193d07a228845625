"""What a running job really transfers, by its hosts' port counters, and predictions compared with
measurements.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optics import HostName, HostPort, Missing
from optics.plan import Traffic
from orchestrator.fabric.next_hops import hops
from orchestrator.inventory.lab import Lab
from orchestrator.jobs.jobs import Jobs
from orchestrator.jobs.rank_records import sound
from orchestrator.jobs.report import JobStatus, held_up
from orchestrator.plan.design.design import PAYLOAD
from orchestrator.plan.design.replan import predicted_of
from orchestrator.plan.reader import read_plan
from orchestrator.results import JsonReport
from orchestrator.session import Command, load_lab
from orchestrator.store.keys import tenancy_of
from orchestrator.store.records import JobRecord
from orchestrator.telemetry.progress import Progress
from orchestrator.verify.forwarding import PAIRS_S

POLL_S = 0.1
KEPT = "profile.json"
HOPS = "hops.json"
"""Stored next to the job's iterations, in the directory of the run that launched it."""


@dataclass(frozen=True, slots=True)
class LinkBytes:
    """Bytes sent from one host's port to another host's in one iteration; payload only, without
    frame headers.
    """

    src: HostName
    dst: HostName
    port: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Profile(JsonReport):
    """A measured iteration: bytes per link, times (ms) from the job's own records. tax: bytes on
    all links per byte sent.

    ranks: the hosts, each a rank of the workload that the profile becomes, however many ranks of
    the job it has.
    """

    job: str
    run: str
    ranks: tuple[HostName, ...]
    iterations: int
    seconds: float
    links: tuple[LinkBytes, ...]
    iteration_ms: float | None = None
    compute_ms: float | None = None
    tax: float | None = None


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a job, predicted and measured; None: unknown."""

    figure: str
    unit: str
    predicted: float | None
    measured: float | None

    @property
    def off(self) -> float | None:
        """Measured relative to predicted: 0.1 means ten percent more."""
        return (
            self.measured / self.predicted - 1
            if self.predicted and self.measured is not None
            else None
        )


@dataclass(frozen=True, slots=True)
class Versus(JsonReport):
    """Prediction and measurement of the job launched by a run. time_scale: times here divided by
    those of the original workload.

    busy: fraction of the time that the processors of rank 0's host were busy. limit: what set the
    pace other than the links.
    """

    run: str
    plan: str
    job: str
    iterations: int
    figures: tuple[Figure, ...]
    time_scale: float = 1.0
    busy: float | None = None

    @property
    def limit(self) -> str:
        """As `held_up`."""
        return held_up(
            next((one.off for one in self.figures if one.figure == "iteration"), None), self.busy
        )


async def job_profile(command: Command, *, iterations: int) -> Profile:
    """Read all port counters, let the job run iterations, read them again. Raises: Missing - no job
    runs.
    """
    lab, store, settings = load_lab(command.inventory), command.store, command.settings
    async with command.opened(lab, "job profile") as session:
        key = tenancy_of(lab, settings)
        record, current = store.latest_job(key), store.current(key)
        if record is None or current is None:
            raise Missing("no job runs on this lab", hint="testbed up with a plan that has a job")
        plan = read_plan(current.plan_text, current.plan_name, lab)
        if plan.segments:
            text = f"{plan.name} goes over packet switches ({', '.join(plan.segments)})"
            raise Missing(
                f"{text}: a port's byte count does not show the destination",
                hint="profile the job on optical links alone",
            )
        run_dir = settings.run_dir(record.run)
        jobs = Jobs(session, store, key, settings.runs_dir)
        hosts = record.spec.wanted.hosts
        await session.hosts.channels.connect(hosts)
        first = await _next(jobs, record, 0, command.progress)
        before, began = await session.hosts.measure.counters(hosts), time.monotonic()
        last = await _next(jobs, record, first.iterations + iterations - 1, command.progress)
        after, seconds = await session.hosts.measure.counters(hosts), time.monotonic() - began
        made = last.iterations - first.iterations
        peers: dict[HostPort, HostPort] = {}
        for link in current.up.links:
            peers |= {link.a: link.b, link.b: link.a}
        links = tuple(
            LinkBytes(
                port.host,
                peers[port].host,
                port.number,
                round((after[port].tx_bytes - c.tx_bytes) * PAYLOAD / made),
            )
            for port, c in sorted(before.items())
            if port in peers and port in after
        )
        compute = [r["iter_ms"] - r["comm_ms"] for r in records(run_dir)[-made:] if "comm_ms" in r]
        sent = _sent(plan.job.traffic if plan.job else None)
        found = Profile(
            record.name,
            record.run,
            hosts,
            made,
            round(seconds, 3),
            links,
            last.iteration_ms,
            round(statistics.median(compute), 3) if compute else None,
            round(sum(link.bytes for link in links) / sent, 4) if sent else None,
        )
        (run_dir / KEPT).write_text(json.dumps(found.to_json()) + "\n", encoding="utf-8")
        return found


async def count_hops(command: Command, run: str) -> bool:
    """Ask every host how many links lead to each other one, as routes are committed now; keep the
    answers with `run`.

    False: the plan of `run` is not the one that is up, or its links come and go. Raises: Missing -
    a pair does not answer; an older result is deleted.
    """
    lab, store, settings = load_lab(command.inventory), command.store, command.settings
    current, record = store.current(tenancy_of(lab, settings)), store.get(run)
    if current is None or record is None or current.plan_text != record.plan_text:
        return False
    plan, links = read_plan(current.plan_text, current.plan_name, lab), current.up.links
    if plan.schedule is not None:
        return False
    asked: dict[HostName, dict[str, int | None]] = {}
    for source, target in hops(links, lab, plan.routes):
        asked.setdefault(source, {})[lab.hosts[target].lane_address(0)] = None
    async with command.opened(lab, "compare") as session:
        await session.hosts.channels.connect(tuple(asked))
        answers = await session.hosts.measure.probe(asked, timeout_s=PAIRS_S)
    names = {
        lab.hosts[name].lane_address(0): name
        for pair in hops(links, lab, plan.routes)
        for name in pair
    }
    counts, silent = [], []
    for source, each in asked.items():
        for address in each:
            answer = answers.get(source, {}).get(address)
            if answer is None or not answer.ok or answer.hops is None:
                silent.append(f"{source} to {names[address]}")
            else:
                counts.append(answer.hops)
    if silent or not counts:
        (settings.run_dir(run) / HOPS).unlink(missing_ok=True)
        text = f"{len(silent)} of {len(silent) + len(counts)} pairs have no answer: {', '.join(silent[:3])}"
        raise Missing(text, hint="testbed verify says where it is dark")
    found = {
        "diameter": float(max(counts)),
        "mean_hops": round(statistics.mean(counts), 4),
        "pairs": len(counts),
    }
    (settings.run_dir(run) / HOPS).write_text(json.dumps(found) + "\n", encoding="utf-8")
    return True


async def _next(jobs: Jobs, record: JobRecord, than: int, progress: Progress) -> JobStatus:
    """Wait until an iteration after this one ends; return the job's status. Raises: Missing - the
    job ended first.
    """
    before = None
    while True:
        status = await jobs.status(record)
        if before is None:
            before = max(than, status.iterations)
        if status.iterations > before:
            return status
        if status.state not in ("starting", "running"):
            text = f"job {record.name} {status.state} after {status.iterations} iterations"
            raise Missing(text, hint="design its plan with --iterations 0")
        progress.update("profile", status.iterations, before + 1, "iterations")
        await asyncio.sleep(POLL_S)


def _sent(traffic: Traffic | None) -> float:
    """Bytes that all ranks of a designed job send in an iteration, 0 for other jobs."""
    if traffic is None:
        return 0.0
    sums = sum(2 * (len(group.rings[0]) - 1) * group.bytes for group in traffic.groups)
    return sums + sum(transfer.bytes for transfer in traffic.transfers)


def as_workload(found: Profile) -> dict[str, Any]:
    """The measured iteration as a workload file: the bytes over each link become a transfer between
    its hosts, each a rank of it.

    Counters do not show the final destination: forwarded bytes count once for each link they
    crossed.
    """
    rank = {host: number for number, host in enumerate(found.ranks)}
    moved: dict[tuple[int, int], int] = {}
    for link in found.links:
        if link.src in rank and link.dst in rank:
            pair = (rank[link.src], rank[link.dst])
            moved[pair] = moved.get(pair, 0) + link.bytes
    return {
        "schema": "testbed.workload/1",
        "name": f"{found.job}-measured"[:63],
        "description": f"measured over {found.iterations} iterations of {found.job}, run {found.run}",
        "ranks": len(found.ranks),
        "compute_s": round((found.compute_ms or 0.0) / 1e3, 6),
        "transfers": [
            {"src": a, "dst": b, "bytes": size} for (a, b), size in sorted(moved.items()) if size
        ],
    }


def records(run_dir: Path) -> list[dict[str, Any]]:
    """The fetched iterations of the job launched by a run, oldest first."""
    files = sorted(run_dir.glob("*.iterations.jsonl"), key=lambda path: path.stat().st_mtime)
    return sound(files[-1].read_bytes().splitlines(), ("iter_ms",)) if files else []


def versus(run: str, plan_name: str, plan_text: str, run_dir: Path, lab: Lab) -> Versus:
    """Figures of a run's job, beside those of `predicted_of`.

    Raises: Missing - its plan predicts nothing, or its job has made no iterations. BadFile - it is
    no plan of this lab any more.
    """
    try:
        plan: Mapping[str, Any] = json.loads(plan_text)
    except ValueError:
        plan = {}
    predicted: Mapping[str, float | None] = predicted_of(plan, plan_text, plan_name, lab)
    if not predicted:
        hint = "testbed design periodic --workload examples/workloads/dlrm.yaml --out plan.json"
        raise Missing(f"{plan_name or run} predicts nothing", hint=hint)
    done = records(run_dir)
    seen = done[1:] or done
    if not seen:
        raise Missing(f"no job of run {run} has made an iteration here", hint="testbed job status")

    def median(*keys: str) -> float | None:
        values = [sum(r[key] for key in keys) for r in seen if all(key in r for key in keys)]
        return statistics.median(values) if values else None

    compute = [r["iter_ms"] - r["comm_ms"] for r in seen if "comm_ms" in r]
    busbw = median("busbw_gbps")
    profile = run_dir / KEPT
    tax = json.loads(profile.read_text())["tax"] if profile.exists() else None
    job = plan.get("job") or {}
    traffic = job.get("traffic")
    wire, sent = (
        median("wire_bytes"),
        _sent(Traffic.of({"groups": (), "transfers": (), **traffic}) if traffic else None),
    )
    if wire and sent:
        tax = round(wire * PAYLOAD / sent, 4)
    hops_found = json.loads((run_dir / HOPS).read_text()) if (run_dir / HOPS).exists() else {}
    figures = (
        Figure("iteration", "ms", predicted.get("iteration_ms"), median("iter_ms")),
        Figure("transfers", "ms", predicted.get("transfers_ms"), median("transfers_ms")),
        Figure("all-reduce", "ms", predicted.get("allreduce_ms"), median("allreduce_ms")),
        Figure(
            "compute",
            "ms",
            predicted.get("compute_ms"),
            statistics.median(compute) if compute else None,
        ),
        Figure(
            "busbw", "MB/s", predicted.get("busbw_mbps"), None if busbw is None else busbw * 125
        ),
        Figure("bandwidth tax", "", predicted.get("bandwidth_tax"), tax),
        Figure("diameter", "hops", predicted.get("diameter"), hops_found.get("diameter")),
        Figure("mean hops", "hops", predicted.get("mean_hops"), hops_found.get("mean_hops")),
    )
    scale = float((traffic or {}).get("time_scale", 1.0))
    return Versus(
        run, plan_name, str(job.get("name", "")), len(done), figures, scale, median("busy")
    )
