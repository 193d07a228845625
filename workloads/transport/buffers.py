"""Numbers that travel."""

from __future__ import annotations

import ctypes
import itertools
from typing import Any

SUMMED = ("torch.float32", "torch.float16")
"""Types of numbers that can be summed on their way."""


def pieces(length: int, parts: int) -> list[tuple[int, int]]:
    """Return the `parts` near-equal contiguous [start, stop) pieces of `length` elements; later
    ones may be empty.
    """
    whole, more = divmod(length, parts)
    starts = [k * whole + min(k, more) for k in range(parts + 1)]
    return list(itertools.pairwise(starts))


class Buffer:
    """Numbers on the rank's device; where that is the host, `memory` are their bytes."""

    def __init__(self, tensor: Any, memory: memoryview) -> None:
        self.tensor, self.memory = tensor, memory

    @classmethod
    def zeros(cls, length: int, kind: str, device: Any, torch: Any) -> Buffer:
        """So many of torch's float32 or uint8."""
        if device.type != "cpu":
            return cls(
                torch.zeros(length, dtype=getattr(torch, kind), device=device), memoryview(b"")
            )
        raw = bytearray(length * (4 if kind == "float32" else 1))
        return cls(torch.frombuffer(raw, dtype=getattr(torch, kind)), memoryview(raw))

    @classmethod
    def of(cls, flat: Any) -> Buffer:
        """The memory of a contiguous tensor of SUMMED numbers on the host, of one dimension. It
        lives as long as the buffer does.

        Raises: ValueError - it is another tensor.
        """
        if str(flat.dtype) not in SUMMED or flat.device.type != "cpu" or not flat.is_contiguous():
            raise ValueError(
                f"sums are of contiguous float32 or float16 on the host, not of {flat.dtype} on {flat.device}"
            )
        return cls.over(flat)

    @classmethod
    def over(cls, flat: Any) -> Buffer:
        """The memory of a contiguous tensor on the host of any type, of one dimension. It lives as
        long as the buffer does.
        """
        size = flat.numel() * flat.element_size()
        return cls(
            flat,
            memoryview((ctypes.c_ubyte * size).from_address(flat.data_ptr()))
            if size
            else memoryview(b""),
        )

    def part(self, begin: int, end: int) -> Buffer:
        """The numbers from `begin` to `end`."""
        unit = self.tensor.element_size()
        return Buffer(self.tensor[begin:end], self.memory[unit * begin : unit * end])
