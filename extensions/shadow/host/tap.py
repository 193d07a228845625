"""A tap: copies of what a job's TCP connections bring to this host's ports go to the job's shadow
on another host.

A process of its own has a packet socket (packet(7)) for each port: the kernel copies what matches a
filter into a ring of fixed size at ingress, and counts what finds no room there. The process hands
whole blocks of the ring to a connection on the management network. So nothing waits for a tap, and
nothing is left when the process or the shadow ends: the connection is the lease. No qdisc, filter
or device is made. A tap outlives the daemon, as jobs do, and the next one finds it.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import mmap
import os
import re
import select
import signal
import socket
import struct
import time

from agent.basics import RUN, bad, integer, number, read_json, refused, write
from agent.jobs.processes import job_name, start_time
from agent.mechanism import Mechanism

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import ClassVar

    from agent.shapes import Answer, Daemon, Json, Operations

TAPS, LANES = 4, 64  # on this host at once; addresses of one
BLOCK, BLOCKS, RETIRE_MS = (
    1 << 17,
    64,
    20,
)  # 8 MB a port; a block that is not full is handed over after this time, so 1.3 s at least
# linux/if_packet.h
SOL_PACKET, PACKET_RX_RING, PACKET_STATISTICS, PACKET_VERSION, PACKET_IGNORE_OUTGOING = (
    263,
    5,
    6,
    10,
    23,
)
TPACKET_V3, ETH_P_IP = 2, 0x0800
SO_ATTACH_FILTER = 26
PR_SET_NAME = 15
KEPT = RUN + "/taps.json"
# until the shadow answers, where the operator says nothing else; and at most
WITHIN_S, LONGEST_S = 35.0, 3600.0
# a shadow whose host does not answer for so long is gone, as workloads/transport/peers.py has it
SILENT_S = 60
ROLE = b"tap".ljust(8)
NUMBER, PROOF = 16, 32
HEAD = struct.Struct("!III")
"""Before each block: its length, the port's number, and how many packets found no room since the
tap began.
"""
STATUS_AT, LENGTH_AT = 2, 5  # in a block, in words of 4 bytes
KEY = re.compile(r"^[0-9a-f]{64}$")


def program(lanes: Sequence[str]) -> bytes:
    """A classic BPF filter on IPv4 packets: unfragmented TCP to one of these addresses, with a
    payload or SYN (bpf(4)).
    """
    addresses = [struct.unpack("!I", socket.inet_aton(lane))[0] for lane in lanes]
    count = len(addresses)
    code = [(0x30, 0, 0, 9), (0x15, 0, count + 3, 6)]  # protocol: TCP
    code += [(0x28, 0, 0, 6), (0x45, count + 1, 0, 0x3FFF)]  # no fragment
    code += [
        (0x20, 0, 0, 16),
        *((0x15, count - n, 0, address) for n, address in enumerate(addresses)),
        (0x06, 0, 0, 0),
    ]
    code += [(0xB1, 0, 0, 0), (0x50, 0, 0, 13), (0x45, 7, 0, 2)]  # X: length of the IP header; SYN
    # X: of both headers
    code += [
        (0x50, 0, 0, 12),
        (0x54, 0, 0, 0xF0),
        (0x74, 0, 0, 2),
        (0x0C, 0, 0, 0),
        (0x07, 0, 0, 0),
    ]
    # the packet is longer
    code += [(0x28, 0, 0, 2), (0x1D, 1, 0, 0), (0x06, 0, 0, 0xFFFFFFFF), (0x06, 0, 0, 0)]
    return b"".join(struct.pack("=HBBI", *each) for each in code)


class Ring:
    """The packets of one port, in blocks."""

    def __init__(self, interface: str, number: int, code: bytes) -> None:
        import ctypes

        self.number, self.dropped, self.at = number, 0, 0
        # nothing before it is bound
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, 0)
        held = ctypes.create_string_buffer(code)
        attach = struct.pack("@HP", len(code) // 8, ctypes.addressof(held))
        self.socket.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, attach)
        self.socket.setsockopt(SOL_PACKET, PACKET_VERSION, TPACKET_V3)
        self.socket.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
        frames = BLOCK // 2048 * BLOCKS
        self.socket.setsockopt(
            SOL_PACKET,
            PACKET_RX_RING,
            struct.pack("=7I", BLOCK, BLOCKS, 2048, frames, RETIRE_MS, 0, 0),
        )
        self.memory = memoryview(mmap.mmap(self.socket.fileno(), BLOCK * BLOCKS))
        self.words = self.memory.cast("I")
        self.socket.bind((interface, ETH_P_IP))

    def block(self) -> memoryview | None:
        """The next block that the kernel has handed over."""
        first = self.at * (BLOCK // 4)
        if not self.words[first + STATUS_AT] & 1:
            return None
        return self.memory[
            self.at * BLOCK : self.at * BLOCK + min(self.words[first + LENGTH_AT], BLOCK)
        ]

    def give_back(self) -> None:
        """The block was sent."""
        self.words[self.at * (BLOCK // 4) + STATUS_AT] = 0
        self.at = (self.at + 1) % BLOCKS

    def lost(self) -> int:
        """How many packets found no room so far; reading resets the kernel's counters."""
        _, dropped, _ = struct.unpack(
            "=3I", self.socket.getsockopt(SOL_PACKET, PACKET_STATISTICS, 12)
        )
        self.dropped += dropped
        return self.dropped


