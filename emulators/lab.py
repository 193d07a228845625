"""The running lab: devices, and the fabric behind them where hosts are wanted; a control socket to look at it and to break it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from emulators.config import DeviceConfig, LabConfig
from emulators.fabric import linux
from emulators.fabric.build import Fabric, Host
from emulators.fabric.doors import listen
from emulators.server import DeviceServer, device_from_config

BANNER_DEADLINE_S = 20.0
Words = dict[str, object]


class BadRequest(ValueError):
    """A control request that cannot be carried out; the message says why."""


@dataclass(frozen=True, slots=True)
class Doors:
    """The listening sockets, bound before the lab left the machine's network, and the way back to that network."""

    devices: Mapping[str, socket.socket]
    hosts: Mapping[str, socket.socket]
    control: socket.socket
    machine_net: int | None
    pid: int


class Lab:
    """Serves the devices of `config`; moves the light of `fabric` when their glass changes."""

    def __init__(self, config: LabConfig, doors: Doors, fabric: Fabric | None) -> None:
        self.config, self.doors, self.fabric = config, doors, fabric
        self.glass: dict[str, frozenset[tuple[str, str]]] = {name: frozenset() for name in config.devices}
        self.servers: dict[str, DeviceServer] = {}
        self._started = time.monotonic()
        self._stopped = asyncio.Event()
        self._talks: set[asyncio.Task[None]] = set()

    async def run(self, ready: Callable[[], None]) -> None:
        """Serve until told to stop; calls `ready` when every device listens and every host's sshd has shown its banner."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopped.set)
        for name, device in self.config.devices.items():
            plant, dialect = device_from_config(name, device.driver, settings(device), self.config.seed)
            self.servers[name] = DeviceServer(name, dialect, plant, sock=self.doors.devices[name], on_glass=self._on_glass)
            await self.servers[name].start()
        control = await asyncio.start_unix_server(self._talk, sock=self.doors.control)
        if self.fabric:
            await self._wait_for_banners()
            for host in self.fabric.hosts.values():
                loop.add_reader(host.control.fileno(), self._host_died, host)
        ready()
        print(
            f"lab {self.config.inventory}: {len(self.servers)} devices, {len(self._hosts())} hosts, ready",
            file=sys.stderr,
            flush=True,
        )
        await self._stopped.wait()
        control.close()
        for talk in self._talks:
            talk.cancel()
        for server in self.servers.values():
            await server.stop()

    def _hosts(self) -> Mapping[str, Host]:
        return self.fabric.hosts if self.fabric else {}

    def _on_glass(self, device: str, pairs: frozenset[tuple[str, str]], now: float) -> None:
        self.glass[device] = pairs
        if self.fabric:
            self.fabric.show(device, pairs)

    def _host_died(self, host: Host) -> None:
        asyncio.get_running_loop().remove_reader(host.control.fileno())
        host.door_open = False
        host.pid = host.machine_pid = 0
        print(f"host {host.name}: its first process ended; the host is gone until the lab starts anew", file=sys.stderr, flush=True)

    async def _wait_for_banners(self) -> None:
        assert self.doors.machine_net is not None
        async with asyncio.timeout(BANNER_DEADLINE_S), asyncio.TaskGroup() as group:
            with linux.inside(self.doors.machine_net):
                callers = {name: socket.socket() for name in self._hosts()}
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

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._talks.add(task)
        task.add_done_callback(self._talks.discard)
        try:
            while line := await reader.readline():
                try:
                    request = json.loads(line)
                    answer = {"ok": True, **await self._answer(request)}
                except (BadRequest, KeyError, TypeError, ValueError) as problem:
                    answer = {"ok": False, "error": f"{type(problem).__name__}: {problem}"}
                except OSError as problem:
                    answer = {"ok": False, "error": str(problem)}
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _answer(self, request: Mapping[str, object]) -> Words:
        operations: dict[str, Callable[[Mapping[str, object]], Words]] = {
            "status": lambda _: self._status(),
            "glass": lambda _: {"glass": {name: sorted(pairs) for name, pairs in self.glass.items()}},
            "writes": lambda _: {"writes": {name: server.plant.writes for name, server in self.servers.items()}},
            "settle": self._settle,
            "faults.add": self._add_fault,
            "faults.remove": self._remove_fault,
            "faults.list": lambda _: {"faults": {name: server.list_faults() for name, server in self.servers.items()}},
            "power": self._power,
            "fibre": self._fibre,
            "host.sshd": self._host_sshd,
            "stop": self._stop,
        }
        operation = operations.get(str(request.get("op")))
        if operation is None:
            raise BadRequest(f"unknown op {request.get('op')!r}; known: {', '.join(operations)}")
        return operation(request)

    def _status(self) -> Words:
        sources = self.fabric.glass.sources if self.fabric else {}
        carriers = self.fabric.carriers() if self.fabric else {}
        hosts: Words = {}
        for name, host in self._hosts().items():
            facts = self.config.hosts[name]
            ports = {
                str(p.port): {
                    "interface": facts.interfaces[p.port],
                    "light_from": f"{sources[p].host}:p{sources[p].port}" if p in sources else None,
                    "carrier": carrier,
                }
                for p, carrier in carriers.items()
                if p.host == name
            }
            hosts[name] = {
                "ssh": f"127.0.0.1:{facts.ssh_port}",
                "mgmt_address": facts.mgmt_address,
                "sshd": host.door_open,
                "pid": host.machine_pid,
                "ports": ports,
            }
        devices: Words = {
            name: {
                "driver": device.driver,
                "address": f"tcp://127.0.0.1:{device.port}",
                "writes": self.servers[name].plant.writes,
                "lit": sorted(self.glass[name]),
            }
            for name, device in self.config.devices.items()
        }
        return {
            "inventory": str(self.config.inventory),
            "pid": self.doors.pid,
            "uptime_s": round(time.monotonic() - self._started, 3),
            "rate_bps": self.config.rate_bps,
            "mtu": self.config.mtu,
            "hosts": hosts,
            "devices": devices,
            "fibres": [
                {"name": f.name, "host": f.host, "port": f.port, "device": f.device, "enters": f.enters, "leaves": f.leaves}
                | ({"cut": f.name in self.fabric.glass.cut} if self.fabric else {})
                for f in self.config.fibres
            ],
        }

    def _add_fault(self, request: Mapping[str, object]) -> Words:
        values = {k: v for k, v in request.items() if k not in ("op", "device", "kind")}
        return {"number": self._server(request).add_fault(str(request["kind"]), **values)}

    def _remove_fault(self, request: Mapping[str, object]) -> Words:
        self._server(request).remove_fault(int(str(request["number"])))
        return {}

    def _power(self, request: Mapping[str, object]) -> Words:
        """Say what light a fibre brings to an ingress port; a null `dbm` is none."""
        dbm = request["dbm"]
        self._server(request).set_input(str(request["port"]), None if dbm is None else float(str(dbm)))
        return {}

    def _settle(self, request: Mapping[str, object]) -> Words:
        seconds = float(str(request["s"]))
        plant = self._server(request).plant
        plant.settle_s = seconds
        if plant.bulk_settle_s is not None:
            plant.bulk_settle_s = float(str(request.get("bulk_s", seconds)))
        return {"settle_s": seconds}

    def _server(self, request: Mapping[str, object]) -> DeviceServer:
        name = str(request["device"])
        if name not in self.servers:
            raise BadRequest(f"no device {name}; there are {', '.join(self.servers)}")
        return self.servers[name]

    def _fibre(self, request: Mapping[str, object]) -> Words:
        if not self.fabric:
            raise BadRequest("this lab has no hosts, so no fibres")
        name = str(request["name"])
        if name not in self.fabric.glass.strands:
            raise BadRequest(f"no fibre {name}")
        self.fabric.sever(name, bool(request["cut"]))
        return {"cut": sorted(self.fabric.glass.cut)}

    def _host_sshd(self, request: Mapping[str, object]) -> Words:
        host, up = self._hosts().get(str(request["host"])), bool(request["up"])
        if host is None or not host.pid:
            raise BadRequest(f"no running host {request['host']}")
        if up and not host.door_open:
            assert self.doors.machine_net is not None
            with linux.inside(self.doors.machine_net):
                listener = listen(self.config.hosts[host.name].ssh_port)
            host.open_door(listener)
        elif not up and host.door_open:
            host.shut_door()
        return {"host": host.name, "sshd": host.door_open}

    def _stop(self, _: Mapping[str, object]) -> Words:
        asyncio.get_running_loop().call_later(0.05, self._stopped.set)
        return {"pid": self.doors.pid}


def settings(device: DeviceConfig) -> dict[str, object]:
    """What emulator.yml says of a device, and the login devices.yml expects of it."""
    login = {"username": device.username, "password": device.password} if device.driver.endswith("-tl1") else {}
    return {k: v for k, v in login.items() if v is not None} | dict(device.overrides)


def take_priority() -> None:
    """Run this process before others, its children not: a busy machine must not stretch the switching time it emulates."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except OSError as problem:
        print(f"no real-time priority ({problem.strerror}): light may move late when the cores are busy", file=sys.stderr)


def run(lab: Callable[[], Awaitable[None]]) -> None:
    """Run the lab's coroutine in a fresh event loop."""

    async def main() -> None:
        await lab()

    asyncio.run(main())
