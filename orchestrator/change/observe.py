"""What a change finds: all devices and hosts are asked, agents are brought up to date, and what is
silent is needed or noted.
"""

from __future__ import annotations

from dataclasses import replace

from optics.plain import counted
from optics.plan import Plan
from orchestrator.change.context import Context
from orchestrator.change.goal import goal_hosts
from orchestrator.change.unfinished import announce
from orchestrator.plan.target import Target
from orchestrator.session import Observation
from orchestrator.store.records import CurrentPlan


async def observe(context: Context, notes: list[str], *, staging: bool) -> Observation:
    """Ask all devices and hosts; install the agent through Ansible where hosts lack it or have an
    older one.

    staging: routes are likely to be staged.
    """
    recorder, session, hosts = context.recorder, context.session, context.session.hosts
    if staging:
        hosts.routes.expect_play()
    with recorder.phase("observe") as phase:
        seen = await session.observe()
        phase.detail = (
            f"{counted(len(seen.settings), 'device')}, {counted(len(seen.hellos), 'host')}"
        )
    locked = set(context.hosts())
    if stale := [host for host in hosts.channels.unready() if host in locked]:
        with recorder.phase(
            "provision", f"{counted(len(stale), 'host')}, through Ansible"
        ) as phase:
            phase.detail = f"{counted(len(await hosts.provision(stale)), 'host')}, through Ansible"
            seen = replace(seen, hellos=dict(hosts.channels.hellos))
    notes += announce(context, seen)
    # an earlier change may have left a host behind that did not answer then
    own = context.own_generations()
    left = (h for h, hello in seen.hellos.items() if hello.active in own)
    context.lock_hosts(left, notes, "routes of an earlier plan stay")
    await hosts.channels.fence(context.run.token, context.hosts())
    existing = (h for h in context.hosts() if h in seen.hellos)
    # they may have gone back before that
    if waited := [h for h in existing if seen.hellos[h].pending_s is not None]:
        seen = replace(seen, hellos={**seen.hellos, **await hosts.channels.greet(waited)})
    return seen


def unneeded(
    context: Context, plan: Plan, goal: Target, current: CurrentPlan | None, seen: Observation
) -> list[str]:
    """Notes of silent devices and hosts that are not needed. Raises: Unreachable and the like -
    names all that are needed.
    """
    owned = {s.ingress.device for s in context.store.owned(context.tenancy)}
    old = current.up.links if current else ()
    hosts = goal_hosts(goal) | {p.host for link in old for p in (link.a, link.b)}
    hosts.update(plan.job.needed if plan.job else ())
    needed = (
        {d for d, held in goal.wanted.items() if held}
        | owned
        | hosts.difference(context.options.lost)
    )
    return seen.needing(needed, plan.spares)
