"""The running lab: devices, and behind them the fabric where hosts are wanted."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from emulators.devices.dialects.base import AnyDialect
from emulators.devices.families import WHERE, device_from_config, family
from emulators.devices.server import Access, DeviceServer, Line
from emulators.fabric import linux
from emulators.fabric.build import Fabric, laid
from emulators.fabric.fibre_plant import HostPort, Relight
from emulators.fabric.functions import Functions
from emulators.fabric.gate import lack
from emulators.fabric.hosts import Host
from emulators.fabric.sockets import listen
from emulators.fabric.sshd import Keys
from emulators.inventory.config import DeviceConfig, Fibre, LabConfig, Trunk
from emulators.inventory.files import BadInventory
from emulators.lab.feeds import Feeds
from emulators.lab.machines import Machine
from emulators.optics.light import Lit, Violation
from emulators.optics.plant import Plant
from emulators.optics.rotorplant import RotorPlant


@dataclass(frozen=True, slots=True)
class Listeners:
    """The listening sockets and serial lines, opened before the lab left the machine's network, and
    the namespace to return to.

    access: logins of the devices that are reached over SSH. bmcs: of hosts' management controllers.
    """

    devices: Mapping[str, socket.socket | Line]
    hosts: Mapping[str, socket.socket]
    control: socket.socket
    machine_net: int | None
    pid: int
    access: Mapping[str, Access] = field(default_factory=dict)
    bmcs: Mapping[str, socket.socket] = field(default_factory=dict)


class Control(Protocol):
    """The operations of the control socket (control.py)."""

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one client."""

    def hang_up(self) -> None:
        """End all conversations."""


