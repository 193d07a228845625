"""What every step of one change knows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from optics import Change, DeviceName, HostName, HostPort, Link, Setting
from orchestrator.deadline import Limit
from orchestrator.engine.change.interlock import Interlocks, rerouted
from orchestrator.engine.change.jobs import Jobs
from orchestrator.fabric.lightpath import Held, among
from orchestrator.fabric.transition import per_device
from orchestrator.hosts import Hello
from orchestrator.plan.stored import stored_links
from orchestrator.session import Session
from orchestrator.store.audit import Who
from orchestrator.store.generations import generation_owners, next_generation
from orchestrator.store.keys import lab_of
from orchestrator.store.locks import HeldLock
from orchestrator.store.run import Run
from orchestrator.store.scope import of_settings
from orchestrator.store.store import Store
from orchestrator.telemetry.recorder import Recorder


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
    """Devices that were sent anything: they may have changed."""
    lock: HeldLock | None = None
    interlocks: Interlocks | None = None
    adopt: tuple[str, ...] = ()
    """Circuits of others that the operator named to become ours, as he named them."""
    resumes: bool = False
    """Whether it resumes a run that did not finish, which may have adopted them already."""
    who: Who | None = None
    sample_hz: float = 10.0
    verb: str = "up"

    @property
    def jobs(self) -> Jobs:
        """The owner's jobs."""
        return Jobs(self.session, self.store, self.slice, self.run_dir.parent)

    @property
    def owner(self) -> str:
        return self.slice.partition("/")[2]

    def hosts(self) -> list[HostName]:
        """The hosts we hold."""
        held = self.lock.lock.scope.hosts if self.lock is not None else frozenset()
        return [host for host in self.session.lab.hosts if host in held]

    def reserve(self, settings: Iterable[Setting]) -> bool:
        """Hold the ports of these settings too; False if they were held already. Raises: Locked - another run holds one."""
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
        return next_generation(self.store, self.key, self.owner, self.run.id)

    def theirs(self) -> frozenset[Setting]:
        """The circuits that other owners made."""
        mine = self.slice.partition("/")[2]
        return frozenset(s for s, whose in self.store.owners(self.key).items() if whose.owner != mine)

    def ours(self) -> frozenset[int]:
        """The owner's sets of host routes; a host that runs any other one follows another owner."""
        return frozenset(number for number, whose in generation_owners(self.store, self.key).items() if whose.owner == self.owner)

    def disown_lost(self, held: Held) -> None:
        """Give up what the owner has in the store and no device of `held` holds (a run died, a device lost power): ports to use."""
        owned = per_device(self.store.owned(self.slice))
        self.store.disown(self.slice, [s for d, ours in owned.items() if d in held for s in ours - among(ours, held[d])])

    def need(self, seconds: float, what: str) -> None:
        """Stretch the deadline for work known to take `seconds` (s). Raises: TimedOut - the operator allowed less."""
        if self.limit is not None:
            self.limit.need(seconds, what)
            self.timeout_s = max(self.timeout_s, self.limit.timeout_s)
