"""`plan --prewire`: slow devices make, in the dark, what the next plan needs, so that the change
itself only switches.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from optics import ChangeFailed, Setting
from optics.plain import counted
from optics.plan import Plan
from orchestrator.change.apply import switch
from orchestrator.change.claims import reserved
from orchestrator.change.context import Context
from orchestrator.change.report import PrewireReport
from orchestrator.change.snapshot import NONE
from orchestrator.plan.target import (
    Target,
    dark_time_scale,
    diff,
    expected_dark_ms,
    slowest_device,
    target,
)
from orchestrator.session import Observation, check_ports


def _early(goal: Target) -> Iterable[Setting]:
    return (s for c in goal.early.values() for s in c.remove | c.add)


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
            observed = (await context.session.observe(hosts=False)).complete()
            phase.detail = counted(len(observed.settings), "device")
        with recorder.phase("plan") as phase:
            goal, observed = await reserved(context, observed, self._goal, _early)
            await check_ports(context.session, goal.change.made)
            seen = observed.settings
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
        running, current = await context.jobs.running(), context.store.current(context.tenancy)
        before = context.snapshot(seen, {}, current, running)
        after = {
            d: (held - only.removed.get(d, NONE)) | only.made.get(d, NONE)
            for d, held in before.owned.items()
        }
        context.begin(before, after, None, ())
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

    def _goal(self, seen: Observation) -> Target:
        owned = self.context.store.owned(self.context.tenancy)
        return target(self.plan, self.lab, seen.complete().settings, owned)
