"""RDMA devices of an emulated host, one a port, as far as /sys/class shows them: state, interface,
and GIDs of the addresses that the interface has. They carry nothing.

Nothing can be made in sysfs, and the kernel need not have RDMA. So a tmpfs lies over the host's
/sys/class: `infiniband` are files, every other entry is a link into a second sysfs.
"""

from __future__ import annotations

import fcntl
import socket
import struct
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

from emulators.fabric import linux
from emulators.fabric.netlink import AddressWatch, Netlink, link_name, link_state

CLASS, SECOND = Path("/sys/class"), Path("/run/sys")
MADE = CLASS / ".made"
"""Where what `infiniband` shows is made, and then put there in one step. Nothing is removed: who
opens a file may have followed the link to what was shown before.
"""
SLOTS = 16
MOVED = 2  # so many places further are the GIDs of a port that flapped while its old ones were held
SIOCGIFADDR = 0x8915
NO_GID = ":".join(["0000"] * 8)


class RdmaTables:
    """The tables of this host. ports: the index of each port's interface."""

    def __init__(self, ports: Mapping[int, int]) -> None:
        quiet = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
        SECOND.mkdir()
        linux.mount("sysfs", SECOND, "sysfs", quiet)
        linux.mount("class", CLASS, "tmpfs", quiet, "mode=0755")
        for entry in (SECOND / "class").iterdir():
            if entry.name != "infiniband":
                (CLASS / entry.name).symlink_to(entry)
        MADE.mkdir()
        (CLASS / "infiniband").mkdir()
        self._ports = ports
        self._names = {number: socket.if_indextoname(index) for number, index in ports.items()}
        self._moved: set[int] = set()
        self._watch = AddressWatch()
        self.fileno = self._watch.fileno
        for number in ports:
            self._write(number)

    def follow(self) -> None:
        """Write what has changed since the last time; a port whose interface is gone stays."""
        with suppress(OSError):  # some events were lost
            for _ in self._watch.read():
                pass
        for number in self._ports:
            with suppress(OSError):
                self._write(number)

    def obey(self, number: int, kinds: Collection[str]) -> None:
        """Make the faults of a port's device these: `gids-moved`, `renamed`. Raises: OSError."""
        index, name = self._ports[number], self._names[number]
        (self._moved.add if "gids-moved" in kinds else self._moved.discard)(number)
        name = f"ren{number}" if "renamed" in kinds else name
        if name != socket.if_indextoname(index):
            netlink = Netlink()
            netlink.send(
                [link_state(index, False), link_name(index, name), link_state(index, True)]
            )
            netlink.close()
        self._write(number)

    def close(self) -> None:
        """Take away the second sysfs, and undo the faults; the tables go with /sys."""
        for number in self._ports:
            with suppress(OSError):  # its interface is gone
                self.obey(number, ())
        self._watch.close()
        linux.unmount(SECOND)
        SECOND.rmdir()

    def _write(self, number: int) -> None:
        name = socket.if_indextoname(self._ports[number])
        shown, first = f"mlx5_{number - 1}", MOVED if number in self._moved else 0
        found = gids(name)
        device = MADE / "-".join((shown, name, str(first), *found[::2]))
        port, fresh = device / "ports/1", MADE / "fresh"
        if not (port / "state").exists():
            used = {first + at: gid for at, gid in enumerate(found)}
            for folder in ("gids", "gid_attrs/types", "gid_attrs/ndevs"):
                (port / folder).mkdir(parents=True, exist_ok=True)
            (device / "device/net" / name).mkdir(parents=True, exist_ok=True)
            for index in range(SLOTS):
                (port / f"gids/{index}").write_text(used.get(index, NO_GID) + "\n")
            for index in used:  # each address twice: for version 1 and version 2
                kind = "RoCE v2" if (index - first) % 2 else "IB/RoCE v1"
                (port / f"gid_attrs/types/{index}").write_text(kind + "\n")
                (port / f"gid_attrs/ndevs/{index}").write_text(name + "\n")
        fresh.write_text("4: ACTIVE\n" if _lit(name) else "1: DOWN\n")
        fresh.replace(port / "state")
        fresh.symlink_to(device)
        fresh.replace(CLASS / "infiniband" / shown)


def gids(interface: str) -> list[str]:
    """The GIDs of an interface: the link-local one of its MAC address, and that of its IPv4
    address, each for both versions.
    """
    mac = bytes.fromhex((CLASS / "net" / interface / "address").read_text().replace(":", ""))
    found = [b"\xfe\x80" + bytes(6) + bytes([mac[0] ^ 2]) + mac[1:3] + b"\xff\xfe" + mac[3:]]
    with (
        suppress(OSError),  # it has no address
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking,
    ):
        row = fcntl.ioctl(asking, SIOCGIFADDR, struct.pack("256s", interface.encode()))
        found.append(bytes(10) + b"\xff\xff" + row[20:24])
    return [gid.hex(":", 2) for gid in found for _ in range(2)]


def _lit(interface: str) -> bool:
    try:
        return (CLASS / "net" / interface / "carrier").read_text() == "1\n"
    except OSError:  # it is down
        return False
