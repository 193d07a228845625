"""Sums made in a packet switch, against a ring over the same switch: bytes of a worker, and sums
against an own int32 reference.

    python benchmarks/aggregation.py [ROUNDS] Four hosts at a packet switch, 20 Mb/s a port, train a
perceptron of 134 154 parameters, which DistributedDataParallel sends in one bucket. Arms by turns
in one run: ring; switch; lossy, which is the switch with 1 % of all packets lost at each host's
port in each direction (fault `loss` of the emulated fabric). M bytes of gradients; a worker sends 2
(n-1)/n M round the ring, and M to the switch. Bytes are what the hosts' ports counted, less the
headers up to TCP and UDP; the dialect's own headers count. Under loss a copy of every packet at the
hosts' ports tells what was sent again, which is counted apart.

Sums: the reference is computed here from the packets alone. What each worker sent of a chunk is
added in int32, and must be what each worker got, bit by bit. Then the whole training is repeated in
this process, with gradients of four ranks summed as integers at the scale that
extensions/switch_functions/README.md has: its weights must be those that the ranks ended with. The
figure is how far bytes of switch over ring are off the arithmetic's ratio.
"""

from __future__ import annotations

import hashlib
import math
import os
import socket
import statistics
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.bench_lab import BenchLab, bench_lab
from benchmarks.harness import verdict
from benchmarks.job_rig import TCP_BYTES, UDP_BYTES, Trained, losing, ratio, trained
from benchmarks.slot_rig import pids, within
from orchestrator.experiments.scenario.record import order
from workloads.training.eager import import_torch
from workloads.training.models import Data, model

HOSTS = [f"gpu{n:02d}" for n in range(1, 5)]
PORT = 3
"""Of each host, at the packet switch; those before are at optical ones."""
ARMS = ("ring", "switch", "lossy")
HIDDEN, BATCH, LR, SEED, ITERATIONS, WARM = 256, 8, 0.01, 1, 40, 5
NUMBERS = 256 * HIDDEN + HIDDEN + HIDDEN * HIDDEN + HIDDEN + 10 * HIDDEN + 10
ROUNDS, PERCENT = 3, 1.0
OFF = 0.03
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


def plan(lab: BenchLab, arm: str) -> Path:
    args = {
        "hidden": HIDDEN,
        "batch": BATCH,
        "lr": LR,
        "seed": SEED,
        "iterations": ITERATIONS,
        "checkpoint_every": 0,
    }
    job = {"name": "ddp", "workload": "train", "ranks": HOSTS, "rings": [HOSTS], "args": args}
    if arm == "ring":
        return lab.plan(arm, [], segments=[{"name": "ideal"}], job=job)
    job["args"] = args | {"exchange": "aggregate"}
    return lab.plan(arm, [], segments=[{"name": "ideal", "functions": ["aggregate"]}], job=job)


def measured(lab: BenchLab, arm: str, copies: list[Copies]) -> Trained:
    if arm != "lossy":
        return trained(lab, plan(lab, arm), "ddp", HOSTS, 120)
    copies.append(Copies())
    # what is checked then is not what is measured
    lab.call("up", "--topology", plan(lab, arm), "--no-job")
    with losing(lab, HOSTS, (PORT,), PERCENT), copied(lab, copies[-1]):
        return trained(lab, plan(lab, arm), "ddp", HOSTS, 180)


def main() -> int:
    """Measure and print; return the exit code."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    found: dict[str, list[Trained]] = {arm: [] for arm in ARMS}
    copies: list[Copies] = []
    header = {"ring": TCP_BYTES, "switch": UDP_BYTES, "lossy": UDP_BYTES}
    with bench_lab(
        len(HOSTS), "--ports", "2", "--rate-mbps", "20", "--electrical", "ideal@20+aggregate"
    ) as lab:
        for arm in order(ARMS, rounds):
            found[arm].append(one := measured(lab, arm, copies))
            comm = statistics.median(one.values("comm_ms", WARM))
            print(
                f"  {arm:<7} {one.sent(WARM, ITERATIONS - 1, header[arm]):8.0f} bytes, exchange {comm:6.1f} ms",
                flush=True,
            )
        lab.call("down", "--yes")
    size, n = 4 * NUMBERS, len(HOSTS)
    expected = {"ring": 2 * (n - 1) / n * size, "switch": float(size), "lossy": float(size)}
    bytes_ = {
        arm: statistics.fmean(one.sent(WARM, ITERATIONS - 1, header[arm]) for one in runs)
        for arm, runs in found.items()
    }
    first = sum(c.first_bytes for c in copies) / len(copies) / ITERATIONS / n
    again = sum(c.again_bytes for c in copies) / max(1, sum(c.first_bytes for c in copies))
    off = {arm: round(bytes_[arm] / expected[arm] - 1, 4) for arm in ("ring", "switch")}
    off["lossy, sent once"] = round(first / size - 1, 4)
    share = bytes_["switch"] / bytes_["ring"]
    judged = [c.wrong() for c in copies]
    wrong, looked = sum(bad for bad, _ in judged), sum(count for _, count in judged)
    hashes = {arm: {one.summary["weights_sha256"] for one in runs} for arm, runs in found.items()}
    own = reference()
    equal = {arm: hashes[arm] == {own} for arm in ("switch", "lossy")}
    missed, changed = sum(c.missed for c in copies), sum(c.changed for c in copies)
    ring, switch = (
        [one.values("comm_ms", WARM) for one in found[arm]] for arm in ("ring", "switch")
    )
    took = ratio(ring, switch)
    print(
        f"  bytes off the arithmetic: {off}; sent again under loss {again:.2%}, ports in all {bytes_['lossy'] / size:.3f} M\n"
        f"  {wrong} of {looked} sums wrong, {changed} repeated packets with other bytes, {missed} packets not copied;"
        f" weights equal to the reference: {equal}\n  exchange, switch over ring: {took}; load {os.getloadavg()[0]:.1f}"
    )
    also = (
        all(abs(value) <= OFF for value in off.values())
        and not wrong
        and not changed
        and looked > 0
        and all(equal.values())
    )
    figures: dict[str, Any] = {
        "bytes": {arm: round(value) for arm, value in bytes_.items()},
        "off": off,
    }
    return verdict(
        "aggregation",
        abs(share / (expected["switch"] / expected["ring"]) - 1),
        "off arithmetic",
        OFF,
        "at most",
        also=also,
        bytes_ratio=round(share, 4),
        **figures,
        again=round(again, 4),
        sums_wrong=f"{wrong} of {looked}",
        not_copied=missed,
        weights_equal=equal,
        time_ratio=took,
        label="native",
    )


if __name__ == "__main__":
    sys.exit(main())
