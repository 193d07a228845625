"""Sums over the rings of a plan by datagrams, of which a bounded share may be lost (blocks.py,
datagrams.py).

What a rank sends to the next of a ring is spread over all lanes that the two share, each datagram
over the one with the most room. First goes what is left of sums that are done here, as others wait
for it, then the newest, that of the layers in front. Within a sum blocks go on in the order in
which they come in: if those with large numbers overtook others on their way around, the last would
go around alone, and links would wait.

A set keeps the connections of its rings (carrier.py) as well: their end says at once that a peer is
gone, which datagrams do not. Datagrams are taken from the peers' addresses and ports alone (the
sockets are connected), with the token that this rank drew, of a length that is due, and where peers
are ahead by neighbours.EARLY bytes no more are kept. A thread for each set does all of it; it also
answers for sums that are done here, as others may still miss something.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from ..host.place import Place
from ..host.slots import CHECK_S, shared
from ..transport.buffers import Buffer, pieces
from ..transport.datagrams import (
    ACK,
    DATA,
    HEADER,
    KEPT,
    LARGEST,
    NOTHING,
    PING,
    RINGS,
    SUMS,
    Block,
    Item,
    full,
    unpacked,
)
from ..transport.loop import TICK_S, Stall
from ..transport.meeting import met
from ..transport.neighbours import EARLY, End, Neighbour, Tally
from .blocks import BlockRound
from .carrier import RingSet, Sum

AHEAD = 4096
"""A peer is ahead by less sums than these."""
DRAINED = 64
"""So many datagrams are taken from a socket before others have their turn."""


class DatagramSet(RingSet):
    """The rings of a layout, their lanes, and the thread that carries sums by datagrams."""

    def __init__(
        self,
        place: Place,
        store: Any,
        torch: Any,
        orders: Sequence[Sequence[int]],
        name: str,
        bound: float,
        tally: Tally,
        *,
        within_s: float | None = None,
        given_up: Callable[[], bool] | None = None,
        stall: Stall | None = None,
    ) -> None:
        """bound: as BlockRound. Raises: RuntimeError - as RingSet."""
        if len(orders) > RINGS:
            raise ValueError(f"{len(orders)} rings: datagrams go over {RINGS} at most")
        until_s = time.monotonic() + (within_s if within_s is not None else place.timeout_s)
        super().__init__(
            place, store, torch, orders, name, within_s=within_s, given_up=given_up, stall=stall
        )
        self._torch, self._bound, self._tally, self._stall = torch, bound, tally, stall or Stall()
        self._timeout_s, self._now_s, self._slower = place.timeout_s, place.lab_s, place.dilation
        self._error: RuntimeError | None = None
        self._begun = 0
        self._rounds: dict[tuple[int, int], tuple[BlockRound, Sum]] = {}
        self._queue: deque[tuple[Sum, Any] | None] = deque()
        self._scratch = bytearray(LARGEST)
        self._numbers: dict[Any, Any] = {}
        self._moved_ns = 0
        self._ends: list[End] = []
        self._before = [order[order.index(place.rank) - 1] for order in self.orders]
        self._after = [order[(order.index(place.rank) + 1) % place.world] for order in self.orders]
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.epoll()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        try:
            self._meet(place, store, name, until_s, given_up)
        except BaseException as error:
            self._close()
            if isinstance(error, OSError):
                raise RuntimeError(f"connecting to peers: {error}") from error
            raise
        self._thread.start()

    def _meet(
        self,
        place: Place,
        store: Any,
        name: str,
        until_s: float,
        given_up: Callable[[], bool] | None,
    ) -> None:
        others = {*self._before, *self._after}
        self._neighbours, self._unit = met(
            place, store, name, others, self._ends, until_s, given_up
        )
        self._by_number: dict[int, End] = {}
        for neighbour in self._neighbours.values():
            for end in neighbour.ends:
                end.neighbour = neighbour
                self._by_number[end.socket.fileno()] = end
                self._poll.register(end.socket, select.EPOLLIN)
        self._poll.register(self._wake, select.EPOLLIN)
        self._lines = {
            wire.number: wire.peer for wire in (*self.wires.out.values(), *self.wires.into.values())
        }
        for number in self._lines:
            self._poll.register(number, select.EPOLLRDHUP)

    def sum(self, flat: Any) -> Sum:
        """Begin summing `flat` (as buffers.Buffer.of) in place over all ranks; all ranks in the
        same order.
        """
        parts = pieces(flat.numel(), len(self.rings)) if self.rings else []
        begun = Sum(flat, sum(end > begin for begin, end in parts), self._torch)
        if not begun.get_future().done():
            self._queue.append((begun, Buffer.of(flat)))
            os.eventfd_write(self._wake, 1)
        return begun

    def close(self) -> None:
        if self._thread.is_alive():
            self._queue.append(None)
            os.eventfd_write(self._wake, 1)
            self._thread.join()
        self._close()

    def _close(self) -> None:
        for end in self._ends:
            end.socket.close()
        self._poll.close()
        os.close(self._wake)
        super().close()

    # the thread

    def _run(self) -> None:
        notified = -1
        while True:
            if self._error is not None:  # every later sum fails as well
                select.select([self._wake], [], [])
                if not self._begin():
                    return
                continue
            if shared().number != notified:  # its connection may have been made again
                with contextlib.suppress(OSError, ValueError):
                    self._poll.unregister(notified)
                notified = shared().number
                if notified >= 0:
                    self._poll.register(notified, select.EPOLLIN)
            late = self._stall.summing and any(not each.begun for each, _ in self._rounds.values())
            ready = self._poll.poll(self._patience())
            if self._wake in (number for number, _ in ready) and not self._begin():
                return
            try:
                for number, _ in ready:
                    if number in self._by_number:
                        self._receive(self._by_number[number])
                    elif number in self._lines:
                        self._poll.unregister(number)
                        if self._rounds:
                            raise RuntimeError(
                                f"connection to rank {self._lines[number]}: closed by peer"
                            )
                    elif number == notified:
                        shared().read()
                self._send(self._now_s())
                self._watch(late)
            # a thread: a sum that nobody carries would be waited for without end
            except Exception as error:
                self._error = (
                    error
                    if isinstance(error, RuntimeError)
                    else RuntimeError(f"datagrams: {error!r}")
                )
                self._fail()

    def _patience(self) -> float:
        """How long (s) nothing is due; -1: nothing is."""
        waits = [TICK_S] if self._rounds else []
        now_s = self._now_s()
        for end in self._by_number.values():
            due = [
                at
                for at in (end.lane.receipts.ack_s, end.lane.probe_at_s, end.lane.tail_at_s)
                if at is not None
            ]
            if due:
                waits.append(max(0.0, min(due) - now_s) * self._slower if end.open else CHECK_S)
        return min(waits, default=-1.0)

    def _fail(self) -> None:
        assert self._error is not None
        for neighbour in self._neighbours.values():  # the memory is the program's again
            neighbour.forget()
        for _, whole in self._rounds.values():
            whole.failed(self._error)
        self._rounds.clear()

    def _watch(self, late: bool) -> None:
        """Raises: RuntimeError - nothing was settled for the timeout."""
        if not self._rounds:
            return
        now_ns = time.monotonic_ns()
        self._stall.note(self._moved_ns, now_ns, late=late)
        if now_ns >= self._moved_ns + int(self._timeout_s * 1e9):
            rings = {ring for _, ring in self._rounds}
            silent = sorted(
                {self._before[ring] for ring in rings} | {self._after[ring] for ring in rings}
            )
            raise RuntimeError(f"timed out: nothing from or to rank {', '.join(map(str, silent))}")

    def _begin(self) -> bool:
        """Begin what is queued; False: to end."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        while self._queue:
            entry = self._queue.popleft()
            if entry is None:
                return False
            whole, buffer = entry
            try:
                if self._error is None and (ended := self.lost()):
                    self._error = RuntimeError(ended)
                if self._error is not None:
                    whole.failed(self._error)
                    continue
                self._begin_sum(whole, buffer)
            except Exception as error:
                self._error = RuntimeError(f"datagrams: {error!r}")
                whole.failed(self._error)
                self._fail()
        return True

    def _begin_sum(self, whole: Sum, buffer: Buffer) -> None:
        number, self._begun = self._begun, self._begun + 1
        if not self._rounds:
            self._moved_ns = time.monotonic_ns()
        for ring, (begin, end) in enumerate(pieces(buffer.tensor.numel(), len(self.rings))):
            if end > begin:
                part, place = buffer.part(begin, end), self.rings[ring]
                mine = BlockRound(
                    number,
                    ring,
                    place.at,
                    place.size,
                    part,
                    self._unit,
                    self._bound,
                    self._torch,
                    self._forward,
                    self._before[ring],
                )
                self._rounds[number, ring] = mine, whole
                mine.begin()
        for peer in set(self._before):
            neighbour = self._neighbours[peer]
            if neighbour.ends:
                neighbour.ends[0].lane.receipts.ack_s = 0.0  # so that it knows what is begun here
            for name, (count, payload) in neighbour.early.pop(number, {}).items():
                neighbour.early_size -= len(payload)
                block = unpacked(name)
                self._scratch[HEADER.size : HEADER.size + len(payload)] = payload
                self._take(neighbour, number, block, count, len(payload))

    def _forward(self, block: Block, memory: memoryview, count: int) -> None:
        self._neighbours[self._after[block.ring]].queue(
            Item(block.packed(), memory, count, block.sum)
        )

    def _receive(self, end: End) -> None:
        view, neighbour, lane = memoryview(self._scratch), end.neighbour, end.lane
        for _ in range(DRAINED):
            try:
                length, _, flags, _ = end.socket.recvmsg_into([view])
            except BlockingIOError:
                return
            except OSError:  # what the network says of a datagram that was sent
                continue
            if length < HEADER.size or flags & socket.MSG_TRUNC:
                continue
            token, name, number, count, kind, *before = HEADER.unpack_from(self._scratch)
            if token != end.token:
                continue
            now_s = self._now_s()
            if kind == ACK and length == HEADER.size + KEPT // 8:
                self._acknowledged(end, name, number, count, now_s)
                continue
            if kind == DATA:
                block = unpacked(name)
                if not self._take(
                    neighbour,
                    full(block.sum, self._begun, SUMS),
                    block,
                    count,
                    length - HEADER.size,
                ):
                    continue
            elif kind != PING or length != HEADER.size:
                continue
            whole = lane.receipts.take(number, now_s, kind == PING)
            for back, earlier in enumerate(before, 1):
                if lane.receipts.missing(whole - back) and self._without(neighbour, earlier):
                    lane.receipts.settle(whole - back)

    def _acknowledged(self, end: End, begun: int, number: int, ended: int, now_s: float) -> None:
        settled = int.from_bytes(self._scratch[HEADER.size : HEADER.size + KEPT // 8], "big")
        try:
            done, again = end.lane.acknowledged(number, settled, ended, now_s)
        except ValueError:
            return
        end.neighbour.has_begun(begun)
        end.neighbour.again.extend(again)
        if done:
            self._moved_ns = time.monotonic_ns()

    def _take(
        self, neighbour: Neighbour, number: int, block: Block, count: int, length: int
    ) -> bool:
        """A block came from this rank, in the scratch memory; False: it is to be as if it had not
        come.
        """
        if number >= self._begun:
            name = block.packed()
            some = neighbour.early.setdefault(number, {}) if number < self._begun + AHEAD else None
            if some is None or length > self._unit or neighbour.early_size + length > EARLY:
                return False
            if name not in some:
                some[name] = count, bytes(self._scratch[HEADER.size : HEADER.size + length])
                neighbour.early_size += length
            return True
        mine, whole = self._rounds.get((number, block.ring), (None, None))
        if mine is None or whole is None:
            return True  # it is done here
        if (
            mine.sender != neighbour.peer
            or not length
            or length != mine.length(block.hop, block.at)
        ):
            return False
        kind = whole.flat.dtype
        if kind not in self._numbers:
            size = LARGEST - HEADER.size
            self._numbers[kind] = self._torch.frombuffer(
                self._scratch, dtype=kind, offset=HEADER.size, count=size // kind.itemsize
            )
        if not mine.take(
            block.hop, block.at, count, self._numbers[kind][: length // kind.itemsize]
        ):
            return False
        self._progress(mine, whole)
        return True

    def _without(self, neighbour: Neighbour, name: int) -> bool:
        """A datagram with this block was lost: whether it need not come any more."""
        if name == NOTHING:
            return True
        block = unpacked(name)
        number = full(block.sum, self._begun, SUMS)
        if number >= self._begun:
            return False
        mine, whole = self._rounds.get((number, block.ring), (None, None))
        if mine is None or whole is None:
            return True
        if mine.sender != neighbour.peer or not mine.length(block.hop, block.at):
            return False
        if not mine.forgo(block.hop, block.at, block.dear):
            return False
        self._progress(mine, whole)
        return True

    def _progress(self, mine: BlockRound, whole: Sum) -> None:
        self._moved_ns = time.monotonic_ns()
        if not mine.done or (mine.number, mine.ring) not in self._rounds:
            return
        del self._rounds[mine.number, mine.ring]
        key = Block(mine.number, mine.ring, 0, 0, False).packed() >> 34
        after = self._neighbours[self._after[mine.ring]]
        after.closing(mine.number)
        for item in after.unsent():
            if item.name >> 34 == key:  # the memory is the program's again
                item.memory = bytes(item.memory)
        for missing, all_of_them in mine.missing():
            self._tally.missing += missing
            self._tally.contributions += all_of_them
        whole.part_done()

    def _send(self, now_s: float) -> None:
        for neighbour in self._neighbours.values():
            ends = [end for end in neighbour.ends if end.open]
            for end in neighbour.ends:
                lane = end.lane
                if end not in ends:
                    lane.probe_at_s = (
                        None if lane.probe_at_s is None else now_s + lane.window.probe_s
                    )
                    continue
                if lane.probe_at_s is not None and now_s >= lane.probe_at_s:
                    neighbour.again.extend(lane.probe(now_s))
                    self._out(end, lane.ping(), b"")
                elif lane.tail_at_s is not None and now_s >= lane.tail_at_s:
                    self._out(end, lane.ping(), b"")
                if lane.receipts.ack_s is not None and now_s >= lane.receipts.ack_s:
                    self._out(end, lane.receipts.acknowledgement(lane.token, self._begun), b"")
            while ends:
                end = max(ends, key=lambda end: end.lane.room)
                if end.lane.room < self._unit + HEADER.size or (item := neighbour.next()) is None:
                    break
                resent = item.sends > 0
                size = self._out(end, end.lane.send(item, now_s), item.memory)
                self._tally.resent += size if resent else 0
            for end in ends:
                end.lane.rest(now_s)
            if ends and neighbour.waits:  # for room, or until the other has begun: ask how it is
                min(ends, key=lambda end: end.lane.silent).lane.ask(now_s)

    def _out(self, end: End, head: bytes, memory: Any) -> int:
        """Send a datagram; one that the kernel does not take is as one lost on its way."""
        with contextlib.suppress(OSError):
            end.socket.sendmsg([head, memory])
        self._tally.sent += len(head) + len(memory)
        return len(head) + len(memory)
