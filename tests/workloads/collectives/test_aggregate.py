"""Sums that a packet switch makes, through the emulated one on loopback, against integers reckoned
apart.
"""

from __future__ import annotations

import errno
import json
import math
import socket
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from tests.workloads.packetswitch import Switch, switch
from tests.workloads.programs.test_train import PAIR, TRAIN
from tests.workloads.ranks import ranks, records
from tests.workloads.test_living import summary
from tests.workloads.transport.test_wires import together
from workloads.collectives.aggregate import Aggregate
from workloads.host.grants import HEADER, Grant
from workloads.programs.options import conflicts
from workloads.programs.program import Job, _about_a_peer


def summed(
    at: Switch, given: list[list[Any]], timeout_s: float = 20.0, slots: int = 8
) -> tuple[list[list[Any]], list[Aggregate]]:
    """What each rank has of its tensors once all were summed, and what it counted."""
    world, grant = len(given), Grant.of(at.grant("aggregate", len(given), slots))
    carriers = [
        Aggregate(grant, "127.0.0.1", rank, world, 7, timeout_s, torch) for rank in range(world)
    ]

    def rank(me: int) -> list[Any]:
        mine = [tensor.clone() for tensor in given[me]]
        try:
            for work in [work for tensor in mine for work in carriers[me].start(tensor)]:
                work.wait()
        finally:
            carriers[me].close()
        return mine

    return together(world, rank), carriers


def reckoned(parts: list[Any]) -> Any:
    """The sum by the page's rule alone: one power of two for all ranks, whole numbers, int32."""
    rows = [part.double().numpy() for part in parts]
    largest = max(float(np.abs(row).max()) for row in rows)
    if not math.isfinite(largest):
        return np.full(rows[0].shape, math.nan, np.float32)
    room = 30 - math.ceil(math.log2(len(rows)))
    by = room - (math.floor(math.log2(largest)) + 1)
    whole = sum(np.rint(row * 2.0**by).astype(np.int64) for row in rows)
    assert np.abs(whole).max() < 2**31
    return (whole.astype(np.int32) * 2.0**-by).astype(np.float32)


def drawn(world: int, *sizes: int, seed: int = 1) -> list[list[Any]]:
    chance = torch.Generator().manual_seed(seed)
    return [
        [torch.randn(size, generator=chance) * 10.0 ** (3 * k - 6) for k, size in enumerate(sizes)]
        for _ in range(world)
    ]


