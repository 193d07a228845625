"""The control conversation with the functions of a packet switch, from
docs/reference/functions-dialect.md. Assumed: no vendor.

A request is a JSON object on a line, and so is its answer, which repeats the request's id: an
answer that comes too late is dropped.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import AddressValueError, IPv4Address
from typing import Any

from drivers.link.tcp import TcpLink
from optics import Garbled, Missing, Refused
from optics.leases import FunctionUse
from optics.plain import printable

MOST_LINE = 1 << 20
"""Bytes of an answer: counters of 128 allocations are the longest, some 400 bytes each."""
BUSY_TRIES, BUSY_S = 5, 0.2
SIZES: Mapping[str, tuple[str, str]] = {
    "aggregate": ("slots", "slot_bytes"),
    "cache": ("entries", "entry_bytes"),
}
"""Of each function: the key of how many a job has, and of how large one is."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """What a job was given of a function. size: slots or entries, of each_bytes; address, port,
    mac: where its hosts reach it.

    lease_s: for how long (s) from the request on. The token is a secret of the job and its
    operator.
    """

    function: str
    number: int
    token: str = field(repr=False)
    address: str
    port: int
    mac: str
    size: int
    each_bytes: int
    lease_s: float


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a switch can do. functions: of each, its keys in the inventory and what is free
    (`free_slots`, ...).
    """

    identity: str
    segment: str
    address: str
    port: int
    functions: Mapping[str, Mapping[str, int]]


@dataclass(slots=True)
class _Answer:
    """Cuts the answer to request `wanted` from a stream."""

    wanted: int
    values: dict[str, Any] = field(default_factory=dict)
    _unread: bytes = b""

    def feed(self, data: bytes) -> bool | None:
        """Take bytes; True when it is there, None if none of this belongs to it. Raises:
        Garbled.
        """
        self._unread += data
        while b"\n" in self._unread:
            line, _, self._unread = self._unread.partition(b"\n")
            try:
                reply = json.loads(line)
            except (ValueError, RecursionError):
                reply = None
            if not isinstance(reply, dict):
                raise Garbled(f"an answer that is no JSON object: {line[:120]!r}")
            # Without an id it is of a request that the switch could not read, and so of none of
            # ours.
            if reply.get("id") == self.wanted and not isinstance(reply.get("id"), bool):
                self.values = reply
                return True
        if len(self._unread) > MOST_LINE:
            raise Garbled(f"an answer of more than {MOST_LINE} bytes: {self._unread[:120]!r}")
        return None


