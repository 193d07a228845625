"""Bulk between ranks over plain TCP connections, one for each sender, receiver and purpose; one
thread carries all of them at once.

For what gloo takes a queue, a thread and a wake-up per packet this takes a wake-up per SLICE of a
task (tasks.py): a dozen ranks share a few cores on an emulated lab, and links, not cores, are to
set the pace.
"""

from __future__ import annotations

import json
import select
import socket
import struct
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..host.place import Place
from ..host.slots import shared
from .accord import appears
from .loop import Loop, Stall, Task, Wire
from .relay import Relay
from .tasks import SLICE

GREETING_S = 5.0
"""A peer that begins to identify itself must be done within this time (s)."""
SILENT = 512
"""So many connections that have not identified themselves are kept."""
QUEUE, LEAST_WINDOW = 448 << 10, 36000
"""Bytes in flight to one rank over all its streams at once, and over each at least: more would wait
in the queues of links they share, where some would be lost. Over paths with long delays this would
limit the rate (448 kB in 40 ms are 92 Mb/s)."""

CONNECT_S = 2.0
"""While slots change, one try to connect takes so long (s) at most: its first packet may have been
lost in the dark.
"""
CHECK_S = 0.2
"""How often (s) a rank that waits for its peers looks whether it should give up."""

Ends = Mapping[str, tuple[int, int]]
"""Connections by name: the other rank, and the lane."""