@pytest.mark.parametrize(("world", "percent"), [(2, 0), (3, 1), (2, 10)])
def test_sums_are_the_integers_of_the_page_whatever_is_lost(world: int, percent: int) -> None:
    given = drawn(world, 1, 9001, 257, 20_000)
    with switch() as at:
        at.order(do="loss", share=percent / 100)
        found, carriers = summed(at, given)
        counted = at.counted()
    for k in range(4):
        wanted = reckoned([mine[k] for mine in given]).tobytes()
        assert all(mine[k].numpy().tobytes() == wanted for mine in found)
    assert counted["stale"] == counted["early"] == counted["mismatched"] == 0
    numbers = sum(each.numel() for each in given[0])
    chunks = sum(1 - (-each.numel() // 256) for each in given[0])
    assert counted["sums"] == chunks
    # what was sent again comes on top: ranks of a busy machine begin apart, too
    for carrier in carriers:
        once = 4 * numbers + 4 * 256 + 32 * chunks
        assert once <= carrier.sent <= once + carrier.again * (1024 + 32)


@pytest.mark.parametrize(("late", "most"), [("to begin", 0.01), ("to scale", 0.004)])
def test_ranks_that_begin_apart_send_next_to_nothing_again_where_nothing_is_lost(
    late: str, most: float
) -> None:
    class Late(Aggregate):
        """A rank that is late once, before it says how large its numbers are, or before it sends
        them.
        """

        def _carry(self, whole: Any) -> None:
            if (whole.numel() > 64) is (late == "to scale"):
                time.sleep(0.1 * self._rank)
            super()._carry(whole)

    numbers = 60_000
    with switch() as at:
        grant = Grant.of(at.grant("aggregate", 4, 8))
        carriers = [Late(grant, "127.0.0.1", rank, 4, 7, 20.0, torch) for rank in range(4)]
        together(
            4, lambda me: [carriers[me].start(torch.ones(numbers))[0].wait() for _ in range(2)]
        )
        for carrier in carriers:
            carrier.close()
        chunks = 2 * (1 - (-numbers // 256))
    once = 4 * (2 * (4 * numbers + 256) + 32 * chunks)
    again = sum(carrier.sent for carrier in carriers) - once
    assert 0 <= again <= most * once, f"{again / once:.2%}"


def test_a_switch_that_forgets_and_one_that_loses_all_for_a_while_are_told_apart_by_time() -> None:
    given = drawn(2, 20_000)
    with switch() as at:
        grant = Grant.of(at.grant("aggregate", 2, 8))
        carriers = [Aggregate(grant, "127.0.0.1", rank, 2, 7, 20.0, torch) for rank in range(2)]
        at.order(do="loss", share=1)
        works = [carrier.start(mine[0])[0] for carrier, mine in zip(carriers, given, strict=True)]
        time.sleep(0.3)
        at.order(do="loss", share=0)
        for work in works:
            work.wait()
        for carrier in carriers:
            carrier.close()
    wanted = reckoned([drawn(2, 20_000)[rank][0] for rank in range(2)]).tobytes()
    assert all(mine[0].numpy().tobytes() == wanted for mine in given)
    with switch() as at:
        carrier = Aggregate(Grant.of(at.grant("aggregate", 2, 8)), "127.0.0.1", 0, 2, 7, 0.5, torch)
        at.order(do="restart")
        with pytest.raises(
            RuntimeError, match=r"timed out: .* or the switch no longer has the allocation"
        ):
            carrier.start(torch.ones(3))[0].wait()
        carrier.close()


def test_what_is_no_number_makes_all_no_numbers_and_zeros_stay_zeros() -> None:
    odd = [
        [torch.tensor([1.0, math.inf]), torch.zeros(5), torch.zeros(0)],
        [torch.ones(2), torch.full((5,), 1e-42), torch.zeros(0)],
    ]
    with switch() as at:
        found, _ = summed(at, odd)
    for mine in found:
        assert mine[0].isnan().all() and mine[1].tolist() == [0.0] * 5 and mine[2].numel() == 0


def test_extremes_of_float32_neither_overflow_nor_vanish() -> None:
    most = float(np.finfo(np.float32).max) / 4
    given = [[torch.full((3,), most), torch.full((3,), 2.0**-125)] for _ in range(3)]
    with switch() as at:
        found, _ = summed(at, given)
    for mine in found:
        assert (
            mine[0].tolist() == pytest.approx([3 * most] * 3, rel=1e-7)
            and mine[1].tolist() == [3 * 2.0**-125] * 3
        )


def test_a_rank_that_never_comes_is_given_up_with_what_was_waited_for() -> None:
    with switch() as at:
        carrier = Aggregate(Grant.of(at.grant("aggregate", 2, 8)), "127.0.0.1", 0, 2, 1, 0.5, torch)
        # every later sum fails as well: ranks no longer agree which chunk is next
        for _ in range(2):
            with pytest.raises(
                RuntimeError,
                match=r"timed out: 1 of 1 sums .* had the part of this rank, and waited",
            ):
                carrier.start(torch.ones(3))[0].wait()
        carrier.close()


def test_answers_that_are_not_the_switchs_own_change_nothing() -> None:
    liar = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    liar.bind(("127.0.0.1", 0))
    liar.settimeout(10)
    grant = Grant(3, bytes(range(8)), *liar.getsockname(), "lo", 4, 64)
    carrier = Aggregate(grant, "127.0.0.1", 1, 2, 9, 10.0, torch)
    mine = torch.ones(3)
    work = carrier.start(mine)[0]
    data, at = liar.recvfrom(2000)
    head = list(HEADER.unpack(data[:32]))
    assert len(data) == 96 and head == [0x4654, 1, 1, 3, bytes(range(8)), 1, 64, 9, 0]
    head[2] = 2  # a sum
    for place, value in (
        (0, 1),
        (1, 2),
        (2, 17),
        (3, 4),
        (4, bytes(8)),
        (5, 0),
        (6, 60),
        (7, 8),
        (8, 5),
    ):
        liar.sendto(
            HEADER.pack(*[value if n == place else reported for n, reported in enumerate(head)])
            + b"\xff" * 64,
            at,
        )
    for wrong in (
        b"",
        b"x" * 31,
        HEADER.pack(*head) + b"\xff" * 60,
        HEADER.pack(*head) + b"\xff" * 9000,
    ):
        liar.sendto(wrong, at)
    while True:  # twice the rank's own: as if the other had said the same
        data, at = liar.recvfrom(2000)
        head = list(HEADER.unpack(data[:32]))
        head[2] = 2
        doubled = np.frombuffer(data[32:], "<i4") * 2
        liar.sendto(HEADER.pack(*head) + doubled.tobytes(), at)
        if head[8] == 4:
            break
    work.wait()
    assert mine.tolist() == [2.0] * 3
    carrier.close()
    liar.close()


def test_who_sends_what_is_no_sum_without_a_pause_does_not_keep_a_rank_from_giving_up() -> None:
    class Flooded:
        """A socket with something to read always, and never a sum. It ends a rank that reads on and
        on.
        """

        def __init__(self, link: socket.socket, left: int) -> None:
            self._link, self._left = link, left

        def recvmsg_into(self, _: object) -> tuple[int, list[Any], int, None]:
            self._left -= 1
            assert self._left, "it reads on and on"
            return 40, [], 0, None

        def __getattr__(self, name: str) -> Any:
            return getattr(self._link, name)

    with switch() as at, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        carrier = Aggregate(Grant.of(at.grant("aggregate", 2, 8)), "127.0.0.1", 0, 2, 1, 0.2, torch)
        other.bind(("127.0.0.1", 0))
        other.sendto(b"x", other.getsockname())  # so that poll says it can be read
        carrier._link, own = cast(Any, Flooded(other, 1 << 20)), carrier._link
        other.connect((carrier._grant.address, carrier._grant.port))
        with pytest.raises(RuntimeError, match=r"timed out: 1 of 1 sums"):
            carrier.start(torch.ones(3))[0].wait()
        carrier.close()
        own.close()


@pytest.mark.parametrize("direction", ["sendmsg", "recvmsg_into"])
def test_a_network_that_refuses_is_borne_with_until_the_timeout_and_then_a_lost_peer(
    direction: str,
) -> None:
    class Cut:
        """A socket whose network refuses `left` packets in one direction."""

        def __init__(self, link: socket.socket, left: float) -> None:
            self._link, self._left = link, left

        def __getattr__(self, name: str) -> Any:
            if name == direction and (left := self._left) > 0:
                self._left = left - 1
                if name == "recvmsg_into":
                    self._link.recv(9000)  # which raises where nothing is there
                raise OSError(errno.EHOSTUNREACH, "No route to host")
            return getattr(self._link, name)

    with switch() as at:
        grant = Grant.of(at.grant("aggregate", 1, 8))
        for left in (2, math.inf):
            carrier = Aggregate(
                grant, "127.0.0.1", 0, 1, 1 if left == 2 else 2, 20.0 if left == 2 else 0.3, torch
            )
            carrier._link, own = cast(Any, Cut(carrier._link, left)), carrier._link
            work = carrier.start(torch.ones(3))[0]
            if left == 2:
                work.wait()
            else:
                with pytest.raises(
                    RuntimeError, match=r"timed out: .* \(No route to host\)"
                ) as lost:
                    work.wait()
                assert _about_a_peer(lost.value, torch), "which ends the rank with 75"
            carrier.close()
            own.close()


def test_a_port_that_the_largest_packet_does_not_fit_is_named() -> None:
    with pytest.raises(
        OSError,
        match=r"packet switch 127\.0\.0\.1:9 by lo from 127\.0\.0\.1: packets of 70060 bytes do not fit its MTU, 6553",
    ):
        Grant(1, bytes(8), "127.0.0.1", 9, "lo", 1, 70_000).connect("127.0.0.1")
    with pytest.raises(OSError, match="by away0 from"):
        Grant(1, bytes(8), "127.0.0.1", 9, "away0", 1, 64).connect("127.0.0.1")


def test_what_a_packet_switch_cannot_do_is_refused() -> None:
    for compress, refused in (
        ("fp16", True),
        ("topk:0.1", True),
        ("powersgd:2", False),
        ("none", False),
    ):
        found = [
            name
            for name, _ in conflicts(
                "train", {"exchange": "aggregate", "compress": compress}, nccl=False
            )
        ]
        assert found == (["compress"] if refused else [])
    assert [name for name, _ in conflicts("train", {"exchange": "aggregate"}, nccl=True)] == [
        "exchange"
    ]


def test_a_training_over_a_lossy_switch_has_the_same_weights_at_all_ranks(tmp_path: Path) -> None:
    with switch() as at:
        at.order(do="loss", share=0.02)
        given = json.dumps({"aggregate": at.grant("aggregate", 2, 16)})
        more = {"TESTBED_FUNCTIONS": given, "TESTBED_LANES": json.dumps(["127.0.0.1"])}
        argv = (*TRAIN, "--iterations", "6", "--exchange", "aggregate")
        with ranks(2, *argv, directory=tmp_path, rings=PAIR, more=lambda _: more) as job:
            ended = job.finish()
        counted = at.counted()
    assert [code for code, _, _ in ended] == [0, 0], ended
    reply, lines = summary(tmp_path), records(tmp_path)
    assert reply["weights_identical"] and reply["iterations"] == 6 and len(lines) == 6
    assert counted["sums"] > 6 and all(line["wire_bytes"] >= line["bytes"] for line in lines)


def test_without_a_grant_a_rank_says_what_is_missing() -> None:
    place: Any = SimpleNamespace(functions={}, rings=((0,),))
    job = Job(place, torch, SimpleNamespace(), *(cast(Any, None),) * 3, {})
    with pytest.raises(ValueError, match="TESTBED_FUNCTIONS names no packet switch that adds"):
        job.carry_on_rings("aggregate")
