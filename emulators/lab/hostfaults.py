"""The faults of hosts and links, each with a name. A fault is a name, a place, times and numbers;
injector.py carries them out.

Times: `at_s` (seconds from now until it begins), `for_s` (how long it lasts; None: until removed),
`per_s` (it comes again this often), `count` (this many times in all), `probability` (of each time,
seeded). A storm draws other faults, their hosts and times.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from emulators.fabric.fibre_plant import HostPort
from emulators.inventory.config import LabConfig

HOST_FAULTS: Mapping[str, str] = {
    "slow-link": "`port` carries no more than `mbps`, in each direction",
    "loss": "`percent` of what passes `port` is lost, in each direction",
    "link-down": "the link of `port` is down",
    "gids-moved": "the GIDs of `port` are at other indices, as after a flap",
    "renamed": "the interface of `port` has another name",
    "cpu-hog": "`threads` programs compete with the host's jobs, which get 1/(1 + `threads`) of their time",
    "hang-rank": "`rank` is stopped; it goes on when the fault ends",
    "kill-rank": "`rank` is killed, once",
    "tor": "the packet switch of the host, that of its rack where there are racks, is down",
    "clock-drift": "the monotonic clock of programs started from now on is `offset_s` ahead, and more by `ppm`",
    "host-down": "the host is switched off, until the lab is started again",
    "host-hang": "the host stands still, without programs and light, until its BMC power-cycles it",
    "function-loss": "the functions of the segment lose `percent` of their packets, in each direction",
    "function-restart": "the functions of the segment forget all their allocations, once",
    "storm": "a fault on one of the hosts every `per_s` on average, for `seconds` on average",
}
_TIMES = frozenset({"at_s", "for_s", "per_s", "count", "probability"})
_TAKES: Mapping[str, tuple[frozenset[str], frozenset[str]]] = {
    "slow-link": (frozenset({"port", "mbps"}), _TIMES),
    "loss": (frozenset({"port", "percent"}), _TIMES),
    "link-down": (frozenset({"port"}), _TIMES),
    "gids-moved": (frozenset({"port"}), _TIMES),
    "renamed": (frozenset({"port"}), _TIMES),
    "cpu-hog": (frozenset(), _TIMES | {"threads"}),
    "hang-rank": (frozenset(), _TIMES | {"rank"}),
    "kill-rank": (frozenset(), (_TIMES | {"rank"}) - {"for_s"}),
    "tor": (frozenset(), _TIMES | {"port"}),
    "clock-drift": (frozenset(), frozenset({"at_s", "for_s", "offset_s", "ppm"})),
    **dict.fromkeys(("host-down", "host-hang"), (frozenset(), frozenset({"at_s", "probability"}))),
    "function-loss": (frozenset({"percent"}), _TIMES),
    "function-restart": (frozenset(), _TIMES - {"for_s"}),
    "storm": (frozenset({"per_s"}), frozenset({"at_s", "for_s", "count", "seed", "seconds"})),
}
"""The fields each kind needs, and those it may have."""
ONCE = frozenset({"kill-rank", "host-down", "host-hang", "function-restart"})
"""They happen and are over; what they did is not undone."""
AT_SWITCHES = frozenset({"tor", "function-loss", "function-restart"})
"""Faults of packet switches: the place may be a segment."""
OF_RDMA = frozenset({"gids-moved", "renamed"})
"""Faults of RDMA ports, where hosts have them."""
EVERYWHERE = "all"
"""In place of a host's name: a storm over all hosts."""
LEAST_MBPS, MOST_THREADS = 0.1, 64


