"""A program in the driver that takes a known time for every packet, and the kernel thread that may
run it.

Usually the softirq of the processor that a packet arrives on runs it, before any process. With
threaded NAPI (Linux 5.12) a thread of each receiving interface does, and the scheduler decides
when.
"""

from __future__ import annotations

import os
from pathlib import Path

from emulators.fabric import linux
from emulators.fabric.bpf import XDP, assembled, loaded
from emulators.fabric.netlink import Netlink, xdp

KTIME_GET_NS, DROP = 5, 1  # helper: CLOCK_MONOTONIC; XDP_DROP
MOST_NS = 50_000
# the verifier wants an end, and looks at every round: 8000 take it some 50 ms; a round takes 20 ns
# or more
MOST_ROUNDS = 8_000
PURPOSE = "a program in the driver"


def instructions(cost_ns: int) -> bytes:
    """A program that waits, busy, for `cost_ns` and drops the packet; at once if 0. Raises:
    ValueError - more than `MOST_NS`.
    """
    if not 0 <= cost_ns <= MOST_NS:
        raise ValueError(f"{cost_ns} ns a packet; a program here takes 0 to {MOST_NS}")
    busy = (
        (0x85, 0, 0, KTIME_GET_NS),
        (0xBF, 0x06, 0, 0),  # r6 = begin
        (0xB7, 7, 0, 0),  # r7 = 0: rounds
        (0x85, 0, 0, KTIME_GET_NS),
        (0x1F, 0x60, 0, 0),  # r0 -= r6
        (0x35, 0, 2, cost_ns),  # if r0 >= cost, leave
        (0x07, 7, 0, 1),  # r7 += 1
        (0xA5, 7, -5, MOST_ROUNDS),  # if r7 < most, another round
    )
    return assembled((*(busy if cost_ns else ()), (0xB7, 0, 0, DROP), (0x95, 0, 0, 0)))


def attach(netlink: Netlink, index: int, cost_ns: int) -> None:
    """Load the program and put it on interface `index`. Raises: OSError - no BPF, or a driver
    without XDP.
    """
    fd = loaded(instructions(cost_ns), PURPOSE, XDP)
    try:
        netlink.send([xdp(index, fd)])
    finally:
        os.close(fd)


def threaded(name: str) -> int:
    """Give interface `name`, which has a program, a thread for what it receives; return its process
    number.

    name: unlike those in other network namespaces, for threads are found by it. /sys must show this
    process's namespace. Raises: OSError - a kernel before 5.12, or not root.
    """
    Path("/sys/class/net", name, "threaded").write_text("1")
    for comm in Path("/proc").glob("[0-9]*/comm"):
        try:
            if comm.read_text().startswith(f"napi/{name}-"):
                return int(comm.parent.name)
        except OSError:
            continue  # that process has ended
    raise OSError(f"interface {name} has no thread napi/{name}-*")


def own_network() -> None:
    """Move this process into a network namespace of its own, with its own /sys. Raises: OSError."""
    linux.unshare(linux.NEW_NET | linux.NEW_NS)
    linux.mount("none", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
    linux.mount("sysfs", "/sys", "sysfs")
