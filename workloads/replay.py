"""A designed job's communication, iteration by iteration: `python -m workloads.replay --iterations 20`.

An iteration computes (waits, as a host's processor would for its GPU), then moves the bytes that go from pair to pair, then sums
the buffers of all groups, each over its rings at once; all ranks begin each phase together, so that a phase lasts as long as its
slowest rank. They meet on the management network (with NCCL: over the first ring). What is moved comes in TESTBED_TRAFFIC, JSON:

    {"compute_s": 0.1,
     "groups": [{"id": "dp", "bytes": 1000000, "rings": [[0, 1, 2], [2, 1, 0]], "lanes": [0, 1], "schedule": []}],
     "transfers": [[source, destination, bytes, lane], ...]}

A group's buffer is cut into as many pieces as it has rings. With a schedule, rows of step, source, destination, shard, begin, end,
it is cut into as many as it has members: they gather by the schedule, and reduce before by the same backwards (see schedule.py).
Records: transfers_ms and allreduce_ms as any rank sees them, from the moment all begin to the moment all are done; busbw over the
buffers this rank shares in; wire_bytes, what the ports of all hosts sent since the last iteration by their own counters (of the
network devices that TESTBED_PORTS lists); busy, the share of its time that this host's processors were at work. Exit codes as in
train.py.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workloads.buffers import Buffer
from workloads.options import read
from workloads.schedule import Scheduled, Send

if TYPE_CHECKING:
    from workloads.program import Job
    from workloads.wires import Task


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that sum a buffer together: the orders they pass it on in, and the lane of each order."""

    id: str
    bytes: int
    rings: tuple[tuple[int, ...], ...]
    lanes: tuple[int, ...]
    schedule: tuple[Send, ...] = ()


