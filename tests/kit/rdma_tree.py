"""What /sys/class shows of RDMA NICs, as files below a folder of a test."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

NO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"
V1, V2 = "IB/RoCE v1", "RoCE v2"


def gid_of(address: str) -> str:
    a, b, c, d = map(int, address.split("."))
    return f"0000:0000:0000:0000:0000:ffff:{a:02x}{b:02x}:{c:02x}{d:02x}"


def table(address: str, at: int = 2) -> dict[int, tuple[str, str]]:
    """A GID table as mlx5 has it: each address for both versions, the link-local one first; the
    IPv4 address at index `at` and the next.
    """
    local = "fe80:0000:0000:0000:0e42:a1ff:fe00:0001"
    mine = {at: (gid_of(address), V1), at + 1: (gid_of(address), V2)}
    return {0: (local, V1), 1: (local, V2), **mine}


def interface(root: Path, name: str, mac: str, carrier: str = "1") -> None:
    folder = root / "net" / name
    folder.mkdir(parents=True)
    (folder / "address").write_text(mac + "\n")
    (folder / "carrier").write_text(carrier + "\n")


def device(
    root: Path,
    name: str,
    netdev: str,
    gids: Mapping[int, tuple[str, str]],
    state: str = "4: ACTIVE",
    slots: int = 16,
) -> Path:
    """A device with one port. As in the kernel, attributes of entries that are not in use cannot be
    read.
    """
    port = root / "infiniband" / name / "ports" / "1"
    for folder in ("gids", "gid_attrs/types", "gid_attrs/ndevs"):
        (port / folder).mkdir(parents=True)
    (root / "infiniband" / name / "device" / "net" / netdev).mkdir(parents=True)
    (port / "state").write_text(state + "\n")
    for index in range(slots):
        gid, kind = gids.get(index, (NO_GID, ""))
        (port / "gids" / str(index)).write_text(gid + "\n")
        if kind:
            (port / "gid_attrs" / "types" / str(index)).write_text(kind + "\n")
            (port / "gid_attrs" / "ndevs" / str(index)).write_text(netdev + "\n")
    return port
