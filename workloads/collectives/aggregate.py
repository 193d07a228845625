"""Sums that a packet switch makes: every rank sends it the whole of its numbers as integers, and
gets the sum back.

Written from docs/reference/functions-dialect.md. So M bytes of numbers cost a rank M bytes each
way, where a ring costs 2 (n-1)/n M. A switch adds integers only, so ranks first agree by what power
of two to multiply, tensor by tensor: each adds a one to the count of the exponent of its largest
number, in a chunk of 256 counts of eight bits (an allocation has at most 64 workers), and the
highest that was counted decides. No sum overflows, and the largest number of any rank keeps 24 bits
or more, as float32 does. Integer addition has no order: all ranks get the same bits, whatever was
lost or came late.

A part whose sum does not come is sent again: at once when the sums of parts sent after it are
there, and the oldest one alone when nothing comes any more, ever more seldom. How soon that is
depends on what silence says. Of a few parts all may be lost, so it is a little more than the time
in which sums came. Where no part was lost of late, that none of many comes back is a rank that has
not begun, or a switch without a processor. To a part that it has the switch answers WAIT, which
says that a rank is late, and so that silence says nothing of other parts. Two of these three signs,
and nothing is sent again before half a second: to find out that a rank is late costs one part.
"""

from __future__ import annotations

import math
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..host.grants import ADD, HEADER, MAGIC, SUM, VERSION, WAIT, Grant
from ..transport.buffers import Buffer
from .carrier import Sum

COUNTED, LOWEST, NOT_FINITE = 256, -126, 255
"""Exponents that are distinguished: class k > 0 is of numbers below 2^(k + LOWEST), 0 where all are
zero (or below 2^-126, and become zero), the last where one is infinite or not a number. Normal
float32 are below 2^128."""
BITS = 30
"""A sum stays below 2^30: with rounding, too, it fits an int32."""
AFTER = 3
"""So many sums of parts sent later, and a part counts as lost. Packets of one cable are not
reordered, but those of ranks are.
"""
FIRST_S, LEAST_S, MOST_S = 0.1, 0.02, 1.0
"""Of the time in which a sum comes: before any was measured, at least, and at most (s)."""
LULL_S, SOUND = 0.5, 256
"""How long (s) nothing need come while a rank is late. Ranks of a busy machine begin some tenths of
a second apart. Signs of it: more than AFTER parts wait that were sent once (if only some of them
are lost, sums of the others tell); so many sums in a row came without a loss (where many are lost,
a rank may wait for a part that no other one knows to be lost); the switch says so of a part.
"""


@dataclass(slots=True)
class Part:
    """A chunk on its way. serial: of its last sending, all sendings counted; at_s: when that was
    (`_now_s`).

    begun: it is of the first parts, whose sums also wait for ranks that begin later. again: how
    often it was sent again. held: the switch said that it has it, and waits for those of others.
    """

    serial: int
    at_s: float
    begun: bool
    again: int = 0
    held: bool = False