@dataclass(frozen=True, slots=True)
class Transfer:
    """Bytes from one rank to another over a lane's addresses."""

    source: int
    target: int
    bytes: int
    lane: int


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one iteration moves."""

    compute_s: float
    groups: tuple[Group, ...]
    transfers: tuple[Transfer, ...]


def read_traffic(env: Mapping[str, str], world: int) -> Traffic:
    """The traffic in TESTBED_TRAFFIC. Raises ValueError, naming what is wrong with it."""
    if "TESTBED_TRAFFIC" not in env:
        raise ValueError("TESTBED_TRAFFIC: missing")
    try:
        given = json.loads(env["TESTBED_TRAFFIC"])
        groups = tuple(
            Group(
                str(g["id"]),
                int(g["bytes"]),
                tuple(tuple(map(int, ring)) for ring in g["rings"]),
                tuple(map(int, g["lanes"])),
                tuple(Send(*map(int, row[:4]), *map(float, row[4:])) for row in g.get("schedule", ())),
            )
            for g in given["groups"]
        )
        transfers = tuple(Transfer(*map(int, row)) for row in given["transfers"])
        found = Traffic(float(given["compute_s"]), groups, transfers)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"TESTBED_TRAFFIC: not as it should be: {type(error).__name__}: {error}") from error
    for group in found.groups:
        members = set(group.rings[0]) if group.rings else set()
        if not group.rings or len(group.lanes) != len(group.rings) or not members <= set(range(world)):
            raise ValueError(f"TESTBED_TRAFFIC: group {group.id}: needs a lane for each ring, and ranks of 0..{world - 1}")
        if any(sorted(ring) != sorted(members) for ring in group.rings):
            raise ValueError(f"TESTBED_TRAFFIC: group {group.id}: its rings do not name the same ranks, each once")
        if any(not {send.source, send.target, send.shard} <= members for send in group.schedule):
            raise ValueError(f"TESTBED_TRAFFIC: group {group.id}: its schedule names ranks that are no members")
    for transfer in found.transfers:
        ends = {transfer.source, transfer.target}
        if len(ends) < 2 or not ends <= set(range(world)) or transfer.bytes < 1:
            raise ValueError(f"TESTBED_TRAFFIC: {transfer}: needs two ranks of 0..{world - 1} and a byte or more")
    return found


def main() -> None:
    arguments = read("replay", "A designed job's communication, again and again.")

    from workloads.program import run

    run("workloads.replay", lambda job: replay(job, arguments))


def replay(job: Job, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run iterations until the last one asked for or the agreed stop; return what the summary shall say."""
    from workloads.records import Clock

    step = Step(job, read_traffic(os.environ, job.place.world))
    clock, took_ms, wrong = Clock(), [], 0
    wanted = range(1, arguments.iterations + 1) if arguments.iterations else itertools.count(1)
    for iteration in wanted:
        job.iteration = iteration
        job.accord.before(iteration)
        checked = bool(arguments.check) and iteration == 1
        begin_ns, record = step.run(checked=checked)
        wrong += step.wrong if checked else 0
        took_ms.append(record["iter_ms"])
        job.records.iteration({"iter": iteration, "t_wall_ns": clock.wall_ns(begin_ns), **record})
        if job.accord.last(iteration):
            break
    took_ms = sorted(took_ms[1:] or took_ms)  # the first sets connections up
    wrongs = job.accord.gather("wrong", wrong)
    return {"iterations": job.iteration, "median_iter_ms": round(took_ms[len(took_ms) // 2], 3), "wrong": sum(wrongs)}


class Step:
    """One iteration: its buffers, made once, and what carries them: wires, or NCCL's communicators where there are GPUs."""

    def __init__(self, job: Job, traffic: Traffic) -> None:
        self._job, self._traffic = job, traffic
        rank = job.place.rank
        self.mine = [
            (group, self._zeros(group.bytes // 4, "float32"))
            for group in traffic.groups
            if rank in group.rings[0] and group.bytes >= 4
        ]
        self.sent = [(k, t, self._marked(t)) for k, t in enumerate(traffic.transfers) if t.source == rank]
        self.received = [(k, t, self._marked(t)) for k, t in enumerate(traffic.transfers) if t.target == rank]
        self._carriage: Wired | Grouped = Grouped(job, self) if job.rings.backend == "nccl" else Wired(job, self)
        self._meeting = job.rings.whole if job.rings.backend == "nccl" else job.rings.beside("meet")
        self._said = job.torch.zeros(1, dtype=job.torch.float64, device=job.rings.device)
        self._ports = (
            json.loads(os.environ.get("TESTBED_PORTS", "[]")) if job.rings.backend != "nccl" else []
        )  # RDMA goes past them
        self._counted = sent_bytes(self._ports)
        self.wrong = 0

    def _zeros(self, length: int, kind: str) -> Buffer:
        return Buffer.zeros(length, kind, self._job.rings.device, self._job.torch)

    def _marked(self, transfer: Transfer) -> Buffer:
        buffer = self._zeros(transfer.bytes, "uint8")
        buffer.tensor.fill_(_mark(transfer))
        return buffer

    def run(self, *, checked: bool) -> tuple[int, dict[str, Any]]:
        """Run it once; return when it began (monotonic ns) and its record. checked: count what arrived wrong in `wrong`."""
        if checked:
            for _, _, buffer in self.received:
                buffer.tensor.zero_()
            for _, buffer in self.mine:
                buffer.tensor.fill_(self._job.place.rank + 1)
        self._meet()
        begin_ns, worked = time.monotonic_ns(), processors()
        time.sleep(self._traffic.compute_s)
        computed_ns = self._meet() if self._traffic.compute_s else begin_ns
        self._carriage.transfer()
        moved_ns = self._meet() if self._traffic.transfers else computed_ns
        self._carriage.sum()
        summed_ns = self._meet() if self._traffic.groups else moved_ns
        record = self._record(begin_ns, computed_ns, moved_ns, summed_ns)
        busy, passed = (now - then for now, then in zip(processors(), worked, strict=True))
        record |= {"busy": round(busy / passed, 3)} if passed else {}
        if self._ports:
            before, self._counted = self._counted, sent_bytes(self._ports)
            self._meet(self._counted - before)
            record["wire_bytes"] = round(float(self._said[0]))
        if checked:
            self.wrong = self._wrongs()
        return begin_ns, record

    def _meet(self, says: float = 0.0) -> int:
        """Wait for all ranks; return when (monotonic ns) all were there. `_said` is then the sum of what they gave."""
        self._job.synchronize()
        self._said.fill_(says)
        self._meeting.allreduce([self._said]).wait()
        self._job.synchronize()
        return time.monotonic_ns()

    def _wrongs(self) -> int:
        found = sum(int((buffer.tensor != _mark(transfer)).sum()) for _, transfer, buffer in self.received)
        for group, buffer in self.mine:
            found += int((buffer.tensor != sum(rank + 1 for rank in group.rings[0])).sum())
            buffer.tensor.zero_()  # zeros stay zeros, however often they are summed
        return found

    def _record(self, begin_ns: int, computed_ns: int, moved_ns: int, summed_ns: int) -> dict[str, Any]:
        took = {"iter": summed_ns - begin_ns, "comm": summed_ns - computed_ns}
        took |= {"transfers": moved_ns - computed_ns, "allreduce": summed_ns - moved_ns}
        record: dict[str, Any] = {f"{name}_ms": round(ns / 1e6, 3) for name, ns in took.items()}
        record["bytes"] = sum(4 * buffer.tensor.numel() for _, buffer in self.mine)
        if self.mine and took["allreduce"]:
            record["busbw_gbps"] = round(wire_bytes([g for g, _ in self.mine]) * 8 / took["allreduce"], 6)
        return record


class Wired:
    """All of it over TCP connections of the step's own (see wires.py)."""

    def __init__(self, job: Job, step: Step) -> None:
        from workloads.rings import pieces
        from workloads.wires import Giving, Round, Taking, Wires

        rank = job.place.rank
        out = {f"transfer {k}": (t.target, t.lane) for k, t, _ in step.sent}
        into = {f"transfer {k}": (t.source, t.lane) for k, t, _ in step.received}
        parts = []
        for group, buffer in step.mine:
            for (number, order, lane), (begin, end) in zip(
                [] if group.schedule else [(k, *ring) for k, ring in enumerate(zip(group.rings, group.lanes, strict=True))],
                pieces(buffer.tensor.numel(), len(group.rings)),
                strict=False,
            ):
                at = order.index(rank)
                before, after = order[at - 1], order[(at + 1) % len(order)]
                out[f"{group.id}/{number}/{rank}"] = after, lane
                into[f"{group.id}/{number}/{before}"] = before, lane
                parts.append((f"{group.id}/{number}", before, at, len(order), buffer, begin, end))
            for send in group.schedule:
                for a, b in ((send.source, send.target), (send.target, send.source)):
                    if rank == a:
                        out[f"{group.id}: {a} to {b}"] = b, 0
                    if rank == b:
                        into[f"{group.id}: {a} to {b}"] = a, 0
        self._wires = wires = Wires(job.place, job.rings.store, out, into)
        slice = wires.share([f"transfer {k}" for k, _, _ in step.received])
        self._transfers: list[Task] = [
            *(Taking(wires.into[f"transfer {k}"], [buffer.memory], slice) for k, _, buffer in step.received),
            *(Giving(wires.out[f"transfer {k}"], [buffer.memory]) for k, _, buffer in step.sent),
        ]
        self._rings = [
            Round(
                wires.into[f"{name}/{before}"],
                wires.out[f"{name}/{rank}"],
                at,
                size,
                buffer.part(begin, end),
                job.torch,
            )
            for name, before, at, size, buffer, begin, end in parts
            if end > begin and size > 1
        ]
        self._scheduled = [
            Scheduled(job, group.schedule, sorted(group.rings[0]), buffer, (wires, group.id))
            for group, buffer in step.mine
            if group.schedule
        ]

    def transfer(self) -> None:
        self._wires.carry(self._transfers)

    def sum(self) -> None:
        self._wires.carry(self._rings)
        for one in self._scheduled:
            one.all_reduce()


class Grouped:
    """All of it by NCCL."""

    def __init__(self, job: Job, step: Step) -> None:
        self._job, self._step = job, step
        self._rings: list[tuple[Buffer, list[Any]]] = []
        self._scheduled: list[Scheduled] = []
        for group, buffer in step.mine:
            if group.schedule:
                self._scheduled.append(Scheduled(job, group.schedule, sorted(group.rings[0]), buffer))
                continue
            each = enumerate(zip(group.rings, group.lanes, strict=True))
            self._rings.append((buffer, [job.rings.communicator(f"{group.id}/{k}", order, lane) for k, (order, lane) in each]))

    def transfer(self) -> None:
        dist = self._job.torch.distributed  # one group call, or two ranks may wait for each other
        operations = [dist.P2POp(dist.irecv, buffer.tensor, t.source) for _, t, buffer in self._step.received]
        operations += [dist.P2POp(dist.isend, buffer.tensor, t.target) for _, t, buffer in self._step.sent]
        for work in dist.batch_isend_irecv(operations) if operations else []:
            work.wait()

    def sum(self) -> None:
        from workloads.rings import pieces

        works = []
        for buffer, members in self._rings:
            for member, (begin, end) in zip(members, pieces(buffer.tensor.numel(), len(members)), strict=True):
                if end > begin:
                    works.append(member.allreduce([buffer.tensor[begin:end]]))
        for one in self._scheduled:
            one.all_reduce()
        for work in works:
            work.wait()


def wire_bytes(groups: Sequence[Group]) -> float:
    """Bytes one member of all of `groups` sends for them: 2 (k - 1) / k of each buffer."""
    return sum(2 * (len(group.rings[0]) - 1) / len(group.rings[0]) * group.bytes for group in groups)


def sent_bytes(devices: Sequence[str]) -> int:
    """What these network devices of this host have sent, headers of frames included."""
    found = 0
    for name, _, counters in (line.partition(":") for line in Path("/proc/net/dev").read_text(encoding="ascii").splitlines()):
        if name.strip() in devices:
            found += int(counters.split()[8])
    return found


def processors() -> tuple[int, int]:
    """How long this host's processors were at work so far, and how long they were there, in the kernel's ticks; 0, 0: unknown."""
    try:
        ticks = [int(word) for word in Path("/proc/stat").read_text(encoding="ascii").partition("\n")[0].split()[1:9]]
    except (OSError, ValueError):
        return 0, 0
    return sum(ticks) - sum(ticks[3:5]), sum(ticks)  # idle, and idle while something is read


def _mark(transfer: Transfer) -> int:
    """What the bytes of a transfer are, so that those of another show."""
    return (31 * transfer.source + 7 * transfer.target + 3 * transfer.lane) % 250 + 1


if __name__ == "__main__":
    main()
