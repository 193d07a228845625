"""The world: switches (real dialects, byte by byte), hosts, the light between them, and operators
who type the real verbs.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import sqlite3
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tests.drills.switches import labels
from tests.sim.agents import SimHost
from tests.sim.desk import Desk
from tests.sim.devices import Circuit, SimDevice
from tests.sim.judged import Judge, Judged
from tests.sim.judged import Violation as Violation
from tests.sim.kernel import DiskOs, opener
from tests.sim.loop import ACTOR, Actor, Killed, SimLoop, point
from tests.sim.net import Net
from tests.sim.reach import SimAnsible, login
from tests.sim.seams import (
    Command,
    DeviceServer,
    Settings,
    Silent,
    Store,
    TestbedError,
    device_from_config,
    facts,
    key_of,
    load_lab,
    tenancy_of,
)

SETTLE_S, BOOT_S, SILENCE_S, PATIENCE_S, LINK_S = 0.02, 1.0, 0.6, 1.0, 0.6
DRIVERS = {"ocs1": "polatis-scpi", "ocs2": "calient-tl1"}
HOSTS, PORTS = 4, 4
OWNERS = ("ann", "bob")
LOOKER = "eve"
"""An operator who owns nothing, and looks."""


def inventory(folder: Path, ports: Mapping[str, int]) -> None:
    """Write the three files: port p of every host is wired to device 1 + (p - 1) mod devices."""
    folder.mkdir(parents=True)
    hosts, devices, fibres = ["all:", "  hosts:"], ["lab: sim", "devices:"], ["fibres:"]
    for host in range(1, HOSTS + 1):
        named = ", ".join(f"{p}: {{interface: opt{p}}}" for p in range(1, PORTS + 1))
        hosts.append(f"    gpu{host:02d}: {{testbed_host_id: {host}, testbed_ports: {{{named}}}}}")
    for name, number in ports.items():
        access = "username: admin, password: emulated, " if DRIVERS[name] == "calient-tl1" else ""
        timing = f'timeout_s: {SILENCE_S}, traits: {{settle_s: {SETTLE_S}}}, options: {{patience_s: "{PATIENCE_S}"}}'
        devices.append(
            f'  {name}: {{driver: {DRIVERS[name]}, address: "tcp://127.0.0.1:{number}", {access}{timing}}}'
        )
    for host in range(1, HOSTS + 1):
        for port in range(1, PORTS + 1):
            name = list(ports)[(port - 1) % len(ports)]
            at = (port - 1) // len(ports) * HOSTS + host
            enters, leaves = labels(DRIVERS[name], at, at)
            where = f'host: gpu{host:02d}, port: {port}, device: {name}, enters: "{enters}", leaves: "{leaves}"'
            fibres.append(f"  - {{name: f{host}-{port}, {where}}}")
    for file, lines in (("hosts", hosts), ("devices", devices), ("fibres", fibres)):
        (folder / f"{file}.yml").write_text("\n".join(lines) + "\n")


def disk() -> Any:
    """Of the machine of the process that runs now."""
    return ACTOR.get().disk  # type: ignore[attr-defined]


class World(Judged):
    """See the module. judges: told of everything that happens; `bad` is the first violation
    that one of them names.
    """

    drivers: Mapping[str, str] = DRIVERS
    """Of each device."""
    kinds: Mapping[str, type[SimDevice]] = {}
    """By driver, where it is no switch."""
    endless: Collection[str] = ()
    """Verbs that go on until they are stopped."""
    owners: Collection[str] = OWNERS
    """Who may own light."""
    scheduling: Collection[Actor] = ()
    """Processes whose effects are steps of the journal together, a minute of them each."""

    def __init__(self, loop: SimLoop, seed: str, folder: Path) -> None:
        super().__init__(loop)
        self.seed, self.folder = seed, folder
        self.rng = random.Random(f"world/{seed}")
        self.net = loop.net = Net(loop, seed)
        self.desk = Desk(loop, folder, seed)
        self.servers: dict[str, DeviceServer] = {}
        self.devices: dict[str, SimDevice] = {}
        self.switches: dict[str, Actor] = {}
        self.devices_by_port: dict[int, str] = {}
        self.hosts: dict[str, SimHost] = {}
        self.light: dict[str, frozenset[Any]] = {}
        self.disturbed: dict[str, float] = {}
        """When a device or host last lost something by itself."""
        self.calm_since = math.inf
        """Since when nothing goes wrong any more."""
        self.ends: Counter[str] = Counter()
        self._store: Store | None = None
        self._settings: dict[tuple[str, float], Settings] = {}
        self._slices: dict[str, str] = {}
        self._reader: sqlite3.Connection | None = None
        self.disk_os, self.disk_open = DiskOs(disk), opener(disk)

    async def start(self, judges: list[Callable[[World], Judge]]) -> None:
        for name, driver in self.drivers.items():
            self.devices[name] = device = self.kinds.get(driver, SimDevice)(name, driver)
            device.plant, dialect = device_from_config(
                name, driver, device.reported(SETTLE_S, BOOT_S)
            )
            self.servers[name] = device.server = server = DeviceServer(
                name, dialect, device.plant, on_light_change=self._light_changed
            )
            self.switches[name] = self.loop.actor(name, self.loop.sea.machine)
            self.light[name] = frozenset()
            device.make()
            await self.loop.start(self.switches[name], server.start())
            self.devices_by_port[server.port] = name
            dialect.reboot = partial(self._rebooted, name, dialect.reboot)  # type: ignore[method-assign]
        self.inventory = self.folder / "inventory"
        inventory(self.inventory, {name: server.port for name, server in self.servers.items()})
        self.lab = load_lab(self.inventory)
        self.key = key_of(self.lab)
        for number, (name, host) in enumerate(self.lab.hosts.items(), 1):
            self.hosts[name] = SimHost(
                self.loop, self.net, self, name, facts(host), number, self.seed
            )
        self.cables = {str(port): fibre for port, fibre in self.lab.fibres.items()}
        self.sources = {
            (f.enters.device, f.enters.label): self.hosts[p.host]
            for p, f in self.lab.fibres.items()
        }
        self._lights()
        for path in self.inventory.iterdir():
            self.desk.keep(path)
        self.appoint([judge(self) for judge in judges])
        self.net.sending = self._sending

    def close(self) -> None:
        for opened in (self._reader, self._store):
            if opened is not None:
                opened.close()

    @property
    def reader(self) -> sqlite3.Connection:
        """A connection to the store for judges, who write nothing."""
        if self._reader is None:
            self._reader = sqlite3.connect(self.store.path, isolation_level=None)
            self._reader.row_factory = sqlite3.Row
        return self._reader

    # ---- stand-ins for parts of the program

    def proc(self, name: str) -> str:
        return self.desk.proc(name)

    def synced(self, fd: int) -> None:
        self.desk.sync(fd)

    def login(self, host: str, target: object, timeout_s: float) -> Any:
        return login(self.hosts[host], timeout_s)

    def ansible(self, *_: object) -> SimAnsible:
        return SimAnsible(self.hosts, self.desk)

    def _sending(self, actor: Actor, port: int, data: bytes) -> Callable[[], object]:
        device = self.devices_by_port.get(port)
        if device is None or not actor.mortal:
            return lambda: None
        if not actor.dead:
            writes = self.servers[device].dialect.writes.search
            for line in self.devices[device].lines(data.decode("latin-1")):
                if line.strip():
                    for notify in self.shown["sends"]:
                        notify(actor, device, line, bool(writes(line)))
        point(f"before {device}")
        return partial(point, f"after {device}")

    # ---- light

    def _light_changed(self, device: str, lit: Any, now: float) -> None:
        self.light[device] = lit
        if self.hosts:
            self._lights()

    def _lights(self) -> None:
        """Each port follows its light after a moment."""
        for port in self.lab.fibres:
            host = self.hosts[port.host]
            if self.lit(str(port)) is not host.kernel.nics[host.ports[port.number]].carrier:
                self.loop.later(
                    self.rng.uniform(1e-4, 2e-3), self._seen, str(port), host, port.number
                )

    def _seen(self, port: str, host: SimHost, number: int) -> None:
        host.sees(number, self.lit(port))

    def lit(self, port: str) -> bool:
        """Whether light of a host that has power leaves the lab towards this port."""
        leaves = self.cables[port].leaves
        source = next(
            (
                self.sources.get((leaves.device, into))
                for into, out in self.light[leaves.device]
                if out == leaves.label
            ),
            None,
        )
        return source is not None and source.power

    # ---- what hands and fates do

    def _rebooted(
        self, device: str, reboot: Callable[[bool, float], None], keep: bool, now: float
    ) -> None:
        self.disturbed[device] = self.loop.now
        self.loop.note(f"{device} reboots, keep={keep}")
        reboot(keep, now)

    def host_power(self, name: str) -> None:
        """A host loses power for a while; its ports' far ends see it."""
        self.disturbed[name] = self.loop.now
        self.hosts[name].lose_power()
        self._lights()
        self.loop.later(35.0, self._lights)

    # ---- operators

    def settings(self, owner: str, wait_s: float = 0.0) -> Settings:
        if (owner, wait_s) not in self._settings:
            f = self.folder
            self._settings[owner, wait_s] = Settings(
                self.inventory,
                60.0,
                f / "data",
                f / "state",
                f / "cache",
                f / "locks",
                owner,
                owner,
                wait_s=wait_s,
                sample_hz=0,
            )
        return self._settings[owner, wait_s]

    def tenancy(self, owner: str) -> str:
        if owner not in self._slices:
            self._slices[owner] = tenancy_of(self.lab, self.settings(owner))
        return self._slices[owner]

    @property
    def store(self) -> Store:
        """The store, for looks of the world's own."""
        if self._store is None:
            self._store = Store(self.settings(OWNERS[0]).store_path)
        return self._store

    def process(self, owner: str, name: str, doom: tuple[str, int] = ("", 0)) -> Actor:
        """A process of an operator's."""
        actor = self.desk.process(name)
        actor.mortal, actor.doom = True, doom
        actor.owner = owner  # type: ignore[attr-defined]
        return actor

    async def command(
        self, actor: Actor, verb: Any, *argv: Any, wait_s: float = 0.0, **more: Any
    ) -> Any:
        """Run a verb as this process. Returns what it returned or raised; "killed" if it was."""
        done: asyncio.Future[Any] = self.loop.create_future()
        actor.on_death.append(lambda: None if done.done() else done.set_result("killed"))
        owner: str = actor.owner  # type: ignore[attr-defined]

        async def life() -> Any:
            opened = Store(self.settings(owner).store_path)
            actor.on_death.append(opened.close)
            if opened.read("PRAGMA synchronous")[0][0] != 2:
                self.broken(
                    "the store does not sync every commit: a power loss would take some back"
                )
            with opened:
                return await verb(
                    Command(Silent(), opened, self.settings(owner, wait_s)), *argv, **more
                )

        def ended(task: asyncio.Task[Any]) -> None:
            came = "cancelled" if task.cancelled() else task.exception() or task.result()
            actor.ended = True
            if not done.done():
                done.set_result(came)

        self.loop.note(f"START {actor}")
        for notify in self.shown["begins"]:
            notify(actor, verb.__name__)
        task = self.loop.start(actor, life())
        task.add_done_callback(ended, context=self.loop.context(actor))
        came = await done
        if not actor.dead:
            self.exit(actor)
        if isinstance(came, Killed):
            came = "killed"
        elif isinstance(came, BaseException) and not isinstance(came, TestbedError):
            raise came
        end = (
            came
            if isinstance(came, str)
            else type(came).__name__
            if isinstance(came, BaseException)
            else "success"
        )
        self.ends[f"{verb.__name__} {end}"] += 1
        output = str(came).replace(str(self.folder), "") if isinstance(came, BaseException) else ""
        self.loop.note(f"END {actor} {end} {output}")
        for notify in self.shown["ended"]:
            notify(actor, verb.__name__, came)
        return came

    def exit(self, actor: Actor) -> None:
        """The process ends by itself; what it left running ends with it."""
        with contextlib.suppress(Killed):
            self.loop.kill(actor)

    # ---- the truth

    def owned(self, owner: str) -> dict[str, set[Circuit]]:
        """The circuits that the store says an owner has."""
        found: dict[str, set[Circuit]] = {name: set() for name in self.servers}
        query = "SELECT device, ingress, egress, low_mhz, high_mhz FROM held WHERE lab=?"
        for device, *ports, low_mhz, high_mhz in self.reader.execute(query, (self.tenancy(owner),)):
            found[device].add((*ports, low_mhz, high_mhz) if high_mhz else tuple(ports))
        return found

    def wanted(self, links: Any) -> dict[str, set[Circuit]]:
        """The circuits that duplex links need, read off the cables."""
        found: dict[str, set[Circuit]] = {name: set() for name in self.servers}
        for a, b in links:
            for one, other in ((a, b), (b, a)):
                found[self.cables[one].enters.device].add(
                    (self.cables[one].enters.label, self.cables[other].leaves.label)
                )
        return found


def text(circuits: Iterable[Circuit]) -> set[str]:
    """Circuits of a device as the program shows them."""
    return {
        f"{a}->{b}" + ("@{:.4f}-{:.4f}THz".format(*(at / 1e6 for at in slot)) if slot else "")
        for a, b, *slot in circuits
    }
