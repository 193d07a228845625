"""The running lab: devices, and behind them the fabric where hosts are wanted."""

from __future__ import annotations

import asyncio
import os
import selectors
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from emulators.config import BadInventory, DeviceConfig, Fibre, LabConfig
from emulators.control import Control
from emulators.dialects.base import AnyDialect
from emulators.fabric import linux
from emulators.fabric.build import Fabric, Host
from emulators.fabric.glass import HostPort
from emulators.fabric.sshd import Keys
from emulators.families import WHERE, device_from_config, family
from emulators.server import Access, DeviceServer, Line

BANNER_DEADLINE_S = 20.0
LASER_DBM = 0.0  # what a host's transmitter puts into its fibre


@dataclass(frozen=True, slots=True)
class Doors:
    """The listening sockets and serial lines, opened before the lab left the machine's network, and the way back to that network.

    access: logins of the devices that are reached over SSH.
    """

    devices: Mapping[str, socket.socket | Line]
    hosts: Mapping[str, socket.socket]
    control: socket.socket
    machine_net: int | None
    pid: int
    access: Mapping[str, Access] = field(default_factory=dict)


class Lab:
    """Serves the devices of `config`; moves the light of `fabric` when their glass changes."""

    def __init__(self, config: LabConfig, dialects: Mapping[str, AnyDialect], doors: Doors, fabric: Fabric | None) -> None:
        self.config, self.doors, self.fabric = config, doors, fabric
        self.glass: dict[str, frozenset[tuple[str, str]]] = {name: frozenset() for name in config.devices}
        self.servers = {
            name: DeviceServer(
                name,
                dialect,
                scheme=config.devices[name].address.scheme,
                sock=doors.devices[name],
                access=doors.access.get(name),
                on_glass=self._on_glass,
            )
            for name, dialect in dialects.items()
        }
        self.stopped = asyncio.Event()
        self._fibres = {HostPort(f.host, f.port): f for f in config.fibres}
        self._silent: set[HostPort] = set()  # transmitters switched off: the port is administratively down or its host is dead

    @property
    def hosts(self) -> Mapping[str, Host]:
        """The running hosts; none in a lab of devices alone."""
        return self.fabric.hosts if self.fabric else {}

    async def run(self, ready: Callable[[], None]) -> None:
        """Serve until told to stop; calls `ready` when every device listens and every host's sshd has shown its banner."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stopped.set)
        for server in self.servers.values():
            await server.start()
        control = Control(self)
        listener = await asyncio.start_unix_server(control.talk, sock=self.doors.control)
        if self.fabric:
            await self._wait_for_banners()
            for host in self.hosts.values():
                loop.add_reader(host.control.fileno(), self._host_died, host)
                loop.add_reader(host.ports.fileno(), self._ports_switched, host)
        ready()
        log(f"lab {self.config.inventory}: {len(self.servers)} devices, {len(self.hosts)} hosts, ready")
        await self.stopped.wait()
        listener.close()
        control.hang_up()
        for server in self.servers.values():
            await server.stop()

    def sever(self, fibre: Fibre, cut: bool) -> None:
        """Cut a cable, or splice it."""
        assert self.fabric is not None
        self.fabric.sever(fibre.name, cut)
        self._feed(fibre)

    def _on_glass(self, device: str, pairs: frozenset[tuple[str, str]], now: float) -> None:
        self.glass[device] = pairs
        if self.fabric:
            self.fabric.show(device, pairs)

    def _ports_switched(self, host: Host) -> None:
        for number, up in host.ports.read():
            self._transmit(HostPort(host.name, number), up)

    def _transmit(self, port: HostPort, on: bool) -> None:
        """A port that is switched off sends no light: the far end goes dark, as with a real transceiver."""
        if on:
            self._silent.discard(port)
        else:
            self._silent.add(port)
        if port in self._fibres:
            self._feed(self._fibres[port])

    def _feed(self, fibre: Fibre) -> None:
        dark = HostPort(fibre.host, fibre.port) in self._silent or (self.fabric and fibre.name in self.fabric.glass.cut)
        self.servers[fibre.device].set_input(fibre.enters, None if dark else LASER_DBM)

    def _host_died(self, host: Host) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(host.control.fileno())
        loop.remove_reader(host.ports.fileno())
        host.ports.close()
        host.door_open = False
        host.pid = host.machine_pid = 0
        log(f"host {host.name}: its first process ended; the host is gone until the lab starts anew")
        for number in self.config.hosts[host.name].interfaces:
            self._transmit(HostPort(host.name, number), False)

    async def _wait_for_banners(self) -> None:
        assert self.doors.machine_net is not None
        async with asyncio.timeout(BANNER_DEADLINE_S), asyncio.TaskGroup() as group:
            with linux.inside(self.doors.machine_net):
                callers = {name: socket.socket() for name in self.hosts}
            for name, caller in callers.items():
                group.create_task(self._wait_for_banner(caller, self.config.hosts[name].ssh_port))

    async def _wait_for_banner(self, caller: socket.socket, port: int) -> None:
        loop = asyncio.get_running_loop()
        with caller:
            caller.setblocking(False)
            await loop.sock_connect(caller, ("127.0.0.1", port))
            banner = await loop.sock_recv(caller, 256)
            if not banner.startswith(b"SSH-2.0-"):
                raise RuntimeError(f"sshd at 127.0.0.1:{port} says {banner!r} instead of its banner")


def build_devices(config: LabConfig) -> dict[str, AnyDialect]:
    """Make the devices of a lab. Raises: BadInventory - a driver without an emulator, or a setting no device has."""
    problems, dialects = [], {}
    for name, device in config.devices.items():
        try:
            _, dialects[name] = device_from_config(name, device.driver, _settings(device), config.seed)
        except ValueError as problem:
            problems.append(f"{config.inventory}/emulator.yml: devices: {problem}")
    for name, device in config.devices.items():
        if name in dialects and device.address.scheme not in (schemes := family(device.driver).schemes):
            problems.append(f"{config.inventory}/devices.yml: {name}: an emulated {device.driver} answers on {', '.join(schemes)}")
    if problems:
        raise BadInventory("\n".join(problems))
    return dialects


def _settings(device: DeviceConfig) -> dict[str, object]:
    """What emulator.yml says of a device, and the login devices.yml expects of it."""
    login = {"username": device.username, "password": device.password}
    taken = family(device.driver).settings if device.driver in WHERE else frozenset()
    return {k: v for k, v in login.items() if v is not None and k in taken} | dict(device.overrides)


def logins(config: LabConfig, keys: Keys) -> dict[str, Access]:
    """Return who may log in to each device reached over SSH: as devices.yml or else the family says, and the lab's own key."""
    found = {}
    for name, (secret, _) in keys.hosts.items():
        device = config.devices[name]
        username, password = family(device.driver).login or (None, None)
        given = Path(f"{device.key_file}.pub").expanduser()
        more = (given.read_text(),) if device.key_file and given.is_file() else ()
        found[name] = Access(device.username or username, device.password or password, (keys.client_public, *more), secret)
    return found


def log(words: str) -> None:
    """Add a line to the lab's log."""
    print(words, file=sys.stderr, flush=True)


def take_priority() -> None:
    """Run this process before others, its children not: a busy machine must not stretch the switching time it emulates."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except OSError as problem:
        log(f"no real-time priority ({problem.strerror}): light may move late when the cores are busy")


def serve(
    config: LabConfig,
    dialects: Mapping[str, AnyDialect],
    doors: Doors,
    fabric: Fabric | None,
    ready: Callable[[], None],
) -> None:
    """Run a lab in an event loop of its own until it is told to stop."""

    async def main() -> None:
        await Lab(config, dialects, doors, fabric).run(ready)

    # epoll counts in milliseconds and rounds up; light that is due should not wait for that. select() takes few descriptors.
    loop = asyncio.SelectorEventLoop(selectors.SelectSelector()) if len(config.hosts) <= 64 else asyncio.new_event_loop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(main())
