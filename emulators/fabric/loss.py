"""Losing packets at random, in the kernel: a filter of seven instructions, loaded by bpf(2). No compiler is needed.

What is lost is what the kernel hands over at once: a packet, or with segmentation offload up to 64 kB of TCP, so the share of bytes
is as asked, in fewer and longer gaps than on a real link.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct

SYSTEM_CALL = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "s390x": 351, "ppc64le": 361}
LOAD, SCHED_CLS = 5, 3  # BPF_PROG_LOAD, BPF_PROG_TYPE_SCHED_CLS
RANDOM_U32 = 7  # bpf_get_prandom_u32
SHOT, GO_ON = 2, 0xFFFFFFFF  # TC_ACT_SHOT; TC_ACT_UNSPEC: the next filter decides

_libc = ctypes.CDLL(None, use_errno=True)


def instructions(share: float) -> bytes:
    """A program that drops this share (0 to 1) of what passes and leaves the rest to the next filter."""
    threshold = min(round(share * 2**32), 2**32 - 1)
    steps = (
        (0x85, 0, 0, RANDOM_U32),  # r0 = a random number
        (0x36, 0, 2, threshold),  # if w0 >= threshold, skip two
        (0xB7, 0, 0, SHOT),
        (0x95, 0, 0, 0),
        (0xB7, 0, 0, GO_ON),
        (0x95, 0, 0, 0),
    )
    return b"".join(struct.pack("=BBhI", *step) for step in steps)


def program(share: float) -> int:
    """Load the program; return its descriptor, which the caller closes once a filter uses it.

    Raises: OSError - this kernel, or the rights of this process, allow no BPF.
    """
    code = instructions(share)
    number = SYSTEM_CALL.get(platform.machine())
    if number is None:
        raise OSError(f"losing packets: the number of bpf(2) on {platform.machine()} is unknown")
    held, licence = ctypes.create_string_buffer(code, len(code)), ctypes.create_string_buffer(b"Dual MIT/GPL")
    wanted = struct.pack("=IIQQIIQII", SCHED_CLS, len(code) // 8, ctypes.addressof(held), ctypes.addressof(licence), 0, 0, 0, 0, 0)
    fd = int(_libc.syscall(ctypes.c_long(number), ctypes.c_int(LOAD), ctypes.create_string_buffer(wanted, 128), ctypes.c_uint(128)))
    if fd < 0:
        problem = ctypes.get_errno()
        raise OSError(problem, f"losing packets needs BPF (root, CONFIG_BPF_SYSCALL, cls_bpf): {os.strerror(problem)}")
    os.set_inheritable(fd, False)
    return fd
