"""A worker's side of the functions' packets, written from the page alone, and a network that loses,
repeats and reorders.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulators.functions.switch import Peer, Switch

ADD, SUM, WAIT, GET, HIT, MISS, PUT, STORED = 1, 2, 3, 16, 17, 18, 19, 20
Fields = NDArray[np.int32]


def packet(
    made: dict[str, Any],
    worker: int,
    kind: int,
    number: int,
    payload: bytes = b"",
    epoch: int = 0,
    **other: int,
) -> bytes:
    """A packet of a worker; other: magic, version, length or allocation as they should not be."""
    reply = {
        "magic": 0x4654,
        "version": 1,
        "length": len(payload),
        "allocation": made["allocation"],
        **other,
    }
    head = struct.pack(
        "<HBBI", reply["magic"], reply["version"], kind, reply["allocation"]
    ) + bytes.fromhex(made["token"])
    return head + struct.pack("<HHIQ", worker, reply["length"], epoch, number) + payload


def read(data: bytes) -> tuple[int, int, int, bytes]:
    """Type, worker, number and payload of an answer."""
    worker, length, _, number = struct.unpack_from("<HHIQ", data, 16)
    assert data[:2] == b"TF" and data[2] == 1 and len(data) == 32 + length
    return data[3], worker, number, data[32:]


class Wire:
    """A switch with what it sent kept, and workers at 10.0.0.1, 10.0.0.2 and on."""

    def __init__(self, **functions: dict[str, int]) -> None:
        self.sent: list[tuple[bytes, Peer]] = []
        self.now = 100.0
        self.switch = Switch(functions, self._send)

    def _send(self, data: memoryview, peer: Peer) -> bool:
        self.sent.append((bytes(data), peer))
        return True

    def allocate(
        self,
        workers: int,
        size: int,
        job: str = "a",
        function: str = "aggregate",
        lease_s: float = 60,
    ) -> dict[str, Any]:
        at = tuple(f"10.0.0.{n + 1}" for n in range(workers))
        made = self.switch.allocate(function, job, at, size, lease_s, self.now)
        return {"allocation": made.number, "token": made.token.hex()}

    def give(self, data: bytes, worker: int, port: int = 5000) -> list[tuple[int, int, int, bytes]]:
        """Have a packet arrive from a worker's address; return what is sent for it."""
        before = len(self.sent)
        self.switch.receive(memoryview(data), (f"10.0.0.{worker + 1}", port))
        return [read(each) for each, _ in self.sent[before:]]

    def counted(self, number: int = 1) -> dict[str, Any]:
        return next(
            dict(each) for each in self.switch.counters(self.now) if each["allocation"] == number
        )


def vectors(chance: random.Random, workers: int, chunks: int, words: int) -> Fields:
    """Every worker's parts, near the limits of int32: [worker, chunk, word]."""
    raw = np.frombuffer(chance.randbytes(workers * chunks * words * 4), "<i4")
    return raw.reshape(workers, chunks, words)


def exact(parts: Fields) -> Fields:
    """The sums over the workers modulo 2^32, reckoned in Python's own integers."""
    flat = parts.reshape(len(parts), -1)
    sums = [(sum(int(v) for v in column) + 2**31) % 2**32 - 2**31 for column in flat.T]
    return np.array(sums, "<i4").reshape(parts.shape[1:])


class Worker:
    """Keeps at most `slots` chunks under way, and sends again what has no sum."""

    def __init__(
        self, made: dict[str, Any], number: int, parts: Fields, slots: int, epoch: int
    ) -> None:
        self.made, self.number, self.parts, self.slots, self.epoch = (
            made,
            number,
            parts,
            slots,
            epoch,
        )
        self.sums: dict[int, bytes] = {}
        self.next = list(range(min(slots, len(parts))))

    @property
    def waiting(self) -> list[int]:
        return [chunk for chunk in self.next if chunk not in self.sums]

    def ask(self) -> Iterable[bytes]:
        for chunk in self.waiting:
            yield packet(
                self.made, self.number, ADD, chunk, self.parts[chunk].tobytes(), self.epoch
            )

    def hear(self, kind: int, chunk: int, payload: bytes) -> None:
        if kind == WAIT:
            assert not payload and chunk in self.next
            return
        assert kind == SUM
        assert self.sums.setdefault(chunk, payload) == payload
        if (
            chunk in self.next
            and chunk + self.slots < len(self.parts)
            and chunk + self.slots not in self.next
        ):
            self.next.append(chunk + self.slots)


def through(
    wire: Wire, workers: list[Worker], chance: random.Random, loss: float, late: float
) -> None:
    """Let the workers reach the end over a network that loses this share, and keeps as much for
    another round, or twice.
    """
    kept: list[tuple[bytes, int]] = []
    for _ in range(10_000):
        if not any(worker.waiting for worker in workers):
            return
        asked = kept + [(data, worker.number) for worker in workers for data in worker.ask()]
        chance.shuffle(asked)
        kept = []
        for data, number in asked:
            if chance.random() < loss:
                continue
            if chance.random() < late:
                kept.append((data, number))
                if chance.random() < 0.5:
                    continue
            for kind, to, chunk, payload in wire.give(data, number):
                if chance.random() >= loss:
                    workers[to].hear(kind, chunk, payload)
    raise AssertionError(f"no end in sight: {[worker.waiting for worker in workers]}")
