"""The read-only verbs: the lab as it is now, and the verification ladder against the plan that is
up.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

from drivers.api import CircuitSwitch, PortHolders
from optics import DeviceName, HostName, Identity, Interlock, Locked, Missing, Setting, TestbedError
from optics.plain import counted, seconds_text
from optics.values import short, sort_key
from orchestrator.background.registry import kind, states
from orchestrator.change.locking import holding
from orchestrator.change.unfinished import left_behind
from orchestrator.fabric.circuits import receivers, settings
from orchestrator.fabric.lightpath import Held, among
from orchestrator.fabric.lookahead import prewired
from orchestrator.fabric.transition import per_device
from orchestrator.files.trust import loose
from orchestrator.hosts import Hello
from orchestrator.inventory.lab import Lab
from orchestrator.jobs import attachments
from orchestrator.jobs.jobs import Jobs
from orchestrator.jobs.record import hosts_of_job
from orchestrator.jobs.report import ALIVE, JobStatus
from orchestrator.plan.stored import stored_plan
from orchestrator.services.guard.process import GuardState
from orchestrator.services.schedule.process import ScheduleState, at_rest
from orchestrator.session import Command, Observation, Session, load_lab
from orchestrator.settings import Settings
from orchestrator.store.confirmations import Confirmations
from orchestrator.store.keys import key_of, tenancy_of
from orchestrator.store.light import light_history
from orchestrator.store.locks import locks_of, who
from orchestrator.store.records import CurrentPlan, JobRecord
from orchestrator.store.recoveries import recoveries
from orchestrator.store.scope import reachable_scope
from orchestrator.store.store import Store
from orchestrator.store.tagouts import Tagouts
from orchestrator.verbs.report import DeviceStatus, HostStatus, StatusReport
from orchestrator.verify.degraded import degraded
from orchestrator.verify.ladder import Background, Ladder
from orchestrator.verify.level import TRAFFIC
from orchestrator.verify.power import Reading, drifts, keep
from orchestrator.verify.report import VerifyReport

RECENT_S = 86400.0
"""Recoveries of this long (s) are shown."""


async def status(command: Command) -> StatusReport:
    """The lab as it answers now; what does not answer is reported with its error."""
    lab, store, settings = load_lab(command.inventory), command.store, command.settings
    key = tenancy_of(lab, settings)
    current = store.current(key)
    async with command.opened(lab, "status") as session:
        seen, identities = await asyncio.gather(session.observe(), _identities(session))
        reply = states(settings, key, key_of(lab))
        scheduler: ScheduleState | None = reply.get("schedule")
        if scheduler is not None and not (
            current is not None and (scheduler.plan == current.plan_name or scheduler.unreadable)
        ):
            scheduler = None
        changing = scheduler is not None and scheduler.alive
        circuits = current.up.circuits(lab) if current and not changing else ()
        links = current.up.links if current else ()
        asked: dict[object, Any] = {}
        dark, job, _ = await asyncio.gather(
            degraded(session.devices, lab, links, circuits, seen.hellos),
            _job(session, store, key, settings, seen, asked),
            # asked for now, and read below, where the job's own are known
            attachments.elsewhere(lab, {}, asked),
        )
    job = job if job is not None and _of_now(job, store.latest_job(key), current) else None
    elsewhere = await attachments.elsewhere(lab, job.attached if job is not None else {}, asked)
    # what is wanted now changes while it is compared
    wanted = {} if changing else _wanted(current, lab)
    owned = per_device(store.owned(key))
    ahead = prewired(seen.settings, wanted, owned, lab)
    devices = tuple(
        replace(
            _device(lab, n, seen, identities.get(n), wanted, owned),
            prewired=_shorts(ahead.get(n, ())),
            holders=_holders(session.devices[n]) if n in seen.settings else {},
        )
        for n in lab.devices
    )
    hosts = tuple(
        replace(_host(lab, name, seen, current), site=host.site) for name, host in lab.hosts.items()
    )
    locks = locks_of(lab, settings, store).listed()
    held = [lock for lock in locks if lock.state == "active"]
    tags = Tagouts(store, key_of(lab), who(settings)).listed()
    waiting = Confirmations(store, key, who(settings)).pending()
    watcher: GuardState | None = reply.get("guard")
    if (
        watcher is not None
        and not watcher.unreadable
        and (current is None or watcher.run != current.run)
    ):
        watcher = None
    return StatusReport(
        lab=lab.name,
        inventory=str(command.inventory),
        plan=current.plan_name if current else "",
        run=current.run if current else "",
        since=current.since if current else None,
        generation=current.generation if current else None,
        links=len(current.up.links) if current else 0,
        devices=devices,
        hosts=hosts,
        job=job,
        locked_by="; ".join(f"{lock} [lock {lock.id}, {lock.scope}]" for lock in held),
        booked=tuple(
            f"{lock.scope}: {lock} [lock {lock.id}]"
            for lock in sorted(locks, key=lambda lock: lock.since)
            if lock.state == "booked"
        ),
        tagged=tuple(map(str, tags)),
        drift=(
            *(() if changing else _drift(devices, hosts, current, dark, watcher)),
            *_halted(scheduler),
            *_dead(job, current),
            *_missing(job),
        ),
        unfinished=left_behind(store, key, seen),
        dark=dark,
        slots=str(scheduler) if changing else "" if _halted(scheduler) else at_rest(current, lab),
        services={
            name: str(one)
            for name, one in reply.items()
            if one.alive and name not in ("schedule", "guard")
        },
        guard=str(watcher) if watcher and (watcher.alive or watcher.around) else "",
        confirm=waiting.report() if waiting is not None else None,
        segments=tuple(dict.fromkeys(map(str, lab.switched(links).values()))),
        recoveries=tuple(
            f"{seconds_text(one.age_s)} ago: {one}"
            for one in recoveries(store, key)
            if one.age_s < RECENT_S
        ),
        loose=tuple(map(str, loose(command.inventory))),
        elsewhere=tuple(elsewhere),
    )


async def verify(
    command: Command,
    *,
    levels: Sequence[str] = (),
    qualify: bool = False,
    collective: bool = False,
    next_to_job: bool = False,
) -> VerifyReport:
    """The ladder against the plan that is up; silent devices and hosts of the plan fail the rungs
    that need them.

    levels: climb only these; none: those that the plan asks for. qualify, collective: climb those
    two as well, which load the links. next_to_job: also while a job runs. Raises: Missing - no plan
    is up. Unreachable - no device or host answers. Interlock - a job runs.
    """
    lab, store, settings = load_lab(command.inventory), command.store, command.settings
    key = tenancy_of(lab, settings)
    current = store.current(key)
    if current is None:
        raise Missing(
            f"no plan is up on {lab.name}, so there is nothing to verify against",
            hint="testbed up --topology examples/ring-12.json",
        )
    if (scheduler := kind("schedule").running(settings, key)) is not None:
        raise Interlock(
            f"the slots of {current.plan_name} change ({scheduler}), and each was verified when it was made",
            hint="to verify the one that is there: testbed service stop schedule, then testbed verify",
        )
    plan = stored_plan(current.plan_text, current.plan_name, current.up.slots, lab)
    links, circuits = current.up.links, current.up.circuits(lab)
    async with command.opened(lab, "verify") as session:
        command.progress.phase("observe")
        seen = await session.observe()
        if not seen.settings and not seen.hellos:
            seen.complete()
        command.progress.done(
            "observe",
            f"{counted(len(seen.settings), 'device')}, {counted(len(seen.hellos), 'host')}",
        )
        command.progress.phase("verify")
        needed = {x.ingress.device for c in circuits for x in c.path} | {
            p.host for link in links for p in (link.a, link.b)
        }
        silent = {str(name): str(error) for name, error in seen.errors.items()}

        def note(readings: tuple[Reading, ...]) -> None:
            keep(readings, store, key_of(lab))

        owned = per_device(store.owned(key))
        around = Background(
            owned,
            {setting: str(owner) for setting, owner in store.owners(key_of(lab)).items()},
            silent,
            lambda: [
                d
                for d in drifts(light_history(store, key_of(lab)), lab)
                if d.circuit in set(map(str, circuits))
            ],
            prewired(seen.settings, _wanted(current, lab), owned, lab),
        )
        ladder = Ladder(session, plan, links, circuits, seen.settings, seen.hellos, note, around)
        chosen = set(levels or ladder.asked_for()) | {
            name for name, yes in zip(TRAFFIC, (qualify, collective), strict=True) if yes
        }
        busy = ""
        async with AsyncExitStack() as lock:
            if loads := [name for name in TRAFFIC if name in chosen]:
                explicit = qualify or collective or set(levels) & set(TRAFFIC)
                scope = reachable_scope(lab, {p.host for link in links for p in (link.a, link.b)})
                try:  # a rung that loads the links needs them exclusively
                    await lock.enter_async_context(holding(lab, command, scope, "verify"))
                    if store.current(key) != current:
                        raise Locked("another plan came up meanwhile", hint="again: testbed verify")
                except Locked as error:
                    if explicit:
                        raise
                    busy = error.line
                running = await _running(session, store, key, settings, seen)
                if running and explicit and not next_to_job:
                    raise Interlock(
                        f"job {running} runs: {' and '.join(loads)} would slow it, and would measure what it leaves over",
                        hint="add --beside-job, or first: testbed job stop",
                    )
                busy = f"job {running} runs" if running and not next_to_job else busy
            ran = await ladder.run_levels(chosen, busy)
        command.progress.done("verify", f"{sum(r.ok for r in ran)}/{len(ran)} rungs")
    notes = [
        f"{h}: runs generation {hello.active}, not {current.generation}"
        for h, hello in seen.hellos.items()
        if h in needed and hello.active not in (None, current.generation)
    ]
    notes += [
        f"{name} does not answer; the plan does not need it: {text}"
        for name, text in silent.items()
        if name not in needed
    ]
    unheard = {name: text for name, text in silent.items() if name in needed}
    return VerifyReport(
        lab=lab.name, plan=current.plan_name, levels=ran, notes=tuple(notes), silent=unheard
    )


def _halted(scheduler: ScheduleState | None) -> list[str]:
    """Report that the schedule service of the plan that is up died or gave up; empty if it did
    not.
    """
    if scheduler is None or not scheduler.halted:
        return []
    where = f"in slot {scheduler.slot} of {scheduler.slots}" + (
        f": {scheduler.error}" if scheduler.error else ""
    )
    ended = "gave up" if scheduler.error else "died"
    text = "a device that changes slots by itself goes on, and hosts follow its light; else each stays in the slot whose light it has"
    return [
        f"slots: the schedule service {ended} {where}; {text}; "
        "to go on: testbed service start schedule; to end it: testbed service stop schedule"
    ]


async def _identities(session: Session) -> Mapping[DeviceName, Identity]:
    async def one(name: DeviceName) -> tuple[DeviceName, Identity | None]:
        try:
            return name, await session.devices[name].identify()
        except TestbedError:
            return name, None  # `observe` meets the same error and reports it

    return {n: i for n, i in await asyncio.gather(*map(one, session.devices)) if i is not None}


async def _job(
    session: Session,
    store: Store,
    key: str,
    settings: Settings,
    seen: Observation,
    asked: dict[object, Any] | None = None,
) -> JobStatus | None:
    """The job as its ranks say; None where there is none, or a host of them does not answer (of
    attachments, that is no reason).
    """
    record = store.latest_job(key)
    try:
        if (
            record is None
            or not seen.hellos
            or seen.errors.keys() & set(hosts_of_job(record, session.lab))
        ):
            return None
        return await Jobs(session, store, key, settings.runs_dir).status(record, asked=asked)
    except TestbedError:
        return None  # the lab was rebuilt since: its hosts do not know that job


async def _running(
    session: Session, store: Store, key: str, settings: Settings, seen: Observation
) -> str:
    """The name of the job that runs, or may run if not all of its hosts answer; empty if none
    does.
    """
    record = store.latest_job(key)
    if record is None or record.ended is not None:
        return ""
    job = await _job(session, store, key, settings, seen)
    return record.name if job is None or job.state in ALIVE else ""


def _wanted(current: CurrentPlan | None, lab: Lab) -> Held:
    return settings(current.up.circuits(lab)) if current else {}


def _device(
    lab: Lab,
    name: DeviceName,
    seen: Observation,
    identity: Identity | None,
    wanted: Held,
    owned: Held,
) -> DeviceStatus:
    config = lab.devices[name]
    if name in seen.errors:
        error = seen.errors[name]
        return DeviceStatus(
            name,
            config.driver,
            config.address,
            False,
            error=str(error),
            code=error.code,
            time_scale=config.time_scale,
        )
    none: frozenset[Setting] = frozenset()
    held, own, goal = seen.settings[name], owned.get(name, none), wanted.get(name, none)
    foreign, missing = held - among(held, own | goal), goal - among(goal, held)
    return DeviceStatus(
        name,
        config.driver,
        config.address,
        True,
        identity=f"{identity.vendor} {identity.model} {identity.serial} {identity.firmware}"
        if identity
        else "",
        ours=len(among(held, own)),
        foreign=_shorts(foreign),
        missing=_shorts(missing),
        time_scale=config.time_scale,
    )


def _holders(device: CircuitSwitch) -> dict[str, str]:
    held = device.holders() if isinstance(device, PortHolders) else {}
    return {short(what): held[what] for what in sorted(held, key=str)}


def _shorts(held: Iterable[Setting]) -> tuple[str, ...]:
    return tuple(short(s) for s in sorted(held, key=sort_key))


def _host(lab: Lab, name: HostName, seen: Observation, current: CurrentPlan | None) -> HostStatus:
    target = lab.hosts[name].ssh
    address = f"{target.address}:{target.port}"
    planned = [p for p in receivers(current.up.links) if p.host == name] if current else []
    if name in seen.errors:
        return HostStatus(name, address, False, planned=len(planned), error=str(seen.errors[name]))
    hello: Hello = seen.hellos[name]
    if not hello.installed:  # not an error on a host that no plan needs: it was not provisioned yet
        text = "not set up yet; the first `testbed up` that needs it does it"
        if planned:
            text = "no agent answers, so its routes and ports are not known; `testbed up` with the plan starts it again"
        return HostStatus(name, address, not planned, planned=len(planned), error=text)
    up = sum(1 for p in planned if p.number in hello.ports and hello.ports[p.number].carrier)
    return HostStatus(
        name, address, True, generation=hello.active, up=up, planned=len(planned), committer=True
    )


def _planned(name: str, current: CurrentPlan) -> bool:
    """Whether the job of this name is that of the plan that is up."""
    wanted = json.loads(current.plan_text).get("job")
    return bool(wanted) and wanted["name"] == name


def _of_now(job: JobStatus, record: JobRecord | None, current: CurrentPlan | None) -> bool:
    """Whether a job is of the plan that is up, runs beside it, or failed since it is up; else it is
    an earlier plan's.
    """
    if job.state in ALIVE:
        return True
    since = (
        current is not None
        and record is not None
        and (record.ended is None or record.ended >= current.since)
    )
    return current is not None and since and (job.state == "failed" or _planned(job.name, current))


def _dead(job: JobStatus | None, current: CurrentPlan | None) -> list[str]:
    """Report that the job of the plan that is up has failed; empty if it has not."""
    if job is None or job.state != "failed" or current is None or not _planned(job.name, current):
        return []
    return [
        f"job {job.name} failed: {job.detail}; its output: testbed job logs; to launch it again: testbed up"
    ]


def _missing(job: JobStatus | None) -> list[str]:
    """Report what a running job lacks of its attachments."""
    return (
        attachments.troubles(job.name, job.attached)
        if job is not None and job.state in ALIVE
        else []
    )


def _drift(
    devices: tuple[DeviceStatus, ...],
    hosts: tuple[HostStatus, ...],
    current: CurrentPlan | None,
    dark: tuple[str, ...] = (),
    guard: GuardState | None = None,
) -> list[str]:
    found = [
        f"{d.name}: {counted(len(d.missing), 'planned cross-connect')} missing: {', '.join(d.missing[:6])}"
        for d in devices
        if d.missing
    ]
    found += dark
    # left by a command that died, or by a `down` that could not reach every device
    if current is None:
        found += [
            f"{d.name}: {counted(left, 'own cross-connect')}"
            for d in devices
            if (left := d.ours - len(d.prewired))
        ]
        found += [
            f"{h.name}: runs generation {h.generation}, of a run that died or of another owner"
            for h in hosts
            if h.generation is not None
        ]
    else:
        away = [h for h in hosts if h.ok and h.planned and h.generation != current.generation]
        if (
            guard is not None
            and guard.around
            and away
            and all(h.generation == guard.generation for h in away)
        ):
            whose = "" if guard.alive else ", of a guard that has ended"
            found.append(
                f"routes: traffic is rerouted around {', '.join(guard.around)} (generation {guard.generation}{whose})"
            )
        else:
            found += [
                f"{h.name}: runs generation {h.generation}, {current.generation} was committed"
                for h in away
            ]
    return found
