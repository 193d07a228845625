"""A shadow's weights are the job's bit by bit, or flagged; a state is believed only with the job's
hash.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from extensions.shadow.rank.chunks import iteration
from extensions.shadow.rank.follower import LATE_S, PATIENCE_S, WAITING, Follower, Verdict, digest
from workloads.training.momentum import step
from workloads.transport.buffers import Buffer, pieces
from workloads.transport.tasks import all_reduce_steps

SHAPES = ((7, 5), (5,), (3, 3, 2), (2,))
LAYOUT = {
    "layout": 0,
    "buckets": [
        {"numbers": 20, "parts": [[2, 0], [3, 18]]},
        {"numbers": 40, "parts": [[1, 0], [0, 5]]},
    ],
}
LR = 0.05


def received(bucket: torch.Tensor, position: int, size: int) -> bytes:
    """What a member of a ring receives while this is summed, as tasks.Round does: partial sums,
    here noise, then whole chunks.
    """
    buffer = Buffer.of(bucket)
    chunks = [buffer.part(begin, end) for begin, end in pieces(bucket.numel(), size)]
    _, incoming = all_reduce_steps(chunks, position)
    return b"".join(
        random.randbytes(len(s.memory)) if s.addend is not None else bytes(s.memory)
        for s in incoming
    )


class Job:
    """A job of three ranks on two rings, of which two are tapped: what it sends, and what it says
    of it.
    """

    def __init__(
        self,
        orders: tuple[tuple[int, ...], ...] = ((0, 1, 2), (2, 1, 0)),
        tapped: tuple[int, ...] = (1, 2),
    ) -> None:
        self.verdicts: list[Verdict] = []
        self.asked = 0
        self.follower = Follower(torch, self.ask, self.verdicts.append)
        torch.manual_seed(1)
        self.state = (
            [torch.randn(shape) for shape in SHAPES],
            [torch.zeros(shape) for shape in SHAPES],
        )
        self.iteration, self.now_s, self.tapped = 0, 100.0, tapped
        self.sequences: dict[str, int] = {}
        self.held: list[Any] = []
        self.follower.begin(
            {"lr": LR, "shapes": [list(shape) for shape in SHAPES], "same": {"model": "m"}}
        )
        self.send_state()
        self.follower.layout(LAYOUT)
        self.use("set/0", orders)

    def ask(self) -> None:
        self.asked += 1

    def send_state(self, wrong: bool = False) -> None:
        content = bytearray(
            b"".join(bytes(Buffer.of(t.view(-1)).memory) for part in self.state for t in part)
        )
        content[5] ^= wrong
        self.follower.state(self.iteration, content, self.now_s)

    def use(self, name: str, orders: tuple[tuple[int, ...], ...]) -> None:
        self.name, self.orders = name, orders
        self.follower.rings({"set": name, "orders": [list(order) for order in orders]})
        for key, _ in self.connections():
            if key not in self.sequences:
                self.sequences[key] = random.randrange(1 << 32)
                self.take(key, b"", 2)
                self.take(key, struct.pack("!H", len(key)) + key.encode())

    def connections(self) -> Iterator[tuple[str, tuple[int, int]]]:
        for ring, order in enumerate(self.orders):
            for position, rank in enumerate(order):
                if rank in self.tapped:
                    yield f"{self.name}:{ring}/{order[position - 1]}", (ring, position)

    def take(self, key: str, payload: bytes, flags: int = 16) -> None:
        flow = key.encode()[-12:].rjust(12)
        self.follower.streams.take((flow, self.sequences[key], flags, memoryview(payload)))
        self.sequences[key] = (
            self.sequences[key] + (1 if flags == 2 else len(payload))
        ) & 0xFFFFFFFF

    def iterate(
        self, count: int = 1, *, lose: bool = False, flip: bool = False, lose_at: int | None = None
    ) -> None:
        """Sum, step, and say so. lose: every tap loses the end; lose_at: that of this rank alone;
        flip: a byte arrives changed.
        """
        for _ in range(count):
            self.iteration += 1
            torch.manual_seed(self.iteration)
            buckets = [torch.randn(20), torch.randn(40)]
            for key, (ring, position) in self.connections():
                size = len(self.orders[ring])
                spans = [pieces(bucket.numel(), len(self.orders))[ring] for bucket in buckets]
                content = b"".join(
                    received(b[x:y].clone(), position, size)
                    for b, (x, y) in zip(buckets, spans, strict=True)
                )
                kept = content[:-9] if lose or lose_at == self.orders[ring][position] else content
                if flip:
                    kept = kept[:-3] + bytes([kept[-3] ^ 1]) + kept[-2:]
                self.take(key, kept)
                self.sequences[key] = (self.sequences[key] + len(content) - len(kept)) & 0xFFFFFFFF
            gradients = [
                buckets[1][5:40].view(7, 5),
                buckets[1][:5],
                buckets[0][:18].view(3, 3, 2),
                buckets[0][18:],
            ]
            step(torch, self.state, gradients, LR)
            memory = [Buffer.of(each.view(-1)).memory for part in self.state for each in part]
            reply = {
                "iteration": self.iteration,
                "set": self.name,
                "layout": 0,
                "digest": digest(memory),
            }
            self.held.append(reply)
            self.follower.iterated(reply, self.now_s)

    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.follower.advance(self.now_s)

    def equal(self) -> list[int]:
        return [int(verdict.equal) for verdict in self.verdicts]

    def same(self) -> bool:
        newest = self.follower.newest
        assert newest is not None and newest[1] == self.iteration
        mine = [*newest[2].parameters, *newest[2].momentum]
        return all(
            torch.equal(a, b) for a, b in zip(mine, (*self.state[0], *self.state[1]), strict=True)
        )


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("numbers", [(20, 41), (1,), (3, 0, 1000)])
def test_every_sum_is_where_the_rings_put_it_and_two_ranks_see_all(
    size: int, numbers: tuple[int, ...]
) -> None:
    orders = [list(range(size)), list(range(size))[::-1]]
    content = [torch.randn(count) for count in numbers]
    streams = {}
    for ring, order in enumerate(orders):
        for position in range(size):
            spans = [pieces(bucket.numel(), len(orders))[ring] for bucket in content]
            parts = [
                received(b[x:y].clone(), position, size)
                for b, (x, y) in zip(content, spans, strict=True)
                if x < y
            ]
            streams[f"{ring}/{order[position - 1]}"] = b"".join(parts)
    plan = iteration(numbers, orders, list(streams))
    assert plan.carried == {name: len(each) for name, each in streams.items()}
    for seen in (
        [f"{ring}/{order[at]}" for ring, order in enumerate(orders) for at in (0, -1)],
        list(streams),
    ):
        found = [bytearray(4 * count) for count in numbers]
        for chunk in iteration(numbers, orders, seen).chunks:
            for name, at in chunk.seen:
                found[chunk.bucket][chunk.begin : chunk.begin + chunk.size] = streams[name][
                    at : at + chunk.size
                ]
        assert [bytes(each) for each in found] == [
            bytes(Buffer.of(bucket).memory) for bucket in content
        ]


def test_every_iteration_is_equal_bit_by_bit() -> None:
    job = Job()
    job.iterate(30)
    assert job.equal() == [1] * 30 and job.same() and not job.asked


def test_iterations_over_other_rings_and_over_the_earlier_ones_again_are_followed() -> None:
    job = Job()
    job.iterate(3)
    job.use("set/7", ((1, 0, 2),))
    job.iterate(3)
    job.use("set/0", ((0, 1, 2), (2, 1, 0)))
    job.iterate(3)
    assert job.equal() == [1] * 9 and job.same()


def test_what_one_tap_loses_is_taken_from_the_other_where_that_has_it() -> None:
    job = Job(orders=((0, 1, 2, 3),), tapped=(1, 3))
    job.iterate(2)
    job.iterate(1, lose_at=1)
    job.iterate(2)
    job.wait(0.1)
    assert job.equal() == [1] * 5 and job.same()


def test_a_flipped_byte_is_flagged_never_used_and_repaired() -> None:
    job = Job()
    job.iterate(4)
    job.iterate(1, flip=True)
    assert job.equal() == [1, 1, 1, 1, 0] and job.asked == 1
    newest = job.follower.newest
    assert (
        newest is not None
        and newest[1] == 4
        and digest([newest[2].memory]) == job.held[3]["digest"]
    )
    job.iterate(2)
    assert len(job.verdicts) == 5, "it waits for the state"
    job.send_state()
    job.iterate(2)
    assert [(v.iteration, v.equal, v.fetched) for v in job.verdicts[5:]] == [
        (6, False, False),
        (7, False, True),
        (8, True, False),
        (9, True, False),
    ]
    assert job.same()


def test_a_gap_is_flagged_as_soon_as_what_comes_later_shows_that_it_stays_one() -> None:
    job = Job()
    job.iterate(2)
    job.iterate(1, lose=True)
    job.wait(LATE_S / 2)
    assert len(job.verdicts) == 2
    job.iterate(3)
    job.wait(0.1)
    job.wait(LATE_S + 0.1)
    assert job.equal() == [1, 1, 0] and job.verdicts[-1].missing > 0 and job.asked == 1
    job.send_state()
    job.iterate(1)
    assert job.same() and job.verdicts[-1].equal


def test_a_gap_at_the_end_is_flagged_when_nothing_more_comes() -> None:
    job = Job()
    job.iterate(2)
    job.iterate(1, lose=True)
    job.wait(PATIENCE_S - 0.1)
    assert len(job.verdicts) == 2
    job.follower.end(job.now_s)
    assert job.equal() == [1, 1, 0] and job.follower.checkpoint == 2
    late = Job()
    late.iterate(2)
    late.iterate(1, lose=True)
    late.wait(PATIENCE_S + 0.1)
    assert late.equal() == [1, 1, 0]


def test_a_state_that_is_not_the_jobs_is_not_believed() -> None:
    job = Job()
    job.iterate(2)
    job.iterate(1, flip=True)
    job.iterate(1)
    job.send_state(wrong=True)
    assert (
        job.equal() == [1, 1, 0, 0]
        and not job.verdicts[-1].fetched
        and job.follower.checkpoint == 2
    )
    job.wait(1.5)
    job.iterate(1)
    assert job.asked == 2
    job.send_state()
    assert job.verdicts[-1].fetched and job.same()
    with pytest.raises(ValueError, match="bytes is not one of this job's"):
        job.follower.state(9, b"short", job.now_s)


def test_iterations_without_a_state_are_given_up_in_time_and_states_are_asked_for_ever_less_often() -> (
    None
):
    job = Job()
    job.iterate(1)
    for _ in range(200):
        job.iterate(1, flip=True)
        job.wait(0.5)
    assert len(job.verdicts) == 201 - WAITING and sum(job.equal()) == 1
    assert 4 <= job.asked <= 8
    held = sum(
        len(stream._data) for each in job.follower.streams.named.values() for stream, _ in each
    )
    assert held == job.follower.streams._budget.used < 2000 * (WAITING + 2)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("begin", {"lr": 0.1, "shapes": [[1 << 40]], "same": {}}),
        ("begin", {"lr": 0.1, "shapes": [[1 << 20, 1 << 20]], "same": {}}),
        ("rings", {"set": "s", "orders": [[0, 2]]}),
        ("rings", {"set": "s", "orders": []}),
        ("layout", {"layout": 1, "buckets": [{"numbers": 3, "parts": [[0, 0]]}]}),
        ("layout", {"layout": 1, "buckets": [{"numbers": 20, "parts": [[2, 0], [3, 18]]}]}),
        ("layout", {"layout": 1, "buckets": [{"numbers": -1, "parts": []}]}),
        ("iterated", {"iteration": 1, "set": "set/9", "layout": 0, "digest": ""}),
        ("iterated", {"iteration": 1, "set": "set/0", "layout": 5, "digest": ""}),
    ],
)
def test_a_message_that_no_job_sends_is_refused(what: str, message: dict[str, Any]) -> None:
    job = Job()
    with pytest.raises((ValueError, TypeError, KeyError)):
        getattr(job.follower, what)(message, *([1.0] if what == "iterated" else []))
