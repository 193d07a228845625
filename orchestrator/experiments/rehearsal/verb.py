"""The verb: read the lab, make its twin, make the change there, go back there, and report what it
took. The lab is only read.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Collection
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path

from conformance.lab import families
from optics import HandsNeeded, Infeasible, Interlock, Missing, NotVerified, Setting, TestbedError
from optics.plain import counted
from optics.plan import Plan
from orchestrator.change.goal import goal_hosts
from orchestrator.change.report import UpReport
from orchestrator.deadline import OUTER, unless_stopped
from orchestrator.experiments.rehearsal.devices_alone import change_devices
from orchestrator.experiments.rehearsal.findings import (
    cut_off_pairs,
    estimate_stall,
    links_dark,
    mode_of,
)
from orchestrator.experiments.rehearsal.inventory import lab_without_devices, not_on_twin
from orchestrator.experiments.rehearsal.losses import copy_losses
from orchestrator.experiments.rehearsal.reading import LabReading, read_running_lab
from orchestrator.experiments.rehearsal.report import GoingBack, RehearsalReport
from orchestrator.experiments.rehearsal.seeding import (
    StoredState,
    bring_up,
    read_stored_state,
    seed_devices,
    seed_hosts,
    shaped,
)
from orchestrator.experiments.rehearsal.switching import switching
from orchestrator.experiments.rehearsal.twin import Twin, no_room, running_twin
from orchestrator.fabric.circuits import settings
from orchestrator.fabric.lightpath import among
from orchestrator.files.reading import text_of
from orchestrator.inventory.lab import Lab
from orchestrator.plan.avoid import avoiding
from orchestrator.plan.report import PlanReport
from orchestrator.plan.target import Target, target
from orchestrator.session import Command, PlanText, Session, load_lab, load_plan, open_session
from orchestrator.store.generations import generation_owners
from orchestrator.store.keys import key_of, tenancy_of
from orchestrator.store.light import light_history
from orchestrator.store.options import PLAIN, UpOptions
from orchestrator.store.ownership import adopted, taken_hosts
from orchestrator.store.stalls import stall_history
from orchestrator.store.store import Store
from orchestrator.telemetry.progress import Progress
from orchestrator.telemetry.recorder import Recorder
from orchestrator.verbs import change as verbs

NO_HOSTS = "its twin has devices alone, so carrier, routes, forwarding, the standstill of the job and the time of the whole do not show"
VERBS = 6
"""So many times may a rehearsal take what one verb may: it reads the lab and makes several changes
of its twin.
"""


async def rehearse(
    command: Command,
    plan_path: Path | PlanText,
    options: UpOptions = PLAIN,
    *,
    devices_only: bool = False,
) -> RehearsalReport:
    """Make the change on an emulated twin of the lab; the lab is read and not changed.

    devices_only: the lab's hosts are not asked, and the twin has none, as it has none where this
    machine does not bear them. A change that fails on the twin is a result, not an error. Raises:
    as `plan`; Unreachable and the like - a device or host that the change involves cannot be read.
    Missing - this machine cannot run the twin, or one of those devices has no emulator.
    """
    began = time.monotonic()
    _more_time(command)
    lab, store = load_lab(command.inventory), command.store
    if partitioned := next((host.name for host in lab.hosts.values() if host.partition), ""):
        raise Infeasible(
            f"{partitioned} is a partition of a host, which no twin has",
            hint="rehearse with an inventory without testbed_partitions",
        )
    found = await verbs.plan(command, plan_path, options)
    recorder = Recorder(command.progress)
    with recorder.phase("read") as phase:
        wanted, goal, read = await _read(command, plan_path, lab, options, hosts=not devices_only)
        phase.detail = f"{counted(len(read.settings), 'device')}, {counted(len(read.hellos), 'host')}; nothing was written"
    kinds = await asyncio.to_thread(families)
    existing, missing = _emulated(
        lab, read, goal, store.owned(tenancy_of(lab, command.settings)), kinds
    )
    up = read_stored_state(store, lab, command.settings.owner or command.settings.user)
    text, other = shaped(plan_path.text if isinstance(plan_path, PlanText) else text_of(plan_path))
    alone = (
        "as asked"
        if devices_only
        else no_room(len(existing.hosts), *_ranks(up, text if options.launch_job else ""))
    )
    times = switching(lab, store, command.settings, goal.change.changes)
    if alone:
        missing.append(f"hosts ({alone}): {NO_HOSTS}")
    else:
        missing += [
            *not_on_twin(lab),
            *dict.fromkeys(filter(None, (other, shaped(up.plan_text)[1] if up.job_runs else ""))),
        ]
    with recorder.phase("twin") as phase:
        phase.detail = "starting"
        with (
            running_twin(
                existing, read.identities, kinds, command.settings, hosts=not alone
            ) as twin,
            Store(twin.settings.store_path) as own,
        ):
            inside = Command(Prefixed(command.progress), own, twin.settings)
            try:
                async with _opened(twin) as session:
                    missing += await seed_devices(session, twin, read, goal.change.changes, times)
                    if not alone:
                        await seed_hosts(session, lab, read)
                if not alone:
                    await bring_up(inside, twin.lab, up)
                # the plan that is up was checked by now, in light that is good
                async with _opened(twin) as session:
                    weak = await copy_losses(
                        session, twin, read, goal, light_history(store, key_of(lab))
                    )
            except TestbedError as error:
                unless_stopped(error)
                raise NotVerified(
                    f"the twin could not be brought to the state of {lab.name}, so nothing was rehearsed:\n{error}",
                    hint="testbed verify shows whether the lab is as its plan says",
                ) from error
            if alone:
                rehearsed = await change_devices(inside, twin, wanted, goal)
            else:
                rehearsed = await _change(inside, twin, PlanText(text, found.plan), goal, options)
            phase.detail = (
                f"{found.plan} {'failed' if rehearsed.failed else 'came up'} on it; it is gone"
            )
    stalls = stall_history(store, key_of(lab))
    return replace(
        rehearsed,
        lab=lab.name,
        fingerprint=found.fingerprint,
        cut_off=tuple(f"{a}->{b}" for a, b in cut_off_pairs(goal)),
        stall=None
        if alone
        else estimate_stall(stalls, mode_of(rehearsed.phases), rehearsed.dark_ms),
        job_change=found.job_change,
        switching={name: str(times[name]) for name in goal.change.changes},
        missing=tuple(missing),
        notes=(
            *_drift(up, lab, read),
            *_otherwise(found, rehearsed),
            *found.notes,
            *read.notes,
            *_trouble(read),
            *weak,
            *rehearsed.notes,
        ),
        took_s=time.monotonic() - began,
    )


def _ranks(up: StoredState, launched: str) -> tuple[int, int]:
    """How many ranks run, and how many the plan `launched` (as text, empty: none) launches."""
    jobs = (
        json.loads(text).get("job") if text else None
        for text in (up.plan_text if up.job_runs else "", launched)
    )
    running, wanted = (len(job["ranks"]) if job else 0 for job in jobs)
    return running, wanted


def _opened(twin: Twin) -> AbstractAsyncContextManager[Session]:
    return open_session(twin.lab, twin.inventory, twin.settings.cache_dir, twin.settings.bounds)


def _more_time(command: Command) -> None:
    """Extend the caller's limit, unless the operator set it."""
    outer = OUTER.get()
    if (
        outer is not None
        and (end := outer.when()) is not None
        and command.settings.origins.get("timeout", "default") == "default"
    ):
        outer.reschedule(end + (VERBS - 1) * command.timeout_s)


