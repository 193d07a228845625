"""Telling the devices: all at once, every step on disk before its first byte, every answer kept whoever interrupts us."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import time
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeVar

from drivers.api import CircuitSwitch, JobQueue
from optics import (
    Change,
    ChangeFailed,
    DeviceName,
    HostName,
    HostPort,
    Link,
    Outcome,
    Progress,
    Setting,
    TestbedError,
)
from orchestrator.audit import Who
from orchestrator.hosts import Hello
from orchestrator.hosts.failures import one_error
from orchestrator.interlock import Interlocks, rerouted
from orchestrator.lightpath import route, routes
from orchestrator.locks import Held as LockHeld
from orchestrator.patience import Limit
from orchestrator.recorder import Recorder
from orchestrator.scope import of_settings
from orchestrator.session import Session
from orchestrator.store import Run, Step, Store, lab_of
from orchestrator.target import (
    short,
    sort_key,
    stored_links,
    switching_s,
)
from orchestrator.telemetry.progress import scaled_text
from orchestrator.transition import Transition

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
    written: set[DeviceName] = field(default_factory=set)
    """Devices that were told anything: they may have changed."""
    lock: LockHeld | None = None
    interlocks: Interlocks | None = None
    adopt: tuple[str, ...] = ()
    """Circuits of others that the operator named to become ours, as he named them."""
    resumes: bool = False
    """Whether it goes on with a run that stopped on its way, which may have adopted them already."""
    who: Who | None = None
    sample_hz: float = 10.0
    verb: str = "up"

    @property
    def owner(self) -> str:
        return self.slice.partition("/")[2]

    def hosts(self) -> list[HostName]:
        """The hosts we hold."""
        held = self.lock.lock.scope.hosts if self.lock is not None else frozenset()
        return [host for host in self.session.lab.hosts if host in held]

    def reserve(self, settings: Iterable[Setting]) -> bool:
        """Hold the ports of these settings too; False if they were ours already. Raises: Locked - somebody else holds one."""
        return self.lock is not None and self.lock.extend(of_settings(self.session.lab, settings))

    async def allowed(
        self,
        changes: Mapping[DeviceName, Change],
        seen: Mapping[DeviceName, frozenset[Setting]],
        switched: frozenset[HostPort] = frozenset(),
    ) -> None:
        """Look at `changes` before anything is begun; `seen` is what the devices hold. Raises: Interlock.

        switched: where traffic over packet switches comes or goes (`rerouted`).
        """
        if self.interlocks is not None:
            self.interlocks.seen.update(seen)
            await self.interlocks.check(changes, switched)

    def rerouted(self, links: Iterable[Link], hellos: Mapping[HostName, Hello]) -> frozenset[HostPort]:
        """The ports of packet switches where traffic of ours comes or goes if `links` take the place of the plan's that is up."""
        current, ours = self.store.current(self.slice), self.ours()
        following = {host for host, hello in hellos.items() if hello.active in ours}
        return rerouted(stored_links(current.links) if current else (), links, self.session.lab, following)

    @property
    def key(self) -> str:
        """The lab, as the store knows it."""
        return lab_of(self.slice)

    def next_generation(self) -> int:
        """A number for a set of host routes of ours."""
        return self.store.next_generation(self.key, self.owner, self.run.id)

    def theirs(self) -> frozenset[Setting]:
        """The circuits that other owners made."""
        mine = self.slice.partition("/")[2]
        return frozenset(s for s, whose in self.store.owners(self.key).items() if whose.owner != mine)

    def ours(self) -> frozenset[int]:
        """The sets of host routes that are ours; a host that runs any other one follows somebody else."""
        return frozenset(number for number, whose in self.store.generations(self.key).items() if whose.owner == self.owner)

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

    def __init__(self, devices: int, written: set[DeviceName]) -> None:
        self._missing = devices
        self._written = written
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
            self._written.add(device.name)

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
    """Keep the interpreter from pausing meanwhile, and others from running first.

    No garbage collection; threads give way within half a millisecond; this thread, which talks to the devices, before all ordinary
    processes of the machine, where its user may have that (root, CAP_SYS_NICE). Not for a change expected to take longer than
    `SLOW_S`: a robot does not notice, and garbage of minutes would pile up.
    """
    if expected_s > SLOW_S:
        yield
        return
    interval = sys.getswitchinterval()
    policy, share = os.sched_getscheduler(0), os.sched_getparam(0)
    gc.disable()
    sys.setswitchinterval(0.0005)
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    try:
        yield
    finally:
        with suppress(OSError):
            os.sched_setscheduler(0, policy, share)
        sys.setswitchinterval(interval)
        gc.enable()


