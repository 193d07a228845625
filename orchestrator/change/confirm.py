"""Changes kept only if confirmed in time: their record in the store, and their deadline.

Hosts revert on their own; the light is restored by the first process to notice after the deadline:
the one that `up` started, or the owner's next command. Both take the lab's lock and use this
record, so it happens once.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Collection
from contextlib import suppress

from optics import HostName, Interlock, NotVerified, TestbedError
from optics.plain import counted, seconds_text
from orchestrator.change.context import Context
from orchestrator.change.report import ConfirmReport
from orchestrator.change.snapshot import Snapshot
from orchestrator.hosts import Hello
from orchestrator.hosts.failures import one_error
from orchestrator.processes import boot_clock_ns, boot_id
from orchestrator.store.confirmations import Awaited, Confirmations
from orchestrator.store.scope import Scope

REVERT_MARGIN_S = 10.0
"""Hosts revert this long (s) after the deadline: by then a full rollback has begun, which restores
them in a better order than they can on their own, and a confirmation in the last second still finds
them all. Without a rollback they revert unaided."""


class Confirming:
    """What `up` needs to leave a change pending. start: starts the process that watches it, and
    returns its pid.

    The time to confirm counts from the end of `up`, which may wait minutes for a job's first
    iterations. Until then store and hosts have a later deadline, after the last moment at which
    this `up` may still run: it holds should `up` die.
    """

    def __init__(
        self, kept: Confirmations, within_s: float, undo: str, start: Callable[[str], int]
    ) -> None:
        self.kept, self.within_s, self.undo, self.start = kept, within_s, undo, start
        self.made: Awaited | None = None

    async def leave(
        self,
        context: Context,
        plan: str,
        before: Snapshot,
        generation: int,
        hosts: Collection[HostName],
        leaving: Collection[HostName],
    ) -> None:
        """Leave a change to be confirmed: hosts count down on their own, and the store has the
        deadline before they do.
        """
        longest_s = self.within_s + (context.limit.left_s if context.limit is not None else 0.0)
        self.made = Awaited(
            context.run.id,
            self.kept.tenancy,
            self.undo or context.run.id,
            plan,
            before.current.plan_name if before.current is not None else "",
            generation,
            tuple(sorted(hosts)),
            tuple(sorted(leaving)),
            self.within_s,
            socket.gethostname(),
            boot_id(),
            boot_clock_ns() + int(longest_s * 1e9),
            time.time() + longest_s,
        )
        lock = context.lock
        scope, inside = (
            (lock.lock.scope, lock.id) if lock is not None else (Scope(frozenset(hosts)), "")
        )
        self.kept.begin(self.made, scope, inside)
        self.made = self.kept.watch(self.made, self.start(context.run.id))
        revert_s = longest_s + REVERT_MARGIN_S
        with context.run.step(
            "host",
            "all",
            "wait to be confirmed",
            {"generation": generation, "revert_after_s": revert_s},
        ):
            await context.session.hosts.routes.commit(generation, hosts, revert_s)

    def give_up(self) -> None:
        """The change failed after all: it is rolled back at once, not at the deadline."""
        made, self.made = self.made, None
        if made is not None:
            self.kept.close(made, "superseded", made.run)


async def up_to_the_operator(confirming: Confirming | None, context: Context) -> tuple[str, str]:
    """What becomes of a change once its `up` ends, in words, and what to do; one that waits to be
    confirmed counts from now on.
    """
    if confirming is None or confirming.made is None:
        return "is up and stays up", "to roll the change back: testbed rollback"
    made = confirming.made = confirming.kept.count(confirming.made)
    # a host that does not hear of it counts the longer time, which is no harm
    with suppress(TestbedError):
        await context.session.hosts.routes.commit(
            made.generation, made.hosts, made.left_s() + REVERT_MARGIN_S
        )
    at = time.strftime("%H:%M:%S", time.localtime(made.due))
    text = f"is up, and goes back to {made.back or 'no plan'} in {seconds_text(made.left_s())}, at {at}, unless it is confirmed"
    return text, "to keep it: testbed confirm; to roll it back now: testbed rollback"


async def keep_change(context: Context, kept: Confirmations, run: str) -> ConfirmReport:
    """Have the hosts keep their routes, then record it in the store; hosts that left the plan are
    cleared last.

    Raises: Interlock - too late. Unreachable, NotVerified - not all hosts run it; nothing was
    confirmed and it is still pending.
    """
    found = kept.get(run)
    if found is None or found.state != "pending" or found.left_s() <= 0:
        context.run.unchanged = True
        raise Interlock(
            f"run {run} can no longer be confirmed", hint="testbed status shows the present state"
        )
    hosts, notes = context.session.hosts, list[str]()
    again = f"again: testbed confirm; to go back: testbed rollback {run}"
    with context.recorder.phase("confirm") as phase:
        answers = await hosts.channels.connect([*found.hosts, *found.leaving])
        if silent := {h: a for h in found.hosts if isinstance(a := answers[h], TestbedError)}:
            one = one_error(silent)
            raise type(one)(f"{one}\nnothing was confirmed", hint=again)
        hellos = {h: a for h, a in answers.items() if isinstance(a, Hello)}
        if others := [
            f"{h} runs generation {hellos[h].active}"
            for h in found.hosts
            if hellos[h].active != found.generation
        ]:
            text = "\n".join(others)
            raise NotVerified(
                f"{text}\nnot the plan's ({found.generation}), so nothing was confirmed", hint=again
            )
        await hosts.channels.fence(context.run.token, list(hellos))
        with context.run.step(
            "host", "all", "confirm", {"generation": found.generation, "hosts": list(found.hosts)}
        ):
            await hosts.routes.confirm(found.generation, found.hosts)
        kept.close(found, "confirmed", context.run.id)
        own = context.own_generations()
        if removed := [h for h in found.leaving if h in hellos and hellos[h].active in own]:
            try:
                with context.run.step("host", "all", "clear", {"hosts": removed}):
                    await hosts.routes.clear(removed, own)
            except TestbedError as error:
                notes.append(f"the routes they had before stay: {error}")
        notes += [
            f"{h} does not answer and keeps the routes it had"
            for h in found.leaving
            if h not in hellos
        ]
        phase.detail = f"{counted(len(found.hosts), 'host')} keep their routes"
    context.run.finish("ok")
    return ConfirmReport(
        context.run.id,
        run,
        found.plan,
        context.session.lab.name,
        len(found.hosts),
        notes=tuple(notes),
    )
