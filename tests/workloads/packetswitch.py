"""The emulated functions of a packet switch on loopback, for programs that use them. They and the
programs share no code.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from emulators.fabric.functions import SO_RCVBUFFORCE
from emulators.functions.control import Place
from emulators.functions.process import Process

WAIT_S = 20.0
POOL = {
    "aggregate": {"slots": 16, "slot_bytes": 1024, "jobs": 2},
    "cache": {"entries": 64, "entry_bytes": 1024},
}


class Switch:
    """A running switch: `ask` over its control conversation, `order` as the emulator."""

    def __init__(self, functions: Mapping[str, Mapping[str, int]]) -> None:
        data = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        # as the emulated lab does: the buffer of a switch holds what all workers send at once
        with suppress(PermissionError):
            data.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 8 << 20)
        data.bind(("127.0.0.1", 0))
        listener = socket.create_server(("127.0.0.1", 0))
        self.address = "{}:{}".format(*listener.getsockname())
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._orders.settimeout(WAIT_S)
        made = Process(
            functions,
            Place("ideal", *data.getsockname(), "02:0a:fd:00:00:01", "F0001"),
            data,
            listener,
            theirs,
        )
        self._held = [data, listener, theirs]
        self._thread = threading.Thread(target=made.serve, daemon=True)
        self._thread.start()
        self._talk = socket.create_connection(listener.getsockname(), WAIT_S)
        self._file = self._talk.makefile("rwb")

    def order(self, **texts: object) -> dict[str, Any]:
        self._orders.send(json.dumps(texts).encode())
        return dict(json.loads(self._orders.recv(65_536)))

    def ask(self, **request: object) -> dict[str, Any]:
        self._file.write(json.dumps(request).encode() + b"\n")
        self._file.flush()
        return dict(json.loads(self._file.readline()))

    def grant(self, function: str, workers: int, size: int, lease_s: float = 60) -> dict[str, Any]:
        """Allocate for workers at 127.0.0.1; as the launcher writes it for a job."""
        key, each = (
            ("slots", "slot_bytes") if function == "aggregate" else ("entries", "entry_bytes")
        )
        own = ["127.0.0.1"] * workers
        made = self.ask(
            op="allocate", function=function, job="a", workers=own, lease_s=lease_s, **{key: size}
        )
        assert made["ok"], made
        kept = {name: made[name] for name in ("allocation", "token", "address", "port")}
        return {**kept, "device": "lo", "size": made[key], "each_bytes": made[each]}

    def counted(self) -> dict[str, Any]:
        """The counters of the only allocation."""
        return dict(self.ask(op="counters")["allocations"][0])

    def stop(self) -> None:
        self._file.close(), self._talk.close()
        self._orders.close()
        self._thread.join(WAIT_S)
        for each in self._held:
            each.close()


@contextmanager
def switch(functions: Mapping[str, Mapping[str, int]] = POOL) -> Iterator[Switch]:
    made = Switch(functions)
    try:
        yield made
    finally:
        made.stop()
