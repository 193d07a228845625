"""Where the ranks of a job meet: the store of rank 0, which torch provides."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any


class Holds(Exception):
    """A rank waits for this key, and looks again after this time (s)."""

    def __init__(self, key: str, within_s: float) -> None:
        super().__init__(key)
        self.key, self.within_s = key, within_s


class Rendezvous:
    """The store. After the death of rank 0 every call raises RuntimeError."""

    def __init__(self, loop: Any) -> None:
        self.loop, self.ended = loop, False
        self.values: dict[str, str] = {}
        self.waiting: dict[str, list[asyncio.Future[None]]] = defaultdict(list)
        self.ranks: dict[int, Any] = {}
        self.kept: list[set[int]] = []
        """The checkpoints of the ranks that have some and are to go on from them."""

    def _present(self) -> None:
        if self.ended:
            raise RuntimeError("the store closed the connection")

    def check(self, keys: list[str]) -> bool:
        self._present()
        return all(key in self.values for key in keys)

    def get(self, key: str) -> bytes:
        self._present()
        return self.values[key].encode()

    def add(self, key: str, count: int) -> int:
        self._present()
        self.values[key] = str(int(self.values.get(key, "0")) + count)
        self._wake(key)
        return int(self.values[key])

    def compare_set(self, key: str, expected: str, wanted: str) -> bytes:
        self._present()
        if self.values.get(key, "") == expected:
            self.values[key] = wanted
            self._wake(key)
        return self.values[key].encode()

    def _wake(self, key: str) -> None:
        for future in self.waiting.pop(key, ()):
            if not future.done():
                future.set_result(None)

    def changes(self, key: str) -> asyncio.Future[None]:
        """Done when this key is written, or a rank is lost."""
        future: asyncio.Future[None] = self.loop.create_future()
        self.waiting[key].append(future)
        return future

    def lost(self, rank: int) -> None:
        """The others notice that a rank is gone."""
        self.ended = self.ended or rank == 0
        for program in self.ranks.values():
            program.lost = program.lost or f"connection closed by peer: rank {rank}"
        for key in list(self.waiting):
            self._wake(key)
