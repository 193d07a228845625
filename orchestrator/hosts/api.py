"""What the engine asks of the hosts, and the values that come back. All times are monotonic nanoseconds of this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from optics import HostName, HostPort, TestbedError
from optics.plan import Job
from orchestrator.fabric.rules import Macs, Rules


@dataclass(frozen=True, slots=True)
class PortState:
    """One port as the host's kernel sees it. `ups` counts how often carrier came up since the interface was made.

    speed_mbps: what the link came up with; None where it is dark, or where the driver does not say.
    """

    interface: str
    mac: str
    eth_mac: str | None
    carrier: bool
    ups: int
    mtu: int
    speed_mbps: int | None = None


@dataclass(frozen=True, slots=True)
class Hello:
    """Who answers on a host and what it holds. `installed` is false where no committer runs; the rest is then empty.

    provision: digest of the facts and programs last provisioned. pending_s: seconds until it goes back to `pending_to` by itself.
    token: the highest of a run that it has heard; it does nothing for a run with a lower one.
    """

    host: HostName
    installed: bool = False
    provision: str | None = None
    active: int | None = None
    previous: int | None = None
    staged: tuple[int, ...] = ()
    armed: int | None = None
    pending_s: float | None = None
    pending_to: int | None = None
    ports: Mapping[int, PortState] = field(default_factory=dict)
    congestion_controls: tuple[str, ...] = ()
    same_clock: bool = False
    token: int = 0


@dataclass(frozen=True, slots=True)
class Provisioned:
    """What provisioning changed on a host, and what its kernel could not do; `started`: the committer was (re)started."""

    host: HostName
    changed: tuple[str, ...]
    notes: tuple[str, ...]
    started: bool


@dataclass(frozen=True, slots=True)
class Staged:
    """A generation in a table nobody looks at yet. `congctl`: the congestion control its routes pin, None = the host's own."""

    generation: int
    routes: int
    table: int
    congctl: str | None


@dataclass(frozen=True, slots=True)
class Committed:
    """A generation became active. `link_ns`: when the last awaited carrier came up (armed commits only)."""

    host: HostName
    generation: int
    previous: int | None
    commit_ns: int
    took_us: int
    link_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Probe:
    """One answer, or none. `hops`: links crossed on the way there, `back_hops` on the way back; `answered_by`: who said so."""

    source: HostName
    address: str
    ok: bool
    hops: int | None = None
    back_hops: int | None = None
    rtt_us: int | None = None
    answered_by: HostName | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class FibreEnd:
    """Who is at the other end of a port. `sends_to` received our light and said so; `hears` is whose light arrives here."""

    port: HostPort
    carrier: bool
    sends_to: HostPort | None
    hears: HostPort | None


@dataclass(frozen=True, slots=True)
class AtDown:
    """What a port had counted when its carrier went last, and when that was."""

    at_ns: int
    rx_bytes: int
    tx_bytes: int


@dataclass(frozen=True, slots=True)
class PortCounters:
    """Counters of one port since its interface was made; `down`: as they were when its carrier went last, None if it never did."""

    rx_bytes: int
    tx_bytes: int
    rx_pkts: int
    tx_pkts: int
    drops: int
    carrier: bool
    down: AtDown | None = None


@dataclass(frozen=True, slots=True)
class ClockReading:
    """How far a host's wall clock is from this machine's: right to within half of `round_trip_ns`."""

    offset_ns: int
    round_trip_ns: int


@dataclass(frozen=True, slots=True)
class HostEvent:
    """Something a host said unasked. kind: link, committed, crossed, reverted, expired, failed, counters, gpus, job, lost.

    at_ns: when it happened on the host, on this machine's clock; `values` as the committer wrote them.
    """

    host: HostName
    kind: str
    at_ns: int
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class JobState:
    """One rank. state: running, exited (with `code`), killed, absent."""

    host: HostName
    state: str
    code: int | None = None
    pid: int | None = None


