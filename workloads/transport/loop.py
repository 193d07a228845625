"""Connections between ranks, and the loop in which one thread carries what is to be sent and
received over them.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from ..host.slots import CHECK_S, WAITS_S, Slots, shared

TICK_S = 1.0
"""A loop that waits for bytes gives a sign of life this often (s)."""
TCP_RTO_MAX_MS = 44
"""The socket option, from Linux 6.15 on (include/uapi/linux/tcp.h); Python has no name for it."""
RETRY_MS, PATIENCE_MS = 1000, 900_000
"""TCP doubles the time between two tries, so after a long darkness it would wait as long again: it
tries once a second instead (the least that the kernel takes). It then counts its tries the faster,
so for how long it tries is said, too: 15 min, its usual time."""


class Wire:
    """A connection with one sender and one receiver. Its errors are RuntimeErrors that name the
    rank at the other end.
    """

    def __init__(self, link: socket.socket, peer: int) -> None:
        self._link, self.peer = link, peer
        self._wakes_at = 1
        self.sent = 0
        """Bytes that the kernel has taken, without what it sends again or its headers."""
        self.number = link.fileno()
        self.address = link.getpeername()[0] if link.family == socket.AF_INET else ""
        link.setblocking(False)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError):  # an older kernel
            link.setsockopt(socket.IPPROTO_TCP, TCP_RTO_MAX_MS, RETRY_MS)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, PATIENCE_MS)

    def send(self, what: memoryview) -> int:
        """Bytes that were taken; 0 when there is no room."""
        try:
            count = self._link.send(what)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise RuntimeError(f"connection to rank {self.peer}: {error}") from error
        self.sent += count
        return count

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

    @property
    def closed(self) -> bool:
        """Whether the other end has closed the connection, or the kernel gave it up; nothing is
        received.
        """
        poll = select.poll()
        poll.register(self.number, select.POLLRDHUP)  # errors are reported without being asked for
        return bool(poll.poll(0))

    def bound(self, window: int) -> None:
        """Limit the bytes in flight to `window`."""
        # else the kernel lets the window grow with its buffer
        self._link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        self._link.setsockopt(socket.IPPROTO_TCP, socket.TCP_WINDOW_CLAMP, window)


class Task(Protocol):
    """Something to carry: what comes in by one wire, what goes out by another, or both."""

    @property
    def into(self) -> Wire | None: ...
    @property
    def out(self) -> Wire | None: ...
    @property
    # it waits for the first bytes of a rank that may not have begun yet
    def late(self) -> bool: ...

    def begin(self) -> None: ...
    def take(self) -> bool: ...  # receive what is there; True: that was all of it
    def push(self) -> bool: ...  # send what may be sent; True: there is more, and no room


class Stall:
    """The longest time in which no byte moved although something was to be carried, since the last
    mark.

    From `begin` to `end` also how long that was in all while ranks that might not have begun were
    waited for. alive: called once in TICK_S while something is carried, with the time (monotonic
    ns).
    """

    def __init__(self) -> None:
        self.longest_ns = 0
        self.summing = False
        self.alive: Callable[[int], None] = lambda _: None
        self._tick_ns = 0
        self._late_ns = self._noted_ns = 0

    def mark(self) -> None:
        self.longest_ns = 0

    def begin(self, now_ns: int) -> None:
        self._late_ns, self._noted_ns, self.summing, self._tick_ns = 0, now_ns, True, 0

    def end(self) -> int:
        """How long (ns) since `begin`."""
        self.summing = False
        return self._late_ns

    def note(self, moved_ns: int, now_ns: int, *, late: bool) -> None:
        """No byte moved between these times (monotonic ns); what was noted of a time before is not
        counted twice.
        """
        self.longest_ns = max(self.longest_ns, now_ns - moved_ns)
        if now_ns >= self._tick_ns:
            self._tick_ns = now_ns + int(TICK_S * 1e9)
            self.alive(now_ns)
        if late:
            self._late_ns += max(0, now_ns - max(moved_ns, self._noted_ns))
            self._noted_ns = now_ns


class Silence:
    """How long no byte has moved, without the time for which the schedule may be the reason, of
    which it leaves out WAITS_S.
    """

    def __init__(self, timeout_ns: int, slots: Slots) -> None:
        self._timeout_ns, self._slots = timeout_ns, slots
        self.moved(0)

    def moved(self, now_ns: int) -> None:
        self.since_ns = self._looked_ns = now_ns
        self.paused_ns = 0

    def look(self, now_ns: int, peers: Iterable[str]) -> None:
        """Leave out the time since the last look if the schedule is why these addresses were
        silent.
        """
        if self._slots.silences(peers):
            self.paused_ns = min(self.paused_ns + now_ns - self._looked_ns, int(WAITS_S * 1e9))
        self._looked_ns = now_ns

    def left_ns(self, now_ns: int) -> int:
        """How long it may yet last."""
        return max(0, self.since_ns + self._timeout_ns + self.paused_ns - now_ns)

    def of(self, ranks: Iterable[int]) -> RuntimeError:
        """What ends the waiting for these ranks."""
        paused = ""
        if self.paused_ns:
            seconds, of = (self._looked_ns - self.since_ns) / 1e9, self.paused_ns / 1e9
            paused = f" in {seconds:.0f} s, {of:.0f} s of them in a slot without a path, or without an end, of the schedule"
            paused += f" (slot {self._slots.slot}): does the schedule run? testbed status"
        return RuntimeError(
            f"timed out: nothing from or to rank {', '.join(map(str, sorted(set(ranks))))}{paused}"
        )


class Loop:
    """Carries tasks, all at once, in the thread that calls it."""

    def __init__(self, timeout_s: float, stall: Stall, slots: Slots | None = None) -> None:
        self._stall = stall
        self._slots, self._notified = slots or shared(), -1
        self._silence = Silence(int(timeout_s * 1e9), self._slots)
        # what is to be sent to ranks that are not reached in this slot
        self._gated: dict[int, Task] = {}
        self._readers: dict[int, Task] = {}
        self._writers: dict[int, Task] = {}
        self._poll = select.epoll()

    def close(self) -> None:
        self._poll.close()

    @property
    def busy(self) -> bool:
        return bool(self._readers or self._writers or self._gated)

    def watch(self, number: int) -> None:
        """Return from `step` also when this file can be read, which is then left to the caller."""
        self._poll.register(number, select.EPOLLIN)

    def add(self, task: Task) -> None:
        """Begin a task, or go on with one to which something was added."""
        if not self.busy:
            self._silence.moved(time.monotonic_ns())
        task.begin()
        if task.into is not None and task.into.number not in self._readers:
            self._readers[task.into.number] = task
            self._poll.register(task.into.number, select.EPOLLIN)
        if task.out is not None:
            self._push(task)

    def step(self) -> bool:
        """Move what can be moved, after waiting for it; say whether a watched file may be readable.

        Raises: RuntimeError - a peer is gone, or silent for the timeout with a path to it.
        """
        watched = False
        late = self._stall.summing and any(task.late for task in self._readers.values())
        left_s = self._silence.left_ns(time.monotonic_ns()) / 1e9
        self._listen()
        ready = self._poll.poll(
            min(CHECK_S if self._gated else TICK_S, left_s) if self.busy else -1
        )
        now_ns = time.monotonic_ns()
        if self.busy:
            self._stall.note(self._silence.since_ns, now_ns, late=late)
            # what is sent now counts from now on
            if not ready or any(number == self._notified for number, _ in ready):
                self._silence.look(now_ns, [wire.address for wire in self._wires() if wire.address])
            if not ready and not self._silence.left_ns(now_ns):
                raise self._silence.of(wire.peer for wire in self._wires())
        if not ready:
            self._slots.read()  # an agent that was started again is connected to
        for number, _ in ready:
            if number in self._writers:
                self._silence.moved(now_ns)
                self._push(self._writers[number])
            elif number in self._readers:  # else its task was through with it since
                self._silence.moved(now_ns)
                task = self._readers[number]
                if _take(task):
                    del self._readers[number]
                    self._poll.unregister(number)
                if task.out is not None:
                    self._push(task)
            elif number == self._notified:
                self._slots.read()
            else:
                watched = True
        for number in list(self._gated):
            self._push(self._gated.pop(number))
        return watched

    def _wires(self) -> list[Wire]:
        """What something is awaited of."""
        outgoing = [
            task.out for task in (*self._writers.values(), *self._gated.values()) if task.out
        ]
        return [*(task.into for task in self._readers.values() if task.into), *outgoing]

    def _listen(self) -> None:
        """Be woken by what the agent says of slots; its connection may have been made again."""
        if self._slots.number != self._notified:
            # the kernel forgets a file that was closed
            with contextlib.suppress(OSError, ValueError):
                self._poll.unregister(self._notified)
            self._notified = self._slots.number
            if self._notified >= 0:
                self._poll.register(self._notified, select.EPOLLIN)

    def _push(self, task: Task) -> None:
        assert task.out is not None
        number = task.out.number
        gated = (
            self._slots.reach is not None
            and task.out.address
            and not self._slots.until(task.out.address)
        )
        waits = False if gated else task.push()
        if gated:
            self._gated[number] = task
        if waits and number not in self._writers:
            self._writers[number] = task
            self._poll.register(number, select.EPOLLOUT)
        elif not waits and number in self._writers:
            del self._writers[number]
            self._poll.unregister(number)


def _take(task: Task) -> bool:
    """Have a task receive what is there. Where the ranks at both ends are gone, the one that it
    sends to was lost first: the other has given up because of it. Raises: RuntimeError - a peer is
    gone."""
    try:
        return task.take()
    except RuntimeError as error:
        if task.out is not None and task.out.closed:
            raise RuntimeError(f"connection to rank {task.out.peer}: closed by peer") from error
        raise
