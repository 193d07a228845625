"""Hosts that keep generations as the committer does, with ports that light up when the light path
of `glasslab` brings them light.

Every request that changes something, of a host or of a device, goes through one counter: a test
names the one that goes wrong.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Collection, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from drivers.api import Ready, at_once
from optics import (
    Change,
    HostName,
    HostPort,
    Outcome,
    Refused,
    Setting,
    TestbedError,
    TimedOut,
    Unreachable,
)
from orchestrator.change.context import Context
from orchestrator.change.down import Down
from orchestrator.change.restore import Restore
from orchestrator.change.snapshot import Snapshot
from orchestrator.change.up import Up
from orchestrator.deadline import deadline
from orchestrator.fabric.rules import Macs, Route, Rules
from orchestrator.hosts.api import Committed, Held, Hello, HostEvent, JobState, PortState, Staged
from orchestrator.inventory.lab import Lab
from orchestrator.plan.reader import read_plan
from orchestrator.session import Session
from orchestrator.store.options import NO_OPTIONS, RunOptions, UpOptions
from orchestrator.store.records import RunRecord
from orchestrator.store.run import Run
from orchestrator.store.store import Store
from orchestrator.telemetry.progress import Silent
from orchestrator.telemetry.recorder import Recorder
from tests.change.fibrelab import SWITCH, Device, FibrePlant, hosts_yml, read
from tests.change.meters import Meters
from tests.hosts.parts import OwnParts

LAB, OWNER = "made-1", "ann"
TENANCY = f"{LAB}/{OWNER}"


class Killed(BaseException):
    """The process is gone; nothing after it runs."""


class Points:
    """Counts what could change something. `fail`: point -> how it goes wrong: `refused`, `lost`
    (done, no answer) or `ended`.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.fail: dict[int, str] = {}

    @contextmanager
    def point(self, who: str, what: str) -> Iterator[str]:
        """One request; the body does it unless it is to be refused."""
        self.names.append(f"{who}: {what}")
        how = self.fail.get(len(self.names), "")
        if how == "killed before":
            raise Killed
        if how == "refused":
            raise Refused(f"{who}: {what} refused")
        yield how
        if how == "killed after":
            raise Killed
        if how == "lost":
            raise TimedOut(f"{who}: no answer to {what}")


@dataclass
class FakeHost:
    """One host; generations by number."""

    active: int | None = None
    previous: int | None = None
    pending_to: int | None = None
    pending: bool = False
    staged: dict[int, Rules] = field(default_factory=dict)
    armed: tuple[int, dict[int, int]] | None = None
    armed_timed: bool = True
    carrier: dict[int, bool] = field(default_factory=dict)
    ups: dict[int, int] = field(default_factory=dict)
    up: bool = True
    clears: int = 0
    holding: int | None = None

    def commit(self, generation: int, timed: bool, *, hold: bool = False) -> None:
        if generation not in self.staged:
            raise Refused(f"generation {generation} is not staged here")
        if generation != self.active:
            # else what the host goes back to is passed on
            if self.holding is None or self.active != self.holding:
                self.pending_to, self.previous = self.active, self.active
            self.active, self.holding = generation, generation if hold else None
        self.pending = timed
        if self.armed is not None and self.armed[0] == generation:
            self.armed = None


