"""Changes that are kept only if confirmed in time: what the store has of one, its deadline, and which verbs are allowed meanwhile.

The hosts go back by themselves, the light is taken back by whoever looks first after the deadline: the process that `up` started,
or the owner's next command. All of that goes through the lock of the lab and this record, so it happens once.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Collection

from optics import HostName, Interlock, NotVerified, TestbedError
from optics.plain import counted
from orchestrator.engine.change.context import Context
from orchestrator.engine.change.snapshot import Snapshot
from orchestrator.hosts import Hello
from orchestrator.hosts.failures import one_error
from orchestrator.processes import boot_clock_ns, boot_id
from orchestrator.results import ConfirmReport
from orchestrator.store.confirmations import Awaited, Confirmations
from orchestrator.store.scope import Scope

LATER_S = 10.0
"""Hosts go back this much (s) after the deadline: the way back of everything has begun by then and leads them better than they can
by themselves, and a confirmation that comes with the last second still finds them all. Where nobody leads them, they go alone."""


class Confirming:
    """What `up` needs to leave a change waiting. start: starts the process that watches it, and returns its pid."""

    def __init__(self, kept: Confirmations, within_s: float, undo: str, start: Callable[[str], int]) -> None:
        self.kept, self.within_s, self.undo, self.start = kept, within_s, undo, start
        self.made: Awaited | None = None

    def begin(
        self,
        run: str,
        plan: str,
        before: Snapshot,
        generation: int,
        hosts: Collection[HostName],
        leaving: Collection[HostName],
        scope: Scope,
    ) -> float:
        """The time runs from now on; return how long (s) hosts are to wait by themselves."""
        self.made = Awaited(
            run,
            self.kept.slice,
            self.undo or run,
            plan,
            before.current.plan_name if before.current is not None else "",
            generation,
            tuple(sorted(hosts)),
            tuple(sorted(leaving)),
            self.within_s,
            socket.gethostname(),
            boot_id(),
            boot_clock_ns() + int(self.within_s * 1e9),
            time.time() + self.within_s,
        )
        self.kept.begin(self.made, scope)
        self.made = self.kept.watch(self.made, self.start(run))
        return self.within_s + LATER_S

    def give_up(self) -> None:
        """The change failed after all: it is rolled back at once, not at the deadline."""
        if self.made is not None:
            self.kept.close(self.made, "superseded", self.made.run)


async def make_stand(context: Context, kept: Confirmations, run: str) -> ConfirmReport:
    """Tell the hosts to keep what they run, and then the store; hosts that left the plan before are cleared last.

    Raises: Interlock - too late. Unreachable, NotVerified - not all hosts run it; nothing was confirmed and it still waits.
    """
    found = kept.get(run)
    if found is None or found.state != "pending" or found.left_s() <= 0:
        context.run.unchanged = True
        raise Interlock(f"run {run} is not to be confirmed any more", hint="testbed status says what is")
    hosts, notes = context.session.hosts, list[str]()
    again = f"again: testbed confirm; to go back: testbed rollback {run}"
    with context.recorder.phase("confirm") as phase:
        answers = await hosts.connect([*found.hosts, *found.leaving])
        if silent := {h: a for h in found.hosts if isinstance(a := answers[h], TestbedError)}:
            one = one_error(silent)
            raise type(one)(f"{one}\nnothing was confirmed", hint=again)
        hellos = {h: a for h, a in answers.items() if isinstance(a, Hello)}
        if astray := [f"{h} runs generation {hellos[h].active}" for h in found.hosts if hellos[h].active != found.generation]:
            words = "\n".join(astray)
            raise NotVerified(f"{words}\nnot the plan's ({found.generation}), so nothing was confirmed", hint=again)
        await hosts.fence(context.run.token, list(hellos))
        with context.run.step("host", "all", "confirm", {"generation": found.generation, "hosts": list(found.hosts)}):
            await hosts.confirm(found.generation, found.hosts)
        kept.close(found, "confirmed", context.run.id)
        ours = context.ours()
        if gone := [h for h in found.leaving if h in hellos and hellos[h].active in ours]:
            try:
                with context.run.step("host", "all", "clear", {"hosts": gone}):
                    await hosts.clear(gone)
            except TestbedError as error:
                notes.append(f"the routes they had before stay: {error}")
        notes += [f"{h} does not answer and keeps the routes it had" for h in found.leaving if h not in hellos]
        phase.detail = f"{counted(len(found.hosts), 'host')} keep their routes"
    context.run.finish("ok")
    return ConfirmReport(context.run.id, run, found.plan, context.session.lab.name, len(found.hosts), notes=tuple(notes))
