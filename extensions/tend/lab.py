"""The lab, as the guard uses it: with the verbs that an operator types, each under its own lock."""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from extensions.tend.guard import Priced, whole
from optics import HandsNeeded, HostName, Infeasible, Interlock, Missing, NotVerified, TestbedError
from optics.plan import Traffic
from orchestrator.change.expiry import confirmations, settle
from orchestrator.change.report import DownReport
from orchestrator.experiments.rehearsal.verb import rehearse
from orchestrator.hosts.failures import one_error
from orchestrator.jobs.decision import CHANGES_RINGS
from orchestrator.jobs.iterations import collect_iterations
from orchestrator.jobs.record import hosts_of_job, ranks_of, state_of
from orchestrator.jobs.report import ALIVE
from orchestrator.plan.design.match import STATIC, TCP, match
from orchestrator.plan.design.prices import plan_watts
from orchestrator.session import Command, PlanText, load_lab, load_plan
from orchestrator.store.keys import tenancy_of
from orchestrator.store.options import UpOptions
from orchestrator.store.records import CurrentPlan, JobRecord
from orchestrator.verbs import change as verbs
from orchestrator.verbs.back import rollback
from orchestrator.verbs.design_files import read_lines, read_prices, read_workload

LOOK_S, LAST_LOOK_S = 0.5, 10.0
"""The job's iterations are fetched when half of those that are missing should have ended, between
these intervals (s).
"""
CHOSEN = ("name", "description", "links", "segments", "predicted", "producer")
"""What a plan that is tried says itself; the rest, but rings and traffic of its job, is as the plan
that is up says it.
"""


