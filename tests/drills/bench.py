"""A lab in one process: the real verbs and drivers, emulated devices on loopback, the hosts of
`tests.change.fleet`.

Every verb runs as a process of its own would: it may be cancelled, and it may die. One that died
does nothing more: no commit, no byte, no request gets through, whatever its `finally` blocks try.
Nothing of this is known to the program.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

from drivers.link.tcp import TcpLink
from drivers.registry import open_device
from emulators.devices.dialects.calient_tl1 import CalientTl1
from emulators.devices.dialects.polatis_scpi import PolatisScpi
from emulators.devices.families import device_from_config
from emulators.devices.server import DeviceServer
from optics import Dbm, Port
from orchestrator import session as sessions
from orchestrator.change import rollback as undoing
from orchestrator.change import run as changes
from orchestrator.fabric.rules import Rules
from orchestrator.session import Command, Session, load_lab
from orchestrator.settings import Bounds, Settings
from orchestrator.store import audit, locks, store
from orchestrator.store.keys import key_of, tenancy_of
from orchestrator.store.locks import locks_of
from orchestrator.store.options import UpOptions
from orchestrator.store.store import Store
from orchestrator.telemetry.progress import Silent
from orchestrator.verbs import change as engine
from orchestrator.verbs import status as survey
from tests.change.fleet import Fleet, Points
from tests.drills.switches import Pair, labels, made_by_hand

SETTLE_S, BOOT_S, SILENCE_S, PATIENCE_S, LINK_S = 0.005, 0.15, 0.25, 0.25, 0.3
FOREIGN = 15
"""The ports with this number carry a circuit of somebody else's, on every device."""
DRIVERS = ("polatis-scpi", "calient-tl1")


NO_JOB = UpOptions(launch_job=False)


class Killed(BaseException):
    """The process got SIGKILL here."""


@dataclass
class Process:
    """One run of a verb. `kill_at`: the number of the point at which it dies; `act`: called at
    every point with its name.
    """

    mark: str
    kill_at: int = 0
    act: Callable[[str], None] = lambda name: None
    dead: bool = False
    points: list[str] = field(default_factory=list)

    def point(self, name: str) -> None:
        """Pass a point, if still alive."""
        self.alive()
        self.points.append(name)
        self.act(name)
        if len(self.points) == self.kill_at:
            self.dead = True
        self.alive()

    def alive(self) -> None:
        if self.dead:
            raise Killed(self.points[-1])


NOW: ContextVar[Process | None] = ContextVar("process", default=None)


class Light:
    """What `tests.change.fleet.Fleet` asks of a light path, answered by the emulated plants."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.lab = bench, bench.lab

    def at(self) -> dict[tuple[str, Port], Dbm]:
        return {
            ("out", Port(name, egress)): -2.0
            for name, lit in self.bench.lit.items()
            for _, egress in lit
        }


class Hosts(Fleet):
    """The fake hosts, heard by one process at a time as long as it lives."""

    token: int | None = None

    async def provision(self, names: object = None) -> Mapping[str, object]:
        return {}


class Requests(Points):
    """Requests to hosts, which are points of the process that makes them."""

    @contextmanager
    def point(self, who: str, what: str) -> Iterator[str]:
        process = NOW.get()
        if process is not None:
            process.point(f"before {who} {what}")
        with super().point(who, what) as how:
            yield how
        if process is not None:
            process.point(f"after {who} {what}")


def inventory(folder: Path, hosts: int, ports: int, devices: Mapping[str, tuple[str, int]]) -> None:
    """Write the three files: port p of every host is wired to device 1 + (p - 1) mod devices.
    devices: name -> driver, port.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["all:", "  hosts:"]
    for host in range(1, hosts + 1):
        named = ", ".join(f"{p}: {{interface: opt{p}}}" for p in range(1, ports + 1))
        lines.append(f"    gpu{host:02d}: {{testbed_host_id: {host}, testbed_ports: {{{named}}}}}")
    (folder / "hosts.yml").write_text("\n".join(lines) + "\n")
    lines = ["lab: bench", "devices:"]
    for name, (driver, number) in devices.items():
        login = "username: admin, password: emulated, " if driver == "calient-tl1" else ""
        timing = f'timeout_s: {SILENCE_S}, traits: {{settle_s: {SETTLE_S}}}, options: {{patience_s: "{PATIENCE_S}"}}'
        lines.append(
            f'  {name}: {{driver: {driver}, address: "tcp://127.0.0.1:{number}", {login}{timing}}}'
        )
    (folder / "devices.yml").write_text("\n".join(lines) + "\n")
    lines = ["fibres:"]
    for host in range(1, hosts + 1):
        for port in range(1, ports + 1):
            name = list(devices)[(port - 1) % len(devices)]
            at = (port - 1) // len(devices) * hosts + host
            enters, leaves = labels(devices[name][0], at, at)
            where = f'host: gpu{host:02d}, port: {port}, device: {name}, enters: "{enters}", leaves: "{leaves}"'
            lines.append(f"  - {{name: f{host}-{port}, {where}}}")
    (folder / "fibres.yml").write_text("\n".join(lines) + "\n")


