"""Requests that wait for a heavy program in the driver (XDP): run by the softirq, or by a kernel
thread that the scheduler places.

A stand-in: no specification of an XDP that can be scheduled is public, and none is built here. What
is measured is the stock kernel's threaded NAPI with a priority. Native: real time, real packets, in
a network namespace of its own. Arms:

light    the program drops at once: the control
softirq the program takes 20 us a packet, in the softirq of the processor on which the packets
arrive
after    the same, in a thread (SCHED_OTHER) that is scheduled after the victim
before   the same, in a thread (SCHED_FIFO) before the victim: the ablation, a thread without the right priority; only at the
         smaller load, for at the larger one it leaves the victim nothing

The victim is an echo over UDP on loopback, on the processor on which the packets arrive (a veth
pair whose receiving queue is steered there, RPS, as a network card's interrupt is); client and
sender of the packets are on another. All three run at real-time priority, so that other work on the
machine disturbs them little. Two loads: 250 packets in 10 ms, half of a processor, and 60 in 1 ms,
1.2 of one. The figure is the ratio of p99, softirq over after, at the latter. Needs root, two
processors and Linux 5.12.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.driver_program import attach, own_network, threaded
from benchmarks.harness import verdict
from emulators.fabric import linux
from emulators.fabric.netlink import End, Netlink, clsact, link_state, redirect, veth
from orchestrator.experiments.scenario.record import order

ARMS = ("light", "softirq", "after", "before")
LOADS = {"half": (250, 0.010), "more": (60, 0.001)}  # packets, every so many seconds
MEASURED = {"half": ARMS, "more": ARMS[:3]}
COST_NS = 20_000
ROUNDS, SECONDS = 4, 3.0
AT_LEAST = 3.0
VICTIM, CLIENT = 1, 3  # real-time priorities; a thread before the victim has 2
PAUSE_S = (0.001, 0.005)  # between requests, at random, so that they meet every moment of a burst
PATIENCE_S = 2.0
# interfaces: the sender's, where packets arrive, and the pair before the program
ENTRY, WIRE, FEED, HEAVY = 11, 12, 13, 14


def forked(cpu: int, priority: int, body: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:

        def run() -> int:
            linux.die_with_parent(signal.SIGKILL)
            place(cpu, priority)
            body()
            return 0

        linux.leave(run)
    return pid


def place(cpu: int, priority: int) -> None:
    os.sched_setaffinity(0, {cpu})
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))


def network(arm: str, cpu: int) -> str:
    """Make the interfaces, and the program's thread where the arm has one; return the name of the
    interface with the program.
    """
    own_network()
    heavy = f"x{os.getpid()}"
    netlink = Netlink()
    netlink.send(
        [
            *(
                veth(End(ENTRY, "entry"), End(WIRE, "wire")),
                veth(End(FEED, "feed"), End(HEAVY, heavy)),
            ),
            *(link_state(index, True) for index in (1, ENTRY, WIRE, FEED, HEAVY)),
            *(clsact(WIRE), redirect(WIRE, FEED)),
        ]
    )
    steered = f"{1 << cpu % 32:x}" + ",00000000" * (cpu // 32)
    Path("/sys/class/net/wire/queues/rx-0/rps_cpus").write_text(steered)
    attach(netlink, HEAVY, 0 if arm == "light" else COST_NS)
    if arm in ("after", "before"):
        thread = threaded(heavy)
        os.sched_setaffinity(thread, {cpu})
        if arm == "before":
            os.sched_setscheduler(thread, os.SCHED_FIFO, os.sched_param(VICTIM + 1))
    return heavy


def flood(burst: int, every_s: float) -> None:
    # ethertype for experiments, IEEE 802
    frame = b"\xff" * 6 + b"\x02" * 6 + b"\x88\xb5" + bytes(50)
    listener = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    listener.bind(("entry", 0))
    due = time.monotonic()
    while True:
        for _ in range(burst):
            with suppress(OSError):  # a full queue: that packet is lost
                listener.send(frame)
        due += every_s
        time.sleep(max(0.0, due - time.monotonic()))


def echo(listener: socket.socket) -> None:
    while True:
        reported, sender = listener.recvfrom(64)
        listener.sendto(reported, sender)


def measure(arm: str, load: str) -> dict[str, object]:
    """One measurement in this process: round trips of the victim (us) and packets a second that the
    program took.
    """
    processors = sorted(os.sched_getaffinity(0))
    if len(processors) < 2:
        raise OSError("it needs two processors, one of them for the packets' sender")
    here, elsewhere = processors[0], processors[-1]
    handled = Path("/sys/class/net", network(arm, here), "statistics/rx_packets")
    listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    listener.bind(("127.0.0.1", 0))
    children = [
        forked(here, VICTIM, lambda: echo(listener)),
        forked(elsewhere, VICTIM, lambda: flood(*LOADS[load])),
    ]
    place(elsewhere, CLIENT)
    client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    client.connect(listener.getsockname())
    client.settimeout(PATIENCE_S)
    time.sleep(0.3)
    trips: list[float] = []
    begin, before = time.monotonic(), int(handled.read_text())
    number = 0
    while (now := time.monotonic()) < begin + SECONDS:
        number += 1
        client.send(number.to_bytes(4, "big"))
        with suppress(TimeoutError):  # counted as PATIENCE_S
            while client.recv(64) != number.to_bytes(4, "big"):
                pass
        trips.append((time.monotonic() - now) * 1e6)
        time.sleep(random.uniform(*PAUSE_S))
    rate = (int(handled.read_text()) - before) / (time.monotonic() - begin)
    for child in children:
        os.kill(child, signal.SIGTERM)
        os.waitpid(child, 0)
    return {"us": trips, "rate": rate}


def p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[98]


def main() -> int:
    """Measure all arms at both loads, in turn, and print; return the exit code."""
    trips: dict[tuple[str, str], list[float]] = {
        (load, arm): [] for load in LOADS for arm in MEASURED[load]
    }
    rates: dict[tuple[str, str], list[float]] = {key: [] for key in trips}
    for load in LOADS:
        for arm in order(MEASURED[load], ROUNDS):
            command = [sys.executable, __file__, "measure", arm, load]
            found = json.loads(
                subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=60).stdout
            )
            trips[load, arm] += found["us"]
            rates[load, arm].append(found["rate"])
    for (load, arm), values in trips.items():
        print(
            f"  {load:<5} {arm:<8} p50 {statistics.median(values):6.0f}  p99 {p99(values):6.0f}  worst {max(values):6.0f} us"
            f"  of {len(values)};  {statistics.mean(rates[load, arm]):6.0f} packets/s",
            flush=True,
        )
    print(f"  load {os.getloadavg()[0]:.1f}")
    tail = {key: p99(values) for key, values in trips.items()}
    ratio = {load: tail[load, "softirq"] / tail[load, "after"] for load in LOADS}
    return verdict(
        "xdp",
        ratio["more"],
        "x p99",
        AT_LEAST,
        "at least",
        ratio_at_half=round(ratio["half"], 3),
        before_over_after_at_half=round(tail["half", "before"] / tail["half", "after"], 3),
        p99_us={f"{load} {arm}": round(value) for (load, arm), value in tail.items()},
        packets_after_over_softirq={
            load: round(
                statistics.mean(rates[load, "after"]) / statistics.mean(rates[load, "softirq"]), 3
            )
            for load in LOADS
        },
        label="native; stand-in",
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["measure"]:
        print(json.dumps(measure(*sys.argv[2:4])))
    else:
        sys.exit(main())
