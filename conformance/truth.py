"""An emulator's true state, which a real device does not disclose: connections, counters, faults.
Read over the lab's control socket, as JSON lines."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Lit = tuple[str, str] | tuple[str, str, int, int]
"""(ingress, egress) of a cross-connect that carries light; of a spectral route with its slot's
edges (MHz).
"""
ANSWER_S = 10.0


class NoTruth(RuntimeError):
    """The lab does not answer or refuses; the message quotes its answer."""


class Truth:
    """The true state of one emulated device of a running lab.

    socket_path: the lab's `control.sock`; without a device only `ask` is useful. Raises: NoTruth
    from every request.
    """

    def __init__(self, socket_path: Path, device: str = "") -> None:
        self.path, self.device = socket_path, device
        self._armed: set[int] = set()

    def ask(self, op: str, **values: object) -> dict[str, Any]:
        """Send the lab one request and return its answer."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.settimeout(ANSWER_S)
            try:
                with _short(self.path) as path:
                    link.connect(path)
                link.sendall(json.dumps({"op": op, **values}).encode() + b"\n")
                received = b""
                while not received.endswith(b"\n") and (piece := link.recv(1 << 20)):
                    received += piece
            except OSError as error:
                raise NoTruth(f"emulated lab at {self.path}: {op}: {error}") from error
        answer: dict[str, Any] = json.loads(received or b'{"ok": false, "error": "no answer"}')
        if not answer.pop("ok"):
            raise NoTruth(f"emulated lab: {op}: {answer.get('error')}")
        return answer

    @property
    def lit(self) -> frozenset[Lit]:
        """The connections that pass light now."""
        return frozenset(
            _lit(row) for row in self.ask("light", device=self.device)["light"][self.device]
        )

    @property
    def writes(self) -> int:
        """How many commands that change the device it has received."""
        return int(self.ask("writes")["writes"][self.device])

    @property
    def violations(self) -> int:
        """How often it received a command to drive a port that carried another connection."""
        return int(self.ask("writes")["violations"][self.device])

    @property
    def sessions(self) -> int:
        """How many sessions it holds open."""
        asked = self.ask("truth", device=self.device, after_s=time.monotonic())  # without history
        return len(asked["sessions"])

    def events(self, after_s: float = 0.0) -> list[tuple[Any, ...]]:
        """The history of its connections from a time on: (time (s, monotonic), "making" | "lit" |
        "broken", ingress, egress, ...).
        """
        asked = self.ask("history", device=self.device, after_s=after_s)
        return [tuple(event) for event in asked["history"]]

    def fault(self, kind: str, **values: object) -> int:
        """Arm a fault; return its number."""
        number = int(self.ask("faults.add", device=self.device, kind=kind, **values)["number"])
        if number:
            self._armed.add(number)
        return number

    def lift(self, number: int) -> None:
        """Disarm a fault."""
        self.ask("faults.remove", device=self.device, number=number)
        self._armed.discard(number)

    @contextmanager
    def wrong(self, kind: str, **values: object) -> Iterator[int]:
        """Arm a fault for the duration of the block; yield its number."""
        number = self.fault(kind, **values)
        try:
            yield number
        finally:
            if number in self._armed:
                self.lift(number)

    def fired(self, number: int) -> int:
        """How often an armed fault took effect."""
        found = self.ask("faults.list", device=self.device)["faults"][self.device]
        return next((int(fault["fired"]) for fault in found if fault["number"] == number), 0)

    def mend(self) -> None:
        """Disarm every fault of this device, whichever client armed it."""
        for fault in self.ask("faults.list", device=self.device)["faults"][self.device]:
            self.lift(int(fault["number"]))

    def light(self, port: str, dbm: float | None) -> None:
        """Set the power that a fibre brings to an ingress port (dBm; None: no light)."""
        self.ask("power", device=self.device, port=port, dbm=dbm)

    def settle(self, seconds: float, boot_s: float | None = None) -> None:
        """Set the device's switching time (s) and, optionally, its boot time (s)."""
        more = {} if boot_s is None else {"boot_s": boot_s}
        self.ask("settle", device=self.device, s=seconds, **more)

    def settle_s(self) -> float:
        """The device's current switching time (s)."""
        return float(self.ask("status")["devices"][self.device]["settle_s"])

    def pieces(self, how: str) -> None:
        """Set how its replies are sent: "whole", "split" at random places, or one "byte" at a
        time.
        """
        self.ask("pieces", device=self.device, **{"as": how})


def _lit(row: list[Any]) -> Lit:
    ingress, egress = str(row[0]), str(row[1])
    return (ingress, egress, int(row[2]), int(row[3])) if len(row) >= 4 else (ingress, egress)


@contextmanager
def _short(path: Path) -> Iterator[str]:
    """A path of the socket that fits: sun_path holds 108 bytes (unix(7))."""
    if len(os.fsencode(path)) < 100:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
