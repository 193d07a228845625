"""One TCP flow over two networks that come in turn: a rig of two namespaces, a queue and a line in
each direction, no lab.

Dilated 1000-fold: milliseconds stand for microseconds, megabits for gigabits, 9000-byte packets as
they are, so the packets in flight are those of the original. Six days of 180 ms of the packet
network and one of the optical network, each followed by 20 ms of dark window in which the queue (16
packets) is served by nobody. Arms:

cubic     the kernel's
one       the project's (extensions/congestion/host/bpf/networks.bpf.c), notified of the networks, with one window: the ablation
two       the same with a window for each network
unsaid    the same, never notified of the networks: the control

    python benchmarks/line_rig.py two --rates 10,100 --rtts 100,40     # prints one JSON line
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.harness import undisturbed
from emulators.fabric import linux
from emulators.fabric.line import DARK_WINDOW, Line, Network
from extensions.congestion.host.networks import Registered

ARMS = ("cubic", "one", "two", "unsaid")
ORDER = (0, 0, 0, 0, 0, 0, 1)  # the network of each day
DAY_S, DARK_WINDOW_S = 0.18, 0.02
QUEUE, BACK = 16, 1000  # packets; acknowledgements wait in a queue that is never full
MTU = 9000
RTO_MIN_MS = (
    250  # timers do not dilate: longer than a round trip over a full queue and a dark window
)
ENDS = ("10.9.0.1", "10.9.0.2")
PORT = 5000
SETTINGS = {
    "tcp_no_metrics_save": "1",
    "tcp_slow_start_after_idle": "0",
    "tcp_rmem": "4096 4000000 8000000",
    "tcp_wmem": "4096 4000000 8000000",
}
SET_IFF, TUN_NO_PI = 0x400454CA, 0x1001


def end(own: str, other: str, congctl: str, quickack: int = 1) -> tuple[int, int]:
    """A namespace with one TUN device, all of whose connections use `congctl`; returns descriptors
    of both.
    """
    net = linux.new_network()
    with linux.inside(net):
        fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.ioctl(fd, SET_IFF, struct.pack("=16sH22x", b"line0", TUN_NO_PI))
        for text in (
            f"link set line0 mtu {MTU} up",
            f"addr add {own}/32 dev line0",
            f"route add {other}/32 dev line0 quickack {quickack} rto_min {RTO_MIN_MS}ms congctl {congctl}",
        ):
            subprocess.run(["ip", *text.split()], check=True)
        for name, value in SETTINGS.items():
            Path("/proc/sys/net/ipv4", name).write_text(value)
    return net, fd


def forked(body: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:

        def run() -> int:
            linux.die_with_parent(signal.SIGKILL)
            body()
            return 0

        linux.leave(run)
    return pid


def send(net: int) -> None:
    with linux.inside(net):
        near = socket.create_connection((ENDS[1], PORT))
    with suppress(OSError):
        while True:
            near.send(bytes(1 << 16))


def receive(
    listener: socket.socket, warm_s: float, seconds: float, out: int, window: int = 0
) -> None:
    """Write to `out` how many bytes came in how many seconds, after the warm-up. window: the most
    bytes in flight; 0: what the kernel allows."""
    far, _ = listener.accept()
    if window:
        far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        far.setsockopt(socket.IPPROTO_TCP, socket.TCP_WINDOW_CLAMP, window)
    began, count, buffer = time.monotonic(), 0, bytearray(1 << 20)
    far.settimeout(1.0)
    while (now := time.monotonic()) < began + warm_s + seconds:
        if now < began + warm_s:
            count, since = 0, now
        with suppress(TimeoutError):
            count += far.recv_into(buffer)
    os.write(out, json.dumps([count, time.monotonic() - since]).encode())


def days(start: float, until: float) -> Iterator[tuple[float, int, bool]]:
    """(when, network, whether its day begins; else a dark window does, before that network's
    day)."""
    number = 0
    while (at := start + number * (DAY_S + DARK_WINDOW_S)) < until:
        yield at, ORDER[number % len(ORDER)], True
        number += 1
        yield at + DAY_S, ORDER[number % len(ORDER)], False


def relay(
    lines: dict[int, tuple[Line, int]],
    networks: tuple[Network, Network],
    report: Callable[[int], None],
    until: float,
) -> float:
    """Move packets and change networks until `until`; returns how late the latest change was
    noticed, seconds.
    """
    changes = days(time.monotonic() + 0.1, until)
    change = next(changes, None)
    late = 0.0
    while (now := time.monotonic()) < until:
        while change and change[0] <= now:
            at, number, day = change
            for line, _ in lines.values():
                line.change(networks[number] if day else DARK_WINDOW, at)
            # in the dark the window is that of the network which is always there
            report(number if day else 0)
            late = max(late, now - at)
            change = next(changes, None)
        for line, out in lines.values():
            for packet in line.due(now):
                os.write(out, packet)
        wake = min([change[0] if change else until, *(line.next_s for line, _ in lines.values())])
        coming, _, _ = select.select(list(lines), [], [], max(0.0, wake - time.monotonic()))
        now = time.monotonic()
        for fd in coming:
            with suppress(BlockingIOError):
                for _ in range(64):
                    lines[fd][0].offer(os.read(fd, 65_536), now)
    return late


def measure(
    arm: str,
    rates_mbps: tuple[float, float] = (10, 100),
    rtts_ms: tuple[float, float] = (100, 40),
    seconds: float = 30.0,
    window: int = 0,
    quickack: int = 1,
    warm_s: float = 10.0,
) -> dict[str, object]:
    """Run one arm alone; rates and round trips of the packet network, then the optical one. Raises:
    Failure - no BPF here.
    """
    networks = tuple(
        Network(rate * 1e6, rtt / 2e3) for rate, rtt in zip(rates_mbps, rtts_ms, strict=True)
    )
    ours = None if arm == "cubic" else Registered(f"net2r_{os.getpid()}")

    def reply_of(number: int) -> None:
        if ours is not None and arm != "unsaid":
            ours.emit(number, 1 if arm == "one" else 2, 5.0)

    sender, other = end(*ENDS, ours.name if ours else "cubic")
    receiver, back = end(ENDS[1], ENDS[0], "cubic", quickack)
    with linux.inside(receiver):
        listener = socket.create_server((ENDS[1], PORT))
    here, out = os.pipe()
    children = [
        forked(lambda: receive(listener, warm_s, seconds, out, window)),
        forked(lambda: send(sender)),
    ]
    line = Line(networks[0], QUEUE)
    undisturbed()
    try:
        late = relay(
            {other: (line, back), back: (Line(networks[0], BACK), other)},
            (networks[0], networks[1]),
            reply_of,
            time.monotonic() + warm_s + seconds + 1.5,
        )
        poll = select.poll()
        poll.register(here, select.POLLIN)
        assert poll.poll(5000), "the receiver said nothing"
        count, took = json.loads(os.read(here, 256))
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        if ours:
            ours.close()
    most = (
        sum(rates_mbps[number] for number in ORDER) / len(ORDER) * DAY_S / (DAY_S + DARK_WINDOW_S)
    )
    mbps = count * 8e-6 / took
    found = {"arm": arm, "mbps": round(mbps, 2), "of_most": round(mbps / most, 3)}
    return found | {"dropped": line.dropped, "late_ms": round(late * 1e3, 1)}


def shown(*given: Any) -> None:
    """Print what `measure` found."""
    print(json.dumps(measure(*given)), flush=True)


def main() -> None:
    """Measure one arm, or several one after the other, each in a process of its own."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("arms", nargs="+", choices=ARMS)
    parser.add_argument(
        "--rates", default="10,100", help="Mb/s of the packet network and the optical one"
    )
    parser.add_argument("--rtts", default="100,40", help="their round trips, ms")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument(
        "--window", type=int, default=0, help="the receiver's, bytes; 0: the kernel's"
    )
    parser.add_argument(
        "--quickack", type=int, default=1, help="0: every second packet is acknowledged"
    )
    given = parser.parse_args()
    rates, rtts = (
        (float(a), float(b)) for a, b in (text.split(",") for text in (given.rates, given.rtts))
    )
    for arm in given.arms:
        pid = forked(partial(shown, arm, rates, rtts, given.seconds, given.window, given.quickack))
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
