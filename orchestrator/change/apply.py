"""Changes applied to devices: all at once, every step on disk before its first byte, every answer
kept despite interrupts.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple, TypeAlias, TypeVar

from drivers.api import CircuitSwitch, JobQueue
from optics import (
    Change,
    ChangeFailed,
    DeviceName,
    Outcome,
    Progress,
    Setting,
    TestbedError,
)
from optics.plain import scaled_text
from optics.values import short, sort_key
from orchestrator.change.context import Context
from orchestrator.fabric.lightpath import routes, without_attenuation
from orchestrator.fabric.transition import Transition
from orchestrator.hosts.failures import one_error
from orchestrator.plan.target import SLOW_S, switching_s
from orchestrator.store.run import Step

T = TypeVar("T")
Before: TypeAlias = Callable[[], Awaitable[None]]
"""What is done at the last moment, when all devices are ready and none was sent anything."""


async def finish(work: Awaitable[T]) -> T:
    """Await `work` to its end even if cancelled meanwhile (a half-sent change is the worst state),
    then raise the cancellation.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])  # a second cancellation ends this wait at once
        raise


class Start:
    """The barrier at which all devices begin, once each has read what it needs. If one cannot, none
    begins and nothing changes.
    """

    def __init__(
        self,
        devices: int,
        written: set[DeviceName],
        before: Before | None = None,
        unanswered: dict[DeviceName, float] | None = None,
    ) -> None:
        self._missing = devices
        self._written, self._unanswered = written, {} if unanswered is None else unanswered
        self._before = before
        self._running: asyncio.Future[None] | None = None
        self._open = asyncio.Event()
        self._failed = False
        self.last: DeviceName = ""
        """The device that came to the barrier last."""

    def _begin(self) -> None:
        if self._before is None or self._failed:
            self._open.set()
            return
        self._running = asyncio.ensure_future(self._before())
        self._running.add_done_callback(lambda _: self._open.set())

    async def apply(self, device: CircuitSwitch, change: Change) -> Outcome:
        """Apply `change` with the others. Raises: as `CircuitSwitch.apply`; NotBegun - another
        device could not even be read.
        """
        arrived = False

        def arrive() -> None:
            nonlocal arrived
            if not arrived:
                arrived = True
                self.last = device.name
                self._missing -= 1
                if not self._missing:
                    self._begin()

        async def ready() -> None:
            arrive()
            await self._open.wait()
            if self._failed:
                raise NotBegun(f"{device.name}: not begun")
            if self._running is not None:
                self._running.result()  # raises what `before` raised
            self._written.add(device.name)
            self._unanswered[device.name] = time.monotonic()

        try:
            outcome = await device.apply(change, ready)
            self._unanswered.pop(device.name, None)
            return outcome
        except BaseException:
            self._failed = self._failed or not self._open.is_set()
            if device.name in self._unanswered:  # the last command may have been sent just now
                self._unanswered[device.name] = time.monotonic()
            raise
        finally:
            arrive()


class NotBegun(TestbedError):
    """The device was read but not changed, because another one could not be."""


@contextmanager
def undisturbed(expected_s: float = 0.0) -> Iterator[None]:
    """Keep the interpreter from pausing, and other processes from being scheduled first.

    No garbage collection; threads yield within half a millisecond; this thread, which talks to the
    devices, runs before all ordinary processes of the machine if its user may do that (root,
    CAP_SYS_NICE). Not for a change expected to take longer than `SLOW_S`: a robot is too slow to
    benefit, and minutes of garbage would pile up.
    """
    if expected_s > SLOW_S:
        yield
        return
    interval = sys.getswitchinterval()
    policy, share = os.sched_getscheduler(0), os.sched_getparam(0)
    gc.disable()
    sys.setswitchinterval(0.0005)
    with suppress(OSError):
        # an emulated lab's ranks have 1
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(2))
    try:
        yield
    finally:
        with suppress(OSError):
            os.sched_setscheduler(0, policy, share)
        sys.setswitchinterval(interval)
        gc.enable()


async def switch(
    context: Context, change: Transition, phase: str = "switch", before: Before | None = None
) -> dict[DeviceName, Outcome]:
    """Apply every device's change, all devices at once; each step is on disk before its first byte
    is sent.

    before: done when all devices are ready, and only then; it raises nothing.

    Raises: ChangeFailed - names every setting that is not as wanted and every device without a
    report. If the devices' errors kept all of them from beginning, that error: nothing was changed.
    """
    applied = await apply_changes(context, change.changes, phase, before=before)
    if applied.errors and not context.written & change.changes.keys():
        raise one_error(applied.errors)
    if applied.problems:
        raise ChangeFailed("\n".join(applied.problems))
    return applied.outcomes


class Applied(NamedTuple):
    """What the devices answered. problems: one line for each setting that is not as wanted and each
    device without a report.
    """

    outcomes: dict[DeviceName, Outcome]
    problems: list[str]
    errors: dict[DeviceName, TestbedError]