class FunctionSwitch:
    """The functions of the packet switch `name`, controlled at `address` (HOST:PORT). It connects
    when it is first asked.
    """

    def __init__(self, name: str, address: str, timeout_s: float = 5.0) -> None:
        host, _, port = address.rpartition(":")
        self.name = name
        self._link = TcpLink(
            f"functions of {name}",
            f"tcp://{address}",
            timeout_s,
            host=host.strip("[]"),
            port=int(port),
        )
        self._asked = 0
        self._lock = asyncio.Lock()

    async def close(self) -> None:
        await self._link.close()

    async def capabilities(self) -> Capabilities:
        """Raises: Unreachable, TimedOut, Garbled, Refused."""
        reply = await self._ask("capabilities")
        if reply.get("protocol") != 1:
            raise Garbled(
                f"functions of {self.name}: protocol {reply.get('protocol')!r}; this program speaks 1"
            )
        functions = self._value(reply, "functions", dict)
        offer = {
            name: {key: self._value(about, key, int) for key in about}
            for name, about in functions.items()
            if name in SIZES and isinstance(about, dict)
        }
        tokens = [
            printable(str(self._value(reply, key, str)), keep="")[:64]
            for key in ("vendor", "model", "serial", "firmware")
        ]
        segment = printable(self._value(reply, "segment", str), keep="")[:64]
        return Capabilities(
            " ".join(tokens), segment, self._address(reply), self._port(reply), offer
        )

    async def allocate(
        self, function: str, job: str, workers: Sequence[str], size: int, lease_s: float
    ) -> Allocation:
        """Have `size` slots or entries for a job whose worker i is at the IPv4 address workers[i].

        A lost answer leaves an allocation nobody knows, until its lease ends: ask for a short one,
        and `renew`. Raises: Refused - the switch says why. Unreachable, TimedOut, Garbled.
        """
        key, each = SIZES[function]
        reported = await self._ask(
            "allocate",
            function=function,
            job=job,
            workers=list(workers),
            lease_s=lease_s,
            **{key: size},
        )
        token = self._value(reported, "token", str)
        if re.fullmatch("[0-9a-f]{16}", token) is None:
            raise Garbled(f'functions of {self.name}: answer to "allocate": a token that is none')
        return Allocation(
            function,
            self._value(reported, "allocation", int, 1, 2**32 - 1),
            token,
            self._address(reported),
            self._port(reported),
            printable(self._value(reported, "mac", str), keep="")[:17],
            self._value(reported, key, int, 1, 65_536),
            self._value(reported, each, int, 1, 8896),
            float(self._value(reported, "lease_s", (int, float))),
        )

    async def renew(self, number: int, token: str, lease_s: float) -> None:
        """The lease ends `lease_s` from now. Raises: Missing - there is no such allocation (any
        more); else as `allocate`.
        """
        await self._ask("renew", allocation=number, token=token, lease_s=lease_s)

    async def release(self, number: int, token: str) -> None:
        """Give an allocation back; one that is gone already is released. Raises: as `allocate`."""
        try:
            await self._ask("release", allocation=number, token=token)
        except Missing:
            pass

    async def counters(self) -> tuple[Mapping[str, Any], ...]:
        """What each allocation has counted, under the page's names. Raises: as `allocate`."""
        found = self._value(await self._ask("counters"), "allocations", list)
        return tuple(each for each in found if isinstance(each, dict))

    async def _ask(self, op: str, **texts: object) -> dict[str, Any]:
        async with self._lock:
            for left in reversed(range(BUSY_TRIES)):
                if not self._link.alive:
                    await self._link.open()
                self._asked += 1
                answer = _Answer(self._asked)
                request = json.dumps({"op": op, "id": self._asked, **texts}).encode() + b"\n"
                await self._link.exchange(request, answer.feed, question=op)
                reply = answer.values
                if reply.get("ok") is True:
                    return reply
                code, why = (
                    printable(str(reply.get(key, "")), keep="")[:200] for key in ("code", "error")
                )
                if code != "busy" or not left:
                    break
                await asyncio.sleep(BUSY_S)
        message = f'functions of {self.name}: refused "{op}" ({code}): {why}'
        if code == "unknown":
            raise Missing(
                message, hint="the switch restarted, or the lease ended: launch the job again"
            )
        hint = {
            "full": "ask who has it: `counters`; a lease ends by itself",
            "exists": "its lease ends by itself; then again",
        }
        raise Refused(message, hint=hint.get(code, ""))

    def _value(
        self, reply: Mapping[str, Any], key: str, kind: Any, least: float = 0, most: float = 2**53
    ) -> Any:
        value = reply.get(key)
        good = isinstance(value, kind) and not isinstance(value, bool)
        if not good or (isinstance(value, int | float) and not least <= value <= most):
            raise Garbled(
                f'functions of {self.name}: an answer in which "{key}" is {str(value)[:60]!r}'
            )
        return value

    def _address(self, reply: Mapping[str, Any]) -> str:
        try:
            return str(IPv4Address(self._value(reply, "address", str)))
        except AddressValueError as error:
            raise Garbled(
                f"functions of {self.name}: an answer with an address that is none: {error}"
            ) from None

    def _port(self, reply: Mapping[str, Any]) -> int:
        return int(self._value(reply, "port", int, 1, 65_535))


def use_of(segment: str, reply: Mapping[str, Any]) -> FunctionUse:
    """What a job has, by one of the `counters` of the segment's switch, of which nothing is
    believed to be of its kind.
    """

    def number(key: str) -> float:
        value = reply.get(key)
        return (
            value
            if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 2**53
            else 0
        )

    name, job = (printable(str(reply.get(key, "")), keep="")[:64] for key in ("function", "job"))
    size = int(number(SIZES[name][0])) if name in SIZES else 0
    left_s, packets = float(number("lease_left_s")), int(number("packets_in"))
    return FunctionUse(segment, name, job, int(number("allocation")), size, left_s, packets)