class Bench:
    """The lab, and whoever stands before it. Use `opened`."""

    def __init__(self, folder: Path, hosts: int, ports: int) -> None:
        self.folder, self.servers = folder, dict[str, DeviceServer]()
        self.lit: dict[str, frozenset[Pair]] = {}
        self.drivers = {f"ocs{n}": driver for n, driver in enumerate(DRIVERS, 1)}
        self.size = (hosts, ports)
        self.lives = 0
        self.living: set[str] = set()

    async def start(self) -> None:
        for name, driver in self.drivers.items():
            more = {"settle_s": SETTLE_S, "boot_s": BOOT_S, "size": "16x16"}
            more |= (
                {"row_delay_s": 0.0, "bulk_settle_s": SETTLE_S} if driver == "calient-tl1" else {}
            )
            plant, dialect = device_from_config(name, driver, more)
            self.servers[name] = DeviceServer(
                name, dialect, plant, on_light_change=self._light_changed
            )
            self.make_foreign(name)
            self.lit[name] = frozenset()
            await self.servers[name].start()
        where = self.folder / "inventory"
        inventory(
            where,
            *self.size,
            {name: (self.drivers[name], server.port) for name, server in self.servers.items()},
        )
        self.inventory, self.lab = where, load_lab(where)
        self.requests = Requests()
        self.fleet = Hosts(cast(Any, Light(self)), self.requests)

    def _light_changed(self, device: str, lit: Any, now: float) -> None:
        self.lit[device] = lit
        if hasattr(self, "fleet"):
            self.fleet.light()

    async def stop(self) -> None:
        for server in self.servers.values():
            await server.stop()

    # --- operators

    def settings(self, owner: str = "ann") -> Settings:
        f = self.folder
        return Settings(
            self.inventory, 30.0, f / "data", f / "state", f / "cache", f / "locks", owner, owner
        )

    @contextmanager
    def store(self, owner: str = "ann") -> Iterator[Store]:
        with Store(self.settings(owner).store_path, durable=False) as opened:
            yield opened

    def tenancy(self, owner: str = "ann") -> str:
        return tenancy_of(self.lab, self.settings(owner))

    @property
    def key(self) -> str:
        return key_of(self.lab)

    async def verb(
        self, verb: Any, *argv: Any, owner: str = "ann", process: Process | None = None, **more: Any
    ) -> Any:
        """Run one verb of the engine as a process of its own. Raises: what the verb raises;
        Killed.
        """
        self.lives += 1
        process = process or Process("")
        process.mark = f"life-{self.lives}"
        self.living.add(process.mark)
        token = NOW.set(process)
        others = asyncio.all_tasks()
        try:
            with self.store(owner) as opened:
                return await verb(Command(Silent(), opened, self.settings(owner)), *argv, **more)
        except Killed:
            process.dead = True
            mine = {
                task
                for task in asyncio.all_tasks() - others - {asyncio.current_task()}
                if not _emulated(task)
            }
            for task in mine:  # they died with it
                task.cancel()
            await asyncio.gather(*mine, return_exceptions=True)
            raise
        finally:
            NOW.reset(token)
            self.living.discard(process.mark)

    async def up(
        self, plan: str, *, owner: str = "ann", process: Process | None = None, **asked: Any
    ) -> Any:
        path = self.folder / f"{owner}.json"
        path.write_text(plan)
        return await self.verb(
            engine.up, path, replace(NO_JOB, **asked), owner=owner, process=process
        )

    async def status(self, owner: str = "ann") -> Any:
        return await self.verb(survey.status, owner=owner)

    # --- the truth

    def held(self) -> dict[str, set[Pair]]:
        """The circuits each device holds, by its own mirrors."""
        return {name: set(server.plant.pairs()) for name, server in self.servers.items()}

    def make_foreign(self, device: str) -> None:
        self.make(device, self.foreign(device))

    def make(self, device: str, pair: Pair) -> None:
        """Somebody else makes a circuit, with means of his own."""
        made_by_hand(self.servers[device], pair)

    def take_down(self, device: str, pair: Pair) -> None:
        """Somebody else takes down a circuit, whoever made it; of a duplex connection both."""
        server, dialect = self.servers[device], self.servers[device].dialect
        now, pairs = server.loop.time(), (pair,)
        if isinstance(dialect, CalientTl1):
            connection = next(c for c in dialect.table if pair in c.pairs)
            pairs = connection.pairs
            dialect.table.remove(connection)
        server.plant.disconnect(pairs, now)
        if isinstance(dialect, PolatisScpi):
            dialect._changed()
        server.changed()

    def dark(self, links: Iterable[tuple[str, str]]) -> list[str]:
        """The ports of `links` that no light reaches."""
        lit = Light(self).at()
        fibres = {str(port): fibre for port, fibre in self.lab.fibres.items()}
        return [port for link in links for port in link if ("out", fibres[port].leaves) not in lit]

    def foreign(self, device: str) -> Pair:
        return labels(self.drivers[device], FOREIGN, FOREIGN)

    def routes(self) -> dict[str, Rules | None]:
        return {
            n: None if h.active is None else h.staged.get(h.active)
            for n, h in self.fleet.all.items()
        }

    def owing(self) -> list[str]:
        """Hosts that will change their routes by themselves."""
        return [name for name, host in self.fleet.all.items() if host.pending or host.armed]

    def violations(self) -> list[str]:
        return [
            f"{name}: {v.pair}: {v.why}"
            for name, server in self.servers.items()
            for v in server.plant.violations
        ]

    def wanted(self, links: Iterable[tuple[str, str]]) -> dict[str, set[Pair]]:
        """The circuits that duplex links need, and the foreign ones, read off the cables."""
        found = {name: {self.foreign(name)} for name in self.servers}
        cables = {str(port): fibre for port, fibre in self.lab.fibres.items()}
        for a, b in links:
            for one, other in ((a, b), (b, a)):
                found[cables[one].enters.device].add(
                    (cables[one].enters.label, cables[other].leaves.label)
                )
        return found

    def locked(self, owner: str = "ann") -> list[str]:
        with self.store(owner) as opened:
            return [str(lock) for lock in locks_of(self.lab, self.settings(owner), opened).listed()]


