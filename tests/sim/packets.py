"""Packets between hosts, by the kernels' routes and neighbours and the light that there is; agents'
real probes ride on them.
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from typing import Any

from tests.sim.agents import Agent
from tests.sim.kernel import Kernel
from tests.sim.lab import World
from tests.sim.seams import U32, Probes, attrs, mac_bytes

TTL = 64
UNICAST = 1
"""RTN_UNICAST; a route of another kind has the next rule decide."""


class Packets:
    """Where packets go in a world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.into = {
            (f.enters.device, f.enters.label): str(port) for port, f in world.lab.fibres.items()
        }
        self.out = {
            (f.leaves.device, f.leaves.label): str(port) for port, f in world.lab.fibres.items()
        }

    def addresses(self, host: str) -> list[bytes]:
        """Those of a host's lanes."""
        return [socket.inet_aton(address) for address in self.world.hosts[host].echo]

    def receiver(self, port: str) -> str:
        """The port at which the light of this one arrives, empty if none has it."""
        enters = self.world.cables[port].enters
        for into, out in self.world.light[enters.device]:
            if into == enters.label:
                found = self.out.get((enters.device, out), "")
                return found if found and self.world.lit(found) else ""
        return ""

    def arrival(self, port: str, mac: bytes) -> str:
        """The port at which a frame to this address arrives that leaves at `port`; empty if it does
        not.
        """
        return self.receiver(port)

    def path(self, source: str, address: bytes) -> tuple[str, int, bytes] | None:
        """The host with this address, over how many links from `source`, and the sender's own
        address; None: it does not arrive.
        """
        here, sender = self.world.hosts[source], b""
        for count in range(TTL):
            if not here.power:
                return None
            if address in self.addresses(here.name):
                return here.name, count, sender
            found = next_hop(here.kernel, address)
            if found is None:
                return None
            index, mac, own = found
            sender = sender or own
            number = next(
                number
                for number, name in here.ports.items()
                if here.kernel.nics[name].index == index
            )
            arrival = self.arrival(f"{here.name}:p{number}", mac)
            if not arrival:
                return None
            name, _, port = arrival.partition(":p")
            here = self.world.hosts[name]
            if mac_bytes(here.kernel.nics[here.ports[int(port)]].mac) != mac:
                return None
        return None


def next_hop(kernel: Kernel, address: bytes) -> tuple[int, bytes, bytes] | None:
    """The interface and the MAC that a kernel sends a packet to, and the address that it sends
    from; None: it has no route.
    """
    number = int.from_bytes(address, "big")
    for table in kernel.selected():
        found = [
            (bits, body)
            for (of, to, bits), body in kernel.routes.items()
            if of == table and number >> (32 - bits) == int.from_bytes(to, "big") >> (32 - bits)
        ]
        if not found:
            continue
        body = max(found)[1]
        if body[7] != UNICAST:
            continue
        values = attrs(body, 12)
        index = U32.unpack(values[4])[0]
        near = kernel.neighbours.get((values.get(5, address), index))
        return None if near is None else (index, attrs(near, 12)[2], values.get(7, b""))
    return None


class Wire:
    """The socket of probes: a question arrives if its packets do, and so does the answer."""

    def __init__(self, agent: Agent, packets: Packets) -> None:
        self.agent, self.packets = agent, packets
        self.came: deque[tuple[bytes, int]] = deque()

    def setsockopt(self, *_: object) -> None: ...

    def sendto(self, data: bytes, to: tuple[str, int]) -> None:
        host = self.agent.sim
        host.loop.later(host.net.latency(), self._ask, data, socket.inet_aton(to[0]))

    def _ask(self, data: bytes, address: bytes) -> None:
        host, world = self.agent.sim, self.packets.world
        if (other := self.packets.path(host.name, address)) is None:
            return
        name, links, own = other
        far = world.hosts[name].agent
        back = None if far is None or far.actor.paused else self.packets.path(name, own)
        if back is not None and back[0] == host.name:
            self.came.append(
                (b"TBa1" + data[4:12] + bytes([TTL - links + 1]) + name.encode(), TTL - back[1] + 1)
            )
            host.loop.call_soon(self.agent.probes.answers, 0, context=self.agent.context)

    def recvmsg(self, *_: int) -> tuple[bytes, Any, int, None]:
        if not self.came:
            raise BlockingIOError
        data, ttl = self.came.popleft()
        return data, [(socket.SOL_IP, socket.IP_TTL, struct.pack("=i", ttl))], 0, None


class SimProbes(Probes):
    """The agent's probes, without sockets."""

    def __init__(self, agent: Agent, packets: Packets) -> None:
        self.server, self.asked, self.nonce = agent, {}, agent.actor.number << 32
        self.socket: Any = Wire(agent, packets)
