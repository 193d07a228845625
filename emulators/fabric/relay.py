"""Carries the packets of lines with delay: a TAP device for each port that has one, and a process
that moves what comes out of it.

What a host sends is redirected into the TAP device of its port, and what the line lets through
comes out of the same device, where the light path, or a packet switch, takes it as if from the
host. So the light, carriers and faults are as without a line.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import struct
import time
from collections.abc import Mapping

from emulators.fabric import linux
from emulators.fabric.fibre_plant import HostPort
from emulators.fabric.line import Line, Network
from emulators.fabric.netlink import Message, clsact, link_mtu, link_state
from emulators.fabric.priority import LAB
from emulators.inventory.lines import LineConfig

TAP = 1 << 22
"""The TAP device of a port has the index of the port's near end and this."""
SET_IFF, SET_INDEX = 0x400454CA, 0x400454DA  # ioctls of linux/if_tun.h
IFF_TAP, IFF_NO_PI = 0x0002, 0x1000
BURST = 64  # packets taken from one device before the next one has its turn


def taps(ports: Mapping[HostPort, int]) -> dict[HostPort, int]:
    """Make the TAP devices in this network namespace; ports: the near end's index. Returns
    descriptors. Raises: OSError.
    """
    found = {}
    for port, index in ports.items():
        fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.ioctl(fd, SET_INDEX, struct.pack("=I", index + TAP))
        fcntl.ioctl(fd, SET_IFF, struct.pack("=16sH22x", f"l{index}".encode(), IFF_TAP | IFF_NO_PI))
        found[port] = fd
    return found


def ready(index: int, mtu: int) -> list[Message]:
    """Messages that make the TAP device of a port usable: its largest packet, up, and a place for
    the redirect out of it.
    """
    return [link_mtu(index + TAP, mtu), link_state(index + TAP, True), clsact(index + TAP)]


def lines_of(
    config: tuple[LineConfig, ...], descriptors: Mapping[HostPort, int], seed: int
) -> dict[int, Line]:
    """The line of each descriptor. Rates count what the shaper counts: Ethernet's header too."""
    found = {}
    for line in config:
        for port in line.ports:
            fd = descriptors[HostPort(*port)]
            found[fd] = Line(
                Network(line.rate_bps, line.delay_s), line.queue_packets, line.loss, seed + fd
            )
    return found


def start(lines: Mapping[int, Line]) -> int:
    """Fork the process that moves the packets; returns its number. The descriptors are its own from
    then on.
    """
    pid = os.fork()
    if pid == 0:
        linux.leave(lambda: _serve(lines))
    for fd in lines:
        os.close(fd)
    return pid


def _serve(lines: Mapping[int, Line]) -> int:
    linux.close_all_but(set(lines))
    # low numbers, as select(2) wants them; it waits to the microsecond
    lines = {os.dup(fd): line for fd, line in lines.items()}
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(LAB))
    while True:
        move(lines)


def move(lines: Mapping[int, Line]) -> None:
    """Wait until packets come or are due, and move them."""
    wait_s = min(line.next_s for line in lines.values()) - time.monotonic()
    coming, _, _ = select.select(
        list(lines), [], [], None if wait_s == float("inf") else max(0.0, wait_s)
    )
    now = time.monotonic()
    for fd in coming:
        with contextlib.suppress(BlockingIOError):
            for _ in range(BURST):
                lines[fd].offer(os.read(fd, 65_536), now)
    for fd, line in lines.items():
        for packet in line.due(now):
            with contextlib.suppress(OSError):  # the lab goes down
                os.write(fd, packet)
