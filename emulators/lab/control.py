"""The lab's control socket: inspect the lab, inject faults, stop it. One JSON object per line,
answered by one.

{"op": "status"} -> {"ok": true, ...} or {"ok": false, "bad_request": true, "error": "..."}; it is
no bad request if the machine failed us. Ops: status, light, writes, history {device, after_s},
settle {device, s}, pieces {device, as}, power {device, port, dbm or weaker_db}, faults.add {device,
kind, ...}, faults.remove {device, number} (host instead of device for faults of hosts and links),
faults.list, truth {device}, fibre {name, cut}, fibre.swap {a, b, ends}, link {host, port, up},
queue.share {share}, queue.job {hosts}, priority {for_s}, host.sshd {host, up, slow_s}, host.down
{host}, stop. With {device}, light and faults.list are of that device alone. What changed the lab is
kept in a log, which faults.list of all devices returns.

The wall clock of a single host cannot be stepped: Linux has time namespaces for the monotonic and
the boot clock only (time_namespaces(7)). A device's own clock can be stepped: fault clock-step.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict

from emulators.devices.server import DeviceServer
from emulators.fabric import linux
from emulators.fabric.fibre_plant import HostPort
from emulators.fabric.functions import Functions
from emulators.fabric.hosts import Host
from emulators.fabric.sockets import listen
from emulators.lab.injector import Injector
from emulators.lab.priority import RanksPriority
from emulators.lab.running import Lab
from emulators.optics.light import Optic
from emulators.optics.rotorplant import RotorPlant

Fields = dict[str, object]
Request = Mapping[str, object]
CHANGES = frozenset(
    {
        "faults.add",
        "faults.remove",
        "fibre",
        "fibre.swap",
        "link",
        "host.sshd",
        "host.down",
        "power",
    }
)
"""Requests that are kept in the log: the lab is not as it was built."""


def _numbered(faults: list[dict[str, object]]) -> list[dict[str, object]]:
    """Faults as `faults.add` and `faults.remove` speak of them, by number."""
    return [
        {"number": fault["id"], **{k: v for k, v in fault.items() if k != "id"}} for fault in faults
    ]


def _schedule(plant: Optic) -> Fields | None:
    """The schedule by which a device changes: times in ns of CLOCK_MONOTONIC, slots from the first;
    None at rest.
    """
    schedule = plant.schedule if isinstance(plant, RotorPlant) else None
    if schedule is None:
        return None
    times = {
        "start_ns": schedule.start_ns,
        "dwell_ns": schedule.dwell_ns,
        "dark_window_ns": schedule.dark_window_ns,
    }
    return {**times, "slots": [sorted(schedule.map(step)) for step in range(len(schedule.slots))]}


def _functions(process: Functions) -> Fields:
    """What a packet switch's functions are doing; `running` false, and why, if they answer
    nothing.
    """
    try:
        return {"running": True, "pid": process.pid, **process.order(do="state")}
    except OSError as problem:
        return {"running": False, "error": str(problem)}


def _ours(writer: asyncio.StreamWriter) -> bool:
    """Whether the client is the lab's own user or root, by the kernel's word (SO_PEERCRED,
    unix(7)).
    """
    sock = writer.get_extra_info("socket")
    _, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return uid in (0, os.geteuid())


class BadRequest(ValueError):
    """A control request that cannot be carried out; the message states why."""


class Control:
    """Answers requests about `lab`."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._started = time.monotonic()
        self._injector = Injector(lab)
        self._talks: set[asyncio.Task[None]] = set()
        self._priority, self._asker = RanksPriority(lab), object()
        self._operations: dict[str, Callable[[Request], Fields]] = {
            "status": self._status,
            "light": lambda request: {
                "light": {
                    name: sorted(pairs)
                    for name, pairs in lab.lit.items()
                    if name == request.get("device", name)
                }
            },
            "history": self._history,
            "writes": self._writes,
            "settle": self._settle,
            "pieces": self._pieces,
            "power": self._power,
            "faults.add": self._add_fault,
            "faults.remove": self._remove_fault,
            "faults.list": self._list_faults,
            "truth": self._truth,
            "fibre": self._fibre,
            "fibre.swap": self._swap,
            "link": self._link,
            "queue.share": self._share,
            "queue.job": self._job,
            "priority": lambda request: self._priority.order(request, self._asker),
            "host.sshd": self._host_sshd,
            "host.down": self._host_down,
            "stop": self._stop,
        }

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one client."""
        task = asyncio.current_task()
        assert task is not None
        self._talks.add(task)
        task.add_done_callback(self._talks.discard)
        if not _ours(writer):
            writer.write(
                json.dumps({"ok": False, "error": "this lab belongs to another user"}).encode()
                + b"\n"
            )
            writer.close()
            return
        try:
            while line := await reader.readline():
                writer.write(json.dumps(self.answer(line, writer)).encode() + b"\n")
                await writer.drain()
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._priority.ended(writer)
            writer.close()

    def hang_up(self) -> None:
        """End all conversations."""
        for talk in self._talks:
            talk.cancel()

    def answer(self, line: bytes, asker: object = None) -> Fields:
        """Carry out one request. asker: the connection that it came by."""
        op: object = None
        self._asker = asker
        try:
            request = json.loads(line)
            if not isinstance(request, dict):
                raise BadRequest("a request is a JSON object with an op")
            op = request.get("op")
            if op not in self._operations:
                raise BadRequest(f"unknown op {op!r}; known: {', '.join(self._operations)}")
            done = self._operations[op](request)
            if op in CHANGES:
                numbered = {k: v for k, v in done.items() if k == "number"}
                self._injector.note(op, {k: v for k, v in request.items() if k != "op"} | numbered)
            return {"ok": True, **done}
        except KeyError as problem:
            return {
                "ok": False,
                "bad_request": True,
                "error": f"{op}: {problem.args[0]} is missing",
            }
        except (ValueError, TypeError) as problem:
            return {"ok": False, "bad_request": True, "error": str(problem)}
        except OSError as problem:
            return {"ok": False, "bad_request": False, "error": str(problem)}

    def _status(self, _: Request) -> Fields:
        lab = self._lab
        fabric = lab.fabric
        sources = lab.light.sources
        carriers = fabric.carriers() if fabric else {}
        hosts: dict[str, Fields] = {}
        for name, host in lab.hosts.items():
            facts = lab.config.hosts[name]
            hosts[name] = {
                "ssh": f"127.0.0.1:{facts.ssh_port}",
                "mgmt_address": facts.mgmt_address,
                "sshd": host.port_open,
                "pid": host.machine_pid,
                "ports": {
                    str(number): {
                        "interface": interface,
                        "light_from": "{}:p{}".format(*sources[port]) if port in sources else None,
                        "carrier": carriers[port],
                    }
                    for number, interface in facts.interfaces.items()
                    for port in (HostPort(name, number),)
                },
            }
        devices = {
            name: {
                "driver": device.driver,
                "address": lab.servers[name].address,
                "scheme": device.address.scheme,
                "writes": lab.servers[name].plant.writes,
                "settle_s": lab.servers[name].plant.settle_s,
                "lit": sorted(lab.lit[name]),
            }
            for name, device in lab.config.devices.items()
        }
        return {
            "inventory": str(lab.config.inventory),
            "pid": lab.listeners.pid,
            "uptime_s": round(time.monotonic() - self._started, 3),
            "rate_bps": lab.config.rate_bps,
            "mtu": lab.config.mtu,
            "hosts": hosts,
            "devices": devices,
            "fibres": [{**asdict(f), "cut": f.name in lab.light.cut} for f in lab.config.fibres],
            "trunks": [{**asdict(t), "cut": t.name in lab.light.cut} for t in lab.config.trunks],
            "segments": [{**asdict(s), "cables": sorted(s.cables)} for s in lab.config.segments],
            "queues": {"share": dict(fabric.queues.shares), "jobs": fabric.queues.jobs}
            if fabric
            else {},
            "functions": {name: _functions(process) for name, process in lab.functions.items()},
            "unplugged": sorted(lab.unplugged),
        }

    def _history(self, request: Request) -> Fields:
        """The history of a device's connections, all of it or what was after a time:
        [time (s, monotonic), event, ingress, egress].

        Light ends when the fabric had followed: until then packets may pass.
        """
        server, after_s = self._server(request), float(str(request.get("after_s", 0.0)))
        return {
            "history": [
                [server.shown_s(e.at_s) if e.what == "broken" else e.at_s, e.what, *e.pair]
                for e in server.plant.history
                if e.at_s >= after_s
            ]
        }

    def _truth(self, request: Request) -> Fields:
        """The complete internal state of a device, with which tests compare its answers."""
        server = self._server(request)
        plant, now = server.plant, time.monotonic()
        sessions = [
            {
                "number": s.number,
                "user": s.user,
                "idle_s": round(max(0.0, now - s.last_s), 3),
                "queued": len(s.queue),
            }
            for s in server.dialect.sessions
        ]
        return {
            "writes": plant.writes,
            "violations": [[v.at_s, v.why, *v.pair] for v in plant.violations],
            "light": sorted(self._lab.lit[server.name]),
            "history": self._history(request)["history"],
            "sessions": sessions,
            "schedule": _schedule(plant),
        }

    def _list_faults(self, request: Request) -> Fields:
        if "device" in request:
            server = self._server(request)
            return {"faults": {server.name: _numbered(server.list_faults())}}
        faults = {
            name: _numbered(server.list_faults()) for name, server in self._lab.servers.items()
        }
        for name, found in self._injector.listed().items():
            faults[name] = [*faults.get(name, []), *found]
        return {"faults": faults, "log": list(self._injector.log)}

    def _add_fault(self, request: Request) -> Fields:
        values = {k: v for k, v in request.items() if k not in ("op", "device", "host", "kind")}
        if "host" in request:
            return {
                "number": self._injector.add(str(request["host"]), str(request["kind"]), values)
            }
        return {"number": self._server(request).add_fault(str(request["kind"]), **values)}

    def _remove_fault(self, request: Request) -> Fields:
        if "host" in request:
            self._injector.remove(int(str(request["number"])), str(request["host"]))
            return {}
        self._server(request).remove_fault(int(str(request["number"])))
        return {}

    def _power(self, request: Request) -> Fields:
        """Set the power that a fibre brings to an ingress port; a null `dbm` is no light.
        `weaker_db`: that much less than now.
        """
        server, port = self._server(request), str(request["port"])
        if "weaker_db" in request:
            server.weaken_input(port, float(str(request["weaker_db"])))
            return {}
        dbm = request["dbm"]
        server.set_input(port, None if dbm is None else float(str(dbm)))
        return {}

    def _writes(self, _: Request) -> Fields:
        """How many commands that change it each device received, and how often a port in use was
        driven.
        """
        plants = {name: server.plant for name, server in self._lab.servers.items()}
        violations = {name: len(plant.violations) for name, plant in plants.items()}
        return {
            "writes": {name: plant.writes for name, plant in plants.items()},
            "violations": violations,
        }

    def _pieces(self, request: Request) -> Fields:
        """Set how a device sends its replies from now on: "whole", "split" at random places, or one
        "byte" at a time.
        """
        if (pieces := request["as"]) not in ("whole", "split", "byte"):
            raise BadRequest(f"pieces: as {pieces!r}: wanted whole, split or byte")
        self._server(request).chunking = pieces
        return {"as": pieces}

    def _settle(self, request: Request) -> Fields:
        """Give a device another switching time, and another time to boot."""
        seconds = float(str(request["s"]))
        server = self._server(request)
        plant, server.dialect.boot_s = (
            server.plant,
            float(str(request.get("boot_s", server.dialect.boot_s))),
        )
        plant.settle_s = seconds
        if plant.bulk_settle_s is not None:
            plant.bulk_settle_s = float(str(request.get("bulk_s", seconds)))
        return {"settle_s": seconds}

    def _server(self, request: Request) -> DeviceServer:
        name = str(request["device"])
        if name not in self._lab.servers:
            raise BadRequest(f"no device {name}; there are {', '.join(self._lab.servers)}")
        return self._lab.servers[name]

    def _fibre(self, request: Request) -> Fields:
        lab, name = self._lab, str(request["name"])
        electrical = lab.fabric.cables if lab.fabric else {}
        if name not in lab.light.strands and name not in lab.light.ties and name not in electrical:
            raise BadRequest(f"no fibre {name}")
        lab.sever(name, bool(request["cut"]))
        return {"cut": sorted(lab.light.cut | lab.unplugged)}

    def _swap(self, request: Request) -> Fields:
        lab, one, other, ends = (
            self._lab,
            str(request["a"]),
            str(request["b"]),
            str(request.get("ends", "both")),
        )
        for name in (one, other):
            if name not in lab.light.strands:
                raise BadRequest(f"no fibre {name} between a host and a device")
        if ends not in ("both", "enters", "leaves") or one == other:
            raise BadRequest(
                f"cannot swap {ends} of {one} and {other}: wanted both, enters or leaves of two fibres"
            )
        lab.swap(one, other, ends)
        return {"plugged": {name: lab.light.strands[name]._asdict() for name in (one, other)}}

    def _link(self, request: Request) -> Fields:
        """The port's link does not come up, whatever light arrives."""
        lab, port = self._lab, HostPort(str(request["host"]), int(str(request["port"])))
        if (
            port.host not in lab.config.hosts
            or port.port not in lab.config.hosts[port.host].interfaces
        ):
            raise BadRequest(f"no port {port.port} on a host {port.host}")
        lab.kill(port, not request["up"])
        unplugged = [lab.fabric.cables[name] for name in lab.unplugged] if lab.fabric else []
        return {
            "dead": sorted(f"{host}:p{number}" for host, number in (*lab.light.dead, *unplugged))
        }

    def _share(self, request: Request) -> Fields:
        """Let all segments with `queue` in fibres.yml share uplinks by `fifo` or by `job`, in place
        of what is written there.
        """
        fabric, how = self._lab.fabric, request["share"]
        if how not in ("fifo", "job"):
            raise BadRequest(f"queue.share: share {how!r}: wanted fifo or job")
        if fabric is None or not any(
            segment.queue and segment.racks for segment in self._lab.config.segments
        ):
            raise BadRequest("queue.share: no segment here has racks and a queue in fibres.yml")
        return {"share": dict(fabric.share(str(how)))}

    def _job(self, request: Request) -> Fields:
        """Let these hosts be one job to switches whose uplinks are shared by jobs."""
        fabric, hosts = self._lab.fabric, request["hosts"]
        if not isinstance(hosts, list) or not hosts:
            raise BadRequest("queue.job: hosts: wanted a list of hosts")
        if strange := [host for host in hosts if host not in self._lab.config.hosts]:
            raise BadRequest(f"queue.job: no host {strange[0]}")
        return {"jobs": fabric.one_job(set(hosts)) if fabric else []}

    def _running(self, request: Request) -> Host:
        host = self._lab.hosts.get(str(request["host"]))
        if host is None or not host.pid:
            raise BadRequest(f"no running host {request['host']}")
        return host

    def _host_down(self, request: Request) -> Fields:
        """Power a host off: it stays down until the lab is restarted."""
        host = self._running(request)
        os.kill(host.pid, signal.SIGKILL)
        return {"host": host.name}

    def _host_sshd(self, request: Request) -> Fields:
        host, up = self._running(request), bool(request.get("up", True))
        if "slow_s" in request:
            slow_s = float(str(request["slow_s"]))
            if not 0.0 <= slow_s <= 3600.0:
                raise BadRequest(f"slow_s {slow_s}: wanted 0 to 3600 seconds")
            host.slow_port(slow_s)
        if up and not host.port_open:
            assert self._lab.listeners.machine_net is not None
            with linux.inside(self._lab.listeners.machine_net):
                listener = listen(self._lab.config.hosts[host.name].ssh_port)
            host.open_port(listener)
        elif not up and host.port_open:
            host.close_port()
        return {"host": host.name, "sshd": host.port_open, "slow_s": host.slow_s}

    def _stop(self, _: Request) -> Fields:
        asyncio.get_running_loop().call_later(0.05, self._lab.stopped.set)
        return {"pid": self._lab.listeners.pid}
