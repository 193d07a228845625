"""Build the fabric: namespaces, fibres, shapers; then move its light.

All light paths are in one namespace `ocs`, with one end of every fibre. A cross-connect is a
redirect from one end to another; a dark receiver is an end that is down, which the host at the
other end sees as loss of carrier. Packet switches are there too.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from emulators.devices.families import family
from emulators.fabric import functions, linux, relay
from emulators.fabric.fibre_plant import FibrePlant, HostPort, Relight, Strand, Tie
from emulators.fabric.gate import Gates
from emulators.fabric.host import FIRST_PORT_INDEX, LOOPBACK, MGMT_INDEX
from emulators.fabric.hosts import FIRST_LIT_INDEX, CannotBuild, Host, PortWatch, start
from emulators.fabric.linkwatch import Linkwatch
from emulators.fabric.loss import program
from emulators.fabric.netlink import (
    CLSACT_EGRESS,
    CLSACT_INGRESS,
    End,
    Message,
    Netlink,
    bridge,
    clsact,
    enslave,
    filtered,
    link_state,
    no_redirect,
    redirect,
    reshaped,
    shaper,
    unfiltered,
    unshaped,
    veth,
)
from emulators.fabric.queues import Queues, port_mac
from emulators.fabric.sshd import Keys
from emulators.fabric.switches import (
    OUTWARD,
    QUEUE_BYTES,
    UNLIMITED_BPS,
    at_once,
    cables,
    limited,
    queue_bytes,
    switched,
)
from emulators.inventory.config import LabConfig
from emulators.optics.light import Lit
from emulators.optics.rotor_schedule import RotorSchedule

BRIDGE_INDEX, FIRST_MGMT_INDEX = 10, 5000


class Fabric:
    """The hosts, their fibres and the light in them. Lives in the lab's own namespaces; nothing
    needs taking down.
    """

    def __init__(
        self,
        config: LabConfig,
        keys: Keys,
        listeners: Mapping[str, socket.socket],
        machine_proc: int,
        function_listeners: Mapping[str, socket.socket] | None = None,
    ) -> None:
        """Build everything. Takes over the listening sockets, by host and by segment with
        functions. Raises: CannotBuild.
        """
        self.config = config
        self.fibre_plant = laid(config)
        self.cables = cables(config.segments)
        self.queues = Queues(config)
        self._index: dict[HostPort, int] = {}
        self._entry: dict[HostPort, int] = {}  # the end at whose ingress a port's light is switched
        # what these ports send is shaped before it is switched
        self._shaped_first: set[HostPort] = set()
        self._usual_bps: dict[int, int] = {}  # of every end that traffic leaves by
        self._limits: Mapping[HostPort, int] = {}
        self._limited: dict[int, int] = {}
        self._losses: Mapping[HostPort, float] = {}
        self._aside = ThreadPoolExecutor(1, "carrier")
        self._darkening: Future[None] = Future()
        self._darkening.set_result(None)
        self._flusher = ThreadPoolExecutor(1, "linkwatch")
        self._flushing: Future[bool] = Future()
        self._flushing.set_result(True)
        self._one_flush = threading.Lock()
        self.hosts = start(config, keys, listeners, machine_proc)
        nets = {
            h.name: os.open(f"/proc/{h.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            for h in self.hosts.values()
        }
        self._lay_fibres(nets, function_listeners or {})
        for host in self.hosts.values():
            host.control.send(b"go")
        for name, host in self.hosts.items():
            host.receive()
            with linux.inside(nets[name]):
                host.ports = PortWatch()
            os.close(nets[name])
        self._announce()

    def show(self, device: str, lit: frozenset[Lit]) -> Relight:
        """Make the kernel agree with the light of `device`.

        No packet crosses a broken circuit once this returns. Where light only goes away, the hosts
        lose carrier a moment later, as a network card takes a moment to notice: the caller, who has
        commands to answer, does not wait for the kernel's work.
        """
        return self._apply(self.fibre_plant.show(device, lit))

    def advance(self, device: str, schedule: RotorSchedule | None) -> None:
        """Let packets through `device` by the clock, or by `show` alone. Raises: OSError - the
        kernel refuses (no BPF).
        """
        self._darkening.result()
        self.gates.show(device, schedule)
        self._announce()

    def sever(self, fibre: str, cut: bool) -> Relight:
        """Cut a cable or a trunk, or splice it. Raises: KeyError - no such cable."""
        return self._apply(self.fibre_plant.sever(fibre, cut))

    def swap(self, one: str, other: str, ends: str) -> list[Relight]:
        """Exchange two cables' plugs. Raises: KeyError, ValueError, as LightPath."""
        return [self._apply(change) for change in self.fibre_plant.swap(one, other, ends)]

    def kill(self, port: HostPort, dead: bool) -> Relight:
        """Keep the link of `port` down, or let it work again."""
        return self._apply(self.fibre_plant.kill(port, dead))

    def silence(self, port: HostPort, silent: bool) -> Relight:
        """Let the transmitter of `port` fall silent, or send again."""
        return self._apply(self.fibre_plant.silence(port, silent))

    def rebooted(self, host: Host) -> None:
        """Follow a host into its new network namespace: its name for `ip netns`, and its ports."""
        net = os.open(f"/proc/{host.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        linux.unmount(Path("/run/netns", host.name))
        linux.bind(f"/proc/self/fd/{net}", Path("/run/netns", host.name))
        host.ports.close()
        with linux.inside(net):
            host.ports = PortWatch()
        os.close(net)

    def unplug(self, cable: str, out: bool) -> None:
        """Pull a cable of a packet switch, or plug it in again. Raises: KeyError - no such
        cable.
        """
        self._ocs.send([link_state(self._index[self.cables[cable]], not out, absent_ok=True)])

    def impair(self, limits: Mapping[HostPort, int], losses: Mapping[HostPort, float]) -> None:
        """Limit the rates (bits per second) of these ports, lose these shares (0 to 1) there, each
        way; other ports are as built.

        Raises: OSError - the kernel refuses; ports may be impaired in part.
        """
        self._limits = limits
        self._limit()
        before, self._losses = self._losses, dict(losses)
        changed = sorted(
            port for port in {*before, *losses} if before.get(port) != losses.get(port)
        )
        for port in changed:
            sides = [(self._index[port], side) for side in (CLSACT_INGRESS, CLSACT_EGRESS)]
            if port in before:
                self._ocs.send([unfiltered(*side) for side in sides])
            if port not in losses:
                continue
            fd = program(losses[port])
            try:
                self._ocs.send([filtered(*side, fd) for side in sides])
            finally:
                os.close(fd)

    def share(self, how: str) -> Mapping[str, str]:
        """Have uplinks shared by `fifo` or `job`; return how, by segment with queues. Raises:
        OSError - the kernel refuses.
        """
        self._ocs.send(self.queues.share(how))
        return self.queues.shares

    def one_job(self, hosts: Collection[str]) -> list[list[str]]:
        """Let these hosts be one job to the queues before uplinks; return all jobs. Raises: OSError
        - the kernel refuses.
        """
        self._ocs.send(self.queues.job(hosts))
        return self.queues.jobs

    def _limit(self) -> None:
        """Shape what reaches a limited port at its own end, and what it sends at the end it leaves
        by: that of who receives it.
        """
        wanted: dict[int, int] = {}
        ends = [(self._index[port], bps) for port, bps in self._limits.items()]
        behind = self._limits.keys() - self._shaped_first
        ends += [
            (self._index[receiver], self._limits[port])
            for receiver, port in self.fibre_plant.sources.items()
            if port in behind
        ]
        first = self._shaped_first.union(self.cables.values())
        ends += [
            (self._index[port] + OUTWARD, bps)
            for port, bps in self._limits.items()
            if port in first
        ]
        for end, bps in ends:
            if bps < (self._usual_bps[end] or UNLIMITED_BPS):
                wanted[end] = min(bps, wanted.get(end, bps))
        messages: list[Message] = []
        for end in {*self._limited, *wanted}:
            now, then = self._limited.get(end), wanted.get(end)
            if now == then:
                continue
            if self._usual_bps[end] or (now and then):
                messages.append(reshaped(end, then or self._usual_bps[end]))
            else:
                added = shaper(end, then, limit_bytes=QUEUE_BYTES) if then else [unshaped(end)]
                # the host may be down
                messages += [replace(message, absent_ok=True) for message in added]
        self._limited = wanted
        self._ocs.send(messages)

    def carriers(self) -> dict[HostPort, bool]:
        """Ask the kernel, not the books, which host ports have carrier."""
        self._darkening.result()
        links = self._ocs.links()
        return {port: index in links and links[index][2] for port, index in self._index.items()}

    def _apply(self, change: Relight) -> Relight:
        index = self._index
        if self._limits:
            self._limit()
        dark = [
            link_state(index[port], False, absent_ok=True)
            for port in change.darkened
            if port not in self.gates.receivers
        ]
        cut = [no_redirect(self._entry[port]) for port in change.unsent]
        joined = [
            redirect(self._entry[sender], index[receiver]) for sender, receiver in change.sent
        ]
        light = [link_state(index[port], True, absent_ok=True) for port in change.lit]
        if light:
            self._darkening.result()  # one change of a port after the other
            self._ocs.send([*dark, *cut, *joined, *light])
            self._announce()
        elif dark or cut:
            self._ocs.send([*cut, *joined])
            # one thread: the last one done is all done
            self._darkening = self._aside.submit(self._darken, dark)
        if self.gates.receivers:
            self.gates.refresh()  # a fibre may be cut, a transmitter silent
        return change

    def _darken(self, ports: list[Message]) -> None:
        self._carriers.send(ports)
        self._announce()

    def _announce(self) -> None:
        """Update the hosts' carriers now, in the background; a flush that has yet to begin covers
        this change too.
        """
        with self._one_flush:
            if self._flushing.running() or self._flushing.done():
                self._flushing = self._flusher.submit(self._linkwatch.flush)

    def _lay_fibres(
        self, nets: Mapping[str, int], function_listeners: Mapping[str, socket.socket]
    ) -> None:
        ocs = linux.new_network()
        with linux.inside(ocs):
            # a light path does not speak: no router solicitations out of its ends
            for scope in ("all", "default"):
                knob = Path(f"/proc/sys/net/ipv6/conf/{scope}/disable_ipv6")
                if knob.exists():
                    knob.write_text("1")
            self._ocs, self._carriers = Netlink(), Netlink()
        self._linkwatch = Linkwatch()
        for name, fd in {**nets, "ocs": ocs}.items():  # names for `ip netns` inside the lab
            Path("/run/netns", name).touch()
            linux.bind(f"/proc/self/fd/{fd}", Path("/run/netns", name))

        fibres: list[Message] = []
        segment_at = {port: s for s in self.config.segments for port in cables([s]).values()}
        advanced = {
            HostPort(f.host, f.port)
            for f in self.config.fibres
            if family(self.config.devices[f.device].driver).rotates
        }
        patches: list[Message] = [
            bridge(BRIDGE_INDEX, "mgmt"),
            link_state(BRIDGE_INDEX, True),
            link_state(LOOPBACK, True),
        ]
        for name, host in self.config.hosts.items():
            for port, interface in host.interfaces.items():
                index = FIRST_LIT_INDEX + len(self._index)
                self._index[HostPort(name, port)] = self._entry[HostPort(name, port)] = index
                rotates = HostPort(name, port) in advanced
                segment = segment_at.get(HostPort(name, port))
                rate_bps = segment.rate_bps if segment else self.config.rate_bps
                near = End(index, f"h{host.number}p{port}", mtu=self.config.mtu)
                mac = port_mac(host.number, port)
                most = (
                    1
                    if rotates
                    else at_once(round(rate_bps * self.config.dilation), self.config.mtu)
                )
                fibres.append(
                    veth(
                        near,
                        End(FIRST_PORT_INDEX + port, interface, mac, net=nets[name], segments=most),
                    )
                )
                self._usual_bps[index] = self._usual_bps[index + OUTWARD] = (
                    rate_bps if rate_bps < UNLIMITED_BPS else 0
                )
                fibres.append(clsact(index))
                if rotates:
                    fibres += self._shape_first(HostPort(name, port), index, rate_bps)
                else:
                    fibres += limited(index, rate_bps, queue_bytes(segment))
            index = FIRST_MGMT_INDEX + host.number
            mac = f"02:0a:ff:{host.number >> 8:02x}:{host.number & 255:02x}:00"
            patches.append(
                veth(End(index, f"m{host.number}"), End(MGMT_INDEX, "mgmt", mac, net=nets[name]))
            )
            patches.append(enslave(index, BRIDGE_INDEX))
        self.gates = Gates(self._ocs, self.fibre_plant, self._entry, self._index)
        try:
            ends = functions.ends(self.config.segments, self.config.mtu)
            fibres += switched(
                self.config.segments, self._index, self.config.mtu, self.queues, ends
            )
            self._ocs.send(fibres)
            self.functions = functions.start(self.config.segments, ends, function_listeners)
            if self.config.lines:
                self._lay_lines(ocs)
            lab = Netlink()
            lab.send(patches)
            lab.close()
            for process in self.functions.values():
                process.ready()
        except OSError as problem:
            raise CannotBuild(_explain(problem)) from problem
        os.close(ocs)

    def _lay_lines(self, ocs: int) -> None:
        """Lead what some ports send through lines with delay, before the light path or a packet
        switch takes it.
        """
        wanted = {
            HostPort(*port): self._index[HostPort(*port)]
            for line in self.config.lines
            for port in line.ports
        }
        with linux.inside(ocs):
            descriptors = relay.taps(wanted)
        taken_by_another = self._shaped_first.union(self.cables.values())
        for port, index in wanted.items():
            onward = (
                [redirect(index + relay.TAP, index + OUTWARD)] if port in taken_by_another else []
            )
            if not onward:
                self._entry[port] = index + relay.TAP
            self._ocs.send(
                [*relay.ready(index, self.config.mtu), redirect(index, index + relay.TAP), *onward]
            )
        relay.start(relay.lines_of(self.config.lines, descriptors, self.config.seed))

    def _shape_first(self, port: HostPort, index: int, rate_bps: int) -> list[Message]:
        """Let what `port` sends queue before it is switched, as in a network card; behind the light
        path it would become late.
        """
        outer, inner = index + OUTWARD, index + 2 * OUTWARD
        self._entry[port] = inner
        self._shaped_first.add(port)
        self._usual_bps[index] = 0
        ends = (
            End(outer, f"o{index}", mtu=self.config.mtu),
            End(inner, f"i{index}", mtu=self.config.mtu),
        )
        up = (link_state(outer, True), link_state(inner, True))
        return [veth(*ends), *limited(outer, rate_bps), clsact(inner), *up, redirect(index, outer)]


def laid(config: LabConfig) -> FibrePlant:
    """Return the fibres and trunks of a lab, no light in them yet."""
    strands = (
        Strand(f.name, HostPort(f.host, f.port), f.device, f.enters, f.leaves, f.slot)
        for f in config.fibres
    )
    return FibrePlant(strands, (Tie(t.name, t.source, t.target) for t in config.trunks))


def _explain(problem: OSError) -> str:
    """Name the part of the kernel that is missing when it refuses a message."""
    hint = ""
    if problem.errno in (errno.EOPNOTSUPP, errno.ENOENT):
        modules = {
            "veth": "veth",
            "bridge": "bridge",
            "htb": "sch_htb",
            "bfifo": "sch_fifo",
            "clsact": "sch_ingress",
        }
        module = next((m for word, m in modules.items() if word in str(problem)), "")
        hint = f"; this kernel lacks the module {module}" if module else ""
    if problem.errno == errno.EPERM:
        hint = "; CAP_NET_ADMIN is missing"
    return f"{problem.strerror or problem}{hint}"
