"""Ring collectives in the background: one thread carries all sums that a rank has begun, over the
connections of a ring set.

So backward goes on while the gradients it has finished are summed. Each ring carries its sums one
after the other, and sends its part of the next while the last of the one before is still coming in.
"""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..host.place import Place
from ..transport.buffers import Buffer, pieces
from ..transport.loop import Loop, Stall, Wire
from ..transport.tasks import SCRATCH, Combining, Passing, Round, Segment
from ..transport.wires import Wires


class Sum:
    """One all-reduce or all-gather under way. `get_future` gives a torch future of the tensor,
    which is filled in place.
    """

    def __init__(self, flat: Any, parts: int, torch: Any) -> None:
        self.flat, self._parts = flat, parts
        self._future = torch.futures.Future()
        if not parts:
            self._future.set_result(flat)

    def part_done(self) -> None:
        self._parts -= 1
        if not self._parts:
            self._future.set_result(self.flat)

    def failed(self, error: Exception) -> None:
        if not self._future.done():
            self._future.set_exception(error)

    def wait(self) -> None:
        """Raises: RuntimeError - a peer is gone or silent for the timeout."""
        self._future.wait()

    def get_future(self) -> Any:
        return self._future


class Whole(Protocol):
    """What a ring carries a part of."""

    def part_done(self) -> None: ...


class Ring:
    """A rank's place in one ring: a connection in, one out, and the sums on them, first come first
    carried (a wires.Task).
    """

    def __init__(self, into: Wire, out: Wire, at: int, size: int, torch: Any) -> None:
        self.out: Wire | None = out
        self.at, self.size = at, size
        self._from, self._to, self._torch = into, out, torch
        self._scratch = bytearray(SCRATCH)
        self._numbers: dict[Any, Any] = {}
        self._receiving: deque[tuple[Passing, Whole]] = deque()
        self._sending: deque[tuple[Passing, Whole]] = deque()

    def enter(self, part: Buffer, whole: Sum) -> None:
        """Queue the sum of `part`."""
        self.queue(
            Round(self._from, self._to, self.at, self.size, part, self._torch, self._scratch), whole
        )

    def queue(self, passing: Passing, whole: Whole) -> None:
        """Queue this rank's part in a collective, of which `whole` is to know when it is done."""
        entry = passing, whole
        passing.reset()
        if not passing.received:
            if not self._receiving:
                passing.wake()
            self._receiving.append(entry)
        self._sending.append(entry)

    def carry(
        self,
        own: memoryview,
        incoming: Sequence[Segment],
        passed_on: int,
        whole: Whole,
        function: Any = None,
        dtype: Any = None,
    ) -> None:
        """Queue a wires.Passing; `function` and `dtype` say how its numbers are combined, where
        they are.
        """
        combining = None
        if function is not None:
            if dtype not in self._numbers:
                self._numbers[dtype] = self._torch.frombuffer(self._scratch, dtype=dtype)
            combining = Combining(
                function, dtype.itemsize, memoryview(self._scratch), self._numbers[dtype]
            )
        self.queue(Passing(self._from, self._to, own, incoming, passed_on, combining), whole)

    @property
    def into(self) -> Wire | None:
        return self._from if self._receiving else None

    @property
    def late(self) -> bool:
        return bool(self._receiving) and self._receiving[0][0].late

    def begin(self) -> None:
        pass  # each round began when it was queued

    def take(self) -> bool:
        while self._receiving:
            entry = self._receiving[0]
            if not entry[0].take():
                return False
            self._receiving.popleft()
            if entry not in self._sending:
                entry[1].part_done()
            if self._receiving:
                self._receiving[0][0].wake()
                return False
        return True

    def push(self) -> bool:
        while self._sending:
            entry = self._sending[0]
            if entry[0].push():
                return True
            if not entry[0].sent:
                return False  # what it is to send has not come in yet
            self._sending.popleft()
            if entry not in self._receiving:
                entry[1].part_done()
        return False


class RingSet:
    """The ring connections of one layout. group: where it has more ranks than the job, torch's group
    of them all.
    """

    group: Any = None

    def __init__(
        self,
        place: Place,
        store: Any,
        torch: Any,
        orders: Sequence[Sequence[int]],
        name: str,
        *,
        within_s: float | None = None,
        given_up: Callable[[], bool] | None = None,
        stall: Stall | None = None,
    ) -> None:
        """Meet the other ranks of these rings, ring k on lane k. Raises: RuntimeError - as Wires."""
        rank = place.rank
        orders = [order for order in orders if len(order) > 1]  # a rank alone needs no ring
        where = [
            (f"{k}/", order[order.index(rank) - 1], order.index(rank))
            for k, order in enumerate(orders)
        ]
        out = {
            f"{k}{rank}": (orders[n][(at + 1) % len(orders[n])], n)
            for n, (k, _, at) in enumerate(where)
        }
        into = {f"{k}{before}": (before, n) for n, (k, before, _) in enumerate(where)}
        self.wires = Wires(
            place, store, out, into, name, within_s=within_s, given_up=given_up, stall=stall
        )
        self.name, self.orders = name, [list(order) for order in orders]
        self.rings = [
            Ring(
                self.wires.into[f"{k}{before}"],
                self.wires.out[f"{k}{rank}"],
                at,
                len(orders[n]),
                torch,
            )
            for n, (k, before, at) in enumerate(where)
        ]
        self._far = [
            wire
            for wire in self.wires.out.values()
            if place.sites and place.sites[wire.peer] != place.site
        ]
        self.inside: RingSet | None = None
        """The rings among the ranks of this rank's site alone, where they are wanted."""

    @property
    def sent(self) -> int:
        """Bytes that this rank has sent over these rings; all of those of a sum that is done."""
        own = sum(ring.out.sent for ring in self.rings if ring.out is not None)
        return own + (self.inside.sent if self.inside is not None else 0)

    @property
    def wide(self) -> int:
        """Of these, the bytes that went to ranks of other sites."""
        return sum(wire.sent for wire in self._far)

    def close(self) -> None:
        self.wires.close()
        if self.inside is not None:
            self.inside.close()

    def lost(self) -> str:
        """As Wires.lost."""
        return self.wires.lost() or (self.inside.lost() if self.inside is not None else "")


