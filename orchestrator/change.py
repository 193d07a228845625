"""One change of a lab, carried out: bringing a plan up, and leaving. Every effect is journalled before it happens."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import sys
import time
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from drivers.api import CircuitSwitch, JobQueue
from optics import (
    Change,
    ChangeFailed,
    CrossConnect,
    DeviceName,
    HostName,
    HostPort,
    Infeasible,
    NotVerified,
    Outcome,
    Progress,
    Setting,
    SpectralRoute,
    TestbedError,
    TimedOut,
)
from orchestrator import jobs
from orchestrator.equalise import ROUNDS, equalise
from orchestrator.hosts import Committed, Hello
from orchestrator.light import Reading, keep
from orchestrator.lightpath import among, route, routes
from orchestrator.patience import SLACK, Limit
from orchestrator.plan import FixedRoute, Plan
from orchestrator.planfile import read_plan
from orchestrator.recorder import Recorder
from orchestrator.reports import DownReport, EqualiseReport, JobStatus, Rung, UpReport
from orchestrator.rules import Macs, Route, Rules, drain_rules, rules
from orchestrator.samples import quiet, sampled_ports
from orchestrator.session import Observation, Session
from orchestrator.store import Run, Step, Store, lab_of
from orchestrator.story import Times, record_rungs, tell
from orchestrator.target import (
    Target,
    dark_time_scale,
    diff,
    expected_dark_ms,
    link_data,
    path_data,
    per_device,
    short,
    slowest,
    sort_key,
    switching_s,
    target,
)
from orchestrator.telemetry.progress import counted, scaled_text
from orchestrator.transition import Held, Transition, transition
from orchestrator.verify import check_light, check_link, ladder, pairs_of, receivers

T = TypeVar("T")

SLOW_S = 5.0
"""A change that devices need longer for (s) is a robot's: nobody counts its milliseconds, and the deadline makes room for it."""


@dataclass
class Context:
    """What a change works with. slice: the owner's part of the lab, as the store knows it; its plan, circuits and job are ours."""

    session: Session
    store: Store
    run: Run
    slice: str
    recorder: Recorder
    run_dir: Path
    timeout_s: float
    limit: Limit | None = None

    @property
    def key(self) -> str:
        """The lab, as the store knows it."""
        return lab_of(self.slice)

    def next_generation(self) -> int:
        """A number for a set of host routes of ours."""
        return self.store.next_generation(self.key, self.slice.partition("/")[2], self.run.id)

    def ours(self) -> frozenset[int]:
        """The sets of host routes that are ours; a host that runs any other one follows somebody else."""
        owner = self.slice.partition("/")[2]
        return frozenset(number for number, whose in self.store.generations(self.key).items() if whose.owner == owner)

    def need(self, seconds: float, what: str) -> None:
        """Stretch the deadline for work known to take `seconds` (s). Raises: TimedOut - the operator allowed less."""
        if self.limit is not None:
            self.limit.need(seconds, what)
            self.timeout_s = max(self.timeout_s, self.limit.timeout_s)


