"""How much of the nominal rate TCP gets when every port sends and receives at once: 24 duplex
circuits, 48 directions.

    python benchmarks/fabric_rate.py [SECONDS] Nominal goodput is rate x (MTU - 52) / (MTU + 14):
IPv4, TCP and timestamps inside, the Ethernet header around. One process holds all sockets, sends
from a file and discards what arrives in the kernel, so that nearly all the cores go to the fabric.
"""

from __future__ import annotations

import json
import os
import re
import selectors
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.bench_lab import write
from conformance.lab import running
from conformance.truth import Truth
from emulators.fabric.linux import inside

HOSTS, PORTS, MTU, LIMIT_PERCENT = 12, 4, 9000, 98.0
CHUNK = 1 << 20


def matching(plane: int) -> list[tuple[int, int]]:
    """Pair up the hosts, differently on every plane: round `plane` of a tournament."""
    order = [0, *((i + plane) % (HOSTS - 1) + 1 for i in range(HOSTS - 1))]
    return [(order[i], order[-1 - i]) for i in range(HOSTS // 2)]


def connect_all(inventory: Path) -> None:
    """Make all circuits with the devices' own bytes."""
    ports = [
        int(p)
        for p in re.findall(r"tcp://127\.0\.0\.1:(\d+)", (inventory / "devices.yml").read_text())
    ]
    for plane, port in enumerate(ports):
        both = [pair for a, b in matching(plane) for pair in ((a, b), (b, a))]
        with socket.create_connection(("127.0.0.1", port), 5) as link:
            if plane < PORTS // 2:
                ins, outs = (
                    ",".join(str(base + end) for end in ends)
                    for base, ends in zip((1, 17), zip(*both, strict=True), strict=True)
                )
                link.sendall(f":oxc:swit:conn:add (@{ins}),(@{outs})\n:syst:err?\n".encode())
                assert link.makefile().readline().startswith("0,"), "Polatis refused"
                continue
            aid = [f"1.{n // 8 + 1}.{n % 8 + 1}" for n in range(HOSTS)]
            commands = ["ACT-USER::admin:1::emulated;"]
            for a, b in matching(plane):
                commands += [
                    f"ENT-CRS::{aid[a]},{aid[b]}:1::rate,2WAY,c{a};",
                    f"ACT-CRS::{aid[a]},{aid[b]}:1::c{a},rate;",
                ]
            for command in commands:
                link.sendall(command.encode())
                seen = b""
                while not seen.rstrip().endswith(b";"):
                    seen += link.recv(4096)
                assert b"COMPLD" in seen, f"{command} -> {seen!r}"


def sockets(pids: list[int]) -> list[tuple[socket.socket, socket.socket]]:
    """Address every port, then open one TCP connection per direction: (sender, receiver)."""
    nets = [os.open(f"/proc/{pid}/ns/net", os.O_RDONLY) for pid in pids]
    for host, net in enumerate(nets):
        lines = [
            f"link set opt{p} mtu {MTU}\naddr add 10.{p}.0.{host + 1}/16 dev opt{p}\n"
            # the machine's default may be another
            f"route change 10.{p}.0.0/16 dev opt{p} congctl cubic\n"
            for p in range(1, PORTS + 1)
        ]
        with inside(net):
            subprocess.run(["ip", "-batch", "-"], input="".join(lines), text=True, check=True)
    flows = []
    for plane in range(PORTS):
        for a, b in matching(plane):
            for source, target in ((a, b), (b, a)):
                with inside(nets[target]):
                    listener = socket.create_server((f"10.{plane + 1}.0.{target + 1}", 0))
                with listener:
                    with inside(nets[source]):
                        sender = socket.socket()
                    sender.settimeout(5)
                    sender.connect(listener.getsockname())
                    receiver, _ = listener.accept()
                for sock in (sender, receiver):
                    sock.setblocking(False)
                flows.append((sender, receiver))
    return flows


def measure(
    flows: list[tuple[socket.socket, socket.socket]], seconds: float
) -> tuple[list[float], float]:
    """Load all directions; return goodput per direction (b/s) and the cores' busy share."""
    payload = os.memfd_create("payload")
    os.truncate(payload, CHUNK)
    sink = bytearray(CHUNK)
    ready = selectors.EpollSelector()
    received = dict.fromkeys(range(len(flows)), 0)
    for number, (sender, receiver) in enumerate(flows):
        ready.register(sender, selectors.EVENT_WRITE, None)
        ready.register(receiver, selectors.EVENT_READ, number)
    marks: list[tuple[float, dict[int, int], list[float]]] = []
    began = time.monotonic()
    for wait in (1.0, 1.0 + seconds):  # the first second fills the queues
        while time.monotonic() - began < wait:
            for key, _ in ready.select(0.1):
                try:
                    if key.data is None:
                        os.sendfile(key.fd, payload, 0, CHUNK)
                    else:
                        # counted, not copied
                        received[key.data] += flows[key.data][1].recv_into(
                            sink, CHUNK, socket.MSG_TRUNC
                        )
                except BlockingIOError:
                    continue
        marks.append((time.monotonic(), dict(received), cpu_times()))
    (t0, before, cpu0), (t1, after, cpu1) = next(pairwise(marks))
    spent = [b - a for a, b in zip(cpu0, cpu1, strict=True)]
    return [(after[n] - before[n]) * 8 / (t1 - t0) for n in received], 1 - (
        spent[3] + spent[4]
    ) / sum(spent)


def retransmits(sock: socket.socket) -> int:
    """tcpi_total_retrans of linux/tcp.h."""
    return int(
        struct.unpack_from("=I", sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104), 100)[0]
    )


def cpu_times() -> list[float]:
    return [float(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 6.0
    with tempfile.TemporaryDirectory(prefix="fabric-rate-") as folder:
        inventory, state = Path(folder) / "lab", Path(folder) / "state"
        write(inventory, state, HOSTS, PORTS)
        with running(inventory):
            connect_all(inventory)
            status = Truth(state / "control.sock").ask("status")
            deadline = time.monotonic() + 5
            while not all(
                port["carrier"]
                for host in status["hosts"].values()
                for port in host["ports"].values()
            ):
                assert time.monotonic() < deadline, "not every port has light"
                time.sleep(0.02)
                status = Truth(state / "control.sock").ask("status")
            nominal = status["rate_bps"] * (MTU - 52) / (MTU + 14)
            flows = sockets([host["pid"] for host in status["hosts"].values()])
            goodput, busy = measure(flows, seconds)
            retransmitted = sum(retransmits(sender) for sender, _ in flows)
            for pair in flows:
                for sock in pair:
                    sock.close()
    percent = sorted(100 * rate / nominal for rate in goodput)
    mean = statistics.mean(percent)
    print(
        f"{len(goodput)} directions, nominal {nominal / 1e6:.1f} Mb/s each, {sum(goodput) / 1e9:.2f} Gb/s in all, {seconds:.0f} s"
    )
    print(
        f"mean {mean:.2f} %  least {percent[0]:.2f} %  most {percent[-1]:.2f} %  retransmits {retransmitted}"
    )
    print(f"cores busy {100 * busy:.0f} % of {os.cpu_count()}")
    met = mean >= LIMIT_PERCENT
    figures = {
        "value": round(mean, 2),
        "unit": "%",
        "limit": LIMIT_PERCENT,
        "ratio": round(mean / 100, 4),
        "least": round(percent[0], 2),
    }
    print(
        json.dumps(
            {
                "name": "fabric_rate",
                **figures,
                "cpu_busy": round(busy, 2),
                "retransmits": retransmitted,
                "pass": met,
            }
        )
    )
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
