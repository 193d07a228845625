"""A TCP congestion control with a window for each of two networks: loaded from bpf/networks.bpf.o, and told which network is there.

The kernel's BPF does the work (bpf/networks.bpf.c); libbpf, called by ctypes, fits it to the running kernel. What registers it is a
BPF link, a descriptor of this process: nothing is pinned, so it is gone when this process is. What the network is, is a lease in a
map: without word for LEASE_S, or after the death of this process, connections that are open use one window as any other does.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import platform
import struct
import sys
import time

from agent.basics import FOLDER, RUN, Failure, bad, read, read_json, refused, write

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from agent.daemon import Server
    from agent.shapes import Json

OBJECT = FOLDER + "/bpf/networks.bpf.o"
PER_NETWORK = "per-network"  # as `congctl` of a `stage` request
PLACE = b"NAME-PLACE-HOLD"  # of 15 characters, the most that a congestion control's name may have
BPF_NUMBER: Mapping[str, int] = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "s390x": 351, "ppc64le": 361}
MAP_UPDATE, LINK_CREATE = 2, 28  # commands of bpf(2)
F_LINK, STRUCT_OPS = 1 << 13, 44  # BPF_F_LINK (Linux 6.4); BPF_STRUCT_OPS, an attach type
LEASE_S = 5.0
STATE = RUN + "/networks.json"
MOST = 250  # generations, as many as there are tables
LINES = 20  # of what libbpf and the verifier say, the last


def name_here() -> str:
    """The congestion control's name in this network namespace. The kernel has one list of names for the whole machine."""
    return "net2_{}".format(os.stat("/proc/self/ns/net").st_ino)


def lacks() -> str:
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


def congestion_control(wanted: str | None) -> str | None:
    """`wanted` as the kernel names it, if it has it, else nothing: a route naming an absent one would be refused."""
    wanted = name_here() if wanted == PER_NETWORK else wanted
    return wanted if wanted in read("/proc/sys/net/ipv4/tcp_available_congestion_control").split() else None


class Registered:
    """The congestion control, registered in the kernel for as long as this object is not closed."""

    def __init__(self, name: str) -> None:
        """Raises: Failure, with what the kernel or the machine lacks."""
        self.name = name
        self.link, self.map = -1, -1
        self._words: list[str] = []
        try:
            with open(OBJECT, "rb") as f:
                code = f.read(1 << 20)
        except OSError as e:
            raise Failure("failed", f"{OBJECT}: {e.strerror}; provision this host again") from None
        if code.count(PLACE) != 1:
            raise Failure("failed", f"{OBJECT}: not as it was compiled; provision this host again")
        if missing := lacks():
            raise refused(f"congestion control for two networks: {missing}")
        self._load(code.replace(PLACE, name.encode().ljust(len(PLACE), b"\0")))

    def say(self, network: int, states: int, for_s: float) -> None:
        """Have connections use the window of `network` (0, 1) for `for_s` seconds from now. states: 1, there is but one window.

        Raises: OSError.
        """
        key = ctypes.create_string_buffer(4)
        value = ctypes.create_string_buffer(
            struct.pack("=IIQ", network, states, time.clock_gettime_ns(time.CLOCK_MONOTONIC) + int(for_s * 1e9)), 16
        )
        _bpf(MAP_UPDATE, struct.pack("=IxxxxQQQ", self.map, ctypes.addressof(key), ctypes.addressof(value), 0))

    def close(self) -> None:
        """No new connection gets it any more; one that has it keeps it, with one window."""
        for fd in (self.link, self.map):
            if fd >= 0:
                os.close(fd)
        self.link = self.map = -1

    def _load(self, code: bytes) -> None:
        lib: Any = ctypes.CDLL("libbpf.so.1", use_errno=True)
        for function in ("bpf_object__open_mem", "bpf_object__find_map_by_name", "bpf_map__attach_struct_ops"):
            getattr(lib, function).restype = ctypes.c_void_p
        hear = _HEAR(self._hear)
        lib.libbpf_set_print(hear)
        held = ctypes.create_string_buffer(code, len(code))
        made = lib.bpf_object__open_mem(held, ctypes.c_size_t(len(code)), None)
        try:
            if not made:
                raise self._refusal("the object cannot be read")
            made = ctypes.c_void_p(made)
            operations = ctypes.c_void_p(lib.bpf_object__find_map_by_name(made, b"networks_ops"))
            lib.bpf_map__set_map_flags(operations, ctypes.c_uint(F_LINK))
            if lib.bpf_object__load(made) < 0:
                raise self._refusal("the kernel does not take the program")
            attached = lib.bpf_map__attach_struct_ops(operations)
            if not attached:
                raise self._refusal("the kernel does not take the congestion control")
            if lib.libbpf_minor_version() >= 2 or lib.libbpf_major_version() > 1:
                self.link = lib.bpf_link__fd(ctypes.c_void_p(attached))  # ours: a copy would leave another that nobody closes
            else:  # it fills in the map, and knows nothing of links
                made_of = lib.bpf_map__fd(operations)
                self.link = _bpf(LINK_CREATE, struct.pack("=IIII", made_of, 0, STRUCT_OPS, 0))
            self.map = os.dup(lib.bpf_object__find_map_fd_by_name(made, b"networks"))
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
        self._words = [*self._words, *text.value.decode(errors="replace").splitlines()][-LINES:]
        return 0

    def _refusal(self, what: str) -> Failure:
        problem = os.strerror(ctypes.get_errno())
        return Failure("failed", "congestion control {}: {}: {}: {}".format(self.name, what, problem, "; ".join(self._words[-6:])))


