"""Messages from one rank to another: send and receive, scatter, gather, all-to-all. Rings may
change at any time.

Connections are made when they are first needed, one for each pair of ranks, direction and lane. A
receiver announces where it has room (READY), then the sender sends (DATA): so nothing is kept for
which no receiver waits, a long message stops no other one behind it, and a message finds its
receiver whichever lane it comes by. The lane is that of the ring on which the two follow each other
most closely, at the moment the message begins.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..host.place import Place
from ..transport.accord import appears
from ..transport.loop import Wire
from ..transport.tasks import SLICE

FRAME = struct.Struct("!B8sqQQ")
"""Kind; group, tag, the receiver's number for the message, its bytes."""
READY, DATA, REFUSED = 1, 2, 3
GREETING = struct.Struct("!4sI")
MAGIC = b"tbed"
CHECK_S = 1.0
"""How often (s) it is looked for messages that have waited too long."""

Key = tuple[int, bytes, int]
"""The other rank, the group, the tag."""


@dataclass(slots=True)
class Message:
    """A message of this rank, or room for one. `ended` is called in the mesh's thread, with the
    error if there is one.
    """

    key: Key
    memory: memoryview
    ended: Callable[[Exception | None], None]
    keep: Any = None
    """What must live as long as the message is under way."""
    since_s: float = 0.0  # monotonic: when it last moved
    number: int = 0
    over: bool = False

    def end(self, error: Exception | None = None) -> None:
        if not self.over:
            self.over = True
            self.ended(error)