Enter = Callable[[Ring, Sequence[int], int, int, Sum], None]
"""Queues on a ring, of this order, what is to be done with the elements from a begin to an end."""


class Carrier:
    """The thread that carries sums. It begins with the first one."""

    def __init__(self, timeout_s: float, stall: Stall, torch: Any) -> None:
        self._timeout_s, self._stall, self._torch = timeout_s, stall, torch
        self._queue: deque[tuple[Sum, Enter, list[tuple[Ring, list[int], int, int]]] | None] = (
            deque()
        )
        self._in_progress: list[Sum] = []
        self._error: Exception | None = None
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="carrier", daemon=True)

    def sum(self, rings: RingSet, flat: Any) -> Sum:
        """Begin summing `flat` (as buffers.Buffer.of) in place over these rings; all ranks in the
        same order.
        """

        def enter(ring: Ring, _order: Sequence[int], begin: int, end: int, whole: Sum) -> None:
            ring.enter(Buffer.of(flat).part(begin, end), whole)

        return self._carry(rings, flat, flat.numel(), enter)

    def gather(self, rings: RingSet, table: Any) -> Sum:
        """Begin filling `table` (contiguous, a row for each rank; this rank's own is there); all
        ranks in the same order.
        """

        def enter(ring: Ring, order: Sequence[int], begin: int, end: int, whole: Sum) -> None:
            # from this rank backwards
            behind = [order[(ring.at - step) % ring.size] for step in range(ring.size)]
            own, *others = (Buffer.over(table[rank]).part(begin, end).memory for rank in behind)
            ring.carry(own, [Segment(row) for row in others], len(others) - 1, whole)

        return self._carry(rings, table, table.shape[1], enter)

    def _carry(self, rings: RingSet, flat: Any, length: int, enter: Enter) -> Sum:
        """Have each ring carry its part of the elements 0 to `length`."""
        if not self._thread.ident:
            self._thread.start()
        parts = pieces(length, len(rings.rings)) if rings.rings else []
        begun = Sum(flat, sum(end > begin for begin, end in parts), self._torch)
        if not begun.get_future().done():
            each = [
                (ring, order, *part)
                for ring, order, part in zip(rings.rings, rings.orders, parts, strict=True)
            ]
            self._queue.append((begun, enter, [entry for entry in each if entry[3] > entry[2]]))
            os.eventfd_write(self._wake, 1)
        return begun

    def close(self) -> None:
        """End the thread; nothing may be under way."""
        if self._thread.ident:
            self._queue.append(None)
            os.eventfd_write(self._wake, 1)
            self._thread.join()
        os.close(self._wake)

    def _run(self) -> None:
        loop = Loop(self._timeout_s, self._stall)
        loop.watch(self._wake)
        try:
            while self._begin(loop):
                # connections are in the midst of something: every later sum fails as well
                if self._error is not None:
                    self._fail()
                    select.select([self._wake], [], [])
                    continue
                try:
                    loop.step()
                # a thread: a sum that nobody carries would be waited for without end
                except Exception as error:
                    self._error = _as_runtime(error)
                self._in_progress = [
                    each for each in self._in_progress if not each.get_future().done()
                ]
        finally:
            loop.close()

    def _fail(self) -> None:
        assert self._error is not None
        for each in self._in_progress:
            each.failed(self._error)
        self._in_progress.clear()

    def _begin(self, loop: Loop) -> bool:
        """Begin what is queued; False: to end."""
        try:
            os.eventfd_read(self._wake)
        except BlockingIOError:
            return True
        while self._queue:
            entry = self._queue.popleft()
            if entry is None:
                return False
            whole, enter, parts = entry
            self._in_progress.append(whole)
            if self._error is not None:
                continue
            try:
                for ring, order, begin, end in parts:
                    enter(ring, order, begin, end, whole)
                    loop.add(ring)
            except Exception as error:
                self._error = _as_runtime(error)
        return True


def _as_runtime(error: Exception) -> RuntimeError:
    """What a sum raises: a RuntimeError, as for a lost peer."""
    return error if isinstance(error, RuntimeError) else RuntimeError(f"carrier: {error!r}")