async def finish(work: Awaitable[T]) -> T:
    """Await `work` to its end even if we are cancelled meanwhile (a half-sent change is the worst state), then be cancelled."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])  # a second cancellation ends this wait at once
        raise


class Start:
    """The moment all devices begin: when each has read what it needs. If one cannot, none begins and nothing is changed."""

    def __init__(self, devices: int) -> None:
        self._missing = devices
        self._open = asyncio.Event()
        self._failed = False

    async def apply(self, device: CircuitSwitch, change: Change) -> Outcome:
        """Apply `change` with the others. Raises: as `CircuitSwitch.apply`; NotBegun - another device could not even be read."""
        arrived = False

        def arrive() -> None:
            nonlocal arrived
            if not arrived:
                arrived = True
                self._missing -= 1
                if not self._missing:
                    self._open.set()

        async def ready() -> None:
            arrive()
            await self._open.wait()
            if self._failed:
                raise NotBegun(f"{device.name}: not begun")

        try:
            return await device.apply(change, ready)
        except BaseException:
            self._failed = self._failed or not self._open.is_set()
            raise
        finally:
            arrive()


class NotBegun(TestbedError):
    """The device was read but not changed, because another one could not be."""


@contextmanager
def undisturbed(expected_s: float = 0.0) -> Iterator[None]:
    """Keep the interpreter from pausing meanwhile: no garbage collection, and threads give way within half a millisecond.

    Not for a change expected to take longer than `SLOW_S`: a robot does not notice, and garbage of minutes would pile up.
    """
    if expected_s > SLOW_S:
        yield
        return
    interval = sys.getswitchinterval()
    gc.disable()
    sys.setswitchinterval(0.0005)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        gc.enable()


async def move_light(context: Context, change: Transition) -> dict[DeviceName, Outcome]:
    """Apply every device's change, all devices at once; each step is on disk before its first byte is sent.

    Raises: ChangeFailed - naming every setting that is not as wanted and every device that gave no report.
    """
    outcomes, problems = await tell_devices(context, change.changes, "switch")
    if problems:
        raise ChangeFailed("\n".join(problems))
    return outcomes


async def tell_devices(
    context: Context, wanted: Mapping[DeviceName, Change], phase: str
) -> tuple[dict[DeviceName, Outcome], list[str]]:
    """As `move_light`; what is not as wanted is returned beside the outcomes instead of raised."""
    steps = context.run.plan_all(
        ("device", d, _words(c), _data(c.remove, c.add), _data(c.add, c.remove)) for d, c in wanted.items()
    )
    context.store.own(context.slice, context.run.id, (s for c in wanted.values() for s in c.add))
    context.run.begin_all(steps)
    # Whoever cancels us meanwhile finds every step ended in the store: the devices' answers are not thrown away.
    return await finish(_answers(context, wanted, steps, phase))


async def _answers(
    context: Context, wanted: Mapping[DeviceName, Change], steps: Sequence[Step], phase: str
) -> tuple[dict[DeviceName, Outcome], list[str]]:
    """Ask all devices at once and note every answer."""
    start = Start(len(wanted))
    devices, lab = context.session.devices, context.session.lab
    asked_all = (start.apply(devices[d], c) for d, c in wanted.items())
    expected_s = max((switching_s(c, devices[d].traits) for d, c in wanted.items()), default=0.0)
    with undisturbed(expected_s), watched(context, wanted, phase):
        answers = await asyncio.gather(*asked_all, return_exceptions=True)
    outcomes: dict[DeviceName, Outcome] = {}
    problems: list[str] = []
    faults: list[BaseException] = []
    for step, (device, asked), answer in zip(steps, wanted.items(), answers, strict=True):
        if isinstance(answer, Outcome):
            outcomes[device] = answer
            step.result({"writes": answer.writes, "failed": {short(s): why for s, why in answer.failed.items()}})
            step.end("; ".join(answer.failed.values()) if answer.failed else None)
            # What it does not hold is nobody's: somebody else may use those ports next.
            there = routes(answer.observed)
            context.store.disown(context.slice, (s for s in asked.remove | asked.add if route(s) not in there))
            scale = lab.time_scale(device)
            context.recorder.part("device", device, phase, answer.sent_ns, answer.settled_ns, _words(asked), scale)
            failed = sorted(answer.failed.items(), key=lambda item: sort_key(item[0]))
            problems += [f"{device}: {short(s)}: {why}" for s, why in failed]
            continue
        step.end(answer)
        if isinstance(answer, NotBegun):
            there = routes(asked.remove)  # a route that is given another attenuation is ours as it was
            context.store.disown(context.slice, (s for s in asked.add if route(s) not in there))
        elif isinstance(answer, TestbedError):
            problems.append(str(answer))
        else:
            faults.append(answer)
    if faults:
        raise faults[0]
    return outcomes, problems


@contextmanager
def watched(context: Context, wanted: Mapping[DeviceName, Change], phase: str) -> Iterator[None]:
    """Show and journal how far slow devices are while the body waits for them."""
    recorder, lab = context.recorder, context.session.lab
    total = sum(len(c.remove) + len(c.add) for c in wanted.values())
    done: dict[DeviceName, Progress] = {}
    begun: dict[DeviceName, int] = {}

    def told(progress: Progress) -> None:
        device, now = progress.device, time.monotonic_ns()
        before = done.get(device)
        if progress.done > (before.done if before else 0):
            words = f"{progress.done} of {progress.total}" + (f": {progress.words}" if progress.words else "")
            recorder.part("device", device, "move", begun.get(device, now), now, words, lab.time_scale(device))
            begun[device] = now
        done[device] = progress
        moves = sum(p.done for p in done.values())
        words = "  ".join(progress_words(p, lab.time_scale(d)) for d, p in sorted(done.items()))
        recorder.progress.update(phase, moves, max(sum(p.total for p in done.values()), moves), words)

    slow = {d: device for d in wanted if isinstance(device := context.session.devices[d], JobQueue)}
    before = {d: device.told for d, device in slow.items()}
    now = time.monotonic_ns()
    begun.update(dict.fromkeys(slow, now))
    for device in slow.values():
        device.told = told
    if slow:
        recorder.progress.update(phase, 0, total, ", ".join(sorted(slow)))
    try:
        yield
    finally:
        for d, device in slow.items():
            device.told = before[d]


def progress_words(progress: Progress, time_scale: float) -> str:
    """`rome1 move 3 of 24, 21 s left`, the time also as a real device's where the device runs faster."""
    words = f"{progress.device} move {min(progress.done + 1, progress.total)} of {progress.total}"
    return words if progress.eta_s is None else f"{words}, {scaled_text(progress.eta_s, time_scale)} left"