class Aggregate:
    """Carries sums through a packet switch, one after the other (rings.Exchange)."""

    def __init__(
        self,
        grant: Grant,
        own: str,
        rank: int,
        world: int,
        epoch: int,
        timeout_s: float,
        torch: Any,
        slower: float = 1.0,
    ) -> None:
        """epoch: the same at all ranks, and higher than at an earlier start with this grant.
        slower: times of this module are so many times longer. Raises: OSError.
        """
        self._grant, self._rank, self._epoch, self._timeout_s, self._torch, self._slower = (
            grant,
            rank,
            epoch,
            timeout_s / slower,
            torch,
            slower,
        )
        self.sent = 0
        """Bytes of datagrams, with their headers here but not those of UDP and IP."""
        self.again = 0
        """Parts that were sent more than once, as often as they were."""
        self._notified = ""  # why the network took or gave nothing, the last time
        self._next = self._serial = 0
        self._bits = BITS - max(0, (world - 1).bit_length())
        self._usual_s = self._vary_s = 0.0
        self._sound = SOUND  # sums since the last that reported a loss
        self._link = grant.connect(own)
        self._link.setblocking(False)
        self._heard, self._head = memoryview(bytearray(grant.each_bytes)), bytearray(HEADER.size)
        self._queue: deque[Sum | None] = deque()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC)
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="aggregate", daemon=True)
        self._thread.start()

    def start(self, flat: Any) -> list[Sum]:
        """Begin summing `flat` (contiguous floating-point numbers on the host) in place; all ranks
        in the same order.
        """
        whole = Sum(flat, 1 if flat.numel() else 0, self._torch)
        if flat.numel():
            self._queue.append(whole)
            os.eventfd_write(self._wake, 1)
        return [whole]

    def gather(self, table: Any) -> list[Any]:
        """A switch adds. Raises: ValueError."""
        raise ValueError("a packet switch adds numbers, it gathers none: exchange wires")

    def notes(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        """End the thread; nothing may be under way."""
        self._queue.append(None)
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        self._link.close()
        os.close(self._wake)

    def _run(self) -> None:
        while True:
            os.eventfd_read(self._wake)  # waits
            while self._queue:
                whole = self._queue.popleft()
                if whole is None:
                    return
                if self._error is not None:  # ranks no longer agree which chunk is next
                    whole.failed(self._error)
                    continue
                try:
                    self._sum(whole.flat)
                    whole.part_done()
                # a thread: a sum that nobody carries would be waited for without end
                except Exception as error:
                    self._error = (
                        error
                        if isinstance(error, RuntimeError)
                        else RuntimeError(f"aggregate: {error!r}")
                    )
                    whole.failed(self._error)

    def _sum(self, flat: Any) -> None:
        """Sum these numbers over all ranks, in place."""
        torch = self._torch
        numbers = flat.detach().double()
        own, counts = (
            exponent(float(numbers.abs().max())),
            torch.zeros(COUNTED // 4, dtype=torch.int32),
        )
        counts[own // 4] = 1 << 8 * (own % 4)
        self._carry(counts)
        bytes_ = bytes(Buffer.over(counts).memory)
        highest = max(place for place, count in enumerate(bytes_) if count)
        if highest == NOT_FINITE:
            flat.fill_(math.nan)
        elif highest == 0:
            flat.zero_()
        else:
            by = self._bits - (highest + LOWEST)
            whole = (numbers * 2.0**by).round_().to(torch.int32)
            self._carry(whole)
            flat.copy_(whole.double() * 2.0**-by)

    def _carry(self, whole: Any) -> None:
        """Sum a contiguous tensor of int32 over all ranks, in place. Raises: RuntimeError - the
        sums do not come.
        """
        memory, each = Buffer.over(whole).memory.cast("B"), self._grant.each_bytes
        first, count = self._next, -(-len(memory) // each)
        self._next += count
        in_progress: dict[int, Part] = {}
        poll = select.poll()
        poll.register(self._link, select.POLLIN)
        for chunk in range(min(self._grant.size, count)):
            self._send(memory, first, chunk, in_progress, begun=True)
        left, silent_s, quiet, tries = count, self._now_s(), self._now_s(), 0
        while left:
            wait_s = (LULL_S if self._is_late(in_progress) else self._within_s) * 2**tries
            now = self._now_s()
            if now - silent_s > self._timeout_s:
                raise RuntimeError(
                    f"timed out: {left} of {count} sums have not come from the packet switch {self._grant.address}: "
                    f"{self._missing(in_progress)}"
                    + (f" ({self._notified})" if self._notified else "")
                )
            if now >= quiet + wait_s:
                self._send(
                    memory,
                    first,
                    min(in_progress, key=lambda c: in_progress[c].serial),
                    in_progress,
                )
                tries, quiet = tries + (wait_s < MOST_S), now
                continue
            poll.poll(1000 * self._slower * (quiet + wait_s - now) + 1)
            while (chunk := self._receive(memory, first, in_progress)) >= 0:
                part = in_progress.pop(chunk)
                left, self._sound = left - 1, self._sound + 1
                tries, silent_s = 0, (quiet := self._now_s())
                if not part.again:
                    if not part.begun:
                        self._measure(quiet - part.at_s)
                    self._again_before(memory, first, part.serial, in_progress, quiet)
                if chunk + self._grant.size < count:
                    self._send(memory, first, chunk + self._grant.size, in_progress)

    def _now_s(self) -> float:
        """As Place.lab_s."""
        return time.monotonic() / self._slower

    @staticmethod
    def _missing(in_progress: Mapping[int, Part]) -> str:
        """Why no sum comes, as far as the switch said."""
        if any(part.held for part in in_progress.values()):
            return "it had the part of this rank, and waited for that of a peer"
        return "a peer is gone, or the switch no longer has the allocation"

    def _is_late(self, in_progress: Mapping[int, Part]) -> bool:
        """Whether silence is more likely a rank that is late than parts that are lost."""
        parts = in_progress.values()
        signs = (
            self._sound >= SOUND,
            sum(not part.again for part in parts) > AFTER,
            any(part.held for part in parts),
        )
        return sum(signs) > 1

    def _again_before(
        self, memory: memoryview, first: int, serial: int, in_progress: dict[int, Part], now: float
    ) -> None:
        """Send again what was sent well before the part with this serial, whose sum is there."""
        for chunk, part in list(in_progress.items()):
            if part.serial < serial - AFTER and (
                not part.again or now - part.at_s > self._within_s
            ):
                self._sound = 0
                self._send(memory, first, chunk, in_progress)

    def _send(
        self,
        memory: memoryview,
        first: int,
        chunk: int,
        in_progress: dict[int, Part],
        *,
        begun: bool = False,
    ) -> None:
        each, grant = self._grant.each_bytes, self._grant
        payload = memory[chunk * each : (chunk + 1) * each]
        head = HEADER.pack(
            MAGIC,
            VERSION,
            ADD,
            grant.allocation,
            grant.token,
            self._rank,
            len(payload),
            self._epoch,
            first + chunk,
        )
        self._serial += 1
        part = in_progress.get(chunk)
        if part is None:
            in_progress[chunk] = Part(self._serial, self._now_s(), begun)
        else:
            part.serial, part.at_s, part.again = self._serial, self._now_s(), part.again + 1
            self.again += 1
        try:
            self.sent += self._link.sendmsg((head, payload))
        except BlockingIOError:  # it then counts as lost
            pass
        # so it does where a cable is out, or the switch: it may come back in time
        except OSError as error:
            self._notified = error.strerror or repr(error)

    def _receive(self, memory: memoryview, first: int, in_progress: Mapping[int, Part]) -> int:
        """Take a sum that has come into its place; return its chunk, -1 where none is there or
        something else came.

        That the switch has a part, and waits for those of others, is noted.

        Not until one is there: whoever sends without a pause what is none would then keep the
        thread from ever giving up.
        """
        each, grant = self._grant.each_bytes, self._grant
        try:
            size, _, flags, _ = self._link.recvmsg_into((self._head, self._heard))
        except BlockingIOError:
            return -1
        except OSError as error:  # reported by the network: as if nothing had come
            self._notified = error.strerror or repr(error)
            return -1
        if size < HEADER.size or flags & socket.MSG_TRUNC:
            return -1
        lines = HEADER.unpack(self._head)
        chunk, length, kind = lines[8] - first, size - HEADER.size, lines[2]
        wanted = (
            MAGIC,
            VERSION,
            kind,
            grant.allocation,
            grant.token,
            self._rank,
            length,
            self._epoch,
        )
        if lines[:8] != wanted or chunk not in in_progress:
            return -1
        if kind == WAIT and not length:
            in_progress[chunk].held = True
        if kind != SUM or length != min(each, len(memory) - chunk * each):
            return -1
        memory[chunk * each : chunk * each + length] = self._heard[:length]
        return int(chunk)

    def _measure(self, took_s: float) -> None:
        """As TCP does (RFC 6298 section 2)."""
        if not self._usual_s:
            self._usual_s, self._vary_s = took_s, took_s / 2
        else:
            self._vary_s += (abs(took_s - self._usual_s) - self._vary_s) / 4
            self._usual_s += (took_s - self._usual_s) / 8

    @property
    def _within_s(self) -> float:
        """In which time a sum comes (s)."""
        return (
            min(max(self._usual_s + 4 * self._vary_s, LEAST_S), MOST_S)
            if self._usual_s
            else FIRST_S
        )


def exponent(largest: float) -> int:
    """The class of a rank's largest number (at least 0).

    >>> exponent(0.0), exponent(1.0), exponent(0.5), exponent(3e38), exponent(math.inf), exponent(math.nan), exponent(1e-45)
    (0, 127, 126, 254, 255, 255, 0)
    """
    if not math.isfinite(largest):
        return NOT_FINITE
    return max(0, min(math.frexp(largest)[1] - LOWEST, NOT_FINITE - 1)) if largest else 0
