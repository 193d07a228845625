"""Loads small BPF programs by bpf(2). No compiler is needed: the instructions are assembled
here.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Iterable

Step = tuple[int, int, int, int]
"""Operation, registers (target + 16 x source), jump, constant."""

SYSTEM_CALL = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "s390x": 351, "ppc64le": 361}
LOAD, SCHED_CLS, XDP = 5, 3, 6  # BPF_PROG_LOAD, BPF_PROG_TYPE_SCHED_CLS, BPF_PROG_TYPE_XDP
SHOT, GO_ON = 2, 0xFFFFFFFF  # TC_ACT_SHOT; TC_ACT_UNSPEC: the next filter decides

_libc = ctypes.CDLL(None, use_errno=True)


def assembled(steps: Iterable[Step]) -> bytes:
    """Return the instructions as the kernel reads them."""
    return b"".join(
        struct.pack("=BBhI", operation, registers, jump, number & 0xFFFFFFFF)
        for operation, registers, jump, number in steps
    )


def wide(register: int, number: int) -> tuple[Step, Step]:
    """The two instructions that put a number of 64 bits (two's complement) into a register."""
    number &= (1 << 64) - 1
    return (0x18, register, 0, number & 0xFFFFFFFF), (0, 0, 0, number >> 32)


def loaded(code: bytes, purpose: str, kind: int = SCHED_CLS) -> int:
    """Load a classifier, or a program of another kind; return its descriptor, which the caller
    closes once it is attached.

    Raises: OSError - this kernel, or the rights of this process, allow no BPF; `purpose` is named.
    """
    number = SYSTEM_CALL.get(platform.machine())
    if number is None:
        raise OSError(f"{purpose}: the number of bpf(2) on {platform.machine()} is unknown")
    held, licence = (
        ctypes.create_string_buffer(code, len(code)),
        ctypes.create_string_buffer(b"Dual MIT/GPL"),
    )
    wanted = struct.pack(
        "=IIQQIIQII",
        kind,
        len(code) // 8,
        ctypes.addressof(held),
        ctypes.addressof(licence),
        0,
        0,
        0,
        0,
        0,
    )
    fd = int(
        _libc.syscall(
            ctypes.c_long(number),
            ctypes.c_int(LOAD),
            ctypes.create_string_buffer(wanted, 128),
            ctypes.c_uint(128),
        )
    )
    if fd < 0:
        problem = ctypes.get_errno()
        raise OSError(
            problem,
            f"{purpose} needs BPF (root, CONFIG_BPF_SYSCALL, cls_bpf): {os.strerror(problem)}",
        )
    os.set_inheritable(fd, False)
    return fd