@contextmanager
def _wrapped(bench: Bench) -> Iterator[None]:
    transaction, write = Store.transaction, TcpLink._write

    @contextmanager
    def committed(self: Store) -> Iterator[Any]:
        process = NOW.get()
        if process is not None:
            process.alive()
        with transaction(self) as db:
            was = db.total_changes
            yield db
            if (changed := db.total_changes != was) and process is not None:
                process.point("before commit")
        if changed and process is not None:
            process.point("after commit")

    async def written(self: TcpLink, data: bytes) -> None:
        process = NOW.get()
        if process is not None:
            process.point(f"before {self.who}")
        await write(self, data)
        if process is not None:
            process.point(f"after {self.who}")

    @asynccontextmanager
    async def session(
        lab: Any, inventory: Path, run_dir: Path, bounds: Bounds
    ) -> AsyncIterator[Session]:
        devices = {name: open_device(config) for name, config in lab.devices.items()}
        try:
            yield Session(lab, inventory, devices, cast(Any, bench.fleet), bounds)
        finally:
            await asyncio.shield(
                asyncio.gather(
                    *(device.close() for device in devices.values()), return_exceptions=True
                )
            )

    def mark(pid: int) -> str:
        process = NOW.get()
        return process.mark if process is not None else "the drill"

    def living(pid: int, mark: str) -> bool:
        return mark in bench.living

    with ExitStack() as patches:
        for owner, name, new in (
            (Store, "transaction", committed),
            (TcpLink, "_write", written),
            *((module, "open_session", session) for module in (sessions, changes)),
            *((module, "process_mark", mark) for module in (store, audit)),
            *((module, "process_alive", living) for module in (store, locks)),
            (undoing, "RETURN_S", 1.0),
            (undoing, "POLL_S", 0.02),
        ):
            patches.enter_context(patch.object(owner, name, new))
        yield


@asynccontextmanager
async def opened(folder: Path, *, hosts: int = 3, ports: int = 4) -> AsyncIterator[Bench]:
    """A bench that runs as long as the body."""
    bench = Bench(folder, hosts, ports)
    await bench.start()
    try:
        with _wrapped(bench):
            yield bench
    finally:
        await bench.stop()


def _emulated(task: Any) -> bool:
    """Whether a task is a device's and not the process's that died."""
    return "/emulators/" in getattr(getattr(task.get_coro(), "cr_code", None), "co_filename", "")


def plan_text(name: str, links: Iterable[tuple[str, str]]) -> str:
    accept = {
        "neighbours": False,
        "all_pairs": False,
        "link_up_timeout_s": LINK_S,
        "max_loss_db": 20,
    }
    body = {
        "schema": "testbed.plan/1",
        "name": name,
        "links": [{"a": a, "b": b} for a, b in links],
        "acceptance": accept,
    }
    return json.dumps(body)


def run(work: Awaitable[Any]) -> Any:
    async def main() -> Any:
        return await work

    return asyncio.run(main())
