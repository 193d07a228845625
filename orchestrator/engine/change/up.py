"""One change of a lab, carried out: bringing a plan up. Every effect is journalled before it happens."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace

from optics import (
    Change,
    ChangeFailed,
    CrossConnect,
    DeviceName,
    HandsNeeded,
    HostName,
    HostPort,
    Infeasible,
    Interlock,
    Interrupted,
    Locked,
    NotVerified,
    Outcome,
    Setting,
    SpectralRoute,
    StoreFailed,
    TestbedError,
    TimedOut,
)
from optics.plain import counted, scaled_text
from optics.plan import FixedRoute, Plan
from orchestrator.deadline import SLACK
from orchestrator.engine.change import jobs
from orchestrator.engine.change.apply import SLOW_S, apply_changes, finish, switch
from orchestrator.engine.change.confirm import Confirming
from orchestrator.engine.change.context import Context
from orchestrator.engine.change.down import progress_lines
from orchestrator.engine.change.equalise import ROUNDS, equalise
from orchestrator.engine.change.impact import Impact
from orchestrator.engine.change.keep_job import fits
from orchestrator.engine.change.port_counters import quiet, sampled_ports
from orchestrator.engine.change.rollback import Rollback, verdict
from orchestrator.engine.change.snapshot import Snapshot, found, held_data
from orchestrator.engine.change.timeline import Timeline, record_rungs, tell
from orchestrator.engine.change.unfinished import announce
from orchestrator.fabric.circuits import receivers
from orchestrator.fabric.lightpath import among
from orchestrator.fabric.rules import Macs, Route, Rules, drain_rules, rules
from orchestrator.fabric.transition import Held, per_device
from orchestrator.hosts import Committed, Hello
from orchestrator.plan.reader import read_plan
from orchestrator.plan.stored import link_data, path_data, stored_links
from orchestrator.plan.target import Target, dark_time_scale, diff, expected_dark_ms, fingerprint, slowest, switching_s, target
from orchestrator.results import EqualiseReport, JobStatus, UpReport
from orchestrator.session import Observation
from orchestrator.store.generations import generation_owners
from orchestrator.store.ownership import OWNER, adopt, adopted, explained, taken_hosts
from orchestrator.store.scope import Scope
from orchestrator.verify.ladder import check_light, check_link, ladder, pairs_of
from orchestrator.verify.power import Reading, keep
from orchestrator.verify.report import Rung

AFTER_S = 0.5
"""Ports are sampled for so long (s) after a job has gone on: that is what a report calls throughput after a move."""


def _settings_word(goal: Target) -> str:
    """What the plan's settings are called: all of a kind, or just settings."""
    kinds = {type(x) for circuit in goal.circuits for x in circuit.path}
    return "cross-connects" if kinds == {CrossConnect} else "spectral routes" if kinds == {SpectralRoute} else "settings"


def counts_of(changes: Mapping[DeviceName, Change]) -> str:
    """How many settings go and come on each device: `ocs1 -12 +12  ocs2 -0 +3`."""
    return "  ".join(f"{d} -{len(c.remove)} +{len(c.add)}" for d, c in changes.items())


def rules_sha(wanted: Mapping[HostName, Rules]) -> str:
    """A short name for what all hosts are told, the same for the same rules."""
    text = "\n".join(f"{host} {rule}" for host, ours in sorted(wanted.items()) for rule in sorted(map(str, ours)))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def as_saved(expected: str, now: str) -> None:
    """Compare fingerprints, where there was one. Raises: Interlock - the lab is not as it was when the plan was saved."""
    if expected and now != expected:
        raise Interlock(
            f"the lab is not as it was when this plan was saved (fingerprint {now}, then {expected})",
            hint="make the plan again and look at it: testbed plan --topology examples/ring-12.json",
        )


def goal_hosts(goal: Target) -> set[HostName]:
    """The hosts that the links join."""
    return {p.host for link in goal.links for p in (link.a, link.b)}


