"""What all steps of one change share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from drivers.watch import late_s
from optics import Change, DeviceName, HostName, HostPort, Link, Locked, Setting, TestbedError
from orchestrator.change.interlock import Interlocks, rerouted
from orchestrator.change.snapshot import Snapshot, found, held_data
from orchestrator.deadline import Limit
from orchestrator.fabric.lightpath import Held, among
from orchestrator.fabric.transition import per_device
from orchestrator.hosts import Hello
from orchestrator.jobs.jobs import Jobs
from orchestrator.session import Session
from orchestrator.store import ownership
from orchestrator.store.audit import Who
from orchestrator.store.generations import generation_owners, next_generation
from orchestrator.store.keys import lab_of, owner_of
from orchestrator.store.locks import HeldLock
from orchestrator.store.options import NO_OPTIONS, RunOptions
from orchestrator.store.records import CurrentPlan, JobRecord
from orchestrator.store.run import Run
from orchestrator.store.scope import Scope, of_settings
from orchestrator.store.store import Store
from orchestrator.telemetry.recorder import Recorder


@dataclass
class Context:
    """What a change works with. tenancy: the owner's part of the lab, as in the store; its plan and
    circuits are the owner's.
    """

    session: Session
    store: Store
    run: Run
    tenancy: str
    recorder: Recorder
    run_dir: Path
    timeout_s: float
    limit: Limit | None = None
    written: set[DeviceName] = field(default_factory=set)
    """Devices that were sent a command: they may have changed."""
    unanswered: dict[DeviceName, float] = field(default_factory=dict)
    """When (s, monotonic) a device was last sent a command whose result it has not reported, or
    first answered since.
    """
    heard: dict[DeviceName, float] = field(default_factory=dict)
    """The times in `unanswered` that are of such answers."""
    lock: HeldLock | None = None
    interlocks: Interlocks | None = None
    options: RunOptions = NO_OPTIONS
    who: Who | None = None
    sample_hz: float = 10.0
    verb: str = "up"

    @property
    def jobs(self) -> Jobs:
        """The owner's jobs."""
        return Jobs(self.session, self.store, self.tenancy, self.run_dir.parent)

    @property
    def owner(self) -> str:
        return owner_of(self.tenancy)

    def hosts(self) -> list[HostName]:
        """The hosts that this run has locked."""
        held = self.lock.lock.scope.hosts if self.lock is not None else frozenset()
        return [host for host in self.session.lab.hosts if host in held]

    def reserve(self, settings: Iterable[Setting]) -> bool:
        """Lock the ports of these settings too; False if they were locked already. Raises: Locked -
        another run holds one.
        """
        return self.lock is not None and self.lock.extend(of_settings(self.session.lab, settings))

    def lock_hosts(self, names: Iterable[HostName], notes: list[str], text: str) -> list[HostName]:
        """Lock these hosts, too, and return those that are; of one that another run holds, `text`
        and by whom go to `notes`.
        """
        found = []
        for name in names:
            try:
                if self.lock is not None:
                    self.lock.extend(Scope(frozenset({name})))
                found.append(name)
            except Locked as error:
                notes.append(f"{text} on {name}: {error}")
        return found

    async def allowed(
        self,
        changes: Mapping[DeviceName, Change],
        seen: Mapping[DeviceName, frozenset[Setting]],
        switched: frozenset[HostPort] = frozenset(),
    ) -> None:
        """Check `changes` before anything begins; `seen` is what the devices hold. Raises:
        Interlock.

        switched: ports where traffic over packet switches starts or stops (`rerouted`).
        """
        if self.interlocks is not None:
            self.interlocks.seen.update(seen)
            await self.interlocks.check(changes, switched)

    def rerouted(
        self, links: Iterable[Link], hellos: Mapping[HostName, Hello]
    ) -> frozenset[HostPort]:
        """The packet-switch ports where the owner's traffic starts or stops if `links` replace
        those of the plan that is up.
        """
        current, own = self.store.current(self.tenancy), self.own_generations()
        following = {host for host, hello in hellos.items() if hello.active in own}
        return rerouted(current.up.links if current else (), links, self.session.lab, following)

    @property
    def key(self) -> str:
        """The lab's key in the store."""
        return lab_of(self.tenancy)

    def next_generation(self) -> int:
        """A new number for a set of the owner's host routes."""
        return next_generation(self.store, self.key, self.owner, self.run.id)

    def foreign_settings(self) -> frozenset[Setting]:
        """The circuits that other owners made."""
        return frozenset(
            s for s, by in self.store.owners(self.key).items() if by.owner != self.owner
        )

    def own_generations(self) -> frozenset[int]:
        """The owner's sets of host routes; a host that runs any other set belongs to another
        owner's plan.
        """
        return frozenset(
            number
            for number, by in generation_owners(self.store, self.key).items()
            if by.owner == self.owner
        )

    def snapshot(
        self,
        observed: Held,
        hellos: Mapping[HostName, Hello],
        current: CurrentPlan | None,
        job: JobRecord | None = None,
    ) -> Snapshot:
        """The observed state, to go back to. job: that runs."""
        owned, foreign = self.store.owned(self.tenancy), self.foreign_settings()
        return found(observed, per_device(owned), current, hellos, job, self.session.lab, foreign)

    def begin(
        self, before: Snapshot, wanted: Held, generation: int | None, hosts: Iterable[HostName]
    ) -> None:
        """Journal the state before the first step, and the target: what devices are to hold, and the
        routes of these hosts.
        """
        target = {"settings": held_data(wanted), "generation": generation, "hosts": sorted(hosts)}
        self.run.found(before.to_json(), target)

    def disown_lost(self, held: Held) -> None:
        """Disown what no device of `held` holds any more (a run died, a device lost power), so that
        its ports are free.

        Not that of a device whose commands may still have an effect: what is held then is not
        known.
        """
        owned = per_device(self.store.owned(self.tenancy))
        sure = {d for d in owned.keys() & held.keys() if not self.left_s(d)}
        self.disown(s for d in sure for s in owned[d] - among(owned[d], held[d]))

    def disown(self, settings: Iterable[Setting]) -> None:
        """Disown what devices reported gone."""
        self.store.disown(self.tenancy, settings, by=self.run.id)

    def adopted(self, held: Held) -> frozenset[Setting]:
        """The other owners' circuits that the operator named to take over. Raises: Missing - there
        is no such circuit.
        """
        if not (named := self.options.asked.adopt):
            return frozenset()
        owned, owners = self.store.owned(self.tenancy), self.store.owners(self.key)
        # a run that this one resumes may have adopted them already
        return ownership.adopted(named, held, owned, owners, again=bool(self.options.resumes))

    def left_s(self, device: DeviceName) -> float:
        """How long (s) what this device was sent may still come about; 0 if it has reported its
        result, or was sent nothing.
        """
        if (since := self.unanswered.get(device)) is None:
            return 0.0
        return max(0.0, late_s(self.session.devices[device].traits) - (time.monotonic() - since))

    async def settled(self) -> None:
        """Wait until what devices were sent without an answer is in their maps, if it ever will be.
        Call before reading them.

        The time counts from a device's first answer since: one that stalled carries out then
        what it had received.
        """
        await self.hear()
        if wait_s := max(map(self.left_s, self.unanswered), default=0.0):
            await asyncio.sleep(wait_s)

    async def hear(self) -> None:
        """Have devices answer something that owe a result and have not since; the time that they
        still need counts from then.
        """

        async def answer(device: DeviceName) -> None:
            with suppress(TestbedError):  # one that is silent is not waited for
                await self.session.devices[device].read()
                self.heard[device] = self.unanswered[device] = time.monotonic()

        await asyncio.gather(
            *(answer(d) for d, at in self.unanswered.items() if self.heard.get(d) != at)
        )

    def need(self, seconds: float, what: str) -> None:
        """Extend the deadline for work known to take `seconds` (s). Raises: TimedOut - the operator
        allowed less.
        """
        if self.limit is not None:
            self.limit.need(seconds, what)
            self.timeout_s = max(self.timeout_s, self.limit.timeout_s)
