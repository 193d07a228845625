"""Rollback in the middle of a change: does what can be done, reads the result back, and lists what
needs manual repair.

It works without a plan that fits and with devices or hosts that do not answer: each is restored if
possible. What was not restored is read again and tried once more, never blindly; the report is
based on readings of devices and hosts after the last write.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from functools import partial

from drivers.watch import late_s
from optics import (
    Change,
    DeviceName,
    HostName,
    Infeasible,
    Interlock,
    Locked,
    Refused,
    Setting,
    TestbedError,
    TimedOut,
    Unreachable,
)
from optics.errors import first_line
from optics.plain import counted
from optics.plan import TransitionPolicy
from optics.values import short, sort_key
from orchestrator.change.agents import with_agents
from orchestrator.change.apply import apply_changes
from orchestrator.change.context import Context
from orchestrator.change.job_back import change_rings_back, plan_of, resume_job
from orchestrator.change.ring_change import RingChange
from orchestrator.change.snapshot import NONE, Snapshot, change_back, differences
from orchestrator.change.verdict import Undone
from orchestrator.fabric.lightpath import among
from orchestrator.fabric.move_order import in_order
from orchestrator.fabric.rules import Rules, rules
from orchestrator.fabric.transition import per_device
from orchestrator.hosts import Hello
from orchestrator.plan.stored import stored_plan
from orchestrator.plan.target import switching_s

TRIES = 2
"""What was not restored is read again and sent once more."""
RETURN_S = 30.0
"""How long (s) a changed device that fell silent gets to come back: a restarting switch does."""
POLL_S = 0.1
STARTED_S = 1.0
"""A device that came back is read again after twice its settling time, or after this (s) if
shorter: no robot moves unasked.
"""
JOB_TAKES = 12
"""To bring the job back may take so many iterations: the failed move ends, then the ranks connect,
change over, and once more.
"""
SLACK_S = 60.0
"""Time (s) in addition to what devices and links need; a second interrupt ends it at once."""


class Rollback:
    """The rollback to `to`. asked: hosts that this run asked to change. link_s: how long (s) light
    may take to come back.

    ring_change: the job's part of the change that failed.
    """

    def __init__(
        self,
        context: Context,
        to: Snapshot,
        asked: Collection[HostName],
        link_s: float,
        ring_change: RingChange | None = None,
    ) -> None:
        self.ring_change = ring_change
        self.context, self.to, self.asked, self.link_s = context, to, frozenset(asked), link_s
        self.hosts = context.session.hosts
        self.left: list[str] = []
        self.notes: list[str] = []
        """What became of the job, where that needs words."""
        self.reported: dict[str, str] = {}
        self.alive: list[HostName] | None = None
        own = context.own_generations()
        self.generations = {
            h: active for h, active in to.generations.items() if h in self.asked or active in own
        }
        """Which routes each host of this owner should run; what others run is foreign."""
        self.restarted: set[DeviceName] = set()

    async def carry_out(self) -> Undone:
        """Do what can be done. Raises: Locked - another run took the lab, so nothing more may be
        changed.
        """
        context, recorder = self.context, self.context.recorder
        devices = context.session.devices
        slow = max(
            (switching_s(Change(d, add=s), devices[d].traits) for d, s in self.to.owned.items()),
            default=0.0,
        )
        if context.limit is not None:
            late = max((late_s(devices[d].traits) for d in context.written), default=0.0)
            context.limit.grant(SLACK_S + RETURN_S + self.link_s + TRIES * (2 * slow + late))
        with recorder.phase("rollback hosts") as phase:
            phase.detail = await self._hold_still()
        with recorder.phase("rollback switch") as phase:
            phase.detail = await self._light()
        with recorder.phase("rollback routes") as phase:
            phase.detail = await self._routes()
        with recorder.phase("rollback link") as phase:
            phase.detail = lit = await self._carriers()
        await self._job()
        with recorder.phase("rollback check") as phase:
            phase.detail = held = await self._check()
        self._remember()
        return Undone(
            tuple(dict.fromkeys(self.left)),
            "; ".join((f"{held}, {lit}" if self.to.lit else held, *self.notes)),
        )

    # --- hosts

    async def _hellos(self) -> dict[HostName, Hello]:
        """The hosts that answer; one that was changed and does not answer needs manual repair."""
        answers = await self.hosts.channels.connect(
            self.alive if self.alive is not None else list(self.generations)
        )
        answers = await with_agents(self.hosts, answers, self.asked)
        for host in sorted(self.asked):
            answer = answers.get(host)
            if isinstance(answer, TestbedError):
                self._left(
                    f"{host}: does not answer ({first_line(answer)}): when it does, see which routes it runs"
                )
        self.alive = [h for h, a in answers.items() if isinstance(a, Hello)]
        return {h: a for h, a in answers.items() if isinstance(a, Hello)}

    async def _hold_still(self) -> str:
        """Disarm all hosts, and revert commits that are not confirmed yet."""
        hellos = await self._hellos()
        own = self.context.own_generations()
        try:
            if armed := [h for h, hello in hellos.items() if hello.armed in own]:
                await self._ask("disarm", armed, partial(self.hosts.routes.disarm, armed))
                hellos |= {
                    h: a
                    for h, a in (await self.hosts.channels.connect(armed)).items()
                    if isinstance(a, Hello)
                }
            back = [
                h
                for h, hello in hellos.items()
                if hello.pending_s is not None
                and hello.active in own
                and hello.active != self.generations[h]
            ]
            if back:
                await self._ask("revert", back, partial(self.hosts.routes.revert, back))
            return f"{counted(len(back), 'host')} taken back" if back else "none had changed"
        except Locked:
            raise
        # hosts revert unconfirmed commits on their own timer, and `_routes` checks again
        except TestbedError as error:
            return first_line(error)

    async def _ask(
        self, what: str, hosts: list[HostName], request: Callable[[], Awaitable[object]]
    ) -> None:
        """One journalled request to hosts."""
        with self.context.run.step("host", "all", what, {"hosts": sorted(hosts)}):
            await request()

    async def _routes(self) -> str:
        """Every host that answers runs what it ran before: by its number if it still has it, else
        staged again.
        """
        moved: set[HostName] = set()
        for _ in range(TRIES):
            hellos = await self._hellos()
            diverged = self._diverged(hellos)
            if not diverged:
                break
            moved |= {host for names in diverged.values() for host in names}
            try:
                await self._restore_routes(diverged, hellos)
            except Locked:
                raise
            except TestbedError as error:  # the result is read before anything is asked again
                self.reported |= {
                    f"{line.partition(':')[0]}: ": line for line in str(error).splitlines()
                }
        return f"{counted(len(moved), 'host')} restored" if moved else "all as before"

    def _diverged(
        self, hellos: Mapping[HostName, Hello]
    ) -> dict[tuple[str, int | None], list[HostName]]:
        """Hosts that do not run what they ran, or will change by themselves: by the request to
        send, and of which generation.
        """
        own = self.context.own_generations()
        found: dict[tuple[str, int | None], list[HostName]] = {}
        for host, hello in sorted(hellos.items()):
            was = self.generations[host]
            if hello.armed in own:
                found.setdefault(("disarm", None), []).append(host)
            if hello.active == was:
                if was is None or hello.pending_s is None:
                    continue
                what = "confirm"
            elif hello.active is not None and hello.active not in own:
                continue  # another owner's by now: never touched; the check reports it
            elif was is None:
                what = "clear"
            else:
                what = "commit" if was in hello.staged else "stage"
            found.setdefault((what, was), []).append(host)
        return found

    async def _restore_routes(
        self,
        diverged: Mapping[tuple[str, int | None], list[HostName]],
        hellos: Mapping[HostName, Hello],
    ) -> None:
        own = self.context.own_generations()
        removed: list[HostName] = []
        for (what, was), names in diverged.items():
            if what == "stage":
                removed += names
            elif what == "disarm":
                await self._ask("disarm", names, partial(self.hosts.routes.disarm, names))
            elif what == "clear" or was is None:
                await self._ask("clear", names, partial(self.hosts.routes.clear, names, own))
            elif what == "confirm":
                await self._ask("confirm", names, partial(self.hosts.routes.confirm, was, names))
            else:
                await self._ask("commit", names, partial(self.hosts.routes.commit, was, names))
        if removed:
            await self._stage_again(removed, hellos)

    async def _stage_again(self, removed: list[HostName], hellos: Mapping[HostName, Hello]) -> None:
        """Hosts that discarded the old routes get them under a new number, and all others of that
        plan with them.

        Raises: Refused - a host ran routes of no plan that is known, as after a change that was
        killed before its end.
        """
        current, lab = self.to.current, self.context.session.lab
        known = current is not None and (
            current.up.slots is not None
            or {self.generations[h] for h in removed} == {current.generation}
        )
        if current is None or not known:
            raise Refused(
                "\n".join(f"{host}: the routes it ran are not known any more" for host in removed)
            )
        if any(not hello.installed for hello in hellos.values()):
            await self.hosts.provision([h for h, hello in hellos.items() if not hello.installed])
        plan = stored_plan(current.plan_text, current.plan_name, current.up.slots, lab)
        wanted: Mapping[HostName, Rules] = rules(
            current.up.links, lab, self.hosts.channels.macs(), plan.routes, plan.rings
        )
        number = self.context.next_generation()
        names = [h for h in wanted if h in hellos]
        await self._ask(
            "stage",
            names,
            partial(self.hosts.routes.stage, {number: {h: wanted[h] for h in names}}),
        )
        await self._ask("commit", names, partial(self.hosts.routes.commit, number, names))
        self.generations |= dict.fromkeys(names, number)
        self.to = replace(self.to, current=replace(current, generation=number))

    async def _carriers(self) -> str:
        """Wait until ports that had light have it again."""
        give_up = time.monotonic() + self.link_s
        while True:
            hellos = await self._hellos()
            asked = [p for p in self.to.lit if p.host in hellos]
            dark = [
                p
                for p in asked
                if (s := hellos[p.host].ports.get(p.number)) is None or not s.carrier
            ]
            if not dark or time.monotonic() > give_up:
                break
            await asyncio.sleep(POLL_S)
        for port in dark:
            self._left(f"{port}: had light before and has none: check its fibre and the switch")
        return (
            f"{len(asked) - len(dark)}/{len(asked)} ports lit"
            if asked
            else "no port was lit before"
        )

    async def _job(self) -> None:
        """Resume the job that ran before."""
        context = self.context
        try:
            policy = self._policy()
            if context.limit is not None:
                context.limit.grant(SLACK_S + JOB_TAKES * policy.boundary_s)
            if self.ring_change is not None:
                await self.ring_change.settle()
            self.notes += await change_rings_back(context, self.to, policy)
            await resume_job(context, self.to, self.notes)
        except Locked:
            raise
        except TestbedError as error:
            self._left(f"job: {first_line(error)}: testbed job launch")

    def _policy(self) -> TransitionPolicy:
        """How the job is to change over, by the plan of the previous state."""
        plan = plan_of(self.to, self.context.session.lab)
        return TransitionPolicy() if plan is None else plan.transition

    # --- devices

    async def _read(
        self, devices: Collection[DeviceName], give_up: float
    ) -> tuple[dict[DeviceName, frozenset[Setting]], dict[DeviceName, TestbedError]]:
        """Read devices completely, once what was sent without an answer has settled; silent ones
        that were changed are polled until `give_up`."""
        held: dict[DeviceName, frozenset[Setting]] = {}
        errors: dict[DeviceName, TestbedError] = {}

        async def read(device: DeviceName) -> None:
            try:
                held[device] = await self.context.session.devices[device].read()
                errors.pop(device, None)
            except TestbedError as error:
                errors[device] = error

        # perhaps that is why
        self.restarted |= self.context.unanswered.keys() & self.context.written
        await self.context.settled()
        await asyncio.gather(*map(read, devices))
        self.restarted |= errors.keys() & self.context.written
        while silent := [
            d
            for d, e in errors.items()
            if d in self.context.written and isinstance(e, (Unreachable, TimedOut))
        ]:
            if time.monotonic() > give_up:
                break
            await asyncio.sleep(POLL_S)
            await asyncio.gather(*map(read, silent))
            # just restarted: mirrors may still move unreported
            if back := [d for d in silent if d in held]:
                await asyncio.sleep(
                    max(
                        min(2 * self.context.session.devices[d].traits.settle_s, STARTED_S)
                        for d in back
                    )
                )
                await asyncio.gather(*map(read, back))
        return held, errors

    async def _light(self) -> str:
        """Restore what every device held; what did not succeed is read and sent once more."""
        context, writes = self.context, 0
        give_up = time.monotonic() + RETURN_S
        devices = [d for d in context.session.devices if d in self.to.owned]
        for _ in range(TRIES):
            held, _ = await self._read(devices, give_up)
            changes = self._changes(held)
            if not changes:
                break
            try:
                applied = await apply_changes(context, changes, "rollback", together=False)
            # `_check` lists the differences; this is why they may not be changed
            except Interlock as error:
                self.left += str(error).splitlines()
                break
            writes += sum(outcome.writes for outcome in applied.outcomes.values())
            self.reported |= {
                f"{d}: {short(s)} ": why
                for d, o in applied.outcomes.items()
                for s, why in o.failed.items()
            }
            self.reported |= {f"{d}: ": first_line(error) for d, error in applied.errors.items()}
            self.restarted |= applied.errors.keys()
        return f"{counted(writes, 'command')} on {counted(len(devices), 'device')}"

    def _changes(self, held: Mapping[DeviceName, frozenset[Setting]]) -> dict[DeviceName, Change]:
        """The change per device that restores what it held; what another owner's circuits prevent
        needs manual repair.
        """
        owned = per_device(self.context.store.owned(self.context.tenancy))
        found: dict[DeviceName, Change] = {}
        for device, existing in held.items():
            try:
                back = change_back(
                    {device: existing},
                    {device: self.to.owned[device]},
                    {device: owned.get(device, NONE)},
                )
                found |= in_order(back, {}, {device: existing}, self.context.session.lab).changes
            except (Interlock, Infeasible) as error:
                self._left(f"{device}: {first_line(error)}")
        return found

    async def _check(self) -> str:
        """Read all devices and hosts completely, and compare with the previous state."""
        context = self.context
        devices = [d for d in context.session.devices if d in self.to.owned]
        held, errors = await self._read(devices, time.monotonic())
        owned = per_device(context.store.owned(context.tenancy))
        for device, error in errors.items():
            if device in context.written or self.to.owned[device] or owned.get(device):
                self._left(
                    f"{device}: does not answer ({first_line(error)}): when it does, testbed rollback {context.run.id}"
                )
        owners, foreign = context.store.owners(context.key), context.foreign_settings()
        for setting in sorted(foreign, key=sort_key):
            device = setting.ingress.device
            if device in self.restarted and device in held and not among(held[device], [setting]):
                self._left(
                    f"{device}: {short(setting)} is not there; it belongs to {owners[setting]}"
                )
        for line in differences(held, self.to, held.keys(), foreign):
            text = next((text for what, text in self.reported.items() if line.startswith(what)), "")
            self._left(line + (f" ({text})" if text else ""))
        # What was present and is not any more is reported, and keeps its owner: a device that
        # restarts may light it again.
        context.disown_lost(
            {device: existing | self.to.owned[device] for device, existing in held.items()}
        )
        hellos = await self._hellos()
        same = [h for h, hello in hellos.items() if hello.active == self.generations[h]]
        for host in sorted(hellos.keys() - set(same)):
            text = self.reported.get(f"{host}: ", "")
            line = f"{host}: runs generation {hellos[host].active}, {self.generations[host]} was active before"
            self._left(line + (f" ({text})" if text else ""))
        for host in sorted(h for h in same if hellos[h].armed in context.own_generations()):
            text = self.reported.get(f"{host}: ", "")
            self._left(
                f"{host}: commits generation {hellos[host].armed} once it has light"
                + (f" ({text})" if text else "")
            )
        number = sum(len(s & self.to.owned[d]) for d, s in held.items())
        place = f"{counted(number, 'own setting')} on {counted(len(held), 'device')} read back"
        if not number:
            place = f"nothing of yours was lit before, nothing is now ({counted(len(held), 'device')} read)"
        return f"{place}, {counted(len(same), 'host')} on the routes they had"

    def _remember(self) -> None:
        """Restore the store's record of what is up."""
        store, key, was = self.context.store, self.context.tenancy, self.to.current
        if was is None:
            store.clear_current(key, self.context.run.id)
        elif (now := store.current(key)) is None or (now.plan_sha, now.generation) != (
            was.plan_sha,
            was.generation,
        ):
            store.keep_current(key, was, self.context.run.id)

    def _left(self, line: str) -> None:
        self.left.append(line)
