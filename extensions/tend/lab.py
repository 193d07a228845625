"""The lab, as the guard uses it: with the verbs that an operator types, each under its own lock."""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from extensions.tend.guard import Priced
from optics import HandsNeeded, HostName, Infeasible, Interlock, Missing, NotVerified, TestbedError
from orchestrator.change.expiry import confirmations, settle
from orchestrator.change.report import DownReport
from orchestrator.experiments.rehearsal.verb import rehearse
from orchestrator.hosts.failures import one_error
from orchestrator.jobs.jobs import Jobs
from orchestrator.jobs.rank_records import sound
from orchestrator.jobs.record import hosts_of_job
from orchestrator.jobs.report import ALIVE
from orchestrator.plan.design.match import STATIC, TCP, match
from orchestrator.plan.design.prices import plan_watts
from orchestrator.session import Command, PlanText, load_lab, load_plan
from orchestrator.store.keys import tenancy_of
from orchestrator.store.options import UpOptions
from orchestrator.store.records import CurrentPlan
from orchestrator.verbs import change as verbs
from orchestrator.verbs.back import rollback
from orchestrator.verbs.design_files import read_lines, read_prices, read_workload

LOOK_S = 0.5
"""Interval (s) at which the job's iterations are fetched."""
LIVE = UpOptions(job="live")
"""A trial never restarts the job: a plan that would need that is refused."""


class LabBench:
    """hosts: rehearse with hosts, too."""

    def __init__(self, command: Command, *, hosts: bool) -> None:
        self.command, self.hosts = command, hosts
        self.lab, self.prices = load_lab(command.inventory), read_prices()
        self.key = tenancy_of(self.lab, command.settings)

    def check(self) -> None:
        """Raises: Missing, Interlock - there is nothing to begin with."""
        if self._current().up.slots is not None:
            raise Interlock(
                "the plan that is up is a schedule, which has no other plans beside it",
                hint="testbed up with a plan without a schedule",
            )
        if (waits := confirmations(self.command).pending()) is not None:
            raise Interlock(str(waits), hint="testbed confirm, or testbed rollback")

    def _current(self) -> CurrentPlan:
        if (current := self.command.store.current(self.key)) is None:
            text = f"no plan is up on {self.lab.name}, so there is nothing to compare with"
            raise Missing(text, hint="testbed up --topology PLAN")
        return current

    def now(self) -> float:
        return time.time()

    async def rest(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def at(self) -> tuple[str, str, Mapping[str, Any]]:
        current = self._current()
        return current.plan_sha, current.plan_name, json.loads(current.plan_text)

    async def price(self, name: str, text: str) -> Priced:
        plan, _ = load_plan(PlanText(text, name), self.lab)
        if plan.schedule is not None:
            raise Infeasible("a plan with a schedule is not tried")
        if plan.sha256 == self.at()[0]:
            raise Infeasible("it is up already")
        watts = plan_watts(self.prices, self.lab, plan)
        found = await verbs.plan(self.command, PlanText(text, name), LIVE)
        if refused := [note for note in found.notes if note.startswith("`up` would be refused")]:
            raise Interlock(refused[0])
        moves = sum(len(device.removed) + len(device.made) for device in found.diff)
        dark_ms = found.dark_ms_expected or 0.0
        return Priced(name, text, plan.sha256, watts, moves, dark_ms, found.fingerprint)

    async def rehearse(self, priced: Priced) -> Priced:
        report = await rehearse(
            self.command,
            PlanText(priced.text, priced.name),
            LIVE,
            devices_only=not self.hosts,
        )
        back = report.back
        if failed := report.failed or "; ".join(report.left) or (back.failed if back else ""):
            raise NotVerified(f"it failed in rehearsal: {failed}")
        times = (priced.dark_ms, report.dark_ms, back.dark_ms if back else None)
        return replace(priced, dark_ms=max(ms or 0.0 for ms in times))

    async def up(self, priced: Priced, within_s: float) -> float:
        asked = replace(LIVE, confirm_s=within_s, expected=priced.place)
        report = await verbs.up(self.command, PlanText(priced.text, priced.name), asked)
        return report.dark_ms or 0.0

    async def confirm(self) -> None:
        await verbs.confirm(self.command, None)

    async def back(self) -> float | None:
        waits = confirmations(self.command).pending()
        if waits is None:
            return None
        if waits.left_s() <= 0:
            await settle(self.command)  # the watching process may be at it
            return None
        report = await rollback(self.command, waits.run)
        if isinstance(report, DownReport):
            raise HandsNeeded("the plan before the trial is not up:", report.left)
        return report.dark_ms or 0.0

    async def iterations(self, count: int, limit_s: float) -> Sequence[float]:
        record = self.command.store.latest_job(self.key)
        if record is None:
            raise Missing("no job was ever launched", hint="testbed up with a plan that has a job")
        settings = self.command.settings
        file = settings.runs_dir / record.run / f"{record.spec.on_hosts}.iterations.jsonl"
        since, end = None, time.monotonic() + limit_s
        patient = replace(self.command, settings=replace(settings, timeout_s=math.inf))
        async with patient.opened(self.lab, "tend") as session:
            jobs = Jobs(session, self.command.store, self.key, settings.runs_dir)
            answers = await session.hosts.channels.connect(hosts_of_job(record, self.lab))
            if silent := {h: e for h, e in answers.items() if isinstance(e, TestbedError)}:
                raise one_error(silent)
            while True:
                status = await jobs.status(record)
                if status.state not in ALIVE:
                    text = f"job {record.name} is {status.state}, so no iteration can be measured"
                    raise Missing(text, hint="testbed job status")
                found = sound(file.read_bytes().splitlines()) if file.exists() else []
                last = max((int(one["iter"]) for one in found), default=-1)
                since = last + 1 if since is None else since  # one is under way
                times = [float(one["iter_ms"]) for one in found if int(one["iter"]) > since]
                if len(times) >= count or time.monotonic() >= end:
                    return times[:count]
                await asyncio.sleep(LOOK_S)


def candidates(bench: LabBench, workload: Path) -> tuple[dict[str, Any], ...]:
    """Those of `design match` for the hosts of the running job, with that job on the circuits and
    rings of each, as `Loop.candidates`. Raises: as `match`.
    """
    _, _, up = bench.at()
    record = bench.command.store.latest_job(bench.key)
    if record is None or not isinstance(up.get("job"), dict):
        raise Missing("no job runs on the plan that is up", hint="testbed job status")
    hosts: tuple[HostName, ...] = tuple(sorted(hosts_of_job(record, bench.lab)))
    found = match(
        read_workload(workload),
        bench.lab,
        hosts=hosts,
        lines=read_lines(bench.command.inventory),
        prices=bench.prices,
    )
    known = []
    for one in found.distinct(len(found.able)):
        if (one.schedule, one.transport, one.function) != (STATIC, TCP, ""):
            continue  # the job would have to start again
        job = {key: value for key, value in up["job"].items() if key not in ("rings", "traffic")}
        job |= {
            key: one.content["job"][key]
            for key in ("rings", "traffic")
            if key in one.content["job"]
        }
        kind = one.method.replace("*", "all")
        name = f"tend-{re.sub('[^A-Za-z0-9]+', '-', kind)}"[:60]
        plan = {**one.content, "name": name, "job": job}
        known.append(
            {
                "name": plan["name"],
                "predicted_ms": (one.seconds or 0.0) * 1e3,
                "watts": one.watts,
                "plan": plan,
            }
        )
    return tuple(known)
