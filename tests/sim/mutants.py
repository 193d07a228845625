"""Mutants of the program: each breaks one promise in a line or two, and the simulation must notice.

A mutant lives in a copy of the tree, in a process of its own: nothing of the checkout is changed.
Its old text must occur exactly once, so that it fails loudly, as `Moved`, when the code that it was
made for changes.
"""

from __future__ import annotations

from tests.sim.jobmutants import OF_JOBS
from tests.sim.mutant import Mutant

APPLY, RUN = "orchestrator/change/apply.py", "orchestrator/change/run.py"
ROLLBACK, DOWN = "orchestrator/change/rollback.py", "orchestrator/change/down.py"
LOCKS, LOCKING = "orchestrator/store/locks.py", "orchestrator/change/locking.py"
SNAPSHOT, CONTEXT = "orchestrator/change/snapshot.py", "orchestrator/change/context.py"
GENERATIONS, FENCE = "agent/routes/generations.py", "agent/fence.py"
GUARD = "orchestrator/services/guard/guard.py"
SCHEDULER, RING_CHANGE = (
    "orchestrator/services/schedule/scheduler.py",
    "orchestrator/services/schedule/verb.py",
)


MUTANTS = {
    one.name: one
    for one in (
        Mutant(
            "step-after-effect",
            "a step is in the journal before its effect",
            (
                (
                    APPLY,
                    "    context.run.begin_all(steps)\n    context.store.own",
                    "    context.store.own",
                ),
                (
                    APPLY,
                    "gather(*asked_all, return_exceptions=True)\n",
                    "gather(*asked_all, return_exceptions=True)\n    context.run.begin_all(steps)\n",
                ),
            ),
        ),
        Mutant(
            "owner-after-effect",
            "light has an owner before it comes",
            (
                (
                    APPLY,
                    "    context.store.own(context.tenancy, context.run.id, (s for c in wanted.values() for s in c.add))\n",
                    "",
                ),
                (
                    APPLY,
                    "gather(*asked_all, return_exceptions=True)\n",
                    "gather(*asked_all, return_exceptions=True)\n"
                    "    context.store.own(context.tenancy, context.run.id, (s for c in wanted.values() for s in c.add))\n",
                ),
            ),
        ),
        Mutant(
            "state-after-rule",
            "an agent writes what it is about to do before it does it",
            (
                (
                    GENERATIONS,
                    "        self.save(owed)\n        if generation != before:",
                    "        if generation != before:",
                ),
                (
                    GENERATIONS,
                    "                self.save()\n                raise\n        done = time",
                    "                self.save()\n                raise\n        self.save(owed)\n        done = time",
                ),
            ),
            plot="silence",
        ),
        Mutant(
            "older-run-obeyed",
            "a host obeys no older run than it has obeyed",
            (
                (
                    FENCE,
                    "self.highest is not None and token < self.highest:",
                    "self.highest is not None and token < 0:",
                ),
            ),
        ),
        Mutant(
            "armed-by-older-run",
            "what an older run armed does not happen once a newer one has come",
            (
                (
                    "agent/daemon.py",
                    "        self.generations.disarm()\n        self.guard(self.handoff",
                    "        self.guard(self.handoff",
                ),
            ),
        ),
        Mutant(
            "fence-not-synced",
            "a host knows its newest run after a power loss",
            (
                (
                    FENCE,
                    'keep(FILE, json.dumps({"token": token}))',
                    'write(FILE, json.dumps({"token": token}))',
                ),
                (
                    FENCE,
                    "from agent.basics import VAR, Failure, integer, keep, read_json, refused",
                    "from agent.basics import VAR, Failure, integer, read_json, refused, write",
                ),
            ),
        ),
        Mutant(
            "blind-retry",
            "a command whose answer was lost is sent again only after the map was read",
            (
                (
                    "drivers/session/scpi.py",
                    "command=command, again=False)",
                    "command=command, again=True)",
                ),
            ),
        ),
        Mutant(
            "settling-not-awaited",
            "a rollback reads no device before what it was sent can have come about",
            (
                (
                    ROLLBACK,
                    "        await self.context.settled()\n        await asyncio.gather(*map(read, devices))",
                    "        await asyncio.gather(*map(read, devices))",
                ),
            ),
            plot="hold",
        ),
        Mutant(
            "dead-run-settling-not-awaited",
            "a run reads no device before what a dead run sent can have come about",
            ((RUN, "                        await self._let_settle(context)\n", ""),),
            plot="hurry",
        ),
        Mutant(
            "dead-holder-keeps-lock",
            "a lock ends with its process",
            (
                (
                    LOCKS,
                    "    return lock.host == socket.gethostname() and not process_alive(lock.pid, lock.process)",
                    "    return False",
                ),
            ),
        ),
        Mutant(
            "lock-of-living-process-ends",
            "only the very process that took a lock keeps it: its number may be another's by now",
            (
                (
                    LOCKS,
                    "process_alive(lock.pid, lock.process)",
                    'process_alive(lock.pid, lock.process.partition("/")[0])',
                ),
            ),
        ),
        Mutant(
            "robbed-run-goes-on",
            "a run whose lock was taken begins no further step",
            (
                (
                    LOCKS,
                    '    if found is None or found.state != "active":\n        raise lost(found, run)',
                    "    if found is None:\n        raise lost(found, run)",
                ),
            ),
        ),
        Mutant(
            "lock-grows-over-another",
            "a lock never grows over what another run holds",
            (
                (
                    LOCKS,
                    'if other.state == "active"]:\n                raise locked',
                    'if other.state == "none"]:\n                raise locked',
                ),
            ),
            plot="crowd",
        ),
        Mutant(
            "lock-forgets-queue",
            "who asked first is served first",
            (
                (
                    "orchestrator/store/lock_queue.py",
                    '        if wish.kind != "run" or not (his_own or '
                    "_booked_before(other, live, other.asked)):\n            found.append(other)",
                    '        if wish.kind != "run":\n            found.append(other)',
                ),
            ),
        ),
        Mutant(
            "scope-not-computed-again",
            "a run that waited locks what its owner has by then",
            (
                (
                    RUN,
                    "            lock.extend(scope())  # another run may have changed it meanwhile\n",
                    "",
                ),
            ),
            plot="crowd",
        ),
        Mutant(
            "owners-plan-not-locked",
            "one run at a time changes the plan of an owner",
            (
                (
                    LOCKING,
                    "    scope = Scope(owners=frozenset(map(owner_of, keys)))\n",
                    "    scope = Scope()\n",
                ),
            ),
            plot="crowd",
            most=600,
        ),
        Mutant(
            "unfinished-not-locked",
            "a run locks what the owner's unfinished runs touched",
            (
                (
                    LOCKING,
                    "        if before is not None:\n            hosts.update(hosts_of(target))",
                    "        if before is not None and to is not None:\n            hosts.update(hosts_of(target))",
                ),
            ),
            plot="crowd",
        ),
        Mutant(
            "ports-not-reserved",
            "ports of trunks are locked before they are used",
            (
                (
                    "orchestrator/change/claims.py",
                    "        if not context.reserve(used(goal)):\n",
                    "        if not any(s is None for s in used(goal)):\n",
                ),
            ),
            plot="trunks",
        ),
        Mutant(
            "others-wavelengths-blocked",
            "a change of some wavelengths leaves those of others as they are",
            (
                (
                    "drivers/finisar_serial.py",
                    "        staged = dict(seen)\n",
                    "        staged = {channel: Entry(entry.port, BLOCKED_DB) for channel, entry in seen.items()}\n",
                ),
            ),
            plot="roadm",
        ),
        Mutant(
            "disowned-in-doubt",
            "light that a device may still make keeps its owner",
            (
                (
                    APPLY,
                    "(isinstance(answer, TestbedError) and device not in context.written)",
                    "isinstance(answer, TestbedError)",
                ),
            ),
        ),
        Mutant(
            "unread-device-held-nothing",
            "the state before a change has devices that could not be read as the store knows them",
            (
                (
                    SNAPSHOT,
                    "    return Snapshot(here | unread, others",
                    "    return Snapshot(here, others",
                ),
            ),
            plot="stillness",
        ),
        Mutant(
            "rollback-to-half-a-state",
            "a rollback of a run that went on with another's half state goes back to before both",
            ((RUN, "first_of(store, first, half=True)", "first_of(store, first, half=False)"),),
            plot="hurry",
        ),
        Mutant(
            "rollback-leaves-armed",
            "after a rollback no host does anything by itself",
            (
                (
                    ROLLBACK,
                    "if armed := [h for h, hello in hellos.items() if hello.armed in own]:",
                    "if armed := [h for h, hello in hellos.items() if hello.armed == -1]:",
                ),
            ),
        ),
        Mutant(
            "down-says-success",
            "`down` lists the light that it could not take down",
            (
                (
                    DOWN,
                    "                left += [line for problem in applied.problems for line in problem.splitlines()]\n",
                    "",
                ),
            ),
        ),
        Mutant(
            "down-forgets-silent",
            "`down` lists the devices with light of the owner's that do not answer",
            (
                (
                    DOWN,
                    "        left = list(dict.fromkeys(str(e) for n, e in seen.errors.items() if n in needed))",
                    "        left: list[str] = []",
                ),
            ),
            plot="stillness",
        ),
        Mutant(
            "status-believes-store",
            "`status` says what devices hold, not what they should",
            (
                (
                    "orchestrator/verbs/status.py",
                    "goal - among(goal, held)\n",
                    "goal - among(goal, held | own)\n",
                ),
            ),
        ),
        Mutant(
            "down-touches-others",
            "`down` touches no host that runs another owner's routes",
            (
                (
                    DOWN,
                    "((h for h, hello in seen.hellos.items() if hello.active in own), left",
                    "((h for h, hello in seen.hellos.items() if hello.active is not None), left",
                ),
            ),
        ),
        Mutant(
            "clear-takes-all-staged",
            "routes that another owner staged on a host stay",
            (
                (
                    GENERATIONS,
                    "sorted(self.staged if only is None else self.staged.keys() & set(only))",
                    "sorted(self.staged)",
                ),
            ),
        ),
        Mutant(
            "unconfirmed-stays",
            "a host whose new routes nobody confirms goes back by itself",
            (
                (
                    GENERATIONS,
                    "        if self.pending:\n            self.schedule()\n        if self.active is not None and self.holds",
                    "        if self.active is not None and self.holds",
                ),
            ),
            most=600,
        ),
        Mutant(
            "hold-without-end",
            "a host leaves a hold by itself",
            (
                (
                    GENERATIONS,
                    "None if to == generation else {",
                    "None if to == generation or self.holds(generation) else {",
                ),
            ),
            plot="hold",
        ),
        Mutant(
            "late-confirmation",
            "what was not confirmed in time is not confirmed any more",
            (
                (
                    "orchestrator/change/confirm.py",
                    'found.state != "pending" or found.left_s() <= 0:',
                    'found.state != "pending":',
                ),
                (
                    "orchestrator/change/expiry.py",
                    '    note = await settle(command)\n    run = None if run == "last" else run  # commands',
                    '    note = ""\n    run = None if run == "last" else run  # commands',
                ),
            ),
            plot="confirm",
        ),
        Mutant(
            "deadline-ignored",
            "what was not confirmed in time goes back",
            (
                (
                    "orchestrator/change/expiry.py",
                    "    if (other := _taken_away(store, found, settings)) is not None:\n",
                    "    if (other := _taken_away(store, found, settings) or found.run):\n",
                ),
            ),
            plot="confirm",
        ),
        Mutant(
            "guard-forgets-who-was-away",
            "a guard gives a host that comes back the routes of the others",
            (
                (
                    GUARD,
                    "knows nothing of its routes\n            self.applied = None\n",
                    "\n            pass\n",
                ),
            ),
            plot="guard",
        ),
        Mutant(
            "guard-outlives-its-plan",
            "a guard ends with its plan",
            (
                (
                    GUARD,
                    "            return self.options.stay\n        if known is None",
                    "            return True\n        if known is None",
                ),
            ),
            plot="guard",
        ),
        Mutant(
            "guard-keeps-dark-links",
            "traffic does not use a link that has no light one way",
            (
                (
                    "orchestrator/fabric/detour.py",
                    "frozenset(link for link in links if link.a in dark or link.b in dark)",
                    "frozenset(link for link in links if link.a in dark and link.b in dark)",
                ),
            ),
            plot="guard",
        ),
        Mutant(
            "turner-without-lock",
            "a turner whose lock was taken moves no light any more",
            (
                (
                    SCHEDULER,
                    "        context.lock.check(context.run.id)",
                    "        context.lock.check",
                ),
            ),
            plot="turn",
        ),
        Mutant(
            "slots-of-nobody",
            "the circuits of all slots have an owner before they turn",
            ((RING_CHANGE, "    store.own(context.tenancy, context.run.id, settings)\n", ""),),
            plot="turn",
        ),
        Mutant(
            "schedule-left-on-hosts",
            "hosts stay confirmed in their slot once a turner has ended",
            (
                (
                    SCHEDULER,
                    "            await self.watch.hosts.slots.stop("
                    "[h for h in self.hosts if h in self.watch.hosts.channels.attached()])\n",
                    "",
                ),
            ),
            plot="turn",
        ),
        *OF_JOBS,
    )
}
