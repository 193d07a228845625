"""What an agent finds on its host: a kernel that speaks rtnetlink's own messages, and a disk that
knows what was synced.

The disk: a rename may reach it before the content does, and content or names that were not synced
may be lost with the power. Below `/run` everything is lost.
"""

from __future__ import annotations

import io
import os
import random
from dataclasses import dataclass, field
from typing import Any

from tests.sim.loop import point
from tests.sim.seams import (
    DELNEIGH,
    DELROUTE,
    DELRULE,
    EXCL,
    GETLINK,
    GETRULE,
    NEWNEIGH,
    NEWROUTE,
    NEWRULE,
    U32,
    attr,
    attrs,
    mac_bytes,
    u32,
)


@dataclass(eq=False)
class Inode:
    """A file: what it holds, and what of that the disk has."""

    data: bytes = b""
    synced: bytes | None = None

    def after_power_loss(self, rng: random.Random) -> bytes:
        """What the disk gives back."""
        if self.synced == self.data:
            return self.data
        return rng.choice((self.synced or b"", self.data, b"", self.data[: len(self.data) // 2]))


class Disk:
    """Files by path. Folders are there without being made."""

    def __init__(self) -> None:
        self.names: dict[str, Inode] = {}
        self.synced: dict[str, Inode] = {}
        """The names that the disk has."""

    def put(self, path: str, text: str) -> None:
        """A file that was always there."""
        self.names[path] = self.synced[path] = Inode(text.encode(), text.encode())

    def sync(self, path: str) -> None:
        """fsync(2) of a file, or of a folder: of the names in it."""
        if (inode := self.names.get(path)) is not None:
            inode.synced = inode.data
            return
        for name in {*self.names, *self.synced}:
            if name.rpartition("/")[0] == path:
                self._settle(name)

    def _settle(self, name: str) -> None:
        if name in self.names:
            self.synced[name] = self.names[name]
        else:
            self.synced.pop(name, None)

    def lose_power(self, rng: random.Random) -> None:
        """Come back with what the disk has."""
        for name in sorted({*self.names, *self.synced}):
            if name.startswith("/run/"):
                self.names.pop(name, None)
                self.synced.pop(name, None)
            elif self.names.get(name) is not self.synced.get(name) and rng.random() < 0.5:
                self._settle(name)
        self.names = dict(self.synced)
        for name in sorted(self.names):
            inode = self.names[name]
            inode.data = inode.synced = inode.after_power_loss(rng)


class DiskOs:
    """`os` as the agent uses it, on the disk of the host whose agent runs; all else is the real
    one's.
    """

    def __init__(self, disk: Any) -> None:
        self._disk = disk  # () -> Disk
        self._open: dict[int, tuple[str, Inode]] = {}
        self._last = 10_000
        self.path = DiskPath(disk)

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        disk = self._disk()
        inode = disk.names.get(path)
        if inode is None:
            inode = Inode()  # a folder, which is opened to be synced
            if flags & os.O_CREAT:
                disk.names[path] = inode
        if flags & os.O_TRUNC:
            inode.data = b""
        self._last += 1
        self._open[self._last] = path, inode
        return self._last

    def write(self, fd: int, data: Any) -> int:
        self._open[fd][1].data += bytes(data)
        return len(data)

    def close(self, fd: int) -> None:
        del self._open[fd]

    def fsync(self, fd: int) -> None:
        self._disk().sync(self._open[fd][0])

    def rename(self, old: str, new: str) -> None:
        point(f"before rename {new}")
        names = self._disk().names
        names[new] = names.pop(old)

    def unlink(self, path: str) -> None:
        if self._disk().names.pop(path, None) is None:
            raise FileNotFoundError(path)

    def listdir(self, path: str) -> list[str]:
        return sorted(
            name[len(path) + 1 :] for name in self._disk().names if name.rpartition("/")[0] == path
        )


class DiskPath:
    """`os.path`, likewise."""

    def __init__(self, disk: Any) -> None:
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(os.path, name)

    def lexists(self, path: str) -> bool:
        return path in self._disk().names

    exists = isfile = lexists


def opener(disk: Any) -> Any:
    """`open` of a text file that is read, on the disk of the host whose agent runs."""

    def read(path: str, *_: Any, **__: Any) -> io.StringIO:
        inode = disk().names.get(path)
        if inode is None:
            raise FileNotFoundError(path)
        return io.StringIO(inode.data.decode("utf-8", "replace"))

    return read


@dataclass
class Nic:
    """An interface."""

    name: str
    index: int
    mac: str
    carrier: bool = False
    ups: int = 0
    downs: int = 0

    def message(self) -> bytes:
        """RTM_NEWLINK."""
        head = (
            b"\0\0\0\0"
            + self.index.to_bytes(4, "little")
            + (0x10001 if self.carrier else 1).to_bytes(4, "little")
            + b"\0" * 4
        )
        body = (
            attr(3, self.name.encode() + b"\0") + attr(1, mac_bytes(self.mac)) + attr(4, u32(9000))
        )
        return (
            head
            + body
            + attr(33, bytes([self.carrier]))
            + attr(47, u32(self.ups))
            + attr(48, u32(self.downs))
        )


@dataclass
class Kernel:
    """Interfaces, routes by table, rules, neighbours: what outlives an agent, and no power loss."""

    nics: dict[str, Nic]
    routes: dict[tuple[int, bytes, int], bytes] = field(default_factory=dict)
    rules: list[bytes] = field(default_factory=list)
    neighbours: dict[tuple[bytes, int], bytes] = field(default_factory=dict)

    def lose_power(self) -> None:
        """Start again; carriers count again, too."""
        self.routes.clear()
        self.rules.clear()
        self.neighbours.clear()
        for nic in self.nics.values():
            nic.ups, nic.downs = int(nic.carrier), 0

    def send(self, messages: Any) -> dict[int, tuple[int, str]]:
        """As `Rtnl.send`: which messages failed, and why."""
        point("before netlink")
        failed: dict[int, tuple[int, str]] = {}
        for number, (kind, flags, body) in enumerate(messages):
            if (why := self._one(kind, flags, body)) is not None:
                failed[number] = why
        return failed

    def _one(self, kind: int, flags: int, body: bytes) -> tuple[int, str] | None:
        a = attrs(body, 12)
        if kind in (NEWNEIGH, DELNEIGH):
            where = a[1], int.from_bytes(body[4:8], "little")
            if kind == NEWNEIGH:
                self.neighbours[where] = body
            elif self.neighbours.pop(where, None) is None:
                return 2, "no such neighbour"
        elif kind in (NEWROUTE, DELROUTE):
            route = U32.unpack(a[15])[0], a.get(1, b""), body[1]
            if kind == NEWROUTE:
                self.routes[route] = body
            elif self.routes.pop(route, None) is None:
                return 3, "no such route"
        elif kind == NEWRULE:
            if flags & EXCL and body in self.rules:
                return 17, "exists"
            self.rules.append(body)
        elif kind == DELRULE:
            if body not in self.rules:
                return 2, "no such rule"
            self.rules.remove(body)
        return None

    def dump(self, kind: int, body: bytes, absent: int = 0) -> list[bytes]:
        """As `Rtnl.dump`."""
        if kind == GETRULE:
            return list(self.rules)
        if kind == GETLINK:
            return [nic.message() for nic in self.nics.values()]
        table = U32.unpack(attrs(body, 12)[15])[0]
        return [route for (number, _, _), route in sorted(self.routes.items()) if number == table]

    def selected(self) -> list[int]:
        """The tables that the rules select, first match first."""
        return [U32.unpack(attrs(body, 12)[15])[0] for body in self.rules]
