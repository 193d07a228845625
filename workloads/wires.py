"""Bulk between ranks over plain TCP connections, one for each sender, receiver and purpose; one thread carries all of them at once.

For what gloo takes a queue, a thread and a wake-up per packet this takes a wake-up per SLICE (SO_RCVLOWAT): a dozen ranks share a
few cores on an emulated lab, and links, not cores, are to set the pace. Rings pass on what they have summed so far, not whole
chunks, so that no link waits while there is anything to send.
"""

from __future__ import annotations

import json
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from workloads.accord import appears
from workloads.buffers import Buffer, pieces
from workloads.loop import Loop, Stall, Task, Wire
from workloads.place import Place

SLICE = 65536
"""A receiver is woken for this many bytes, or for the last that are due."""
SCRATCH = 4 * SLICE
GREETING_S = 5.0
"""A peer must identify itself within this time (s)."""
QUEUE, LEAST_WINDOW = 448 << 10, 36000
"""Bytes in flight to one rank over all its streams at once, and over each at least: more would wait in the queues of links they
share, where some would be lost."""

CHECK_S = 0.2
"""How often (s) a rank that waits for its peers looks whether it should give up."""

Ends = Mapping[str, tuple[int, int]]
"""Connections by name: the other rank, and the lane."""


class SendTask:
    """Send buffers one after the other."""

    into = None

    def __init__(self, out: Wire, buffers: Iterable[memoryview]) -> None:
        self.out: Wire | None = out
        self._wire, self._buffers = out, [buffer for buffer in buffers if len(buffer)]

    def begin(self) -> None:
        self._left = deque(self._buffers)

    def take(self) -> bool:
        return True

    def push(self) -> bool:
        while self._left:
            count = self._wire.send(self._left[0])
            if not count:
                return True
            if count < len(self._left[0]):
                self._left[0] = self._left[0][count:]
            else:
                self._left.popleft()
        return False


class ReceiveTask:
    """Receive into buffers one after the other. `slice`: as SLICE."""

    out = None

    def __init__(self, into: Wire, buffers: Iterable[memoryview], slice: int = SLICE) -> None:
        self.into: Wire | None = into
        self._wire, self._buffers, self._slice = into, [buffer for buffer in buffers if len(buffer)], slice

    def begin(self) -> None:
        self._left = deque(self._buffers)
        self._due = sum(map(len, self._buffers))
        self._wire.wake_at(max(1, min(self._slice, self._due)))

    def take(self) -> bool:
        if self._left:
            count = self._wire.receive(self._left[0])
            self._due -= count
            if count < len(self._left[0]):
                self._left[0] = self._left[0][count:]
            else:
                self._left.popleft()
            if 0 < self._due < self._slice:
                self._wire.wake_at(self._due)
        return not self._left

    def push(self) -> bool:
        return False