class LabBench:
    """hosts: rehearse with hosts, too."""

    def __init__(self, command: Command, *, hosts: bool) -> None:
        self.command, self.hosts = command, hosts
        self.lab, self.prices = load_lab(command.inventory), read_prices()
        self.key = tenancy_of(self.lab, command.settings)
        self.longest_s, self.run = command.timeout_s, ""

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

    def job(self) -> JobRecord:
        """The latest one. Raises: Missing."""
        if (record := self.command.store.latest_job(self.key)) is None:
            raise Missing("no job was ever launched", hint="testbed up with a plan that has a job")
        return record

    @property
    def live(self) -> UpOptions:
        """Of a trial: it never restarts the job, and avoids what the plan that is up avoids."""
        record = self.command.store.get(self._current().run)
        return UpOptions(job="live", avoid=record.avoid if record is not None else ())

    def now(self) -> float:
        return time.time()

    async def rest(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def at(self) -> tuple[str, str, Mapping[str, Any]]:
        current = self._current()
        return current.plan_sha, current.plan_name, json.loads(current.plan_text)

    async def price(self, name: str, text: str) -> Priced:
        if load_plan(PlanText(text, name), self.lab)[0].schedule is not None:
            raise Infeasible("a plan with a schedule is not tried")
        text = json.dumps(on_circuits(self.at()[2], json.loads(text)))
        plan, _ = load_plan(PlanText(text, name), self.lab)
        running = self.job().spec.wanted.traffic
        if plan.job is None or not same_work(running, plan.job.traffic):
            raise Infeasible("its job computes or sends something else than the one that runs")
        watts = plan_watts(self.prices, self.lab, plan)
        found = await verbs.plan(self.command, PlanText(text, name), self.live)
        if refused := [note for note in found.notes if note.startswith("`up` would be refused")]:
            raise Interlock(refused[0])
        moves = sum(len(device.removed) + len(device.made) for device in found.diff)
        dark_ms = found.dark_ms_expected or 0.0
        return Priced(name, text, plan.sha256, watts, moves, dark_ms, found.fingerprint)

    async def rehearse(self, priced: Priced) -> Priced:
        report = await rehearse(
            self.command,
            PlanText(priced.text, priced.name),
            self.live,
            devices_only=not self.hosts,
        )
        back = report.back
        if failed := report.failed or "; ".join(report.left) or (back.failed if back else ""):
            raise NotVerified(f"it failed in rehearsal: {failed}")
        times = (priced.dark_ms, report.dark_ms, back.dark_ms if back else None)
        return replace(priced, dark_ms=max(ms or 0.0 for ms in times))

    async def up(self, priced: Priced, within_s: float) -> float:
        asked = replace(self.live, confirm_s=within_s, expected=priced.place)
        report = await verbs.up(self.command, PlanText(priced.text, priced.name), asked)
        self.run = report.run
        if report.confirm is None:  # no light moved, and so there is no deadline
            if self._current().run == report.run:
                await whole(rollback(self.command, report.run))
            raise Infeasible("it moved no circuit, so it was taken back at once")
        return report.dark_ms or 0.0

    async def confirm(self) -> None:
        await verbs.confirm(self.command, self.run)

    async def back(self, priced: Priced) -> float | None:
        waits = confirmations(self.command).pending()
        record = self.command.store.get(waits.run) if waits is not None else None
        if waits is None or record is None or record.plan_sha != priced.sha:
            return None
        if waits.left_s() <= 0:
            await settle(self.command)  # the watching process may be at it
            return None
        report = await rollback(self.command, waits.run)
        if isinstance(report, DownReport):
            raise HandsNeeded("the plan before the trial is not up:", report.left)
        return report.dark_ms or 0.0

    async def iterations(self, count: int, limit_s: float) -> Sequence[float]:
        record, settings = self.job(), self.command.settings
        name, folder = record.spec.on_hosts, settings.runs_dir / record.run
        since, end = None, time.monotonic() + limit_s
        patient = replace(self.command, settings=replace(settings, timeout_s=math.inf))
        async with patient.opened(self.lab, "tend") as session:
            answers = await session.hosts.channels.connect(hosts_of_job(record, self.lab))
            if silent := {h: e for h, e in answers.items() if isinstance(e, TestbedError)}:
                raise one_error(silent)
            while True:
                states = await session.hosts.jobs.states(name, ranks_of(record, self.lab))
                found = await collect_iterations(session, name, record, folder)
                state, _ = state_of(record, states, len(found) + found.bad)
                if state not in ALIVE:
                    text = f"job {record.name} is {state}, so no iteration can be measured"
                    raise Missing(text, hint="testbed job status")
                last = max((int(one["iter"]) for one in found), default=-1)
                since = last + 1 if since is None else since  # one is under way
                times = [float(one["iter_ms"]) for one in found if int(one["iter"]) > since]
                left_s = end - time.monotonic()
                if len(times) >= count or left_s <= 0:
                    return times[:count]
                half_s = (count - len(times)) * (times[-1] if times else 0.0) / 2e3
                await asyncio.sleep(min(max(LOOK_S, half_s), LAST_LOOK_S, left_s))


def on_circuits(up: Mapping[str, Any], content: Mapping[str, Any]) -> dict[str, Any]:
    """The plan that is up on the circuits, rings and traffic of another. Raises: Missing."""
    if not isinstance(up.get("job"), dict):
        raise Missing("no job runs on the plan that is up", hint="testbed job status")
    job = content.get("job") or {}

    def taken(
        was: Mapping[str, Any], other: Mapping[str, Any], keys: Sequence[str]
    ) -> dict[str, Any]:
        kept = {key: value for key, value in was.items() if key not in keys}
        return kept | {key: other[key] for key in keys if key in other}

    return taken(up, content, CHOSEN) | {"job": taken(up["job"], job, CHANGES_RINGS)}


def same_work(running: Traffic | None, other: Traffic | None) -> bool:
    """Whether an iteration computes and moves the same; transfers that are cut into other parts may
    differ by a byte for each, as each is rounded.
    """
    if running is None or other is None:
        return running is other
    works = [
        (one.compute_s, sorted((g.id, g.bytes, sorted({*sum(g.rings, ())})) for g in one.groups))
        for one in (running, other)
    ]
    sent, parts = Counter[tuple[HostName, HostName]](), Counter[tuple[HostName, HostName]]()
    for one, sign in ((running, 1), (other, -1)):
        for each in one.transfers:
            sent[each.src, each.dst] += sign * each.bytes
            parts[each.src, each.dst] += 1
    alike = all(abs(left) < parts[pair] for pair, left in sent.items())
    return works[0] == works[1] and alike


def candidates(bench: LabBench, workload: Path) -> tuple[dict[str, Any], ...]:
    """Those of `design match` for the hosts of the running job, with that job on the circuits and
    rings of each, as `Loop.candidates`. Raises: as `match`; Infeasible - the workload is not that of
    the job.
    """
    (_, _, up), record = bench.at(), bench.job()
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
        kind = one.method.replace("*", "all")
        name = f"tend-{re.sub('[^A-Za-z0-9]+', '-', kind)}"[:60]
        plan = on_circuits(up, {**one.content, "name": name})
        traffic = plan["job"].get("traffic")
        if not same_work(record.spec.wanted.traffic, Traffic.of(traffic) if traffic else None):
            continue
        known.append(
            {
                "name": name,
                "predicted_ms": (one.seconds or 0.0) * 1e3,
                "watts": one.watts,
                "plan": plan,
            }
        )
    if not known:
        raise Infeasible(
            f"{workload}: none of its designs computes and sends what the job {record.name} does",
            hint="--workload names the file that the job's plan was designed from",
        )
    return tuple(known)
