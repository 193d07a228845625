"""Send numbered UDP packets between emulated hosts every millisecond and record when each arrives.

One process holds a socket in every host's network namespace, so that measuring costs a few percent
of one core instead of a process per host. Used by the benchmarks only; it observes the emulated lab
from outside, which hardware would not allow.

    python benchmarks/prober.py SECONDS PERIOD_MS < {"hosts": {name: {"pid": .., "address": ..}},
"pairs": [[a, b], ...]} Prints one JSON object per direction when done: {"pair": [a, b], "sent": n,
"received": n, "gaps": [[from_ns, to_ns], ...]}, the gaps longer than 3 periods, on the machine's
monotonic clock. SIGTERM ends the measurement early.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import sys
import time
from typing import Any

CLONE_NEWNET = 0x40000000
PORT = 9977


def namespaced_socket(pid: int, address: str) -> socket.socket:
    """A UDP socket that lives in the network namespace of `pid`, bound to `address`."""
    libc = ctypes.CDLL(None, use_errno=True)
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    other = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    try:
        if libc.setns(other, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns into {pid}")
        try:
            sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        finally:
            libc.setns(home, CLONE_NEWNET)
    finally:
        os.close(other)
        os.close(home)
    sock.bind((address, PORT))
    sock.setblocking(False)
    return sock


def main() -> int:
    seconds, period_ns = float(sys.argv[1]), int(float(sys.argv[2]) * 1e6)
    wanted: dict[str, Any] = json.load(sys.stdin)
    hosts = {
        name: (namespaced_socket(int(h["pid"]), h["address"]), str(h["address"]))
        for name, h in wanted["hosts"].items()
    }
    directions = [(a, b) for pair in wanted["pairs"] for a, b in (pair, pair[::-1])]
    outgoing = [
        (hosts[a][0], (hosts[b][1], PORT), i.to_bytes(2, "big"))
        for i, (a, b) in enumerate(directions)
    ]
    sent, received = [0] * len(directions), [0] * len(directions)
    last = [0] * len(directions)
    gaps: list[list[tuple[int, int]]] = [[] for _ in directions]
    listening = [sock for sock, _ in hosts.values()]
    running = True

    def stop(*_: object) -> None:
        nonlocal running
        running = False

    signal.signal(signal.SIGTERM, stop)
    try:
        # as agents and the lab: below them it would measure its own wait
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(2))
    except OSError:
        pass
    print("ready", flush=True)
    clock = time.monotonic_ns
    due = clock()
    end = due + int(seconds * 1e9)
    while running and due < end:
        for i, (sock, to, tag) in enumerate(outgoing):
            try:
                sock.sendto(tag, to)
                sent[i] += 1
            except OSError:
                pass  # no route or no carrier: the packet is lost, which is what is being measured
        due += period_ns
        while True:
            left = due - clock()
            # epoll would round up to a millisecond
            for sock in select.select(listening, (), (), max(0.0, left / 1e9))[0]:
                while True:
                    try:
                        data = sock.recv(16)
                    except OSError:
                        break
                    now = clock()
                    i = int.from_bytes(data, "big")
                    received[i] += 1
                    if last[i] and now - last[i] > 3 * period_ns:
                        gaps[i].append((last[i], now))
                    last[i] = now
            if clock() >= due:
                break
    now = clock()
    for i, pair in enumerate(directions):
        if now - last[i] > 3 * period_ns:
            gaps[i].append((last[i], now))  # still dark at the end
        print(json.dumps({"pair": pair, "sent": sent[i], "received": received[i], "gaps": gaps[i]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
