"""The loop that changes the slots of a schedule: at the end of each, all devices change together,
and the hosts follow their light.

Devices that store whole maps are given all of them once and change slots by their own clock
(`StoredSlots`); the loop follows them.

Between two slot changes the hosts are notified which slot it is and when it ends: this renews the
lease by which they hold, and is all that they need from here. Everything that could be slow is done
while the light is there.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass

from optics import Change, DeviceName, HostName, Locked, Outcome, Setting, TestbedError, TimedOut
from optics.plan import Schedule
from orchestrator.background.kind import StateFile
from orchestrator.background.work import Notify, emit
from orchestrator.change.apply import NotBegun, Start, undisturbed
from orchestrator.change.context import Context
from orchestrator.results import Json
from orchestrator.services.schedule.clock import Duty, SlotClock
from orchestrator.services.schedule.goals import SlotGoal, Times, change_to, every
from orchestrator.services.schedule.points import record_slot_change
from orchestrator.services.schedule.process import ScheduleState
from orchestrator.services.schedule.stored import StoredSlots
from orchestrator.services.schedule.watching import HostWatch

LEAD_S = 0.15
"""Devices are read this long (s) before a slot ends, so that the slot change itself is one command;
less where slots are short.
"""
LEASE_PERIODS, LEASE_S = 3, 1.0
"""Hosts hold for as many slots, and this long (s) more, without hearing from the scheduler."""
REPAIR_S = 60.0
"""A device that lost its place in the schedule is tried this long (s): a reboot of an emulated one
takes seconds.
"""
STEP_S = 60.0
"""Slot changes are steps of the store together, a minute of them each: all their circuits are
recorded as the owner's before the first, so that whatever dies, the next command knows them from
what the devices hold; a step a slot would be 200 000 rows a day."""
LEAVE_S = 8.0
"""Devices that change slots by themselves are tried this long (s) to be stopped; `Kind.stop` waits
for 15 s.
"""
ARRIVE_S = 1.0
"""Hosts are waited for this long (s) beyond their light, before the schedule stops on them."""


class Late(NotBegun):
    """A slot's end was over before all devices were ready, so that none was ordered to change."""


