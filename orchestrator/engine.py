"""The verbs: observe, diff, plan, journal, act, observe again. The only module that asks devices and hosts to change.

The order of every change (promise S3): stage routes, drain, break, make, light, link, commit, verify. Nothing slow stands between
break and commit: hosts are armed before the light moves and commit by themselves on carrier.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from orchestrator import jobs
from orchestrator.avoid import avoiding
from orchestrator.change import Bringing
from orchestrator.faceplate import devices, devices_power
from orchestrator.jobs import job_launch, job_logs, job_status, job_stop
from orchestrator.leaving import Leaving
from orchestrator.recorder import Recorder
from orchestrator.reports import DownReport, PlanReport, UpReport
from orchestrator.rules import hops
from orchestrator.session import deadline, key_of, load_lab, load_plan, open_session, slice_of
from orchestrator.settings import Settings
from orchestrator.store import LabLock, Store
from orchestrator.survey import status, verify
from orchestrator.target import circuit_rows, dark_time_scale, diff, expected_dark_ms, fingerprint, target
from orchestrator.telemetry.journal import Journal
from orchestrator.telemetry.progress import Progress, counted
from orchestrator.telling import Context

__all__ = ["devices", "devices_power", "down", "job_launch", "job_logs", "job_status", "job_stop", "plan", "status", "up", "verify"]


async def plan(
    inventory: Path,
    plan_path: Path,
    *,
    avoid: tuple[str, ...] = (),
    progress: Progress,
    store: Store,
    settings: Settings,
    timeout_s: float,
) -> PlanReport:
    """The diff between the plan and the lab; writes nothing. Raises: BadFile, Infeasible, Interlock, Unreachable, TimedOut."""
    lab = load_lab(inventory)
    wanted, _ = load_plan(plan_path, lab)
    wanted = avoiding(wanted, avoid, lab)
    key = slice_of(lab, settings)
    recorder = Recorder(progress)
    async with deadline(timeout_s, "plan"), open_session(lab, inventory, settings.cache_dir / "ansible") as session:
        with recorder.phase("observe") as phase:
            seen = (await session.observe(hosts=False)).complete()
            phase.detail = counted(len(seen.settings), "device")
        goal = target(wanted, lab, seen.settings, store.owned(key))
    affected = jobs.affected(store.latest_job(key), goal)
    return PlanReport(
        plan=wanted.name,
        lab=lab.name,
        diff=diff(goal.change, session.devices, lab),
        circuits=circuit_rows(goal, lab),
        links=len(goal.links),
        hosts=len({p.host for link in goal.links for p in (link.a, link.b)}),
        routes=len(hops(goal.links, lab, wanted.routes)),
        dark_ms_expected=expected_dark_ms(goal.change, session.devices),
        jobs_affected=affected,
        notes=wanted.warnings,
        fingerprint=fingerprint(wanted, seen.settings),
        dark_time_scale=dark_time_scale(goal.change, session.devices, lab),
    )


async def up(
    inventory: Path,
    plan_path: Path,
    *,
    dry_run: bool,
    launch_job: bool,
    avoid: tuple[str, ...] = (),
    progress: Progress,
    store: Store,
    settings: Settings,
    timeout_s: float,
) -> UpReport:
    """Bring the plan up; idempotent.

    Raises: BadFile, Infeasible, Interlock, Locked, Unreachable - nothing was changed. ChangeFailed - it stopped half way; the
    message lists what is done and what is not, the hint the next command.
    """
    lab = load_lab(inventory)
    wanted, text = load_plan(plan_path, lab)
    wanted = avoiding(wanted, avoid, lab)
    if dry_run:
        found = await plan(inventory, plan_path, avoid=avoid, progress=progress, store=store, settings=settings, timeout_s=timeout_s)
        return UpReport(
            run="",
            plan=wanted.name,
            lab=lab.name,
            nothing_to_do=found.nothing_to_do,
            dry_run=True,
            diff=found.diff,
            dark_ms_expected=found.dark_ms_expected,
            notes=found.notes,
            dark_time_scale=found.dark_time_scale,
        )
    key = key_of(lab)
    with LabLock(settings.lock_path(key), user=settings.user, reason=f"up {wanted.name}"):
        run = store.new_run(
            "up",
            key,
            plan_name=wanted.name,
            plan_sha=wanted.sha256,
            plan_text=text,
            inventory=inventory,
            user=settings.user,
            owner=settings.owner,
            options={"launch_job": launch_job, "avoid": avoid},
        )
        run_dir = settings.run_dir(run.id)
        with run, Journal(run_dir, run.id, lab.name) as journal:
            (run_dir / "plan.json").write_text(text, encoding="utf-8")
            recorder = Recorder(progress, journal)
            firm = settings.origins.get("timeout", "default") != "default"
            async with deadline(timeout_s, "up", firm=firm) as limit, open_session(lab, inventory, run_dir) as session:
                context = Context(session, store, run, slice_of(lab, settings), recorder, run_dir, timeout_s, limit)
                report = await Bringing(context, wanted, text).carry_out(launch_job=launch_job)
            report = replace(report, journal=str(journal.directory))
            run.finish("ok", summary=_summary(report))
            return report


async def down(inventory: Path, *, progress: Progress, store: Store, settings: Settings, timeout_s: float) -> DownReport:
    """Stop the job, take down what is ours, restore the hosts; foreign circuits stay. Raises: as `up`."""
    lab = load_lab(inventory)
    key = key_of(lab)
    with LabLock(settings.lock_path(key), user=settings.user, reason="down"):
        current = store.current(slice_of(lab, settings))
        name = current.plan_name if current else ""
        run = store.new_run("down", key, plan_name=name, inventory=inventory, user=settings.user, owner=settings.owner)
        run_dir = settings.run_dir(run.id)
        with run, Journal(run_dir, run.id, lab.name) as journal:
            recorder = Recorder(progress, journal)
            firm = settings.origins.get("timeout", "default") != "default"
            async with deadline(timeout_s, "down", firm=firm) as limit, open_session(lab, inventory, run_dir) as session:
                context = Context(session, store, run, slice_of(lab, settings), recorder, run_dir, timeout_s, limit)
                report = await Leaving(context).carry_out()
            report = replace(report, journal=str(journal.directory))
            failed = bool(report.left)
            run.finish("hands-needed" if failed else "ok", 7 if failed else 0, "; ".join(report.left), _summary(report))
            return report


def _summary(report: UpReport | DownReport) -> dict[str, object]:
    """Small numbers for the history."""
    return {
        "made": report.made,
        "removed": report.removed,
        "writes": report.writes,
        "dark_ms": getattr(report, "dark_ms", None),
        "phases": {p.name: p.seconds for p in report.phases},
    }
