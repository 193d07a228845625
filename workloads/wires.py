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
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from workloads.buffers import Buffer
from workloads.place import Place
from workloads.rings import pieces

SLICE = 65536
"""A receiver is woken for this many bytes, or for the last that are due."""
SCRATCH = 4 * SLICE
GREETING_S = 5.0
"""A peer must identify itself within this time (s)."""
QUEUE, LEAST_WINDOW = 448 << 10, 36000
"""Bytes in flight to one rank over all its streams at once, and over each at least: more would wait in the queues of links they
share, where some would be lost."""

Ends = Mapping[str, tuple[int, int]]
"""Connections by name: the other rank, and the lane."""


class Wire:
    """A connection with one sender and one receiver. Its errors are RuntimeErrors that name the rank at the other end."""

    def __init__(self, link: socket.socket, peer: int) -> None:
        self._link, self.peer = link, peer
        self._wakes_at = 1
        self.number = link.fileno()
        link.setblocking(False)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, what: memoryview) -> int:
        """Bytes that were taken; 0 when there is no room."""
        try:
            return self._link.send(what)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise RuntimeError(f"connection to rank {self.peer}: {error}") from error

    def receive(self, room: memoryview) -> int:
        """Bytes that were there; 0 when none are."""
        try:
            count = self._link.recv_into(room)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise RuntimeError(f"connection from rank {self.peer}: {error}") from error
        if not count:
            raise RuntimeError(f"connection from rank {self.peer}: closed by peer")
        return count

    def wake_at(self, count: int) -> None:
        """Be readable once so many bytes are there."""
        if count != self._wakes_at:
            self._wakes_at = count
            self._link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)

    def close(self) -> None:
        self._link.close()

    def bound(self, window: int) -> None:
        """Limit the bytes in flight to `window`."""
        self._link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)  # else the kernel lets the window grow with its buffer
        self._link.setsockopt(socket.IPPROTO_TCP, socket.TCP_WINDOW_CLAMP, window)


class Task(Protocol):
    """Something to carry: what comes in by one wire, what goes out by another, or both."""

    @property
    def into(self) -> Wire | None: ...
    @property
    def out(self) -> Wire | None: ...

    def begin(self) -> None: ...
    def take(self) -> bool: ...  # receive what is there; True: that was all of it
    def push(self) -> bool: ...  # send what may be sent; True: there is more, and no room


class Giving:
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


class Taking:
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

    def __init__(self, into: Wire, out: Wire, position: int, size: int, buffer: Buffer, torch: Any) -> None:
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
        scratch = bytearray(SCRATCH)
        self._scratch, self._addends = memoryview(scratch), torch.frombuffer(scratch, dtype=torch.float32)

    def begin(self) -> None:
        self._coming, self._going = deque(self._incoming), deque(self._outgoing)
        self._due = sum(end - begin for begin, end, _ in self._incoming)
        self._may = self._own
        self._odd = 0  # bytes of a number that is not whole yet
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

    def __init__(self, place: Place, store: Any, out: Ends, into: Ends, name: str = "wires") -> None:
        """Meet the others: each of them has what leads to it in `into`, by the same names. `name` is used once per job.

        Raises: RuntimeError - one cannot be reached, or does not come in time.
        """
        self._timeout_s = place.timeout_s
        doors = {lane: self._door(place.lane(lane), len(into)) for lane in sorted({lane for _, lane in into.values()})}
        store.set(f"{name}/{place.rank}", json.dumps({lane: door.getsockname() for lane, door in doors.items()}))
        try:
            others = {rank: json.loads(store.get(f"{name}/{rank}")) for rank in sorted({rank for rank, _ in out.values()})}
            self.out = {
                key: self._connect(key, place.lane(lane), others[rank][str(lane)], rank) for key, (rank, lane) in out.items()
            }
            self.into: dict[str, Wire] = {}
            for lane, door in doors.items():
                missing = {key for key, (_, at) in into.items() if at == lane}
                while missing:
                    link = door.accept()[0]
                    key = _greeting(link, min(GREETING_S, self._timeout_s))
                    if key in missing:  # not a peer of this job
                        missing.remove(key)
                        link.settimeout(self._timeout_s)
                        self.into[key] = Wire(link, into[key][0])
                    else:
                        link.close()
        except OSError as error:
            raise RuntimeError(f"connecting to peers: {error}") from error
        finally:
            for door in doors.values():
                door.close()

    def _door(self, address: str, most: int) -> socket.socket:
        door = socket.create_server((address, 0), backlog=64 + most)
        door.settimeout(self._timeout_s)
        return door

    def _connect(self, key: str, own: str, there: Sequence[Any], peer: int) -> Wire:
        link = socket.create_connection((there[0], there[1]), timeout=self._timeout_s, source_address=(own, 0))
        link.sendall(struct.pack("!H", len(key.encode())) + key.encode())
        return Wire(link, peer)

    def close(self) -> None:
        for wire in (*self.out.values(), *self.into.values()):
            wire.close()

    def share(self, names: Sequence[str]) -> int:
        """Limit the bytes in flight over these, which all receive at once; return the bytes for which to wake a receiver."""
        window = max(LEAST_WINDOW, QUEUE // max(1, len(names)))
        for name in names:
            self.into[name].bound(window)
        return min(SLICE, window // 2)

    def carry(self, tasks: Iterable[Task]) -> None:
        """Do all of it. Raises: RuntimeError - a peer is gone, or silent for the timeout."""
        readers: dict[int, Task] = {}
        writers: dict[int, Task] = {}
        with select.epoll() as poll:

            def push(task: Task) -> None:
                assert task.out is not None
                number, waits = task.out.number, task.push()
                if waits and number not in writers:
                    writers[number] = task
                    poll.register(number, select.EPOLLOUT)
                elif not waits and number in writers:
                    del writers[number]
                    poll.unregister(number)

            for task in tasks:
                task.begin()
                if task.into is not None:
                    readers[task.into.number] = task
                    poll.register(task.into.number, select.EPOLLIN)
                if task.out is not None:
                    push(task)
            while readers or writers:
                ready = poll.poll(self._timeout_s)
                if not ready:
                    silent = sorted(
                        {t.into.peer for t in readers.values() if t.into} | {t.out.peer for t in writers.values() if t.out}
                    )
                    raise RuntimeError(f"timed out: nothing from or to rank {', '.join(map(str, silent))}")
                for number, _ in ready:
                    if number in writers:
                        push(writers[number])
                    elif number in readers:  # else its task was through with it since
                        task = readers[number]
                        if task.take():
                            del readers[number]
                            poll.unregister(number)
                        if task.out is not None:
                            push(task)


def _greeting(link: socket.socket, timeout_s: float) -> str:
    """The name of the wire that a peer says first; empty where it is no peer."""
    link.settimeout(timeout_s)
    try:
        (length,) = struct.unpack("!H", _exactly(link, 2))
        return _exactly(link, length).decode()
    except (OSError, ValueError):
        return ""


def _exactly(link: socket.socket, count: int) -> bytes:
    heard = b""
    while len(heard) < count:
        piece = link.recv(count - len(heard))
        if not piece:
            raise ConnectionError("closed by peer while meeting")
        heard += piece
    return heard
