"""`down`: from the present state to nothing of the owner's; and what is done and what is not, read
from the devices.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import replace

from optics import (
    DeviceName,
    HostName,
    TestbedError,
)
from optics.plain import counted
from optics.values import short, sort_key
from orchestrator.change.agents import with_agents
from orchestrator.change.apply import apply_changes
from orchestrator.change.context import Context
from orchestrator.change.report import DownReport
from orchestrator.change.snapshot import (
    Snapshot,
    before_of,
    change_back,
    hosts_of,
)
from orchestrator.change.unfinished import announce
from orchestrator.fabric.lightpath import among
from orchestrator.fabric.move_order import in_order
from orchestrator.fabric.transition import Transition, per_device
from orchestrator.hosts import Hello
from orchestrator.jobs.record import hosts_of_job
from orchestrator.plan.target import SLOW_S, diff, slowest_device
from orchestrator.session import Observation


async def progress_lines(context: Context, change: Transition) -> list[str]:
    """What is done and what is not, read from the devices now, one line per device."""
    session = context.session
    await context.settled()

    async def line(device: DeviceName) -> str:
        try:
            held = await session.devices[device].read()
        except TestbedError as error:
            return f"{device}: cannot be read ({error.line}): check it"
        made, removed = change.made[device], change.removed[device]
        existing, still = among(made, held), among(removed, held)
        left = [f"{short(s)} not made" for s in sorted(made - existing, key=sort_key)]
        left += [f"{short(s)} not removed" for s in sorted(still, key=sort_key)]
        left += [
            f"{short(s)} lost"
            for s in sorted(change.kept[device] - among(change.kept[device], held), key=sort_key)
        ]
        done = f"{len(existing)}/{len(made)} made, {len(removed - still)}/{len(removed)} removed"
        return f"{device}: {done}" + (
            f": {', '.join(left[:6])}{' ...' if len(left) > 6 else ''}" if left else ""
        )

    return list(await asyncio.gather(*(line(d) for d in change.changes)))


class Down:
    """`down`: from the present state to nothing of the owner's; or back to `to`, which had no
    plan.
    """

    def __init__(self, context: Context, to: Snapshot | None = None) -> None:
        self.context, self.to = context, to or Snapshot({})

    async def carry_out(self) -> DownReport:
        """Stop the job, clear the hosts' generations, take down the owner's circuits; failures are
        listed, not raised.
        """
        context, recorder, store = self.context, self.context.recorder, self.context.store
        session, lab = context.session, context.session.lab
        with recorder.phase("observe") as phase:
            seen = await self._with_agents(await session.observe())
            phase.detail = (
                f"{counted(len(seen.settings), 'device')}, {counted(len(seen.hellos), 'host')}"
            )
        lines = announce(context, seen)
        owned = per_device(store.owned(context.tenancy))
        needed = {d for d, held in owned.items() if held} | self._hosts()
        left = list(dict.fromkeys(str(e) for n, e in seen.errors.items() if n in needed))
        unneeded = [
            f"{n} does not answer: {e.line}" for n, e in seen.errors.items() if n not in needed
        ]
        observed = dict(seen.settings)
        reachable = {d: held for d, held in owned.items() if d in observed}
        change = change_back(
            observed, {d: held for d, held in self.to.owned.items() if d in observed}, reachable
        )
        change = in_order(change, {}, observed, lab)
        await context.allowed(change.changes, observed, context.rerouted((), seen.hellos))
        own = context.own_generations()
        following = context.lock_hosts(
            (h for h, hello in seen.hellos.items() if hello.active in own), left, "your routes stay"
        )
        following += self._staged(seen.hellos, own, unneeded)
        others = [
            h
            for h, hello in seen.hellos.items()
            if hello.active is not None and hello.active not in own
        ]
        notes = (
            *lines,
            *unneeded,
            *((f"routes of other owners stay on {', '.join(others)}",) if others else ()),
        )
        runs = await context.jobs.running()
        await session.hosts.channels.fence(
            context.run.token, [*following, *(hosts_of_job(runs, lab) if runs else ())]
        )
        before = context.snapshot(observed, seen.hellos, store.current(context.tenancy), runs)
        if change or following or runs:
            context.begin(before, self.to.owned, None, following)
        job = ""
        try:
            job = await context.jobs.stop_if_running(recorder)
        except TestbedError as error:
            left.append(f"job: {error}")
        context.disown_lost(observed)
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
                with (
                    recorder.phase("routes") as phase,
                    context.run.step("host", "all", "clear", {"hosts": following}),
                ):
                    await session.hosts.routes.clear(following, own)
                    phase.detail = f"cleared on {counted(len(following), 'host')}"
            except TestbedError as error:
                restored -= len(following)
                left += str(error).splitlines()
        writes = 0
        if change:
            with recorder.phase("switch") as phase:
                if (slow := slowest_device(change, session.traits)) is not None and slow[
                    1
                ] > SLOW_S:
                    context.need(slow[1], f"{slow[0]}")
                applied = await apply_changes(context, change.changes, "switch", together=False)
                writes = sum(o.writes for o in applied.outcomes.values())
                left += [line for problem in applied.problems for line in problem.splitlines()]
                phase.detail = (
                    f"{counted(sum(map(len, change.removed.values())), 'circuit')} taken down"
                )
        self._forget(left)
        return DownReport(
            context.run.id,
            lab.name,
            phases=tuple(recorder.phases),
            diff=diff(change, session.traits, lab),
            writes=writes,
            hosts_restored=restored,
            hosts_total=len(lab.hosts),
            job_stopped=job,
            left=tuple(left),
            notes=notes,
        )

    async def _with_agents(self, seen: Observation) -> Observation:
        """What is seen once agents run on the hosts that may run routes of the owner's."""
        answers = await with_agents(self.context.session.hosts, seen.hellos, self._hosts())
        silent = {
            host: answer for host, answer in answers.items() if isinstance(answer, TestbedError)
        }
        return replace(
            seen,
            hellos={h: a for h, a in answers.items() if isinstance(a, Hello)},
            errors={**seen.errors, **silent},
        )

    def _staged(
        self, hellos: Mapping[HostName, Hello], own: Collection[int], notes: list[str]
    ) -> list[HostName]:
        """Hosts that run nothing and have routes of the owner's staged, locked: others may be about
        to stage theirs beside them.
        """
        # an agent of an older release would clear all that is staged
        unprovisioned = self.context.session.hosts.channels.unprovisioned()
        found = []
        for host, hello in hellos.items():
            mine = [number for number in hello.staged if number in own]
            if (
                hello.active is None
                and mine
                and (host not in unprovisioned or len(mine) == len(hello.staged))
            ):
                found.append(host)
        return self.context.lock_hosts(found, notes, "routes that were staged and never used stay")

    def _hosts(self) -> set[HostName]:
        """Hosts that may run routes of the owner's, whether or not they answer."""
        store, key = self.context.store, self.context.tenancy
        current = store.current(key)
        hosts = {p.host for link in (current.up.links if current else ()) for p in (link.a, link.b)}
        for record in store.unfinished(self.context.key, self.context.owner):
            before, target = store.journalled(record.id)
            if before is not None:
                hosts.update(
                    h for h, active in before_of(before).generations.items() if active is not None
                )
                hosts.update(hosts_of(target))
        return hosts

    def _forget(self, left: list[str]) -> None:
        """Record that no plan is up: at the latest when the owner has no light left, whatever else
        needs manual repair.
        """
        if not left or not self.context.store.owned(self.context.tenancy):
            self.context.store.clear_current(self.context.tenancy, self.context.run.id)