class Out:
    """A connection to another rank, and what is to be sent over it."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.queue: deque[tuple[memoryview, Message | None]] = deque()

    def push(self, now_s: float) -> bool:
        """Send; whether there is more, and no room."""
        while self.queue:
            piece, message = self.queue[0]
            count = self.wire.send(piece) if len(piece) else 0
            if message is not None:
                message.since_s = now_s
            if count < len(piece):
                self.queue[0] = piece[count:], message
                if not count:
                    return True
                continue
            self.queue.popleft()
            if message is not None:
                message.end()
        return False


class In:
    """A connection from another rank: frames, and what comes after them."""

    def __init__(self, link: socket.socket) -> None:
        self.wire = Wire(link, -1)
        self.room = memoryview(bytearray(FRAME.size))
        self.need = GREETING.size  # 0: a message is coming in
        self.at = 0
        self.message: Message | None = None


class Mesh:
    """A rank's messages. The thread begins with the first of them."""

    def __init__(
        self, place: Place, store: Any, orders: Callable[[], Sequence[Sequence[int]]]
    ) -> None:
        """`orders`: those of the rings in use."""
        self._place, self._store, self._orders = place, store, orders
        self._lanes: tuple[Any, dict[int, int]] = None, {}
        self._lock = threading.Lock()
        self._posted: deque[tuple[bool, Message]] = deque()
        self._closing = False
        self._error: Exception | None = None
        self._out: dict[tuple[int, int], Out] = {}
        self._by_number: dict[int, Out | In] = {}
        self._addresses: dict[int, list[list[Any]]] = {}
        self._sends: dict[Key, deque[Message]] = {}
        self._ready: dict[Key, deque[tuple[int, int]]] = {}
        self._rooms: dict[int, Message] = {}
        self._numbers = 0
        own = dict.fromkeys(place.lanes)
        self._listeners = {
            address: socket.create_server((address, 0), backlog=64 + place.world) for address in own
        }
        for listener in self._listeners.values():
            listener.setblocking(False)
        store.set(
            f"mesh/{place.rank}",
            json.dumps([self._listeners[address].getsockname() for address in place.lanes]),
        )
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.epoll()
        self._thread = threading.Thread(target=self._run, name="testbed mesh", daemon=True)

    def send(self, message: Message) -> None:
        self._post(True, message)

    def receive(self, message: Message) -> None:
        self._post(False, message)

    def _post(self, outwards: bool, message: Message) -> None:
        message.since_s = time.monotonic()
        with self._lock:
            error = self._error
            if error is None:
                self._posted.append((outwards, message))
                if not self._thread.ident:
                    self._thread.start()
        if error is not None:
            message.end(error)
        else:
            os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """End the thread; what is under way fails."""
        if self._closing:
            return
        self._closing = True
        if self._thread.ident:
            os.eventfd_write(self._wake, 1)
            self._thread.join()
        for listener in self._listeners.values():
            listener.close()
        self._poll.close()
        os.close(self._wake)

    # the thread

    def _run(self) -> None:
        error: Exception = RuntimeError("the process group was destroyed")
        try:
            self._poll.register(self._wake, select.EPOLLIN)
            for listener in self._listeners.values():
                self._poll.register(listener.fileno(), select.EPOLLIN)
            while not self._closing:
                self._step()
        # a thread: a message that nobody carries would be waited for without end
        except Exception as other:
            error = other
        with self._lock:
            self._error = error
        for message in self._pending():
            message.end(error)
        for end in self._by_number.values():
            end.wire.close()

    def _pending(self) -> list[Message]:
        queued = [
            message for out in self._out.values() for _, message in out.queue if message is not None
        ]
        waiting = [message for sends in self._sends.values() for message in sends]
        return [*queued, *waiting, *self._rooms.values(), *(message for _, message in self._posted)]

    def _step(self) -> None:
        waits = (
            any(self._sends.values()) or self._rooms or any(out.queue for out in self._out.values())
        )
        ready = self._poll.poll(CHECK_S if waits else -1)
        now_s = time.monotonic()
        listeners = {listener.fileno(): listener for listener in self._listeners.values()}
        for number, events in ready:
            if number == self._wake:
                self._take_posted()
            elif number in listeners:
                self._accept(listeners[number])
            elif number in self._by_number:
                end = self._by_number[number]
                try:
                    if isinstance(end, In):
                        self._receive(end, now_s)
                    elif events & ~select.EPOLLOUT:
                        raise RuntimeError(f"connection to rank {end.wire.peer}: closed by peer")
                    else:
                        self._push(end)
                except RuntimeError as error:
                    self._lose(end, error)
        if not ready:
            self._look_for_late(now_s)

    def _take_posted(self) -> None:
        os.eventfd_read(self._wake)
        while self._posted:
            outwards, message = self._posted.popleft()
            peer = message.key[0]
            try:
                if outwards:
                    self._sends.setdefault(message.key, deque()).append(message)
                    self._match(message.key)
                else:
                    self._numbers += 1
                    message.number = self._numbers
                    self._rooms[message.number] = message
                    self._frame(peer, READY, message.key, message.number, len(message.memory))
            except (RuntimeError, OSError) as error:
                self._fail(
                    peer,
                    error
                    if isinstance(error, RuntimeError)
                    else RuntimeError(f"connecting to rank {peer}: {error}"),
                )

    def _match(self, key: Key) -> None:
        """Send what a receiver waits for."""
        sends, ready = self._sends.get(key), self._ready.get(key)
        while sends and ready:
            message, (number, room) = sends.popleft(), ready.popleft()
            if room != len(message.memory):
                message.end(
                    RuntimeError(
                        f"rank {key[0]} receives {room} bytes, and {len(message.memory)} were to be sent"
                    )
                )
                self._frame(key[0], REFUSED, key, number, len(message.memory))
            else:
                self._frame(key[0], DATA, key, number, room, message)
        if not sends:
            self._sends.pop(key, None)
        if not ready:
            self._ready.pop(key, None)

    def _frame(
        self, peer: int, kind: int, key: Key, number: int, size: int, message: Message | None = None
    ) -> None:
        out = self._connected(peer)
        out.queue.append((memoryview(FRAME.pack(kind, key[1], key[2], number, size)), None))
        if message is not None:
            out.queue.append((message.memory, message))
        self._push(out)

    def _push(self, out: Out) -> None:
        waits = out.push(time.monotonic())
        self._poll.modify(out.wire.number, select.EPOLLRDHUP | (select.EPOLLOUT if waits else 0))

    def _lane(self, peer: int) -> int:
        """The ring, and so the lane, on which this rank's messages reach another soonest."""
        orders = self._orders()
        if self._lanes[0] is not orders:
            self._lanes = orders, {}
        known = self._lanes[1]
        if peer not in known:
            here = self._place.rank
            hops = [(order.index(peer) - order.index(here)) % len(order) for order in orders]
            known[peer] = hops.index(min(hops)) % len(self._place.lanes)
        return known[peer]

    def _connected(self, peer: int) -> Out:
        lane = self._lane(peer)
        if (peer, lane) not in self._out:
            existing = self._address(peer, lane)
            link = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            link.setblocking(False)
            try:
                link.bind((self._place.lane(lane), 0))
                link.connect_ex((existing[0], existing[1]))
                out = Out(Wire(link, peer))
            except BaseException:
                link.close()
                raise
            out.queue.append((memoryview(GREETING.pack(MAGIC, self._place.rank)), None))
            self._out[peer, lane] = self._by_number[out.wire.number] = out
            self._poll.register(out.wire.number, select.EPOLLRDHUP)
        return self._out[peer, lane]

    def _address(self, peer: int, lane: int) -> list[Any]:
        if peer not in self._addresses:
            key = f"mesh/{peer}"
            if not appears(self._store, key, self._place.timeout_s):
                raise RuntimeError(f"timed out while waiting for rank {peer}")
            self._addresses[peer] = json.loads(self._store.get(key))
        lanes = self._addresses[peer]
        return lanes[lane % len(lanes)]

    def _accept(self, listener: socket.socket) -> None:
        try:
            link = listener.accept()[0]
        except OSError:
            return
        end = In(link)
        self._by_number[end.wire.number] = end
        self._poll.register(end.wire.number, select.EPOLLIN)

    def _receive(self, end: In, now_s: float) -> None:
        """Take what has come in. Raises: RuntimeError - the connection is lost."""
        if end.message is None:
            end.at += end.wire.receive(end.room[end.at : end.need])
            if end.at == end.need:
                end.at = 0
                if end.wire.peer < 0:
                    magic, end.wire.peer = GREETING.unpack(end.room[: end.need])
                    if magic != MAGIC or not 0 <= end.wire.peer < self._place.world:
                        raise RuntimeError("not a rank of this job")
                    end.need = FRAME.size
                else:
                    self._frame_in(end)
            return
        count = end.wire.receive(end.message.memory[end.at :])
        end.at += count
        end.message.since_s = now_s
        self._wake_for(end)

    def _wake_for(self, end: In) -> None:
        """End the message if it is there; be woken for what is missing otherwise."""
        assert end.message is not None
        missing = len(end.message.memory) - end.at
        end.wire.wake_at(max(1, min(SLICE, missing)))
        if not missing:
            message, end.message, end.at = end.message, None, 0
            self._rooms.pop(message.number, None)
            message.end()

    def _frame_in(self, end: In) -> None:
        kind, group, tag, number, size = FRAME.unpack(end.room)
        key = end.wire.peer, group, tag
        if kind == READY:
            self._ready.setdefault(key, deque()).append((number, size))
            self._match(key)
            return
        message = self._rooms.get(number)
        if message is None:
            raise RuntimeError(f"rank {end.wire.peer} sends what nobody waits for")
        if kind == REFUSED:
            del self._rooms[number]
            message.end(
                RuntimeError(
                    f"rank {end.wire.peer} sends {size} bytes, and {len(message.memory)} were to be received"
                )
            )
            return
        end.message = message
        self._wake_for(end)

    def _lose(self, end: Out | In, error: RuntimeError) -> None:
        number, peer = end.wire.number, end.wire.peer
        self._poll.unregister(number)
        del self._by_number[number]
        end.wire.close()
        if isinstance(end, Out):
            self._out = {key: other for key, other in self._out.items() if other is not end}
            for _, message in end.queue:
                if message is not None:
                    message.end(error)
        elif end.message is not None:
            self._rooms.pop(end.message.number, None)
            end.message.end(error)
        if peer >= 0 and not any(
            isinstance(other, In) and other.wire.peer == peer for other in self._by_number.values()
        ):
            self._fail(peer, error)  # else what it has sent may yet come in

    def _fail(self, peer: int, error: RuntimeError) -> None:
        """A rank is lost: nothing more comes from it, or goes there."""
        for key in [key for key in self._sends if key[0] == peer]:
            for message in self._sends.pop(key):
                message.end(error)
        for number in [number for number, message in self._rooms.items() if message.key[0] == peer]:
            self._rooms.pop(number).end(error)

    def _look_for_late(self, now_s: float) -> None:
        late = [
            message
            for message in self._pending()
            if now_s - message.since_s > self._place.timeout_s
        ]
        for peer in {message.key[0] for message in late}:
            self._fail(peer, RuntimeError(f"timed out: nothing from or to rank {peer}"))
