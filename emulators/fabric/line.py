"""A line with delay: a queue of packets, a rate, and the time that light takes, in user space. The
kernel here delays nothing.

Pure: times come in and go out as numbers (s), so a late wake-up delays a packet but changes neither
rate nor losses. Networks may serve the queue in turn, as the queue of a top-of-rack switch is
served by packet switches and by a circuit: a network is a rate and a delay, and in dark windows
there is none.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush


@dataclass(frozen=True, slots=True)
class Network:
    """What serves a queue: bits per second, and the time in one direction (s). rate_bps 0: nothing
    is sent.
    """

    rate_bps: float
    delay_s: float


DARK_WINDOW = Network(0, 0)


class Line:
    """One direction. queue_packets: how many wait at most, that which is being sent included; loss:
    share (0 to 1), at random.
    """

    def __init__(
        self, network: Network, queue_packets: int, loss: float = 0.0, seed: int = 1
    ) -> None:
        self.network, self.queue_packets, self.loss = network, queue_packets, loss
        self.dropped = self.lost = self.passed = 0
        self._chance: Callable[[], float] = random.Random(seed).random
        self._waiting: deque[bytes] = deque()
        self._at = 0.0  # until when the queue was served
        self._left = 0.0  # bits of the first packet that are not sent yet
        self._flying: list[tuple[float, int, bytes]] = []

    def offer(self, packet: bytes, now: float) -> None:
        """Take a packet that arrives at `now`; a full queue drops it."""
        self._serve(now)
        if len(self._waiting) >= self.queue_packets:
            self.dropped += 1
            return
        if not self._waiting:
            self._left = len(packet) * 8.0
        self._waiting.append(packet)

    def change(self, network: Network, now: float) -> None:
        """Have `network` serve the queue from `now` on; what flies goes on as before."""
        self._serve(now)
        self.network = network

    def due(self, now: float) -> Iterator[bytes]:
        """Yield the packets that have arrived at the far end by `now`."""
        self._serve(now)
        while self._flying and self._flying[0][0] <= now:
            yield heappop(self._flying)[2]

    @property
    def next_s(self) -> float:
        """When `due` has something next; infinity while nothing moves."""
        found = self._flying[0][0] if self._flying else float("inf")
        if self._waiting and self.network.rate_bps:
            found = min(found, self._at + self._left / self.network.rate_bps + self.network.delay_s)
        return found

    def _serve(self, now: float) -> None:
        rate = self.network.rate_bps
        while self._waiting and rate:
            sent = self._at + self._left / rate
            if sent > now:
                break
            packet = self._waiting.popleft()
            self._at, self._left = sent, len(self._waiting[0]) * 8.0 if self._waiting else 0.0
            self.passed += 1
            if self.loss and self._chance() < self.loss:
                self.lost += 1
            else:
                heappush(self._flying, (sent + self.network.delay_s, self.passed, packet))
        if now > self._at:
            self._left -= (now - self._at) * rate if self._waiting else 0.0
            self._at = now
