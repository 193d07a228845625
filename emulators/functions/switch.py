"""The functions of a packet switch: who has how much of its memory and until when, and what becomes
of each packet.

Pure: packets and times come in, packets go out through a function; the process around it is in
process.py.
"""

from __future__ import annotations

import random
import secrets
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hmac import compare_digest
from itertools import count

from emulators.functions.cache import Cache
from emulators.functions.packets import (
    ADD,
    GET,
    HEADER_BYTES,
    HIT,
    MISS,
    PUT,
    STORED,
    SUM,
    WAIT,
    Header,
    parse,
    write,
)
from emulators.functions.pool import Pool

Peer = tuple[str, int]
Send = Callable[[memoryview, Peer], bool]
"""Sends a packet; False: the network refused it."""
MOST_ALLOCATIONS = 128
COUNTED = {
    "aggregate": ("added", "sums", "duplicates", "repeated", "stale", "early", "mismatched"),
    "cache": ("gets", "hits", "puts", "evicted"),
}
TOTALS = ("packets_in", "malformed", "foreign", "unsent", "lost")


class Denied(Exception):
    """A request is not granted; `code` as in the dialect."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(slots=True)
class Allocation:
    """What a job has of the switch. size: slots or entries; ends_s: when its lease ends (s,
    monotonic).
    """

    number: int
    token: bytes
    function: str
    job: str
    workers: tuple[str, ...]
    size: int
    ends_s: float
    memory: Pool | Cache
    peers: dict[int, Peer] = field(default_factory=dict)
    counted: Counter[str] = field(default_factory=Counter)


class Switch:
    """One packet switch with functions. functions: as in the inventory, the most of everything."""

    def __init__(
        self, functions: Mapping[str, Mapping[str, int]], send: Send, seed: int = 1
    ) -> None:
        self.functions = functions
        self.loss = 0.0
        """Share (0 to 1) of the packets lost, each way: a fault of the emulator."""
        self.allocations: dict[int, Allocation] = {}
        self.totals: Counter[str] = Counter()
        self._send = send
        self._chance = random.Random(seed).random
        self._numbers = count(1)
        most = max(
            (f.get("slot_bytes", f.get("entry_bytes", 0)) for f in functions.values()), default=0
        )
        self._answer = memoryview(bytearray(HEADER_BYTES + most))

    # ---- control

    def free(self, function: str) -> dict[str, int]:
        """What is not allocated of a function, by the dialect's keys."""
        most, held = (
            self.functions[function],
            [a.size for a in self.allocations.values() if a.function == function],
        )
        if function == "cache":
            return {"free_entries": most["entries"] - sum(held)}
        return {"free_slots": most["slots"] - sum(held), "free_jobs": most["jobs"] - len(held)}

    def allocate(
        self,
        function: str,
        job: str,
        workers: tuple[str, ...],
        size: int,
        lease_s: float,
        now: float,
    ) -> Allocation:
        """Give a job slots or entries. Raises: Denied."""
        self.expire(now)
        if function not in self.functions:
            raise Denied("absent", f"no function {function} here, but {', '.join(self.functions)}")
        if any(a.job == job and a.function == function for a in self.allocations.values()):
            raise Denied(
                "exists",
                f"job {job} has an allocation of {function}; release it, or wait for the end of its lease",
            )
        free, what = self.free(function), "entries" if function == "cache" else "slots"
        if size > (left := free[f"free_{what}"]):
            raise Denied(
                "full", f"{size} {what} wanted, {left} of {self.functions[function][what]} are free"
            )
        if not free.get("free_jobs", 1) or len(self.allocations) >= MOST_ALLOCATIONS:
            most = self.functions[function].get("jobs", MOST_ALLOCATIONS)
            raise Denied(
                "full", f"{min(most, MOST_ALLOCATIONS)} jobs have allocations; no more at a time"
            )
        memory = (
            Cache(size)
            if function == "cache"
            else Pool(len(workers), size, self.functions[function]["slot_bytes"])
        )
        made = Allocation(
            next(self._numbers),
            secrets.token_bytes(8),
            function,
            job,
            workers,
            size,
            now + lease_s,
            memory,
        )
        self.allocations[made.number] = made
        return made

    def renew(self, number: int, token: bytes, lease_s: float, now: float) -> None:
        """Let a lease end `lease_s` from now. Raises: Denied."""
        self._owned(number, token, now).ends_s = now + lease_s

    def release(self, number: int, token: bytes, now: float) -> None:
        """Take an allocation back. Raises: Denied."""
        del self.allocations[self._owned(number, token, now).number]

    def expire(self, now: float) -> None:
        """Take back what nobody renewed."""
        for number in [a.number for a in self.allocations.values() if a.ends_s <= now]:
            del self.allocations[number]

    def restart(self) -> None:
        """Forget everything, as after a power cut."""
        self.allocations.clear()
        self.totals.clear()

    def counters(self, now: float) -> list[dict[str, object]]:
        """The counters of every allocation, as the dialect has them."""
        self.expire(now)
        found: list[dict[str, object]] = []
        for each in self.allocations.values():
            facts = {
                "allocation": each.number,
                "function": each.function,
                "job": each.job,
                "workers": len(each.workers),
            }
            size = {
                "entries" if each.function == "cache" else "slots": each.size,
                "lease_left_s": round(each.ends_s - now, 3),
            }
            names = ("packets_in", "bytes_in", "packets_out", "bytes_out", *COUNTED[each.function])
            stored = {"stored": len(each.memory)} if isinstance(each.memory, Cache) else {}
            found.append(
                {**facts, **size, **{name: each.counted[name] for name in names}, **stored}
            )
        return found

    def total(self) -> dict[str, int]:
        """Counters of the whole switch since it started."""
        return {name: self.totals[name] for name in TOTALS}

    def _owned(self, number: int, token: bytes, now: float) -> Allocation:
        self.expire(now)
        found = self.allocations.get(number)
        if found is None or not compare_digest(found.token, token):
            raise Denied(
                "unknown",
                f"no allocation {number} with this token: released, its lease over, or never made",
            )
        return found

    # ---- data

    def receive(self, packet: memoryview, source: Peer) -> None:
        """Take a datagram from the segment. What is not as the dialect says is counted, and gets no
        answer.
        """
        self.totals["packets_in"] += 1
        if self.loss and self._chance() < self.loss:
            self.totals["lost"] += 1
            return
        header = parse(packet)
        if header is None:
            self.totals["malformed"] += 1
            return
        found = self.allocations.get(header.allocation)
        if (
            found is None
            or not compare_digest(found.token, header.token)
            or header.worker >= len(found.workers)
            or found.workers[header.worker] != source[0]
        ):
            self.totals["foreign"] += 1
            return
        memory, payload = found.memory, packet[HEADER_BYTES:]
        most = self.functions[found.function]
        if isinstance(memory, Pool):
            fits = (
                header.kind == ADD
                and 0 < header.length <= most["slot_bytes"]
                and not header.length % 4
            )
        else:
            fits = header.epoch == 0 and (
                (header.kind == GET and not header.length)
                or (header.kind == PUT and 0 < header.length <= most["entry_bytes"])
            )
        if not fits:
            self.totals["malformed"] += 1
            return
        found.peers[header.worker] = source
        found.counted["packets_in"] += 1
        found.counted["bytes_in"] += len(packet)
        if isinstance(memory, Pool):
            self._aggregate(found, memory, header, payload)
        else:
            self._look_up(found, memory, header, payload)

    def _aggregate(
        self, found: Allocation, pool: Pool, header: Header, payload: memoryview
    ) -> None:
        verdict, packet = pool.add(header.worker, header.epoch, header.number, payload)
        found.counted["added" if verdict == "sums" else verdict] += 1
        found.counted["duplicates"] += verdict == "repeated"
        if verdict == "duplicates":
            self._reply(found, self._answer[:HEADER_BYTES], header._replace(kind=WAIT, length=0))
        if packet is None:
            return
        receivers: tuple[int, ...] = (header.worker,)
        if verdict == "sums":
            found.counted["sums"] += 1
            receivers = tuple(found.peers)
        for worker in receivers:
            self._reply(found, packet, header._replace(kind=SUM, worker=worker))

    def _look_up(
        self, found: Allocation, cache: Cache, header: Header, payload: memoryview
    ) -> None:
        if header.kind == PUT:
            found.counted["puts"] += 1
            found.counted["evicted"] += cache.put(header.number, bytes(payload))
            kind, value = STORED, b""
        else:
            held = cache.get(header.number)
            found.counted["gets"] += 1
            found.counted["hits"] += held is not None
            kind, value = (MISS, b"") if held is None else (HIT, held)
        packet = self._answer[: HEADER_BYTES + len(value)]
        packet[HEADER_BYTES:] = value
        self._reply(found, packet, header._replace(kind=kind, length=len(value)))

    def _reply(self, found: Allocation, packet: memoryview, header: Header) -> None:
        write(packet, header)
        found.counted["packets_out"] += 1
        found.counted["bytes_out"] += len(packet)
        if self.loss and self._chance() < self.loss:
            self.totals["lost"] += 1
        elif not self._send(packet, found.peers[header.worker]):
            self.totals["unsent"] += 1
