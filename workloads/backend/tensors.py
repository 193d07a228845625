"""A program's tensors as flat numbers that can travel, and the operations that combine them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from ..transport.buffers import Buffer

FUNCTIONS: tuple[tuple[Any, Any], ...] = (
    (dist.ReduceOp.SUM, torch.add),
    (dist.ReduceOp.AVG, torch.add),
    (dist.ReduceOp.PRODUCT, torch.mul),
    (dist.ReduceOp.MIN, torch.minimum),
    (dist.ReduceOp.MAX, torch.maximum),
    (dist.ReduceOp.BAND, torch.bitwise_and),
    (dist.ReduceOp.BOR, torch.bitwise_or),
    (dist.ReduceOp.BXOR, torch.bitwise_xor),
)
"""Each operation with a function of torch that has an `out`. Of bools a sum is "or" and a product
"and".
"""


class Flat:
    """A tensor's numbers in one dimension: its own memory where that is contiguous, else a copy."""

    def __init__(self, tensor: Any, *, fill: bool = True) -> None:
        """fill: whether a copy begins with the tensor's numbers. Raises: ValueError - no numbers in
        the host's memory.
        """
        if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
            raise ValueError(
                f"testbed: carries dense tensors in the host's memory, not {tensor.layout} on {tensor.device}"
            )
        plain = tensor.detach()
        self._plain = torch.view_as_real(plain) if plain.is_complex() else plain
        if self._plain.is_contiguous():
            self.numbers, self._copied = self._plain.view(-1), False
        else:
            self.numbers, self._copied = (
                (
                    self._plain.contiguous()
                    if fill
                    else torch.empty(self._plain.shape, dtype=self._plain.dtype)
                ).view(-1),
                True,
            )
        self.buffer = Buffer.over(self.numbers)

    @property
    def elements(self) -> int:
        return int(self.numbers.numel())

    @property
    def bytes(self) -> int:
        return len(self.buffer.memory)

    def store(self) -> None:
        """Give the tensor what has come in."""
        if self._copied:
            self._plain.copy_(self.numbers.view(self._plain.shape))


def function_of(operation: Any, tensor: Any) -> Any:
    """The function that combines two tensors. Raises: ValueError - there is none for this type."""
    for known, function in FUNCTIONS:
        if operation == known:
            if operation == dist.ReduceOp.AVG and not (
                tensor.is_floating_point() or tensor.is_complex()
            ):
                raise ValueError(
                    f"testbed: AVG of {tensor.dtype}: an average is of floating-point numbers"
                )
            if tensor.is_complex() and operation not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
                raise ValueError(
                    f"testbed: {operation} of {tensor.dtype}: complex numbers can be summed and averaged"
                )
            if (
                function in (torch.bitwise_and, torch.bitwise_or, torch.bitwise_xor)
                and tensor.is_floating_point()
            ):
                raise ValueError(f"testbed: {operation} of {tensor.dtype}: is of whole numbers")
            return function
    raise ValueError(
        f"testbed: {operation}: not one of SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR"
    )


def ending(operation: Any, size: int, flats: Sequence[Flat]) -> Callable[[], None]:
    """What is to be done once the numbers of all ranks are combined in these."""

    def end() -> None:
        for flat in flats:
            if operation == dist.ReduceOp.AVG:
                flat.numbers.div_(size)
            flat.store()

    return end


def one(tensors: Sequence[Any], what: str) -> Any:
    """The only one of these. Raises: ValueError - there are several, as with several devices a
    process.
    """
    if len(tensors) != 1:
        raise ValueError(f"testbed: {what}: {len(tensors)} tensors, where a process has one")
    return tensors[0]


def check(tensors: Mapping[int, Any], wanted: int, what: str) -> None:
    """Raises: ValueError - one of these tensors, by rank, has not as many numbers as it must
    have.
    """
    for rank, tensor in tensors.items():
        if tensor.numel() != wanted:
            raise ValueError(
                f"testbed: {what}: the tensor for rank {rank} has {tensor.numel()} numbers, not {wanted}"
            )
