"""TCP sockets that a hold keeps from sending: listed when it begins, and pushed when the route is
there again.

While a generation that holds is active (`Generations.commit`), a pair without a path has no route:
TCP keeps its packets in the socket, and would look again only when its backed-off timer expires.
Setting TCP_NODELAY makes the kernel push what a socket has to send (`__tcp_sock_set_nodelay` in
net/ipv4/tcp.c). What the far end has received but could not acknowledge, as it holds, too, still
counts as in flight, and fills the window: ending a repair that never began (TCP_REPAIR) sends a
window probe, which is answered with what is there. The far end answers one probe in 500 ms
(tcp_invalid_ratelimit), also where it has no route for the answer yet: the probe is sent once the
far end is known to have left its hold, too. pidfd_getfd (Linux 5.6) reaches the sockets of any
program, and the option is put back to what it was. A kernel or sandbox without it, or without
sock_diag: nothing is pushed, and replies say why.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time

from agent.host.netlink import Rtnl, attrs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from agent.shapes import Json, Waiting

    Meet = Callable[[list[str], Callable[[str], None], Callable[[], None]], None]  # see Probes.meet
    Found = tuple[int, int, int, str]  # pidfd, descriptor there, inode, address of the far end

SOCKETS = 256
"""Sockets that are pushed at most, those with most to send first: at 0.15 to 0.35 ms each."""
SEARCH_NS, PUSH_NS = 250_000_000, 100_000_000
"""How long the search through /proc and the pushing may take; the daemon does nothing else
meanwhile.
"""
SOCK_DIAG, SOCK_DIAG_BY_FAMILY = 4, 20  # NETLINK_SOCK_DIAG; linux/sock_diag.h
AGAIN_NS = 5_000_000_000
"""Processes of sockets that were not found are searched again after this time."""
LONG_NS, REST = 20_000_000, 50
"""A list of connections takes 54 us for each, and any job may have many: what it takes beyond this
time (ns) is waited for so many times before a schedule asks for the next one."""
# TCP_ESTABLISHED and TCP_CLOSE_WAIT: those that may still send (net/tcp_states.h)
STATES = 1 << 1 | 1 << 8
INFO = 2  # INET_DIAG_INFO: struct tcp_info, of which tcpi_unacked is at byte 24 (linux/tcp.h)
REPAIR, REPAIR_OFF = 19, 0  # TCP_REPAIR; linux/tcp.h
# the number of the system call on every architecture but alpha; Python has no wrapper
PIDFD_GETFD = 438


def established(lanes: Collection[str]) -> Iterator[tuple[bytes, str, bytes]]:
    """TCP connections of this host from one of the addresses `lanes`: as sock_diag knows each, its
    far address, its tcp_info.

    Raises: OSError - this kernel has no sock_diag.
    """
    diag = Rtnl(protocol=SOCK_DIAG)
    try:
        for family in (socket.AF_INET, socket.AF_INET6):
            request = (
                struct.pack("=BBBBI", family, socket.IPPROTO_TCP, 1 << (INFO - 1), 0, STATES)
                + b"\0" * 48
            )
            for data in diag.dump(SOCK_DIAG_BY_FAMILY, request, absent=0):
                source, target = (plain(data[at : at + 16], family) for at in (8, 24))
                if source in lanes:
                    yield data, target, attrs(data, 72).get(INFO, b"")
    finally:
        diag.socket.close()


def sockets(lanes: Collection[str]) -> Iterator[Waiting]:
    """TCP connections of this host from one of the addresses `lanes`, as sock_diag knows them.
    Raises: OSError - it has none.
    """
    for data, target, info in established(lanes):
        queued, _, inode = struct.unpack_from("=III", data, 60)
        unacked = struct.unpack_from("=I", info, 24)[0] if len(info) >= 28 else 0
        yield {"target": target, "inode": inode, "queued": queued, "unacked": unacked}


def rested(began_ns: int, ended_ns: int) -> int:
    """When connections may be listed again that took from `began_ns` to `ended_ns`."""
    return ended_ns + REST * max(0, ended_ns - began_ns - LONG_NS)


def plain(address: bytes, family: int) -> str:
    """An address in dots; empty for one of IPv6 that maps none of IPv4."""
    if family == socket.AF_INET:
        return socket.inet_ntoa(address[:4])
    return socket.inet_ntoa(address[12:]) if address[:12] == b"\0" * 10 + b"\xff\xff" else ""


def descriptors(inodes: Collection[int], end_ns: int) -> Iterator[tuple[int, int, int]]:
    """(process, descriptor, inode) of every socket of `inodes` found in /proc before `end_ns`, one
    descriptor each.
    """
    missing, own = set(inodes), os.stat("/proc/self/ns/net").st_ino
    if not missing:
        return
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.stat(f"/proc/{pid}/ns/net").st_ino != own:
                continue
            names = os.listdir(f"/proc/{pid}/fd")
        except OSError:  # it ended
            continue
        for name in names:
            if not missing or time.monotonic_ns() > end_ns:
                return
            try:
                link = os.readlink(f"/proc/{pid}/fd/{name}")
            except OSError:
                continue
            if link.startswith("socket:[") and int(link[8:-1]) in missing:
                missing.discard(int(link[8:-1]))
                yield int(pid), int(name), int(link[8:-1])


def system_call() -> Callable[[int, int], int]:
    """pidfd_getfd(2): a descriptor of another process as one of ours. Raises: OSError, ImportError
    - there is none here.
    """
    import ctypes

    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long

    def getfd(pidfd: int, fd: int) -> int:
        found = call(
            ctypes.c_long(PIDFD_GETFD), ctypes.c_int(pidfd), ctypes.c_int(fd), ctypes.c_uint(0)
        )
        if found < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return int(found)

    return getfd


def no_delay(s: socket.socket) -> None:
    """Send what the windows allow. Raises: OSError."""
    before = s.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if not before:
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 0)


def window_probe(s: socket.socket) -> None:
    with contextlib.suppress(OSError):  # a sandbox without CAP_NET_ADMIN
        s.setsockopt(socket.IPPROTO_TCP, REPAIR, REPAIR_OFF)


class Flush:
    """The sockets of one hold. Nothing here raises: a commit must not fail for it."""

    def __init__(self) -> None:
        self.getfd: Callable[[int, int], int] | None = None
        self.found: list[Found] = []
        self.meet: Meet = lambda targets, each, done: done()
        self.pidfds: dict[int, int] = {}
        self.listed = 0
        self.skipped = ""
        # holds follow each other: whose the sockets are is remembered from one to the next
        self.keep = False
        self.known: dict[int, tuple[int, int]] = {}  # inode -> (pidfd, descriptor there)
        self.unknown: set[int] = set()  # inodes that no process was found to have
        self.searched_ns = self.rest_ns = 0

    def prepare(
        self,
        lanes: Collection[str],
        reachable: Collection[str],
        onto: Collection[str] | None = None,
    ) -> Json:
        """List the sockets from `lanes` to other hosts than `reachable`, and find out whose they
        are. onto: to these alone.
        """
        self.forget()
        began = time.monotonic_ns()
        waiting: list[Waiting] = []
        if self.keep and began < self.rest_ns:
            self.skipped = "this host has so many connections that they are listed seldom"
            return {"sockets": 0, "found": 0, "took_us": 0, "skipped": self.skipped}
        try:
            self.getfd = self.getfd or system_call()
            waiting = [
                s
                for s in sockets(lanes)
                if s["inode"] and s["target"] not in reachable and s["target"] not in lanes
            ]
            self.rest_ns = rested(began, time.monotonic_ns())
            waiting = (
                waiting
                if onto is None
                else [s for s in waiting if s["target"] in onto and s["queued"]]
            )
            waiting.sort(key=lambda s: -s["queued"])
            rank = {s["inode"]: s["target"] for s in waiting[:SOCKETS]}
            for pid, fd, inode in descriptors(self.missing(rank, began), began + SEARCH_NS):
                if pid not in self.pidfds:
                    self.pidfds[pid] = os.pidfd_open(pid)
                self.known[inode] = self.pidfds[pid], fd
            self.unknown = {inode for inode in rank if inode not in self.known}
            self.found = [
                (*self.known[inode], inode, target)
                for inode, target in rank.items()
                if inode in self.known
            ]
        except (OSError, ImportError, AttributeError, ValueError, struct.error) as e:
            self.skipped = f"sockets cannot be listed here: {e}"
        self.listed = len(waiting)
        reply: Json = {
            "sockets": self.listed,
            "found": len(self.found),
            "took_us": (time.monotonic_ns() - began) // 1000,
        }
        return dict(reply, skipped=self.skipped) if self.skipped else reply

    def missing(self, wanted: Collection[int], now_ns: int) -> set[int]:
        """The inodes whose processes are to be searched; what was not found is searched again after
        a while only.
        """
        missing = {inode for inode in wanted if inode not in self.known}
        if missing <= self.unknown and now_ns - self.searched_ns < AGAIN_NS:
            return set()
        self.searched_ns = now_ns
        return missing

    def push(self) -> Json:
        """Push every socket that was listed, as far as the time allows, and again when its far end
        has left its hold, too.
        """
        began, listed = time.monotonic_ns(), self.found
        pushed, failed = self.each(listed, began + PUSH_NS, no_delay)
        reply: Json = {
            "sockets": self.listed,
            "pushed": pushed,
            "took_us": (time.monotonic_ns() - began) // 1000,
        }
        reason = self.skipped or (f"not all sockets could be reached: {failed}" if failed else "")
        targets = {target for *_, target in listed}
        self.meet(
            sorted(targets),
            lambda target: self.ask(listed, target),
            lambda: self.forget() if listed is self.found else None,
        )
        return dict(reply, skipped=reason) if reason else reply

    def ask(self, listed: list[Found], target: str) -> None:
        """The host of this address has left its hold: ask it over every socket that was listed what
        it has received.
        """
        if listed is self.found:  # else the next hold has begun
            self.each(
                [entry for entry in listed if entry[3] == target],
                time.monotonic_ns() + PUSH_NS,
                window_probe,
            )

    def each(
        self, entries: list[Found], end_ns: int, act: Callable[[socket.socket], None]
    ) -> tuple[int, str]:
        """Do something with these sockets until `end_ns`: how many were there, and why one could
        not be reached.
        """
        count, failed = 0, ""
        for pidfd, fd, inode, _ in entries:
            if time.monotonic_ns() > end_ns:
                break
            try:
                count += self.one(pidfd, fd, inode, act)
            except OSError as e:
                failed = failed or str(e)
                self.known.pop(inode, None)
        return count, failed

    def one(self, pidfd: int, fd: int, inode: int, act: Callable[[socket.socket], None]) -> bool:
        """Do something with one socket; False where that descriptor is another file by now. Raises:
        OSError.
        """
        assert self.getfd is not None
        own = self.getfd(pidfd, fd)
        if os.fstat(own).st_ino != inode:
            os.close(own)
            return False
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fileno=own) as s:
            act(s)
        return True

    def forget(self) -> None:
        self.found, self.listed, self.skipped = [], 0, ""
        if not self.keep or len(self.known) >= SOCKETS:
            self.known, self.unknown = {}, set()
        used = {pidfd for pidfd, _ in self.known.values()}
        for pid, pidfd in list(self.pidfds.items()):
            if pidfd not in used:
                os.close(self.pidfds.pop(pid))
