"""Sums by datagrams: exact where nothing is lost; else the mean of those that came, the same on all
ranks, and never too few.
"""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.workloads.programs.test_train import TRAIN
from tests.workloads.ranks import ranks, records
from tests.workloads.test_living import ring_changes, summary
from tests.workloads.transport.test_wires import Store, place, together
from workloads.collectives.blocks import BlockRound
from workloads.collectives.spray import DatagramSet
from workloads.programs.options import conflicts
from workloads.transport.buffers import Buffer
from workloads.transport.datagrams import (
    ACK,
    DATA,
    HEADER,
    KEPT,
    NOTHING,
    PING,
    TAIL_S,
    Block,
    Item,
    Lane,
    Receipts,
    full,
    unpacked,
)
from workloads.transport.neighbours import End, Neighbour, Tally

ORDERS = [[0, 1, 2], [2, 1, 0]]


def numbers(me: int, step: int, length: int) -> Any:
    return torch.randint(
        -100, 100, (length,), generator=torch.Generator().manual_seed(100 * step + me)
    ).float()


def summed(
    orders: Sequence[Sequence[int]],
    length: int,
    bound: float = 0.02,
    times: int = 3,
    timeout_s: float = 10.0,
) -> tuple[list[list[Any]], list[Tally]]:
    """The sums that each rank got, and what it counted."""
    store, world, met = Store(), len(orders[0]), threading.Barrier(len(orders[0]))

    def rank(me: int) -> tuple[list[Any], Tally]:
        tally = Tally()
        mine = DatagramSet(place(me, world, timeout_s), store, torch, orders, "set", bound, tally)
        try:
            flats, sums = [numbers(me, step, length) for step in range(times)], []
            for flat, each in [(flat, mine.sum(flat)) for flat in flats]:
                each.wait()
                sums.append(flat.clone())
                flat.fill_(1e9)  # the program goes on
            met.wait()  # the others may still miss something
            return sums, tally
        finally:
            mine.close()

    found = together(world, rank)
    return [sums for sums, _ in found], [tally for _, tally in found]


def loses(monkeypatch: pytest.MonkeyPatch, lost: Callable[[bytes], bool]) -> None:
    honest = DatagramSet._out

    def out(self: DatagramSet, end: End, head: bytes, memory: Any) -> int:
        return len(head) + len(memory) if lost(head) else honest(self, end, head, memory)

    monkeypatch.setattr(DatagramSet, "_out", out)


