"""The control conversation: a JSON object a line, answered by one
(docs/reference/functions-dialect.md).
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from emulators.functions.switch import Denied, Switch

LINE_BYTES = 16_384
LEAST_LEASE_S, MOST_LEASE_S = 1, 3600
MOST_WORKERS = 64
JOB = re.compile(r"[A-Za-z0-9._-]{1,64}")
TOKEN = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a switch is on its segment, and who it says it is."""

    segment: str
    address: str
    port: int
    mac: str
    serial: str


def _whole(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _lease(value: object) -> bool:
    return (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and LEAST_LEASE_S <= value <= MOST_LEASE_S
    )


def _workers(value: object) -> bool:
    if not (
        isinstance(value, list)
        and 1 <= len(value) <= MOST_WORKERS
        and all(isinstance(each, str) for each in value)
    ):
        return False
    try:
        return all(str(ipaddress.IPv4Address(each)) == each for each in value)
    except ValueError:
        return False


_VALUES: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "function": (lambda v: isinstance(v, str) and len(v) <= 64, "a name"),
    "job": (
        lambda v: isinstance(v, str) and JOB.fullmatch(v) is not None,
        "1 to 64 letters, digits, or one of . _ -",
    ),
    "workers": (_workers, f"1 to {MOST_WORKERS} IPv4 addresses"),
    "slots": (lambda v: _whole(v, 1, 4096), "1 to 4096"),
    "entries": (lambda v: _whole(v, 1, 65_536), "1 to 65536"),
    "lease_s": (_lease, f"{LEAST_LEASE_S} to {MOST_LEASE_S} seconds"),
    "allocation": (lambda v: _whole(v, 1, 2**32 - 1), "the number of an allocation"),
    "token": (
        lambda v: isinstance(v, str) and TOKEN.fullmatch(v) is not None,
        "16 lower-case hex digits",
    ),
}
"""What each key of a request may be, and how that is said."""


class Control:
    """Answers the requests of all connections."""

    def __init__(self, switch: Switch, place: Place) -> None:
        self._switch, self._place = switch, place
        self._operations: dict[str, Callable[[dict[str, Any], float], dict[str, object]]] = {
            "capabilities": self._capabilities,
            "allocate": self._allocate,
            "renew": self._renew,
            "release": self._release,
            "counters": self._counters,
        }

    def answer(self, line: bytes, now: float) -> bytes:
        """Carry out the request on one line; now: seconds of a monotonic clock."""
        reply: dict[str, object] = {}
        try:
            try:
                request = json.loads(line)
            except (ValueError, RecursionError) as problem:
                raise Denied("malformed", "a request is a JSON object on a line") from problem
            if not isinstance(request, dict):
                raise Denied("malformed", "a request is a JSON object on a line")
            if "id" in request:
                own = request.pop("id")
                if not (
                    _whole(own, -(2**63), 2**63 - 1) or (isinstance(own, str) and len(own) <= 64)
                ):
                    raise Denied(
                        "malformed", "id: wanted an integer, or a string of at most 64 characters"
                    )
                reply["id"] = own
            op = request.pop("op", None)
            if not isinstance(op, str) or op not in self._operations:
                raise Denied("malformed", f"op: wanted one of {', '.join(self._operations)}")
            reply |= {"ok": True, **self._operations[op](request, now)}
        except Denied as problem:
            reply |= {"ok": False, "code": problem.code, "error": str(problem)}
        return json.dumps(reply).encode() + b"\n"

    def state(self, now: float) -> dict[str, object]:
        """What the lab's `status` shows of the switch."""
        keys = ("allocation", "function", "job", "workers", "lease_left_s")
        jobs = [{key: each[key] for key in keys} for each in self._switch.counters(now)]
        return self._capabilities({}, now) | {
            "allocations": jobs,
            "totals": self._switch.total(),
            "loss": self._switch.loss,
        }

    def _capabilities(self, request: dict[str, Any], now: float) -> dict[str, object]:
        _checked(request, ())
        self._switch.expire(now)
        functions = {
            name: {**most, **self._switch.free(name)}
            for name, most in self._switch.functions.items()
        }
        at = {"address": self._place.address, "port": self._place.port, "mac": self._place.mac}
        who = {
            "vendor": "assumed",
            "model": "function-slot",
            "serial": self._place.serial,
            "firmware": "1.0",
        }
        return {**who, "segment": self._place.segment, "protocol": 1, **at, "functions": functions}

    def _allocate(self, request: dict[str, Any], now: float) -> dict[str, object]:
        size = "entries" if request.get("function") == "cache" else "slots"
        _checked(request, ("function", "job", "workers", size, "lease_s"))
        function, job, workers, lease_s = (
            request[key] for key in ("function", "job", "workers", "lease_s")
        )
        made = self._switch.allocate(function, job, tuple(workers), request[size], lease_s, now)
        most = "entry_bytes" if function == "cache" else "slot_bytes"
        at = {"address": self._place.address, "port": self._place.port, "mac": self._place.mac}
        sizes = {size: made.size, most: self._switch.functions[function][most]}
        return {
            "allocation": made.number,
            "token": made.token.hex(),
            **at,
            **sizes,
            "lease_s": lease_s,
        }

    def _renew(self, request: dict[str, Any], now: float) -> dict[str, object]:
        _checked(request, ("allocation", "token", "lease_s"))
        self._switch.renew(
            request["allocation"], bytes.fromhex(request["token"]), request["lease_s"], now
        )
        return {"lease_s": request["lease_s"]}

    def _release(self, request: dict[str, Any], now: float) -> dict[str, object]:
        _checked(request, ("allocation", "token"))
        self._switch.release(request["allocation"], bytes.fromhex(request["token"]), now)
        return {}

    def _counters(self, request: dict[str, Any], now: float) -> dict[str, object]:
        _checked(request, ())
        return {"allocations": self._switch.counters(now), "totals": self._switch.total()}


def _checked(request: Mapping[str, object], wanted: tuple[str, ...]) -> None:
    """Raises: Denied - a key is missing or unknown, or its value cannot be."""
    if missing := [key for key in wanted if key not in request]:
        raise Denied("malformed", f"{missing[0]} is missing")
    if unknown := sorted(set(request) - set(wanted)):
        raise Denied(
            "malformed", f"unknown key {unknown[0][:64]!r}; wanted {', '.join(wanted) or 'none'}"
        )
    for key in wanted:
        fits, text = _VALUES[key]
        if not fits(request[key]):
            raise Denied("malformed", f"{key}: wanted {text}")