@dataclass(frozen=True, slots=True)
class Tail:
    """A piece of a file of a job. `offset`: where to go on; `size`: of the file now; `state`: of the job."""

    text: str
    offset: int
    size: int
    state: str


class HostSide(Protocol):
    """The hosts as the engine knows them. `names` None means all; failures of several hosts are raised as one error naming each.

    Raises, everywhere: Unreachable - no channel to a host. TimedOut - a host did not answer. Refused - a host said no.
    """

    async def connect(self, names: Collection[HostName] | None = None) -> Mapping[HostName, Hello | TestbedError]: ...
    async def greet(self, names: Collection[HostName] | None = None) -> Mapping[HostName, Hello]: ...
    async def provision(self, names: Collection[HostName] | None = None) -> Mapping[HostName, Provisioned]: ...
    async def stage(self, generations: Mapping[int, Mapping[HostName, Rules]]) -> Mapping[HostName, Mapping[int, Staged]]: ...
    async def commit(
        self, generation: int, names: Collection[HostName] | None = None, revert_after_s: float | None = None
    ) -> Mapping[HostName, Committed]: ...
    async def arm(
        self,
        generation: int,
        when_up: Mapping[HostName, Collection[int]],
        *,
        revert_after_s: float | None,
        deadline_s: float,
        cross: Mapping[HostName, Collection[str]] | None = None,
    ) -> None: ...
    async def wait_committed(
        self, generation: int, names: Collection[HostName], deadline_s: float
    ) -> Mapping[HostName, Committed | TestbedError]: ...
    async def confirm(self, generation: int, names: Collection[HostName] | None = None) -> None: ...
    async def revert(self, names: Collection[HostName] | None = None) -> Mapping[HostName, int | None]: ...
    async def clear(self, names: Collection[HostName] | None = None) -> None: ...
    async def probe(
        self, targets: Mapping[HostName, Mapping[str, int | None]], timeout_s: float = 0.5
    ) -> Mapping[HostName, Mapping[str, Probe]]: ...
    async def neighbours(
        self, ports: Collection[HostPort], timeout_s: float = 0.3, *, hear: Collection[HostPort] | None = None
    ) -> Mapping[HostPort, FibreEnd]: ...
    async def traffic(self, requests: Mapping[HostName, Mapping[str, Any]], timeout_s: float) -> dict[HostName, dict[str, Any]]: ...
    async def watch_links(self, names: Collection[HostName] | None = None) -> Mapping[HostPort, bool]: ...
    def subscribe(self) -> asyncio.Queue[HostEvent]: ...
    def unsubscribe(self, queue: asyncio.Queue[HostEvent]) -> None: ...
    async def counters(self, names: Collection[HostName] | None = None) -> Mapping[HostPort, PortCounters]: ...
    async def stream_counters(
        self, interval_s: float | None, names: Collection[HostName] | None = None, *, batch_s: float = 1.0
    ) -> None: ...
    async def keep_counters(self, job: str, interval_s: float, names: Collection[HostName]) -> None: ...
    async def kept_counters(self, job: str, offsets: Mapping[HostName, int]) -> Mapping[HostName, Tail]: ...
    def leave_counters(self) -> None: ...
    async def clocks(self, names: Collection[HostName] | None = None, within_s: float = 5.0) -> Mapping[HostName, ClockReading]: ...
    async def launch(self, job: Job, run: str, *, resume: bool = False) -> Mapping[HostName, JobState]: ...
    async def job_states(self, job: str, names: Collection[HostName] | None = None) -> Mapping[HostName, JobState]: ...
    async def stop_job(
        self, job: str, grace_s: float = 10.0, names: Collection[HostName] | None = None
    ) -> Mapping[HostName, JobState]: ...
    async def tail(self, job: str, host: HostName, file: str = "log", offset: int = 0) -> Tail: ...
    async def collect(self, job: str) -> Mapping[HostName, Path]: ...
    def macs(self) -> Mapping[HostPort, Macs]: ...
    async def close(self) -> None: ...