async def move_light(context: Context, change: Transition, phase: str = "switch") -> dict[DeviceName, Outcome]:
    """Apply every device's change, all devices at once; each step is on disk before its first byte is sent.

    Raises: ChangeFailed - naming every setting that is not as wanted and every device that gave no report. What a device says that
    keeps all from beginning: nothing was changed.
    """
    told = await tell_devices(context, change.changes, phase)
    if told.errors and not context.written & change.changes.keys():
        raise one_error(told.errors)
    if told.problems:
        raise ChangeFailed("\n".join(told.problems))
    return told.outcomes


class Told(NamedTuple):
    """What the devices answered. problems: a line for each setting that is not as wanted and each device that gave no report."""

    outcomes: dict[DeviceName, Outcome]
    problems: list[str]
    errors: dict[DeviceName, TestbedError]


async def tell_devices(context: Context, wanted: Mapping[DeviceName, Change], phase: str, *, together: bool = True) -> Told:
    """As `move_light`; what is not as wanted is returned beside the outcomes instead of raised.

    together: none begins before all are ready; else each device does what it can. Raises: Interlock - nothing was begun.
    """
    if context.interlocks is not None:
        await context.interlocks.check(wanted)
    steps = context.run.plan_all(
        ("device", d, _words(c), _data(c.remove, c.add), _data(c.add, c.remove)) for d, c in wanted.items()
    )
    context.run.begin_all(steps)
    context.store.own(context.slice, context.run.id, (s for c in wanted.values() for s in c.add))
    # Whoever cancels us meanwhile finds every step ended in the store: the devices' answers are not thrown away.
    return await finish(_answers(context, wanted, steps, phase, together))


async def _answers(
    context: Context, wanted: Mapping[DeviceName, Change], steps: Sequence[Step], phase: str, together: bool
) -> Told:
    """Ask all devices at once and note every answer."""
    start = Start(len(wanted), context.written)
    devices, lab = context.session.devices, context.session.lab
    starts = {d: start if together else Start(1, context.written) for d in wanted}
    asked_all = (starts[d].apply(devices[d], c) for d, c in wanted.items())
    expected_s = max((switching_s(c, devices[d].traits) for d, c in wanted.items()), default=0.0)
    with undisturbed(expected_s), watched(context, wanted, phase):
        answers = await asyncio.gather(*asked_all, return_exceptions=True)
    outcomes: dict[DeviceName, Outcome] = {}
    problems: list[str] = []
    errors: dict[DeviceName, TestbedError] = {}
    faults: list[BaseException] = []
    for step, (device, asked), answer in zip(steps, wanted.items(), answers, strict=True):
        if isinstance(answer, Outcome):
            outcomes[device] = answer
            if context.interlocks is not None:
                context.interlocks.seen[device] = answer.observed
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
        if isinstance(answer, NotBegun) or (isinstance(answer, TestbedError) and device not in context.written):
            there = routes(asked.remove)  # a route that is given another attenuation is ours as it was
            context.store.disown(context.slice, (s for s in asked.add if route(s) not in there))
        if isinstance(answer, NotBegun):
            continue
        if isinstance(answer, TestbedError):
            problems.append(str(answer))
            errors[device] = answer
        else:
            faults.append(answer)
    if faults:
        raise faults[0]
    return Told(outcomes, problems, errors)


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


def _data(remove: Iterable[Setting], add: Iterable[Setting]) -> dict[str, list[str]]:
    return {"remove": [short(s) for s in sorted(remove, key=sort_key)], "add": [short(s) for s in sorted(add, key=sort_key)]}