async def apply_changes(
    context: Context,
    wanted: Mapping[DeviceName, Change],
    phase: str,
    *,
    together: bool = True,
    before: Before | None = None,
) -> Applied:
    """As `switch`, but what is not as wanted is returned with the outcomes instead of raised.

    together: none begins before all are ready; else each device does what it can. Raises: Interlock
    - nothing was begun.
    """
    if context.interlocks is not None:
        await context.interlocks.check(wanted)
    steps = context.run.plan_all(
        ("device", d, _text(c), _data(c.remove, c.add), _data(c.add, c.remove))
        for d, c in wanted.items()
    )
    context.run.begin_all(steps)
    context.store.own(context.tenancy, context.run.id, (s for c in wanted.values() for s in c.add))
    # If cancelled meanwhile, every step is still ended in the store: the devices' answers are not
    # lost.
    return await finish(_answers(context, wanted, steps, phase, together, before))


async def _answers(
    context: Context,
    wanted: Mapping[DeviceName, Change],
    steps: Sequence[Step],
    phase: str,
    together: bool,
    before: Before | None,
) -> Applied:
    """Ask all devices at once and record every answer."""
    start = Start(len(wanted), context.written, before, context.unanswered)
    devices, lab = context.session.devices, context.session.lab
    starts = {
        d: start if together else Start(1, context.written, unanswered=context.unanswered)
        for d in wanted
    }
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
            step.result(
                {
                    "writes": answer.writes,
                    "failed": {short(s): why for s, why in answer.failed.items()},
                }
            )
            step.end("; ".join(answer.failed.values()) if answer.failed else None)
            # A setting that the device does not hold has no owner: others may use those ports next.
            existing = routes(answer.observed)
            context.disown(
                s for s in asked.remove | asked.add if without_attenuation(s) not in existing
            )
            scale = lab.time_scale(device)
            context.recorder.part(
                "device", device, phase, answer.sent_ns, answer.settled_ns, _text(asked), scale
            )
            failed = sorted(answer.failed.items(), key=lambda item: sort_key(item[0]))
            problems += [f"{device}: {short(s)}: {why}" for s, why in failed]
            continue
        step.end(answer)
        if isinstance(answer, NotBegun) or (
            isinstance(answer, TestbedError) and device not in context.written
        ):
            existing = routes(asked.remove)  # a route whose attenuation changes stays owned
            context.disown(s for s in asked.add if without_attenuation(s) not in existing)
        if isinstance(answer, NotBegun):
            continue
        if isinstance(answer, TestbedError):
            problems.append(str(answer))
            errors[device] = answer
        else:
            faults.append(answer)
    if faults:
        raise faults[0]
    return Applied(outcomes, problems, errors)


@contextmanager
def watched(context: Context, wanted: Mapping[DeviceName, Change], phase: str) -> Iterator[None]:
    """Show and journal the progress of slow devices while the body waits for them."""
    recorder, lab = context.recorder, context.session.lab
    total = sum(len(c.remove) + len(c.add) for c in wanted.values())
    done: dict[DeviceName, Progress] = {}
    begun: dict[DeviceName, int] = {}

    def on_progress(progress: Progress) -> None:
        device, now = progress.device, time.monotonic_ns()
        before = done.get(device)
        if progress.done > (before.done if before else 0):
            text = f"{progress.done} of {progress.total}" + (
                f": {progress.message}" if progress.message else ""
            )
            recorder.part(
                "device", device, "move", begun.get(device, now), now, text, lab.time_scale(device)
            )
            begun[device] = now
        done[device] = progress
        moves = sum(p.done for p in done.values())
        text = "  ".join(progress_text(p, lab.time_scale(d)) for d, p in sorted(done.items()))
        recorder.progress.update(
            phase, moves, max(sum(p.total for p in done.values()), moves), text
        )

    slow = {d: device for d in wanted if isinstance(device := context.session.devices[d], JobQueue)}
    before = {d: device.on_progress for d, device in slow.items()}
    now = time.monotonic_ns()
    begun.update(dict.fromkeys(slow, now))
    for device in slow.values():
        device.on_progress = on_progress
    if slow:
        recorder.progress.update(phase, 0, total, ", ".join(sorted(slow)))
    try:
        yield
    finally:
        for d, device in slow.items():
            device.on_progress = before[d]


def progress_text(progress: Progress, time_scale: float) -> str:
    """`rome1 move 3 of 24, 21 s left`; also the time on a real device if this one is
    time-scaled.
    """
    text = f"{progress.device} move {min(progress.done + 1, progress.total)} of {progress.total}"
    return (
        text
        if progress.eta_s is None
        else f"{text}, {scaled_text(progress.eta_s, time_scale)} left"
    )


def _text(change: Change) -> str:
    return f"-{len(change.remove)} +{len(change.add)}"


def _data(remove: Iterable[Setting], add: Iterable[Setting]) -> dict[str, list[str]]:
    return {
        "remove": [short(s) for s in sorted(remove, key=sort_key)],
        "add": [short(s) for s in sorted(add, key=sort_key)],
    }
