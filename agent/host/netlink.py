"""Raw rtnetlink: messages built with struct, batches acknowledged by the kernel, dumps, multicast
link events.
"""

from __future__ import annotations

import binascii
import contextlib
import errno
import os
import socket
import struct

from agent.basics import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from agent.shapes import Link, Message

TABLE_BASE, TABLES = 7000, 250
RULE_PREF, FENCE_PREF = 7000, 7010
# rtnetlink protocol number of our routes and rules, given to no routing daemon: marks our routes
PROTOCOL = 183

NEWLINK, DELLINK, GETLINK, NEWADDR, DELADDR, GETADDR = 16, 17, 18, 20, 21, 22
NEWROUTE, DELROUTE, GETROUTE, NEWNEIGH, DELNEIGH = 24, 25, 26, 28, 29
NEWRULE, DELRULE, GETRULE, GETSTATS = 32, 33, 34, 94
REQUEST, ACK, REPLACE, EXCL, CREATE, DUMP = 0x1, 0x4, 0x100, 0x200, 0x400, 0x300
HEADER = struct.Struct("=IHHII")
U32 = struct.Struct("=I")
IF_UP, LOWER_UP = 0x1, 0x10000
PERMANENT = 0x80


def attr(kind: int, data: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(data), kind) + data + b"\0" * (-len(data) % 4)


def attrs(data: bytes, offset: int) -> dict[int, bytes]:
    found = {}
    end = len(data)
    while offset + 4 <= end:
        length, kind = struct.unpack_from("=HH", data, offset)
        if length < 4:
            break
        found[kind & 0x3FFF] = data[offset + 4 : offset + length]
        offset += (length + 3) & ~3
    return found


def u32(value: int) -> bytes:
    return U32.pack(value)


def mac_bytes(text: str) -> bytes:
    return binascii.unhexlify(text.replace(":", ""))


def mac_text(data: bytes) -> str:
    return ":".join(f"{b:02x}" for b in data)


class Rtnl:
    """A route netlink socket: batches of requests, each acknowledged by the kernel; dumps;
    multicast events.
    """

    def __init__(self, groups: int = 0, protocol: int = 0) -> None:
        self.socket = socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol
        )
        for option in (10, 11, 12):  # NETLINK_CAP_ACK, NETLINK_EXT_ACK, NETLINK_GET_STRICT_CHK
            with contextlib.suppress(OSError):
                self.socket.setsockopt(270, option, 1)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        self.socket.bind((0, groups))
        self.sequence = 0

    def send(self, messages: list[Message]) -> dict[int, tuple[int, str]]:
        """Send (type, flags, body) messages, 64 per system call; return (errno, kernel words) by
        index for those that failed.

        The kernel carries them out in order and answers those that fail, and the last one of each
        call in any case.
        """
        failed = {}
        for start in range(0, len(messages), 64):
            first = self.sequence + 1
            block: list[bytes] = []
            for kind, flags, body in messages[start : start + 64]:
                self.sequence += 1
                last = ACK if len(block) == 63 or start + len(block) + 1 == len(messages) else 0
                block.append(
                    HEADER.pack(16 + len(body), kind, flags | REQUEST | last, self.sequence, 0)
                    + body
                )
            self.socket.send(b"".join(block))
            answered = False
            while not answered:
                for kind, _, sequence, data in self.receive():
                    if kind != 2 or sequence < first:  # NLMSG_ERROR is also the acknowledgement
                        continue
                    answered = sequence == self.sequence
                    code = -struct.unpack_from("=i", data)[0]
                    if code:
                        text = attrs(data, 20).get(1, b"").rstrip(b"\0").decode("ascii", "replace")
                        failed[start + sequence - first] = (code, text)
        return failed

    def dump(self, kind: int, body: bytes, absent: int = errno.ENOENT) -> list[bytes]:
        """Return the bodies of a whole dump; none where it answers with the error `absent`. Raises:
        OSError - another one.
        """
        self.sequence += 1
        wanted = self.sequence
        self.socket.send(HEADER.pack(16 + len(body), kind, REQUEST | DUMP, wanted, 0) + body)
        found: list[bytes] = []
        while True:
            for answer, _, sequence, data in self.receive():
                if sequence != wanted:
                    continue
                if answer in (2, 3):  # NLMSG_ERROR, NLMSG_DONE
                    code = -struct.unpack_from("=i", data)[0] if len(data) >= 4 else 0
                    if code <= 0 or code == absent:  # the end; or a table that was never used
                        return found
                    raise OSError(code, os.strerror(code))
                found.append(data)

    def receive(self) -> Iterator[tuple[int, int, int, bytes]]:
        data = self.socket.recv(1 << 18)
        offset = 0
        while offset + 16 <= len(data):
            length, kind, flags, sequence, _ = HEADER.unpack_from(data, offset)
            if length < 16:
                return
            yield kind, flags, sequence, data[offset + 16 : offset + length]
            offset += (length + 3) & ~3