async def _read(
    command: Command, plan_path: Path | PlanText, lab: Lab, options: UpOptions, *, hosts: bool
) -> tuple[Plan, Target, LabReading]:
    """The plan, the change and what the lab holds.

    Raises: as `target`, `read_running_lab`; Interlock - a host runs another owner's routes.
    """
    store, key = command.store, tenancy_of(lab, command.settings)
    wanted = avoiding(load_plan(plan_path, lab)[0], options.avoid, lab)
    async with command.opened(lab, "rehearse") as session:
        seen = await session.observe(hosts=False)
        owned = store.owned(key)
        owned |= adopted(options.adopt, seen.settings, owned, store.owners(key_of(lab)))
        goal = target(wanted, lab, seen.settings, owned)
        needed = {d for d, held in goal.wanted.items() if held} | {s.ingress.device for s in owned}
        involved = goal_hosts(goal) | {p.host for link in goal.old_links for p in (link.a, link.b)}
        read = await read_running_lab(
            session, needed | involved | set(wanted.job.needed if wanted.job else ()), hosts=hosts
        )
    active = {name: hello.active for name, hello in read.hellos.items()}
    mine = {command.settings.owner, *(word.partition(":")[2] for word in options.adopt)}
    if lines := taken_hosts(sorted(involved), active, generation_owners(store, key_of(lab)), mine):
        raise Interlock(
            "\n".join(lines),
            hint="a host carries one plan at a time: plan around it, or ask its owner for: testbed down",
        )
    return wanted, goal, read