class Round:
    """A member's part in a ring all-reduce of numbers of 4 bytes: it starts with its own chunk and passes on all that comes in.

    What comes in first, of size - 1 chunks, is added to what is here; then come as many that are summed already. The last of them
    every other member has had.
    """

    def __init__(
        self, into: Wire, out: Wire, position: int, size: int, buffer: Buffer, torch: Any, scratch: bytearray | None = None
    ) -> None:
        """`scratch`: SCRATCH bytes for what is to be added, which rounds that receive one after the other can share."""
        self.into: Wire | None = into
        self.out: Wire | None = out
        self._from, self._to, self._memory, self._numbers = into, out, buffer.memory, buffer.tensor
        chunks = [(4 * begin, 4 * end) for begin, end in pieces(buffer.tensor.numel(), size)]
        sums = [chunks[(position - step - 1) % size] for step in range(size - 1)]
        whole = [chunks[(position - step) % size] for step in range(size - 1)]
        own = chunks[position]
        self._incoming = [(*chunk, True) for chunk in sums if chunk[0] < chunk[1]]
        self._incoming += [(*chunk, False) for chunk in whole if chunk[0] < chunk[1]]
        self._outgoing = [chunk for chunk in (own, *sums, *whole[:-1]) if chunk[0] < chunk[1]]
        self._own = own[1] - own[0]
        self._slice = max(1, min(SLICE, self._own // 4))
        scratch = bytearray(SCRATCH) if scratch is None else scratch
        self._scratch, self._addends = memoryview(scratch), torch.frombuffer(scratch, dtype=torch.float32)

    def begin(self) -> None:
        self.reset()
        self.wake()

    def reset(self) -> None:
        """Be as before the first byte."""
        self._coming, self._going = deque(self._incoming), deque(self._outgoing)
        self._due = sum(end - begin for begin, end, _ in self._incoming)
        self._may = self._own
        self._odd = 0  # bytes of a number that is not whole yet

    def wake(self) -> None:
        """Be woken for what this round receives."""
        self._from.wake_at(max(1, min(self._slice, self._due)))

    def take(self) -> bool:
        if not self._coming:
            return True
        begin, end, add = self._coming[0]
        if add:
            there = self._odd + self._from.receive(self._scratch[self._odd : min(SCRATCH, end - begin)])
            count = there & ~3
            self._numbers[begin // 4 : (begin + count) // 4].add_(self._addends[: count // 4])
            self._due -= there - self._odd
            self._odd = there - count
            self._scratch[: self._odd] = self._scratch[count:there]
        else:
            count = self._from.receive(self._memory[begin:end])
            self._due -= count
        self._may += count
        if begin + count < end:
            self._coming[0] = begin + count, end, add
        else:
            self._coming.popleft()
        if 0 < self._due < self._slice:
            self._from.wake_at(self._due)
        return not self._coming

    @property
    def sent(self) -> bool:
        """Whether this rank has sent all it is to send."""
        return not self._going

    def push(self) -> bool:
        while self._may and self._going:
            begin, end = self._going[0]
            count = self._to.send(self._memory[begin : min(end, begin + self._may)])
            if not count:
                return True
            self._may -= count
            if begin + count < end:
                self._going[0] = begin + count, end
            else:
                self._going.popleft()
        return False


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
        given_up: Callable[[], bool] = lambda: False,
        stall: Stall | None = None,
    ) -> None:
        """Meet the others: each of them has what leads to it in `into`, by the same names. `name` is used once per job.

        Waits for `within_s` at most, and never longer than the place's timeout; ends early once `given_up()` says so. A failure
        leaves nothing open. Raises: RuntimeError - one cannot be reached, or does not come in time.
        """
        self._timeout_s, self._stall, self._given_up = place.timeout_s, stall or Stall(), given_up
        self._until_s = time.monotonic() + min(place.timeout_s, within_s if within_s is not None else place.timeout_s)
        self.out: dict[str, Wire] = {}
        self.into: dict[str, Wire] = {}
        listeners: dict[int, socket.socket] = {}
        try:
            for lane in sorted({lane for _, lane in into.values()}):
                listeners[lane] = socket.create_server((place.lane(lane), 0), backlog=64 + len(into))
            store.set(f"{name}/{place.rank}", json.dumps({lane: each.getsockname() for lane, each in listeners.items()}))
            others = {rank: self._addresses(store, name, rank) for rank in sorted({rank for rank, _ in out.values()})}
            for key, (rank, lane) in out.items():
                self.out[key] = self._connect(f"{name}:{key}", place.lane(lane), others[rank][str(lane)], rank)
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
        """The time left (s). Raises: TimeoutError - there is none, or it was given up, while waiting for `what`."""
        left_s = self._until_s - time.monotonic()
        if left_s <= 0 or self._given_up():
            raise TimeoutError(f"{'timed out' if left_s <= 0 else 'given up'} while waiting for {what}")
        return left_s

    def _addresses(self, store: Any, name: str, rank: int) -> dict[str, Any]:
        key = f"{name}/{rank}"
        while not appears(store, key, min(CHECK_S, self._left_s(f"rank {rank}"))):
            pass
        found: dict[str, Any] = json.loads(store.get(key))
        return found

    def _connect(self, key: str, own: str, there: Sequence[Any], peer: int) -> Wire:
        left_s = self._left_s(f"rank {peer}")
        link = socket.create_connection((there[0], there[1]), timeout=left_s, source_address=(own, 0))
        try:
            link.sendall(struct.pack("!H", len(key.encode())) + key.encode())
            return Wire(link, peer)
        except BaseException:
            link.close()
            raise

    def _accept(self, listeners: Mapping[int, socket.socket], into: Ends, name: str) -> None:
        missing = set(into)
        poll = select.poll()
        for number in listeners:
            poll.register(number, select.POLLIN)
        while missing:
            ranks = ", ".join(map(str, sorted({into[key][0] for key in missing})))
            for number, _ in poll.poll(1000 * min(CHECK_S, self._left_s(f"rank {ranks}"))):
                link = listeners[number].accept()[0]
                key = _greeting(link, min(GREETING_S, self._left_s(f"rank {ranks}"))).removeprefix(f"{name}:")
                if key in missing:
                    missing.remove(key)
                    self.into[key] = Wire(link, into[key][0])
                else:  # not a peer of this job, or one that is meeting others
                    link.close()

    def close(self) -> None:
        for wire in (*self.out.values(), *self.into.values()):
            wire.close()

    def lost(self) -> str:
        """Which peer has closed a connection; empty where none has. To be asked while nothing is carried."""
        for wire in (*self.out.values(), *self.into.values()):
            if wire.closed:
                return f"connection to rank {wire.peer}: closed by peer"
        return ""

    def share(self, names: Sequence[str]) -> int:
        """Limit the bytes in flight over these, which all receive at once; return the bytes for which to wake a receiver."""
        window = max(LEAST_WINDOW, QUEUE // max(1, len(names)))
        for name in names:
            self.into[name].bound(window)
        return min(SLICE, window // 2)

    def carry(self, tasks: Iterable[Task]) -> None:
        """Do all of it. Raises: RuntimeError - a peer is gone, or silent for the timeout."""
        loop = Loop(self._timeout_s, self._stall)
        try:
            for task in tasks:
                loop.add(task)
            while loop.busy:
                loop.step()
        finally:
            loop.close()


def _greeting(link: socket.socket, timeout_s: float) -> str:
    """The name of the wire that a peer sends first; empty where it is no peer."""
    link.settimeout(timeout_s)
    try:
        (length,) = struct.unpack("!H", _exactly(link, 2))
        return _exactly(link, length).decode()
    except (OSError, ValueError):
        return ""


def _exactly(link: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count:
        piece = link.recv(count - len(received))
        if not piece:
            raise ConnectionError("closed by peer while meeting")
        received += piece
    return received