class Lab:
    """Serves the devices of `config`; moves the light of `fabric` when their light paths
    changes."""

    def __init__(
        self,
        config: LabConfig,
        dialects: Mapping[str, AnyDialect],
        listeners: Listeners,
        fabric: Fabric | None,
    ) -> None:
        self.config, self.listeners, self.fabric = config, listeners, fabric
        self.lit: dict[str, frozenset[Lit]] = {name: frozenset() for name in config.devices}
        self.servers = {
            name: DeviceServer(
                name,
                dialect,
                scheme=config.devices[name].address.scheme,
                sock=listeners.devices[name],
                access=listeners.access.get(name),
                on_light_change=self._light_changed,
                on_schedule=fabric.advance if fabric else None,
            )
            for name, dialect in dialects.items()
        }
        self.machines = {
            name: Machine(host, self._halt, self._boot) for name, host in self.hosts.items()
        }
        self._bmcs = {name: self._bmc(name, sock) for name, sock in listeners.bmcs.items()}
        self.stopped = asyncio.Event()
        if fabric and (
            rotors := [d.plant for d in dialects.values() if isinstance(d.plant, RotorPlant)]
        ):
            without = lack()
            for rotor in rotors:
                rotor.cannot_gate = without
        # which receiver gets which transmitter's light
        self.light = fabric.fibre_plant if fabric else laid(config)
        self._fibres = {HostPort(f.host, f.port): f for f in config.fibres}
        self.unplugged: set[str] = set()  # cables of packet switches
        self._cables: dict[str, Fibre | Trunk] = {f.name: f for f in config.fibres} | {
            t.name: t for t in config.trunks
        }
        self._feeds = Feeds(config, self.servers, self.light)
        self._feeds.start()

    @property
    def hosts(self) -> Mapping[str, Host]:
        """The running hosts; none in a lab of devices alone."""
        return self.fabric.hosts if self.fabric else {}

    @property
    def functions(self) -> Mapping[str, Functions]:
        """The functions of packet switches, by segment; none in a lab of devices alone."""
        return self.fabric.functions if self.fabric else {}

    async def run(self, control: Control, ready: Callable[[], None]) -> None:
        """Serve until stopped; calls `ready` when every device listens and every host's sshd has
        shown its banner.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stopped.set)
        for server in (*self.servers.values(), *self._bmcs.values()):
            await server.start()
        # Not start_unix_server: from Python 3.13 on it looks up the socket's name, which is one of
        # the process that bound it.
        listener = await asyncio.start_server(control.talk, sock=self.listeners.control)
        if self.fabric:
            await self._wait_for_banners()
            for process in self.functions.values():
                loop.add_reader(process.control.fileno(), self._functions_reported, process)
            for host in self.hosts.values():
                loop.add_reader(host.control.fileno(), self._host_died, host)
                loop.add_reader(host.ports.fileno(), self._ports_switched, host)
        ready()
        log(
            f"lab {self.config.inventory}: {len(self.servers)} devices, {len(self.hosts)} hosts, ready"
        )
        await self.stopped.wait()
        listener.close()
        control.hang_up()
        for server in (*self.servers.values(), *self._bmcs.values()):
            await server.stop()

    def sever(self, name: str, cut: bool) -> None:
        """Cut a cable or a trunk, or splice it. Raises: KeyError - there is none of that name."""
        if self.fabric and name in self.fabric.cables:
            self.fabric.unplug(name, cut)
            (self.unplugged.add if cut else self.unplugged.discard)(name)
            return
        cable = self._cables[name]
        self._relit(self.fabric.sever(name, cut) if self.fabric else self.light.sever(name, cut))
        self._feeds.refresh(cable)

    def swap(self, one: str, other: str, ends: str) -> None:
        """Exchange the plugs of two cables. Raises: KeyError - no such cable. ValueError - of
        different devices, and only half.
        """
        for change in (
            self.fabric.swap(one, other, ends) if self.fabric else self.light.swap(one, other, ends)
        ):
            self._relit(change)
        self._feeds.moved()

    def kill(self, port: HostPort, dead: bool) -> None:
        """Keep the link of a host's port down, or let it work again."""
        if self.fabric and (
            cable := next((c for c, at in self.fabric.cables.items() if at == port), None)
        ):
            self.sever(cable, dead)
            return
        self._relit(self.fabric.kill(port, dead) if self.fabric else self.light.kill(port, dead))

    def down(self, port: HostPort) -> bool:
        """Whether the link of a host's port is kept down."""
        cable = (
            next((c for c, at in self.fabric.cables.items() if at == port), None)
            if self.fabric
            else None
        )
        return port in self.light.dead or cable in self.unplugged

    def _light_changed(self, device: str, lit: frozenset[Lit], now: float) -> None:
        self.lit[device] = lit
        self._relit(self.fabric.show(device, lit) if self.fabric else self.light.show(device, lit))

    def _relit(self, change: Relight) -> None:
        for receiver, senders in change.collided:
            fibre, now = self._fibres[receiver], asyncio.get_running_loop().time()
            text = f"{receiver.host}:p{receiver.port} receives light of " + " and ".join(
                f"{host}:p{port}" for host, port in senders
            )
            pair = (self._fibres[senders[0]].enters, fibre.leaves)
            self.servers[fibre.device].plant.violations.append(Violation(now, pair, text))
            log(f"device {fibre.device}: {text} at once")

    def _ports_switched(self, host: Host) -> None:
        for number, up in host.ports.read():
            self._transmit(HostPort(host.name, number), up)

    def _transmit(self, port: HostPort, on: bool) -> None:
        """A port that is switched off sends no light: the far end goes dark, as with a real
        transceiver.
        """
        self._relit(
            self.fabric.silence(port, not on) if self.fabric else self.light.silence(port, not on)
        )
        if port in self._fibres:
            self._feeds.refresh(self._fibres[port])

    def _host_died(self, host: Host) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(host.control.fileno())
        loop.remove_reader(host.ports.fileno())
        host.ports.close()
        host.port_open = False
        host.pid = host.machine_pid = 0
        log(
            f"host {host.name}: its first process ended; the host is gone until the lab starts again"
        )
        for number in self.config.hosts[host.name].interfaces:
            self._transmit(HostPort(host.name, number), False)

    def _bmc(self, name: str, sock: socket.socket) -> DeviceServer:
        from emulators.devices.dialects.redfish import Redfish  # h11 is of an extra

        wanted = self.config.hosts[name].bmc
        assert wanted is not None
        dialect = Redfish(
            Plant(name, (), ()),
            self.machines[name],
            username=wanted.username,
            password=wanted.password,
        )
        return DeviceServer(f"BMC of {name}", dialect, scheme="http", sock=sock)

    def _halt(self, host: Host) -> None:
        """A host stops, with or without power: its ports go dark."""
        asyncio.get_running_loop().remove_reader(host.ports.fileno())
        host.halt()
        for number in self.config.hosts[host.name].interfaces:
            self._transmit(HostPort(host.name, number), False)
        log(f"host {host.name}: stopped")

    def _boot(self, host: Host) -> None:
        """A host that stopped begins again."""
        assert self.fabric is not None and self.listeners.machine_net is not None
        host.boot()
        self.fabric.rebooted(host)
        asyncio.get_running_loop().add_reader(host.ports.fileno(), self._ports_switched, host)
        for number in self.config.hosts[host.name].interfaces:
            self._transmit(HostPort(host.name, number), True)
        with linux.inside(self.listeners.machine_net):
            listener = listen(self.config.hosts[host.name].ssh_port)
        host.open_port(listener)
        log(f"host {host.name}: booted")

    def _functions_reported(self, process: Functions) -> None:
        if not process.ended():
            return
        asyncio.get_running_loop().remove_reader(process.control.fileno())
        process.pid = 0
        log(
            f"segment {process.segment.name}: the process of its functions ended; they are gone until the lab starts again"
        )

    async def _wait_for_banners(self) -> None:
        assert self.listeners.machine_net is not None
        # one that dies closes its connection
        log(f"waiting for the SSH servers of {len(self.hosts)} hosts")
        async with asyncio.TaskGroup() as group:
            with linux.inside(self.listeners.machine_net):
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
                raise RuntimeError(
                    f"sshd at 127.0.0.1:{port} says {banner!r} instead of its banner"
                )


