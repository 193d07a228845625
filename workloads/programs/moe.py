"""A small mixture of experts, one expert a rank:
`python -m workloads.programs.moe --iterations 100 --skew 1.2 --drift 20`.

One layer, trained: attention over a rank's own tokens, a gate that chooses one or two experts for
each, an all-to-all that takes the tokens there and another that brings the answers back, and
backward the same two the other way. Each expert takes as many tokens of a rank as its capacity
allows, the rest go on without one. The gate and the attention are the same on all ranks (their
gradients are averaged over the rings); an expert belongs to its rank.

Tokens are synthetic: each is of one of as many topics as there are experts, around the centre the
gate begins with, so which experts a rank needs is a property of its data. `--skew Z`: its topics
follow Zipf's law with exponent Z in an order of the rank's own (0: all alike). `--drift K`: every K
iterations the rarest topic of a rank becomes its most frequent, and all others move down one place,
so that in as many times K iterations as there are topics each has had every place. No loss balances
the load.

All ranks begin each all-to-all together, so it lasts as long as that of the slowest rank.
`--compute-ms`: attention lasts at least so long, by waiting, as a host's processor would for its
GPU. What each rank is about to send stands in the file `demand` (demand.py) as soon as the gate has
decided; with `--foretell` what it is going to send in the iteration after, on average, so that
circuits can be there in time: nobody else could do better. With `--domain K`, K ranks in a row are
a domain and those at the same place of each a rail: what leaves both goes to the rank of the domain
that is on the receiver's rail, which passes it on while it comes in. Records: comm_ms, its four all-to-alls,
each as the slowest rank saw it; bytes that rank 0 sends in one of them; dropped, the share of
choices without an expert. Environment as in place.py, exit codes as in train.py. Not with NCCL.
"""

from __future__ import annotations

import argparse
import itertools
import random
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..progress.demand import Demand
from ..transport.buffers import Buffer
from .options import conflicts, read

if TYPE_CHECKING:
    from ..transport.loop import Task
    from .program import Job

SEQUENCE = 32
"""Tokens that attend to each other."""
COUNT = 8
"""Bytes in which a rank says how many rows follow."""
NOISE = 0.3
"""Of a token around its topic's centre of unit variance."""


def main() -> None:
    arguments = read("moe", "A small mixture of experts, one expert a rank.")

    from .program import run

    run("workloads.programs.moe", lambda job: moe(job, arguments))


