"""Sets of connections, one for each layout: the one in use, and the one before it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ..host.place import ring_orders


@dataclass(frozen=True, slots=True)
class Layout:
    """What a set carries: rank orders and, for programs that have it, traffic (JSON with sorted
    keys).
    """

    rings: tuple[tuple[int, ...], ...]
    traffic: str = ""


class Set(Protocol):
    """The connections and buffers of one layout."""

    def close(self) -> None: ...

    def lost(self) -> str:
        """Which peer has closed a connection; empty where none has."""
        ...


Make = Callable[[Layout, str, Any, float, "Callable[[], bool] | None"], Set]
"""Connects a set: layout, a name used once per job, a client of the store, within how many seconds,
whether it is given up.

A failure leaves nothing open. Raises: RuntimeError - a peer cannot be reached in time. ValueError -
the program cannot carry the layout.
"""


class Sets:
    """The current and the previous set. Without `make` there is one layout and no other."""

    def __init__(self, layout: Layout, make: Make | None, use: Callable[[Any], None]) -> None:
        self.layout, self.make, self._use = layout, make, use
        self.current: Set | None = None
        self._previous: tuple[Layout, Set] | None = None

    def begin(self, store: Any, within_s: float) -> None:
        """Connect the first set. Raises: RuntimeError, ValueError - as Make."""
        if self.make is not None:
            self.current = self.make(self.layout, "set/0", store, within_s, None)
            self._use(self.current)

    def known(self, layout: Layout) -> bool:
        """Whether this layout's set is there; the previous one may have lost a peer while it was
        idle, and is then made again.
        """
        if layout == self.layout:
            return True
        return (
            self._previous is not None
            and self._previous[0] == layout
            and not self._previous[1].lost()
        )

    def change_rings(self, layout: Layout, formed: Set | None) -> None:
        """Use another set: `formed`, or the previous one where none was. The one before the current
        is closed.
        """
        if layout == self.layout:
            return
        if formed is None:
            assert self._previous is not None and self._previous[0] == layout, (
                "no set of this layout"
            )
            formed = self._previous[1]
        elif self._previous is not None:
            self._previous[1].close()
        assert self.current is not None
        self._previous = self.layout, self.current
        self.layout, self.current = layout, formed
        self._use(formed)

    def close(self) -> None:
        """Close what is open; nothing may be carried any more."""
        for each in (self.current, self._previous[1] if self._previous is not None else None):
            if each is not None:
                each.close()

    def lost(self) -> str:
        return self.current.lost() if self.current is not None else ""


def read_layout(
    message: Mapping[str, Any],
    current: Layout,
    world: int,
    check_traffic: Callable[[object], object] | None,
) -> Layout:
    """The layout that a message asks for; what it leaves out is as now. Raises: ValueError - it is
    not valid, and why.
    """
    rings, traffic = current.rings, current.traffic
    if "rings" in message:
        problems: list[str] = []
        given = message["rings"]
        if not isinstance(given, list) or not given:
            raise ValueError("rings: not a list of rank orders")
        rings = ring_orders(given, world, "rings", problems)
        if problems:
            raise ValueError("; ".join(problems))
    if "traffic" in message:
        if check_traffic is None:
            raise ValueError("traffic: this program takes rings only")
        check_traffic(message["traffic"])
        traffic = json.dumps(message["traffic"], sort_keys=True)
    return Layout(rings, traffic)
