"""Limits per client: how long a request may take, and which connection is closed when all slots are
in use.

The server listens on an address that other users of this machine, or of the network, can reach.
None of them may lock a page out, neither by using all slots nor by sending requests slowly.
"""

from __future__ import annotations

import asyncio
import ipaddress
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Generic, TypeVar

from uvicorn.protocols.http.h11_impl import H11Protocol

CONNECTIONS = 160
"""Maximum number of open connections; a page uses up to seven."""
HEAD_S = 10.0
"""Longest time (s) until a request is complete; uvicorn closes a connection that is idle after a
response sooner.
"""
READ_S = 20.0
"""Longest time (s) for which a peer may leave sent data unread."""

Client = tuple[str, int]
T = TypeVar("T")
_TIME_WAIT = "06"
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))


class Places(Generic[T]):
    """At most `most()` items at a time, oldest first. If it is full, the owner of the most items
    loses the oldest of them.
    """

    def __init__(self, most: Callable[[], int]) -> None:
        self._most = most
        self._items: dict[T, None] = {}

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return iter(tuple(self._items))

    def take(self, item: T, owners_of: Callable[[list[T]], Mapping[T, str]]) -> T | None:
        """Add `item`; return the item evicted for it, None if there was room."""
        self._items[item] = None
        if len(self._items) <= self._most():
            return None
        owner = owners_of(list(self._items))
        (largest, _), *_ = Counter(owner[i] for i in self._items).most_common(1)
        ended = next(i for i in self._items if owner[i] == largest)
        del self._items[ended]
        return ended

    def leave(self, item: T) -> None:
        self._items.pop(item, None)


def owners(clients: Iterable[Client | None]) -> dict[Client | None, str]:
    """The client of an address: on this machine the user, as the kernel reports it, else the
    address (IPv6: its /64).
    """
    found: dict[Client | None, str] = {}
    users: dict[Client, str] | None = None
    for client in clients:
        try:
            address = (
                ipaddress.ip_address(client[0].partition("%")[0]) if client is not None else None
            )
        except ValueError:
            address = None
        if client is None or address is None:
            found[client] = "unknown"
        elif address.is_loopback:
            users = _users() if users is None else users
            found[client] = users.get((str(address), client[1]), "this machine")
        elif address.version == 6:
            found[client] = str(ipaddress.ip_network((address, 64), strict=False))
        else:
            found[client] = str(address)
    return found


def _users() -> dict[Client, str]:
    """The user of every TCP socket of this machine by its own address (proc_net_tcp.rst of the
    kernel's documentation).
    """
    found: dict[Client, str] = {}
    for table in _TABLES:
        try:
            rows = table.read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for row in rows:
            tokens = row.split()
            if tokens[3] == _TIME_WAIT:
                continue
            packed, _, port = tokens[1].partition(":")
            raw = b"".join(
                struct.pack("=I", int(packed[k : k + 8], 16)) for k in range(0, len(packed), 8)
            )
            address = ipaddress.ip_address(raw)
            if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
                address = address.ipv4_mapped
            found[str(address), int(port, 16)] = f"user {tokens[7]}"
    return found


class Guarded(H11Protocol):
    """One connection with limits on the time of requests and reads, and a slot among all."""

    places: Places[Guarded]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._asked: asyncio.TimerHandle | None = None
        self._read: asyncio.TimerHandle | None = None
        ended = self.places.take(self, _owners)
        if ended is not None:
            ended.transport.abort()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self.places.leave(self)
        for timer in (self._asked, self._read):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._read = self.loop.call_later(READ_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._read is not None:
            self._read.cancel()
            self._read = None

    def _watch(self) -> None:
        """The time for a request runs from the end of the previous one, whatever part of it has
        arrived.
        """
        answering = self.cycle is not None and not self.cycle.response_complete
        if not answering and self._asked is None and not self.transport.is_closing():
            self._asked = self.loop.call_later(HEAD_S, self.transport.abort)
        elif answering and self._asked is not None:
            self._asked.cancel()
            self._asked = None


def _owners(connections: list[Guarded]) -> dict[Guarded, str]:
    by_client = owners(c.client for c in connections)
    return {c: by_client[c.client] for c in connections}


def guarded() -> tuple[type[Guarded], Places[Guarded]]:
    """A protocol for one server, and its connections."""
    among: Places[Guarded] = Places(lambda: CONNECTIONS)
    return type("Connection", (Guarded,), {"places": among}), among
