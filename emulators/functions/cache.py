"""Values by key, a fixed number of them: one more drops the least recently used. Pure."""

from __future__ import annotations

from collections import OrderedDict


class Cache:
    """The entries of one allocation."""

    def __init__(self, entries: int) -> None:
        self._most = entries
        self._values: OrderedDict[int, bytes] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: int) -> bytes | None:
        """The value, which counts as a use; None: there is none."""
        if (value := self._values.get(key)) is not None:
            self._values.move_to_end(key)
        return value

    def put(self, key: int, value: bytes) -> bool:
        """Store a value in place of what is there; whether another key was dropped for it."""
        self._values[key] = value
        self._values.move_to_end(key)
        if len(self._values) <= self._most:
            return False
        self._values.popitem(last=False)
        return True