def rule_message(table: int) -> bytes:
    body = struct.pack("=BBBBBBBBI", socket.AF_INET, 0, 0, 0, 0, 0, 0, 1, 0)
    return body + attr(6, u32(RULE_PREF)) + attr(15, u32(table)) + attr(21, bytes([PROTOCOL]))


def fence_message(prefix: str) -> bytes:
    """A rule that answers `unreachable` for fabric addresses no generation knows, so that they
    never leak to management.
    """
    address, bits = prefix.split("/")
    body = struct.pack("=BBBBBBBBI", socket.AF_INET, int(bits), 0, 0, 0, 0, 0, 7, 0)
    return (
        body
        + attr(1, socket.inet_aton(address))
        + attr(6, u32(FENCE_PREF))
        + attr(21, bytes([PROTOCOL]))
    )


def route_message(
    table: int, destination: str, via: str, ifindex: int, source: str, metrics: bytes
) -> bytes:
    """ifindex 0: these addresses have no route here, whatever a shorter prefix says (RTN_THROW: the
    next rule decides).
    """
    address, _, bits = destination.partition("/")
    if not ifindex:
        body = struct.pack(
            "=BBBBBBBBI", socket.AF_INET, int(bits or 32), 0, 0, 0, PROTOCOL, 0, 9, 0
        )
        return body + attr(1, socket.inet_aton(address)) + attr(15, u32(table))
    # RTNH_F_ONLINK: next hops are the far ends of fibres, in no subnet of ours
    flags = 4 if via else 0
    body = struct.pack(
        "=BBBBBBBBI",
        socket.AF_INET,
        int(bits or 32),
        0,
        0,
        0,
        PROTOCOL,
        0 if via else 253,
        1,
        flags,
    )
    body += attr(1, socket.inet_aton(address)) + attr(4, u32(ifindex)) + attr(15, u32(table))
    if via:
        body += attr(5, socket.inet_aton(via))
    if source:
        body += attr(7, socket.inet_aton(source))
    return body + metrics


def metrics_attribute(rto_min_ms: int | None, congctl: str | None) -> bytes:
    """RTA_METRICS; without the lock bit the kernel ignores rto_min."""
    inner = b""
    if rto_min_ms:
        inner += attr(1, u32(1 << 13)) + attr(13, u32(int(rto_min_ms)))
    if congctl:
        inner += attr(16, congctl.encode() + b"\0")
    return attr(8, inner) if inner else b""


def neighbour_message(address: str, mac: str | None, ifindex: int) -> bytes:
    body = struct.pack("=BBHiHBB", socket.AF_INET, 0, 0, ifindex, PERMANENT, 0, 0) + attr(
        1, socket.inet_aton(address)
    )
    return body + attr(2, mac_bytes(mac)) if mac else body