def _words(change: Change) -> str:
    return f"-{len(change.remove)} +{len(change.add)}"


def _settings_word(goal: Target) -> str:
    """What the plan's settings are called: all of a kind, or just settings."""
    kinds = {type(x) for circuit in goal.circuits for x in circuit.path}
    return "cross-connects" if kinds == {CrossConnect} else "spectral routes" if kinds == {SpectralRoute} else "settings"


def _data(remove: Iterable[Setting], add: Iterable[Setting]) -> dict[str, list[str]]:
    return {"remove": [short(s) for s in sorted(remove, key=sort_key)], "add": [short(s) for s in sorted(add, key=sort_key)]}


def rules_sha(wanted: Mapping[HostName, Rules]) -> str:
    """A short name for what all hosts are told, the same for the same rules."""
    text = "\n".join(f"{host} {rule}" for host, ours in sorted(wanted.items()) for rule in sorted(map(str, ours)))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Bringing:
    """`up`: from what is to the plan."""

    def __init__(self, context: Context, plan: Plan, text: str) -> None:
        self.context, self.plan, self.text = context, plan, text
        self.lab = context.session.lab
        self.hosts = context.session.hosts
        self.current = context.store.current(context.slice)
        self.touched = False
        self.switching_s = 0.0
        self.generation = 0
        self.drained: int | None = None
        self.draining: tuple[HostName, ...] = ()

    async def carry_out(self, *, launch_job: bool) -> UpReport:
        """Do it. Raises: as `orchestrator.engine.up`."""
        context, recorder = self.context, self.context.recorder
        seen = await self._observe()
        with recorder.phase("plan") as phase:
            goal = target(self.plan, self.lab, seen.settings, context.store.owned(context.slice))
            macs = self.hosts.macs()
            wanted = rules(goal.links, self.lab, macs, self.plan.routes, self.plan.rings)
            sha = rules_sha(wanted)
            kept, removed, made = (sum(map(len, h.values())) for h in (goal.change.kept, goal.change.removed, goal.change.made))
            phase.detail = f"{len(goal.links)} links: {kept} {_settings_word(goal)} kept, {removed} broken, {made} made"
        if not goal.moving and self._hosts_follow(seen.hellos, wanted, sha):
            return await self._nothing_to_do(goal, seen, launch_job=launch_job)
        self.switching_s = self._make_time(goal)
        drain = self._drain_rules(goal, seen, macs)
        # In the order of use: hosts drop what was staged before the generation they run.
        self.drained = context.next_generation() if drain else None
        self.draining = tuple(sorted(drain))
        self.generation = generation = context.next_generation()
        await self._stage(wanted, drain)
        times = Times()
        try:
            async with sampled_ports(self.hosts, recorder.journal) as sampling:
                times = await self._switch(goal, wanted, generation, sampling)
                rungs = await self._verify(goal, times)
                times.verified_ns = time.monotonic_ns()
                await self.hosts.confirm(generation, wanted)
                ours = context.ours()
                if leaving := [h for h, hello in seen.hellos.items() if h not in wanted and hello.active in ours]:
                    await self.hosts.clear(leaving)
        except (TestbedError, asyncio.CancelledError) as error:
            if not self.touched:
                raise
            raise await self._failed(goal, error) from error
        context.store.set_current(
            context.slice,
            context.run.id,
            plan_name=self.plan.name,
            plan_sha=self.plan.sha256,
            plan_text=self.text,
            links={
                "rules_sha": sha,
                "links": [link_data(link) for link in goal.links],
                "paths": [path_data(circuit) for circuit in goal.circuits if len(circuit.path) > 1],
            },
            generation=generation,
        )
        balance = await self._equalise(goal, self._now_held(goal, times))
        job = await self._job(launch=launch_job, changed=True)
        figures = tell(recorder, self.lab, goal, self.plan, times)
        ok, total = next((pairs_of(r) for r in rungs if r.name == "forwarding"), (0, 0))
        return UpReport(
            run=context.run.id,
            plan=self.plan.name,
            lab=self.lab.name,
            phases=tuple(recorder.phases),
            parts=tuple(recorder.parts),
            diff=diff(goal.change, context.session.devices, self.lab),
            writes=sum(o.writes for o in times.outcomes.values()) + (balance.writes if balance else 0),
            dark_ms_expected=expected_dark_ms(goal.change, context.session.devices),
            dark_ms=figures.dark_ms,
            link_ms=figures.link_ms,
            commit_ms=figures.commit_ms,
            pairs_ok=ok,
            pairs_total=total,
            job=job,
            notes=(*self.plan.warnings, *(balance.notes if balance else ())),
            undo=self._undo(),
            dark_time_scale=dark_time_scale(goal.change, context.session.devices, self.lab),
            equalise=balance,
        )

    def _make_time(self, goal: Target) -> float:
        """Seconds the slowest device needs; the deadline makes room for them. Raises: TimedOut - the operator allowed less."""
        found = slowest(goal.change, self.context.session.devices)
        if found is None or found[1] <= SLOW_S:
            return 0.0
        device, seconds = found
        change = goal.change.changes[device]
        self.context.need(seconds, f"{device} ({len(change.remove) + len(change.add)} moves)")
        return seconds

    def _now_held(self, goal: Target, times: Times) -> Held:
        """What the devices hold after the change, by their own last reports."""
        observed = {d: goal.change.kept[d] | goal.change.foreign[d] for d in goal.change.kept}
        return observed | {d: outcome.observed for d, outcome in times.outcomes.items()}

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
            outcomes, problems = await tell_devices(context, wanted, "equalise")
            if len(outcomes) < len(wanted):
                raise ChangeFailed("\n".join(problems))
            return outcomes

        with context.recorder.phase("equalise") as phase:
            try:
                found = await equalise(devices, self.lab, goal.circuits, held, accept.target_dbm, accept.tolerance_db, apply)
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
            seen = (await session.observe()).complete()
            phase.detail = f"{counted(len(seen.settings), 'device')}, {counted(len(seen.hellos), 'host')}"
        if stale := self.hosts.unprovisioned():
            with recorder.phase("provision", f"{len(stale)} hosts, through Ansible") as phase:
                changed = await self.hosts.provision(stale)
                phase.detail = f"{len(changed)} hosts, through Ansible"
                seen = replace(seen, hellos=dict(self.hosts.hellos))
        return seen

    def _hosts_follow(self, hellos: Mapping[HostName, Hello], wanted: Mapping[HostName, Rules], sha: str) -> bool:
        """Every host runs the generation that carries exactly these rules, and owes no revert."""
        known = self.current
        if known is None or not isinstance(known.links, dict) or known.links.get("rules_sha") != sha:
            return False
        return all(
            hello.active == (known.generation if host in wanted else None) and hello.pending_s is None
            for host, hello in hellos.items()
        )

    async def _nothing_to_do(self, goal: Target, seen: Observation, *, launch_job: bool) -> UpReport:
        """Devices and hosts are as planned: look at the carriers, launch what is to be launched, write nothing to any device."""
        ok, _, evidence = await check_link(seen.hellos, goal.links)
        if not ok:
            words = "\n".join(evidence)
            raise NotVerified(
                f"the devices hold {self.plan.name}, but not every port has light:\n{words}",
                hint="testbed verify says which side is dark",
            )
        recorder = self.context.recorder
        balance = await self._equalise(goal, seen.settings)
        job = await self._job(launch=launch_job, changed=False)
        writes = balance.writes if balance else 0
        return UpReport(
            run=self.context.run.id,
            plan=self.plan.name,
            lab=self.lab.name,
            nothing_to_do=not writes,
            phases=tuple(recorder.phases),
            parts=tuple(recorder.parts),
            diff=diff(goal.change, self.context.session.devices, self.lab),
            writes=writes,
            job=job,
            notes=(*self.plan.warnings, *(balance.notes if balance else ())),
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
        with context.recorder.phase("stage", f"{count} routes on {len(hosts)} hosts, through Ansible") as phase:
            step = context.run.step("host", "all", "stage", {"generations": sorted(generations)}, {"clear": sorted(generations)})
            with step:
                step.result({"hosts": sorted(await self.hosts.stage(generations))})
            also = " and a generation to drain onto" if drain else ""
            phase.detail = f"{count} routes{also} on {len(hosts)} hosts"

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

    async def _switch(self, goal: Target, wanted: Mapping[HostName, Rules], generation: int, sampling: asyncio.Event) -> Times:
        """Drain, arm, break and make on all devices at once, hear carriers and commits."""
        context, recorder, hosts = self.context, self.context.recorder, self.hosts
        policy, patience = self.plan.transition, self.plan.acceptance.link_up_timeout_s
        times = Times()
        recorder.reconfig_id = f"{context.run.id}/1"
        self.touched = True
        what = {"generation": generation}
        if not goal.moving:
            with recorder.phase("routes") as phase, context.run.step("host", "all", "commit", what):
                times.committed = dict(await hosts.commit(generation, wanted, policy.revert_after_s))
                phase.detail = f"committed on {len(times.committed)} hosts"
            return times
        # A device that a run before us left settling may have finished while we staged: no carrier would come anew.
        now = (await context.session.observe(hosts=False)).held
        rising = goal.rising(now)
        heard = hosts.subscribe()  # before the light moves: a host may commit before we ask
        sampling.clear()
        with recorder.phase("arm") as phase, context.run.step("host", "all", "arm", what):
            # The first host may commit long before a robot has made its last move.
            revert_s = policy.revert_after_s + patience + SLACK * self.switching_s
            await hosts.arm(generation, rising, revert_after_s=revert_s, deadline_s=context.timeout_s)
            gc.collect()  # from here on every millisecond is one of a detour, and then of darkness
            phase.detail = f"{len(rising)} hosts commit generation {generation} by themselves when their light is there"
        if self.drained is not None:
            gone = [link for link in goal.old_links if link not in set(goal.kept_links)]
            with recorder.phase("drain") as phase, context.run.step("host", "all", "drain", {"generation": self.drained}):
                await hosts.commit(self.drained, self.draining, policy.revert_after_s)
                # Confirmed while the queues run dry: once the light moves, the routes before are worse than these.
                waited, _ = await asyncio.gather(quiet(hosts, receivers(gone)), hosts.confirm(self.drained, self.draining))
                phase.detail = f"traffic off {len(gone)} links; quiet after {waited * 1e3:.0f} ms"
        with recorder.phase("switch") as phase:
            times.outcomes = await move_light(context, goal.change)
            phase.detail = "  ".join(f"{d} -{len(c.remove)} +{len(c.add)}" for d, c in goal.change.changes.items())
            if self.switching_s:
                slow = dark_time_scale(goal.change, context.session.devices, self.lab)
                phase.detail += f"   {scaled_text(self.switching_s, slow)} expected"
        with recorder.phase("link") as phase:
            answers = await hosts.wait_committed(generation, rising, patience, heard)
            late = [str(a) for a in answers.values() if isinstance(a, TestbedError)]
            if late:
                raise TimedOut("\n".join([*late, *await self._dark(goal)]), hint="testbed verify repeats the look at the light")
            times.committed = {h: a for h, a in answers.items() if isinstance(a, Committed)}
            phase.detail = f"{sum(map(len, rising.values()))} ports up, {len(rising)} hosts committed"
        sampling.set()
        if others := [h for h in wanted if h not in rising]:
            with recorder.phase("routes") as phase, context.run.step("host", "all", "commit", what):
                times.committed |= await hosts.commit(generation, others, policy.revert_after_s)
                phase.detail = f"committed on {len(others)} more hosts"
        return times

    async def _dark(self, goal: Target) -> list[str]:
        """Which ports got no light, and where it was lost as far as the switches' meters tell."""
        hellos = {h: a for h, a in (await self.hosts.connect()).items() if isinstance(a, Hello)}
        _, _, ports = await check_link(hellos, goal.links)
        _, _, lost = await check_light(self.context.session, goal.circuits)
        return [*ports, *lost]

    async def _verify(self, goal: Target, times: Times) -> tuple[Rung, ...]:
        """Climb the ladder. Raises: NotVerified - with every failed rung's evidence."""
        session, recorder = self.context.session, self.context.recorder
        with recorder.phase("verify") as phase:
            hellos = await self.hosts.greet()
            held = self._now_held(goal, times)
            rungs = await ladder(session, self.plan, goal.links, goal.circuits, held, hellos, keep=self._keep, power=False)
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
        )

    def _undo(self) -> str:
        if self.current is None:
            return "testbed down"
        before = self.context.run_dir / "previous-plan.json"
        before.write_text(self.current.plan_text, encoding="utf-8")
        return f"testbed up --topology {before}"

    async def _failed(self, goal: Target, error: BaseException) -> BaseException:
        """Bring the hosts to routes that hold, read what the devices really hold, and say both; cancelled stays cancelled."""
        safe = await finish(self._retreat())
        lines = await finish(affairs(self.context.session, goal.change))
        if not isinstance(error, TestbedError):
            return error
        listed = "\n".join(f"  {n}. {line}" for n, line in enumerate([*lines, f"hosts: {safe}"], 1))
        undo = self._undo()
        return ChangeFailed(
            f"{error}\nwhere things stand now:\n{listed}",
            hint=f"{error.hint + '; ' if error.hint else ''}to go on, run the same command again; to go back: {undo}",
        )

    async def _retreat(self) -> str:
        """Bring all hosts that answer to one generation; return in words which that is, and who did not answer.

        Where nobody was confirmed they go back. Where somebody was, all rungs were climbed before: the others follow.
        """
        answers = await self.hosts.connect()
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