def proof(key: bytes, who: bytes, first: bytes, second: bytes) -> bytes:
    return hmac.new(key, who + first + second, hashlib.sha256).digest()


def meet(address: str, port: int, key: bytes, within_s: float) -> socket.socket:
    """Connect to the shadow; both show that they know the key (workloads/transport/peers.py).
    Raises: OSError - it is not there.

    within_s: a shadow listens, then imports torch, then answers, on a busy machine minutes later;
    if it dies meanwhile, that closes the connection.
    """
    until = time.monotonic() + within_s
    while True:
        try:
            link = socket.create_connection(
                (address, port), timeout=max(until - time.monotonic(), 0.1)
            )
            break
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
    for option, value in (
        (socket.TCP_KEEPIDLE, 5),
        (socket.TCP_KEEPINTVL, 5),
        (socket.TCP_USER_TIMEOUT, 1000 * SILENT_S),
    ):
        link.setsockopt(socket.IPPROTO_TCP, option, value)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    link.settimeout(max(until - time.monotonic(), 0.1))
    first, second = exactly(link, NUMBER), os.urandom(NUMBER)
    link.sendall(ROLE + second + proof(key, ROLE, first, second))
    if not hmac.compare_digest(exactly(link, PROOF), proof(key, b"listener", first, second)):
        raise ConnectionError(f"{address}:{port} is not the job's shadow")
    return link


