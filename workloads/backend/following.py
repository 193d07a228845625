"""How the rings of a group of some ranks follow those of the job.

The job's rings change at a boundary of the default group, which says nothing about where the ranks
of another group are. So these agree among themselves, in their store, as the job's do (ring_changes.py):

    base         the version of the job's rings with which the group begins, and these rings
    prepared/W   how many ranks know version W
    next/V       "K W": after their collective K they leave version V for W; written when all know W, before its writer begins
                 K - DEPTH + 1, and so before any of them has finished that
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ..collectives.carrier import RingSet
from .channel import DEPTH
from .passes import Lap
from .world import World, laps_of

Orders = Sequence[Sequence[int]]


class Following:
    """The rings of a group, and the boundary at which they change (channel.Boundary)."""

    def __init__(self, world: World, members: Sequence[int], store: Any) -> None:
        """Connect the first rings. Raises: RuntimeError - a rank does not come."""
        self._world, self._members, self._store = world, tuple(members), store
        base = json.loads(store.compare_set("base", "", json.dumps(world.latest)))
        self._version = self._known = int(base[0])
        self._orders: dict[int, Orders] = {}
        self._next: tuple[int, int] | None = None
        self._use(base[1])

    def _use(self, orders: Orders) -> None:
        self._rings: RingSet = self._world.subset(
            self._members, f"set/{self._version}", orders, self._store
        )
        self._laps = laps_of(self._rings, self._members)

    def laps(self) -> list[Lap]:
        return self._laps

    @property
    def limit(self) -> int | None:
        return None if self._next is None else self._next[0]

    def before(self, iteration: int) -> None:
        version, orders = self._world.latest
        if version > self._known:
            self._known, self._orders[version] = version, orders
            self._store.add(f"prepared/{version}", 1)
        if self._known > self._version and self._next is None:
            if self._store.add(f"prepared/{self._known}", 0) == len(self._members):
                self._store.compare_set(
                    f"next/{self._version}", "", f"{iteration + DEPTH - 1} {self._known}"
                )
            self._look()

    def after(self, iteration: int) -> bool:
        if self._known > self._version and self._next is None:
            self._look()
        if self._next is not None and self._next[0] <= iteration:
            self._rings.close()
            self._version, self._next = self._next[1], None
            orders = self._orders[self._version]
            self._orders = {
                version: known for version, known in self._orders.items() if version > self._version
            }
            self._use(orders)
        return False

    def _look(self) -> None:
        key = f"next/{self._version}"
        if self._store.check([key]):
            last, version = self._store.get(key).split()
            self._next = int(last), int(version)

    def close(self) -> None:
        pass

    def disconnect(self) -> None:
        self._rings.close()
