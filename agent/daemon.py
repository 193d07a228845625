"""The daemon: one thread, one epoll, timers in a heap, operations by name."""

from __future__ import annotations

import contextlib
import errno
import heapq
import json
import os
import select
import socket
import struct
import sys
import time

from agent.basics import (
    SOCKET,
    VAR,
    VERSION,
    Failure,
    bad,
    directories,
    integer,
    own_sha,
    read,
    read_json,
)
from agent.client import Client
from agent.fence import OWN, Fence
from agent.host.netlink import GETLINK, NEWLINK, Rtnl, link_values, links
from agent.host.partitions import chosen
from agent.jobs import files, heartbeats
from agent.jobs.demand import demand
from agent.jobs.handoff import Handoff
from agent.jobs.processes import Jobs
from agent.measure import keeping
from agent.measure.ends import FibreEnds
from agent.measure.flows import Flows
from agent.measure.gpus import gpus
from agent.measure.load import load
from agent.measure.probes import Probes
from agent.measure.samples import Counters
from agent.measure.traffic import Traffic
from agent.mechanism import found
from agent.routes import requests
from agent.routes.arming import Arming
from agent.routes.generations import Generations
from agent.slots.operations import Slots
from agent.tcp.controls import available

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.mechanism import Mechanism
    from agent.shapes import Answer, Json, Link


MECHANISMS = found()
"""Imported before the watchdog makes a daemon: one that is made again is of one version, though the
files were replaced.
"""
FENCED = OWN.union(*(kind.FENCED for kind in MECHANISMS))
# between two looks at the timers: epoll_wait(2) takes 24 days at most
LONGEST_NS = 3_600_000_000_000


