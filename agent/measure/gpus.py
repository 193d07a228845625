"""GPU counters by NVML, read in a process of its own: a driver that hangs must not hang the agent.
A PCIe reading takes 20 ms.

`agent/__main__.py gpus SECONDS` prints one JSON line per look; it ends at once, and quietly, where
there is no NVML or no GPU.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time

from agent.basics import PROGRAM, bad, number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol, TypeVar

    from agent.shapes import Daemon, Json

    V = TypeVar("V", bound="ctypes._CData")

    class Client(Protocol):
        """Who is sent what the GPUs do."""

        gpus: Gpus | None

        def send(self, message: Json) -> None: ...


LIBRARY = "libnvidia-ml.so.1"
# nvml.h: identifiers of fields; KiB over all links of a GPU, counted since the driver was loaded
NVLINK_DATA_TX, NVLINK_DATA_RX, ALL_LINKS = 138, 139, 0xFFFFFFFF
PCIE_TX, PCIE_RX = 0, 1
LEAST_S = 0.1


class Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class Memory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class FieldValue(ctypes.Structure):
    _fields_ = (
        ("field", ctypes.c_uint),
        ("scope", ctypes.c_uint),
        ("timestamp", ctypes.c_longlong),
        ("latency_us", ctypes.c_longlong),
        ("kind", ctypes.c_int),
        ("result", ctypes.c_int),
        ("value", ctypes.c_ulonglong),
    )


class Nvml:
    """The few calls of NVML that are needed. Raises: OSError - it is not there, or finds no GPU."""

    def __init__(self) -> None:
        self.lib = ctypes.CDLL(LIBRARY)
        count = ctypes.c_uint()
        if (
            self.lib.nvmlInit_v2()
            or self.lib.nvmlDeviceGetCount_v2(ctypes.byref(count))
            or not count.value
        ):
            raise OSError("NVML finds no GPU")
        self.gpus: list[tuple[int, ctypes.c_void_p]] = []
        for index in range(count.value):
            handle = ctypes.c_void_p()
            if not self.lib.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)):
                self.gpus.append((index, handle))

    def ask(self, name: str, handle: ctypes.c_void_p, kind: type[V], *arguments: int) -> V | None:
        """One reading of type `kind`, or None where this GPU does not give it."""
        value = kind()
        return None if getattr(self.lib, name)(handle, *arguments, ctypes.byref(value)) else value

    def look(self) -> list[Json]:
        """Every GPU's readings; what one does not give is left out."""
        return [self.of(index, handle) for index, handle in self.gpus]

    def of(self, index: int, handle: ctypes.c_void_p) -> Json:
        found: Json = {"gpu": index}
        busy, power = (
            self.ask("nvmlDeviceGetUtilizationRates", handle, Utilization),
            self.ask("nvmlDeviceGetPowerUsage", handle, ctypes.c_uint),
        )
        memory = self.ask("nvmlDeviceGetMemoryInfo", handle, Memory)
        sent, received = (
            self.ask("nvmlDeviceGetPcieThroughput", handle, ctypes.c_uint, path)
            for path in (PCIE_TX, PCIE_RX)
        )
        if busy is not None:
            found["util"] = busy.gpu
        if power is not None:
            found["power_w"] = power.value / 1e3
        if memory is not None:
            found["mem_bytes"] = memory.used
        if sent is not None and received is not None:
            found["pcie_bytes_per_s"] = (sent.value + received.value) * 1000
        fields = (FieldValue * 2)(
            FieldValue(NVLINK_DATA_TX, ALL_LINKS), FieldValue(NVLINK_DATA_RX, ALL_LINKS)
        )
        if not self.lib.nvmlDeviceGetFieldValues(handle, 2, fields) and not any(
            f.result for f in fields
        ):
            found["nvlink_tx_bytes"], found["nvlink_rx_bytes"] = (f.value * 1024 for f in fields)
        return found


def watch(seconds: float) -> int:
    """Print a line per look until the reader is gone."""
    try:
        nvml = Nvml()
    except (OSError, AttributeError):
        return 0
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    due = time.monotonic()
    while True:
        line = {"t_ns": time.monotonic_ns(), "gpus": nvml.look()}
        sys.stdout.write(json.dumps(line, separators=(",", ":")) + "\n")
        sys.stdout.flush()
        due = max(due + seconds, time.monotonic())
        time.sleep(due - time.monotonic())


class Gpus:
    """The process that reads the GPUs for one client; its lines become `gpus` events."""

    def __init__(self, server: Daemon, client: Client, interval_s: float) -> None:
        self.server, self.client, self.rest = server, client, b""
        self.fd, write_end = os.pipe()
        argv = [sys.executable, "-S", "-E", PROGRAM, "gpus", str(interval_s)]
        self.child: subprocess.Popen[bytes] | None = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=write_end, stderr=subprocess.DEVNULL
        )
        os.close(write_end)
        os.set_blocking(self.fd, False)
        server.register(self.fd, self.readable)

    def readable(self, _: int) -> None:
        try:
            data = os.read(self.fd, 1 << 16)
        except BlockingIOError:
            return
        if not data:
            self.stop()
            return
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            self.client.send(dict(json.loads(line), event="gpus"))

    def stop(self) -> None:
        if self.child is None:
            return
        self.server.unregister(self.fd)
        os.close(self.fd)
        self.child.kill()
        self.child.wait()
        self.child = None


def gpus(server: Daemon, request: Json, client: Client) -> Json:
    """With `interval_s` (s, >= 0.1) look at this host's GPUs from now on; null or 0 ends it. A host
    without GPUs stays silent.
    """
    interval_s = number(request, "interval_s", None) or 0
    if 0 < interval_s < LEAST_S:
        raise bad(f"interval_s: at least {LEAST_S} seconds are needed, got {interval_s!r}")
    if client.gpus is not None:
        client.gpus.stop()
    client.gpus = Gpus(server, client, interval_s) if interval_s else None
    return {"watching": bool(interval_s)}
