"""What the benchmarks of functions share: a training job run to its end, and what its hosts'
interfaces counted meanwhile.

Bytes are counted from outside, by the counters of the hosts' own ports, as often as `SAMPLE_S`, and
never asked of the program. Records, summary and checkpoints are read where the hosts have them, so
nobody asks for the job while it trains.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.bench_lab import BenchLab
from benchmarks.slot_rig import pids

TCP_BYTES = 14 + 20 + 32
"""Ethernet, IPv4, TCP with timestamps: the headers that an interface counts once a packet, however
large it is (GSO).
"""
SAMPLE_S = 0.02
CHECKPOINTS = "var/lib/testbed/checkpoints"

Counted = tuple[int, int]
"""Bytes and packets that all of a host's ports have sent."""


def counted(pid: int) -> Counted:
    """What the ports of the host with this first process have sent so far; its management interface
    is none of them.
    """
    bytes_ = packets = 0
    for line in Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]:
        name, _, figures = line.partition(":")
        if name.strip().rstrip("0123456789") in ("opt", "el"):
            tokens = figures.split()
            bytes_, packets = bytes_ + int(tokens[8]), packets + int(tokens[9])
    return bytes_, packets


@dataclass
class Trained:
    """A job that has ended. samples: wall time (ns), and what each host had sent by then."""

    records: list[dict[str, Any]]
    summary: dict[str, Any]
    folder: Path
    samples: list[tuple[int, list[Counted]]] = field(default_factory=list)

    def ends(self, iteration: int) -> int:
        """When this iteration ended (wall ns)."""
        (record,) = (r for r in self.records if r["iter"] == iteration)
        return int(record["t_wall_ns"] + record["iter_ms"] * 1e6)

    def sent(self, after: int, last: int) -> float:
        """Bytes that a host sent in an iteration, without headers: the mean of hosts and iterations.

        last is not the job's last iteration: what is sent of the next one before it is noted is
        then the same at both ends.
        """
        totals = []
        for at in (self.ends(after), self.ends(last)):
            later = next(k for k, (when, _) in enumerate(self.samples) if when >= at)
            (begin, before), (end, behind) = self.samples[later - 1], self.samples[later]
            share = (at - begin) / (end - begin)
            net = [
                sum(bytes_ - TCP_BYTES * packets for bytes_, packets in counts)
                for counts in (before, behind)
            ]
            totals.append(net[0] + share * (net[1] - net[0]))
        return (totals[1] - totals[0]) / (last - after) / len(self.samples[0][1])

    def values(self, name: str, after: int) -> list[float]:
        """This figure of every later iteration."""
        return [float(r[name]) for r in self.records if r["iter"] > after]


@contextmanager
def sampled(hosts: Sequence[int], into: list[tuple[int, list[Counted]]]) -> Iterator[None]:
    """Note what these hosts (first processes) have sent, until the block ends."""
    over = threading.Event()

    def note() -> None:
        while not over.wait(SAMPLE_S):
            into.append((time.time_ns(), [counted(pid) for pid in hosts]))

    thread = threading.Thread(target=note, daemon=True)
    thread.start()
    try:
        yield
    finally:
        time.sleep(3 * SAMPLE_S)
        over.set()
        thread.join()


def lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file of records; none where it is not there."""
    try:
        *whole, _ = path.read_text().split("\n")
    except (FileNotFoundError, ValueError):
        return []
    return [json.loads(line) for line in whole]


def root(pid: int) -> Path:
    """The file system as the host with this first process has it."""
    return Path(f"/proc/{pid}/root")


def newest(pid: int, job: str) -> Path | None:
    """The directory of the newest launch of a job on a host."""
    found = list((root(pid) / "var/lib/testbed/jobs").glob(f"{job}.*"))
    return max(found, key=lambda each: each.stat().st_ctime_ns) if found else None


def trained(lab: BenchLab, plan: Path, job: str, ranks: Sequence[str], within_s: float) -> Trained:
    """Bring `plan` up, run its job to the end, and return what was seen. Raises: RuntimeError - it
    failed, or still runs.
    """
    hosts = pids(lab)
    lab.call("up", "--topology", plan, "--no-job")
    before = newest(hosts[ranks[0]], job)
    samples: list[tuple[int, list[Counted]]] = []
    with sampled([hosts[rank] for rank in ranks], samples):
        lab.call("job", "launch")
        folder = newest(hosts[ranks[0]], job)
        assert folder is not None and folder != before, "the job has a directory of its own"
        give_up, look = time.monotonic() + within_s, time.monotonic() + 15
        while not (folder / "summary.json").exists():
            time.sleep(0.25)
            if time.monotonic() > look:  # it would otherwise take time from the job
                status, look = lab.call("job", "status", check=False), time.monotonic() + 15
                if (
                    status["state"] not in ("starting", "running", "finished")
                    or time.monotonic() > give_up
                ):
                    logs = lab.call("job", "logs", "--lines", "8", check=False)
                    lab.call("job", "stop", check=False)
                    raise RuntimeError(
                        f"{plan.name}: {status['state']}: {status['detail']}: {logs}"
                    )
    found = Trained(
        lines(folder / "iterations.jsonl"),
        json.loads((folder / "summary.json").read_text()),
        folder,
        samples,
    )
    lab.ended(30)
    return found


@contextmanager
def losing(
    lab: BenchLab, hosts: Sequence[str], ports: Sequence[int], percent: float
) -> Iterator[None]:
    """So many percent of what passes these ports are lost, in each direction, until the block
    ends.
    """
    where = [(host, port) for host in hosts for port in ports]
    numbers = [
        lab.ask("faults.add", host=host, kind="loss", port=port, percent=percent)["number"]
        for host, port in where
    ]
    try:
        yield
    finally:
        for (host, _), number in zip(where, numbers, strict=True):
            lab.ask("faults.remove", host=host, number=number)


def state_hash(torch: Any, path: Path) -> str:
    """The SHA-256 of the parameters and momenta of a checkpoint, bit by bit."""
    state: Mapping[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
    digest = hashlib.sha256()
    for name in ("parameters", "momentum"):
        for tensor in state[name]:
            digest.update(tensor.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()