@dataclass(frozen=True, slots=True)
class HostFault:
    """One fault as requested. rank: its number on its host; mbps, percent: in each direction."""

    kind: str
    port: int | None = None
    mbps: float | None = None
    percent: float | None = None
    threads: int = 2
    rank: int = 0
    offset_s: float = 0.0
    ppm: float = 0.0
    at_s: float = 0.0
    for_s: float | None = None
    per_s: float | None = None
    count: int | None = None
    probability: float = 1.0
    seconds: float | None = None
    seed: int = 1

    def reported(self) -> dict[str, object]:
        """The fields that matter to its kind and are set."""
        fields = {"kind", *(name for names in _TAKES[self.kind] for name in names)}
        return {
            name: value
            for name, value in dataclasses.asdict(self).items()
            if name in fields and value is not None
        }


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{value} is not a number")
    return number


def _whole(value: Any) -> int:
    if isinstance(value, (bool, float)) and value != int(value):
        raise ValueError(f"{value} is not a whole number")
    return int(value)


def _port(value: Any) -> int:
    return _whole(value.removeprefix("p") if isinstance(value, str) else value)


_TYPES: Mapping[str, Any] = {
    "port": _port, "mbps": _finite, "percent": _finite, "threads": _whole, "rank": _whole, "offset_s": _finite, "ppm": _finite,
    "at_s": _finite, "for_s": _finite, "per_s": _finite, "count": _whole, "probability": _finite, "seconds": _finite,
    "seed": _whole,
}  # fmt: skip
_RANGES: Mapping[str, tuple[float, float, str]] = {
    "mbps": (LEAST_MBPS, math.inf, f"{LEAST_MBPS} or more Mb/s"),
    "percent": (1e-4, 100, "more than 0 and up to 100 percent"),
    "threads": (1, MOST_THREADS, f"1 to {MOST_THREADS}"),
    "rank": (0, 9999, "0 or more"),
    "offset_s": (0, 1e9, "seconds, not less than 0"),
    "ppm": (0, 1e6, "0 to 1000000 parts per million"),
    "at_s": (0, 1e9, "seconds, not less than 0"),
    "for_s": (1e-3, 1e9, "a millisecond or more, in seconds"),
    "per_s": (1e-2, 1e9, "10 ms or more, in seconds"),
    "count": (1, 1e9, "1 or more"),
    "probability": (0, 1, "0 to 1"),
    "seconds": (1e-3, 1e9, "a millisecond or more, in seconds"),
}


def host_fault(kind: str, host: str, config: LabConfig, **values: object) -> HostFault:
    """Return the fault of `host` so described; host: EVERYWHERE for a storm, or for a tor a
    segment's name.

    Raises ValueError: an unknown name, field, host or port; a number out of range; times that do
    not go together.
    """
    if kind not in HOST_FAULTS:
        near = difflib.get_close_matches(kind, sorted(HOST_FAULTS), 1)
        raise ValueError(
            f"no fault of a host is named {kind!r}"
            + (
                f"; did you mean {near[0]}?"
                if near
                else f"; one of {', '.join(sorted(HOST_FAULTS))}"
            )
        )
    needs, may = _TAKES[kind]
    values = {name: value for name, value in values.items() if value is not None}
    if unknown := sorted(set(values) - needs - may):
        raise ValueError(
            f"fault {kind}: takes no {unknown[0]}; it takes {', '.join(sorted(needs | may))}"
        )
    rank = values.get("rank")
    if isinstance(rank, str) and "/" in rank:
        if rank.partition("/")[0] != host:
            raise ValueError(f"fault {kind}: rank {rank} is not on {host}")
        values["rank"] = rank.partition("/")[2]
    elif rank == host:
        values["rank"] = 0
    given: dict[str, Any] = {}
    for name, value in values.items():
        try:
            given[name] = _TYPES[name](value)
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"fault {kind}: {name}: {error}") from None
        least, most, text = _RANGES.get(name, (-math.inf, math.inf, ""))
        if not least <= given[name] <= most:
            raise ValueError(f"fault {kind}: {name} {value}: wanted {text}")
    if missing := sorted(needs - set(given)):
        raise ValueError(f"fault {kind}: which {missing[0].partition('_')[0]}?")
    made = HostFault(kind, **given)
    _check_times(made)
    _check_place(made, host, config)
    return made