class Up:
    """`up`: from what is to the plan.

    rollback: take a change back that fails or is interrupted. expected: the fingerprint of a saved plan, which must still hold.
    confirming: leave it waiting for the operator's word. keep_job: a job that runs goes on running, whatever the plan's job is.
    """

    def __init__(
        self,
        context: Context,
        plan: Plan,
        text: str,
        *,
        rollback: bool = True,
        expected: str = "",
        confirming: Confirming | None = None,
        keep_job: bool = False,
    ) -> None:
        self.context, self.plan, self.text = context, plan, text
        self.keep_job = keep_job
        self.rollback, self.expected, self.confirming = rollback, expected, confirming
        self.lab = context.session.lab
        self.hosts = context.session.hosts
        self.current = context.store.current(context.slice)
        self.before = Snapshot({})
        self.touched = False
        self.told: set[HostName] = set()
        self.notes: list[str] = []
        self.taken_over = ""
        self.switching_s = 0.0
        self.wired: Mapping[DeviceName, Outcome] = {}
        self.generation = 0
        self.drained: int | None = None
        self.draining: tuple[HostName, ...] = ()
        self.rerouted: frozenset[HostPort] = frozenset()

    async def carry_out(self, *, launch_job: bool) -> UpReport:
        """Do it. Raises: as `orchestrator.engine.verbs.up`."""
        context, recorder = self.context, self.context.recorder
        seen = await self._observe()
        with recorder.phase("plan") as phase:
            goal, seen = await self._reserved(seen)
            self._all_there(goal, seen)
            self.rerouted = context.rerouted(goal.links, seen.hellos)
            await context.allowed(goal.change.changes, seen.settings, self.rerouted)
            self._take_over(goal, seen)
            kept_job = await self._kept_job(goal)
            launch_job = launch_job and not kept_job
            macs = self.hosts.macs()
            wanted = rules(goal.links, self.lab, macs, self.plan.routes, self.plan.rings)
            sha = rules_sha(wanted)
            kept, removed, made = (sum(map(len, h.values())) for h in (goal.change.kept, goal.change.removed, goal.change.made))
            phase.detail = f"{counted(len(goal.links), 'link')}: {kept} {_settings_word(goal)} kept, {removed} broken, {made} made"
        if not goal.moving and self._hosts_follow(seen.hellos, wanted, sha):
            return await self._nothing_to_do(goal, seen, wanted, sha, launch_job=launch_job)
        self.switching_s = self._make_time(goal)
        drain = self._drain_rules(goal, seen, macs)
        # In the order of use: hosts drop what was staged before the generation they run.
        self.drained = context.next_generation() if drain else None
        self.draining = tuple(sorted(drain))
        self.generation = generation = context.next_generation()
        await self._found(goal, seen, wanted)
        times = Timeline()
        try:
            await self._wire_ahead(goal)
            # From the staging on: what ports carried before the move is half of what it cost them.
            async with sampled_ports(self.hosts, recorder.journal, context.sample_hz, goal.circuits):
                await self._stage(wanted, drain)
                async with Impact(self.hosts, context.session.devices) as aftermath:
                    times = await self._switch(goal, wanted, generation, aftermath)
                    await aftermath.settle()
                    rungs = await self._verify(goal, times)
                    times.verified_ns = time.monotonic_ns()
                    times.power, times.crossed = aftermath.power, aftermath.crossed(generation)
                    times.lost_bytes = await aftermath.lost_bytes(goal.broken_links)
                    ours = context.ours()
                    leaving = [h for h, hello in seen.hellos.items() if h not in wanted and hello.active in ours]
                    if self.confirming is not None:
                        await self._leave_waiting(self.confirming, wanted, leaving)
                        leaving = []  # they keep their routes, too, until then
                    else:
                        with context.run.step("host", "all", "confirm", {"generation": generation}):
                            await self.hosts.confirm(generation, wanted)
                    if leaving:
                        self.told.update(leaving)
                        with context.run.step("host", "all", "clear", {"hosts": leaving}):
                            await self.hosts.clear(leaving)
        except (Exception, asyncio.CancelledError) as error:
            if not self.touched:
                context.run.unchanged = True
                raise
            if self.confirming is not None:
                self.confirming.give_up()
            rungs = await self._failed(goal, error)
        self._stands(goal, sha)
        if times.verified_ns:
            self._disown_lost(self._now_held(goal, times))
        balance = await self._equalise(goal, self._now_held(goal, times))
        try:
            # What ports carry afterwards is the other half, where a job makes them carry anything.
            hz = context.sample_hz if kept_job or (self.plan.job is not None and launch_job) else 0.0
            async with sampled_ports(self.hosts, recorder.journal, hz, goal.circuits):
                job = await self._job(launch=launch_job, changed=True)
                times.resumed_ns, times.pause_ns = await self._resumed(times)
                if times.resumed_ns and hz:
                    await asyncio.sleep(AFTER_S)
        except asyncio.CancelledError:
            words = f"interrupted: {self.plan.name} is up and stays up; its job was not waited for"
            context.run.finish("interrupted", 130, words)
            raise Interrupted(words, hint="to take the change back: testbed rollback") from None
        except TestbedError as error:
            error.args = (f"{self.plan.name} is up and stays up; its job does not run\n{error}",)
            raise
        figures = tell(recorder, self.lab, goal, self.plan, times, context.verb)
        ok, total = next((pairs_of(r) for r in rungs if r.name == "forwarding"), (0, 0))
        return UpReport(
            run=context.run.id,
            plan=self.plan.name,
            lab=self.lab.name,
            phases=tuple(recorder.phases),
            parts=tuple(recorder.parts),
            diff=diff(goal.change, context.session.traits, self.lab, goal.early),
            writes=sum(o.writes for o in (*self.wired.values(), *times.outcomes.values())) + (balance.writes if balance else 0),
            dark_ms_expected=expected_dark_ms(goal.late, context.session.traits),
            dark_ms=figures.dark_ms,
            link_ms=figures.link_ms,
            commit_ms=figures.commit_ms,
            pairs_ok=ok,
            pairs_total=total,
            job=job,
            notes=(*self.notes, *self.plan.warnings, *(balance.notes if balance else ())),
            undo="testbed rollback",
            dark_time_scale=dark_time_scale(goal.late, context.session.traits, self.lab),
            equalise=balance,
        )

    async def _resumed(self, times: Timeline) -> tuple[int, int]:
        context, at = self.context, times.crossed_ns
        since = times.sent_ns or at
        return await jobs.resumed(
            context.session, context.store, context.slice, context.run_dir, context.recorder, at, since, self.before.job
        )

    async def _found(self, goal: Target, seen: Observation, wanted: Collection[HostName]) -> None:
        """Journal what is and what is to be; nothing was changed before."""
        context = self.context
        runs = await jobs.running(context.session, context.store, context.slice)
        owned = per_device(context.store.owned(context.slice))
        self.before = found(seen.settings, owned, self.current, seen.hellos, runs.id if runs else None, context.theirs())
        target = {"settings": held_data(goal.wanted), "generation": self.generation, "hosts": sorted(wanted)}
        context.run.found(self.before.to_json(), target)

    def _stands(self, goal: Target, sha: str) -> None:
        """Note that the plan is up. Raises: Locked - the lab is somebody else's by now."""
        self.context.store.set_current(
            self.context.slice,
            self.context.run.id,
            plan_name=self.plan.name,
            plan_sha=self.plan.sha256,
            plan_text=self.text,
            links={
                "rules_sha": sha,
                "links": [link_data(link) for link in goal.links],
                "paths": [path_data(circuit) for circuit in goal.circuits if len(circuit.path) > 1],
            },
            generation=self.generation,
        )

    async def _leave_waiting(self, confirming: Confirming, wanted: Collection[HostName], leaving: Collection[HostName]) -> None:
        """From now on it stands for a time only; the hosts count down by themselves, and the store knows it before they do."""
        context = self.context
        scope = context.lock.lock.scope if context.lock is not None else Scope(frozenset(wanted))
        revert_s = confirming.begin(context.run.id, self.plan.name, self.before, self.generation, wanted, leaving, scope)
        what = {"generation": self.generation, "revert_after_s": revert_s}
        with context.run.step("host", "all", "wait to be confirmed", what):
            await self.hosts.commit(self.generation, wanted, revert_s)

    async def _reserved(self, seen: Observation) -> tuple[Target, Observation]:
        """Where to, its ports held: trunks are chosen by what is free, and somebody may be choosing at the same moment."""
        while True:
            goal = self._goal(seen)
            if not self.context.reserve(s for held in (goal.wanted, goal.change.removed) for found in held.values() for s in found):
                return goal, seen
            now = await self.context.session.observe(hosts=False)
            errors = {n: e for n, e in seen.errors.items() if n not in self.lab.devices} | dict(now.errors)
            seen = replace(seen, settings=now.settings, errors=errors)

    def _goal(self, seen: Observation) -> Target:
        """Where to. Raises: as `target`; Interlock - the lab is not as it was when the plan was saved."""
        if self.expected:
            as_saved(self.expected, fingerprint(self.plan, seen.complete().settings))
        store = self.context.store
        try:
            return target(self.plan, self.lab, seen.settings, store.owned(self.context.slice) | self._adopted(seen))
        except Interlock as error:
            raise explained(error, store.owners(self.context.key)) from None
        except Infeasible:
            if any(name in self.lab.devices for name in seen.errors):
                seen.complete()  # what could not be read is the cause
            raise

    def _adopted(self, seen: Observation) -> frozenset[Setting]:
        """The circuits of others that the operator named to become ours. Raises: Missing - there is no such circuit."""
        context = self.context
        if not context.adopt:
            return frozenset()
        owned, owners = context.store.owned(context.slice), context.store.owners(context.key)
        return adopted(context.adopt, seen.settings, owned, owners, again=context.resumes)

    def _take_over(self, goal: Target, seen: Observation) -> None:
        """Make ours what the operator named. Raises: Interlock - a host that is needed carries somebody else's plan."""
        context = self.context
        hosts = sorted(goal_hosts(goal) | set(self.plan.job.ranks if self.plan.job else ()))
        ours = {context.owner, *(word.removeprefix(OWNER) for word in context.adopt if word.startswith(OWNER))}
        if lines := taken_hosts(
            hosts, {h: hello.active for h, hello in seen.hellos.items()}, generation_owners(context.store, context.key), ours
        ):
            raise Interlock(
                "\n".join(lines), hint="a host carries one plan at a time: plan around it, or ask its owner for: testbed down"
            )
        if context.adopt and context.who is not None:
            found = adopt(context.store, context.key, context.who, context.run.id, self._adopted(seen), context.adopt)
            self.notes += [f"adopted {line}" for line in found]
            self.taken_over = "; ".join(found)

    def _all_there(self, goal: Target, seen: Observation) -> None:
        """Note who does not answer and is not needed. Raises: Unreachable and the like - naming all who are needed and do not."""
        owned = {s.ingress.device for s in self.context.store.owned(self.context.slice)}
        old = stored_links(self.current.links) if self.current else ()
        hosts = goal_hosts(goal) | {p.host for link in old for p in (link.a, link.b)}
        hosts.update(self.plan.job.ranks if self.plan.job else ())
        needed = {d for d, held in goal.wanted.items() if held} | owned | hosts
        self.notes += seen.needing(needed)

    async def _kept_job(self, goal: Target) -> bool:
        """Whether a job runs that is to go on running. Raises: Infeasible - the plan leaves hosts of it apart."""
        context = self.context
        record = await jobs.running(context.session, context.store, context.slice) if self.keep_job else None
        if record is not None:
            self.notes.append(fits(record, self.plan, goal, self.lab))
        return record is not None

    def _make_time(self, goal: Target) -> float:
        """Seconds of darkness by the slowest device; the deadline makes room for all it does.

        Raises: TimedOut - the operator allowed less.
        """
        found = slowest(goal.change, self.context.session.traits)
        if found is None or found[1] <= SLOW_S:
            return 0.0
        device, seconds = found
        change = goal.change.changes[device]
        self.context.need(seconds, f"{device} ({counted(len(change.remove) + len(change.add), 'move')})")
        late = slowest(goal.late, self.context.session.traits)
        return late[1] if late is not None and late[1] > SLOW_S else 0.0

    async def _wire_ahead(self, goal: Target) -> None:
        """What slow devices can do while every circuit still carries its light. Raises: ChangeFailed."""
        if not goal.early:
            return
        self.touched = True
        with self.context.recorder.phase("prewire") as phase:
            self.wired = await switch(self.context, replace(goal.change, changes=goal.early), "prewire")
            phase.detail = counts_of(goal.early) + ", in the dark"

    def _now_held(self, goal: Target, times: Timeline) -> Held:
        """What the devices hold after the change, by their own last reports."""
        observed = {d: goal.change.kept[d] | goal.change.foreign[d] for d in goal.change.kept}
        return observed | {d: outcome.observed for d, outcome in {**self.wired, **times.outcomes}.items()}

    def _disown_lost(self, held: Held) -> None:
        """What is ours by the store and on no device (a run died, a device lost power) is nobody's: others may use those ports."""
        owned = per_device(self.context.store.owned(self.context.slice))
        lost = [s for d, ours in owned.items() if d in held for s in ours - among(ours, held[d])]
        self.context.store.disown(self.context.slice, lost)

    async def _equalise(self, goal: Target, held: Held) -> EqualiseReport | None:
        """Bring the receivers' power to the plan's target. The plan is up before: what cannot be reached is told, not undone."""
        accept, context = self.plan.acceptance, self.context
        if accept.target_dbm is None or not any(isinstance(x, SpectralRoute) for c in goal.circuits for x in c.path):
            return None
        devices = context.session.devices
        crossed = {x.ingress.device for c in goal.circuits for x in c.path}
        serial = sum(switching_s(Change(d, add=held[d]), devices[d].traits) for d in crossed)
        if ROUNDS * serial > SLOW_S:
            with suppress(TimedOut):  # a firm limit: as many rounds as fit
                context.need(ROUNDS * serial, "equalisation")

        async def apply(wanted: Mapping[DeviceName, Change]) -> Mapping[DeviceName, Outcome]:
            told = await apply_changes(context, wanted, "equalise")
            if told.errors:
                raise ChangeFailed("\n".join(told.problems))
            return told.outcomes

        with context.recorder.phase("equalise") as phase:
            try:
                found = await equalise(devices, self.lab, goal.circuits, held, accept.target_dbm, accept.tolerance_db, apply)
            except Locked:
                raise
            except TestbedError as error:
                phase.detail = f"not finished: {str(error).splitlines()[0]}"
                return EqualiseReport(accept.target_dbm, accept.tolerance_db, notes=(f"equalise: {error}",))
            after = f" after {found.rounds} round{'s' if found.rounds > 1 else ''}" if found.rounds else ""
            share = f"{found.within}/{len(found.circuits)} circuits within {accept.tolerance_db:g} dB of {accept.target_dbm:g} dBm"
            phase.detail = share + after
        return found

    async def _observe(self) -> Observation:
        """Ask everybody; where hosts lack the committer or have an older one, install it through Ansible first."""
        recorder, session = self.context.recorder, self.context.session
        with recorder.phase("observe") as phase:
            seen = await session.observe()
            phase.detail = f"{counted(len(seen.settings), 'device')}, {counted(len(seen.hellos), 'host')}"
        mine = set(self.context.hosts())
        if stale := [host for host in self.hosts.unprovisioned() if host in mine]:
            with recorder.phase("provision", f"{counted(len(stale), 'host')}, through Ansible") as phase:
                changed = await self.hosts.provision(stale)
                phase.detail = f"{counted(len(changed), 'host')}, through Ansible"
                seen = replace(seen, hellos=dict(self.hosts.hellos))
        self.notes += announce(self.context, seen)
        await self.hosts.fence(self.context.run.token, self.context.hosts())
        return seen

    def _hosts_follow(self, hellos: Mapping[HostName, Hello], wanted: Mapping[HostName, Rules], sha: str) -> bool:
        """Every host runs the generation that carries exactly these rules, and owes no revert."""
        known = self.current
        if known is None or not isinstance(known.links, dict) or known.links.get("rules_sha") != sha:
            return False
        ours = self.context.ours()
        return all(
            (hello.active == known.generation if host in wanted else hello.active not in ours)
            and (hello.pending_s is None or hello.active not in ours)
            for host, hello in hellos.items()
        )

    async def _nothing_to_do(
        self, goal: Target, seen: Observation, wanted: Collection[HostName], sha: str, *, launch_job: bool
    ) -> UpReport:
        """Devices and hosts are as planned: look at the carriers, launch what is to be launched, write nothing to any device."""
        ok, _, evidence = await check_link(seen.hellos, goal.links)
        if not ok:
            words = "\n".join(evidence)
            raise NotVerified(
                f"the devices hold {self.plan.name}, but not every port has light:\n{words}",
                hint="testbed verify says which side is dark",
            )
        self._disown_lost(seen.settings)
        if self.current is not None and self.current.plan_sha != self.plan.sha256:  # another job, or other words
            self.generation = self.current.generation
            await self._found(goal, seen, wanted)
            self._stands(goal, sha)
        recorder = self.context.recorder
        balance = await self._equalise(goal, seen.settings)
        job = await self._job(launch=launch_job, changed=False)
        writes = balance.writes if balance else 0
        return UpReport(
            run=self.context.run.id,
            plan=self.plan.name,
            lab=self.lab.name,
            nothing_to_do=not writes and (job is None or job.run != self.context.run.id),
            phases=tuple(recorder.phases),
            parts=tuple(recorder.parts),
            diff=diff(goal.change, self.context.session.traits, self.lab),
            writes=writes,
            job=job,
            notes=(*self.notes, *self.plan.warnings, *(balance.notes if balance else ())),
            equalise=balance,
        )

    async def _stage(self, wanted: Mapping[HostName, Rules], drain: Mapping[HostName, Rules]) -> None:
        """Fill shadow tables through Ansible: the new generation, and one to drain onto if something stays lit meanwhile."""
        context = self.context
        generations: dict[int, Mapping[HostName, Rules]] = {self.generation: wanted}
        if self.drained is not None:
            generations[self.drained] = drain
        hosts = sorted(set(wanted) | set(drain))
        count = sum(isinstance(r, Route) for ours in wanted.values() for r in ours)
        with context.recorder.phase(
            "stage", f"{counted(count, 'route')} on {counted(len(hosts), 'host')}, through Ansible"
        ) as phase:
            step = context.run.step("host", "all", "stage", {"generations": sorted(generations)}, {"clear": sorted(generations)})
            with step:
                step.result({"hosts": sorted(await self.hosts.stage(generations))})
            also = " and a generation to drain onto" if drain else ""
            phase.detail = f"{counted(count, 'route')}{also} on {counted(len(hosts), 'host')}"

    def _drain_rules(self, goal: Target, seen: Observation, macs: Mapping[HostPort, Macs]) -> Mapping[HostName, Rules]:
        """Routes for the dark interval, empty where draining would change nothing or was not asked for."""
        kept = goal.kept_links
        follows = {host for host, hello in seen.hellos.items() if hello.active is not None}
        if not self.plan.transition.drain or not kept or len(kept) == len(goal.old_links) or not follows:
            return {}
        routes, rings = self._old_routing()
        try:
            before = rules(goal.old_links, self.lab, macs, routes, rings)
            drain = drain_rules(goal.old_links, kept, self.lab, macs, routes, rings)
        except Infeasible:  # the old plan's fixed routes do not fit what is lit now
            before, drain = rules(goal.old_links, self.lab, macs), drain_rules(goal.old_links, kept, self.lab, macs)
        return {} if drain == before else {host: ours for host, ours in drain.items() if host in follows}

    def _old_routing(self) -> tuple[tuple[FixedRoute, ...], tuple[tuple[HostName, ...], ...]]:
        if self.current is None:
            return (), ()
        try:
            old = read_plan(self.current.plan_text, self.current.plan_name, self.lab)
        except TestbedError:  # the inventory changed since
            return (), ()
        return old.routes, old.rings

    async def _switch(self, goal: Target, wanted: Mapping[HostName, Rules], generation: int, aftermath: Impact) -> Timeline:
        """Drain, arm, break and make on all devices at once, hear carriers and commits."""
        context, recorder, hosts = self.context, self.context.recorder, self.hosts
        policy, patience = self.plan.transition, self.plan.acceptance.link_up_timeout_s
        times = Timeline()
        await context.allowed({}, {}, self.rerouted)  # no device asks again for these before hosts commit
        recorder.reconfig_id = f"{context.run.id}/1"
        self.touched = True
        self.told.update(wanted, self.draining)
        what = {"generation": generation}
        if not goal.late:
            with recorder.phase("routes") as phase, context.run.step("host", "all", "commit", what):
                times.committed = dict(await hosts.commit(generation, wanted, policy.revert_after_s))
                phase.detail = f"committed on {counted(len(times.committed), 'host')}"
            return times
        # A device that a run before us left settling may have finished while we staged: no carrier would come anew.
        now = (await context.session.observe(hosts=False)).held
        rising = goal.rising(now)
        heard = hosts.subscribe()  # before the light moves: a host may commit before we ask
        with recorder.phase("arm") as phase, context.run.step("host", "all", "arm", what):
            # The first host may commit long before a robot has made its last move.
            revert_s = policy.revert_after_s + patience + SLACK * self.switching_s
            cross = aftermath.neighbours(rising, goal.links, self.lab, self.plan.routes, self.plan.rings)
            await hosts.arm(generation, rising, revert_after_s=revert_s, deadline_s=context.timeout_s, cross=cross)
            gc.collect()  # from here on every millisecond is one of a detour, and then of darkness
            each = "1 host commits" if len(rising) == 1 else f"{len(rising)} hosts commit"
            phase.detail = f"{each} generation {generation} without being told, when the light is there"
        if self.drained is not None:
            gone = goal.broken_links
            with recorder.phase("drain") as phase, context.run.step("host", "all", "drain", {"generation": self.drained}):
                await hosts.commit(self.drained, self.draining, policy.revert_after_s)
                # Confirmed while the queues run dry: once the light moves, the routes before are worse than these.
                waited, _ = await asyncio.gather(quiet(hosts, receivers(gone)), hosts.confirm(self.drained, self.draining))
                phase.detail = f"traffic off {counted(len(gone), 'link')}; quiet after {waited * 1e3:.0f} ms"
        await aftermath.before(goal.broken_links)
        with recorder.phase("switch") as phase:
            times.outcomes = await switch(context, goal.late)
            aftermath.moved(goal.late.changes, {x.egress for circuit in goal.circuits for x in circuit.path})
            phase.detail = counts_of(goal.late.changes)
            if self.switching_s:
                slow = dark_time_scale(goal.late, context.session.traits, self.lab)
                phase.detail += f"   {scaled_text(self.switching_s, slow)} expected"
        with recorder.phase("link") as phase:
            answers = await hosts.wait_committed(generation, rising, patience, heard)
            late = [str(a) for a in answers.values() if isinstance(a, TestbedError)]
            if late:
                raise TimedOut("\n".join([*late, *await self._dark(goal)]), hint="testbed verify repeats the look at the light")
            times.committed = {h: a for h, a in answers.items() if isinstance(a, Committed)}
            phase.detail = f"{counted(sum(map(len, rising.values())), 'port')} up, {counted(len(rising), 'host')} committed"
        if others := [h for h in wanted if h not in rising]:
            with recorder.phase("routes") as phase, context.run.step("host", "all", "commit", what):
                times.committed |= await hosts.commit(generation, others, policy.revert_after_s)
                phase.detail = f"committed on {counted(len(others), 'more host')}"
        return times

    async def _dark(self, goal: Target) -> list[str]:
        """Which ports got no light, and where it was lost as far as the switches' meters tell."""
        hellos = {h: a for h, a in (await self.hosts.connect()).items() if isinstance(a, Hello)}
        _, _, ports = await check_link(hellos, goal.links)
        _, _, lost = await check_light(self.context.session, goal.circuits)
        return [*ports, *lost]

    async def _verify(self, goal: Target, times: Timeline) -> tuple[Rung, ...]:
        """Climb the ladder. Raises: NotVerified - with every failed rung's evidence."""
        session, recorder = self.context.session, self.context.recorder
        with recorder.phase("verify") as phase:
            hellos = await self.hosts.greet(sorted(goal_hosts(goal)))
            fresh = {device: outcome.observed for device, outcome in times.outcomes.items()}  # the others are read again
            job = self.context.store.latest_job(self.context.slice)
            busy = f"job {job.name} runs" if job is not None and job.ended is None else ""
            rungs = await ladder(
                session, self.plan, goal.links, goal.circuits, fresh, hellos, keep=self._keep, power=False, busy=busy
            )
            record_rungs(recorder, rungs)
            if failed := [r for r in rungs if not r.ok]:
                lines = [f"{r.name}: {r.detail}" + "".join(f"\n  {e}" for e in r.evidence[:12]) for r in failed]
                raise NotVerified("\n".join(lines), hint="testbed verify repeats the ladder")
            phase.detail = ", ".join(r.detail for r in rungs if r.name != "map")
        return rungs

    def _keep(self, readings: tuple[Reading, ...]) -> None:
        keep(readings, self.context.store, self.context.key, self.context.run.id, self.context.recorder.journal)

    async def _job(self, *, launch: bool, changed: bool) -> JobStatus | None:
        """Bring the job in line with the plan: one that is unchanged keeps running, another one replaces it."""
        context = self.context
        return await jobs.bring(
            context.session,
            context.store,
            context.slice,
            context.run.id,
            context.run_dir,
            self.plan.job,
            context.recorder,
            changed=changed,
            launch=launch,
            sample=context.sample_hz > 0,
        )

    async def _failed(self, goal: Target, error: BaseException) -> tuple[Rung, ...]:
        """Take everything back that was changed. Raises: what became of the change, whatever became of it."""
        context = self.context
        if isinstance(error, Locked):
            raise error
        if not self.rollback:
            raise await self._stopped(goal, error) from error
        try:
            undone = await Rollback(context, self.before, self.told, self.plan.acceptance.link_up_timeout_s).carry_out()
        except StoreFailed as broken:
            raise await self._unnoted(goal, error, broken) from error
        if self.taken_over:
            undone = replace(undone, evidence=f"{undone.evidence}; what was adopted stays yours: {self.taken_over}")
        raise verdict(context, error, undone, moved=bool(context.written) or not goal.moving) from error

    async def _unnoted(self, goal: Target, error: BaseException, broken: StoreFailed) -> HandsNeeded:
        """No step back can be noted, so none is taken: hosts leave by themselves what nobody confirms. Say where things stand."""
        lines = await finish(progress_lines(self.context.session, goal.change))
        first = str(error) if isinstance(error, TestbedError) else f"{type(error).__name__}: {error}"
        words = first if first == str(broken) else f"{first}\n{broken}"
        left = (f"see that {self.context.store.path} can be written again; testbed status says then how far it came", *lines)
        words += "\nnothing is done that cannot be noted, so nothing was taken back; left for hands:"
        return HandsNeeded(words, left, hint=f"to go back: testbed rollback {self.context.run.id}")

    async def _stopped(self, goal: Target, error: BaseException) -> BaseException:
        """Bring the hosts to routes that hold, read what the devices really hold, and say both; cancelled stays cancelled."""
        safe = await finish(self._retreat())
        lines = await finish(progress_lines(self.context.session, goal.change))
        if not isinstance(error, TestbedError):
            return error
        listed = "\n".join(f"  {n}. {line}" for n, line in enumerate([*lines, f"hosts: {safe}"], 1))
        run = self.context.run.id
        return ChangeFailed(
            f"{error}\nwhere things stand now:\n{listed}",
            hint=f"{error.hint + '; ' if error.hint else ''}to go on: testbed resume {run}; to go back: testbed rollback {run}",
        )

    async def _retreat(self) -> str:
        """Bring all hosts that answer to one generation; return in words which that is, and who did not answer.

        Where nobody was confirmed they go back. Where somebody was, all rungs were climbed before: the others follow.
        """
        answers = await self.hosts.connect(sorted(self.told))  # the others may be armed by somebody else
        hellos = {h: a for h, a in answers.items() if isinstance(a, Hello)}
        trouble = [str(a).splitlines()[0] for a in answers.values() if not isinstance(a, Hello)]
        ours = {self.generation, self.drained} - {None}
        counting = [h for h, hello in hellos.items() if hello.active in ours and hello.pending_s is not None]
        drained = self.drained is not None and any(
            hello.pending_to == self.drained or (hello.active == self.drained and hello.pending_s is None)
            for hello in hellos.values()
        )
        words = "on the routes over the circuits that stayed" if drained else "back on the routes they had"
        try:
            if any(hello.active == self.generation and hello.pending_s is None for hello in hellos.values()):
                words = "on the new routes"
                await self.hosts.confirm(self.generation, counting)
            else:
                await self.hosts.disarm(hellos)
                # One that was armed may have committed since it said hello.
                again = await self.hosts.connect(hellos)
                late = {h for h, a in again.items() if isinstance(a, Hello) and a.active == self.generation}
                if back := sorted({*counting, *late}):
                    await self.hosts.revert(back)
        except TestbedError as error:
            trouble.append(str(error).splitlines()[0])
        if trouble:
            wait = self.plan.transition.revert_after_s
            words += f"; not all answer ({'; '.join(trouble[:3])}): what they did not confirm they take back within {wait:g} s"
        return words
