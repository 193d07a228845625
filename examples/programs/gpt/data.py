"""Batches of bytes of a text. They depend on the seed and the iteration alone, so a resumed run
sees what it would have seen.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor


class Text:
    """The bytes of a file, cut at random into sequences of `context` bytes and the same moved by
    one.
    """

    def __init__(self, path: Path, context: int, seed: int) -> None:
        self.bytes = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)
        self.context, self.seed = context, seed
        if len(self.bytes) <= context:
            raise ValueError(
                f"{path}: {len(self.bytes)} bytes; a sequence of {context} needs one more than that"
            )

    def batch(self, iteration: int, rank: int, world: int, size: int) -> tuple[Tensor, Tensor]:
        """The inputs and targets (size, context) of one rank in one iteration; the ranks share out
        world x size sequences.
        """
        dice = torch.Generator().manual_seed(self.seed * 1_000_003 + iteration)
        starts = torch.randint(len(self.bytes) - self.context, (world * size,), generator=dice)
        mine = starts[rank * size : (rank + 1) * size, None] + torch.arange(self.context + 1)
        cut = self.bytes[mine].long()
        return cut[:, :-1], cut[:, 1:]