class Server:
    """The daemon: one thread, one epoll, timers in a heap."""

    def __init__(self, heartbeat: int | None = None) -> None:
        directories()
        self.epoll = select.epoll()
        self.handlers: dict[int, Callable[[int], object]] = {}
        self.timers: list[tuple[int, int, Callable[[], object]]] = []
        self.cancelled: set[int] = set()
        self.order = 0
        self.clients: set[Client] = set()
        self.facts: Json = {}
        self.ports: dict[int, str] = {}
        self.numbers: dict[str, int] = {}
        self.host = socket.gethostname()
        self.running = True
        self.sha = own_sha()
        self.heartbeat = heartbeat
        # RTNLGRP_LINK; joined before the first dump so that no change is missed
        self.events = Rtnl(groups=1)
        self.nl = Rtnl()
        self.interfaces = links(self.nl)
        os.set_blocking(self.events.socket.fileno(), False)
        self.register(self.events.socket.fileno(), self.link_events)
        # Named with their types where modules know them by shapes.Daemon alone: each is made before
        # the others are.
        self.generations: Generations = Generations(self, self.nl)
        self.generations.load()
        self.arming = Arming(self, self.generations)
        self.fence: Fence = Fence(self.overtaken, FENCED)
        self.samples = Counters(self)
        self.probes = Probes(self)
        self.arming.crossed = self.probes.cross
        self.generations.flush.meet = self.probes.meet
        self.ends = FibreEnds(self)
        self.traffic = Traffic(self)
        self.handoff: Handoff = Handoff(self)
        self.generations.activated = lambda generation: self.guard(
            self.handoff.activated, generation
        )
        self.generations.abandoned = lambda generation: self.guard(
            self.handoff.abandoned, generation
        )
        self.slots: Slots = Slots(self)
        self.jobs: Jobs = Jobs(self)
        self.flows: Flows = Flows(self)
        self.mechanisms: list[Mechanism] = [kind(self) for kind in MECHANISMS]
        self.generations.changed = self.changed
        for mechanism in self.mechanisms:
            self.generations.controls.update(mechanism.controls)
        self.reload()

    # -- loop

    def register(
        self, fd: int, handler: Callable[[int], object], mask: int = select.EPOLLIN
    ) -> None:
        self.handlers[fd] = handler
        self.epoll.register(fd, mask)

    def unregister(self, fd: int) -> None:
        self.handlers.pop(fd, None)
        with contextlib.suppress(OSError, ValueError):
            self.epoll.unregister(fd)

    def timer(self, at_ns: int, function: Callable[[], object]) -> int:
        """Call `function` at `at_ns` (CLOCK_MONOTONIC); returns what `cancelled` takes."""
        self.order += 1
        heapq.heappush(self.timers, (at_ns, self.order, function))
        return self.order

    def run(self) -> None:
        while self.running:
            wait = -1.0
            while self.timers:
                at, handle, function = self.timers[0]
                if handle not in self.cancelled and at > time.monotonic_ns():
                    wait = min(at - time.monotonic_ns(), LONGEST_NS) / 1e9
                    break
                heapq.heappop(self.timers)
                if handle in self.cancelled:
                    self.cancelled.discard(handle)
                else:
                    self.guard(function)
            for fd, mask in self.epoll.poll(max(wait, 0) if wait != -1 else -1):
                handler = self.handlers.get(fd)
                if handler:
                    self.guard(handler, mask)

    def guard(self, function: Callable[..., object], *arguments: int) -> None:
        """An unexpected error in one handler is logged and must not end the daemon."""
        try:
            function(*arguments)
        except Exception:
            import traceback

            sys.stderr.write(traceback.format_exc())
            sys.stderr.flush()

    def one_heartbeat(self) -> None:
        assert self.heartbeat is not None
        os.write(self.heartbeat, b".")
        self.timer(time.monotonic_ns() + 1_000_000_000, self.one_heartbeat)

    def listen(self) -> None:
        """Serve the Unix socket; only root may open it."""
        if os.path.exists(SOCKET):
            os.unlink(SOCKET)
        self.listener = socket.socket(
            socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        )
        mask = os.umask(0o177)
        self.listener.bind(SOCKET)
        os.umask(mask)
        self.listener.listen(64)
        self.register(self.listener.fileno(), self.accept)
        if self.heartbeat is not None:
            self.one_heartbeat()

    def accept(self, _: int) -> None:
        try:
            s, _ = self.listener.accept()
        except OSError:
            return
        fd = s.detach()
        self.clients.add(Client(self, fd, os.dup(fd)))

    def broadcast(self, event: Json) -> None:
        for client in list(self.clients):
            if client.watching:
                client.send(event)

    # -- links

    def link_events(self, _: int) -> None:
        try:
            for _ in range(64):
                for kind, _, _, data in self.events.receive():
                    self.link(kind, data, time.monotonic_ns())
        except BlockingIOError:
            return
        except OSError as e:
            if e.errno != errno.ENOBUFS:
                raise
            for data in self.nl.dump(
                GETLINK, struct.pack("=BBHiII", 0, 0, 0, 0, 0, 0)
            ):  # events were lost: look at everything again
                self.link(NEWLINK, data, time.monotonic_ns())

    def link(self, kind: int, data: bytes, now: int) -> None:
        value = link_values(data)
        # deleted; or a bridge port's note, which carries no carrier
        if kind == 17 or (kind == NEWLINK and data[0]):
            if kind == 17 and not data[0]:
                self.interfaces.pop(value["name"], None)
            return
        before = self.interfaces.get(value["name"])
        self.interfaces[value["name"]] = value
        if before and before["carrier"] == value["carrier"] and before["ups"] == value["ups"]:
            return
        port = self.numbers.get(value["name"])
        if port is not None and before and before["carrier"] != value["carrier"]:
            self.samples.carrier(port, value["carrier"], now)
        self.arming.carrier(now)
        if self.slots.machine is not None:
            self.slots.machine.carrier()
        if port is not None:
            event = {
                "event": "link",
                "port": port,
                "interface": value["name"],
                "carrier": value["carrier"],
                "t_ns": now,
            }
            for client in [c for c in self.clients if c.links]:
                client.send(event)

    # -- requests

    def handle(self, client: Client, line: bytes) -> None:
        try:
            request = json.loads(line)
            wrong = "" if isinstance(request, dict) else "a request is a JSON object"
        except ValueError as e:
            request, wrong = {}, f"not a JSON line: {e}"
        if wrong:
            client.send({"id": None, "ok": False, "code": "bad-request", "error": wrong})
        else:
            self.attempt(client, request, lambda: self.operate(client, request))

    def operate(self, client: Client, request: Json) -> Json | None:
        """Carry out a request; None: it is answered later. Raises: Failure."""
        operation = request.get("op")
        if not isinstance(operation, str) or operation not in OPERATIONS:
            raise Failure(
                "unknown-op",
                "unknown op {!r}; this agent knows {}".format(
                    operation, ", ".join(sorted(OPERATIONS))
                ),
            )
        self.fence.check(operation, request)
        return OPERATIONS[operation](
            self, request, client, lambda r: client.send(dict(r, id=request.get("id"), ok=True))
        )

    def attempt(self, client: Client, request: Json, act: Callable[[], Json | None]) -> None:
        """Answer a request with what `act` returns, if it returns something, or with why it
        failed.
        """
        identity = request.get("id")
        try:
            if (reply := act()) is not None:
                client.send(dict(reply, id=identity, ok=True))
        except Failure as e:
            client.send({"id": identity, "ok": False, "code": e.code, "error": str(e)})
        except Exception as e:
            import traceback

            sys.stderr.write(traceback.format_exc())
            sys.stderr.flush()
            client.send(
                {"id": identity, "ok": False, "code": "failed", "error": f"{type(e).__name__}: {e}"}
            )

    def adopt(self, client: Client) -> None:
        """Go on with the descriptors an attaching process handed over; its own connection only
        shows that it lives.
        """
        if len(client.files) != 2:
            raise bad("adopt: two descriptors are needed")
        (rfd, wfd), client.files = client.files, []
        hold = socket.socket(fileno=os.dup(client.rfd))
        client.close()
        try:
            self.clients.add(Client(self, rfd, wfd, hold))
        except OSError:  # epoll refuses plain files
            os.close(rfd)
            os.close(wfd)
            hold.close()

    def hello(self) -> Json:
        ports: Json = {}
        absent: Link = {}
        for port in self.facts.get("ports", ()):
            name, eth = port["interface"], port.get("eth")
            link = self.interfaces.get(name, absent)
            # Mb/s; nothing or -1 where dark, or where the driver does not say
            speed = read(f"/sys/class/net/{name}/speed").strip()
            ports[str(port["number"])] = {
                "interface": name,
                "mac": link.get("mac"),
                "carrier": link.get("carrier"),
                "ups": link.get("ups"),
                "downs": link.get("downs"),
                "mtu": link.get("mtu"),
                "speed": int(speed) if speed.isdigit() else None,
                "eth": eth,
                "eth_mac": self.interfaces.get(eth, absent).get("mac"),
            }
        return {
            "version": VERSION,
            "host": self.host,
            "pid": os.getpid(),
            "committer": self.sha,
            "provision": self.facts.get("sha"),
            "job_user": self.jobs.has_user(),
            "boot_id": read("/proc/sys/kernel/random/boot_id").strip(),
            "t_ns": time.monotonic_ns(),
            "ports": ports,
            "token": self.fence.highest or 0,
            "congctl": available(),
            **self.generations.summary(),
        }

    def reload(self) -> Json:
        self.facts = read_json(VAR + "/provision.json") or {}
        self.host = self.facts.get("host") or socket.gethostname()
        self.ports = {p["number"]: p["interface"] for p in self.facts.get("ports", ())}
        self.numbers = {name: n for n, name in self.ports.items()}
        self.interfaces.update(links(self.nl))
        self.generations.rule = chosen()  # the host may have got its first partition
        self.probes.listen(self.facts.get("echo", []))
        return {"host": self.host, "provision": self.facts.get("sha")}

    def overtaken(self) -> None:
        """A newer run took over: nothing that an older one armed or prepared happens any more."""
        self.generations.disarm()
        self.guard(self.handoff.overtaken)
        self.guard(self.slots.overtaken)

    def changed(self) -> None:
        """The kernel's rule selects another generation."""
        for mechanism in self.mechanisms:
            self.guard(mechanism.follow)

    def watch(self, request: Json, client: Client) -> Json:
        """Send this client what happens from now on; carriers only if it asks for `links`, for they
        come in storms.
        """
        client.watching, client.links = True, bool(request.get("links"))
        return {
            "links": {
                str(n): bool(self.interfaces.get(i, {}).get("carrier"))
                for n, i in self.ports.items()
            }
        }