def test_on_a_lab_that_is_slower_a_lane_is_as_much_more_patient(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slower, sent = 50.0, deque[tuple[float, int]]()

    def lost(head: bytes) -> bool:
        sent.append((time.monotonic(), HEADER.unpack_from(head)[4]))
        return PING not in [kind for _, kind in sent]

    loses(monkeypatch, lost)
    slow = [replace(place(me, 2), dilation=slower) for me in range(2)]
    store, met = Store(), threading.Barrier(2)

    def rank(me: int) -> bool:
        mine = DatagramSet(slow[me], store, torch, [[0, 1]], "set", 0.0, Tally())
        try:
            mine.sum(flat := torch.full((9,), 1.0 + me)).wait()
            met.wait()
            return bool((flat == 3.0).all())
        finally:
            mine.close()

    assert together(2, rank) == [True, True]
    first, asked = sent[0][0], next(at for at, kind in sent if kind == PING)
    assert asked - first >= slower * TAIL_S, "all datagrams were lost until it asked"


@pytest.mark.parametrize("length", [1, 7, 1001, 100_003])
@pytest.mark.parametrize("orders", [[[0, 1]], ORDERS, [[0, 3, 1, 2]]])
def test_sums_are_exact_where_nothing_is_lost(orders: list[list[int]], length: int) -> None:
    sums, tallies = summed(orders, length)
    for step in range(3):
        wanted = torch.stack([numbers(me, step, length) for me in range(len(orders[0]))]).sum(0)
        assert all(torch.equal(mine[step], wanted) for mine in sums)
    assert all(
        (tally.missing, tally.contributions) == (0, 3 * length * len(orders[0]))
        for tally in tallies
    )


@pytest.mark.parametrize("bound", [0.0, 0.02])
def test_ranks_hold_the_same_means_of_what_came_and_never_lose_more_than_the_bound(
    monkeypatch: pytest.MonkeyPatch, bound: float
) -> None:
    draw = random.Random(1)
    loses(monkeypatch, lambda _: draw.random() < 0.05)
    sums, tallies = summed(ORDERS, 400_003, bound, 2)
    for step in range(2):
        parts = torch.stack([numbers(me, step, 400_003) for me in range(3)])
        assert all(torch.equal(mine[step], sums[0][step]) for mine in sums)
        some = [
            parts[list(few)].sum(0) * 3 / len(few)
            for few in ((0, 1, 2), (0, 1), (0, 2), (1, 2), (0,), (1,), (2,))
        ]
        near = torch.stack([(sums[0][step] - each).abs() < 1e-3 for each in some])
        assert near.any(0).all() and (bound or near[0].all())
    assert len({(tally.missing, tally.contributions) for tally in tallies}) == 1, (
        "all know what is missing"
    )
    assert (
        bool(bound) == bool(tallies[0].missing)
        and tallies[0].missing <= bound * tallies[0].contributions
    )
    assert sum(tally.resent for tally in tallies) > 0


def test_after_a_darkness_sums_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    begin_s = time.monotonic()
    loses(monkeypatch, lambda _: 0.02 < time.monotonic() - begin_s < 0.5)
    sums, tallies = summed(ORDERS, 100_003, times=8)
    assert all(torch.equal(mine[step], sums[0][step]) for mine in sums for step in range(8))
    assert tallies[0].missing <= 0.02 * tallies[0].contributions


def test_in_a_slot_without_a_path_nothing_is_sent_and_nothing_is_taken_for_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begin_s, sent_s = time.monotonic(), list[float]()

    def lit(_: End) -> bool:
        return (time.monotonic() - begin_s) % 0.2 > 0.1

    monkeypatch.setattr(End, "open", property(lit))
    loses(monkeypatch, lambda _: bool(sent_s.append(time.monotonic() - begin_s)))  # type: ignore[func-returns-value]
    sums, tallies = summed(ORDERS, 100_003, times=2)
    assert all(
        torch.equal(mine[1], torch.stack([numbers(me, 1, 100_003) for me in range(3)]).sum(0))
        for mine in sums
    )
    assert sent_s and min(sent_s) > 0.1 and tallies[0].missing == 0


def test_strangers_and_garbage_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    honest, draw = DatagramSet._out, random.Random(2)
    stranger = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

    def out(self: DatagramSet, end: End, head: bytes, memory: Any) -> int:
        token, name, number, _, _, *before = HEADER.unpack_from(head)
        wrong = HEADER.pack(token ^ 1, name, number + 7, 1, DATA, *before)
        other = HEADER.pack(
            token, draw.getrandbits(64), number, draw.getrandbits(16), DATA, NOTHING, NOTHING
        )
        never = HEADER.pack(token, 1 << 40, number + 4096, 0, ACK, NOTHING, NOTHING)
        garbage = [
            wrong + bytes(memory),  # who does not know the token
            other + draw.randbytes(draw.randrange(64)),  # a peer gone mad
            never + b"\xff" * (KEPT // 8),
            draw.randbytes(draw.randrange(80)),
        ]
        for each in garbage:
            with suppress(ConnectionRefusedError):  # the peer has ended
                end.socket.send(each)
        stranger.sendto(head + bytes(len(memory)), end.socket.getpeername())
        return honest(self, end, head, memory)

    monkeypatch.setattr(DatagramSet, "_out", out)
    with stranger:
        sums, tallies = summed(ORDERS, 20_011)
    for step in range(3):
        assert all(
            torch.equal(
                mine[step], torch.stack([numbers(me, step, 20_011) for me in range(3)]).sum(0)
            )
            for mine in sums
        )
    assert tallies[0].missing == 0


def test_a_peer_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    store, ready = Store(), threading.Barrier(3)

    def rank(me: int) -> str:
        mine = DatagramSet(place(me, 3), store, torch, [[0, 1, 2]], "set", 0.02, Tally())
        try:
            ready.wait()
            if me == 2:
                return ""
            for _ in range(2):  # also what is begun afterwards
                with pytest.raises(RuntimeError, match=r"connection to rank \d: closed by peer"):
                    mine.sum(numbers(me, 0, 10_000)).wait()
            return mine.lost()
        finally:
            mine.close()

    assert all("closed by peer" in output for output in together(3, rank)[:2])


def test_what_no_peer_answers_ends_with_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    loses(monkeypatch, lambda head: True)
    with pytest.raises(RuntimeError, match=r"timed out: nothing from or to rank|closed by peer"):
        summed([[0, 1]], 10, timeout_s=0.3)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_lost_no_more_than_the_bound_is_missing(seed: int) -> None:
    """Ranks without sockets: a block that is lost is forgone if its receiver may, else it is sent
    again.
    """
    draw = random.Random(seed)
    size, length, bound, share = (
        draw.randint(2, 6),
        draw.randint(1, 4000),
        draw.choice([0, 0.01, 0.1, 0.5]),
        draw.choice([0.1, 0.9]),
    )
    flats = [numbers(me, seed, length) for me in range(size)]
    sent: deque[tuple[int, Block, bytes, int]] = deque()

    def forward(to: int) -> Callable[[Block, memoryview, int], None]:
        return lambda name, memory, count: sent.append((to, name, bytes(memory), count))

    rounds = [
        BlockRound(1, 0, me, size, Buffer.of(flats[me]), 64, bound, torch, forward((me + 1) % size))
        for me in range(size)
    ]
    for each in rounds:
        each.begin()
    while sent:
        to, name, payload, count = entry = sent.popleft()
        assert rounds[to].length(name.hop, name.at) == len(payload)
        if draw.random() < share:
            if not rounds[to].forgo(name.hop, name.at, name.dear):
                share *= 0.99
                sent.append(entry)
        else:
            assert rounds[to].take(
                name.hop, name.at, count, torch.frombuffer(bytearray(payload), dtype=torch.float32)
            )
    assert all(each.done for each in rounds)
    assert all(torch.equal(flat, flats[0]) for flat in flats)
    found = [tuple(map(sum, zip(*each.missing(), strict=True))) for each in rounds]
    assert (
        set(found) == {found[0]}
        and found[0][1] == size * length
        and found[0][0] <= bound * size * length
    )


def test_a_count_that_cannot_be_is_not_taken() -> None:
    each = BlockRound(1, 0, 0, 3, Buffer.of(torch.zeros(30)), 64, 0.1, torch, lambda *_: None)
    assert (
        not each.take(0, 0, 2, torch.zeros(10))
        and not each.take(1, 0, 0, torch.zeros(10))
        and not each.take(3, 0, 4, torch.zeros(10))
    )
    assert each.take(0, 0, 1, torch.zeros(10)) and each.length(4, 0) == each.length(0, 1) == 0


def test_a_gap_is_seen_at_once_and_what_is_not_settled_is_sent_again() -> None:
    lane, other = Lane(7, 1000, 1 << 20), Receipts()
    items = [Item(Block(0, 0, 0, at, False).packed(), b"x" * 900, 1, 0) for at in range(4)]
    heads = [HEADER.unpack(lane.send(item, 1.0)) for item in items]
    assert [unpacked(heads[3][5]).at, unpacked(heads[3][6]).at] == [2, 1], (
        "each names the two before it"
    )
    other.take(heads[0][2], 1.0)
    number = other.take(heads[3][2], 1.0)
    assert (
        other.ack_s == 1.0
        and other.missing(number - 1)
        and other.missing(number - 2)
        and not other.missing(number - 3)
    )
    other.settle(number - 1)  # its receiver goes on without
    _, begun, top, ended, kind, *_ = HEADER.unpack_from(ack := other.acknowledgement(9, 5))
    assert (begun, top, ended, kind) == (5, 4, 2, ACK)
    done, again = lane.acknowledged(top, int.from_bytes(ack[HEADER.size :], "big"), ended, 1.01)
    assert done == [items[0], items[2], items[3]] and again == [items[1]] and lane.in_flight == 0
    with pytest.raises(ValueError, match="never sent"):
        lane.acknowledged(5, 0, 0, 1.02)


def test_numbers_go_on_where_four_bytes_end() -> None:
    other = Receipts()
    other.top = (1 << 32) - 1
    assert (
        other.take(0xFFFFFFFF, 0.0) == (1 << 32) - 1
        and other.take(1, 0.0) == (1 << 32) + 1
        and other.missing(1 << 32)
    )
    assert full(2, (1 << 24) - 1, 1 << 24) == (1 << 24) + 2


def test_nobody_is_sent_more_than_it_keeps_of_sums_that_it_has_not_begun() -> None:
    peer = Neighbour(1, [])
    for number in range(3):
        for at in range(60):
            peer.queue(Item(Block(number, 0, 0, at, False).packed(), bytes(100_000), 1, number))
    ahead = list(iter(peer.next, None))
    assert sum(len(item.memory) for item in ahead) <= 4 << 20 and {item.sum for item in ahead} == {
        2
    }, "the newest first"
    assert peer.waits
    peer.has_begun(1)
    assert {item.sum for item in iter(peer.next, None)} == {0}
    peer.has_begun(3)
    assert len(list(iter(peer.next, None))) == 180 - 60 - len(ahead) and not peer.waits


def test_a_job_trains_over_datagrams_and_turns(tmp_path: Path) -> None:
    changed = json.dumps([{"after": 3, "rings": [[0, 2, 1]]}])
    command = (*TRAIN, "--iterations", "6", "--exchange", "datagrams", "--loss-bound", "0.05")
    with ranks(
        3,
        *command,
        directory=tmp_path,
        rings=ORDERS,
        more=lambda _: {"TESTBED_RING_CHANGES": changed},
    ) as running:
        assert [(code, err) for code, _, err in running.finish()] == [(0, "")] * 3
    assert summary(tmp_path)["weights_identical"] and [
        ring_change["after"] for ring_change in ring_changes(tmp_path)
    ] == [3]
    seen = records(tmp_path)
    assert len(seen) == 6 and all(
        each["lost_share"] == 0 and "resent_bytes" in each for each in seen
    )
    wire, size = (sum(int(str(each[name])) for each in seen) for name in ("wire_bytes", "bytes"))
    assert 1.1 < wire / size < 1.7, (
        "4/3, headers; what is sent after a sum counts for the next, of the last one not"
    )


def test_what_datagrams_lack_is_refused() -> None:
    assert [
        name
        for name, _ in conflicts(
            "train", {"exchange": "datagrams", "compress": "topk:0.1"}, nccl=False
        )
    ] == ["compress"]
    assert [name for name, _ in conflicts("train", {"loss_bound": 0.1}, nccl=False)] == [
        "loss_bound"
    ]
    assert not list(
        conflicts(
            "train", {"exchange": "datagrams", "loss_bound": 0.1, "compress": "fp16"}, nccl=False
        )
    )
    assert [name for name, _ in conflicts("train", {"exchange": "datagrams"}, nccl=True)] == [
        "exchange"
    ]
