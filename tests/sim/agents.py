"""Hosts: the agent's real daemon without its epoll, on a kernel and a disk of `kernel`."""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Callable, Mapping
from typing import Any, cast

from tests.sim.kernel import Disk, Kernel, Nic
from tests.sim.loop import Actor, Killed, Machine, SimLoop
from tests.sim.net import Net
from tests.sim.seams import (
    FENCED,
    MECHANISMS,
    VAR,
    Arming,
    Failure,
    Fence,
    Generations,
    Server,
    links,
)

SimPeer = SimSsh = Any
"""Of `tests.sim.reach`, which builds on this module."""

BOOT_S, WATCHDOG_S, SILENCE_S = (4.0, 30.0), (0.02, 2.0), 10.0
"""How long a host takes to start and a watchdog to start an agent again, from and to; and how long
the kernel of an operator waits for the acknowledgement of a host that is gone (`ssh.SILENCE_MS`).
"""


class Hooks:
    """What hosts tell the lab. obeyed: an agent is about to do what a run asks of it."""

    def obeyed(self, host: str, op: str, request: Mapping[str, Any]) -> None: ...

    def loaded(self, agent: Agent) -> None:
        """An agent has started; it may be given parts that it has not got here."""


class SimHost:
    """A machine with a kernel, a disk, and an agent while it has power."""

    def __init__(
        self,
        loop: SimLoop,
        net: Net,
        hooks: Hooks,
        name: str,
        facts: dict[str, Any],
        number: int,
        seed: str,
    ) -> None:
        self.loop, self.net, self.hooks, self.name = loop, net, hooks, name
        self.rng = random.Random(f"host/{seed}/{name}")
        self.machine = Machine(name)
        self.disk = Disk()
        self.disk.put(VAR + "/provision.json", json.dumps(facts))
        ports = {port["number"]: port["interface"] for port in facts["ports"]}
        nics = {i: Nic(i, 10 + p, f"02:00:00:00:{number:02x}:{p:02x}") for p, i in ports.items()}
        self.ports, self.kernel = ports, Kernel(nics)
        self.echo: list[str] = facts["echo"]
        self.logins: list[SimSsh] = []
        self.agent: Agent | None = None
        self.power = self.running = False
        self.trouble: dict[str, str] = {}
        """What happens at the next request of a kind: "cut before" it is carried out, or "cut
        after".
        """
        self._up()

    def _up(self) -> None:
        self.power, self.running = True, True
        self.disk.put("/proc/sys/kernel/random/boot_id", self.machine.boot)
        self.begin()

    def begin(self) -> None:
        """Start the agent, unless it runs or there is no power."""
        if self.running and self.agent is None:
            actor = self.loop.actor(f"agent-{self.name}", self.machine)
            actor.mortal = True
            cast(Any, actor).disk = self.disk
            actor.on_death.append(self._agent_died)
            agent = self.agent = Agent(self, actor)
            agent.context.run(self._load, agent)

    def _load(self, agent: Agent) -> None:
        with contextlib.suppress(Killed):
            agent.load()
            self.hooks.loaded(agent)

    def _agent_died(self) -> None:
        agent, self.agent = self.agent, None
        if agent is not None and self.power:
            for client in list(agent.peers):
                client.hang_up("closed by the other side")
            self.loop.later(self.rng.uniform(*WATCHDOG_S), self.begin)

    def lose_power(self) -> None:
        """Fall over, and come back after a while; routes, rules, and what was not synced are
        gone.
        """
        if not self.power:
            return
        self.power = self.running = False
        self.loop.note(f"POWER of {self.name}")
        if self.agent is not None:
            self.loop.kill(self.agent.actor)
        self.kernel.lose_power()
        self.disk.lose_power(self.rng)
        self.machine.boots += 1
        silent, self.logins = self.logins, []
        boot_s = self.rng.uniform(*BOOT_S)
        for login in silent:
            login.dead = True
            self.loop.later(min(boot_s, SILENCE_S), login.reset)
        self.loop.later(boot_s, self._up)

    def sees(self, port: int, light: bool) -> None:
        """The light of a port came or went."""
        nic = self.kernel.nics[self.ports[port]]
        if nic.carrier is light:
            return
        nic.carrier = light
        nic.ups, nic.downs = nic.ups + light, nic.downs + (not light)
        if self.agent is not None:
            self.loop.call_soon(
                self.agent.link,
                16,
                nic.message(),
                int(self.loop.now * 1e9),
                context=self.agent.context,
            )


class Absent:
    """A part of the daemon that no story here uses: every request of it does nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: {}


class Slots(Absent):
    machine = None


class Counters(Absent):
    def counters(self, *_: object) -> dict[str, Any]:
        return {"t_ns": time.monotonic_ns(), "ports": {}, "downs": {}}


class Jobs(Absent):
    def has_user(self) -> bool:
        return True


class Agent(Server):
    """The daemon; its loop is the simulation's."""

    def __init__(self, host: SimHost, actor: Actor) -> None:
        self.sim, self.actor, self.context = host, actor, host.loop.context(actor)
        self.peers: list[SimPeer] = []
        self.cancelled: set[int] = set()
        self.order = 0
        self.host, self.sha = host.name, ""
        self.facts = json.loads(host.disk.names[VAR + "/provision.json"].data)
        self.ports = host.ports
        self.numbers = {name: number for number, name in self.ports.items()}
        self.nl = cast(Any, host.kernel)
        absent: Any = Absent()
        self.handoff = self.probes = self.ends = absent
        self.slots, self.jobs = cast(Any, Slots()), cast(Any, Jobs())
        self.samples = cast(Any, Counters())
        self.mechanisms = [absent for _ in MECHANISMS]

    def load(self) -> None:
        """What the daemon does first."""
        self.interfaces = links(self.nl)
        self.generations = Generations(self, self.nl)
        self.generations.load()
        self.arming = Arming(self, self.generations)
        self.fence = Fence(self.overtaken)

    def timer(self, at_ns: int, function: Callable[[], object]) -> int:
        self.order += 1
        order = self.order

        def due() -> None:
            if order not in self.cancelled:
                function()

        self.sim.loop.call_at(at_ns / 1e9, due, context=self.context)
        return order

    def guard(self, function: Callable[..., object], *arguments: int) -> None:
        function(*arguments)  # an unexpected error is a find here

    def broadcast(self, event: Any) -> None:
        self.sim.loop.note(f"{self.host} {event.get('event')} {event.get('generation')}")
        for peer in list(self.peers):
            if peer.watching:
                peer.send(event)

    def link(self, kind: int, data: bytes, now: int) -> None:
        self.clients = cast(Any, self.peers)
        super().link(kind, data, now)

    def operate(self, client: Any, request: Any) -> Any:
        op = request.get("op")
        if op in FENCED:
            self.fence.check(op, request)
            self.sim.loop.note(
                f"{self.host} {op} {request.get('generation', '')} token {request.get('token')}"
            )
            self.sim.hooks.obeyed(self.host, op, request)
        return super().operate(client, request)

    def answers(self, request: Any) -> dict[str, Any]:
        """One request of `call`."""
        try:
            return dict(self.operate(Absent(), request) or {}, ok=True)
        except Failure as error:
            return {"ok": False, "code": error.code, "error": str(error)}
