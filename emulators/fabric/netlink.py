"""Route netlink by hand: the dozen messages the fabric needs, many per system call.

Two to ten times faster than `ip -batch` or a netlink library, which is what makes a switch of 48
ports take milliseconds. Formats: linux/rtnetlink.h, if_link.h, pkt_sched.h, pkt_cls.h,
tc_act/tc_mirred.h.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass

NEWLINK, GETLINK, NEWADDR, NEWROUTE = 16, 18, 20, 24
NEWQDISC, DELQDISC, NEWTCLASS, NEWTFILTER, DELTFILTER = 36, 37, 40, 44, 45
REQUEST, ACK, REPLACE, EXCL, CREATE, DUMP = 1, 4, 0x100, 0x200, 0x400, 0x300
ERROR, DONE = 2, 3
IFF_UP = 1
CHUNK = 64  # messages per sendmsg: their answers fit the default receive buffer
FIRST_SHARE = 2
LEAST_SHARE_BPS = 8_000
BURST_BYTES = 16_384
# no less than the kernel hands over at once, or a class of large pieces would get more than one of
# small
QUANTUM_BYTES = 65_536
CLSACT, CLSACT_INGRESS, CLSACT_EGRESS = 0xFFFFFFF1, 0xFFFFFFF2, 0xFFFFFFF3
# u32 table 800, node 800: always the same, so a redirect is replaced in place and never piles up
FILTER_HANDLE = 0x80000800
# ETH_P_ALL; redirects come last
LOSS_INFO, GATE_INFO, FILTER_INFO = (priority << 16 | socket.htons(3) for priority in (1, 2, 3))


@dataclass(frozen=True, slots=True)
class Message:
    """One request; `what` names it in errors, `absent_ok` accepts that the object no longer
    exists.
    """

    kind: int
    flags: int
    body: bytes
    what: str
    absent_ok: bool = False


def attribute(kind: int, value: bytes | int | str) -> bytes:
    """Encode one attribute: an int as u32, a str zero-terminated."""
    if isinstance(value, int):
        value = struct.pack("=I", value)
    elif isinstance(value, str):
        value = value.encode() + b"\0"
    length = 4 + len(value)
    return struct.pack("=HH", length, kind) + value + b"\0" * (-length % 4)


def _nest(kind: int, *parts: bytes) -> bytes:
    return attribute(kind, b"".join(parts))


def _ifinfo(index: int, flags: int = 0, change: int = 0) -> bytes:
    return struct.pack("=BxHiII", 0, 0, index, flags, change)


def _changed(index: int, attributes: bytes, what: str) -> Message:
    return Message(NEWLINK, 0, _ifinfo(index) + attributes, what)


@dataclass(frozen=True, slots=True)
class End:
    """One end of a veth pair. The two ends need different indexes, or the kernel reports carrier
    loss up to a second late.
    """

    index: int
    name: str
    mac: str = ""
    mtu: int = 1500
    net: int | None = None  # descriptor of the namespace it goes to
    segments: int = 0  # packets of TCP handed over at once at most; 0: as many as the kernel likes

    def attributes(self) -> bytes:
        parts = attribute(3, self.name) + attribute(4, self.mtu)
        if self.segments:
            parts += attribute(40, self.segments)  # IFLA_GSO_MAX_SEGS
        if self.mac:
            parts += attribute(1, bytes.fromhex(self.mac.replace(":", "")))
        if self.net is not None:
            parts += attribute(28, self.net)
        return parts


def veth(near: End, far: End) -> Message:
    peer = _nest(1, _ifinfo(far.index) + far.attributes())  # VETH_INFO_PEER
    info = _nest(18, attribute(1, "veth"), _nest(2, peer))  # IFLA_LINKINFO
    body = _ifinfo(near.index) + near.attributes() + info
    return Message(NEWLINK, CREATE | EXCL, body, f"veth pair {near.name} - {far.name}")


def bridge(index: int, name: str) -> Message:
    body = _ifinfo(index) + attribute(3, name) + _nest(18, attribute(1, "bridge"))
    return Message(NEWLINK, CREATE | EXCL, body, f"bridge {name}")


def link_state(index: int, up: bool, *, absent_ok: bool = False) -> Message:
    body = _ifinfo(index, IFF_UP if up else 0, IFF_UP)
    return Message(NEWLINK, 0, body, f"interface {index} {'up' if up else 'down'}", absent_ok)


def moved(index: int, net: int) -> Message:
    """Move an interface to the namespace behind `net`; its addresses, routes and queues stay
    behind.
    """
    return _changed(index, attribute(28, net), f"interface {index} to a namespace")


def link_name(index: int, name: str) -> Message:
    return _changed(index, attribute(3, name), f"interface {index} as {name}")


def link_mtu(index: int, mtu: int) -> Message:
    return _changed(index, attribute(4, mtu), f"MTU of interface {index}")


def enslave(index: int, master: int) -> Message:
    body = _ifinfo(index, IFF_UP, IFF_UP) + attribute(10, master)
    return Message(NEWLINK, 0, body, f"interface {index} into bridge {master}")


def address(index: int, ip: str, prefix: int) -> Message:
    """Put an address on an interface, without the kernel's own subnet route."""
    raw = socket.inet_aton(ip)
    body = struct.pack("=BBBBi", socket.AF_INET, prefix, 0, 0, index) + attribute(2, raw)
    body += attribute(1, raw) + attribute(8, 0x200)
    return Message(NEWADDR, CREATE | REPLACE, body, f"address {ip}/{prefix}")