@dataclass
class Scheduler:
    """One schedule on one lab. stored: the devices that change slots by themselves, None if each is
    given every slot.
    """

    context: Context
    schedule: Schedule
    goals: tuple[SlotGoal, ...]
    times: Times
    hosts: tuple[HostName, ...]
    file: StateFile[ScheduleState]
    notify: Notify
    watch: HostWatch
    held: dict[DeviceName, frozenset[Setting]]
    clock: SlotClock
    slot_changes: int = 0
    late: int = 0
    light_ns: int = 0
    stored: StoredSlots | None = None
    days: tuple[int, ...] = ()
    """The numbers of the slots' routes."""

    def __post_init__(self) -> None:
        self.owned = every(goal.wanted for goal in self.goals) | self.context.store.owned(
            self.context.tenancy
        )
        self.devices = self.context.session.devices
        self.duty = Duty(self.times.duty(stored=self.stored is not None))
        self._tick: asyncio.Task[None] | None = None
        self._stepped = 0.0
        self._stopping = False

    def emit(self, event: str, text: str, **fields: Json) -> None:
        """Emit one event."""
        emit(self.notify, event, text, **fields)

    def state(self, state: str, **more: object) -> None:
        """Write the state file."""
        worst, error_ms = self.watch.worst()
        where = {
            "slot": self.clock.slot,
            "slots": self.clock.slots,
            "cycle": self.clock.cycle,
            "late": self.late,
        }
        duty = {"duty": round(self.duty.share, 4), "planned_duty": round(self.duty.planned, 4)}
        self.file.now(
            state=state,
            **where,
            **duty,
            worst=worst,
            worst_ms=round(error_ms, 3),
            silent=tuple(sorted(self.watch.silent)),
            **more,
        )

    async def begin(self) -> None:
        """Make the present slot whole, and have the hosts be in it. Devices that change slots as
        they should are followed from where they are. Raises: as `repair`."""
        if not await self._adopted():
            await self.repair("")
            self.light_ns = self.light_ns or time.monotonic_ns()
            self.clock.end_at(self.light_ns + int(self.times.dwell_s * 1e9))
        await self._notified()
        self.state("switching")
        self.emit(
            "switching",
            f"slot {self.clock.slot} of {len(self.goals)}, {self.times.period_s:g} s each",
        )

    async def change_slot(self, slot_changes: int | None = None) -> None:
        """Change slots until cancelled, or so often. A slot change that has begun is completed.

        Raises: TimedOut - `late: stop` was reached. Interlock - a tag-out is in the way. Locked - a
        newer run took the lab. Other errors of a device that could not be brought to its slot.
        """
        gc.collect()
        gc.freeze()
        with undisturbed():
            while slot_changes is None or self.slot_changes < slot_changes:
                await self._next()

    async def _next(self) -> None:
        goal = self.goals[(self.clock.count + 1) % len(self.goals)]
        changes = change_to(self.held, goal, self.owned)
        if self.context.interlocks is not None:
            self.context.interlocks.seen.update(self.held)
            await self.context.interlocks.check(changes)
        self._step()
        if self.schedule.kind == "phase":
            await self._phase()
        await _until(self.clock.end_ns - int(min(LEAD_S, self.times.dwell_s / 3) * 1e9))
        if self.watch.overtaken is not None:
            raise self.watch.overtaken
        _may_move(self.context)
        await self.finish(self._slot_changed(goal, changes))

    async def finish(self, work: Coroutine[object, object, None]) -> None:
        """Await `work` to its end even if cancelled meanwhile, but try no device again then.
        Raises: as `work`; CancelledError.
        """
        task = asyncio.ensure_future(work)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            self._stopping = True
            await asyncio.gather(task, return_exceptions=True)
            raise

    async def _phase(self) -> None:
        """Wait for the first iteration of the job that ends after the slot's time, then have the
        hosts hold: the slot is over.
        """
        await _until(self.light_ns + int(self.times.dwell_s * 1e9))
        boundary = asyncio.ensure_future(self.watch.boundary())
        try:
            while not (await asyncio.wait([boundary], timeout=1.0))[0]:
                self._notify()
        finally:
            boundary.cancel()
        self.clock.end_at(time.monotonic_ns() + int(self.times.guard_s * 1e9))
        await self.watch.hosts.slots.change_slot(self.hosts, self.clock.count, 1.0)

    async def _slot_changed(self, goal: SlotGoal, changes: Mapping[DeviceName, Change]) -> None:
        """One slot change: at the time of its end, or left out."""
        answers = await (
            self._followed() if self.stored is not None else self._apply(changes, self.clock.end_ns)
        )
        if late := next((a for a in answers.values() if isinstance(a, Late)), None):
            self._left_out(late)
            return
        outcomes = {d: a for d, a in answers.items() if isinstance(a, Outcome)}
        # what fails may have moved light all the same
        self.held = {d: held for d, held in self.held.items() if d not in answers}
        self.held.update({d: o.observed for d, o in outcomes.items()})
        ended_ns = min((o.sent_ns for o in outcomes.values()), default=time.monotonic_ns())
        late_ns = ended_ns - self.clock.end_ns
        self.clock.count += 1
        self.slot_changes += 1
        failed = [str(a) for a in answers.values() if not isinstance(a, Outcome)]
        failed += [f"{d}: {why}" for d, o in outcomes.items() for why in o.failed.values()]
        if failed:
            await self.repair("; ".join(failed))
            self.clock.realign()
        now_lit = (
            max((o.settled_ns for o in outcomes.values()), default=time.monotonic_ns())
            if not failed
            else time.monotonic_ns()
        )
        if self.light_ns:
            self.duty.lit.append((ended_ns - self.light_ns, now_lit - self.light_ns))
        before, self.light_ns = self.light_ns, now_lit
        self._notify()
        self.state("switching")
        self._record(outcomes, late_ns, ended_ns - before)
        gc.collect(1)

    async def _followed(self) -> dict[DeviceName, Outcome | BaseException]:
        """Wait until devices that change slots by themselves are in their next slot, and take their
        time for it.
        """
        assert self.stored is not None
        reached, answers = await self.stored.slot_changed(self.clock.count, self.clock.end_ns)
        self.clock.count = reached - 1
        if lit := [a.settled_ns for a in answers.values() if isinstance(a, Outcome)]:
            self.clock.end_at(max(lit) - int(self.times.dark_window_s * 1e9))
        return answers

    async def _adopted(self) -> bool:
        """Whether devices change slots by themselves through whole slots of this schedule, as the
        turner before left them.
        """
        if self.stored is None or (found := await self.stored.found()) is None:
            return False
        slot, ends_ns = found
        held = await self._read()
        if time.monotonic_ns() > ends_ns or change_to(
            held, self.goals[slot % len(self.goals)], self.owned
        ):
            return False
        self.held.update(held)
        self.clock.count = slot
        self.clock.end_at(ends_ns)
        self.light_ns = ends_ns - int(self.times.dwell_s * 1e9)
        self.emit("adopted", f"devices change slots by themselves, in slot {slot}")
        return True

    async def _apply(
        self, changes: Mapping[DeviceName, Change], at_ns: int
    ) -> dict[DeviceName, Outcome | BaseException]:
        """Have all devices change together at this time."""

        async def on_time() -> None:
            late_s = (time.monotonic_ns() - at_ns) / 1e9
            if late_s > self.times.late_s / 2:
                raise Late(
                    f"slot {self.clock.slot}: {start.last} was ready {late_s * 1e3:.0f} ms after its end"
                )
            await _until(at_ns)

        start = Start(len(changes), self.context.written, on_time, self.context.unanswered)
        asked = (start.apply(self.devices[d], c) for d, c in changes.items())
        return dict(zip(changes, await asyncio.gather(*asked, return_exceptions=True), strict=True))

    def _left_out(self, late: Late) -> None:
        """The slot lasts another period. Raises: TimedOut - the schedule says to stop then."""
        self.late += 1
        text = f"{late}; the slot lasts another {self.times.period_s:g} s"
        if self.schedule.late == "stop":
            raise TimedOut(
                f"late: stop was reached: {late}",
                hint="to go on: testbed service start schedule",
            )
        self.clock.realign()
        self._notify()
        self.state("switching")
        self.emit("late", text, slot=self.clock.slot)

    async def repair(self, why: str) -> None:
        """Bring all devices to the present slot, from whatever they hold. Raises: the last error
        after `REPAIR_S`.
        """
        goal, give_up, pause = self.goals[self.clock.slot], time.monotonic() + REPAIR_S, 0.02
        if why:
            self.late += 1
            self.state("repairing")
            self.emit("repairing", f"slot {self.clock.slot}: {why}", slot=self.clock.slot)
        while True:
            try:
                await self._completed(goal)
                await self._begun()
                return
            except Locked:
                raise
            except TestbedError:
                if self._stopping or time.monotonic() > give_up:
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, 1.0)

    async def _completed(self, goal: SlotGoal) -> None:
        if self.stored is not None:
            await self.stored.stop()
        self.held.update(await self._read())
        changes = change_to(self.held, goal, self.owned)
        if not changes:
            return
        _may_move(self.context)
        self.held = {d: held for d, held in self.held.items() if d not in changes}
        answers = await asyncio.gather(*(self.devices[d].apply(c) for d, c in changes.items()))
        self.held.update(zip(changes, (a.observed for a in answers), strict=True))
        if failed := [f"{a.device}: {why}" for a in answers for why in a.failed.values()]:
            raise TestbedError("; ".join(failed))

    async def _read(self) -> dict[DeviceName, frozenset[Setting]]:
        names = sorted({s.ingress.device for s in self.owned})
        return dict(
            zip(names, await asyncio.gather(*(self.devices[d].read() for d in names)), strict=True)
        )

    async def _begun(self) -> None:
        """Have devices that can change slots by themselves, in the times that hosts know, if they
        know any.
        """
        if self.stored is None:
            return
        if self.clock.origin_ns:
            self.clock.realign(2 * self.clock.period_ns)
            self._notify()
            await _until(self.clock.end_ns - self.clock.period_ns)
        with self.context.run.step(
            "device",
            "all",
            "slots",
            {"from": self.clock.count, "slots": len(self.goals), "stored": True},
        ):
            self.context.written.update(self.stored.devices)
            light_ns = await self.stored.begin(self.clock.slot)
        if not self.clock.origin_ns:
            self.light_ns = light_ns

    # -- the hosts, notified in the background

    def _notify(self) -> None:
        if self._tick is not None and not self._tick.done():
            self._tick.cancel()
        self._tick = asyncio.create_task(self._notified())

    async def _notified(self) -> None:
        lease_s = LEASE_PERIODS * self.times.period_s + LEASE_S
        ends_s = (
            None
            if self.schedule.kind == "phase"
            else max(0.0, (self.clock.end_ns - time.monotonic_ns()) / 1e9)
        )
        await self.watch.notify(self.clock.count, ends_s, lease_s, min(2.0, self.times.period_s))

    async def leave(self) -> None:
        """Stop the schedule on the hosts, which stay in the present slot.

        Raises: as `Presets` - devices that change slots by themselves cannot be stopped; the hosts
        then go on to follow their light.
        """
        if self._tick is not None:
            self._tick.cancel()
            with suppress(asyncio.CancelledError):
                await self._tick
        if self.stored is not None:
            await self._rested(self.stored)
        with suppress(Locked):
            await self._arrived()
            await self.watch.hosts.slots.stop(
                [h for h in self.hosts if h in self.watch.hosts.channels.attached()]
            )

    async def _rested(self, stored: StoredSlots) -> None:
        """Have devices that change slots by themselves rest in a whole slot, and the hosts be in
        it."""
        give_up = time.monotonic() + LEAVE_S
        while True:
            try:
                slot = await stored.stop()
                self.clock.count += (
                    0 if slot is None else (slot - self.clock.slot) % len(self.goals)
                )
                await self._completed(self.goals[self.clock.slot])
                break
            except TestbedError:
                if time.monotonic() > give_up:
                    raise
            await asyncio.sleep(0.2)
        await self._notified()

    async def _arrived(self) -> None:
        """Wait, as long as light may be late, until every host that answers is in the present slot:
        one that is stopped before would stay in the slot before it."""
        give_up = time.monotonic() + self.times.dark_window_s + self.times.late_s + ARRIVE_S
        while time.monotonic() < give_up and self.watch.overtaken is None:
            await self._notified()
            asked = (
                self.watch.hosts.slots.states([host])
                for host in self.watch.hosts.channels.attached()
                if host in self.hosts
            )
            answers = await asyncio.gather(*asked, return_exceptions=True)
            seen = [
                one
                for answer in answers
                if not isinstance(answer, BaseException)
                for one in answer.values()
            ]
            if all(
                not one["loaded"] or (one["count"] == self.clock.count and one["state"] != "dark")
                for one in seen
            ):
                return
            await asyncio.sleep(0.01)

    # -- records

    def _step(self) -> None:
        if time.monotonic() - self._stepped < STEP_S:
            return
        self._stepped = time.monotonic()
        what = {"from": self.clock.count, "slots": len(self.goals)}
        with self.context.run.step("device", "all", "slots", what) as step:
            step.result(
                {
                    "slot_changes": self.slot_changes,
                    "late": self.late,
                    "duty": round(self.duty.share, 4),
                }
            )

    def _record(self, outcomes: Mapping[DeviceName, Outcome], late_ns: int, lit_ns: int) -> None:
        if (journal := self.context.recorder.journal) is not None:
            clock, plan, duty = self.clock, self.file.state.plan, self.duty.share
            record_slot_change(
                journal, plan, clock.slot, clock.cycle, outcomes, late_ns, lit_ns, duty
            )


def _may_move(context: Context) -> None:
    """Raises: Locked - the lock was taken from this run. A step, which checks it too, begins once a
    minute only.
    """
    if context.lock is not None:
        context.lock.check(context.run.id)


async def _until(at_ns: int) -> None:
    """Sleep until this time (monotonic ns); return at once if it is over."""
    if (left := at_ns - time.monotonic_ns()) > 0:
        await asyncio.sleep(left / 1e9)
