"""Several jobs of a lab, watched and set going from outside: packets at the light path, and ranks
stopped for less than an iteration.

A packet is noted where it leaves the fabric for a host, behind all queues, by a packet socket in
the namespace of the light path; so rates and times are those of the links, whatever hosts and
programs say. Jobs are brought to a known beginning with signals: the ranks of one are stopped while
they compute, and go on when the other's burst has begun and the wanted gap is over.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bench_lab import BenchLab
from benchmarks.bursts import LEAST_BYTES, Burst, Packet, bursts
from benchmarks.slot_rig import pids
from emulators.fabric.linux import inside

OUTGOING = 4  # PACKET_OUTGOING, linux/if_packet.h: seen behind the interface's own queue
SO_TIMESTAMPNS = 35
FIRST_BURSTS = 3
LAUNCH_S = 40.0


@dataclass(frozen=True)
class Load:
    """A job: who sends so many bytes to whom in every iteration, after computing. transfers:
    source, target, bytes.
    """

    owner: str
    transfers: tuple[tuple[str, str, int], ...]
    compute_s: float

    @property
    def ranks(self) -> list[str]:
        return sorted({host for source, target, _ in self.transfers for host in (source, target)})

    @property
    def receivers(self) -> list[str]:
        return sorted({target for _, target, _ in self.transfers})

    def plan(
        self, lab: BenchLab, name: str, *, light: int = 0, segment: str = "", **more: object
    ) -> Path:
        """A plan for it: over circuits between ports of this number, or over a segment. more: of
        the job.
        """
        moved = [
            {"src": source, "dst": target, "bytes": count, "lane": 0}
            for source, target, count in self.transfers
        ]
        traffic = {"transfers": moved, "compute_s": self.compute_s}
        job = {
            "name": self.owner,
            "workload": "replay",
            "ranks": self.ranks,
            "args": {"iterations": 0},
            "traffic": traffic,
        }
        links = (
            [(f"{source}:p{light}", f"{target}:p{light}") for source, target, _ in self.transfers]
            if light
            else []
        )
        segments = {"segments": [{"name": segment, "hosts": self.ranks}]} if segment else {}
        return lab.plan(f"{name}-{self.owner}", links, job=job | more, **segments)


class Taps:
    """The packets that leave the light path for some host ports, from now on; by host."""

    def __init__(self, lab: BenchLab, ports: Sequence[str]) -> None:
        """ports: as `gpu05:p2`. Raises: OSError - the lab's namespaces cannot be entered."""
        self.seen: dict[str, list[Packet]] = {port.partition(":")[0]: [] for port in ports}
        self.missed = 0
        self._over = threading.Event()
        status = lab.ask("status")
        numbers = {
            host: int(str(facts["mgmt_address"]).rpartition(".")[2])
            for host, facts in status["hosts"].items()
        }
        # Hosts are children of the process that has the fabric; the lab's first process is outside
        # of its namespaces.
        child = Path(f"/proc/{next(iter(status['hosts'].values()))['pid']}/status").read_text()
        parent = next(line.split()[1] for line in child.splitlines() if line.startswith("PPid:"))
        light = os.open(f"/proc/{parent}/root/run/netns/ocs", os.O_RDONLY)
        self._listeners = []
        try:
            for port in ports:
                host, _, number = port.partition(":p")
                with inside(light):
                    listener = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
                listener.bind((f"h{numbers[host]}p{number}", 3))
                listener.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
                listener.setsockopt(socket.SOL_SOCKET, 33, 8 << 20)  # SO_RCVBUFFORCE
                listener.settimeout(0.2)
                self._listeners.append((host, listener))
        finally:
            os.close(light)
        self._threads = [
            threading.Thread(target=self._note, args=listener, daemon=True)
            for listener in self._listeners
        ]
        for thread in self._threads:
            thread.start()

    def _note(self, host: str, listener: socket.socket) -> None:
        into, head = self.seen[host], bytearray(14)
        while not self._over.is_set():
            try:
                length, more, _, (_, _, kind, *_) = listener.recvmsg_into(
                    [head], 64, socket.MSG_TRUNC
                )
            except TimeoutError:
                continue
            if kind == OUTGOING and more and length >= LEAST_BYTES:
                seconds, ns = struct.unpack("qq", more[0][2])
                into.append((seconds + ns / 1e9, length))
        # SOL_PACKET, PACKET_STATISTICS
        self.missed += struct.unpack("II", listener.getsockopt(263, 6, 8))[1]
        listener.close()

    def close(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()


@dataclass
class Watched:
    """Jobs that run, by owner, and the bursts that were seen of each."""

    lab: BenchLab
    loads: Sequence[Load]
    taps: Taps

    def bursts(self, owner: str, since_s: float = 0.0) -> list[Burst]:
        """The whole bursts of a job that began after this (wall s)."""
        load = next(load for load in self.loads if load.owner == owner)
        packets = sorted(
            packet
            for host in load.receivers
            for packet in self.taps.seen[host]
            if packet[0] >= since_s
        )
        found = bursts(packets, load.compute_s / 2)
        return found[:-1] if found and time.time() - found[-1].end_s < load.compute_s / 2 else found

    def running(self, owner: str, count: int, since_s: float, within_s: float) -> list[Burst]:
        """As many bursts of a job after this, waited for. Raises: RuntimeError - they do not
        come.
        """
        give_up = time.monotonic() + within_s
        while len(found := self.bursts(owner, since_s)) < count:
            if time.monotonic() > give_up:
                status = self.lab.call("job", "status", "--as", owner, check=False)
                raise RuntimeError(
                    f"job {owner}: {len(found)} of {count} bursts in {within_s:.0f} s: {status.get('detail')}"
                )
            time.sleep(0.1)
        return found[:count]

    def behind(self, one: str, other: str, gap_s: float) -> float:
        """Let the next burst of `other` begin this long (s) after one of `one`; return when that
        was (wall s).

        Its ranks are stopped while they compute. Their waiting goes on meanwhile, so they send as
        soon as they may.
        """
        load = next(load for load in self.loads if load.owner == other)
        ranks = [pid for host in load.ranks for pid in programs(self.lab, host)]
        self.running(other, 1, time.time(), 30)
        for pid in ranks:
            os.kill(pid, signal.SIGSTOP)
        try:
            # Stopped to the end of their computing and beyond, so that only the signal decides when
            # they send.
            time.sleep(load.compute_s)
            began = self._next(one) + gap_s
            time.sleep(max(0.0, began - time.time()))
        finally:
            for pid in ranks:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
        return began

    def _next(self, owner: str) -> float:
        """Wait for the next burst of a job to begin; return when it did. Raises: RuntimeError -
        none does in 30 s.
        """
        load = next(load for load in self.loads if load.owner == owner)
        seen = [self.taps.seen[host] for host in load.receivers]
        last, give_up = (
            max((packets[-1][0] for packets in seen if packets), default=0.0),
            time.monotonic() + 30,
        )
        while time.monotonic() < give_up:
            for at_s in sorted(
                at_s for packets in seen for at_s, _ in packets[-200:] if at_s > last
            ):
                if at_s - last > load.compute_s / 2:
                    return at_s
                last = at_s
            time.sleep(0.002)
        raise RuntimeError(f"job {owner} sends nothing")


def programs(lab: BenchLab, host: str) -> Iterator[int]:
    """The processes of ranks on a host."""
    own = Path(f"/proc/{pids(lab)[host]}/ns/net").stat().st_ino
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and (entry / "ns" / "net").stat().st_ino == own:
                tokens = (entry / "cmdline").read_bytes().split(b"\0")
                if b"workloads.programs.replay" in tokens and not tokens[0].endswith(b"sh"):
                    yield int(entry.name)


@contextmanager
def running(lab: BenchLab, plans: Mapping[Load, Path], port: int) -> Iterator[Watched]:
    """Bring each job's plan up as its owner, launch all, wait until each sends; stop them when the
    block ends.

    port: of the receivers, where packets are noted. Raises: RuntimeError - a verb failed, or a job
    does not send.
    """
    with ExitStack() as stack:
        for load, plan in plans.items():
            lab.call("up", "--topology", plan, "--no-job", "--as", load.owner)
        taps = Taps(lab, [f"{host}:p{port}" for load in plans for host in load.receivers])
        stack.callback(taps.close)
        found, since = Watched(lab, [*plans], taps), time.time()
        for load in plans:
            stack.callback(lab.call, "job", "stop", "--as", load.owner, check=False)
            lab.call("job", "launch", "--as", load.owner)
        for load in plans:
            found.running(load.owner, FIRST_BURSTS, since, LAUNCH_S)
        yield found