async def affairs(session: Session, change: Transition) -> list[str]:
    """What is done and what is not, read from the devices now, one line per device."""

    async def line(device: DeviceName) -> str:
        try:
            held = await session.devices[device].read()
        except TestbedError as error:
            return f"{device}: cannot be read ({str(error).splitlines()[0]}): look at it"
        made, removed = change.made[device], change.removed[device]
        there, still = among(made, held), among(removed, held)
        left = [f"{short(s)} not made" for s in sorted(made - there, key=sort_key)]
        left += [f"{short(s)} not removed" for s in sorted(still, key=sort_key)]
        left += [f"{short(s)} lost" for s in sorted(change.kept[device] - among(change.kept[device], held), key=sort_key)]
        done = f"{len(there)}/{len(made)} made, {len(removed - still)}/{len(removed)} removed"
        return f"{device}: {done}" + (f": {', '.join(left[:6])}{' ...' if len(left) > 6 else ''}" if left else "")

    return list(await asyncio.gather(*(line(d) for d in change.changes)))


class Leaving:
    """`down`: from what is to nothing of ours."""

    def __init__(self, context: Context) -> None:
        self.context = context

    async def carry_out(self) -> DownReport:
        """Stop the job, clear the hosts' generations, take down our circuits; what cannot be done is listed, not raised."""
        context, recorder, store = self.context, self.context.recorder, self.context.store
        session, lab = context.session, context.session.lab
        with recorder.phase("observe") as phase:
            seen = await session.observe()
            phase.detail = f"{counted(len(seen.settings), 'device')}, {counted(len(seen.hellos), 'host')}"
        left = [str(e) for e in seen.errors.values()]
        ours = per_device(store.owned(context.slice))
        observed = dict(seen.settings)
        reachable = {d: held for d, held in ours.items() if d in observed}
        change = transition(observed, {}, reachable)
        mine = context.ours()
        following = [h for h, hello in seen.hellos.items() if hello.active in mine or (hello.active is None and hello.staged)]
        others = [h for h, hello in seen.hellos.items() if hello.active is not None and hello.active not in mine]
        notes = (f"routes of somebody else stay on {', '.join(others)}",) if others else ()
        job = ""
        try:
            job = await jobs.leave(session, store, context.slice, recorder, context.run_dir.parent)
        except TestbedError as error:
            left.append(f"job: {error}")
        if not change and not following and not job:
            self._forget(left)
            return DownReport(
                context.run.id,
                lab.name,
                nothing_to_do=not left,
                phases=tuple(recorder.phases),
                hosts_restored=len(seen.hellos),
                hosts_total=len(lab.hosts),
                left=tuple(left),
                notes=notes,
            )
        restored = len(seen.hellos)
        if following:
            try:
                with recorder.phase("routes") as phase, context.run.step("host", "all", "clear", following):
                    await session.hosts.clear(following)
                    phase.detail = f"cleared on {len(following)} hosts"
            except TestbedError as error:
                restored -= len(following)
                left += str(error).splitlines()
        writes = 0
        if change:
            with recorder.phase("switch") as phase:
                try:
                    if (found := slowest(change, session.devices)) is not None and found[1] > SLOW_S:
                        context.need(found[1], f"{found[0]}")
                    outcomes = await move_light(context, change)
                    writes = sum(o.writes for o in outcomes.values())
                except ChangeFailed as error:
                    left += str(error).splitlines()
                phase.detail = f"{sum(map(len, change.removed.values()))} circuits taken down"
        # Settings we own but no device holds any more (a device lost power, somebody's hands) are nobody's.
        store.disown(context.slice, [s for d, held in reachable.items() for s in held - among(held, observed[d])])
        self._forget(left)
        return DownReport(
            context.run.id,
            lab.name,
            phases=tuple(recorder.phases),
            diff=diff(change, session.devices, lab),
            writes=writes,
            hosts_restored=restored,
            hosts_total=len(lab.hosts),
            job_stopped=job,
            left=tuple(left),
            notes=notes,
        )

    def _forget(self, left: list[str]) -> None:
        """Note that no plan is up: at the latest when no light of ours is left, whatever else is left for hands."""
        if not left or not self.context.store.owned(self.context.slice):
            self.context.store.clear_current(self.context.slice)
