"""Sums made in a packet switch while packets are lost: bytes that a rank sends, and sums against an
own int32 reference.

Four hosts at a packet switch, 20 Mb/s a port, train a perceptron of 134 154 parameters, which
DistributedDataParallel sends in one bucket, M bytes of gradients; 1 % of all packets is lost at
each host's port in each direction (fault `loss` of the emulated fabric). A copy of every packet at
the hosts' ports tells what was sent first, which is M and the dialect's headers, and what again,
which is counted apart. How much less than round a ring that is, and how much faster: the scenario
extensions/switch_functions/scenarios/aggregation.

Sums: the reference is computed here from the packets alone. What each worker sent of a chunk is
added in int32, and must be what each worker got, bit by bit. Then the whole training is repeated in
this process, with gradients of four ranks summed as integers at the scale that
extensions/switch_functions/README.md has: its weights must be those that the ranks ended with. The
figure is how far the bytes sent first are off M.
"""

from __future__ import annotations

import hashlib
import math
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.bench_lab import BenchLab, bench_lab
from benchmarks.harness import verdict
from benchmarks.job_rig import losing, trained
from benchmarks.slot_rig import pids, within
from workloads.training.eager import import_torch
from workloads.training.models import Data, model

HOSTS = [f"gpu{n:02d}" for n in range(1, 5)]
PORT = 3
"""Of each host, at the packet switch; those before are at optical ones."""
HIDDEN, BATCH, LR, SEED, ITERATIONS = 256, 8, 0.01, 1, 40
NUMBERS = 256 * HIDDEN + HIDDEN + HIDDEN * HIDDEN + HIDDEN + 10 * HIDDEN + 10
PERCENT, OFF = 1.0, 0.03
SUM_BITS, MOMENTUM = 30, 0.9
HEADER = struct.Struct("<HBBI8sHHIQ")
ADD, SUM = 1, 2


class Copies:
    """Copies of the function's packets at every host's port: what each worker sent, and what it
    got.
    """

    def __init__(self) -> None:
        self.sent: dict[tuple[int, int, int], bytes] = {}
        """By epoch, chunk and worker."""
        self.got: dict[tuple[int, int, int], bytes] = {}
        self.first_bytes = self.again_bytes = self.again = self.changed = self.missed = 0

    def take(self, packet: bytes) -> None:
        head = (packet[0] & 15) * 4 + 8  # of IPv4 and UDP
        if packet[9] != socket.IPPROTO_UDP or len(packet) < head + HEADER.size:
            return
        magic, _, kind, _, _, worker, length, epoch, number = HEADER.unpack_from(packet, head)
        if magic != 0x4654 or kind not in (ADD, SUM):
            return
        key, payload = (
            (epoch, number, worker),
            packet[head + HEADER.size : head + HEADER.size + length],
        )
        into = self.sent if kind == ADD else self.got
        self.changed += into.setdefault(key, payload) != payload
        if kind == ADD:
            if into[key] is payload:
                self.first_bytes += HEADER.size + length
            else:
                self.again_bytes, self.again = (
                    self.again_bytes + HEADER.size + length,
                    self.again + 1,
                )

    def wrong(self) -> tuple[int, int]:
        """Sums that a worker got and that are not those of what all workers sent; sums looked
        at.
        """
        bad = 0
        for (epoch, number, _), payload in self.got.items():
            parts = [self.sent.get((epoch, number, worker)) for worker in range(len(HOSTS))]
            if any(part is None for part in parts):
                bad += 1
                continue
            with np.errstate(over="ignore"):
                whole = np.add.reduce(
                    [np.frombuffer(part or b"", "<i4") for part in parts], dtype=np.int32
                )
            bad += whole.astype("<i4").tobytes() != payload
        return bad, len(self.got)


@contextmanager
def copied(lab: BenchLab, into: Copies) -> Iterator[None]:
    """Copy packets until the block ends. The copies are made before the fabric loses a packet that
    a host sends.
    """
    over, threads = threading.Event(), []
    with ExitStack() as stack:
        for pid in pids(lab).values():
            with within(pid):
                listener = stack.enter_context(
                    socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
                )
                listener.bind((f"el{PORT}", 3))
            listener.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
            listener.settimeout(0.2)

            def note(listener: socket.socket = listener) -> None:
                while not over.is_set():
                    try:
                        packet, (_, protocol, *_) = listener.recvfrom(1 << 16)
                    except TimeoutError:
                        continue
                    if protocol == 0x0800:
                        into.take(packet)
                # SOL_PACKET, PACKET_STATISTICS
                lost = struct.unpack("II", listener.getsockopt(263, 6, 8))[1]
                into.missed += lost

            threads.append(threading.Thread(target=note, daemon=True))
            threads[-1].start()
        try:
            yield
        finally:
            time.sleep(0.5)
            over.set()
            for thread in threads:
                thread.join()


