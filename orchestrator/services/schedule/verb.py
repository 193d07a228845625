"""`testbed service run schedule`: the slots of the plan that is up, changed until stopped."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

from optics import Change, DeviceName, Missing, TestbedError
from optics.plain import counted
from optics.plan import Job, Plan, Schedule
from orchestrator.background.kind import StateFile
from orchestrator.background.work import Notify, serving
from orchestrator.change.apply import finish
from orchestrator.change.context import Context
from orchestrator.change.goal import rules_sha
from orchestrator.change.interlock import Interlocks
from orchestrator.change.locking import holding
from orchestrator.fabric.lightpath import among
from orchestrator.fabric.transition import per_device
from orchestrator.fabric.up_state import SlotsMade, UpState
from orchestrator.inventory.lab import Lab
from orchestrator.plan.reader import read_plan
from orchestrator.plan.stored import pending_slots
from orchestrator.services.schedule.clock import SlotClock
from orchestrator.services.schedule.goals import (
    change_to,
    every,
    generation_rules,
    host_requests,
    network_requests,
    slot_goals,
    times_of,
)
from orchestrator.services.schedule.process import (
    NOT_LAUNCHED,
    SCHEDULER,
    ScheduleOptions,
    ScheduleReport,
    ScheduleState,
)
from orchestrator.services.schedule.scheduler import Scheduler
from orchestrator.services.schedule.stored import stored_slots
from orchestrator.services.schedule.watching import HostWatch
from orchestrator.session import Command, load_lab, open_session
from orchestrator.store.confirmations import Confirmations
from orchestrator.store.keys import key_of, owner_of, tenancy_of
from orchestrator.store.locks import who
from orchestrator.store.records import CurrentPlan
from orchestrator.store.scope import Scope, reachable_scope
from orchestrator.store.tagouts import Tagouts
from orchestrator.telemetry.journal import Journal
from orchestrator.telemetry.progress import Silent
from orchestrator.telemetry.recorder import Recorder


def scheduled(command: Command, lab: Lab) -> tuple[CurrentPlan, Plan, Schedule]:
    """The plan that is up and its schedule. Raises: Missing - none is up, it has none, or not all
    of its slots were made.
    """
    current = command.store.current(tenancy_of(lab, command.settings))
    if current is None:
        raise Missing(
            f"no plan is up on {lab.name}, so there is no slot to change",
            hint="testbed up with a schedule",
        )
    plan = read_plan(current.plan_text, current.plan_name, lab)
    if plan.schedule is None:
        raise Missing(
            f"{plan.name} has no schedule, so there is no slot to change",
            hint="docs/how-to/run-a-schedule.md",
        )
    if missing := pending_slots(plan.schedule, current.up.slots):
        text = f"of {plan.name} {counted(len(missing), 'slot')} of {len(plan.schedule.slots)} were not made and verified"
        raise Missing(
            f"{text}: its `up` did not get so far", hint="testbed up with the plan makes them"
        )
    return current, plan, plan.schedule


async def run_schedule(
    command: Command, *, notify: Notify, options: ScheduleOptions
) -> ScheduleReport:
    """Change the slots of the plan that is up, until cancelled. The fabric and the hosts then stay
    in a whole slot.

    Raises: Missing - no plan with a schedule is up. Locked - another one, or another run, changes
    the lab. As `Scheduler.change_slot`.
    """
    lab, silent = load_lab(command.inventory), replace(command, progress=Silent())
    current, plan, schedule = scheduled(command, lab)
    settings, key = command.settings, tenancy_of(lab, command.settings)
    own = SCHEDULER.own(settings, options)
    own = replace(own, plan=plan.name, run=current.run, slots=len(schedule.slots))
    killed = SCHEDULER.read(SCHEDULER.path(settings, key)) if options.kept else None
    if killed is not None and killed.kept == own.kept and killed.job:
        # it may have been stopped since
        own, options = replace(own, job=killed.job), replace(options, job=False)
    with serving(SCHEDULER.file(settings, key, own)) as file:
        async with _running(silent, lab, plan) as context:
            if (now := command.store.current(key)) is None or now.run != current.run:
                raise Missing(
                    f"{plan.name} is not up any more, so there is no slot to change",
                    hint="testbed status",
                )
            began = time.monotonic()
            scheduler = await _prepared(context, lab, current, plan, schedule, file, notify)
            await _slot_changed(scheduler, plan, options, silent)
            await finish(_left(scheduler))
            scheduler.emit("ended", f"stopped in slot {scheduler.clock.slot}")
            report = ScheduleReport(
                lab.name,
                plan.name,
                context.run.id,
                scheduler.slot_changes,
                scheduler.late,
                scheduler.clock.slot,
                len(scheduler.goals),
                round(time.monotonic() - began, 1),
                round(scheduler.duty.share, 4),
                round(scheduler.duty.planned, 4),
            )
            context.run.finish(
                "ok",
                summary={
                    "slot_changes": scheduler.slot_changes,
                    "late": scheduler.late,
                    "duty": report.duty,
                },
            )
            return report


@asynccontextmanager
async def _running(command: Command, lab: Lab, plan: Plan) -> AsyncIterator[Context]:
    """Take the lock, record the run, keep its journal, open the lab."""
    settings, store = command.settings, command.store
    scope = reachable_scope(lab, plan.hosts) | Scope(
        owners=frozenset({owner_of(tenancy_of(lab, settings))})
    )
    async with holding(lab, command, scope, "schedule", plan.name) as lock:
        waiting = Confirmations(store, tenancy_of(lab, settings), who(settings)).pending()
        if waiting is not None:
            raise TestbedError(str(waiting), hint="testbed confirm")
        current = store.current(tenancy_of(lab, settings))
        run = store.new_run(
            "schedule",
            key_of(lab),
            plan_name=plan.name,
            plan_sha=plan.sha256,
            # a job is of the run that launched it
            plan_text=current.plan_text if current is not None else "",
            inventory=command.inventory,
            user=settings.user,
            owner=settings.owner,
        )
        lock.bind(run)
        run_dir = settings.run_dir(run.id)
        with run, Journal(run_dir, run.id, lab.name) as journal:
            async with open_session(lab, command.inventory, run_dir, settings.bounds) as session:
                session.hosts.channels.token = run.token
                interlocks = Interlocks(
                    lab, session.devices, Tagouts(store, key_of(lab), who(settings))
                )
                recorder, tenancy = Recorder(Silent(), journal), tenancy_of(lab, settings)
                context = Context(
                    session,
                    store,
                    run,
                    tenancy,
                    recorder,
                    run_dir,
                    command.timeout_s,
                    lock=lock,
                    interlocks=interlocks,
                    who=who(settings),
                    sample_hz=settings.sample_hz,
                    verb="schedule",
                )
                died = [
                    r.id
                    for r in store.unfinished(key_of(lab), settings.owner)
                    if r.verb == "schedule" and r.id != run.id
                ]
                store.resolve(died, run.id)
                yield context


async def _prepared(
    context: Context,
    lab: Lab,
    current: CurrentPlan,
    plan: Plan,
    schedule: Schedule,
    file: StateFile[ScheduleState],
    notify: Notify,
) -> Scheduler:
    """Read everything, give the hosts the routes of every slot, and make the slot whole that most
    of the light is of.
    """
    store, session = context.store, context.session
    names = plan.hosts
    seen = await session.observe()
    owned = store.owned(context.tenancy)
    foreign = {
        d: held - among(held, per_device(owned).get(d, frozenset()))
        for d, held in seen.settings.items()
    }
    goals = slot_goals(plan, schedule, lab, foreign)
    settings = every(goal.wanted for goal in goals)
    seen.needing({s.ingress.device for s in settings | owned} | set(names))
    if stale := [h for h in session.hosts.channels.unprovisioned() if h in names]:
        raise Missing(
            f"{', '.join(stale)}: the agent is not this program's",
            hint="testbed up with the plan installs it",
        )
    context.reserve(settings)
    times = times_of(schedule, goals, session.traits, lab)
    store.own(context.tenancy, context.run.id, settings)
    slot = min(
        range(len(goals)),
        key=lambda k: _distance(change_to(seen.settings, goals[k], settings | owned)),
    )
    days = tuple(context.next_generation() for _ in goals)
    dark_windows = tuple(context.next_generation() for _ in goals)
    macs = session.hosts.channels.macs()
    generations = generation_rules(goals, days, dark_windows, schedule, lab, macs, names)
    await session.hosts.channels.fence(context.run.token, names)
    requests = host_requests(goals, days, dark_windows, times, schedule, lab, names, slot)
    job_hosts = plan.job.hosts if plan.job else ()
    watch = HostWatch(
        session.hosts, names, generations, requests, context.recorder.journal, plan.name, job_hosts
    )
    watch.networks = network_requests(goals, days, schedule, names)
    watch.count = slot
    stored = stored_slots(schedule, goals, times, foreign, session.devices)
    clock, held = SlotClock(times, len(goals), slot), dict(seen.settings)
    scheduler = Scheduler(
        context,
        schedule,
        goals,
        times,
        names,
        file,
        notify,
        watch,
        held,
        clock,
        stored=stored,
        days=days,
    )
    with context.run.step(
        "host",
        "all",
        "load",
        {"generations": [*days, *dark_windows]},
        {"clear": [*days, *dark_windows]},
    ):
        await watch.load(names)
    return scheduler


def _distance(changes: Mapping[DeviceName, Change]) -> int:
    return sum(len(c.remove) + len(c.add) for c in changes.values())


async def _slot_changed(
    scheduler: Scheduler, plan: Plan, options: ScheduleOptions, command: Command
) -> None:
    """Change slots until cancelled or done; the job is launched meanwhile."""
    hosts = scheduler.context.session.hosts
    events = hosts.channels.subscribe()
    tasks = [asyncio.create_task(scheduler.watch.listen(events))]
    try:
        with suppress(asyncio.CancelledError):
            await scheduler.finish(scheduler.begin())
            _record_current(scheduler)
            if options.job and plan.job is not None:
                tasks.append(asyncio.create_task(_launched(scheduler, plan.job, command)))
            await scheduler.change_slot(
                0 if options.stop else len(scheduler.goals) if options.once else None
            )
    except BaseException:
        with suppress(TestbedError):
            await finish(scheduler.leave())
        raise
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await scheduler.watch.leave()
        hosts.channels.unsubscribe(events)


async def _launched(scheduler: Scheduler, job: Job, command: Command) -> None:
    """Launch the plan's job while slots change; what became of it is in the state file."""
    context, lab = scheduler.context, scheduler.context.session.lab
    text = f"{NOT_LAUNCHED}: the schedule service ended meanwhile"
    try:
        own = context.lock.lock if context.lock is not None else None
        async with holding(lab, command, reachable_scope(lab, job.hosts), "job launch", within=own):
            status = await context.jobs.ensure(
                context.run.id, job, context.recorder, changed=True, launch=True
            )
        assert status is not None
        text = f"{status.name}: {status.state}"
    except TestbedError as error:
        text = f"{NOT_LAUNCHED}: {error.line}"
    finally:  # `up` waits for it
        scheduler.file.now(job=text)
        scheduler.emit("job", text)


def _record_current(scheduler: Scheduler) -> None:
    """Record the slot in which the hosts and devices are, as the plan that is up."""
    context, slot = scheduler.context, scheduler.clock.slot
    current = context.store.current(context.tenancy)
    if current is None:
        return
    goal, generation = scheduler.goals[slot], scheduler.days[slot]
    made = SlotsMade(slot, tuple(range(len(scheduler.goals))))
    sha = rules_sha(scheduler.watch.generations[generation])
    up = UpState.of(goal.links, goal.circuits, sha, made)
    known = replace(current, up=up, generation=generation)
    context.store.keep_current(context.tenancy, known, context.run.id)


async def _left(scheduler: Scheduler) -> None:
    """The schedule stops: the hosts stay in their slot, and only its circuits stay recorded as the
    owner's.
    """
    await scheduler.leave()
    _record_current(scheduler)
    context = scheduler.context
    context.disown_lost(scheduler.held)
    scheduler.state("ended")
