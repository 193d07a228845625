"""What the groups of a process share: its place, the store, the rings that are in use and how they
change.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ..collectives.carrier import RingSet
from ..collectives.ring_changes import RingChanges
from ..collectives.sets import Layout, Sets, read_layout
from ..host.handoff import Handoff
from ..host.place import Place, read_place
from ..transport.loop import Stall
from .channel import DEPTH, Channel
from .mesh import Mesh
from .passes import Lap
from .reporter import heartbeat, records

LONGEST_S = 86399.0


def client(store: Any) -> Any:
    """Another client of a store, for a thread of its own: a client waits for one thing at a
    time.
    """
    return store.clone() if hasattr(store, "clone") else store


def place_of(rank: int, size: int, store: Any, timeout: timedelta, env: Mapping[str, str]) -> Place:
    """This rank's place. Raises: place.BadPlace - the environment describes none."""
    given = dict(env) | {"RANK": str(rank), "WORLD_SIZE": str(size), "TESTBED_BACKEND": "auto"}
    given.setdefault("MASTER_ADDR", _host_of(store))
    given.setdefault("MASTER_PORT", "0")
    given.setdefault("TESTBED_TIMEOUT_S", str(min(timeout.total_seconds(), LONGEST_S)))
    return read_place(given)


def _host_of(store: Any) -> str:
    below = getattr(store, "_underlying_non_prefix_store", store)
    return str(getattr(below, "host", "127.0.0.1"))


class World:
    """All ranks of the job. `current` is that of the default group."""

    current: World | None = None

    def __init__(
        self, store: Any, rank: int, size: int, timeout: timedelta, *, changing: bool = True
    ) -> None:
        """Meet the other ranks. Raises: RuntimeError - one does not come in time. ValueError - the
        environment is wrong.

        changing: whether the rings follow what the host's agent asks for.
        """
        self.place = place = place_of(rank, size, store, timeout, os.environ)
        self.rank, self.size, self.timeout = rank, size, timeout
        # what an earlier group has left in the store is not for this one
        births = store.add(f"testbed/born/{rank}", 1)
        self._store = dist.PrefixStore(f"testbed/{births}", client(store))
        self.stall = Stall()
        self.heartbeat = heartbeat()
        self.heartbeat.follow(self.stall)
        self.latest: tuple[int, tuple[tuple[int, ...], ...]] = 0, place.rings
        """How often the job's rings have changed, and the rings in use."""
        self.sets = Sets(Layout(place.rings), self._make, self._use)
        self.sets.begin(self._store, place.timeout_s)
        self.mesh = Mesh(place, client(self._store), lambda: self.sets.layout.rings)
        self._ring_changes = RingChanges(
            rank,
            size,
            client(self._store),
            lambda: client(self._store),
            self.sets,
            lambda message, layout: read_layout(message, layout, size, None),
            timeout_s=place.timeout_s,
            ahead=DEPTH - 1,
            planned=place.ring_changes,
            asked_to_stop=lambda: self.channel.closing,
            on_ring_change=records(rank).note_ring_change,
            on_hold=self.heartbeat.hold,
            stall=self.stall,
        )
        self._handoff: Handoff | None = None
        if changing and place.handoff:
            self._handoff = Handoff(
                place.handoff, self._ring_changes.greeting, self._ring_changes.receive
            )
            self._ring_changes.send = self._handoff.send
            self._handoff.start()
        self._laps: tuple[Any, list[Lap]] = None, []
        self.channel = Channel(
            "default",
            self.laps,
            self._ring_changes,
            place.timeout_s,
            self.heartbeat,
            lost=self.sets.close,
        )
        self.leaving: list[Callable[[float], None]] = [self.close]
        """What ends the threads of this process, those of all its groups."""
        atexit.register(self._leave_at_once)

    def _make(
        self,
        layout: Layout,
        name: str,
        store: Any,
        within_s: float,
        given_up: Callable[[], bool] | None,
    ) -> RingSet:
        return RingSet(
            self.place,
            store,
            torch,
            layout.rings,
            name,
            within_s=within_s,
            given_up=given_up,
            stall=self.stall,
        )

    def _use(self, _set: object) -> None:
        if self.sets.layout.rings != self.latest[1]:
            self.latest = self.latest[0] + 1, self.sets.layout.rings

    def laps(self) -> list[Lap]:
        """The rings in use."""
        rings = self.sets.current
        assert isinstance(rings, RingSet)
        if self._laps[0] is not rings:
            self._laps = rings, laps_of(rings, range(self.size))
        return self._laps[1]

    def subset(
        self, members: Sequence[int], name: str, orders: Sequence[Sequence[int]], store: Any
    ) -> RingSet:
        """Connect the rings of these orders, restricted to members. Raises: RuntimeError - as
        wires.Wires.
        """
        kept = [[rank for rank in order if rank in members] for order in orders]
        place = replace(self.place, world=len(members))
        return RingSet(place, store, torch, kept, name, stall=self.stall)

    def _leave_at_once(self) -> None:
        """A program that ends without destroying its groups: a thread that meets Python's end in
        torch would abort it.
        """
        for leave in reversed(self.leaving):
            leave(0)

    def close(self, within_s: float) -> None:
        """Leave, once what was issued is done, or fails after this time (s)."""
        atexit.unregister(self._leave_at_once)
        self.channel.close(within_s)
        if self._handoff is not None:
            self._handoff.close()
        self.mesh.close()
        self.sets.close()


def laps_of(rings: RingSet, members: Sequence[int]) -> list[Lap]:
    """The rings of a set, with the ranks of their group instead of the job's."""
    at = {rank: position for position, rank in enumerate(members)}
    return [
        Lap(ring, tuple(at[rank] for rank in order))
        for ring, order in zip(rings.rings, rings.orders, strict=True)
    ]