def _emulated(
    lab: Lab, read: LabReading, goal: Target, owned: Collection[Setting], kinds: Collection[str]
) -> tuple[Lab, list[str]]:
    """The part of the lab that can be emulated, and what cannot be. Raises: Missing - it is
    needed.
    """
    # adopted circuits are of the change, and nobody's in the store yet
    needed = {
        *(d for d, held in goal.wanted.items() if held),
        *(s.ingress.device for s in owned),
        *goal.change.changes,
    }
    foreign = {
        name: config.driver for name, config in lab.devices.items() if config.driver not in kinds
    }
    if wanted := {name: driver for name, driver in foreign.items() if name in needed}:
        names = ", ".join(f"{name} ({driver})" for name, driver in sorted(wanted.items()))
        raise Missing(
            f"no emulator for the family of {names}: the change cannot be rehearsed",
            hint="testbed plan shows the change; an emulator may be added: docs/how-to/add-a-driver.md",
        )
    removed = {name: f"family {driver} has no emulator" for name, driver in foreign.items()}
    removed |= {
        name: "it was not read"
        for name in lab.devices
        if name not in read.identities and name not in removed
    }
    return lab_without_devices(lab, removed), [
        f"{name}, which the change does not involve: {why}" for name, why in sorted(removed.items())
    ]


async def _change(
    inside: Command, twin: Twin, plan: PlanText, goal: Target, options: UpOptions
) -> RehearsalReport:
    """Make the change on the twin, and go back."""
    since = time.monotonic()
    report = RehearsalReport(plan.name, twin.lab.name)
    try:
        done: UpReport = await verbs.up(
            inside, plan, replace(options, rollback=True, confirm_s=None)
        )
    except TestbedError as error:
        unless_stopped(error)
        return replace(
            report,
            failed=str(error),
            left=tuple(error.left) if isinstance(error, HandsNeeded) else (),
        )
    events = twin.history(goal.change.changes)
    return replace(
        report,
        phases=done.phases,
        parts=done.parts,
        diff=done.diff,
        nothing_to_do=done.nothing_to_do,
        dark_ms=done.dark_ms,
        dark_ms_expected=done.dark_ms_expected,
        dark_time_scale=done.dark_time_scale,
        links=links_dark(goal, events, since),
        ring_change=done.ring_change,
        back=None if done.nothing_to_do else await _back(inside),
        notes=done.notes,
    )


async def _back(inside: Command) -> GoingBack:
    try:
        done = await verbs.rollback(inside, None)
    except TestbedError as error:
        unless_stopped(error)
        return GoingBack(0.0, failed=str(error))
    seconds = max((p.begin_s + p.seconds for p in done.phases), default=0.0)
    return GoingBack(seconds, done.dark_ms if isinstance(done, UpReport) else None)


def _drift(up: StoredState, lab: Lab, read: LabReading) -> list[str]:
    """Where the lab does not hold the circuits of the plan that is up."""
    try:
        wanted = settings(up.state.circuits(lab))
    except TestbedError:  # the inventory changed since
        return []
    removed = sorted(
        str(s)
        for device, held in wanted.items()
        for s in held - among(held, read.settings.get(device, held))
    )
    return (
        [
            f"{up.plan_name} is up without {', '.join(removed[:4])}; on the twin it was restored first"
        ]
        if removed
        else []
    )


def _otherwise(found: PlanReport, rehearsed: RehearsalReport) -> list[str]:
    """Where the twin moved other circuits than the lab would."""
    if rehearsed.failed or rehearsed.nothing_to_do:
        return []
    plans, made = (
        {d.device: (d.removed, d.made) for d in diff if d.removed or d.made}
        for diff in (found.diff, rehearsed.diff)
    )
    if differ := sorted(name for name in {*plans, *made} if plans.get(name) != made.get(name)):
        return [
            f"the twin moved other circuits than the lab would on {', '.join(differ)}: times may differ"
        ]
    return []


def _trouble(read: LabReading) -> list[str]:
    dark = [
        f"no light comes into {port}; the twin was given none there" for port in sorted(read.dark)
    ]
    return [
        *dark,
        *(f"{port} is {state}, on the twin too" for port, state in sorted(read.states.items())),
        *(
            f"port in use without light, or unknown: {text}; not on the twin"
            for text in read.holders
        ),
    ]


class Prefixed(Progress):
    """Shows the phases of changes of the twin as such."""

    def __init__(self, shown: Progress) -> None:
        self._shown = shown

    def phase(self, name: str, detail: str = "") -> None:
        self._shown.phase(f"twin {name}", detail)

    def update(self, name: str, done: int, total: int, detail: str = "") -> None:
        self._shown.update(f"twin {name}", done, total, detail)

    def done(self, name: str, detail: str = "", seconds: float | None = None) -> None:
        self._shown.done(f"twin {name}", detail, seconds)