def _clear(server: Server, request: Json, *_: object) -> Json:
    """Clear everything, or the generations that the request names: what else is staged is another
    owner's, with what it needs.
    """
    only = request.get("generations")
    if only is not None and (not isinstance(only, list) or not all(type(n) is int for n in only)):
        raise bad("generations: a list of whole numbers is needed")
    if (
        only is None
        or server.generations.active in only
        or server.generations.staged.keys() <= set(only)
    ):
        server.slots.overtaken()
        for mechanism in server.mechanisms:
            mechanism.clear()
    return server.generations.clear(only)


OPERATIONS: dict[str, Callable[[Server, Json, Client, Answer], Json | None]] = {
    "hello": lambda server, *_: server.hello(),
    "adopt": lambda server, _, client, __: server.adopt(client),
    "reload": lambda server, *_: server.reload(),
    "watch": lambda server, request, client, _: server.watch(request, client),
    "clock": lambda *_: {"t_ns": time.monotonic_ns(), "wall_ns": time.time_ns()},
    "fence": lambda server, *_: {"token": server.fence.highest},
    "stage": lambda server, request, *_: requests.stage(server.generations, request),
    "commit": lambda server, request, *_: requests.commit(server.generations, request),
    "confirm": lambda server, request, *_: server.generations.confirm(
        integer(request, "generation", 1)
    ),
    "revert": lambda server, *_: server.generations.revert(),
    "clear": _clear,
    "arm": lambda server, request, *_: server.arming.arm(request),
    "disarm": lambda server, *_: server.generations.disarm(),
    "probe": lambda server, request, _, answer: server.probes.probe(request, answer),
    "neighbours": lambda server, request, _, answer: server.ends.neighbours(request, answer),
    "traffic": lambda server, request, _, answer: server.traffic.operate(request, answer),
    "counters": lambda server, request, client, answer: server.samples.counters(
        request, client, answer
    ),
    "counters.keep": lambda server, request, *_: keeping.keep(server, request),
    "counters.kept": lambda _, request, *__: keeping.fetch(request),
    "gpus": lambda server, request, client, _: gpus(server, request, client),
    "load": lambda server, request, _, answer: load(server, request, answer),
    "job.ready": lambda server, request, *_: files.ready(server, request),
    "job.files": lambda _, request, *__: files.put(request),
    "job.start": lambda server, request, client, _: server.jobs.start(
        request, lambda act: server.attempt(client, request, act)
    ),
    "job.status": lambda server, request, *_: server.jobs.status(request),
    "job.stop": lambda server, request, _, answer: server.jobs.stop(request, answer),
    "job.prepare": lambda server, request, _, answer: server.handoff.prepare(request, answer),
    "job.hold": lambda server, request, _, answer: server.handoff.hold(request, answer),
    "job.go": lambda server, request, _, answer: server.handoff.go(request, answer),
    "job.drop": lambda server, request, *_: server.handoff.drop(request),
    "job.ring_changes": lambda server, request, *_: server.handoff.ring_changes(request),
    "pace": lambda server, request, *_: server.handoff.pace(request),
    "pace.stop": lambda server, request, *_: server.handoff.unpace(request),
    "slots": lambda server, *_: server.slots.status(),
    "slots.load": lambda server, request, *_: server.slots.load(request),
    "slots.tick": lambda server, request, *_: server.slots.tick(request),
    "slots.change": lambda server, request, *_: server.slots.change_slot(request),
    "slots.stop": lambda server, *_: server.slots.stop(),
    "job.tail": lambda server, request, *_: server.jobs.tail(request),
    "job.secret": lambda server, request, *_: server.jobs.secret(request),
    "heartbeats": lambda server, request, *_: heartbeats.heartbeats(server, request),
    "demand": lambda server, request, _, answer: demand(server, request, answer),
}


def _of_mechanisms() -> dict[str, Callable[[Server, Json, Client, Answer], Json | None]]:
    def of(
        place: int, act: Callable[[Mechanism, Json, Answer], Json | None]
    ) -> Callable[[Server, Json, Client, Answer], Json | None]:
        return lambda server, request, _, answer: act(server.mechanisms[place], request, answer)

    return {
        name: of(place, act)
        for place, kind in enumerate(MECHANISMS)
        for name, act in kind.OPERATIONS.items()
    }


OPERATIONS.update(_of_mechanisms())
