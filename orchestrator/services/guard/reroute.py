"""One reroute by the guard: the hosts of a plan get routes that leave some links out, or the plan's
own routes back.

Locked, journalled as a run, staged next to the routes in use, committed with an armed revert,
probed, confirmed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from optics import Circuit, HostName, HostPort, Link, Locked, NotVerified, TestbedError, Unreachable
from optics.plain import counted
from optics.plan import Plan
from orchestrator.change.locking import holding
from orchestrator.fabric.detour import Detour, broken, detour, link_text, questions
from orchestrator.fabric.rules import Macs, Rules
from orchestrator.hosts import Hello
from orchestrator.inventory.lab import Lab
from orchestrator.services.guard.process import GuardState
from orchestrator.session import Command, Session
from orchestrator.store.confirmations import Confirmations
from orchestrator.store.generations import generation_owners, next_generation
from orchestrator.store.keys import lab_of
from orchestrator.store.locks import Locks
from orchestrator.store.options import RunOptions
from orchestrator.store.records import CurrentPlan
from orchestrator.store.run import Run
from orchestrator.store.scope import reachable_scope
from orchestrator.store.store import Store
from orchestrator.telemetry.journal import Journal
from orchestrator.telemetry.progress import Silent
from orchestrator.telemetry.recorder import Recorder

GUARD = "guard"
"""The verb of a guard's runs, and the first word of its lock's reason."""
PROBE_S = 1.0
"""Longest time (s) for the pairs of one lane to answer on the new routes."""


@dataclass(frozen=True, slots=True)
class Watched:
    """The plan that is up, as the guard watches it."""

    current: CurrentPlan
    plan: Plan
    links: tuple[Link, ...]
    circuits: tuple[Circuit, ...]

    @property
    def hosts(self) -> frozenset[HostName]:
        return frozenset(port.host for link in self.links for port in (link.a, link.b))


@dataclass(frozen=True, slots=True)
class Moved:
    """What a reroute did; `run` is empty if all was in line already. generation: the routes in use
    now. notes: for the operator.
    """

    run: str
    generation: int
    cut_off: tuple[HostName, ...] = ()
    figures: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rerouter:
    """Reroutes one owner's traffic on one lab. acting: called when it begins to change
    something.
    """

    session: Session
    command: Command
    tenancy: str
    locks: Locks
    acting: Callable[[], None]

    @property
    def store(self) -> Store:
        return self.command.store

    @property
    def lab(self) -> Lab:
        return self.session.lab

    async def move(
        self,
        watched: Watched,
        out: frozenset[Link],
        applied: Collection[Link],
        macs: Mapping[HostPort, Macs],
        state: GuardState,
        since_ns: int,
    ) -> Moved | None:
        """Route without the links `out`; the hosts leave `applied` out now, as far as known. None:
        another plan came up meanwhile.

        state: what this guard or the previous one put in place. since_ns: when the cause was
        received, 0 for now. Raises: Locked - another run changes the lab. NotVerified - the new
        routes are worse, or the hosts run another owner's. Unreachable, TimedOut, Refused - of a
        host. The hosts are then as before, or revert on their own.
        """
        began_ns = time.monotonic_ns()
        hosts = self.session.hosts
        scope, plan = reachable_scope(self.lab, watched.hosts), watched.current.plan_name
        async with holding(
            self.lab, replace(self.command, progress=Silent()), scope, GUARD, plan
        ) as held:
            current = self.store.current(self.tenancy)
            if current is None or (current.run, current.generation) != (
                watched.current.run,
                watched.current.generation,
            ):
                return None
            if (
                waiting := Confirmations(self.store, self.tenancy, self.locks.who).pending()
            ) is not None:
                # the hosts have a revert pending; confirming other routes would cancel it
                raise Locked(str(waiting))
            reached = sorted(watched.hosts & set(hosts.channels.attached()))
            hellos = await hosts.channels.greet(reached)
            self._not_others(watched, hellos)
            names = sorted(map(link_text, out))
            existing = (
                current.generation
                if not out
                else state.generation
                if list(state.around) == names
                else None
            )
            if existing and all(
                hello.active == existing and hello.pending_s is None for hello in hellos.values()
            ):
                return Moved("", existing, state.cut_off if out else ())
            known = tuple(link for link in watched.links if link.a in macs and link.b in macs)
            routing = detour(
                known, out & set(known), self.lab, macs, watched.plan.routes, watched.plan.rings
            )
            before = [link for link in known if link not in applied]
            rules = {host: own for host, own in routing.rules.items() if host in hellos}
            # a host that has not answered yet: nobody knows where frames for it are to go
            if not rules:
                raise Unreachable(
                    f"no host of {plan} that answers has a link to another whose MAC addresses are known"
                )
            lost = (
                broken(before, out, self.lab, watched.plan.routes, watched.plan.rings) if out else 0
            )
            self.acting()
            run = self.store.new_run(
                GUARD,
                lab_of(self.tenancy),
                plan_name=current.plan_name,
                plan_sha=current.plan_sha,
                inventory=self.session.inventory,
                user=self.command.settings.user,
                owner=self.locks.who.owner,
                options=RunOptions(around=tuple(names), plan_run=current.run),
            )
            held.bind(run)
            with (
                run,
                Journal(self.command.settings.run_dir(run.id), run.id, self.lab.name) as journal,
            ):
                await hosts.channels.fence(run.token, reached)
                recorder = Recorder(Silent(), journal)
                generation = (
                    next_generation(self.store, lab_of(self.tenancy), self.locks.who.owner, run.id)
                    if out
                    else current.generation
                )
                move = _Move(
                    self.session,
                    run,
                    recorder,
                    generation,
                    rules,
                    watched.plan.transition.revert_after_s,
                )
                committed_ns, silent = await move.carry_out(routing, hellos, lost)
                since_ns = since_ns or began_ns
                figures = {
                    "committed_ms": round((committed_ns - since_ns) / 1e6, 1),
                    "confirmed_ms": round((time.monotonic_ns() - since_ns) / 1e6, 1),
                }
                phases = {p.name: p.seconds for p in recorder.phases}
                text = (
                    f"traffic is rerouted around {', '.join(names)}"
                    if out
                    else "the planned routes are in use again"
                )
                run.finish(
                    "ok", message=text, summary={"around": names, **figures, "phases": phases}
                )
        notes = [*(routing.text() if out else ()), *silent]
        notes += [
            f"{host} does not answer and keeps its routes"
            for host in sorted(watched.hosts - set(reached))
        ]
        cut_off = tuple(host for group in routing.groups[1:] for host in group) if out else ()
        return Moved(run.id, generation, cut_off, figures, tuple(notes))

    def _not_others(self, watched: Watched, hellos: Mapping[HostName, Hello]) -> None:
        """Raises: NotVerified - a host runs routes that neither the plan nor a guard gave it."""
        given = generation_owners(self.store, lab_of(self.tenancy))
        for host, hello in sorted(hellos.items()):
            whose = given.get(hello.active or 0)
            owned = (
                whose is not None
                and whose.owner == self.locks.who.owner
                and self._guards(whose.run)
            )
            if hello.active not in (None, watched.current.generation) and not owned:
                raise NotVerified(
                    f"{host} runs generation {hello.active}{f' of {whose}' if whose else ''}, which is not the plan's; left alone",
                    hint="testbed status shows the present state; to bring the plan up again: testbed up",
                )

    def _guards(self, run: str) -> bool:
        record = self.store.get(run) if run else None
        return record is not None and record.verb == GUARD


@dataclass(frozen=True, slots=True)
class _Move:
    session: Session
    run: Run
    recorder: Recorder
    generation: int
    rules: Mapping[HostName, Rules]
    revert_after_s: float

    async def carry_out(
        self, routing: Detour, hellos: Mapping[HostName, Hello], lost: int
    ) -> tuple[int, list[str]]:
        """Return when the last host committed (ns), and which pairs stay silent in words.

        lost: pairs, counted per lane, that have no path without this reroute; it is worth it if
        fewer stay silent.
        """
        hosts, generation, reached = self.session.hosts, self.generation, sorted(self.rules)
        staging = {
            host: own for host, own in self.rules.items() if generation not in hellos[host].staged
        }
        what = {"generation": generation, "hosts": reached}
        back = {"active": {host: hellos[host].active for host in reached}}
        try:
            if staging:
                step = self.run.step("host", "all", "stage", what, {"clear": [generation]})
                with (
                    self.recorder.phase(
                        "stage", f"{counted(len(staging), 'host')}, over the channel"
                    ),
                    step,
                ):
                    await hosts.routes.stage_warm({generation: staging})
            step = self.run.step("host", "all", "commit", what, back)
            with (
                self.recorder.phase(
                    "routes", f"generation {generation} on {counted(len(reached), 'host')}"
                ),
                step,
            ):
                done = await hosts.routes.commit(generation, reached, self.revert_after_s)
            committed_ns = max(c.commit_ns for c in done.values())
            with self.recorder.phase("verify") as phase:
                silent, asked = await self._silent_pairs(routing, reached)
                phase.detail = f"pairs {asked - len(silent)}/{asked}"
                text = f"{len(silent)} of {asked} pairs do not answer: {', '.join(silent[:4])}"
                if silent and len(silent) >= lost:
                    raise NotVerified(f"on the new routes {text}")
            with self.recorder.phase("confirm"), self.run.step("host", "all", "confirm", what):
                await hosts.routes.confirm(generation, reached)
        except BaseException:
            await self._take_back(reached)
            raise
        return committed_ns, [text] if silent else []

    async def _silent_pairs(
        self, routing: Detour, reached: Collection[HostName]
    ) -> tuple[list[str], int]:
        silent, asked = [], 0
        for lane, targets in enumerate(questions(routing, self.session.lab, reached)):
            if targets:
                answers = await self.session.hosts.measure.probe(targets, timeout_s=PROBE_S)
                asked += sum(map(len, targets.values()))
                unanswered = (
                    (host, at)
                    for host, found in answers.items()
                    for at, probe in found.items()
                    if not probe.ok
                )
                silent += [f"{host}->{address} (lane {lane})" for host, address in unanswered]
        return silent, asked

    async def _take_back(self, reached: Collection[HostName]) -> None:
        """Hosts that committed revert now; those that cannot be reached revert on their own,
        unconfirmed.
        """
        hosts = self.session.hosts
        with suppress(TestbedError):
            hellos = await hosts.channels.greet(
                sorted(set(reached) & set(hosts.channels.attached()))
            )
            if counting := [
                h
                for h, hello in hellos.items()
                if hello.active == self.generation and hello.pending_s is not None
            ]:
                await hosts.routes.revert(counting)
