"""A designed job's communication, iteration by iteration:
`python -m workloads.programs.replay --iterations 20`.

An iteration computes (waits, as a host's processor would for its GPU), then moves the bytes that go
from pair to pair, then sums the buffers of all groups, each over its rings at once; all ranks begin
each phase together, so that a phase lasts as long as its slowest rank. They meet on the management
network (with NCCL: over the first ring). What is moved comes in TESTBED_TRAFFIC, JSON:

    {"compute_s": 0.1, "groups": [{"id": "dp", "bytes": 1000000, "rings": [[0, 1, 2], [2, 1, 0]],
     "lanes": [0, 1], "schedule": []}], "transfers": [[source, destination, bytes, lane], ...]}

A fifth number of a transfer is a rank that passes it on: what it has received so far, or, with
`--relay whole`, only once it has received all that it passes on.

A group's buffer is cut into as many pieces as it has rings. With a schedule, rows of step, source,
destination, shard, begin, end, it is cut into as many as it has members: they gather by the
schedule, and reduce before by the same backwards (see schedule.py). With --credits a rank admits
what it is sent (see admission.py). Records: transfers_ms and allreduce_ms as any rank sees them,
from the moment all begin to the moment all are done; busbw over the buffers this rank shares in;
wire_bytes, what the ports of all hosts sent since the last iteration by their own counters (of the
network devices that TESTBED_PORTS lists); busy, the share of its time that this host's processors
were at work. Exit codes as in train.py.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..host.counters import processors, sent_bytes
from ..host.slots import shared
from ..transport.buffers import Buffer, pieces
from .options import conflicts, read
from .schedule import Scheduled
from .traffic import Group, Traffic, Transfer, parse_traffic, read_traffic

if TYPE_CHECKING:
    from ..transport.loop import Task
    from .program import Job


def main() -> None:
    arguments = read("replay", "A designed job's communication, again and again.")

    from .program import run

    run("workloads.programs.replay", lambda job: replay(job, arguments))


def replay(job: Job, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run iterations until the last one asked for or the agreed stop; return what the summary shall
    say.
    """
    from ..collectives.sets import Layout
    from ..progress.records import Clock

    step, world = Step(job), job.place.world

    def make(
        layout: Layout, name: str, store: Any, within_s: float, given_up: Callable[[], bool] | None
    ) -> Load:
        return Load(
            job,
            parse_traffic(json.loads(layout.traffic), world),
            (name, store, within_s, given_up, arguments.relay == "whole"),
            arguments.credits,
        )

    for option, text in conflicts("replay", vars(arguments), job.rings.backend == "nccl"):
        raise ValueError(f"--{option}: {text}")
    traffic = read_traffic(os.environ, world)
    layout = Layout(
        job.place.rings, json.dumps(json.loads(os.environ["TESTBED_TRAFFIC"]), sort_keys=True)
    )
    if job.rings.backend == "nccl":
        step.use(Load(job, traffic))
    job.carry_on(layout, make, step.use, lambda given: parse_traffic(given, world))
    clock, took_ms, wrong = Clock(), [], 0
    wanted = range(1, arguments.iterations + 1) if arguments.iterations else itertools.count(1)
    for iteration in wanted:
        job.before(iteration)
        checked = bool(arguments.check) and step.fresh
        begin_ns, record = step.run(checked=checked)
        wrong += step.wrong if checked else 0
        took_ms.append(record["iter_ms"])
        job.records.iteration({"iter": iteration, "t_wall_ns": clock.wall_ns(begin_ns), **record})
        if job.last(iteration):
            break
        if arguments.ungated:  # not before all are connected, for which the slots are asked, too
            shared().close()
    took_ms = sorted(took_ms[1:] or took_ms)  # the first sets connections up
    wrongs = job.accord.gather("wrong", wrong)
    return {
        "iterations": job.iteration,
        "median_iter_ms": round(took_ms[len(took_ms) // 2], 3),
        "wrong": sum(wrongs),
    }


class Load:
    """What one traffic takes: its buffers, and what carries them: wires, or NCCL's communicators
    where there are GPUs.
    """

    def __init__(
        self,
        job: Job,
        traffic: Traffic,
        how: tuple[str, Any, float, Callable[[], bool] | None, bool] | None = None,
        credits: int = 0,
    ) -> None:
        """how: of the wires, as ring_changes.Make, and whether relays wait for whole messages;
        without it NCCL carries. credits: as Wired. Raises: RuntimeError - a peer does not come in
        time.
        """
        self._job, self.traffic = job, traffic
        rank = job.place.rank
        self.mine = [
            (group, self._zeros(group.bytes // 4, "float32"))
            for group in traffic.groups
            if rank in group.rings[0] and group.bytes >= 4
        ]
        self.sent = [
            (k, t, self._marked(t)) for k, t in enumerate(traffic.transfers) if t.source == rank
        ]
        self.received = [
            (k, t, self._marked(t)) for k, t in enumerate(traffic.transfers) if t.target == rank
        ]
        self.carriage: Wired | Grouped = (
            Grouped(job, self) if how is None else Wired(job, self, credits, *how)
        )

    def _zeros(self, length: int, kind: str) -> Buffer:
        return Buffer.zeros(length, kind, self._job.rings.device, self._job.torch)

    def _marked(self, transfer: Transfer) -> Buffer:
        buffer = self._zeros(transfer.bytes, "uint8")
        buffer.tensor.fill_(_mark(transfer))
        return buffer

    def fill(self) -> None:
        """Write what is to be sent, and spoil what is to be received, so that errors show."""
        for _, _, buffer in self.received:
            buffer.tensor.zero_()
        for _, buffer in self.mine:
            buffer.tensor.fill_(self._job.place.rank + 1)

    def wrong(self) -> int:
        """How many elements are not what they should be after `fill` and one iteration."""
        found = sum(
            int((buffer.tensor != _mark(transfer)).sum()) for _, transfer, buffer in self.received
        )
        for group, buffer in self.mine:
            found += int((buffer.tensor != sum(rank + 1 for rank in group.rings[0])).sum())
            buffer.tensor.zero_()  # zeros stay zeros, however often they are summed
        return found

    def close(self) -> None:
        self.carriage.close()

    def lost(self) -> str:
        """As Wires.lost."""
        return self.carriage.lost()


class Step:
    """One iteration of the load in use."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._load: Load
        self.fresh = True
        """Whether the load in use has carried nothing since it came into use."""
        self._meeting = (
            job.rings.whole if job.rings.backend == "nccl" else job.rings.management_group("meet")
        )
        self._sum = job.torch.zeros(1, dtype=job.torch.float64, device=job.rings.device)
        self._ports = (
            json.loads(os.environ.get("TESTBED_PORTS", "[]")) if job.rings.backend != "nccl" else []
        )  # RDMA goes past them
        self._counted = sent_bytes(self._ports)
        self.wrong = 0

    def use(self, load: Load) -> None:
        """Carry this load from the next iteration on."""
        self._load, self.fresh = load, True

    def run(self, *, checked: bool) -> tuple[int, dict[str, Any]]:
        """Run it once; return when it began (monotonic ns) and its record. checked: count what
        arrived wrong in `wrong`.
        """
        load, traffic, self.fresh = self._load, self._load.traffic, False
        if checked:
            load.fill()
        heartbeat = self._job.heartbeat
        heartbeat.exchange()
        self._meet()
        heartbeat.begin(self._job.iteration)
        begin_ns, worked = time.monotonic_ns(), processors()
        time.sleep(traffic.compute_s * self._job.place.dilation)
        heartbeat.exchange()
        alone_ns = time.monotonic_ns()
        computed_ns = self._meet() if traffic.compute_s else begin_ns
        heartbeat.waited(max(0, computed_ns - alone_ns))
        load.carriage.transfer()
        moved_ns = self._meet() if traffic.transfers else computed_ns
        load.carriage.sum()
        summed_ns = self._meet() if traffic.groups else moved_ns
        heartbeat.end()
        record = self._record(begin_ns, computed_ns, moved_ns, summed_ns)
        busy, passed = (now - then for now, then in zip(processors(), worked, strict=True))
        record |= {"busy": round(busy / passed, 3)} if passed else {}
        if self._ports:
            before, self._counted = self._counted, sent_bytes(self._ports)
            self._meet(self._counted - before)
            record["wire_bytes"] = round(float(self._sum[0]))
        if checked:
            self.wrong = load.wrong()
        return begin_ns, record

    def _meet(self, value: float = 0.0) -> int:
        """Wait for all ranks; return when (monotonic ns) all were there. `_sum` is then the sum of
        their values.
        """
        self._job.heartbeat.unheard()
        self._job.synchronize()
        self._sum.fill_(value)
        self._meeting.allreduce([self._sum]).wait()
        self._job.synchronize()
        return time.monotonic_ns()

    def _record(
        self, begin_ns: int, computed_ns: int, moved_ns: int, summed_ns: int
    ) -> dict[str, Any]:
        took = {"iter": summed_ns - begin_ns, "comm": summed_ns - computed_ns}
        took |= {"transfers": moved_ns - computed_ns, "allreduce": summed_ns - moved_ns}
        record: dict[str, Any] = {f"{name}_ms": round(ns / 1e6, 3) for name, ns in took.items()}
        record["bytes"] = sum(4 * buffer.tensor.numel() for _, buffer in self._load.mine)
        if self._load.mine and took["allreduce"]:
            record["busbw_gbps"] = round(
                wire_bytes([g for g, _ in self._load.mine]) * 8 / took["allreduce"], 6
            )
        return record


class Wired:
    """All of it over TCP connections of the load's own (see wires.py)."""

    def __init__(
        self,
        job: Job,
        load: Load,
        credits: int,
        name: str,
        store: Any,
        within_s: float,
        given_up: Callable[[], bool] | None,
        whole: bool,
    ) -> None:
        """credits: so many bytes are on their way to this rank at most, of all transfers; 0: TCP
        decides."""
        from ..transport.admission import Admission, AdmittedReceive, AdmittedSend
        from ..transport.relay import Way, ends, stages
        from ..transport.tasks import Round
        from ..transport.wires import Wires

        rank, transfers = job.place.rank, load.traffic.transfers
        if credits and any(t.via is not None for t in transfers):
            raise ValueError("--credits: a transfer that another rank passes on has no credits")
        ways = [
            Way(f"transfer {k}", t.source, t.target, t.lane, t.via) for k, t in enumerate(transfers)
        ]
        out, into = ends(ways, rank)
        if credits:
            out |= {f"credits {k}": (t.source, t.lane) for k, t, _ in load.received}
            into |= {f"credits {k}": (t.target, t.lane) for k, t, _ in load.sent}
        parts = []
        for group, buffer in load.mine:
            for (number, order, lane), (begin, end) in zip(
                []
                if group.schedule
                else [
                    (k, *ring) for k, ring in enumerate(zip(group.rings, group.lanes, strict=True))
                ],
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
        self._wires = wires = Wires(
            job.place,
            store,
            out,
            into,
            name,
            within_s=within_s,
            given_up=given_up,
            stall=job.rings.stall,
        )
        slice = wires.share([ways[k].last for k, _, _ in load.received])
        self._admission = Admission(credits)
        if credits:
            self._transfers: list[list[Task]] = [
                [
                    *(
                        AdmittedReceive(
                            wires.into[f"transfer {k}"],
                            wires.out[f"credits {k}"],
                            [buffer.memory],
                            self._admission,
                            slice,
                        )
                        for k, _, buffer in load.received
                    ),
                    *(
                        AdmittedSend(
                            wires.out[f"transfer {k}"], wires.into[f"credits {k}"], [buffer.memory]
                        )
                        for k, _, buffer in load.sent
                    ),
                ]
            ]
        else:
            wires.share([way.first for way in ways if way.via == rank])
            self._transfers = stages(
                ways,
                rank,
                wires.out,
                wires.into,
                {ways[k].name: buffer.memory for k, _, buffer in (*load.sent, *load.received)},
                {
                    way.name: range(t.bytes, t.bytes + 1)
                    for way, t in zip(ways, transfers, strict=True)
                },
                slice,
                whole=whole,
            )
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
            for group, buffer in load.mine
            if group.schedule
        ]

    def transfer(self) -> None:
        for tasks in self._transfers:
            self._wires.carry(tasks, self._admission.give)
        self._admission.check()

    def sum(self) -> None:
        self._wires.carry(self._rings)
        for one in self._scheduled:
            one.all_reduce()

    def close(self) -> None:
        self._wires.close()

    def lost(self) -> str:
        return self._wires.lost()


class Grouped:
    """All of it by NCCL."""

    def __init__(self, job: Job, load: Load) -> None:
        """Raises: ValueError - a rank is to pass something on."""
        if any(transfer.via is not None for transfer in load.traffic.transfers):
            raise ValueError(
                "replay: NCCL sends from rank to rank, and a transfer names another that passes it on; give the job the backend gloo"
            )
        self._job, self._load = job, load
        self._rings: list[tuple[Buffer, list[Any]]] = []
        self._scheduled: list[Scheduled] = []
        for group, buffer in load.mine:
            if group.schedule:
                self._scheduled.append(
                    Scheduled(job, group.schedule, sorted(group.rings[0]), buffer)
                )
                continue
            self._rings.append(
                (
                    buffer,
                    [
                        job.rings.communicator(f"{group.id}/{k}", order)
                        for k, order in enumerate(group.rings)
                    ],
                )
            )

    def transfer(self) -> None:
        dist = self._job.torch.distributed  # one group call, or two ranks may wait for each other
        operations = [
            dist.P2POp(dist.irecv, buffer.tensor, t.source) for _, t, buffer in self._load.received
        ]
        operations += [
            dist.P2POp(dist.isend, buffer.tensor, t.target) for _, t, buffer in self._load.sent
        ]
        for work in dist.batch_isend_irecv(operations) if operations else []:
            work.wait()

    def sum(self) -> None:
        works = []
        for buffer, members in self._rings:
            for member, (begin, end) in zip(
                members, pieces(buffer.tensor.numel(), len(members)), strict=True
            ):
                if end > begin:
                    works.append(member.allreduce([buffer.tensor[begin:end]]))
        for one in self._scheduled:
            one.all_reduce()
        for work in works:
            work.wait()

    def close(self) -> None:
        pass  # communicators live as long as the job

    def lost(self) -> str:
        return ""


def wire_bytes(groups: Sequence[Group]) -> float:
    """Bytes one member of all of `groups` sends for them: 2 (k - 1) / k of each buffer."""
    return sum(
        2 * (len(group.rings[0]) - 1) / len(group.rings[0]) * group.bytes for group in groups
    )


def _mark(transfer: Transfer) -> int:
    """What the bytes of a transfer are, so that those of another show."""
    return (31 * transfer.source + 7 * transfer.target + 3 * transfer.lane) % 250 + 1


if __name__ == "__main__":
    main()
