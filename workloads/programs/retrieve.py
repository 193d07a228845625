"""A store of values spread over the ranks, and ranks that ask for them:
`python -m workloads.programs.retrieve --iterations 100`.

Key k belongs to rank k mod n, which takes `--lookup-ms` to find a value, for one asker at a time:
what a store on disk does. Ranks draw keys by Zipf's law, all by the same order of popularity, as in
NetCache (SOSP 2017). Where a packet switch gave the job a cache
(docs/reference/functions-dialect.md) a rank asks it first, and has it store what it had to ask the
owner for. Every value is checked. An iteration is `--requests` requests of each rank, one after the
other. Its record: requests, hits, asked_bytes (of values that owners sent), all of all ranks, and
found_ms, the time of a request (median and 99th percentile) at rank 0. Exit codes: as
workloads.programs.train.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import random
import secrets
import select
import socket
import struct
import threading
import time
from collections import deque
from hmac import compare_digest
from typing import IO, TYPE_CHECKING, Any

from ..host.grants import GET, HEADER, HIT, MAGIC, MISS, PUT, STORED, VERSION, Grant
from ..progress.records import Clock
from ..transport.wires import GREETING_S, SILENT
from .options import read

if TYPE_CHECKING:
    from .program import Job

AGAIN_S, MOST_S = 0.02, 0.5
"""A request to the switch is sent again after this long (s), then after twice that and so on up to
the second.
"""
KEY = struct.Struct("<Q")
SECRET_BYTES = 16


def main() -> None:
    arguments = read(
        "retrieve", "Ranks that ask each other for values, and a packet switch that remembers them."
    )

    from .program import run

    run("workloads.programs.retrieve", lambda job: retrieve(job, arguments))


def retrieve(job: Job, given: argparse.Namespace) -> dict[str, Any]:
    """Ask until the iteration asked for or the agreed stop; return what the summary shall say."""
    place, grant = job.place, job.place.functions.get("cache")
    if grant is not None and given.bytes > grant.each_bytes:
        raise ValueError(
            f"--bytes {given.bytes}: the packet switch stores values of at most {grant.each_bytes} bytes"
        )
    shelf = Shelf(place.lane(0), given.bytes, given.lookup_ms * place.dilation / 1e3)
    owners = Owners(
        job.accord.gather("shelves", shelf.address), place.lane(0), given.bytes, place.timeout_s
    )
    own, timeout_s, k = place.lane(0), place.timeout_s, place.dilation
    cache = Cache(grant, own, place.rank, timeout_s, k) if grant is not None else None
    keys = Zipf(given.keys, given.skew, random.Random(given.seed * 1000 + place.rank))
    job.carry_on_rings("gloo")
    clock, torch = Clock(), job.torch
    counted, stopped, done = [0, 0, 0], False, 0
    for iteration in range(1, given.iterations + 1) if given.iterations else itertools.count(1):
        job.before(iteration)
        begin_ns, hits, took_ms, heard = time.monotonic_ns(), 0, [], owners.heard
        for _ in range(given.requests):
            at, key = time.monotonic(), keys.draw()
            value = cache.get(key) if cache is not None else None
            hits += value is not None
            if value is None:
                value = owners.ask(key)
                if cache is not None:
                    cache.put(key, value)
            if value != value_of(key, given.bytes):
                raise ValueError(f"key {key}: another value than its own")
            took_ms.append((time.monotonic() - at) * 1e3)
        end_ns = time.monotonic_ns()
        whole = torch.tensor(
            [float(given.requests), float(hits), float(owners.heard - heard)],
            device=job.rings.device,
        )
        job.rings.all_reduce(whole)  # also the end of the iteration for all
        now = [int(number) for number in whole.tolist()]
        counted = [before + more for before, more in zip(counted, now, strict=True)]
        took_ms.sort()
        job.records.iteration(
            {
                "iter": iteration,
                "t_wall_ns": clock.wall_ns(begin_ns),
                "iter_ms": round((time.monotonic_ns() - begin_ns) / 1e6, 3),
                "comm_ms": round((time.monotonic_ns() - end_ns) / 1e6, 3),
                "requests": now[0],
                "hits": now[1],
                "asked_bytes": now[2] * given.bytes,
                "found_ms": round(took_ms[len(took_ms) // 2], 3),
                "found_p99_ms": round(took_ms[len(took_ms) * 99 // 100], 3),
            }
        )
        job.heartbeat.end()
        done = iteration
        if stopped := job.last(iteration):
            break
    owners.close()
    shelf.close()
    return {
        "iterations": done,
        "stopped": stopped,
        "requests": counted[0],
        "hits": counted[1],
        "asked_bytes": counted[2] * given.bytes,
    }


def value_of(key: int, size: int) -> bytes:
    """The value of a key, of which nobody else's is any part."""
    word = hashlib.sha256(KEY.pack(key)).digest()
    return (word * (size // len(word) + 1))[:size]


class Zipf:
    """Draws keys 0 to count - 1, key k with a weight of (k + 1) ^ -skew."""

    def __init__(self, count: int, skew: float, chance: random.Random) -> None:
        self._chance, self._keys = chance, range(count)
        self._sums = list(itertools.accumulate((k + 1) ** -skew for k in self._keys))

    def draw(self) -> int:
        return self._chance.choices(self._keys, cum_weights=self._sums)[0]


class Shelf:
    """This rank's values: answers other ranks over TCP, a key of eight bytes by its value, one at a
    time.

    address: host, port and a secret of the ranks, in hex, with which an asker begins: anybody may
    connect.
    """

    def __init__(self, own: str, size: int, lookup_s: float) -> None:
        self._size, self._lookup_s, self._one = size, lookup_s, threading.Lock()
        self._listener = socket.create_server((own, 0))
        self._secret = secrets.token_bytes(SECRET_BYTES)
        self._silent: deque[socket.socket] = deque()  # they have not sent it yet
        self.address = [*self._listener.getsockname(), self._secret.hex()]
        threading.Thread(target=self._serve, name="shelf", daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # which wakes the thread that waits there
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                asker, _ = self._listener.accept()
            except OSError:
                return
            self._silent.append(asker)
            if len(self._silent) > SILENT:
                with contextlib.suppress(OSError):
                    self._silent.popleft().shutdown(socket.SHUT_RDWR)  # which ends its thread
            threading.Thread(target=self._answer, args=(asker,), daemon=True).start()

    def _answer(self, asker: socket.socket) -> None:
        with asker, asker.makefile("rb") as asked:
            asker.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                if not self._knows(asker, asked):
                    return
                while len(text := asked.read(KEY.size)) == KEY.size:
                    with self._one:
                        time.sleep(self._lookup_s)
                    asker.sendall(value_of(KEY.unpack(text)[0], self._size))
            except OSError:
                return  # the asker is gone

    def _knows(self, asker: socket.socket, asked: IO[bytes]) -> bool:
        """Whether the asker begins with the ranks' secret. Raises: OSError."""
        try:
            asker.settimeout(GREETING_S)
            return compare_digest(asked.read(SECRET_BYTES), self._secret)
        finally:
            asker.settimeout(None)
            with contextlib.suppress(ValueError):  # it had to give way
                self._silent.remove(asker)


class Owners:
    """The ranks' shelves, each asked over a connection of its own. Raises: RuntimeError - a peer is
    gone or silent.
    """

    def __init__(self, addresses: list[Any], own: str, size: int, timeout_s: float) -> None:
        self._addresses, self._own, self._size, self._timeout_s = addresses, own, size, timeout_s
        self._talks: dict[int, socket.socket] = {}
        self.heard = 0
        """Values that owners sent."""

    def close(self) -> None:
        for talk in self._talks.values():
            talk.close()

    def ask(self, key: int) -> bytes:
        owner = key % len(self._addresses)
        try:
            if owner not in self._talks:
                host, port, secret = self._addresses[owner]
                self._talks[owner] = socket.create_connection(
                    (host, port), self._timeout_s, (self._own, 0)
                )
                self._talks[owner].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._talks[owner].sendall(bytes.fromhex(secret))
            talk, value = self._talks[owner], b""
            talk.sendall(KEY.pack(key))
            while len(value) < self._size:
                if not (more := talk.recv(self._size - len(value))):
                    raise ConnectionResetError("closed by peer")
                value += more
            self.heard += 1
        except OSError as error:
            raise RuntimeError(f"connection to rank {owner}: {error}") from error
        return value


class Cache:
    """What the packet switch remembers."""

    def __init__(
        self, grant: Grant, own: str, rank: int, timeout_s: float, slower: float = 1.0
    ) -> None:
        """slower: requests are sent again after so many times as long."""
        self._grant, self._rank, self._timeout_s = grant, rank, timeout_s
        self._again_s, self._most_s = slower * AGAIN_S, slower * MOST_S
        self._link = grant.connect(own)
        self._link.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._link, select.POLLIN)

    def get(self, key: int) -> bytes | None:
        """The value, None where it has none. Raises: RuntimeError - the switch is silent."""
        kind, value = self._ask(GET, key, b"", (HIT, MISS))
        return value if kind == HIT else None

    def put(self, key: int, value: bytes) -> None:
        """Have it stored. Raises: RuntimeError."""
        self._ask(PUT, key, value, (STORED,))

    def _ask(
        self, kind: int, key: int, payload: bytes, wanted: tuple[int, ...]
    ) -> tuple[int, bytes]:
        grant = self._grant
        head = HEADER.pack(
            MAGIC, VERSION, kind, grant.allocation, grant.token, self._rank, len(payload), 0, key
        )
        begun_s, wait_s = time.monotonic(), self._again_s
        while time.monotonic() < begun_s + self._timeout_s:
            self._send(head + payload)
            again_s = time.monotonic() + wait_s
            while (left_s := again_s - time.monotonic()) > 0:
                self._poll.poll(1000 * left_s + 1)
                if (found := self._receive(key, wanted)) is not None:
                    return found
            wait_s = min(2 * wait_s, self._most_s)
        raise RuntimeError(
            f"timed out: nothing from the packet switch {grant.address}: it no longer has the allocation?"
        )

    def _send(self, data: bytes) -> None:
        try:
            self._link.send(data)
        except OSError:
            # as if it had been lost: a cable that is out, or the switch, may come back in time
            pass

    def _receive(self, key: int, wanted: tuple[int, ...]) -> tuple[int, bytes] | None:
        """The answer, if it is there. A late one to an earlier GET of the key is as good: values do
        not change.
        """
        grant = self._grant
        try:
            data = self._link.recv(HEADER.size + grant.each_bytes + 1)
        except OSError:  # nothing is there, or the network reported something
            return None
        if len(data) < HEADER.size:
            return None
        lines = HEADER.unpack_from(data)
        same = (lines[0], lines[1], *lines[3:7], lines[8]) == (
            MAGIC, VERSION, grant.allocation, grant.token, self._rank, len(data) - HEADER.size, key,
        )  # fmt: skip
        return (lines[2], data[HEADER.size :]) if same and lines[2] in wanted else None


if __name__ == "__main__":
    main()
