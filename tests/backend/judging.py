"""What cases are judged by: values that every rank can compute for all ranks, so that a result
needs no second back-end.

Values are small whole numbers: any order of summation then gives the same bits in every type, and a
wrong element shows.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

MEMBERS = {"world": [0, 1, 2, 3], "pair": [0, 2], "three": [1, 2, 3], "one": [3]}
"""Groups that cases may ask for, by name: global ranks."""
SIZES = (0, 1, 3, 4, 7, 1001)
"""Elements: none, fewer than ranks, as many, and numbers that no group divides."""
STYLES = ("sync", "async")
REDUCE: dict[str, Callable[[Any, Any], Any]] = {
    "SUM": operator.add,
    "PRODUCT": operator.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": operator.and_,
    "BOR": operator.or_,
    "BXOR": operator.xor,
}


@functools.cache
def _group(name: str) -> Any:
    return dist.group.WORLD if name == "world" else dist.new_group(MEMBERS[name])


def group(name: str) -> Any:
    """A group of MEMBERS; all ranks must ask for one at the same point. None: this rank is no
    member.
    """
    found = _group(name)
    return found if dist.get_rank() in MEMBERS[name] else None


@functools.cache
def reference() -> Any:
    """A group of all ranks over gloo; all ranks must ask for it at the same point."""
    return dist.new_group(backend="gloo")


def values(rank: int, size: int, dtype: torch.dtype, salt: int = 0) -> Tensor:
    """What this rank brings: whole numbers from 1 to 3, so that the product of four still fits an
    int8 and a bfloat16.
    """
    numbers = (torch.arange(size) * (rank + 2) + rank * 7 + salt) % 3 + 1
    return (numbers % 2 == 0) if dtype == torch.bool else numbers.to(dtype)


def reduced(op: str, tensors: Sequence[Tensor]) -> Tensor:
    """What reducing these gives."""
    if op == "AVG":
        return functools.reduce(operator.add, tensors) / len(tensors)
    return functools.reduce(REDUCE[op], tensors)


def shaped(tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The same elements in memory laid out in different ways; each result has a buffer of its
    own.
    """
    size = tensor.numel()
    yield "contiguous", tensor.clone()
    wide = torch.zeros(2 * size, dtype=tensor.dtype)
    wide[::2] = tensor
    yield "every second element", wide[::2]
    shifted = torch.zeros(size + 3, dtype=tensor.dtype)
    shifted[3:] = tensor
    yield "behind an offset", shifted[3:]
    if size and size % 7 == 0:
        yield "transposed", tensor.clone().view(7, -1).t().contiguous().t()
    if size == 1:
        yield "without a dimension", tensor.clone().view(())


class Findings:
    """What was found wrong, in words."""

    def __init__(self) -> None:
        self.wrong: list[str] = []

    def same(self, got: Tensor, wanted: Tensor, *what: object) -> None:
        """Note a difference in shape, type or any bit."""
        if got.dtype != wanted.dtype or got.shape != wanted.shape:
            self.wrong.append(
                f"{what}: {got.dtype} {tuple(got.shape)}, wanted {wanted.dtype} {tuple(wanted.shape)}"
            )
        elif not torch.equal(got, wanted):
            self.wrong.append(
                f"{what}: {got.flatten()[:9].tolist()}..., wanted {wanted.flatten()[:9].tolist()}..."
            )

    def true(self, holds: object, *what: object) -> None:
        if not holds:
            self.wrong.append(str(what))

    @contextmanager
    def trying(self, *what: object) -> Iterator[None]:
        """Note an exception and go on."""
        try:
            yield
        except Exception as error:
            self.wrong.append(f"{what}: {type(error).__name__}: {error}"[:600])


def carry_out(style: str, collective: Callable[..., Any], *arguments: Any, **more: Any) -> None:
    """Call a collective in this style and wait for it. Raises: AssertionError - it returned what it
    should not.
    """
    if style == "sync":
        returned = collective(*arguments, **more)
        assert returned is None, f"returned {returned!r} though not asynchronous"
        return
    work = collective(*arguments, async_op=True, **more)
    assert work is not None, "no work handle"
    work.wait()
    assert work.is_completed(), "not completed after wait()"
