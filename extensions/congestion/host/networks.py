"""A TCP congestion control with a window for each of two networks: loaded from bpf/networks.bpf.o,
and notified which network is there.

The kernel's BPF does the work (bpf/networks.bpf.c). What the network is, is a lease in a map:
without word for LEASE_S, or after the death of this process, connections that are open use one
window as any other does.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import sys
import time

from agent.basics import RUN, bad, read_json, write
from agent.mechanism import Mechanism
from extensions.congestion.host.structops import Program, lease, name_here, tried

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import ClassVar

    from agent.shapes import Daemon, Json, Operations

PER_NETWORK = "per-network"  # as `congctl` of a `stage` request
LEASE_S = 5.0
STATE = RUN + "/networks.json"
MOST = 250  # generations, as many as there are tables


class Registered(Program):
    """The congestion control, registered in the kernel for as long as this object is not closed."""

    def __init__(self, name: str) -> None:
        """Raises: Failure, with what the kernel or the machine lacks."""
        super().__init__("networks", name, ("networks",), "congestion control for two networks")

    def emit(self, network: int, states: int, for_s: float) -> None:
        """Have connections use the window of `network` (0, 1) for `for_s` seconds from now. states:
        1, there is but one window.

        Raises: OSError.
        """
        self.put("networks", 0, struct.pack("=IIQ", network, states, lease(for_s)))


class Networks(Mechanism):
    """Which network each generation stands for, as `networks.load` said; network 0 for every other,
    a hold as well.
    """

    OPERATIONS: ClassVar[Operations] = {
        "networks": lambda self, *_: self.status(),
        "networks.load": lambda self, request, _: self.load(request),
        "networks.drop": lambda self, *_: self.drop(),
    }
    FENCED = frozenset(("networks.load", "networks.drop"))
    TRIES = (
        (
            "congestion control per network (struct_ops)",
            "everything but schedules that ask for it",
            lambda: tried("net2", Registered),
        ),
    )

    def __init__(self, server: Daemon) -> None:
        super().__init__(server)
        self.generations, self.timer, self.cancel = (
            server.generations,
            server.timer,
            server.cancelled.add,
        )
        self.controls = {PER_NETWORK: name_here("net2")}
        self.of: dict[int, int] = {}
        self.states = 2
        self.registered: Registered | None = None
        self.handle: int | None = None
        kept = read_json(STATE)
        if kept:
            try:
                self.load(kept)
            # what was kept may be of another version: the daemon starts all the same
            except Exception as e:
                sys.stderr.write(f"agent: networks are not loaded again: {e}\n")

    def load(self, request: Json) -> Json:
        """Register the congestion control, and from now on tell it the network at every commit."""
        of, states = request.get("networks"), request.get("states", 2)
        if (
            not isinstance(of, dict)
            or len(of) > MOST
            or not all(str(g).isdecimal() and n in (0, 1) for g, n in of.items())
        ):
            raise bad(
                f"networks: 0 or 1 by generation is needed, for {MOST} of them at most, got {of!r:.200}"
            )
        if states not in (1, 2):
            raise bad(f"states: 1 or 2 is needed, got {states!r:.200}")
        if self.registered is None:
            self.registered = Registered(self.controls[PER_NETWORK])
        self.of, self.states = {int(g): int(n) for g, n in of.items()}, int(states)
        write(STATE, json.dumps({"networks": of, "states": states}))
        self.follow()
        return self.status()

    def follow(self) -> None:
        """Say which network the active generation stands for. Called at every commit and every
        return.
        """
        if self.registered is None:
            return
        if self.handle is not None:
            self.cancel(self.handle)
        self.handle = self.timer(time.monotonic_ns() + int(LEASE_S / 2 * 1e9), self.renew)
        self.registered.emit(self.now(), self.states, LEASE_S)

    def renew(self) -> None:
        self.handle = None
        self.follow()

    def now(self) -> int:
        return self.of.get(self.generations.active, 0) if self.generations.active is not None else 0

    def drop(self) -> Json:
        """Take the congestion control away: routes that name it give the host's own to new
        connections.
        """
        if self.registered is not None:
            self.registered.close()
        self.registered, self.of = None, {}
        with contextlib.suppress(FileNotFoundError):
            os.unlink(STATE)
        return self.status()

    def clear(self) -> None:
        self.drop()

    def status(self) -> Json:
        here = self.registered
        return {
            "congctl": here.name if here else None,
            "network": self.now() if here else None,
            "states": self.states if here else None,
            "generations": len(self.of),
        }
