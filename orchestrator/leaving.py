"""`down`: from what is to nothing of ours; and what is done and what is not, read from the devices."""

from __future__ import annotations

import asyncio

from optics import (
    ChangeFailed,
    DeviceName,
    TestbedError,
)
from orchestrator import jobs
from orchestrator.lightpath import among
from orchestrator.reports import DownReport
from orchestrator.session import Session
from orchestrator.target import (
    diff,
    per_device,
    short,
    slowest,
    sort_key,
)
from orchestrator.telemetry.progress import counted
from orchestrator.telling import SLOW_S, Context, move_light
from orchestrator.transition import Transition, transition


async def affairs(session: Session, change: Transition) -> list[str]:
    """What is done and what is not, read from the devices now, one line per device."""

    async def line(device: DeviceName) -> str:
        try:
            held = await session.devices[device].read()
        except TestbedError as error:
            return f"{device}: cannot be read ({str(error).splitlines()[0]}): look at it"
        made, removed = change.made[device], change.removed[device]
        there, still = among(made, held), among(removed, held)
        left = [f"{short(s)} not made" for s in sorted(made - there, key=sort_key)]
        left += [f"{short(s)} not removed" for s in sorted(still, key=sort_key)]
        left += [f"{short(s)} lost" for s in sorted(change.kept[device] - among(change.kept[device], held), key=sort_key)]
        done = f"{len(there)}/{len(made)} made, {len(removed - still)}/{len(removed)} removed"
        return f"{device}: {done}" + (f": {', '.join(left[:6])}{' ...' if len(left) > 6 else ''}" if left else "")

    return list(await asyncio.gather(*(line(d) for d in change.changes)))


class Leaving:
    """`down`: from what is to nothing of ours."""

    def __init__(self, context: Context) -> None:
        self.context = context

    async def carry_out(self) -> DownReport:
        """Stop the job, clear the hosts' generations, take down our circuits; what cannot be done is listed, not raised."""
        context, recorder, store = self.context, self.context.recorder, self.context.store
        session, lab = context.session, context.session.lab
        with recorder.phase("observe") as phase:
            seen = await session.observe()
            phase.detail = f"{counted(len(seen.settings), 'device')}, {counted(len(seen.hellos), 'host')}"
        left = [str(e) for e in seen.errors.values()]
        ours = per_device(store.owned(context.slice))
        observed = dict(seen.settings)
        reachable = {d: held for d, held in ours.items() if d in observed}
        change = transition(observed, {}, reachable)
        mine = context.ours()
        following = [h for h, hello in seen.hellos.items() if hello.active in mine or (hello.active is None and hello.staged)]
        others = [h for h, hello in seen.hellos.items() if hello.active is not None and hello.active not in mine]
        notes = (f"routes of somebody else stay on {', '.join(others)}",) if others else ()
        job = ""
        try:
            job = await jobs.leave(session, store, context.slice, recorder, context.run_dir.parent)
        except TestbedError as error:
            left.append(f"job: {error}")
        if not change and not following and not job:
            self._forget(left)
            return DownReport(
                context.run.id,
                lab.name,
                nothing_to_do=not left,
                phases=tuple(recorder.phases),
                hosts_restored=len(seen.hellos),
                hosts_total=len(lab.hosts),
                left=tuple(left),
                notes=notes,
            )
        restored = len(seen.hellos)
        if following:
            try:
                with recorder.phase("routes") as phase, context.run.step("host", "all", "clear", following):
                    await session.hosts.clear(following)
                    phase.detail = f"cleared on {len(following)} hosts"
            except TestbedError as error:
                restored -= len(following)
                left += str(error).splitlines()
        writes = 0
        if change:
            with recorder.phase("switch") as phase:
                try:
                    if (found := slowest(change, session.devices)) is not None and found[1] > SLOW_S:
                        context.need(found[1], f"{found[0]}")
                    outcomes = await move_light(context, change)
                    writes = sum(o.writes for o in outcomes.values())
                except ChangeFailed as error:
                    left += str(error).splitlines()
                phase.detail = f"{sum(map(len, change.removed.values()))} circuits taken down"
        # Settings we own but no device holds any more (a device lost power, somebody's hands) are nobody's.
        store.disown(context.slice, [s for d, held in reachable.items() for s in held - among(held, observed[d])])
        self._forget(left)
        return DownReport(
            context.run.id,
            lab.name,
            phases=tuple(recorder.phases),
            diff=diff(change, session.devices, lab),
            writes=writes,
            hosts_restored=restored,
            hosts_total=len(lab.hosts),
            job_stopped=job,
            left=tuple(left),
            notes=notes,
        )

    def _forget(self, left: list[str]) -> None:
        """Note that no plan is up: at the latest when no light of ours is left, whatever else is left for hands."""
        if not left or not self.context.store.owned(self.context.slice):
            self.context.store.clear_current(self.context.slice)