def moe(job: Job, arguments: argparse.Namespace) -> dict[str, Any]:
    """Train until the last iteration or the agreed stop; return what the summary shall say. Raises:
    ValueError - with NCCL.
    """
    from ..progress.records import Clock

    place = job.place
    if job.rings.backend == "nccl":
        raise ValueError(
            "moe: its all-to-all goes over connections of its own; give the job the backend gloo"
        )
    for name, text in conflicts("moe", vars(arguments), False, place.world):
        raise ValueError(f"--{name.replace('_', '-')}: {text}")
    demand = Demand(place.job_dir, place.rank, place.world)
    job.carry_on_rings()
    layer = Layer(job, demand, arguments)
    clock, took_ms, first, last = Clock(), [], None, None
    wanted = range(1, arguments.iterations + 1) if arguments.iterations else itertools.count(1)
    for iteration in wanted:
        job.before(iteration)
        begin_ns = time.monotonic_ns()
        record = layer.step(iteration)
        record = {"iter": iteration, "t_wall_ns": clock.wall_ns(begin_ns)} | record
        job.records.iteration(record)
        took_ms.append(record["comm_ms"])
        first, last = first or record, record
        if job.last(iteration):
            break
    took_ms = sorted(took_ms[1:] or took_ms)  # the first sets connections up
    return {
        "iterations": job.iteration,
        "median_comm_ms": took_ms[len(took_ms) // 2] if took_ms else None,
        "first_loss": first and first["loss"],
        "last_loss": last and last["loss"],
    }


def shares(world: int, rank: int, skew: float, shift: int, seed: int) -> list[float]:
    """The share of a rank's tokens that is of each topic, after so many shifts of its order.

    >>> [round(share, 2) for share in shares(4, 0, 0.0, 0, 1)]
    [0.25, 0.25, 0.25, 0.25]
    """
    order = list(range(world))
    random.Random(f"{seed}/{rank}").shuffle(order)
    weights = [(place + 1) ** -skew for place in range(world)]
    found = [0.0] * world
    for place, topic in enumerate(order):
        found[topic] = weights[(place + shift) % world] / sum(weights)
    return found


def kept(chosen: Sequence[int], world: int, capacity: int) -> list[list[int]]:
    """The places of the choices that each expert takes: the first `capacity` of those that chose it
    (0: all).

    >>> kept([1, 0, 1, 1], 2, 2)
    [[1], [0, 2]]
    """
    found: list[list[int]] = [[] for _ in range(world)]
    for place, expert in enumerate(chosen):
        if not capacity or len(found[expert]) < capacity:
            found[expert].append(place)
    return found


class Exchange:
    """All-to-all of rows of numbers, over a connection for each ordered pair of ranks. took_ns: of
    this rank's, in order.
    """

    def __init__(self, job: Job, width: int, domain: int = 0, most: int = 0) -> None:
        """`width`: numbers in a row. domain: ranks of a domain, 0 for none; most: rows that a rank
        of a domain sends to another at most. Raises: RuntimeError - a peer does not come.
        """
        from ..transport.relay import Relay, Way, ends, relay_of
        from ..transport.wires import Wires

        self._job, self._width, place = job, width, job.place
        self._others = [rank for rank in range(place.world) if rank != place.rank]
        self._ways = {
            (a, b): Way(f"{a} to {b}", a, b, via=relay_of(a, b, domain))
            for a in range(place.world)
            for b in range(place.world)
            if a != b
        }
        out, into = ends(self._ways.values(), place.rank)
        self._wires = Wires(place, job.rings.store, out, into, "experts", stall=job.rings.stall)
        self._slice = self._wires.share(list(into))
        sizes = range(max(COUNT, 4 * width * most) + 1)
        self._relays = [
            Relay(self._wires.into[way.first], self._wires.out[way.last], sizes)
            for way in self._ways.values()
            if way.via == place.rank
        ]
        self._meeting = job.rings.management_group("experts")
        self.took_ns: list[int] = []

    def meet(self, values: Sequence[float] = (0.0,)) -> list[float]:
        """Wait for all ranks; return the largest that any of them gave of each value."""
        torch = self._job.torch
        given = torch.tensor(values, dtype=torch.float64)
        options = torch.distributed.AllreduceOptions()
        options.reduceOp = torch.distributed.ReduceOp.MAX
        self._meeting.allreduce([given], options).wait()
        return [float(value) for value in given]

    def counts(self, mine: Sequence[int]) -> list[int]:
        """How many rows each rank is going to send to this one, who says the same to the others."""
        torch = self._job.torch
        given, got = (
            torch.tensor(mine, dtype=torch.int64),
            torch.zeros(len(mine), dtype=torch.int64),
        )
        got[self._job.place.rank] = given[self._job.place.rank]
        self._carry(given, [1] * len(mine), got, [1] * len(mine))
        return [int(count) for count in got]

    def rows(self, rows: Any, send: Sequence[int], receive: Sequence[int]) -> Any:
        """Send the first `send[0]` rows to rank 0, the next to rank 1 and so on; return what comes,
        in the order of the ranks.
        """
        torch, rank = self._job.torch, self._job.place.rank
        rows = rows.contiguous()
        got = torch.empty(sum(receive), self._width)
        here, existing = sum(send[:rank]), sum(receive[:rank])
        got[existing : existing + receive[rank]] = rows[here : here + send[rank]]
        heartbeat = self._job.heartbeat
        heartbeat.exchange()
        heartbeat.unheard()
        self.meet()
        begin_ns = time.monotonic_ns()
        self._carry(
            rows.view(-1),
            [self._width * count for count in send],
            got.view(-1),
            [self._width * c for c in receive],
        )
        self.took_ns.append(time.monotonic_ns() - begin_ns)
        heartbeat.exchanged()
        return got

    def _carry(self, given: Any, send: Sequence[int], got: Any, receive: Sequence[int]) -> None:
        """Numbers of a flat tensor to the ranks in order, and theirs into another; this rank's own
        stay where they are.
        """
        from ..transport.relay import receiving, sending

        rank = self._job.place.rank
        tasks: list[Task] = [*self._relays]
        sent, room = Buffer.over(given), Buffer.over(got)
        ends, begins = list(itertools.accumulate(send)), list(itertools.accumulate(receive))
        for other in self._others:
            way = self._ways[other, rank]
            if receive[other] or way.via is not None:  # a relay does not know who sends nothing
                part = room.part(begins[other] - receive[other], begins[other])
                tasks.append(receiving(way, self._wires.into, part.memory, self._slice))
        for step in range(1, len(send)):  # each rank begins with another one
            other = (rank + step) % len(send)
            way = self._ways[rank, other]
            if send[other] or way.via is not None:
                part = sent.part(ends[other] - send[other], ends[other])
                tasks.append(sending(way, self._wires.out, part.memory))
        self._wires.carry(tasks)


class Layer:
    """This rank's copy of the layer, its expert, and its data."""

    def __init__(self, job: Job, demand: Demand, arguments: argparse.Namespace) -> None:
        torch, self._job, self._demand, self._given = job.torch, job, demand, arguments
        nn, width, world = torch.nn, arguments.width, job.place.world
        self._exchange = Exchange(job, width, arguments.domain, arguments.tokens * arguments.top)
        drawn = torch.Generator().manual_seed(arguments.seed)
        self._centres = torch.randn(world, width, generator=drawn)
        # what there is to learn: a factor for each topic's numbers
        self._answers = torch.randn(world, width, generator=drawn)
        torch.manual_seed(arguments.seed)
        self._attention, self._joined = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self._gate = nn.Linear(width, world, bias=False)
        with torch.no_grad():
            self._joined.weight.mul_(0.1)
            self._gate.weight.copy_(self._centres / width**0.5)
        torch.manual_seed(arguments.seed + 1 + job.place.rank)
        self._expert = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )
        self._same = [
            p for module in (self._attention, self._joined, self._gate) for p in module.parameters()
        ]
        self._move = _moving(torch)

    def step(self, iteration: int) -> dict[str, Any]:
        """One iteration; its record, without number and time of day."""
        torch, job, given = self._job.torch, self._job, self._given
        begin_ns = time.monotonic_ns()
        self._exchange.took_ns.clear()
        self._demand.attention(iteration)
        x, target = self._batch(iteration)
        mixed = self._attend(x)
        left_s = (
            given.compute_ms * job.place.dilation / 1e3 - (time.monotonic_ns() - begin_ns) / 1e9
        )
        if left_s > 0:
            time.sleep(left_s)
        out, dropped, sent = self._experts(mixed)
        loss = torch.nn.functional.mse_loss(out, target)
        loss.backward()
        self._demand.end()
        self._update()
        took_ns = time.monotonic_ns() - begin_ns
        job.heartbeat.end()
        slowest = self._exchange.meet([float(ns) for ns in self._exchange.took_ns])
        return {
            "iter_ms": round(took_ns / 1e6, 3),
            "comm_ms": round(sum(slowest) / 1e6, 3),
            "bytes": 4 * sent,
            "dropped": round(dropped, 4),
            "loss": round(float(loss.detach()), 6),
        }

    def _batch(self, iteration: int) -> tuple[Any, Any]:
        """Tokens of this rank and what is wanted of them: a function of seed, iteration and
        rank.
        """
        torch, given, place = self._job.torch, self._given, self._job.place
        draw = torch.Generator().manual_seed(
            (given.seed + 2) * 1_000_003 + iteration * place.world + place.rank
        )
        likely = torch.tensor(self._shares(iteration))
        topics = torch.multinomial(likely, given.tokens, replacement=True, generator=draw)
        x = self._centres[topics] + NOISE * torch.randn(given.tokens, given.width, generator=draw)
        return x, x * self._answers[topics]

    def _shares(self, iteration: int) -> list[float]:
        given, place = self._given, self._job.place
        shift = (iteration - 1) // given.drift if given.drift else 0
        return shares(place.world, place.rank, given.skew, shift, given.seed)

    def _attend(self, x: Any) -> Any:
        torch, width = self._job.torch, self._given.width
        query, key, value = self._attention(x).view(-1, SEQUENCE, 3, width).unbind(2)
        return x + self._joined(
            torch.nn.functional.scaled_dot_product_attention(query, key, value).reshape(-1, width)
        )

    def _experts(self, x: Any) -> tuple[Any, float, int]:
        """Tokens with what their experts make of them; the share of choices that found none;
        numbers sent in one exchange.
        """
        torch, given, place = self._job.torch, self._given, self._job.place
        likely = torch.softmax(self._gate(x), dim=-1)
        weights, chosen = likely.topk(given.top, dim=-1)
        choices = chosen.view(-1)
        capacity = -(-int(given.capacity * choices.numel()) // place.world)
        taken = kept(choices.tolist(), place.world, capacity)
        send, size = [len(each) for each in taken], 4 * given.width
        notices = (
            [share * choices.numel() for share in self._shares(self._job.iteration + 1)]
            if given.foretell
            else send
        )
        self._demand.gate(
            [0 if rank == place.rank else int(size * count) for rank, count in enumerate(notices)]
        )
        receive = self._exchange.counts(send)
        order = torch.tensor(list(itertools.chain(*taken)), dtype=torch.int64)
        existing = self._move(x[order // given.top], self._exchange, send, receive)
        answers = self._move(self._expert(existing), self._exchange, receive, send)
        out = x.index_add(0, order // given.top, answers * weights.view(-1)[order].unsqueeze(1))
        return out, 1 - len(order) / choices.numel(), given.width * (sum(send) - send[place.rank])

    def _update(self) -> None:
        """One step of gradient descent, with gradients of what is the same on all ranks
        averaged.
        """
        torch = self._job.torch
        flat = torch.cat([p.grad.view(-1) for p in self._same])
        flat.div_(self._job.place.world)
        self._job.rings.all_reduce(flat)
        with torch.no_grad():
            for p, mean in zip(
                self._same, flat.split([p.numel() for p in self._same]), strict=True
            ):
                p.sub_(self._given.lr * mean.view_as(p))
                p.grad = None
            for p in self._expert.parameters():
                p.sub_(self._given.lr * p.grad)
                p.grad = None


def _moving(torch: Any) -> Any:
    """Rows from rank to rank as torch's autograd sees them: gradients go back the way the rows
    came.
    """
    Function: Any = torch.autograd.Function

    class Move(Function):  # type: ignore[misc]
        @staticmethod
        def forward(
            ctx: Any, rows: Any, exchange: Exchange, send: Sequence[int], receive: Sequence[int]
        ) -> Any:
            ctx.how = exchange, send, receive
            return exchange.rows(rows, send, receive)

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            exchange, send, receive = ctx.how
            return exchange.rows(gradient, receive, send), None, None, None

    return Move.apply


if __name__ == "__main__":
    main()