def link_message(
    ifindex: int = 0,
    up: bool = False,
    mtu: int | None = None,
    name: str | None = None,
    kind: str | None = None,
    down: bool = False,
) -> bytes:
    body = struct.pack("=BBHiII", 0, 0, 0, ifindex, IF_UP if up else 0, IF_UP if up or down else 0)
    if mtu:
        body += attr(4, u32(mtu))
    if name:
        body += attr(3, name.encode() + b"\0")
    if kind:
        body += attr(18, attr(1, kind.encode()))
    return body


def address_message(ifindex: int, address: str) -> bytes:
    packed = socket.inet_aton(address)
    return (
        struct.pack("=BBBBI", socket.AF_INET, 32, 0, 0, ifindex)
        + attr(2, packed)
        + attr(1, packed)
        + attr(8, u32(0x200))
    )


def link_values(data: bytes) -> Link:
    """Read one RTM_NEWLINK body."""
    ifindex, flags = struct.unpack_from("=iI", data, 4)
    a = attrs(data, 16)
    carrier = a.get(33)
    return {
        "ifindex": ifindex,
        "name": a.get(3, b"").rstrip(b"\0").decode("ascii", "replace"),
        "mac": mac_text(a.get(1, b"")),
        "mtu": U32.unpack(a[4])[0] if 4 in a else 0,
        "up": bool(flags & IF_UP),
        "carrier": bool(flags & LOWER_UP) if carrier is None else bool(carrier[0]),
        "ups": U32.unpack(a[47])[0] if 47 in a else 0,
        "downs": U32.unpack(a[48])[0] if 48 in a else 0,
    }


def links(nl: Rtnl) -> dict[str, Link]:
    return {
        v["name"]: v
        for v in map(link_values, nl.dump(GETLINK, struct.pack("=BBHiII", 0, 0, 0, 0, 0, 0)))
    }


def routes_of(nl: Rtnl, table: int) -> dict[tuple[str, str, int], bytes]:
    """Read back (destination, via, ifindex) of one table, and the bodies that delete them."""
    found = {}
    body = struct.pack("=BBBBBBBBI", socket.AF_INET, 0, 0, 0, 0, 0, 0, 0, 0) + attr(15, u32(table))
    for data in nl.dump(GETROUTE, body):
        a = attrs(data, 12)
        if U32.unpack(a.get(15, u32(data[4])))[0] != table:
            continue
        destination = "{}/{}".format(socket.inet_ntoa(a.get(1, b"\0\0\0\0")), data[1])
        via = socket.inet_ntoa(a[5]) if 5 in a else ""
        # scope 255: whatever it is
        delete = bytes([data[0], data[1], 0, data[3], 0, 0, 255, 0]) + u32(0)
        delete += attr(15, u32(table)) + (attr(1, a[1]) if 1 in a else b"")
        found[destination, via, U32.unpack(a[4])[0] if 4 in a else 0] = delete
    return found


def rule_tables(nl: Rtnl) -> list[int]:
    """Return the tables our selecting rules point at, first match first."""
    tables = []
    for data in nl.dump(GETRULE, struct.pack("=BBBBBBBBI", socket.AF_INET, 0, 0, 0, 0, 0, 0, 0, 0)):
        a = attrs(data, 12)
        if 6 in a and U32.unpack(a[6])[0] == RULE_PREF and data[7] == 1:
            tables.append(U32.unpack(a.get(15, u32(data[4])))[0])
    return tables


def must(failed: dict[int, tuple[int, str]], names: Callable[[int], str]) -> None:
    """Raise with the kernel's own words for the first of `failed`, naming what it was."""
    if failed:
        i = min(failed)
        code, text = failed[i]
        more = " (and %s more)" % (len(failed) - 1) if len(failed) > 1 else ""
        raise Failure(
            "failed",
            "{}: {}{}{}".format(names(i), os.strerror(code), ": " + text if text else "", more),
        )
