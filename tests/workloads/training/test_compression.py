"""Averages for which fewer bytes travel: how many do, that all ranks get the same, and that nothing
left out is lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest
import torch

from tests.workloads.transport.test_wires import Store, place, together
from workloads.collectives.carrier import Carrier, RingSet
from workloads.training.compression import Compression, read_compression
from workloads.training.compressors import Compressor, compressor
from workloads.transport.loop import Stall

WORLD = 3
ORDERS = [[0, 1, 2], [2, 1, 0]]
SHAPES = [(40, 30), (40,), (2, 8, 6), (3,), (64, 50)]
KINDS = ["none", "fp16", "topk:0.02", "powersgd:2"]


class Rings:
    """A rank's rings, as workloads.collectives.rings.Rings has them, for a thread."""

    def __init__(self, store: Store, me: int, orders: Sequence[Sequence[int]], world: int) -> None:
        self._set = RingSet(place(me, world), store, torch, orders, "set")
        self._carrier = Carrier(10.0, Stall(), torch)

    def start(self, flat: Any) -> list[Any]:
        return [self._carrier.sum(self._set, flat)]

    def gather(self, table: Any) -> list[Any]:
        return [self._carrier.gather(self._set, table)]

    @property
    def sent(self) -> int:
        return self._set.sent

    def close(self) -> None:
        self._carrier.close()
        self._set.close()


T = TypeVar("T")


def on_rings(
    work: Callable[[int, Rings], T], orders: Sequence[Sequence[int]] = ORDERS, world: int = WORLD
) -> list[T]:
    """What each rank's `work` returns."""
    store = Store()

    @contextmanager
    def open_rings(me: int) -> Iterator[Rings]:
        rings = Rings(store, me, orders, world)
        try:
            yield rings
        finally:
            rings.close()

    def rank(me: int) -> T:
        with open_rings(me) as rings:
            return work(me, rings)

    return together(world, rank)


def gradients(me: int, step: int) -> list[Any]:
    draw = torch.Generator().manual_seed(100 * step + me)
    return [torch.randn(shape, generator=draw) for shape in SHAPES]


def averaged(by: Compressor, tensors: list[Any]) -> list[Any]:
    """In two parts, as buckets are, the last first."""
    by.begin([3, 4], tensors[3:])
    by.begin([0, 1, 2], tensors[:3])
    by.finish()
    return tensors


def make(kind: str, me: int, rings: Rings) -> Compressor:
    return compressor(
        read_compression(kind), [torch.zeros(shape) for shape in SHAPES], me, WORLD, rings, torch
    )


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_left_out_of_one_average_is_in_the_next_and_all_ranks_get_the_same(
    kind: str,
) -> None:
    steps = 12

    def rank(me: int, rings: Rings) -> tuple[list[list[Any]], list[Any]]:
        by = make(kind, me, rings)
        return [averaged(by, gradients(me, step)) for step in range(steps)], by.residuals

    found = on_rings(rank)
    for other, _ in found[1:]:
        assert all(
            torch.equal(a, b)
            for x, y in zip(found[0][0], other, strict=True)
            for a, b in zip(x, y, strict=True)
        )
    for k in range(len(SHAPES)):
        given = sum(gradients(me, step)[k] for me in range(WORLD) for step in range(steps)) / WORLD
        left = sum(residuals[k] for _, residuals in found if residuals) / WORLD
        came = sum(average[k] for average in found[0][0])
        assert torch.allclose(came + left, given, atol=0.02 if kind == "fp16" else 1e-4), (
            "a sum in half precision is rounded, too"
        )


@pytest.mark.parametrize(
    ("kind", "bytes_sent"),
    [
        ("none", 2 * 2 / 3 * 4 * sum(map(math.prod, SHAPES))),
        ("fp16", 2 * 2 / 3 * 2 * sum(map(math.prod, SHAPES))),
        ("topk:0.02", 2 * 8 * (24 + 1 + 2 + 1 + 64)),
        ("powersgd:2", 2 * 2 / 3 * 4 * (2 * (70 + 50 + 114) + 43)),
    ],
)
def test_a_rank_sends_the_bytes_that_arithmetic_says(kind: str, bytes_sent: float) -> None:
    def rank(me: int, rings: Rings) -> int:
        by = make(kind, me, rings)
        averaged(by, gradients(me, 0))
        before = rings.sent
        averaged(by, gradients(me, 1))
        return rings.sent - before

    for sent in on_rings(rank):
        assert sent == pytest.approx(bytes_sent, rel=0.03)


def test_the_largest_numbers_come_out_alike_over_any_rings() -> None:
    def rank(me: int, rings: Rings) -> list[Any]:
        by = make("topk:0.02", me, rings)
        averaged(by, gradients(me, 0))
        return averaged(by, gradients(me, 1))

    for one, other in zip(on_rings(rank), on_rings(rank, [[2, 0, 1]]), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_a_number_too_large_for_half_precision_arrives_over_several_iterations() -> None:
    def rank(me: int, rings: Rings) -> list[float]:
        by = compressor(Compression("fp16"), [torch.zeros(1)], me, WORLD, rings, torch)
        found = []
        for value in (150_000.0, 0.0, 0.0, 0.0):
            tensor = torch.tensor([value])
            by.begin([0], [tensor])
            by.finish()
            found.append(float(tensor))
        return found

    for found in on_rings(rank):
        assert all(math.isfinite(value) and value < 65504 for value in found)
        assert sum(found) == pytest.approx(150_000, rel=1e-3) and found[0] < 62_000


@pytest.mark.parametrize("width", [1, 2, 5, 97, 50_001])
def test_every_rank_gathers_the_rows_of_all(width: int) -> None:
    def rank(me: int, rings: Rings) -> Any:
        for step in range(2):
            table = torch.full((WORLD, width), -1, dtype=torch.int32)
            table[me] = torch.arange(width) + 1000 * me + step
            (work,) = rings.gather(table)
            work.wait()
        return table

    wanted = torch.stack([torch.arange(width) + 1000 * me + 1 for me in range(WORLD)]).int()
    assert all(
        torch.equal(table, wanted) for table in on_rings(rank, [[0, 1, 2], [2, 1, 0], [1, 0, 2]])
    )


def test_a_compression_is_read_or_refused_with_a_reason() -> None:
    assert read_compression("topk:0.01") == Compression("topk", share=0.01)
    assert read_compression("powersgd:64") == Compression("powersgd", rank=64)
    for text in (
        "",
        "fp8",
        "topk:",
        "topk:0",
        "topk:1.1",
        "topk:nan",
        "topk:-1",
        "topk: 1",
        "powersgd:0",
        "powersgd:65",
        "powersgd:²",
        3,
    ):
        with pytest.raises(ValueError, match=r"^$"):
            read_compression(text)
    for text, reason in (
        ("bf16", "NCCL alone; fp16 sends as few bytes"),
        ("topk", "takes a share"),
        ("powersgd", "takes a rank"),
    ):
        with pytest.raises(ValueError, match=reason):
            read_compression(text)