class Wires:
    """A rank's connections, made once."""

    def __init__(
        self,
        place: Place,
        store: Any,
        out: Ends,
        into: Ends,
        name: str = "wires",
        *,
        within_s: float | None = None,
        given_up: Callable[[], bool] | None = None,
        stall: Stall | None = None,
    ) -> None:
        """Meet the others: each of them has what leads to it in `into`, by the same names. `name`
        is used once per job.

        Waits for `within_s` at most, and never longer than the place's timeout; ends early once
        `given_up()` says so. A failure leaves nothing open. Raises: RuntimeError - one cannot be
        reached, or does not come in time.
        """
        self._timeout_s, self._stall, self._given_up = place.timeout_s, stall or Stall(), given_up
        self._until_s = time.monotonic() + min(
            place.timeout_s, within_s if within_s is not None else place.timeout_s
        )
        self.out: dict[str, Wire] = {}
        self.into: dict[str, Wire] = {}
        listeners: dict[int, socket.socket] = {}
        try:
            for lane in sorted({lane for _, lane in into.values()}):
                listeners[lane] = socket.create_server(
                    (place.lane(lane), 0), backlog=64 + len(into)
                )
            store.set(
                f"{name}/{place.rank}",
                json.dumps({lane: each.getsockname() for lane, each in listeners.items()}),
            )
            others = {
                rank: self._addresses(store, name, rank)
                for rank in sorted({rank for rank, _ in out.values()})
            }
            self._connect(place, name, out, others)
            self._accept({each.fileno(): each for each in listeners.values()}, into, name)
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise RuntimeError(f"connecting to peers: {error}") from error
            raise
        finally:
            for listener in listeners.values():
                listener.close()

    def _left_s(self, what: str) -> float:
        """The time left (s). Raises: TimeoutError - there is none, or it was given up, while
        waiting for `what`.
        """
        left_s = self._until_s - time.monotonic()
        if left_s <= 0 or (self._given_up is not None and self._given_up()):
            raise TimeoutError(
                f"{'timed out' if left_s <= 0 else 'given up'} while waiting for {what}"
            )
        return left_s

    def _addresses(self, store: Any, name: str, rank: int) -> dict[str, Any]:
        key = f"{name}/{rank}"
        while not appears(
            store,
            key,
            min(self._left_s(f"rank {rank}"), CHECK_S if self._given_up is not None else 1e6),
        ):
            pass
        found: dict[str, Any] = json.loads(store.get(key))
        return found

    def _connect(
        self, place: Place, name: str, out: Ends, others: Mapping[int, Mapping[str, Sequence[Any]]]
    ) -> None:
        """Connect to whoever has a path first: while slots change, going by rank could take a cycle
        for each."""
        missing = dict(out)
        while missing:
            at = {others[rank][str(lane)][0]: key for key, (rank, lane) in missing.items()}
            left_s = self._left_s(_ranks(missing.values()))
            if (address := shared().first(at, min(left_s, CHECK_S))) is None:
                continue
            rank, lane = missing.pop(key := at[address])
            limit_s = left_s if shared().reach is None else min(left_s, CONNECT_S)
            try:
                link = socket.create_connection(
                    (address, others[rank][str(lane)][1]),
                    timeout=limit_s,
                    source_address=(place.lane(lane), 0),
                )
            except OSError:
                if shared().reach is None:
                    raise
                missing[key] = rank, lane  # once the others were tried
                time.sleep(0.01)
                continue
            try:
                greeting = f"{name}:{key}".encode()
                link.sendall(struct.pack("!H", len(greeting)) + greeting)
                self.out[key] = Wire(link, rank)
            except BaseException:
                link.close()
                raise

    def _accept(self, listeners: Mapping[int, socket.socket], into: Ends, name: str) -> None:
        missing = set(into)
        # they have sent nothing yet; while slots change, it may come a cycle later
        silent: dict[int, socket.socket] = {}
        poll = select.poll()
        for number in listeners:
            poll.register(number, select.POLLIN)
        try:
            while missing:
                ranks = _ranks(into[key] for key in missing)
                for number, _ in poll.poll(1000 * min(CHECK_S, self._left_s(ranks))):
                    if number in listeners:
                        link = listeners[number].accept()[0]
                        # anybody may connect: the longest silent one gives way
                        if len(silent) >= SILENT:
                            oldest = next(iter(silent))
                            poll.unregister(oldest)
                            silent.pop(oldest).close()
                        silent[link.fileno()] = link
                        poll.register(link, select.POLLIN)
                        continue
                    poll.unregister(number)
                    link = silent.pop(number)
                    key = _greeting(link, min(GREETING_S, self._left_s(ranks))).removeprefix(
                        f"{name}:"
                    )
                    if key in missing:
                        missing.remove(key)
                        self.into[key] = Wire(link, into[key][0])
                    else:  # not a peer of this job, or one that is meeting others
                        link.close()
        finally:
            for link in silent.values():
                link.close()

    def close(self) -> None:
        for wire in (*self.out.values(), *self.into.values()):
            wire.close()

    def lost(self) -> str:
        """Which peer has closed a connection; empty where none has. To be asked while nothing is
        carried.
        """
        for wire in (*self.out.values(), *self.into.values()):
            if wire.closed:
                return f"connection to rank {wire.peer}: closed by peer"
        return ""

    def share(self, names: Sequence[str]) -> int:
        """Limit the bytes in flight over these, which all receive at once; return the bytes for
        which to wake a receiver. Where sockets of this host have more room than QUEUE from the start,
        its paths are long: that is the limit then, and the kernel's own to a single one.
        """
        room = _initial_window()
        window = max(LEAST_WINDOW, max(QUEUE, room) // max(1, len(names)))
        if len(names) > 1 or room <= QUEUE:
            for name in names:
                self.into[name].bound(window)
        return min(SLICE, window // 2)

    def carry(self, tasks: Iterable[Task], more: Callable[[], Iterable[Task]] = lambda: ()) -> None:
        """Do all of it. more: what to go on with, asked for before each wait.

        Raises: RuntimeError - a peer is gone, or silent for the timeout.
        """
        loop, tasks = Loop(self._timeout_s, self._stall), list(tasks)
        relays = [task for task in tasks if isinstance(task, Relay)]
        try:
            for task in tasks:
                loop.add(task)
            while loop.busy:
                for task in more():
                    loop.add(task)
                loop.step()
                for relay in relays:
                    if relay.waits:
                        loop.add(relay)
        finally:
            loop.close()


def _initial_window() -> int:
    """Bytes that may be in flight to a new socket of this host: the kernel keeps half of its room for
    itself."""
    try:
        return int(Path("/proc/sys/net/ipv4/tcp_rmem").read_text().split()[1]) // 2
    except (OSError, ValueError, IndexError):
        return 0


def _ranks(ends: Iterable[tuple[int, int]]) -> str:
    return "rank " + ", ".join(map(str, sorted({rank for rank, _ in ends})))


def _greeting(link: socket.socket, timeout_s: float) -> str:
    """The name of the wire that a peer sends first; empty where it is no peer."""
    until_s = time.monotonic() + timeout_s
    try:
        (length,) = struct.unpack("!H", _exactly(link, 2, until_s))
        return _exactly(link, length, until_s).decode()
    except (OSError, ValueError):
        return ""


def _exactly(link: socket.socket, count: int, until_s: float) -> bytes:
    received = b""
    while len(received) < count:
        link.settimeout(max(until_s - time.monotonic(), 0.001))
        piece = link.recv(count - len(received))
        if not piece:
            raise ConnectionError("closed by peer while meeting")
        received += piece
    return received
