"""The RDMA devices of this host, as its kernel shows them below /sys/class: ports, their state and
their GIDs.

It is read in a process of its own: a port's state is asked of the NIC, and a driver that hangs must
not hang the agent. A GID that is not in use, and a file that cannot be read, is left out.
"""

from __future__ import annotations

import os
import re

from agent.basics import VAR, read_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agent.shapes import Json

ROOT = "/sys/class"
MACS = VAR + "/macs.json"
"""The MAC address of each port's interfaces when the host was last provisioned, not at a boot."""
MOST_DEVICES, MOST_PORTS, MOST_GIDS, MOST_INTERFACES = 64, 4, 1024, 4096
LONGEST = 64  # bytes of a file of these that count
GID = re.compile(r"(?:[0-9a-f]{4}:){7}[0-9a-f]{4}")
NONE = "0000:" * 7 + "0000"


def first_line(path: str) -> str:
    """The first line of a small file, at most LONGEST printable characters; empty where there is
    none.
    """
    try:  # nothing in /sys blocks; a pipe in its place would
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            data = os.read(fd, LONGEST)
        finally:
            os.close(fd)
    except OSError:
        return ""
    text = data.decode("ascii", "replace").partition("\n")[0].strip()
    return text if text.isprintable() else ""


def names(folder: str, most: int) -> list[str]:
    """The names in a folder, at most so many; of those that are numbers the lowest come first."""
    try:
        found = [name for name in os.listdir(folder) if name.isascii() and name.isprintable()]
    except OSError:
        return []
    return sorted(found, key=lambda name: (len(name), name))[:most]


def rdma(root: str = ROOT) -> Json:
    """By device and port its state, interfaces and GIDs (index, GID, type); all interfaces, each
    with its MAC address and carrier (None: it is down); the MAC addresses as provisioned.
    """
    devices = {
        name: _ports(f"{root}/infiniband/{name}")
        for name in names(root + "/infiniband", MOST_DEVICES)
    }
    interfaces = {
        name: [first_line(f"{root}/net/{name}/address"), _carrier(f"{root}/net/{name}/carrier")]
        for name in names(root + "/net", MOST_INTERFACES)
    }
    return {"devices": devices, "interfaces": interfaces, "provisioned": read_json(MACS) or {}}


def _carrier(path: str) -> bool | None:
    return {"1": True, "0": False}.get(first_line(path))


def _ports(device: str) -> Json:
    numbers = names(device + "/ports", MOST_PORTS)
    # of a function with one port, also while its table is empty
    own = names(device + "/device/net", MOST_PORTS) if len(numbers) == 1 else []
    found: Json = {}
    for number in numbers:
        port = f"{device}/ports/{number}"
        gids, interfaces = [], set(own)
        for index in names(port + "/gids", MOST_GIDS):
            gid = first_line(f"{port}/gids/{index}")
            if not index.isdigit() or not GID.fullmatch(gid) or gid == NONE:
                continue
            gids.append([int(index), gid, first_line(f"{port}/gid_attrs/types/{index}")])
            interfaces.add(first_line(f"{port}/gid_attrs/ndevs/{index}"))
        # "4: ACTIVE"
        state = first_line(port + "/state").rpartition(": ")[2]
        found[number] = {"state": state, "interfaces": sorted(interfaces - {""}), "gids": gids}
    return found