def subnet_route(index: int, network: str, prefix: int, source: str) -> Message:
    """Route a subnet to an interface with `quickack 1`: delayed ACKs cost a cold SSH connection 80
    ms.
    """
    # main, proto kernel, scope link, unicast
    body = struct.pack("=BBBBBBBBI", socket.AF_INET, prefix, 0, 0, 254, 2, 253, 1, 0)
    body += attribute(1, socket.inet_aton(network)) + attribute(4, index)
    body += attribute(7, socket.inet_aton(source)) + _nest(8, attribute(15, 1))
    return Message(NEWROUTE, CREATE | REPLACE, body, f"route {network}/{prefix}")


def _tc(index: int, handle: int, parent: int, kind: str, info: int = 0) -> bytes:
    return struct.pack("=BxxxiIII", 0, index, handle, parent, info) + attribute(1, kind)


def _selector(mask: int = 0, value: bytes = b"", offset: int = 0) -> bytes:
    """Of a filter u32: packets with this value where the mask has ones; all, by default."""
    keys = struct.pack("=I4sii", mask, value, offset, 0)
    return attribute(5, struct.pack("=BBBxHHhhI", 1, 0, 1, 0, 0, 0, 0, 0) + keys)  # terminal


def _rate(rate_bps: int) -> tuple[bytes, int]:
    # linklayer ethernet: no rate table wanted
    rate = struct.pack("=BBHhHI", 0, 1, 0, -1, 0, rate_bps // 8)
    # the scheduler's clock tick is 64 ns
    return rate, (BURST_BYTES * 8 * 1_000_000_000 // rate_bps) >> 6


def _htb_class(index: int, rate_bps: int, flags: int, absent_ok: bool = False) -> Message:
    rate, ticks = _rate(rate_bps)
    opt = rate + rate + struct.pack("=IIIII", ticks, ticks, 18_028, 0, 0)
    body = _tc(index, 0x10001, 0x10000, "htb") + _nest(2, attribute(1, opt))
    return Message(NEWTCLASS, flags, body, "class htb", absent_ok)


def _htb(index: int, minor: int) -> Message:
    """The qdisc. minor: of the class of what no filter knows."""
    glob = struct.pack("=IIIII", 3, 10, minor, 0, 0)
    body = _tc(index, 0x10000, 0xFFFFFFFF, "htb") + _nest(2, attribute(2, glob))
    return Message(NEWQDISC, CREATE | EXCL, body, "qdisc htb")


def _bfifo(index: int, minor: int, limit_bytes: int) -> Message:
    """The queue of the class of this number; 10: and so on, which no other qdisc of the interface
    has.
    """
    body = _tc(index, 0x100000 + (minor - 1 << 16), 0x10000 | minor, "bfifo")
    return Message(NEWQDISC, CREATE | EXCL, body + attribute(2, limit_bytes), "qdisc bfifo")


def shaper(index: int, rate_bps: int, *, limit_bytes: int = 524_288) -> list[Message]:
    """HTB with one class and a byte FIFO; `rate_bps` in bits per second, Ethernet header included,
    preamble not.
    """
    return [
        _htb(index, 1),
        _htb_class(index, rate_bps, CREATE | EXCL),
        _bfifo(index, 1, limit_bytes),
    ]


def fair_shaper(index: int, rate_bps: int, classes: int, *, limit_bytes: int) -> list[Message]:
    """A `shaper` whose rate is shared: classes with a byte FIFO each, numbered from FIRST_SHARE,
    take turns quantum by quantum.

    What one does not use the others get. Traffic without a filter (`by_source`) is in the first
    class.
    """
    messages = [_htb(index, FIRST_SHARE), _htb_class(index, rate_bps, CREATE | EXCL)]
    # Of its own each class has next to nothing, and borrows from the whole, where a quantum each is
    # all that counts.
    own, own_ticks = _rate(LEAST_SHARE_BPS)
    ceil, ceil_ticks = _rate(rate_bps)
    opt = own + ceil + struct.pack("=IIIII", own_ticks, ceil_ticks, QUANTUM_BYTES, 0, 0)
    for minor in range(FIRST_SHARE, FIRST_SHARE + classes):
        body = _tc(index, 0x10000 | minor, 0x10001, "htb") + _nest(2, attribute(1, opt))
        messages.append(Message(NEWTCLASS, CREATE | EXCL, body, "class htb"))
        messages.append(_bfifo(index, minor, limit_bytes))
    return messages


def by_source(index: int, number: int, mac: str, minor: int) -> Message:
    """Put what this Ethernet address sent into a class of a `fair_shaper`; replaces the filter of
    this number (from 0).
    """
    key = bytes.fromhex(mac.replace(":", ""))[2:]
    # Offsets count from the IP header; the Ethernet source ends two octets, the type, before it.
    options = _nest(2, attribute(1, 0x10000 | minor), _selector(0xFFFFFFFF, key, -6))
    body = _tc(index, FILTER_HANDLE - 0x800 + 1 + number, 0x10000, "u32", FILTER_INFO) + options
    return Message(NEWTFILTER, CREATE, body, f"filter u32 of {mac}")


def reshaped(index: int, rate_bps: int) -> Message:
    """Change the rate of a `shaper` that is there; what waits in its queue stays."""
    return _htb_class(index, rate_bps, 0, absent_ok=True)


def unshaped(index: int) -> Message:
    """Take the `shaper` away, with what waits in its queue."""
    body = _tc(index, 0x10000, 0xFFFFFFFF, "htb")
    return Message(DELQDISC, 0, body, "no qdisc htb", absent_ok=True)


def clsact(index: int) -> Message:
    body = _tc(index, 0xFFFF0000, CLSACT, "clsact")
    return Message(NEWQDISC, CREATE | EXCL, body, "qdisc clsact")


def redirect(ingress: int, egress: int) -> Message:
    """Send whatever enters by interface `ingress` out of interface `egress`; replaces the redirect
    that is there.
    """
    mirred = struct.pack("=IIiiiiI", 0, 0, 4, 0, 0, 1, egress)  # action stolen; egress redirect
    action = _nest(1, attribute(1, "mirred"), _nest(2, attribute(2, mirred)))
    body = _tc(ingress, FILTER_HANDLE, CLSACT_INGRESS, "u32", FILTER_INFO)
    body += _nest(2, _selector(), _nest(7, action))
    what = f"filter u32 with mirred {ingress} -> {egress}"
    return Message(NEWTFILTER, CREATE, body, what, absent_ok=True)


def no_redirect(ingress: int) -> Message:
    body = _tc(ingress, FILTER_HANDLE, CLSACT_INGRESS, "u32", FILTER_INFO)
    return Message(DELTFILTER, 0, body, f"no filter on {ingress}", absent_ok=True)


def filtered(index: int, side: int, program: int) -> Message:
    """Let the BPF program behind descriptor `program` decide before any other; side: CLSACT_INGRESS
    or CLSACT_EGRESS.
    """
    return _bpf(index, side, LOSS_INFO, program, "loss", CREATE | EXCL)


def unfiltered(index: int, side: int) -> Message:
    return _no_bpf(index, side, LOSS_INFO)


def gated(index: int, program: int) -> Message:
    """Let the BPF program behind descriptor `program` decide in place of the redirect; replaces the
    gate that is there at once.
    """
    return _bpf(index, CLSACT_INGRESS, GATE_INFO, program, "gate", CREATE | REPLACE)


def ungated(index: int) -> Message:
    return _no_bpf(index, CLSACT_INGRESS, GATE_INFO)


def _bpf(index: int, side: int, info: int, program: int, name: str, flags: int) -> Message:
    # TCA_BPF_FD, NAME, FLAGS: direct action
    options = _nest(2, attribute(6, program), attribute(7, name), attribute(8, 1))
    body = _tc(index, 1, side, "bpf", info) + options
    return Message(NEWTFILTER, flags, body, f"filter bpf on {index}", absent_ok=True)


def _no_bpf(index: int, side: int, info: int) -> Message:
    body = _tc(index, 1, side, "bpf", info)
    return Message(DELTFILTER, 0, body, f"no filter bpf on {index}", absent_ok=True)


def xdp(index: int, program: int) -> Message:
    """Let the XDP program behind descriptor `program` see what interface `index` receives, in its
    driver; never the generic way.
    """
    # IFLA_XDP; its FD and FLAGS: XDP_FLAGS_DRV_MODE
    options = _nest(43, attribute(1, program), attribute(3, 4))
    return _changed(index, options, f"XDP program on {index}")


class Netlink:
    """A route socket of the network namespace it was opened in."""

    def __init__(self) -> None:
        self._socket = socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE
        )
        # SOL_NETLINK, NETLINK_CAP_ACK: answers do not repeat the question
        self._socket.setsockopt(270, 10, 1)
        self._socket.bind((0, 0))
        self._sequence = 0

    def close(self) -> None:
        self._socket.close()

    def send(self, messages: Iterable[Message]) -> None:
        """Carry out all messages in order; the kernel has done them when this returns.

        Raises: OSError - the first refusal, naming the message. Later messages of the batch were
        carried out all the same.
        """
        pending = list(messages)
        refused: OSError | None = None
        for start in range(0, len(pending), CHUNK):
            chunk = pending[start : start + CHUNK]
            refused = self._exchange(chunk) or refused
        if refused:
            raise refused

    def _request(self, kind: int, flags: int, body: bytes) -> bytes:
        self._sequence += 1
        head = struct.pack("=IHHII", 16 + len(body), kind, REQUEST | flags, self._sequence, 0)
        return head + body

    def _exchange(self, chunk: list[Message]) -> OSError | None:
        first = self._sequence + 1
        self._socket.send(b"".join(self._request(m.kind, ACK | m.flags, m.body) for m in chunk))
        refused: OSError | None = None
        answered = 0
        while answered < len(chunk):
            for kind, sequence, body in _split(self._socket.recv(65_536)):
                if kind != ERROR or sequence < first:
                    continue
                answered += 1
                number = -struct.unpack_from("=i", body)[0]
                message = chunk[sequence - first]
                if number and not (message.absent_ok and number in (errno.ENODEV, errno.ENOENT)):
                    refused = refused or OSError(number, f"{message.what}: {os.strerror(number)}")
        return refused

    def links(self) -> dict[int, tuple[str, int, bool]]:
        """Index -> name, flags, carrier of every interface."""
        self._socket.send(self._request(GETLINK, DUMP, _ifinfo(0)))
        found: dict[int, tuple[str, int, bool]] = {}
        while True:
            for kind, _, body in _split(self._socket.recv(262_144)):
                if kind == DONE:
                    return found
                index, flags = struct.unpack_from("=4xiI", body)
                attributes = dict(_attributes(body[16:]))
                carrier = bool(attributes.get(33, b"\0")[0])  # IFLA_CARRIER
                found[index] = (attributes[3].rstrip(b"\0").decode(), flags, carrier)


class LinkWatch:
    """Receives the interface events of the network namespace it was opened in."""

    # a filter in the kernel: sock_filter steps, none for everything
    only: tuple[tuple[int, int, int, int], ...] = ()
    groups = 1  # RTMGRP_LINK

    def __init__(self) -> None:
        self._socket = socket.socket(
            socket.AF_NETLINK,
            socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK,
            socket.NETLINK_ROUTE,
        )
        if self.only:
            code = b"".join(struct.pack("=HBBI", *step) for step in self.only)
            buffer = ctypes.create_string_buffer(code)
            program = struct.pack("@HP", len(self.only), ctypes.addressof(buffer))
            self._socket.setsockopt(socket.SOL_SOCKET, 26, program)  # SO_ATTACH_FILTER
        self._socket.bind((0, self.groups))

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def read(self) -> Iterable[tuple[int, bool]]:
        """Yield the index of each interface reported since the last call, and whether it is
        switched on.
        """
        while True:
            try:
                data = self._socket.recv(65_536)
            except BlockingIOError:
                return
            for kind, _, body in _split(data):
                if kind == NEWLINK:
                    index, flags = struct.unpack_from("=4xiI", body)
                    yield index, bool(flags & IFF_UP)


class AddressWatch(LinkWatch):
    """Receives the events of IPv4 addresses, too."""

    groups = LinkWatch.groups | 0x10  # RTMGRP_IPV4_IFADDR


class AdminWatch(LinkWatch):
    """Receives only the events of interfaces being switched on or off.

    Carrier comes and goes with every move of light; a filter in the kernel keeps that from waking
    the lab up.
    """

    only = (
        (0x20, 0, 0, 28),
        (0x45, 0, 1, 0x01000000),
        (0x06, 0, 0, 0xFFFF),
        (0x06, 0, 0, 0),
    )  # ifi_change & IFF_UP, as big-endian


def _split(data: bytes) -> Iterable[tuple[int, int, bytes]]:
    at = 0
    while at + 16 <= len(data):
        length, kind, _, sequence, _ = struct.unpack_from("=IHHII", data, at)
        yield kind, sequence, data[at + 16 : at + length]
        at += (length + 3) & ~3


def _attributes(data: bytes) -> Iterable[tuple[int, bytes]]:
    at = 0
    while at + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, at)
        yield kind & 0x3FFF, data[at + 4 : at + length]
        at += (length + 3) & ~3
