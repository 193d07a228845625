"""Losing packets at random, in the kernel: a filter of six instructions.

What is lost is what the kernel hands over at once: a packet, or with segmentation offload up to 64
kB of TCP, so the share of bytes is as asked, in fewer and longer gaps than on a real link.
"""

from __future__ import annotations

from emulators.fabric.bpf import GO_ON, SHOT, assembled, loaded

RANDOM_U32 = 7  # bpf_get_prandom_u32


def instructions(share: float) -> bytes:
    """A program that drops this share (0 to 1) of what passes and leaves the rest to the next
    filter.
    """
    threshold = min(round(share * 2**32), 2**32 - 1)
    return assembled(
        (
            (0x85, 0, 0, RANDOM_U32),  # r0 = a random number
            (0x36, 0, 2, threshold),  # if w0 >= threshold, skip two
            (0xB7, 0, 0, SHOT),
            (0x95, 0, 0, 0),
            (0xB7, 0, 0, GO_ON),
            (0x95, 0, 0, 0),
        )
    )


def program(share: float) -> int:
    """Load the program; return its descriptor, which the caller closes once a filter uses it.

    Raises: OSError - this kernel, or the rights of this process, allow no BPF.
    """
    return loaded(instructions(share), "losing packets")