def exactly(link: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        piece = link.recv(count - len(found))
        if not piece:
            raise ConnectionError("the job's shadow closed the connection")
        found += piece
    return found


def carry(rings: Sequence[Ring], link: socket.socket) -> None:
    """Send every block to the shadow, until it closes the connection. While that takes nothing, the
    rings fill up unheeded.
    """
    link.setblocking(False)
    numbers = [ring.socket.fileno() for ring in rings]
    end = select.EPOLLIN | select.EPOLLRDHUP  # the shadow says nothing: it is gone
    poll = select.epoll()
    poll.register(link.fileno(), end)
    for each in numbers:
        poll.register(each, select.EPOLLIN)
    sending: Ring | None = None
    waiting: list[memoryview] = []
    was_full = False
    while True:
        full = False
        while not full:
            if not waiting:
                if sending is not None:
                    sending.give_back()
                sending, waiting = following(rings)
                if sending is None:
                    break
            try:
                count = link.send(waiting[0])
            except BlockingIOError:
                full = True
            else:
                waiting = (
                    waiting[1:] if count == len(waiting[0]) else [waiting[0][count:], *waiting[1:]]
                )
        if full != was_full:
            was_full = full
            poll.modify(link.fileno(), end | (select.EPOLLOUT if full else 0))
            for number in numbers:
                poll.modify(number, 0 if full else select.EPOLLIN)
        for number, mask in poll.poll():
            if number == link.fileno() and mask & ~select.EPOLLOUT:
                return
            if mask & select.EPOLLERR:  # the port was set down; the kernel goes on once it is up
                next(ring for ring in rings if ring.socket.fileno() == number).socket.getsockopt(
                    socket.SOL_SOCKET, socket.SO_ERROR
                )


def following(rings: Sequence[Ring]) -> tuple[Ring | None, list[memoryview]]:
    """The next block with what goes before it, and its ring; None where no ring has one."""
    for ring in rings:
        block = ring.block()
        if block is not None:
            return ring, [
                memoryview(HEAD.pack(len(block), ring.number, min(ring.lost(), 0xFFFFFFFF))),
                block,
            ]
    return None, []


def work(
    ports: Sequence[tuple[str, int]], code: bytes, met: tuple[str, int, bytes, float], reported: int
) -> None:
    """What the process of a tap does; met: as `meet`. `reported` gets a word once it has begun, or
    why it could not.
    """
    try:
        rings = [Ring(interface, number, code) for interface, number in ports]
        link = meet(*met)
    except OSError as e:
        os.write(reported, str(e).encode()[:500] or b"failed")
        return
    os.write(reported, b"ok")
    os.close(reported)
    carry(rings, link)


class Taps(Mechanism):
    """The taps of this host."""

    OPERATIONS: ClassVar[Operations] = {
        "tap": lambda self, request, answer: self.start(request, answer),
        "tap.stop": lambda self, request, _: self.stop(job_name(request)),
        "taps": lambda self, *_: {"taps": self.pids()},
    }
    FENCED = frozenset(("tap", "tap.stop"))

    def __init__(self, server: Daemon) -> None:
        super().__init__(server)
        # by the job's name: its process, and a pidfd of it
        self.found: dict[str, tuple[int, int]] = {}
        for name, (pid, born) in (read_json(KEPT) or {}).items():
            with contextlib.suppress(OSError):
                self.watch(name, pid, born)
        self.save()

    def pids(self) -> dict[str, int]:
        return {name: pid for name, (pid, _) in self.found.items()}

    def save(self) -> None:
        write(KEPT, json.dumps({name: [pid, start_time(pid)] for name, pid in self.pids().items()}))

    def watch(self, name: str, pid: int, born: int | None = None) -> None:
        """Keep a tap until it ends. born: unless another process has its number by now. Raises:
        OSError - it has ended.
        """
        watched = os.pidfd_open(pid)
        if born is not None and start_time(pid) != born:
            os.close(watched)
            return
        self.found[name] = pid, watched
        self.server.register(watched, lambda _: self.ended(name, pid, watched))

    def start(self, request: Json, answer: Answer) -> None:
        """Tap ports for a job, instead of an earlier tap of it; answers once the copies are on
        their way to its shadow.
        """
        name, ports, lanes, shadow = (
            job_name(request),
            request.get("ports"),
            request.get("lanes"),
            request.get("shadow"),
        )
        key = secret(request.get("key"))
        if (
            not isinstance(ports, list)
            or not 0 < len(ports) <= LANES
            or not all(type(p) is int for p in ports)
        ):
            raise bad(f"ports: a list of 1 to {LANES} numbers of ports is needed")
        strange = [p for p in ports if p not in self.server.ports]
        if strange:
            raise bad(
                f"ports: {strange[0]} is not a port of this host (it has {sorted(self.server.ports)})"
            )
        if not isinstance(lanes, list) or not 0 < len(lanes) <= LANES:
            raise bad(f"lanes: a list of 1 to {LANES} addresses of this host is needed")
        if not isinstance(shadow, str):
            raise bad("shadow: the address of the job's shadow is needed")
        port, within_s = integer(request, "port", 1), number(request, "within_s", WITHIN_S)
        if not 0 < within_s <= LONGEST_S:
            raise bad(f"within_s: more than 0 and at most {LONGEST_S:.0f} seconds are possible")
        met = (shadow, port, key, within_s)
        try:
            code = program(lanes)
        except (OSError, TypeError):
            raise bad("lanes: not all of them are IPv4 addresses") from None
        self.stop(name)
        if len(self.found) >= TAPS:
            raise refused(
                f"this host has {TAPS} taps already, for {', '.join(self.found)}: as many as it can"
            )
        out, into = os.pipe()
        pid = os.fork()
        if pid == 0:
            apart(
                lambda: work(
                    [(self.server.ports[n], n) for n in sorted(set(ports))], code, met, into
                ),
                into,
            )
        os.close(into)
        self.watch(name, pid)
        self.save()

        def begun(_: int) -> None:
            text = os.read(out, 1000).decode(errors="replace")
            self.server.unregister(out)
            os.close(out)
            answer(
                {
                    "name": name,
                    "pid": pid,
                    "ports": sorted(set(ports)),
                    "error": "" if text == "ok" else text or "it ended early",
                }
            )

        self.server.register(out, begun)

    def stop(self, name: str) -> Json:
        """End a job's tap; one that is not there does no harm."""
        existing = self.found.pop(name, None)
        if existing is not None:
            signal.pidfd_send_signal(existing[1], signal.SIGKILL)
            self.save()
        return {"name": name, "ended": existing is not None}

    def ended(self, name: str, pid: int, watched: int) -> None:
        self.server.unregister(watched)
        os.close(watched)
        with contextlib.suppress(ChildProcessError):  # an earlier daemon's child
            os.waitpid(pid, 0)
        if self.found.get(name) == (pid, watched):
            del self.found[name]
            self.save()


def apart(what: Callable[[], None], keep: int) -> None:
    """Be a process of its own from now on, with no file but this one."""
    import ctypes

    try:
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_NAME, b"testbed-tap", 0, 0, 0)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.closerange(3, keep)
        os.closerange(keep + 1, 4096)
        os.setsid()
        what()
    finally:
        os._exit(0)


def secret(text: object) -> bytes:
    """Raises: Failure - it is no key."""
    if not isinstance(text, str) or not KEY.match(text):
        raise bad("key: 64 hexadecimal digits are needed")
    return bytes.fromhex(text)