def reference() -> str:
    """The SHA-256 of the weights that four ranks end with whose gradients are summed as
    integers.
    """
    torch = import_torch()
    network, n = model("mlp", torch, SEED, HIDDEN), len(HOSTS)
    parameters = list(network.parameters())
    speeds = [torch.zeros_like(each) for each in parameters]
    data = [Data("mlp", torch, SEED, rank, n, BATCH) for rank in range(n)]
    for iteration in range(1, ITERATIONS + 1):
        flats = []
        for one in data:
            network.zero_grad(set_to_none=True)
            inputs, target = one.batch(iteration)
            torch.nn.functional.cross_entropy(network(inputs), target).backward()
            flats.append(
                np.concatenate(
                    [each.grad.numpy().reshape(-1) / np.float32(n) for each in parameters]
                )
            )
        largest = max(float(np.abs(flat).max()) for flat in flats)
        bits = SUM_BITS - (n - 1).bit_length() - math.frexp(largest)[1]
        whole = np.zeros(NUMBERS, np.int32)
        for flat in flats:
            whole += np.rint(np.ldexp(flat.astype(np.float64), bits)).astype(np.int32)
        mean = torch.from_numpy(np.ldexp(whole.astype(np.float64), -bits).astype(np.float32))
        at = 0
        with torch.no_grad():
            for parameter, speed in zip(parameters, speeds, strict=True):
                speed.mul_(MOMENTUM).add_(mean[at : at + parameter.numel()].view_as(parameter))
                parameter.add_(speed, alpha=-LR)
                at += parameter.numel()
    digest = hashlib.sha256()
    for parameter in parameters:
        digest.update(parameter.detach().numpy().tobytes())
    return digest.hexdigest()


def plan(lab: BenchLab) -> Path:
    args = {
        "hidden": HIDDEN,
        "batch": BATCH,
        "lr": LR,
        "seed": SEED,
        "iterations": ITERATIONS,
        "checkpoint_every": 0,
        "exchange": "aggregate",
    }
    job = {"name": "ddp", "workload": "train", "ranks": HOSTS, "rings": [HOSTS], "args": args}
    segment = {"name": "ideal", "functions": ["aggregate"]}
    return lab.plan("switch", [], segments=[segment], job=job)


def main() -> int:
    """Measure and print; return the exit code."""
    copies, size = Copies(), 4 * NUMBERS
    with bench_lab(
        len(HOSTS), "--ports", "2", "--rate-mbps", "20", "--electrical", "ideal@20+aggregate"
    ) as lab:
        path = plan(lab)
        # what is checked then is not what is measured
        lab.call("up", "--topology", path, "--no-job")
        with losing(lab, HOSTS, (PORT,), PERCENT), copied(lab, copies):
            one = trained(lab, path, "ddp", HOSTS, 180)
        lab.call("down", "--yes")
    off = copies.first_bytes / ITERATIONS / len(HOSTS) / size - 1
    again = copies.again_bytes / max(1, copies.first_bytes)
    wrong, looked = copies.wrong()
    equal = one.summary["weights_sha256"] == reference()
    print(
        f"  bytes sent first, off the arithmetic: {off:+.4f}; sent again {again:.2%}\n"
        f"  {wrong} of {looked} sums wrong, {copies.changed} repeated packets with other bytes, {copies.missed} packets"
        f" not copied; weights equal to the reference: {equal}; load {os.getloadavg()[0]:.1f}"
    )
    return verdict(
        "aggregation",
        abs(off),
        "off arithmetic",
        OFF,
        "at most",
        also=not wrong and not copies.changed and looked > 0 and equal,
        again=round(again, 4),
        sums_wrong=wrong,
        sums=looked,
        not_copied=copies.missed,
        weights_equal=equal,
        label="native",
    )


if __name__ == "__main__":
    sys.exit(main())
