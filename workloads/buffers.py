"""Numbers that travel."""

from __future__ import annotations

from typing import Any


class Buffer:
    """Numbers on the rank's device; where that is the host, `memory` are their bytes."""

    def __init__(self, tensor: Any, memory: memoryview) -> None:
        self.tensor, self.memory = tensor, memory

    @classmethod
    def zeros(cls, length: int, kind: str, device: Any, torch: Any) -> Buffer:
        """So many of torch's float32 or uint8."""
        if device.type != "cpu":
            return cls(torch.zeros(length, dtype=getattr(torch, kind), device=device), memoryview(b""))
        raw = bytearray(length * (4 if kind == "float32" else 1))
        return cls(torch.frombuffer(raw, dtype=getattr(torch, kind)), memoryview(raw))

    def part(self, begin: int, end: int) -> Buffer:
        """The numbers from `begin` to `end` of a buffer of float32."""
        return Buffer(self.tensor[begin:end], self.memory[4 * begin : 4 * end])
