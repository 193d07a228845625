"""`plan --prewire`: slow devices make, in the dark, what the next plan needs, so that the change
itself only switches.
"""

from __future__ import annotations

from dataclasses import replace

from optics import ChangeFailed
from optics.plain import counted
from optics.plan import Plan
from orchestrator.change.apply import switch
from orchestrator.change.context import Context
from orchestrator.change.report import PrewireReport
from orchestrator.change.snapshot import NONE, found, held_data
from orchestrator.fabric.lightpath import Held
from orchestrator.fabric.transition import per_device
from orchestrator.plan.target import (
    Target,
    dark_time_scale,
    diff,
    expected_dark_ms,
    slowest_device,
    target,
)
from orchestrator.session import check_ports


class Prewire:
    """From the present state to one where only the fast switches remain to be set."""

    def __init__(self, context: Context, plan: Plan) -> None:
        self.context, self.plan = context, plan
        self.lab = context.session.lab

    async def carry_out(self) -> PrewireReport:
        """Prewire; idempotent. No host is affected, whether it succeeds or not.

        Raises: as `orchestrator.verbs.change.up` before anything is changed; ChangeFailed - what
        was made stays and will be used.
        """
        context, recorder = self.context, self.context.recorder
        with recorder.phase("observe") as phase:
            seen = (await context.session.observe(hosts=False)).complete().settings
            phase.detail = counted(len(seen), "device")
        with recorder.phase("plan") as phase:
            goal = await self._reserved(seen)
            await check_ports(context.session, goal.change.made)
            seen = self.seen
            late = {d: c for d, c in goal.late.changes.items() if self.lab.slow(d)}
            count = sum(len(c.add) for c in goal.early.values())
            phase.detail = f"{counted(count, 'cross-connect')} to make in the dark"
        report = PrewireReport(
            context.run.id,
            self.plan.name,
            self.lab.name,
            waiting=sum(len(c.remove) + len(c.add) for c in late.values()),
            flips=sum(len(c.add) for d, c in goal.late.changes.items() if d not in late),
            dark_ms_expected=expected_dark_ms(goal.late, context.session.traits),
            dark_time_scale=dark_time_scale(goal.late, context.session.traits, self.lab),
            notes=self.plan.warnings,
        )
        if not goal.early:
            return replace(report, phases=tuple(recorder.phases))
        only = replace(
            goal.change,
            changes=goal.early,
            removed={
                d: goal.early[d].remove if d in goal.early else NONE for d in goal.change.removed
            },
            made={d: goal.early[d].add if d in goal.early else NONE for d in goal.change.made},
        )
        await context.allowed(goal.early, seen)
        if (needs := slowest_device(only, context.session.traits)) is not None:
            context.need(needs[1], needs[0])
        owned = per_device(context.store.owned(context.tenancy))
        running = await context.jobs.running()
        foreign = context.foreign_settings()
        before = found(
            seen,
            owned,
            context.store.current(context.tenancy),
            {},
            running,
            context.session.lab,
            foreign,
        )
        after = {
            d: (held - only.removed.get(d, NONE)) | only.made.get(d, NONE)
            for d, held in before.owned.items()
        }
        context.run.found(
            before.to_json(), {"settings": held_data(after), "generation": None, "hosts": []}
        )
        with recorder.phase("prewire") as phase:
            try:
                outcomes = await switch(context, only, "prewire")
            except ChangeFailed as error:
                again = f"testbed resume {context.run.id} goes on; testbed rollback {context.run.id} takes out what was made"
                raise ChangeFailed(
                    f"{error}\nevery circuit that was lit still is", hint=again
                ) from error
            phase.detail = "  ".join(
                f"{d} -{len(c.remove)} +{len(c.add)}" for d, c in goal.early.items()
            )
        return replace(
            report,
            phases=tuple(recorder.phases),
            parts=tuple(recorder.parts),
            diff=tuple(
                row
                for row in diff(only, context.session.traits, self.lab, goal.early)
                if row.device in goal.early
            ),
            writes=sum(o.writes for o in outcomes.values()),
        )

    async def _reserved(self, seen: Held) -> Target:
        """The target, its ports reserved: another owner may choose the same ports at the same
        moment.
        """
        context = self.context
        while True:
            self.seen = seen
            goal = target(self.plan, self.lab, seen, context.store.owned(context.tenancy))
            if not context.reserve(s for c in goal.early.values() for s in c.remove | c.add):
                return goal
            seen = (await context.session.observe(hosts=False)).complete().settings