class Switch(Device):
    """A device of `glasslab` whose changes are points, and which can lose what it holds."""

    points: Points
    fleet: Fleet
    down = False
    keeps = True

    async def read(self) -> frozenset[Setting]:
        if self.down:
            raise Unreachable(f"{self.name}: connection refused")
        return await super().read()

    async def apply(self, change: Change, ready: Ready = at_once) -> Outcome:
        await self.read()
        await ready()
        with self.points.point(self.name, "apply") as how:
            if how == "half":  # it does the first half and says so
                removed = sorted(change.remove, key=str)
                some = Change(self.name, frozenset(removed[: len(removed) // 2]))
                outcome = await super().apply(some)
                failed = dict.fromkeys((change.remove - some.remove) | change.add, "mirror stuck")
                self.fleet.light()
                return Outcome(self.name, outcome.observed, 1, 1, 1, 1, outcome.writes, failed)
            if how in ("reboot-keep", "reboot-lose"):
                self.reboot(keeps=how == "reboot-keep")
                raise TimedOut(
                    f"{self.name}: connection lost; commands were sent before, what they did is not known"
                )
            if change.remove:  # what moves goes dark first
                await super().apply(Change(self.name, change.remove))
                self.fleet.light()
            broken_ns = time.monotonic_ns()
            outcome = replace(
                await super().apply(Change(self.name, add=change.add)), broken_ns=broken_ns
            )
            self.fleet.light()
            if how == "ended":
                self.down = True
                raise TimedOut(f"{self.name}: silent")
        return outcome

    def reboot(self, *, keeps: bool, for_s: float = 0.2) -> None:
        """It is gone for a while and comes back with its circuits, or without."""
        if not keeps:
            self.held = frozenset()
            self.fleet.light()
        self.down = True
        asyncio.get_running_loop().call_later(for_s, setattr, self, "down", False)


class Fleet(OwnParts):
    """`Hosts` as far as a change uses it: its own channels, routes and jobs."""

    def __init__(self, fibre_plant: FibrePlant, points: Points) -> None:
        self.fibre_plant, self.lab, self.points = fibre_plant, fibre_plant.lab, points
        self.all = {name: FakeHost() for name in self.lab.hosts}
        self.queues, self.ran = list[asyncio.Queue[HostEvent]](), dict[str, str]()
        self.dark: set[HostPort] = set()
        self.links = False
        self.changes: list[HostEvent] = []
        self.received = 1000
        """Bytes that each host gets."""
        self.light()

    @property
    def measure(self) -> Meters:
        return Meters(self)

    def light(self) -> None:
        """Look which ports get light now, and let armed hosts commit."""
        lit = self.fibre_plant.at()
        for port, fibre in self.lab.fibres.items():
            host = self.all[port.host]
            now = ("out", fibre.leaves) in lit and port not in self.dark
            if now is not host.carrier.get(port.number, False):
                changed = HostEvent(
                    port.host, "link", time.monotonic_ns(), {"port": port.number, "carrier": now}
                )
                self.changes.append(changed)
                for queue in self.queues if self.links else ():
                    queue.put_nowait(changed)
            if now and not host.carrier.get(port.number):
                host.ups[port.number] = host.ups.get(port.number, 0) + 1
            host.carrier[port.number] = now
        for name, host in self.all.items():
            if host.armed and all(
                host.carrier[p] and host.ups[p] > ups for p, ups in host.armed[1].items()
            ):
                generation = host.armed[0]
                previous = host.active
                host.commit(generation, host.armed_timed)
                values = {
                    "generation": generation,
                    "previous": previous,
                    "t_commit_ns": 2,
                    "took_us": 1,
                    "t_link_ns": 1,
                }
                for queue in self.queues:
                    queue.put_nowait(HostEvent(name, "committed", 2, values))

    def hello(self, name: HostName) -> Hello:
        host = self.all[name]
        ports = {
            p: PortState(
                f"opt{p}", _mac(name, p), None, host.carrier.get(p, False), host.ups.get(p, 0), 9000
            )
            for p in self.lab.hosts[name].ports
        }
        return Hello(
            name,
            True,
            active=host.active,
            previous=host.previous,
            staged=tuple(sorted(host.staged)),
            armed=host.armed[0] if host.armed else None,
            pending_s=20.0 if host.pending else None,
            pending_to=host.pending_to if host.pending else None,
            ports=ports,
        )

    async def connect(
        self, names: Collection[HostName] | None = None
    ) -> dict[HostName, Hello | TestbedError]:
        await asyncio.sleep(0)
        chosen = self.all if names is None else names
        return {
            n: self.hello(n) if self.all[n].up else Unreachable(f"{n}: ssh: connection refused")
            for n in chosen
        }

    async def greet(self, names: Collection[HostName] | None = None) -> dict[HostName, Hello]:
        return {n: self.present(n) for n in (self.all if names is None else names)}

    def present(self, name: HostName) -> Hello:
        if not self.all[name].up:
            raise Unreachable(f"{name}: the channel is gone")
        return self.hello(name)

    def unprovisioned(self) -> tuple[HostName, ...]:
        return ()

    def unready(self) -> tuple[HostName, ...]:
        return self.unprovisioned()

    def macs(self) -> Mapping[HostPort, Macs]:
        return {
            p: Macs(_mac(p.host, p.number), None) for p in (*self.lab.fibres, *self.lab.segment_at)
        }

    def subscribe(self) -> asyncio.Queue[HostEvent]:
        self.queues.append(asyncio.Queue())
        return self.queues[-1]

    def unsubscribe(self, queue: asyncio.Queue[HostEvent]) -> None:
        self.queues.remove(queue)

    def expect_play(self) -> None:
        """There is no Ansible to start."""

    async def fence(self, token: int, names: Collection[HostName]) -> None:
        for name in names:
            self.all[name].armed = None

    async def stage(
        self, generations: Mapping[int, Mapping[HostName, Rules]]
    ) -> Mapping[HostName, Mapping[int, Staged]]:
        found: dict[HostName, dict[int, Staged]] = {}
        with self.points.point("hosts", "stage"):
            for number, hosts in generations.items():
                for name, notified in hosts.items():
                    self.present(name)
                    self.all[name].staged[number] = notified
                    routes = sum(isinstance(rule, Route) for rule in notified)
                    found.setdefault(name, {})[number] = Staged(number, routes, 7000 + number)
        return found

    stage_warm = stage

    async def commit(
        self,
        generation: int,
        names: Collection[HostName] | None = None,
        revert_after_s: float | None = None,
    ) -> Mapping[HostName, Committed]:
        with self.points.point("hosts", f"commit {generation}"):
            for name in names or ():
                self.present(name)
                self.all[name].commit(generation, revert_after_s is not None)
        return {name: Committed(name, generation, None, 2) for name in names or ()}

    async def hold(
        self, generation: int, names: Collection[HostName], revert_after_s: float
    ) -> Mapping[HostName, Held]:
        assert revert_after_s > 0
        with self.points.point("hosts", f"hold {generation}"):
            for name in names:
                self.present(name)
                self.all[name].commit(generation, timed=True, hold=True)
        return {name: Held(name, 1, 1) for name in names}

    async def arm(
        self,
        generation: int,
        when_up: Mapping[HostName, Collection[int]],
        *,
        revert_after_s: float | None = None,
        deadline_s: float,
        cross: Mapping[HostName, Collection[str]] | None = None,
    ) -> None:
        with self.points.point("hosts", "arm"):
            for name, ports in when_up.items():
                self.present(name)
                self.all[name].armed = (
                    generation,
                    {p: self.all[name].ups.get(p, 0) for p in ports},
                )
                self.all[name].armed_timed = revert_after_s is not None

    async def disarm(self, names: Collection[HostName] | None = None) -> None:
        with self.points.point("hosts", "disarm"):
            for name in names or ():
                self.all[name].armed = None

    async def wait_committed(
        self,
        generation: int,
        names: Collection[HostName],
        deadline_s: float,
        queue: asyncio.Queue[HostEvent] | None = None,
    ) -> Mapping[HostName, Committed | TestbedError]:
        found: dict[HostName, Committed | TestbedError] = {}
        while queue is not None and not queue.empty():
            event = queue.get_nowait()
            if event.kind != "committed":
                continue
            found[event.host] = Committed(event.host, generation, event.values["previous"], 2, 1)
        return {n: found.get(n, TimedOut(f"{n}: no carrier")) for n in names}

    async def confirm(self, generation: int, names: Collection[HostName] | None = None) -> None:
        await asyncio.sleep(0)
        with self.points.point("hosts", f"confirm {generation}"):
            for name in names or ():
                self.present(name)
                host = self.all[name]
                if host.active != generation or host.holding == generation:
                    raise Refused(
                        f"{name}: generation {generation} is not active or a hold; {host.active} is active"
                    )
                host.pending = False
                host.staged = {
                    g: r
                    for g, r in host.staged.items()
                    if g in (host.active, host.previous) or g > generation
                }

    async def revert(
        self, names: Collection[HostName] | None = None
    ) -> Mapping[HostName, int | None]:
        with self.points.point("hosts", "revert"):
            for name in names or ():
                self.present(name)
                host = self.all[name]
                host.active = host.pending_to if host.pending else host.previous
                host.previous, host.pending, host.holding = None, False, None
        return {name: self.all[name].active for name in names or ()}

    async def clear(self, names: Collection[HostName], generations: Collection[int]) -> None:
        await asyncio.sleep(0)
        with self.points.point("hosts", "clear"):
            for name in names:
                self.present(name)
                host = self.all[name]
                if host.armed and host.armed[0] in generations:
                    host.armed = None
                if host.active in generations:
                    host.active = host.previous = host.holding = None
                    host.pending = False
                host.clears += 1
                host.staged = {
                    number: rules
                    for number, rules in host.staged.items()
                    if number not in generations
                }

    async def states(
        self, job: str, names: Collection[HostName] | None = None
    ) -> Mapping[HostName, JobState]:
        return {name: JobState(name, self.ran.get(job, "absent")) for name in names or ()}


def _mac(host: HostName, port: int) -> str:
    return f"02:00:00:00:{int(host[3:]):02x}:{port:02x}"


def plan_text(name: str, *links: tuple[str, str], **more: object) -> str:
    accept = {"neighbours": False, "all_pairs": False, "link_up_timeout_s": 0.3, "max_loss_db": 20}
    body = {
        "schema": "testbed.plan/1",
        "name": name,
        "links": [{"a": a, "b": b} for a, b in links],
        "acceptance": accept,
    }
    return json.dumps(body | more)


def ring(first: int = 1, second: int = 2) -> tuple[tuple[str, str], ...]:
    """Four hosts in a ring over their ports `first` and `second`, in turn."""
    pairs = ((1, 2, first), (2, 3, second), (3, 4, first), (4, 1, second))
    return tuple((f"gpu{a:02d}:p{p}", f"gpu{b:02d}:p{p}") for a, b, p in pairs)


class Bench:
    """Two switches, four hosts with three ports each, a store. Ports 1 and 3 are at ocs1, ports 2
    at ocs2.
    """

    def __init__(self, store: Store, folder: Path) -> None:
        fibres = [
            f'name: f{h}{p}, host: gpu{h:02d}, port: {p}, device: ocs{2 if p == 2 else 1}, enters: "{e}", leaves: "{100 + e}"'
            for h in range(1, 5)
            for p in range(1, 4)
            for e in [h + (10 if p == 3 else 0)]
        ]
        self.furnish(
            store, folder, read(hosts_yml(4, ports=3), {"ocs1": SWITCH, "ocs2": SWITCH}, fibres)
        )

    def furnish(self, store: Store, folder: Path, lab: Lab) -> None:
        """Have `lab`, whose devices are ocs1 and ocs2."""
        self.store, self.folder, self.timeout_s = store, folder, 30.0
        self.lab = lab
        self.points = Points()
        self.fibre_plant = FibrePlant(self.lab)
        self.switches = {name: Switch(name, SWITCH, self.fibre_plant) for name in ("ocs1", "ocs2")}
        self.fibre_plant.devices = dict(self.switches)
        self.fleet = Fleet(self.fibre_plant, self.points)
        for switch in self.switches.values():
            switch.points, switch.fleet = self.points, self.fleet
        self.session = cast(Session, BenchSession(self))

    def context(
        self, verb: str = "up", options: RunOptions = NO_OPTIONS, **row: Any
    ) -> tuple[Run, Context]:
        run = self.store.new_run(verb, LAB, owner=OWNER, user=OWNER, options=options, **row)
        folder = self.folder / run.id
        folder.mkdir()
        context = Context(
            self.session,
            self.store,
            run,
            TENANCY,
            Recorder(Silent()),
            folder,
            30.0,
            options=options,
        )
        scope = SimpleNamespace(hosts=frozenset(self.lab.hosts))
        context.lock = cast(
            Any, SimpleNamespace(lock=SimpleNamespace(scope=scope), extend=lambda scope: False)
        )
        return run, context

    async def up(self, text: str, *, rollback: bool = True, expected: str = "") -> Any:
        plan, asked = (
            read_plan(text, "plan.json", self.lab),
            RunOptions(UpOptions(rollback=rollback, expected=expected)),
        )
        run, context = self.context(
            "up", asked, plan_name=plan.name, plan_text=text, plan_sha=plan.sha256
        )
        with run:
            async with deadline(self.timeout_s, "up") as context.limit:
                report = await Up(context, plan, text).carry_out()
            run.finish("ok")
        return report

    async def killed(self, work: Coroutine[Any, Any, Any]) -> RunRecord:
        """Let `work` run until it is killed; return what the store says of it then."""
        try:
            await work
        except Killed:
            with self.store.transaction() as db:  # `with run` ended it, which the dead do not
                newest = "id=(SELECT max(id) FROM runs)"
                db.execute(
                    f"UPDATE runs SET status='running', ended=NULL, exit_code=NULL, process='before' WHERE {newest}"
                )
                db.execute("UPDATE steps SET state='doing' WHERE error LIKE 'Killed%'")
        else:
            raise AssertionError("it came to its end")
        record = self.store.get("last")
        assert record is not None and record.status == "died"
        return record

    async def back(self, to: Snapshot, verb: str = "rollback") -> Any:
        run, context = self.context(verb)
        with run:
            report = await (
                Down(context, to).carry_out()
                if to.current is None
                else Restore(context, to).carry_out()
            )
            run.finish("hands-needed" if getattr(report, "left", ()) else "ok")
        return report

    def held(self) -> dict[str, frozenset[Setting]]:
        return {name: switch.held for name, switch in self.switches.items()}

    def generations(self) -> dict[str, int | None]:
        return {name: host.active for name, host in self.fleet.all.items()}

    def routes(self) -> dict[str, Rules | None]:
        """What each host's routes are, whatever their number."""
        return {
            n: None if h.active is None else h.staged[h.active] for n, h in self.fleet.all.items()
        }

    def pending(self) -> list[str]:
        return [name for name, host in self.fleet.all.items() if host.pending or host.armed]


class BenchSession(Session):
    """The session of a bench: its own devices and hosts."""

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench.lab, bench.folder, cast(Any, bench.switches), cast(Any, bench.fleet))
