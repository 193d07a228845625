"""A change of the twin's devices alone, for labs with more hosts than this machine bears: the light
moves, and no host is there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import replace

from optics import Change, ChangeFailed, DeviceName, Outcome, TestbedError
from optics.plan import Plan
from optics.values import short, sort_key
from orchestrator.change.apply import NotBegun, Start, undisturbed
from orchestrator.change.move import counts_of
from orchestrator.deadline import deadline, unless_stopped
from orchestrator.experiments.rehearsal.findings import links_dark
from orchestrator.experiments.rehearsal.report import GoingBack, RehearsalReport
from orchestrator.experiments.rehearsal.twin import Twin
from orchestrator.plan.target import (
    Target,
    dark_time_scale,
    diff,
    expected_dark_ms,
    slowest_device,
    switching_s,
)
from orchestrator.session import Command, Session, open_session
from orchestrator.telemetry.recorder import Recorder
from orchestrator.verify.ladder import Ladder
from orchestrator.verify.level import check_passed

Changes = Mapping[DeviceName, Change]
LEVELS = ("map", "light")
"""Those that ask no host."""


async def change_devices(inside: Command, twin: Twin, plan: Plan, goal: Target) -> RehearsalReport:
    """Make the change on the twin's devices, all at once as `up` does, check map and light, and go
    back.

    A change that fails is a result. Raises: as `unless_stopped`; TimedOut.
    """
    recorder, since = Recorder(inside.progress), time.monotonic()
    firm = inside.settings.origins.get("timeout", "default") != "default"
    async with AsyncExitStack() as stack:
        limit = await stack.enter_async_context(deadline(inside.timeout_s, "rehearse", firm=firm))
        session = await stack.enter_async_context(
            open_session(twin.lab, twin.inventory, twin.settings.cache_dir)
        )
        if (needs := slowest_device(goal.change, session.traits)) is not None:
            limit.need(2 * needs[1], needs[0])
        report = RehearsalReport(
            plan.name,
            twin.lab.name,
            devices_alone=True,
            diff=diff(goal.change, session.traits, twin.lab, goal.early),
            nothing_to_do=not goal.moving,
            dark_ms_expected=expected_dark_ms(goal.late, session.traits),
            dark_time_scale=dark_time_scale(goal.late, session.traits, twin.lab),
        )
        try:
            if goal.early:
                await _step(session, goal.early, "prewire", recorder)
            dark_ms = (
                await _step(session, goal.late.changes, "switch", recorder) if goal.late else None
            )
            with recorder.phase("light") as phase:
                levels = await Ladder(session, plan, goal.links, goal.circuits, {}, {}).run_levels(
                    LEVELS
                )
                check_passed(levels)
                phase.detail = ", ".join(level.detail for level in levels)
        except TestbedError as error:
            unless_stopped(error)
            return replace(
                report,
                failed=str(error),
                phases=tuple(recorder.phases),
                parts=tuple(recorder.parts),
            )
        events = twin.history(goal.change.changes)
        return replace(
            report,
            phases=tuple(recorder.phases),
            parts=tuple(recorder.parts),
            dark_ms=dark_ms,
            links=links_dark(goal, events, since),
            back=await _back(session, goal, Recorder(inside.progress)) if goal.moving else None,
        )


async def _back(session: Session, goal: Target, recorder: Recorder) -> GoingBack:
    """Undo the change, its last step first."""
    dark_ms = None
    try:
        for changes in (goal.late.changes, goal.early):
            if back := {n: Change(n, c.add, c.remove, c.order[::-1]) for n, c in changes.items()}:
                ms = await _step(session, back, "rollback", recorder)
                # nothing depends on the light of the early part
                dark_ms = ms if dark_ms is None else dark_ms
    except TestbedError as error:
        unless_stopped(error)
        return GoingBack(0.0, failed=str(error))
    return GoingBack(sum(phase.seconds for phase in recorder.phases), dark_ms)


async def _step(session: Session, changes: Changes, name: str, recorder: Recorder) -> float:
    """Change these devices, none before all are ready; return the longest dark time (ms).

    Raises: ChangeFailed - names every setting that is not as wanted; as the drivers.
    """
    start, devices = Start(len(changes), set()), session.devices
    expected_s = max(switching_s(change, devices[name].traits) for name, change in changes.items())
    with recorder.phase(name) as phase:
        with undisturbed(expected_s):
            asked = (start.apply(devices[name], change) for name, change in changes.items())
            answers = await asyncio.gather(*asked, return_exceptions=True)
        outcomes = [answer for answer in answers if isinstance(answer, Outcome)]
        if errors := [
            a for a in answers if isinstance(a, BaseException) and not isinstance(a, NotBegun)
        ]:
            raise errors[0]
        for o in outcomes:
            recorder.part(
                "device",
                o.device,
                name,
                o.sent_ns,
                o.settled_ns,
                "",
                session.lab.time_scale(o.device),
            )
        failed = sorted(
            (o.device, sort_key(s), f"{o.device}: {short(s)}: {why}")
            for o in outcomes
            for s, why in o.failed.items()
        )
        if failed:
            raise ChangeFailed("\n".join(line for *_, line in failed))
        phase.detail = counts_of(changes)
    return max((o.settled_ns - o.broken_ns) / 1e6 for o in outcomes)
