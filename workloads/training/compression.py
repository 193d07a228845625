"""What `compress` may be: how few numbers of a gradient travel, as a plan and a command line have
it. Nothing here needs torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

LARGEST_RANK = 64
WANTED = f"none, fp16, topk:SHARE (above 0, up to 1) or powersgd:RANK (1 to {LARGEST_RANK})"
REFUSED = {
    "bf16": "torch's hook for it is for NCCL alone; fp16 sends as few bytes, and what it rounds away is made good",
    "topk": "it takes a share, as topk:0.01",
    "powersgd": "it takes a rank, as powersgd:2",
}
"""Why some words that one might try are none of these."""


@dataclass(frozen=True, slots=True)
class Compression:
    """share: of `topk`, how many of the numbers of each parameter travel. rank: of `powersgd`, that
    of the two factors.
    """

    kind: Literal["none", "fp16", "topk", "powersgd"]
    share: float = 0.0
    rank: int = 0


def read_compression(text: object) -> Compression:
    """The compression that a text names. Raises: ValueError - it names none, and why."""
    kind, _, number = text.partition(":") if isinstance(text, str) else ("", "", "")
    if text in ("none", "fp16"):
        return Compression("none" if text == "none" else "fp16")
    if kind == "topk" and number[:1].isdigit():
        try:
            share = float(number)
        except ValueError:
            share = 0.0
        if 0 < share <= 1:
            return Compression("topk", share=share)
    if (
        kind == "powersgd"
        and len(number) <= 2
        and number.isdecimal()
        and number.isascii()
        and 1 <= int(number) <= LARGEST_RANK
    ):
        return Compression("powersgd", rank=int(number))
    raise ValueError(REFUSED.get(str(text), ""))
