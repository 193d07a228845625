"""Sums and transfers over connections of a step's own: every number right whatever the sizes, and a
peer that is gone is named.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
import torch

from workloads.host.place import Place
from workloads.transport.buffers import Buffer
from workloads.transport.loop import TCP_RTO_MAX_MS, Loop, Stall, Wire
from workloads.transport.tasks import ReceiveTask, Round, SendTask
from workloads.transport.wires import QUEUE, Wires


class Store:
    """What ranks meet by."""

    def __init__(self) -> None:
        self._kept: dict[str, str] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: str) -> None:
        with self._changed:
            self._kept[key] = value
            self._changed.notify_all()

    def get(self, key: str) -> str:
        return self._kept[key]

    def check(self, keys: list[str]) -> bool:
        return all(key in self._kept for key in keys)

    def wait(self, keys: list[str], within: timedelta) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: self.check(keys), within.total_seconds()):
                raise RuntimeError("wait timeout")


def place(rank: int, world: int, timeout_s: float = 10.0) -> Place:
    lanes = (f"127.0.{rank + 1}.1", f"127.0.{rank + 1}.2")
    return Place(
        rank, world, "127.0.0.1", 1, (tuple(range(world)),), lanes, "gloo", Path(), timeout_s, 0
    )


T = TypeVar("T")


def together(world: int, work: Callable[[int], T]) -> list[T]:
    with ThreadPoolExecutor(world) as ranks:
        return list(ranks.map(work, range(world)))


@pytest.mark.parametrize("length", [1, 2, 7, 1001, 300_007])
@pytest.mark.parametrize("order", [(0, 1), (2, 0, 1), (0, 3, 1, 4, 2)])
def test_a_ring_sums_every_number_again_and_again(order: tuple[int, ...], length: int) -> None:
    store, world = Store(), len(order)

    def rank(me: int) -> list[Any]:
        at = order.index(me)
        before, after = order[at - 1], order[(at + 1) % world]
        wires = Wires(
            place(me, world), store, {f"from {me}": (after, 1)}, {f"from {before}": (before, 1)}
        )
        buffer = Buffer.zeros(length, "float32", torch.device("cpu"), torch)
        ring = Round(
            wires.into[f"from {before}"], wires.out[f"from {me}"], at, world, buffer, torch
        )
        seen = []
        for step in range(3):
            buffer.tensor.copy_(torch.arange(length) % 101 + me * 3 + step)
            wires.carry([ring])
            seen.append(buffer.tensor.clone())
        wires.close()
        return seen

    for sums in together(world, rank):
        for ring_change, found in enumerate(sums):
            wanted = world * (torch.arange(length) % 101 + ring_change) + 3 * sum(range(world))
            assert torch.equal(found, wanted.to(torch.float32))


def test_transfers_of_any_size_cross_each_other_and_arrive_whole() -> None:
    store, sizes = Store(), [1, 65_536, 1_000_003]

    def rank(me: int) -> list[bytes]:
        other = 1 - me
        names = [f"{me} {k}" for k in range(3)], [f"{other} {k}" for k in range(3)]
        wires = Wires(
            place(me, 2),
            store,
            dict.fromkeys(names[0], (other, 0)),
            dict.fromkeys(names[1], (other, 0)),
        )
        wires.share(names[1])
        rooms = [bytearray(size) for size in sizes]
        tasks = [
            ReceiveTask(wires.into[name], [memoryview(room)])
            for name, room in zip(names[1], rooms, strict=True)
        ]
        given = [bytes([10 * me + k]) * size for k, size in enumerate(sizes)]
        halves = [[memoryview(b)[: len(b) // 2], memoryview(b)[len(b) // 2 :]] for b in given]
        for _ in range(2):
            wires.carry(
                [
                    *tasks,
                    *(
                        SendTask(wires.out[name], each)
                        for name, each in zip(names[0], halves, strict=True)
                    ),
                ]
            )
        wires.close()
        return [bytes(room) for room in rooms]

    for me, rooms in enumerate(together(2, rank)):
        assert rooms == [bytes([10 * (1 - me) + k]) * size for k, size in enumerate(sizes)]


def test_a_peer_that_leaves_is_named_and_so_is_one_that_says_nothing() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as here,
    ):
        wire = Wire(here, 7)
        assert wire.receive(memoryview(bytearray(4))) == 0
        listener.accept()[0].close()
        select.select([here], [], [], 10)
        with pytest.raises(RuntimeError, match="connection from rank 7: closed by peer"):
            wire.receive(memoryview(bytearray(4)))
    store, both = Store(), threading.Barrier(2)

    def rank(me: int) -> str:
        other = 1 - me
        wires = Wires(place(me, 2, 0.3), store, {f"{me}": (other, 0)}, {f"{other}": (other, 0)})
        with pytest.raises(RuntimeError) as raised:
            wires.carry([ReceiveTask(wires.into[f"{other}"], [memoryview(bytearray(9))])])
        both.wait(10)
        wires.close()
        return str(raised.value)

    assert together(2, rank) == [f"timed out: nothing from or to rank {1 - me}" for me in range(2)]


def test_strangers_are_refused_and_the_peers_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workloads.transport.wires.GREETING_S", 0.2)
    opened: list[socket.socket] = []

    class Watched(Store):
        def set(self, key: str, value: str) -> None:
            """Strangers are there before any peer knows where the listener is."""
            for host, port in json.loads(value).values():
                for text in (b"", b"GET / HTTP/1.0\r\n\r\n", b"\x00\x02\xff\xff", b"\x00\x04from"):
                    stranger = socket.create_connection((host, port), timeout=5)
                    stranger.sendall(text)
                    opened.append(stranger)
            super().set(key, value)

    store = Watched()

    def rank(me: int) -> set[str]:
        wires = Wires(
            place(me, 2), store, {f"from {me}": (1 - me, 1)}, {f"from {1 - me}": (1 - me, 1)}
        )
        try:
            return set(wires.into)
        finally:
            wires.close()

    assert together(2, rank) == [{"from 1"}, {"from 0"}]
    assert opened
    for stranger in opened:
        stranger.close()


def test_strangers_that_say_nothing_or_little_keep_no_peer_out_while_slots_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("workloads.transport.wires.GREETING_S", 0.2)
    monkeypatch.setattr(
        "workloads.transport.wires.shared",
        lambda: SimpleNamespace(reach={}, first=lambda peers, _: next(iter(peers))),
    )
    opened: list[socket.socket] = []
    over = threading.Event()

    def dribble(stranger: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while not over.wait(0.05):
                stranger.sendall(b"\xff")

    class Watched(Store):
        def set(self, key: str, value: str) -> None:
            for host, port in json.loads(value).values():
                opened.extend(socket.create_connection((host, port), timeout=5) for _ in range(3))
                threading.Thread(target=dribble, args=(opened[-1],)).start()
            super().set(key, value)

    store = Watched()

    def rank(me: int) -> set[str]:
        wires = Wires(
            place(me, 2, 8.0), store, {f"from {me}": (1 - me, 1)}, {f"from {1 - me}": (1 - me, 1)}
        )
        try:
            return set(wires.into)
        finally:
            wires.close()

    try:
        assert together(2, rank) == [{"from 1"}, {"from 0"}]
    finally:
        over.set()
        for stranger in opened:
            stranger.close()


@pytest.mark.parametrize(
    ("room_kb", "streams", "most"),
    [(64, 1, QUEUE), (64, 2, QUEUE // 2), (1 << 10, 2, 1 << 19), (1 << 10, 1, None)],
)
def test_bytes_in_flight_are_bound_by_the_queue_or_by_the_room_that_the_host_gives(
    monkeypatch: pytest.MonkeyPatch, room_kb: int, streams: int, most: int | None
) -> None:
    monkeypatch.setattr("workloads.transport.wires._initial_window", lambda: room_kb << 10)
    store = Store()

    def rank(me: int) -> set[int]:
        names = [[f"{rank} {k}" for k in range(streams)] for rank in (me, 1 - me)]
        wires = Wires(place(me, 2), store, *(dict.fromkeys(each, (1 - me, 0)) for each in names))
        wires.share(names[1])
        clamps = {
            wire._link.getsockopt(socket.IPPROTO_TCP, socket.TCP_WINDOW_CLAMP)
            for wire in wires.into.values()
        }
        wires.close()
        return clamps

    for clamps in together(2, rank):
        assert (most in clamps) is (most is not None) and len(clamps) == 1


@pytest.mark.parametrize("given_up", [False, True])
def test_meeting_a_rank_that_does_not_come_ends_in_time_and_leaves_nothing_open(
    given_up: bool,
) -> None:
    store, before = Store(), set(Path("/proc/self/fd").iterdir())
    began_s = time.monotonic()
    with socket.create_server(("127.0.0.2", 0)) as listener:
        # it listens, and then never connects
        store.set("wires/1", json.dumps({"0": listener.getsockname()}))
        with pytest.raises(
            RuntimeError,
            match=f"{'given up' if given_up else 'timed out'} while waiting for rank 1",
        ):
            Wires(
                place(0, 2, 60.0),
                store,
                {"from 0": (1, 0)},
                {"from 1": (1, 0)},
                within_s=30.0 if given_up else 0.3,
                given_up=lambda: given_up and time.monotonic() > began_s + 0.3,
            )
    assert set(Path("/proc/self/fd").iterdir()) == before


def test_the_longest_time_without_a_byte_is_kept_until_it_is_marked() -> None:
    store, stall = Store(), Stall()

    def rank(me: int) -> None:
        other = 1 - me
        own = stall if me == 0 else Stall()
        wires = Wires(
            place(me, 2), store, {f"{me}": (other, 0)}, {f"{other}": (other, 0)}, stall=own
        )
        if me == 0:
            wires.carry([ReceiveTask(wires.into["1"], [memoryview(bytearray(9))])])
        else:
            time.sleep(0.2)
            wires.carry([SendTask(wires.out["1"], [memoryview(bytes(9))])])
        wires.close()

    together(2, rank)
    assert stall.longest_ns > 0
    stall.mark()
    assert stall.longest_ns == 0


def test_ranks_wait_for_one_that_has_not_begun_and_it_waits_for_none() -> None:
    store, world, late = Store(), 4, 2
    begun = threading.Barrier(world)

    def rank(me: int) -> float:
        stall = Stall()
        before, after = (me - 1) % world, (me + 1) % world
        wires = Wires(
            place(me, world), store, {f"{me}": (after, 0)}, {f"{before}": (before, 0)}, stall=stall
        )
        buffer = Buffer.zeros(40_000, "float32", torch.device("cpu"), torch)
        ring = Round(wires.into[f"{before}"], wires.out[f"{me}"], me, world, buffer, torch)
        begun.wait()
        time.sleep(0.5 if me == late else 0)
        stall.begin(time.monotonic_ns())
        wires.carry([ring])
        wires.close()
        return stall.end() / 1e9

    waits = together(world, rank)
    late_s = waits.pop(late)
    assert min(waits) > late_s


def test_bytes_that_come_slowly_are_not_waiting_for_a_rank() -> None:
    stall, parts = Stall(), [bytes(20_000), bytes(60_000), bytes(80_000)]
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as other,
    ):
        here = listener.accept()[0]
        buffer = Buffer.zeros(40_000, "float32", torch.device("cpu"), torch)
        wire = Wire(here, 1)
        other.sendall(parts[0])  # a quarter of its chunk
        peer = threading.Thread(
            target=lambda: [(time.sleep(0.4), other.sendall(part)) for part in parts[1:]]
        )
        loop = Loop(10.0, stall)
        peer.start()
        stall.begin(time.monotonic_ns())
        loop.add(Round(wire, wire, 0, 2, buffer, torch))
        while loop.busy:
            loop.step()
        peer.join()
        loop.close()
        wire.close()
    assert stall.end() < stall.longest_ns


def test_after_a_long_darkness_a_connection_is_tried_each_second() -> None:
    """Its timer would double each time, and a job would wait for light that has long been there."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as link,
    ):
        try:
            link.getsockopt(socket.IPPROTO_TCP, TCP_RTO_MAX_MS)
        except OSError:
            pytest.skip("not installed: Linux 6.15, which has TCP_RTO_MAX_MS")
        Wire(link, 1)
        assert link.getsockopt(socket.IPPROTO_TCP, TCP_RTO_MAX_MS) == 1000
        assert link.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) >= 600_000, (
            "else it gives up after 14 s"
        )
