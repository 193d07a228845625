"""Collectives of a group that are messages from one rank to another (mesh.py). Ranks are those of
the group.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from .membership import Membership
from .mesh import Message
from .tensors import Flat
from .work import Work


class Exchange:
    """Messages that make up one collective, done when all of them are."""

    def __init__(self, membership: Membership, name: str, tag: int, tensors: Any) -> None:
        self.work = Work(tensors)
        self._membership, self._name, self._tag = membership, name, tag
        self._lock = threading.Lock()
        self._messages: list[tuple[bool, Message]] = []
        self._left = 0
        self._finish: list[Callable[[], None]] = []

    def send(self, flat: Flat, rank: int) -> None:
        self._add(True, flat, rank)

    def receive(self, flat: Flat, rank: int) -> None:
        self._add(False, flat, rank)
        self._finish.append(flat.store)

    def _add(self, outwards: bool, flat: Flat, rank: int) -> None:
        peer = self._membership.members[rank]
        key = peer, self._membership.mark, self._tag
        self._messages.append((outwards, Message(key, flat.buffer.memory, self._ended, keep=flat)))

    def start(self) -> Work:
        self._left = len(self._messages)
        if not self._left:
            self._done()
        mesh = self._membership.world.mesh
        for outwards, message in self._messages:
            (mesh.send if outwards else mesh.receive)(message)
        return self.work

    def _ended(self, error: Exception | None) -> None:
        with self._lock:
            self._left -= 1
            last = not self._left
            failed = error is not None and not self.work.is_completed()
        if failed:
            self.work.fail(RuntimeError(f"{self._name}: {error}"))
        elif last and not self.work.is_completed():
            self._done()

    def _done(self) -> None:
        try:
            for finish in self._finish:
                finish()
        except Exception as error:  # the mesh's thread: what it does not report nobody would see
            self.work.fail(error)
        else:
            self.work.succeed()


class Pairs:
    """A group's messages. Those of collectives have tags of their own, counted alike on all
    ranks.
    """

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._collectives = 0

    def _numbered_exchange(self, name: str, tensors: Any) -> Exchange:
        """The exchange of a collective operation; its tag is negative, so that none that a program
        chose is the same.
        """
        self._collectives += 1
        return Exchange(self._membership, name, -self._collectives, tensors)

    def send(self, tensor: Any, rank: int, tag: int) -> Work:
        self._other(rank, "send")
        exchange = Exchange(self._membership, "send", tag, [tensor])
        exchange.send(Flat(tensor), rank)
        return exchange.start()

    def receive(self, tensor: Any, rank: int, tag: int) -> Work:
        self._other(rank, "recv")
        exchange = Exchange(self._membership, "recv", tag, [tensor])
        exchange.receive(Flat(tensor, fill=False), rank)
        return exchange.start()

    def _other(self, rank: int, what: str) -> None:
        if rank == self._membership.rank or not 0 <= rank < self._membership.size:
            raise ValueError(
                f"testbed: {what}: rank {rank} is not another rank of this group of {self._membership.size}"
            )

    def gather(self, outputs: Sequence[Any], tensor: Any, root: int) -> Work:
        """`outputs`: by rank, at the root; elsewhere none."""
        exchange = self._numbered_exchange("gather", outputs)
        if self._membership.rank != root:
            exchange.send(Flat(tensor), root)
            return exchange.start()
        for rank, output in enumerate(outputs):
            if rank == root:
                output.copy_(tensor)
            else:
                exchange.receive(Flat(output, fill=False), rank)
        return exchange.start()

    def scatter(self, tensor: Any, inputs: Sequence[Any], root: int) -> Work:
        """`inputs`: by rank, at the root; elsewhere none."""
        exchange = self._numbered_exchange("scatter", [tensor])
        if self._membership.rank != root:
            exchange.receive(Flat(tensor, fill=False), root)
            return exchange.start()
        for rank, given in enumerate(inputs):
            if rank == root:
                tensor.copy_(given)
            else:
                exchange.send(Flat(given), rank)
        return exchange.start()

    def all_to_all(self, outputs: Sequence[Any], inputs: Sequence[Any], tensors: Any) -> Work:
        """Both by rank."""
        here, size = self._membership.rank, self._membership.size
        exchange = self._numbered_exchange("all_to_all", tensors)
        outputs[here].copy_(inputs[here])
        for step in range(1, size):  # each rank begins with another one
            rank = (here + step) % size
            exchange.send(Flat(inputs[rank]), rank)
            exchange.receive(Flat(outputs[-step + here], fill=False), (here - step) % size)
        return exchange.start()