def _check_times(made: HostFault) -> None:
    if made.kind == "clock-drift" and not made.offset_s and not made.ppm:
        raise ValueError("fault clock-drift: how much? give offset_s (--offset) or ppm (--ppm)")
    if made.kind == "storm":
        return
    if made.per_s is None and made.count not in (None, 1):
        raise ValueError(f"fault {made.kind}: count {made.count}: how often? give per_s (--per)")
    if (
        made.per_s is not None
        and made.kind not in ONCE
        and not (made.for_s is not None and made.for_s < made.per_s)
    ):
        raise ValueError(
            f"fault {made.kind}: comes every {made.per_s:g} s: give for_s (--for), less than that, so that it ends before"
        )


def _check_place(made: HostFault, host: str, config: LabConfig) -> None:
    if made.kind == "tor":
        switch_ports(config, host, made.port)
        return
    if made.kind.startswith("function-"):
        able = [segment.name for segment in config.segments if segment.functions]
        if host not in able:
            raise ValueError(
                f"fault {made.kind}: no segment {host} with functions; there are {', '.join(able) or 'none'}"
            )
        return
    if made.kind in OF_RDMA and not config.rdma:
        raise ValueError(
            f"fault {made.kind}: the hosts of this lab have no RDMA devices: rdma: true in its emulator.yml"
        )
    if made.kind == "storm" and host == EVERYWHERE:
        return
    if host not in config.hosts:
        raise ValueError(f"fault {made.kind}: no host {host}; there are {', '.join(config.hosts)}")
    if made.port is not None and made.port not in config.hosts[host].interfaces:
        place = ", ".join(map(str, config.hosts[host].interfaces))
        raise ValueError(f"fault {made.kind}: no port {made.port} on {host}; it has {place}")


def switch_ports(config: LabConfig, at: str, port: int | None) -> tuple[str, frozenset[HostPort]]:
    """The packet switch next to host `at` (the one at `port`), or segment `at`: its name, and the
    host ports plugged into it.

    Raises ValueError: there is none, or several.
    """
    for segment in config.segments:
        if segment.name == at:
            if segment.racks:
                raise ValueError(
                    f"fault tor: segment {at} has a switch for each rack: name a host of the rack instead"
                )
            return f"segment {at}", frozenset(HostPort(*each) for each in segment.ports.items())
    near = [s for s in config.segments if at in s.ports and port in (None, s.ports[at])]
    if not near:
        where = f"port {port} of {at}" if port is not None else at
        known = ", ".join(segment.name for segment in config.segments) or "none"
        raise ValueError(f"fault tor: no packet switch at {where}; segments: {known}")
    if len(near) > 1:
        place = ", ".join(f"{s.name} at port {s.ports[at]}" for s in near)
        raise ValueError(
            f"fault tor: {at} is plugged into several packet switches ({place}): which port?"
        )
    segment = near[0]
    for number, (hosts, _) in enumerate(segment.racks, 1):
        if at in hosts:
            return f"segment {segment.name} rack {number}", frozenset(
                HostPort(h, segment.ports[h]) for h in hosts
            )
    return f"segment {segment.name}", frozenset(HostPort(*each) for each in segment.ports.items())


@dataclass(frozen=True, slots=True)
class Effects:
    """What the active faults do together.

    rates: bits per second; losses: 0 to 1; threads: of hogs, by host; clocks: seconds ahead, and
    how much more per second; functions: the share that a segment's functions lose; rdma: kinds of
    OF_RDMA.
    """

    rates: Mapping[HostPort, int]
    losses: Mapping[HostPort, float]
    down: frozenset[HostPort]
    threads: Mapping[str, int]
    clocks: Mapping[str, tuple[float, float]]
    functions: Mapping[str, float]
    rdma: Mapping[HostPort, frozenset[str]]


