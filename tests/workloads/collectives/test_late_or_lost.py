"""A rank and a packet switch in virtual time, over a network that loses packets, with peers that
are late: what is sent again.
"""

from __future__ import annotations

import heapq
import random
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from emulators.functions.switch import Switch
from tests.emulators.functions.workers import ADD, SUM, WAIT, Worker, packet, read
from workloads.collectives import aggregate
from workloads.collectives.aggregate import LULL_S, SOUND, Aggregate
from workloads.host.grants import Grant

SLOT_BYTES, DELAY_S, PEER_S = 64, 0.001, 0.1
HOSTS = tuple(f"10.0.0.{n + 1}" for n in range(4))


class Network:
    """The clock, the poll and the socket of one rank, 0; the switch; and peers that begin at
    `late_s` and ask again each PEER_S. slower: all times here are so many times longer.

    heard: types of the answers that reached the rank. sent: chunks that it sent, in order; lost:
    which of these sendings are lost.
    """

    def __init__(
        self,
        peers: int,
        slots: int,
        chunks: int,
        late_s: float,
        loss: float = 0.0,
        seed: int = 1,
        slower: float = 1.0,
    ) -> None:
        self.slower = slower
        self.now, self.loss, self.chance = 100.0, loss, random.Random(seed)
        self.sent: list[int] = []
        self.heard: list[int] = []
        self.lost: set[int] = set()
        self._inbox: list[bytes] = []
        self._events: list[tuple[float, int, Any]] = []
        self._order = count()
        self.switch = Switch(
            {"aggregate": {"slots": slots, "slot_bytes": SLOT_BYTES, "jobs": 1}}, self._answered
        )
        made = self.switch.allocate("aggregate", "a", HOSTS[: peers + 1], slots, 1e6, 0.0)
        self.grant = Grant(made.number, made.token, "127.0.0.1", 9, "", slots, SLOT_BYTES)
        known = {"allocation": made.number, "token": made.token.hex()}
        text = torch.zeros((chunks, SLOT_BYTES // 4), dtype=torch.int32).numpy()
        self.peers = {
            n: Worker(known, n, cast(Any, [text] * (peers + 1))[n], slots, 7)
            for n in range(1, peers + 1)
        }
        self.asked: dict[int, set[int]] = {n: set() for n in self.peers}
        self._in(late_s, lambda: self._peers())

    def _in(self, after_s: float, what: Any) -> None:
        self._at(self.now + self.slower * after_s, what)

    def _at(self, at_s: float, what: Any) -> None:
        heapq.heappush(self._events, (at_s, next(self._order), what))

    def _to_switch(self, data: bytes, host: str) -> None:
        if self.chance.random() >= self.loss:
            self._in(DELAY_S, lambda: self.switch.receive(memoryview(data), (host, 5000)))

    def _answered(self, data: memoryview, peer: tuple[str, int]) -> bool:
        answer, host = bytes(data), peer[0]
        if self.chance.random() >= self.loss:
            self._in(DELAY_S, lambda: self._arrived(answer, host))
        return True

    def _arrived(self, answer: bytes, host: str) -> None:
        if host == HOSTS[0]:
            self.heard.append(answer[3])
            self._inbox.append(answer)
            return
        worker = self.peers[HOSTS.index(host)]
        kind, _, chunk, payload = read(answer)
        worker.hear(kind, chunk, payload)
        self._peer(worker)

    def _peers(self) -> None:
        """All parts without a sum, again."""
        for worker in self.peers.values():
            self.asked[worker.number].clear()
            self._peer(worker)
        self._in(PEER_S, lambda: self._peers())

    def _peer(self, worker: Worker) -> None:
        for chunk in worker.waiting:
            if chunk not in self.asked[worker.number]:
                self.asked[worker.number].add(chunk)
                part = packet(
                    worker.made, worker.number, ADD, chunk, worker.parts[chunk].tobytes(), 7
                )
                self._to_switch(part, HOSTS[worker.number])

    # ---- what the rank sees

    def monotonic(self) -> float:
        return self.now

    def poll(self, wait_ms: float) -> None:
        until = self.now + wait_ms / 1e3
        while not self._inbox and self._events and self._events[0][0] <= until:
            self.now, _, what = heapq.heappop(self._events)
            what()
        if not self._inbox:
            self.now = until

    def sendmsg(self, parts: tuple[bytes, memoryview]) -> int:
        data = b"".join(bytes(part) for part in parts)
        self.sent.append(read(data)[2])
        if len(self.sent) - 1 not in self.lost:
            self._to_switch(data, HOSTS[0])
        return len(data)

    def recvmsg_into(self, rooms: tuple[bytearray, memoryview]) -> tuple[int, list[Any], int, None]:
        if not self._inbox:
            raise BlockingIOError
        data = self._inbox.pop(0)
        rooms[0][:] = data[:32]
        rooms[1][: len(data) - 32] = data[32:]
        return len(data), [], 0, None

    def close(self) -> None:
        """As a socket has it."""


def carried(network: Network, chunks: int, sound: int = SOUND) -> int:
    """Have the rank sum so many chunks; return how often it sent a part again. sound: sums since a
    loss.
    """
    world, k = len(network.peers) + 1, network.slower
    carrier = Aggregate(network.grant, "127.0.0.1", 0, world, 7, 60.0 * k, torch, k)
    carrier._link.close()
    carrier._link, carrier._sound, carrier._usual_s = cast(Any, network), sound, 2 * DELAY_S
    poll = SimpleNamespace(register=lambda *_: None, poll=network.poll)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(aggregate, "time", network)
        patched.setattr(aggregate, "select", SimpleNamespace(poll=lambda: poll, POLLIN=1))
        carrier._carry(torch.ones(chunks * SLOT_BYTES // 4, dtype=torch.int32))
    carrier.close()
    return carrier.again


@pytest.mark.parametrize("chunks", [1, 3, 8, 40])
@pytest.mark.parametrize("late_s", [0.03, 0.2, 0.9 * LULL_S])
def test_a_peer_that_is_late_costs_one_part(chunks: int, late_s: float) -> None:
    network = Network(peers=2, slots=8, chunks=chunks, late_s=late_s)
    assert carried(network, chunks) <= 1
    assert (
        network.heard.count(SUM) == chunks
        and network.heard.count(WAIT) == len(network.sent) - chunks
    )


def test_a_peer_that_is_late_for_a_window_costs_one_part_soon_after_losses_too() -> None:
    network = Network(peers=2, slots=8, chunks=40, late_s=0.9 * LULL_S)
    assert carried(network, 40, sound=0) == 1


def test_a_part_that_was_lost_is_sent_again_once_and_soon() -> None:
    network = Network(peers=1, slots=8, chunks=1, late_s=0.0)
    network.lost = {0}
    began = network.now
    assert carried(network, 1) == 1 and network.heard == [SUM]
    assert network.now - began < PEER_S, "in virtual time"


@pytest.mark.parametrize(("late_s", "loss"), [(0.0, 0.0), (2.0, 0.0), (0.0, 0.3), (0.7, 0.1)])
def test_on_a_lab_that_is_slower_the_same_is_sent_again_so_many_times_later(
    late_s: float, loss: float
) -> None:
    found = []
    for k in (1.0, 8.0):
        network = Network(2, 8, 30, late_s, loss, slower=k)
        again = carried(network, 30)
        found.append((again, network.sent, network.heard, (network.now - 100.0) / k))
    (*plain, took_s), (*slow, slow_s) = found
    assert slow == plain and slow_s == pytest.approx(took_s, rel=0.1)


@settings(max_examples=60, deadline=None)
@given(
    peers=st.integers(1, 3),
    slots=st.integers(1, 9),
    chunks=st.integers(1, 30),
    late_s=st.floats(0, 3),
    loss=st.sampled_from([0.0, 0.02, 0.3]),
    seed=st.integers(0, 1 << 20),
)
def test_whoever_is_late_and_whatever_is_lost_every_sum_comes(
    peers: int, slots: int, chunks: int, late_s: float, loss: float, seed: int
) -> None:
    network = Network(peers, slots, chunks, late_s, loss, seed)
    again = carried(network, chunks)
    assert set(network.sent) == set(range(chunks))
    if not loss:
        assert again <= 2 + late_s / LULL_S