def tried() -> Json:
    """Register it under a name that nobody uses, and take it away again. Raises: Failure, with what is missing."""
    made = Registered(f"net2_try{os.getpid() % 1_000_000}")
    made.close()
    return {"congctl": made.name}


class Networks:
    """Which network each generation stands for, as `networks.load` said; network 0 for every other, a hold as well."""

    def __init__(self, server: Server) -> None:
        self.generations, self.timer, self.cancel = server.generations, server.timer, server.cancelled.add
        self.of: dict[int, int] = {}
        self.states = 2
        self.registered: Registered | None = None
        self.handle: int | None = None
        kept = read_json(STATE)
        if kept:
            try:
                self.load(kept)
            except Exception as e:  # what was kept may be of another version: the daemon starts all the same
                sys.stderr.write(f"agent: networks are not loaded again: {e}\n")

    def load(self, request: Json) -> Json:
        """Register the congestion control, and from now on tell it the network at every commit."""
        of, states = request.get("networks"), request.get("states", 2)
        if not isinstance(of, dict) or len(of) > MOST or not all(str(g).isdecimal() and n in (0, 1) for g, n in of.items()):
            raise bad(f"networks: 0 or 1 by generation is needed, for {MOST} of them at most, got {of!r:.200}")
        if states not in (1, 2):
            raise bad(f"states: 1 or 2 is needed, got {states!r:.200}")
        if self.registered is None:
            self.registered = Registered(name_here())
        self.of, self.states = {int(g): int(n) for g, n in of.items()}, int(states)
        write(STATE, json.dumps({"networks": of, "states": states}))
        self.follow()
        return self.status()

    def follow(self) -> None:
        """Say which network the active generation stands for. Called at every commit and every return."""
        if self.registered is None:
            return
        if self.handle is not None:
            self.cancel(self.handle)
        self.handle = self.timer(time.monotonic_ns() + int(LEASE_S / 2 * 1e9), self.renew)
        self.registered.say(self.now(), self.states, LEASE_S)

    def renew(self) -> None:
        self.handle = None
        self.follow()

    def now(self) -> int:
        return self.of.get(self.generations.active, 0) if self.generations.active is not None else 0

    def drop(self) -> Json:
        """Take the congestion control away: routes that name it give the host's own to new connections."""
        if self.registered is not None:
            self.registered.close()
        self.registered, self.of = None, {}
        with contextlib.suppress(FileNotFoundError):
            os.unlink(STATE)
        return self.status()

    def status(self) -> Json:
        here = self.registered
        return {
            "congctl": here.name if here else None,
            "network": self.now() if here else None,
            "states": self.states if here else None,
            "generations": len(self.of),
        }


_HEAR = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)


_LIBC = ctypes.CDLL(None, use_errno=True)


def _bpf(command: int, attributes: bytes) -> int:
    held = ctypes.create_string_buffer(attributes, 128)
    fd = int(_LIBC.syscall(ctypes.c_long(BPF_NUMBER[platform.machine()]), ctypes.c_int(command), held, ctypes.c_uint(128)))
    if fd < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"bpf(2), command {command}: {os.strerror(number)}")
    return fd