def effects(active: Iterable[tuple[str, HostFault]], config: LabConfig) -> Effects:
    """What these faults (host, fault) do together: the slowest rate, independent losses, all
    threads.
    """
    rates: dict[HostPort, int] = {}
    losses: dict[HostPort, float] = {}
    down: set[HostPort] = set()
    threads: dict[str, int] = {}
    clocks: dict[str, tuple[float, float]] = {}
    functions: dict[str, float] = {}
    rdma: dict[HostPort, frozenset[str]] = {}
    for host, fault in active:
        at = HostPort(host, fault.port or 0)
        if fault.kind == "slow-link" and fault.mbps is not None:
            rates[at] = min(rates.get(at, 1 << 62), round(fault.mbps * 1e6))
        elif fault.kind == "loss" and fault.percent is not None:
            losses[at] = 1 - (1 - losses.get(at, 0.0)) * (1 - fault.percent / 100)
        elif fault.kind == "function-loss" and fault.percent is not None:
            functions[host] = 1 - (1 - functions.get(host, 0.0)) * (1 - fault.percent / 100)
        elif fault.kind == "link-down":
            down.add(at)
        elif fault.kind in OF_RDMA:
            rdma[at] = rdma.get(at, frozenset()) | {fault.kind}
        elif fault.kind == "tor":
            down |= switch_ports(config, host, fault.port)[1]
        elif fault.kind == "cpu-hog":
            threads[host] = threads.get(host, 0) + fault.threads
        elif fault.kind == "clock-drift":
            ahead_s, rate = clocks.get(host, (0.0, 0.0))
            clocks[host] = ahead_s + fault.offset_s, rate + fault.ppm * 1e-6
    return Effects(rates, losses, frozenset(down), threads, clocks, functions, rdma)


def drawn(
    chance: random.Random, storm: HostFault, where: str, config: LabConfig
) -> tuple[str, HostFault]:
    """A host and a fault on it, at random: one that ends by itself, or a rank that is killed."""
    host = chance.choice(sorted(config.hosts)) if where == EVERYWHERE else where
    ports = sorted(config.hosts[host].interfaces)
    electrical = {s.ports[host]: s.rate_bps for s in config.segments if host in s.ports}
    kinds = [
        "slow-link",
        "loss",
        "link-down",
        "cpu-hog",
        "hang-rank",
        "kill-rank",
        *(["tor"] if electrical else []),
    ]
    kind, port = chance.choice(kinds if ports else kinds[3:]), chance.choice(ports or [0])
    mean_s = storm.seconds if storm.seconds is not None else (storm.per_s or 0.0) / 10
    for_s, percent = chance.expovariate(1 / mean_s), chance.uniform(0.1, 1)
    part, threads = chance.choice((4, 10, 20)), chance.randint(1, 4)
    usual_mbps = (electrical.get(port, config.rate_bps) or 1_000_000_000) / 1e6
    numbers: dict[str, dict[str, Any]] = {
        "slow-link": {"port": port, "mbps": max(LEAST_MBPS, usual_mbps / part)},
        "loss": {"port": port, "percent": percent},
        "link-down": {"port": port},
        "cpu-hog": {"threads": threads},
        "tor": {"port": chance.choice(sorted(electrical or [0]))},
    }
    return host, HostFault(
        kind, for_s=None if kind in ONCE else max(1e-3, for_s), **numbers.get(kind, {})
    )


class Event(NamedTuple):
    """A fault begins or ends. at_s: when it was due."""

    at_s: float
    number: int
    host: str
    fault: HostFault
    begins: bool


@dataclass(slots=True)
class _Armed:
    host: str
    fault: HostFault
    chance: random.Random
    begins_s: float
    storm: int = 0  # the number of the storm that drew it
    ends_s: float = math.inf
    draws_s: float = math.inf  # when a storm draws its next fault
    state: str = "waiting"  # "waiting", "active", "over"
    fired: int = 0

    @property
    def next_s(self) -> float:
        return {"waiting": self.begins_s, "active": min(self.ends_s, self.draws_s)}.get(
            self.state, math.inf
        )

    @property
    def spent(self) -> bool:
        return self.fault.count is not None and self.fired >= self.fault.count