def build_devices(config: LabConfig) -> dict[str, AnyDialect]:
    """Make the devices of a lab. Raises: BadInventory - a driver without an emulator, or a setting
    no device has.
    """
    problems, dialects = [], {}
    for name, device in config.devices.items():
        try:
            _, dialects[name] = device_from_config(
                name, device.driver, _settings(device), config.seed, time_scale=device.time_scale
            )
        except ValueError as problem:
            problems.append(f"{config.inventory}/emulator.yml: devices: {problem}")
    problems += [
        f"{config.inventory}/fibres.yml: {problem}" for problem in _loose_ends(config, dialects)
    ]
    for name, device in config.devices.items():
        if name in dialects and device.address.scheme not in (
            schemes := family(device.driver).schemes
        ):
            problems.append(
                f"{config.inventory}/devices.yml: {name}: an emulated {device.driver} answers on {', '.join(schemes)}"
            )
    if problems:
        raise BadInventory("\n".join(problems))
    return dialects


def _loose_ends(config: LabConfig, dialects: Mapping[str, AnyDialect]) -> Iterator[str]:
    """Report cables that are plugged into ports their devices do not have."""
    plugs = [(f.name, "in", (f.device, f.enters)) for f in config.fibres] + [
        (t.name, "in", t.target) for t in config.trunks
    ]
    plugs += [(f.name, "out", (f.device, f.leaves)) for f in config.fibres] + [
        (t.name, "out", t.source) for t in config.trunks
    ]
    for name, which, (device, label) in plugs:
        plant = dialects[device].plant if device in dialects else None
        if plant and label not in (plant.ingress if which == "in" else plant.egress):
            yield f"{name}: {device} has no {'ingress' if which == 'in' else 'egress'} {label}"


def _settings(device: DeviceConfig) -> dict[str, object]:
    """The keys of emulator.yml for a device, and the login that devices.yml expects."""
    login = {"username": device.username, "password": device.password}
    taken = family(device.driver).settings if device.driver in WHERE else frozenset()
    return {k: v for k, v in login.items() if v is not None and k in taken} | dict(device.overrides)


def logins(config: LabConfig, keys: Keys) -> dict[str, Access]:
    """Return who may log in to each device reached over SSH: as devices.yml or else the family
    defines, and the lab's own key.
    """
    found = {}
    for name, (secret, _) in keys.hosts.items():
        device = config.devices[name]
        username, password = family(device.driver).login or (None, None)
        given = Path(f"{device.key_file}.pub").expanduser()
        more = (given.read_text(),) if device.key_file and given.is_file() else ()
        found[name] = Access(
            device.username or username,
            device.password or password,
            (keys.client_public, *more),
            secret,
        )
    return found


def log(text: str) -> None:
    """Add a line to the lab's log."""
    print(text, file=sys.stderr, flush=True)
