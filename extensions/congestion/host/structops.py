"""What the compiled BPF programs (bpf/) need: a TCP congestion control is loaded, registered and
taken away.

libbpf, called by ctypes, fits a program to the running kernel. What registers it is a BPF link, a
descriptor of this process: nothing is pinned, so it is gone when this process is.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import time

from agent.basics import Failure, refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

FOLDER = os.path.dirname(os.path.abspath(__file__))
PLACE = b"NAME-PLACE-HOLD"  # of 15 characters, the most that a congestion control's name may have
BPF_NUMBER: Mapping[str, int] = {
    "x86_64": 321,
    "aarch64": 280,
    "riscv64": 280,
    "s390x": 351,
    "ppc64le": 361,
}
MAP_LOOKUP, MAP_UPDATE, LINK_CREATE = 1, 2, 28  # commands of bpf(2)
F_LINK, STRUCT_OPS = 1 << 13, 44  # BPF_F_LINK (Linux 6.4); BPF_STRUCT_OPS, an attach type
NEEDS = "libbpf1, root with CAP_BPF, and Linux 6.4 or newer with CONFIG_DEBUG_INFO_BTF, CONFIG_BPF_SYSCALL and CONFIG_BPF_JIT"
LINES = 20  # of what libbpf and the verifier say, the last


def name_here(prefix: str, index: int | None = None) -> str:
    """A congestion control's name in this network namespace. The kernel has one list of names for
    the whole machine.

    index: of the partition whose agent this is; the agents of a host's partitions are in one
    network namespace.
    """
    prefix = prefix if index is None else prefix[:3] + str(index)
    return "{}_{}".format(prefix, os.stat("/proc/self/ns/net").st_ino)


def unsupported() -> str:
    """What this machine lacks, and how to get it; empty where nothing is known to be missing."""
    if platform.machine() not in BPF_NUMBER:
        return f"the number of bpf(2) on {platform.machine()} is unknown"
    release = os.uname().release
    if tuple(map(int, release.split("-")[0].split(".")[:2])) < (6, 4):
        return f"Linux {release} has no links for struct_ops: boot 6.4 or newer"
    if not os.path.exists("/sys/kernel/btf/vmlinux"):
        return "no /sys/kernel/btf/vmlinux: boot a kernel with CONFIG_DEBUG_INFO_BTF, CONFIG_BPF_SYSCALL and CONFIG_BPF_JIT"
    try:
        ctypes.CDLL("libbpf.so.1")
    except OSError:
        return "no libbpf.so.1: install libbpf1 (Debian, Ubuntu) or libbpf (Fedora)"
    return ""


class Program:
    """A compiled congestion control, registered in the kernel for as long as this object is not
    closed.
    """

    def __init__(self, stem: str, name: str, maps: Sequence[str], purpose: str) -> None:
        """stem: of its file in bpf/, and of its operations' name. maps: whose descriptors are kept
        in `maps`.

        Raises: Failure, with what the kernel or the machine lacks.
        """
        self.name = name
        self.link = -1
        self.maps: dict[str, int] = {}
        self._text: list[str] = []
        path = f"{FOLDER}/bpf/{stem}.bpf.o"
        try:
            with open(path, "rb") as f:
                code = f.read(1 << 20)
        except OSError as e:
            raise Failure("failed", f"{path}: {e.strerror}; provision this host again") from None
        if code.count(PLACE) != 1:
            raise Failure("failed", f"{path}: not as it was compiled; provision this host again")
        if missing := unsupported():
            raise refused(f"{purpose}: {missing}")
        self._load(code.replace(PLACE, name.encode().ljust(len(PLACE), b"\0")), f"{stem}_ops", maps)

    def put(self, into: str, key: int, value: bytes) -> None:
        """Write an entry of a map; the key of one that belongs to sockets is a descriptor of the
        socket. Raises: OSError.
        """
        self._entry(MAP_UPDATE, into, key, ctypes.create_string_buffer(value, len(value)))

    def get(self, of: str, key: int, size: int) -> bytes:
        """An entry of a map, which is of `size` bytes. Raises: OSError - there is none."""
        held = ctypes.create_string_buffer(size)
        self._entry(MAP_LOOKUP, of, key, held)
        return held.raw

    def close(self) -> None:
        """No new connection gets it any more; one that has it keeps it."""
        for fd in (self.link, *self.maps.values()):
            if fd >= 0:
                os.close(fd)
        self.link, self.maps = -1, {}

    def _entry(self, command: int, which: str, key: int, value: Any) -> None:
        held = ctypes.create_string_buffer(struct.pack("=i", key), 4)
        bpf(
            command,
            struct.pack(
                "=IxxxxQQQ", self.maps[which], ctypes.addressof(held), ctypes.addressof(value), 0
            ),
        )

    def _load(self, code: bytes, operations_name: str, maps: Sequence[str]) -> None:
        lib: Any = ctypes.CDLL("libbpf.so.1", use_errno=True)
        for function in (
            "bpf_object__open_mem",
            "bpf_object__find_map_by_name",
            "bpf_map__attach_struct_ops",
        ):
            getattr(lib, function).restype = ctypes.c_void_p
        hear = _HEAR(self._hear)
        lib.libbpf_set_print(hear)
        held = ctypes.create_string_buffer(code, len(code))
        made = lib.bpf_object__open_mem(held, ctypes.c_size_t(len(code)), None)
        try:
            if not made:
                raise self._refusal("the object cannot be read")
            made = ctypes.c_void_p(made)
            operations = ctypes.c_void_p(
                lib.bpf_object__find_map_by_name(made, operations_name.encode())
            )
            lib.bpf_map__set_map_flags(operations, ctypes.c_uint(F_LINK))
            if lib.bpf_object__load(made) < 0:
                raise self._refusal("the kernel does not take the program")
            attached = lib.bpf_map__attach_struct_ops(operations)
            if not attached:
                raise self._refusal("the kernel does not take the congestion control")
            if lib.libbpf_minor_version() >= 2 or lib.libbpf_major_version() > 1:
                # ours: a copy would leave another that nobody closes
                self.link = lib.bpf_link__fd(ctypes.c_void_p(attached))
            else:  # it fills in the map, and knows nothing of links
                made_of = lib.bpf_map__fd(operations)
                self.link = bpf(LINK_CREATE, struct.pack("=IIII", made_of, 0, STRUCT_OPS, 0))
            for name in maps:
                self.maps[name] = os.dup(lib.bpf_object__find_map_fd_by_name(made, name.encode()))
        except OSError as e:
            self.close()
            raise Failure("failed", f"congestion control {self.name}: {e.strerror}") from None
        finally:
            if made:
                lib.bpf_object__close(made)
            lib.libbpf_set_print(None)

    def _hear(self, _: int, form: bytes, values: int) -> int:
        text = ctypes.create_string_buffer(512)
        _LIBC.vsnprintf(text, ctypes.c_size_t(512), form, ctypes.c_void_p(values))
        self._text = [*self._text, *text.value.decode(errors="replace").splitlines()][-LINES:]
        return 0

    def _refusal(self, what: str) -> Failure:
        problem = os.strerror(ctypes.get_errno())
        return Failure(
            "failed",
            "congestion control {}: {}: {}: {}".format(
                self.name, what, problem, "; ".join(self._text[-6:])
            ),
        )


_HEAR = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)


_LIBC = ctypes.CDLL(None, use_errno=True)


def bpf(command: int, attributes: bytes) -> int:
    """bpf(2). Raises: OSError."""
    held = ctypes.create_string_buffer(attributes, 128)
    fd = int(
        _LIBC.syscall(
            ctypes.c_long(BPF_NUMBER[platform.machine()]),
            ctypes.c_int(command),
            held,
            ctypes.c_uint(128),
        )
    )
    if fd < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"bpf(2), command {command}: {os.strerror(number)}")
    return fd


def lease(for_s: float) -> int:
    """Until when a word that is said now counts for the program: ns, CLOCK_MONOTONIC."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC) + int(for_s * 1e9)


def tried(prefix: str, register: Callable[[str], Program]) -> None:
    """Register a program under a name that nobody uses, and take it away again. Raises: Failure,
    refused - what is needed.
    """
    try:
        register(f"{prefix}_try{os.getpid() % 1_000_000}").close()
    except Failure as e:
        raise e if e.code == "refused" else refused(f"{e}: {NEEDS}") from None
