"""A designed job's communication, iteration by iteration: `python -m workloads.replay --iterations 20`.

An iteration computes (waits, as a host's processor would for its GPU), then moves the bytes that go from pair to pair, then sums
the buffers of all groups, each over its rings at once; all ranks begin each phase together, so that a phase lasts as long as its
slowest rank. What is moved comes in TESTBED_TRAFFIC, JSON:

    {"compute_s": 0.1,
     "groups": [{"id": "dp", "bytes": 1000000, "rings": [[0, 1, 2], [2, 1, 0]], "lanes": [0, 1], "schedule": []}],
     "transfers": [[source, destination, bytes, lane], ...]}

A group's buffer is cut into as many pieces as it has rings. With a schedule, rows of step, source, destination, shard, begin, end,
it is cut into as many as it has members: they gather by the schedule, and reduce before by the same backwards (see schedule.py).
Records: transfers_ms and allreduce_ms as any rank sees them, from the moment all begin to the moment all are done; busbw over the
buffers this rank shares in. Exit codes as in train.py.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workloads.schedule import Scheduled, Send

if TYPE_CHECKING:
    from workloads.program import Job


PIECE, PIECES, WINDOW = 65536, 64, 2
"""A transfer goes in pieces of so many bytes, or in so many pieces if that is fewer; so many are on their way at once."""


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
    parser = argparse.ArgumentParser(prog="workloads.replay", description="A designed job's communication, again and again.")
    parser.add_argument("--iterations", type=int, default=20, help="iterations; 0: until stopped (default 20)")
    parser.add_argument("--check", type=int, choices=(0, 1), default=1, help="look at what arrives in the first (default 1)")
    arguments = parser.parse_args()
    if arguments.iterations < 0:
        parser.error("--iterations: not below zero")

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
    """One iteration: its buffers, made once, and the communicators they travel by."""

    def __init__(self, job: Job, traffic: Traffic) -> None:
        self._job, self._traffic = job, traffic
        rank, world, rings = job.place.rank, job.place.world, job.rings
        # Meeting takes each rank of a communicator a connection to each other one, so those that are there serve twice.
        self._together, everybody = rings.whole, range(world)
        self._lanes: dict[int, tuple[Any, Sequence[int]]] = {0: (rings.whole, everybody)}
        self._mine: list[tuple[Group, Any, list[Any]]] = []
        self._scheduled: list[Scheduled] = []
        for group in traffic.groups:
            if rank in group.rings[0] and group.bytes >= 4:
                buffer = job.torch.zeros(group.bytes // 4, device=rings.device)
                members: list[Any] = []
                if group.schedule:
                    self._scheduled.append(Scheduled(job, group.schedule, sorted(group.rings[0]), buffer))
                    self._mine.append((group, buffer, members))
                    continue
                for k, (order, lane) in enumerate(zip(group.rings, group.lanes, strict=True)):
                    members.append(rings.communicator(f"{group.id}/{k}", order, lane))
                    if len(order) == world:
                        self._lanes.setdefault(lane, (members[-1], order))
                self._mine.append((group, buffer, members))
        for lane in sorted({transfer.lane for transfer in traffic.transfers} - self._lanes.keys()):
            if rings.backend == "gloo":
                self._lanes[lane] = (rings.communicator(f"lane{lane}", everybody, lane), everybody)
        self._sent = [(k, t, self._bytes(t)) for k, t in enumerate(traffic.transfers) if t.source == rank]
        self._received = [(k, t, self._bytes(t)) for k, t in enumerate(traffic.transfers) if t.target == rank]
        self._crew = ThreadPoolExecutor(max(1, len(self._sent) + len(self._received)))  # all of them have to be at work at once
        self._one = job.torch.zeros(1, device=rings.device)
        self.wrong = 0

    def _bytes(self, transfer: Transfer) -> Any:
        torch, device = self._job.torch, self._job.rings.device
        return torch.full((transfer.bytes,), _mark(transfer), dtype=torch.uint8, device=device)

    def run(self, *, checked: bool) -> tuple[int, dict[str, Any]]:
        """Run it once; return when it began (monotonic ns) and its record. checked: count what arrived wrong in `wrong`."""
        if checked:
            for _, _, buffer in self._received:
                buffer.zero_()
            for _, buffer, _ in self._mine:
                buffer.fill_(self._job.place.rank + 1)
        self._meet()
        begin_ns = time.monotonic_ns()
        time.sleep(self._traffic.compute_s)
        computed_ns = self._meet() if self._traffic.compute_s else begin_ns
        self._transfer()
        moved_ns = self._meet() if self._traffic.transfers else computed_ns
        self._sum()
        summed_ns = self._meet() if self._traffic.groups else moved_ns
        if checked:
            self.wrong = self._wrongs()
        return begin_ns, self._record(begin_ns, computed_ns, moved_ns, summed_ns)

    def _meet(self) -> int:
        """Wait for everybody; return when (monotonic ns) all were there."""
        self._job.synchronize()
        self._together.allreduce([self._one]).wait()
        self._job.synchronize()
        return time.monotonic_ns()

    def _transfer(self) -> None:
        if self._job.rings.backend == "nccl":  # one group call, or two ranks may wait for each other
            dist = self._job.torch.distributed
            operations = [dist.P2POp(dist.irecv, buffer, t.source) for _, t, buffer in self._received]
            operations += [dist.P2POp(dist.isend, buffer, t.target) for _, t, buffer in self._sent]
            for work in dist.batch_isend_irecv(operations) if operations else []:
                work.wait()
            return
        ends = [self._crew.submit(self._receive, *one) for one in self._received]
        ends += [self._crew.submit(self._send, *one) for one in self._sent]
        for end in ends:
            end.result()

    def _send(self, number: int, transfer: Transfer, buffer: Any) -> None:
        lane, order = self._lanes[transfer.lane]
        for part in _parts(buffer):
            lane.send([part], order.index(transfer.target), number).wait()

    def _receive(self, number: int, transfer: Transfer, buffer: Any) -> None:
        """Ask for WINDOW pieces at a time: gloo sends only what is asked for.

        Without that a dozen streams fill each other's queues on the way, lose packets, and wait for time-outs.
        """
        lane, order = self._lanes[transfer.lane]
        asked: deque[Any] = deque()
        for part in _parts(buffer):
            if len(asked) == WINDOW:
                asked.popleft().wait()
            asked.append(lane.recv([part], order.index(transfer.source), number))
        while asked:
            asked.popleft().wait()

    def _sum(self) -> None:
        from workloads.rings import pieces

        works = []
        for _, buffer, members in self._mine:
            for member, (begin, end) in zip(members, pieces(buffer.numel(), max(1, len(members))), strict=False):
                if end > begin:
                    works.append(member.allreduce([buffer[begin:end]]))
        for one in self._scheduled:
            one.all_reduce()
        for work in works:
            work.wait()

    def _wrongs(self) -> int:
        found = sum(int((buffer != _mark(transfer)).sum()) for _, transfer, buffer in self._received)
        for group, buffer, _ in self._mine:
            found += int((buffer != sum(rank + 1 for rank in group.rings[0])).sum())
            buffer.zero_()  # zeros stay zeros, however often they are summed
        return found

    def _record(self, begin_ns: int, computed_ns: int, moved_ns: int, summed_ns: int) -> dict[str, Any]:
        took = {"iter": summed_ns - begin_ns, "comm": summed_ns - computed_ns}
        took |= {"transfers": moved_ns - computed_ns, "allreduce": summed_ns - moved_ns}
        record: dict[str, Any] = {f"{name}_ms": round(ns / 1e6, 3) for name, ns in took.items()}
        record["bytes"] = sum(buffer.numel() * 4 for _, buffer, _ in self._mine)
        if self._mine and took["allreduce"]:
            record["busbw_gbps"] = round(wire_bytes([g for g, _, _ in self._mine]) * 8 / took["allreduce"], 6)
        return record


def wire_bytes(groups: Sequence[Group]) -> float:
    """Bytes one member of all of `groups` sends for them: 2 (k - 1) / k of each buffer."""
    return sum(2 * (len(group.rings[0]) - 1) / len(group.rings[0]) * group.bytes for group in groups)


def _parts(buffer: Any) -> Any:
    """The pieces a transfer goes in."""
    return buffer.split(max(PIECE, buffer.numel() // PIECES))


def _mark(transfer: Transfer) -> int:
    """What the bytes of a transfer are, so that those of another show."""
    return (31 * transfer.source + 7 * transfer.target + 3 * transfer.lane) % 250 + 1


if __name__ == "__main__":
    main()