class HostFaults:
    """The faults of all hosts of a lab: added, listed and removed while it runs."""

    def __init__(self, config: LabConfig) -> None:
        self._config = config
        self._armed: dict[int, _Armed] = {}
        self._next = 1

    def add(self, host: str, new: HostFault, now: float, storm: int = 0) -> int:
        """Note `new`; return its number. It begins once `advance` has reported it."""
        number, self._next = self._next, self._next + 1
        seed = f"storm/{new.seed}" if new.kind == "storm" else f"hosts/{self._config.seed}/{number}"
        self._armed[number] = _Armed(host, new, random.Random(seed), now + new.at_s, storm)
        return number

    def advance(self, now: float) -> list[Event]:
        """Return what is due, in order of time."""
        advanced: list[Event] = []
        while self.next_s <= now:
            due = min(self._armed, key=lambda number: self._armed[number].next_s)
            advanced += self._step(due, self._armed[due])
        return advanced

    def remove(self, number: int) -> list[Event]:
        """Disarm fault `number`, with what it drew if it is a storm; return what ends by that.
        Raises KeyError: there is none.
        """
        removed = {number: self._armed.pop(number)}
        removed |= {
            n: self._armed.pop(n)
            for n in [n for n, armed in self._armed.items() if armed.storm == number]
        }
        return [
            Event(0.0, n, armed.host, armed.fault, False)
            for n, armed in removed.items()
            if armed.state == "active"
        ]

    def active(self) -> list[tuple[str, HostFault]]:
        """Return host and fault of those in force now."""
        return [
            (armed.host, armed.fault) for armed in self._armed.values() if armed.state == "active"
        ]

    def listed(self) -> dict[str, list[dict[str, object]]]:
        """Return every fault by host: its number, what was said of it, its state and how often it
        occurred.
        """
        found: dict[str, list[dict[str, object]]] = {}
        for number, armed in self._armed.items():
            storm = {"storm": armed.storm} if armed.storm else {}
            texts = {
                "number": number,
                **armed.fault.reported(),
                **storm,
                "state": armed.state,
                "fired": armed.fired,
            }
            found.setdefault(armed.host, []).append(texts)
        return found

    @property
    def next_s(self) -> float:
        """When the next one begins or ends by itself."""
        return min((armed.next_s for armed in self._armed.values()), default=math.inf)

    def _step(self, number: int, armed: _Armed) -> list[Event]:
        fault, at_s = armed.fault, armed.next_s
        if armed.state == "waiting":
            if armed.chance.random() >= fault.probability:
                self._again(armed)
                return []
            if fault.kind == "storm":
                armed.draws_s = at_s + armed.chance.expovariate(1 / (fault.per_s or 1.0))
            else:
                armed.fired += 1
            armed.state, armed.ends_s = (
                "active",
                math.inf if fault.for_s is None else at_s + fault.for_s,
            )
            if fault.kind in ONCE:
                self._again(armed)
            return [Event(at_s, number, armed.host, fault, True)]
        if armed.draws_s < armed.ends_s:
            host, child = drawn(armed.chance, fault, armed.host, self._config)
            if child.for_s is not None:  # nothing outlasts the storm
                child = dataclasses.replace(child, for_s=min(child.for_s, armed.ends_s - at_s))
            self.add(host, child, at_s, number)
            armed.fired += 1
            armed.draws_s = (
                math.inf
                if armed.spent
                else at_s + armed.chance.expovariate(1 / (fault.per_s or 1.0))
            )
            return []
        self._again(armed)
        return [Event(at_s, number, armed.host, fault, False)]

    def _again(self, armed: _Armed) -> None:
        """It is over, or comes again later."""
        armed.state = "over"
        if armed.fault.per_s is not None and armed.fault.kind != "storm" and not armed.spent:
            armed.state, armed.begins_s = "waiting", armed.begins_s + armed.fault.per_s
