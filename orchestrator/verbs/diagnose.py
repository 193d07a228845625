"""`testbed job diagnose`: which component is at fault when the job slows down, stands or dies.
Reads; changes nothing.
"""

from __future__ import annotations

import shlex
import statistics
import time
from collections.abc import Iterable
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from typing import Any

from optics import HostName, Locked, Missing, TestbedError
from optics.plain import counted
from orchestrator.change.locking import holding
from orchestrator.inventory.lab import Lab
from orchestrator.jobs.iterations import LATEST, collect_iterations
from orchestrator.jobs.rank_records import sound
from orchestrator.jobs.record import launching, ranks_of
from orchestrator.plan.stored import stored_plan
from orchestrator.session import Command, Session, load_lab
from orchestrator.settings import Settings
from orchestrator.store.keys import tenancy_of
from orchestrator.store.locks import locks_of
from orchestrator.store.records import CurrentPlan, JobRecord
from orchestrator.store.scope import reachable_scope
from orchestrator.store.store import Store
from orchestrator.verify.diagnosis import open_question, verdicts
from orchestrator.verify.pace import BEFORE
from orchestrator.verify.signals import DiagnosisReport, Verdict
from orchestrator.verify.symptoms import DiagnosedJob, look, look_closer, reading_text


async def job_diagnose(command: Command, *, traffic: bool = True) -> DiagnosisReport:
    """Look at the job and its lab, closer where the first look explains nothing, and decide.

    traffic: suspect links may be loaded, beside the job if it runs; else only what costs nobody
    anything is read. Raises: Missing - no plan is up. Unreachable - no device or host answers.
    """
    lab, store, settings = load_lab(command.inventory), command.store, command.settings
    current = store.current(tenancy_of(lab, settings))
    if current is None:
        raise Missing(
            f"no plan is up on {lab.name}, so there is nothing to diagnose",
            hint="testbed up --topology examples/ring-12.json",
        )
    async with command.opened(lab, "job diagnose") as session:
        command.progress.phase("observe")
        seen = await session.observe()
        if not seen.settings and not seen.hellos:
            seen.complete()
        command.progress.done(
            "observe",
            f"{counted(len(seen.settings), 'device')}, {counted(len(seen.hellos), 'host')}",
        )
        found = await subject(
            command, session, current, store.latest_job(tenancy_of(lab, settings))
        )
        command.progress.phase("diagnose")
        signals = await look(session, found, seen)
        answering: list[HostName] = [name for name, hello in seen.hellos.items() if hello.installed]
        if open_question(signals):
            async with AsyncExitStack() as lock:
                if traffic:
                    scope = reachable_scope(
                        lab, {p.host for link in found.links for p in (link.a, link.b)}
                    )
                    try:  # what another run moves meanwhile would be measured
                        await lock.enter_async_context(holding(lab, command, scope, "job diagnose"))
                    except Locked as error:
                        traffic = False
                        signals = replace(
                            signals, unread=(*signals.unread, f"no test traffic: {error.line}")
                        )
                signals = await look_closer(
                    session, found, signals, answering, command.progress, traffic=traffic
                )
        all_found = verdicts(signals)
        command.progress.done("diagnose", reported(all_found[0]))
    return DiagnosisReport(
        lab.name, signals.job, signals.state, all_found[0], all_found[1:], reading_text(signals)
    )


def reported(verdict: Verdict) -> str:
    """A verdict in a few words."""
    if verdict.wrong:
        return f"{verdict.component}: {verdict.kind}"
    return "nothing is wrong" if verdict.kind == "none" else "cannot tell"


async def subject(
    command: Command, session: Session, current: CurrentPlan, record: JobRecord | None
) -> DiagnosedJob:
    """What is diagnosed: the plan that is up, and the latest job if it was launched on it or still
    runs.
    """
    plan = stored_plan(current.plan_text, current.plan_name, current.up.slots, session.lab)
    links, circuits = current.up.links, current.up.circuits(session.lab)
    run = command.store.get(current.run)
    file = shlex.quote(str((command.settings.run_dir(current.run) / "plan.json").absolute()))
    moving = changing(session.lab, command.settings, command.store)
    found = DiagnosedJob(
        plan,
        links,
        circuits,
        moving=moving,
        plan_file=file,
        avoid=run.avoid if run is not None else (),
    )
    if record is None or (record.ended is not None and record.ended < current.since):
        return found
    name, run_dir = record.spec.on_hosts, command.settings.runs_dir / record.run
    records: list[dict[str, Any]] = []
    try:
        records = await collect_iterations(session, name, record, run_dir)
    except TestbedError:  # the host of rank 0 is gone: what was fetched before
        with suppress(OSError):
            records = sound((run_dir / f"{name}.iterations.jsonl").read_bytes().splitlines())
    pause = record.pause
    state = "paused" if pause is not None and pause.until > time.time() else record.state
    if launching(record, launched := command.store.get(record.run)) and launched is not None:
        found = replace(
            found,
            moving=moving or f"run {launched.id} ({launched.verb}) is launching job {record.name}",
        )
    found = replace(
        found,
        why=record.detail,
        unlaunched=bool(record.unlaunched),
        nccl_env=record.spec.wanted.env if record.spec.backend == "nccl" else None,
    )
    ranks = ranks_of(record, session.lab)
    return replace(
        found,
        name=record.name,
        on_hosts=name,
        state=state,
        ranks=ranks,
        usual_ms=usual_since_ring_change_ms(records),
    )


def usual_since_ring_change_ms(records: Iterable[dict[str, Any]]) -> float | None:
    """The median iteration (ms) since the job's latest ring change, without its first and its
    LATEST ones; None: too few are left.
    """
    since: list[float] = []
    for record in records:
        if record.get("move"):
            since = []
        since.append(float(record["iter_ms"]))
    before = since[1:-LATEST]
    return statistics.median(before) if len(before) >= BEFORE else None


def changing(lab: Lab, settings: Settings, store: Store) -> str:
    """The change of the lab that is under way, in words; empty if none is."""
    active = [
        lock
        for lock in locks_of(lab, settings, store).listed()
        if lock.kind == "run" and lock.state == "active"
    ]
    return next((f"a change is under way: {lock}" for lock in active if lock.role != "reader"), "")
