"""What a change claims of a lab that other owners use, too: circuits that are nobody else's, its
ports before another run chooses them, and what the operator takes over.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from itertools import chain

from optics import Infeasible, Interlock, Setting
from optics.plan import Plan
from orchestrator.change.context import Context
from orchestrator.change.goal import as_saved, goal_hosts
from orchestrator.inventory.lab import Lab
from orchestrator.plan.attached import check_placed
from orchestrator.plan.target import Target, fingerprint, target
from orchestrator.session import Observation
from orchestrator.store.generations import generation_owners
from orchestrator.store.ownership import (
    OWNER,
    adopt,
    refusal_with_owners,
    refuse_shared,
    refuse_taken,
)
from orchestrator.store.records import Belonging


def target_beside(
    owners: Mapping[Setting, Belonging],
    plan: Plan,
    lab: Lab,
    seen: Observation,
    owned: Collection[Setting],
) -> Target:
    """The target of a plan beside what these owners have. Raises: as `target`, `check_placed` and
    `refuse_shared`; Unreachable and the like - it cannot be, and a device that was not read may be
    why.
    """
    try:
        goal = target(plan, lab, seen.settings, owned)
        check_placed(plan, goal.links)
    except Interlock as error:
        raise refusal_with_owners(error, owners) from None
    except Infeasible:
        if any(name in lab.devices for name in seen.errors):
            seen.complete()
        raise
    refuse_shared(goal.change.kept, owned, owners)
    return goal


def seen_as_saved(expected: str, plan: Plan, lab: Lab, seen: Observation) -> None:
    """As `as_saved`. Raises: Interlock; Unreachable and the like - a device that answered then may
    be the cause.
    """
    now = fingerprint(plan, seen.settings)
    if expected not in ("", now) and any(name in lab.devices for name in seen.errors):
        seen.complete()
    as_saved(expected, now)


def _held_or_removed(goal: Target) -> Iterable[Setting]:
    return chain.from_iterable((*goal.wanted.values(), *goal.change.removed.values()))


async def reserved(
    context: Context,
    seen: Observation,
    goal_of: Callable[[Observation], Target],
    used: Callable[[Target], Iterable[Setting]] = _held_or_removed,
) -> tuple[Target, Observation]:
    """The target, the ports of the settings that it `used` reserved, and what it was made from:
    trunks are chosen from free ports, and another owner may choose at the same moment.
    """
    while True:
        goal = goal_of(seen)
        if not context.reserve(used(goal)):
            return goal, seen
        now = await context.session.observe(hosts=False)
        hosts = {n: e for n, e in seen.errors.items() if n not in context.session.lab.devices}
        seen = replace(seen, settings=now.settings, errors=hosts | dict(now.errors))


def take_over(context: Context, plan: Plan, goal: Target, seen: Observation) -> list[str]:
    """Adopt what the operator named; return it in words. Raises: Interlock - a host that is needed
    carries another owner's plan.
    """
    hosts = sorted(goal_hosts(goal) | set(plan.job.needed if plan.job else ()))
    named = context.options.asked.adopt
    own = {context.owner, *(word.removeprefix(OWNER) for word in named if word.startswith(OWNER))}
    active = {host: hello.active for host, hello in seen.hellos.items()}
    generations = generation_owners(context.store, context.key)
    refuse_taken(hosts, context.session.lab.hosts, active, generations, own)
    if not named or context.who is None:
        return []
    adopted = context.adopted(seen.settings)
    return adopt(context.store, context.key, context.who, context.run.id, adopted, named)
