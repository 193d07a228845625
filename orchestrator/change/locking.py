"""Locking a part of the lab for one command: what a verb locks, and the two locks it takes."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager

from optics import HostName
from optics.plan import Plan
from orchestrator.change.snapshot import Snapshot, before_of, hosts_of
from orchestrator.deadline import OUTER
from orchestrator.inventory.lab import Lab
from orchestrator.session import Command, Session
from orchestrator.settings import Settings
from orchestrator.store.confirmations import Confirmations
from orchestrator.store.keys import key_of, owner_of, tenancy_key, tenancy_of
from orchestrator.store.lock_queue import Lock, holder_text
from orchestrator.store.locks import HeldLock, hold, locks_of, who
from orchestrator.store.one_store import StoreClaim
from orchestrator.store.ownership import OWNER
from orchestrator.store.run import Run
from orchestrator.store.scope import Scope, of_settings, reachable_scope
from orchestrator.store.store import Store
from orchestrator.store.verbs import verb_of

GUARD_S = 10.0
"""A guard that reroutes around a dead circuit holds the lab for less than a second; commands wait
this long (s) for it unasked.
"""
SOON_S = 86_400.0
"""A change says which parts of it others have booked in this time (s)."""


def plan_hosts(plan: Plan) -> set[HostName]:
    """Every host that a plan mentions."""
    hosts = {*plan.hosts}
    hosts.update(host for route in plan.routes for host in route.path)
    return hosts | set(plan.job.needed if plan.job else ())


def scope_of(
    lab: Lab,
    settings: Settings,
    store: Store,
    *,
    plan: Plan | None = None,
    to: Snapshot | None = None,
    adopt: Sequence[str] = (),
) -> Scope:
    """What a change by this owner touches: hosts and ports of the target plan or state, and of all
    that is up or unfinished.

    The owner's plan itself is part of it: while nothing is up, two plans of one owner need not have
    a host in common.
    """
    key = tenancy_of(lab, settings)
    hosts = plan_hosts(plan) if plan is not None else set()
    keys = [
        key,
        *(
            tenancy_key(key_of(lab), word.removeprefix(OWNER))
            for word in adopt
            if word.startswith(OWNER)
        ),
    ]
    scope = Scope(owners=frozenset(map(owner_of, keys)))
    for each in keys:
        scope |= of_settings(lab, store.owned(each))
    currents = (*map(store.current, keys), to.current if to is not None else None)
    links = [link for found in currents if found is not None for link in found.up.links]
    hosts.update(port.host for link in links for port in (link.a, link.b))
    job = store.latest_job(key)
    if job is not None and job.ended is None:
        hosts.update(job.spec.wanted.needed)
    if (waiting := Confirmations(store, key, who(settings)).pending()) is not None:
        hosts.update((*waiting.hosts, *waiting.leaving))
    for record in store.unfinished(key_of(lab), settings.owner):
        before, target = store.journalled(record.id)
        if before is not None:
            hosts.update(hosts_of(target))
            was = before_of(before)
            scope |= of_settings(lab, (s for held in was.owned.values() for s in held))
            if was.current is not None:
                hosts.update(
                    port.host for link in was.current.up.links for port in (link.a, link.b)
                )
    if to is not None:
        scope |= of_settings(lab, (s for held in to.owned.values() for s in held))
    return scope | reachable_scope(lab, hosts)


def own_scheduler(lab: Lab, settings: Settings, store: Store) -> Lock | None:
    """The lock under which the owner's slots change, None if they do not."""
    existing = (
        lock
        for lock in locks_of(lab, settings, store).listed()
        if lock.owner == settings.owner and lock.state == "active"
    )
    return next(
        (
            lock
            for lock in existing
            if lock.kind == "run" and lock.token and lock.role == "schedule"
        ),
        None,
    )


async def obeyed(
    session: Session, run: Run, names: Collection[HostName], scheduler: Lock | None
) -> None:
    """Have these hosts obey `run`. Beside a turner they keep its run: they would obey it no more
    once they know a newer one.
    """
    if scheduler is None:
        await session.hosts.channels.fence(run.token, names)
    else:
        session.hosts.channels.token = scheduler.token


@asynccontextmanager
async def holding(
    lab: Lab,
    command: Command,
    scope: Scope,
    verb: str,
    name: str = "",
    *,
    within: Lock | None = None,
) -> AsyncIterator[HeldLock]:
    """Lock `scope` for `verb` of `name` while the body runs, queueing as long as the settings
    allow.

    within: the owner's lock that this one does not disturb.

    Raises: Locked - another owner or run holds part of it.
    """

    def notify(text: str) -> None:
        command.progress.note(f"waiting for {text}")

    settings = command.settings
    locks, wait_s = locks_of(lab, settings, command.store), settings.wait_s
    role = verb_of(verb).role
    for lock in locks.listed():
        if lock.kind == "run" and lock.role == "guard" and lock.scope.overlaps(scope):
            wait_s = max(wait_s, GUARD_S)
        soon = lock.state == "booked" and lock.since < time.time() + SOON_S
        if soon and role == "change" and lock.owner != settings.owner and lock.scope & scope:
            command.progress.note(holder_text(lock, lock.scope & scope))
    outer = OUTER.get()
    if wait_s and outer is not None and (end := outer.when()) is not None:
        outer.reschedule(end + wait_s)
    with StoreClaim(settings.lock_path(key_of(lab)), command.store.path, user=settings.user):
        inside, reason = within.role if within is not None else "", f"{verb} {name}".rstrip()
        async with hold(
            locks,
            scope,
            reason,
            role=role,
            within=inside,
            wait_s=wait_s,
            notify=notify,
        ) as held:
            yield held
