"""The values that hosts give. All times are monotonic nanoseconds of this machine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from optics import HostName, HostPort
from optics.ranks import RankName


@dataclass(frozen=True, slots=True)
class Stream:
    """What one end of a TCP stream received. gaps: begin and end (ns) of the longest times without
    data, in order.

    open: it was still waiting for data when its time was over, so the last gap may have been
    longer.
    """

    host: HostName
    bytes: int
    gaps: tuple[tuple[int, int], ...]
    open: bool


@dataclass(frozen=True, slots=True)
class PortState:
    """One port as the host's kernel sees it. `ups` counts how often carrier came up since the
    interface was made.

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
    """The agent of a host and its state. `installed` is false if none runs; the rest is then empty.

    provision: digest of the facts and programs last provisioned. pending_s: seconds until it
    reverts to `pending_to`. token: the highest it has seen; it refuses changes by a run with a
    lower one. job_user: there is the user that jobs run as.
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
    same_clock: bool = False
    token: int = 0
    job_user: bool = True


@dataclass(frozen=True, slots=True)
class Provisioned:
    """What provisioning changed on a host, and what its kernel could not do; `started`: the agent
    was (re)started.
    """

    host: HostName
    changed: tuple[str, ...]
    notes: tuple[str, ...]
    started: bool


@dataclass(frozen=True, slots=True)
class Staged:
    """A generation in a table that no rule selects yet."""

    generation: int
    routes: int
    table: int


@dataclass(frozen=True, slots=True)
class Committed:
    """A generation became active. `link_ns`: when the last awaited carrier came up (armed commits
    only).
    """

    host: HostName
    generation: int
    previous: int | None
    commit_ns: int
    link_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """A host holds. sockets: TCP connections that wait, `found`: those that can be pushed;
    `skipped`: why others cannot.
    """

    host: HostName
    sockets: int = 0
    found: int = 0
    skipped: str = ""


@dataclass(frozen=True, slots=True)
class Probe:
    """One answer, or none. `hops`: links crossed on the forward path."""

    source: HostName
    address: str
    ok: bool
    hops: int | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class FibreEnd:
    """The far end of a port. `sends_to` confirmed receiving this port's frames; `receives`: the
    port whose frames arrive here.
    """

    port: HostPort
    carrier: bool
    sends_to: HostPort | None
    receives: HostPort | None


@dataclass(frozen=True, slots=True)
class AtDown:
    """The port's counters when it last lost carrier, and when that was."""

    at_ns: int
    rx_bytes: int
    tx_bytes: int


@dataclass(frozen=True, slots=True)
class PortCounters:
    """Counters of one port since its interface was made; `down`: as they were when it last lost
    carrier, None if it never did.
    """

    rx_bytes: int
    tx_bytes: int
    rx_pkts: int
    tx_pkts: int
    drops: int
    carrier: bool
    down: AtDown | None = None


@dataclass(frozen=True, slots=True)
class ClockReading:
    """A host's wall clock compared with this machine's, accurate to half of `round_trip_ns`."""

    offset_ns: int
    round_trip_ns: int


@dataclass(frozen=True, slots=True)
class HostEvent:
    """An event of a host. kind: link, committed, crossed, reverted, expired, failed, counters,
    gpus, job, lost.

    at_ns: when it happened on the host, on this machine's clock; `values` as the agent sent them.
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
class RankState:
    """Where a rank is in a move of its job. state: preparing, prepared, held, changed, void or
    cannot (`error` says why).

    iteration: the latest that it reported. after: the iteration whose end was the boundary.
    took_ms: of connecting what the move needs. held_ms: of its pause. stall_ms: the longest time
    without a byte moved although some were due. silent_s: since it last reported.
    """

    host: HostName
    rank: int
    state: str
    move: int = 0
    iteration: int = 0
    after: int | None = None
    took_ms: float | None = None
    held_ms: float | None = None
    stall_ms: float | None = None
    silent_s: float | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class RankTimes:
    """One iteration of one rank. t_wall_ns: when it began, on the host's wall clock.

    compute_ms: all of it but the waiting for its exchange. exposed_ms: that waiting, communication
    that no computing hid. wait_ms: of it, the time in which no byte moved because another rank was
    not there yet: a rank that is late itself has little. A program that does not tell has 0 in
    these three. processor_ms: how long its threads, all together, were ready to run and had no
    processor, since the iteration before; 0: not known. rwnd_limited_ms, retransmitted: of its TCP
    connections, the time without a receiver's window, and TCP segments sent again. refused:
    datagrams that the host refused as a send buffer was full.
    """

    iteration: int
    t_wall_ns: int
    iter_ms: float
    compute_ms: float
    exposed_ms: float
    wait_ms: float
    processor_ms: float = 0.0
    rwnd_limited_ms: float = 0.0
    retransmitted: int = 0
    refused: int = 0


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What a rank wrote of itself. state: running, exited (with `code`), killed, absent.

    iteration: the current one. phase: start, compute, exchange, hold, end, save (writes a
    checkpoint); empty where there is no heartbeat. age_s: since iteration or phase last changed, by
    the host's own monotonic clock; inf where there is no heartbeat. times: of the latest iterations
    that ended. alive_s: since the latest sign of life, which a rank gives once a second while it
    carries an exchange, inf where none is known: a process that was stopped in an exchange differs
    by this from those that wait for it. save_s: how long its longest checkpoint so far took, 0 if
    it has written none.
    """

    rank: RankName
    state: str
    code: int | None
    iteration: int
    phase: str
    age_s: float
    times: tuple[RankTimes, ...]
    alive_s: float = math.inf
    save_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RankLoad:
    """The processes of a rank. state: as in proc(5), `T` only if all are stopped. heartbeat: why
    its heartbeat cannot be read, if so.
    """

    state: str
    cores: float
    heartbeat: str = ""


@dataclass(frozen=True, slots=True)
class Process:
    """A process and how many processors it kept busy."""

    pid: int
    command: str
    cores: float


@dataclass(frozen=True, slots=True)
class Flow:
    """What a host's TCP connections to one address `to` carried in `seconds`, by its kernel.

    port: through which it goes, None: no port of the fabric; via: the next address on its way,
    empty: `to` itself. busy_s: with something to send, and a receiver that takes it. segments: sent
    with data; again: of them sent again that had not arrived; times: in so many of the seconds.
    """

    to: str
    via: str
    port: int | None
    seconds: float
    bytes: int
    busy_s: float
    segments: int
    again: int
    times: int = 0


@dataclass(frozen=True, slots=True)
class Load:
    """Who used a host's processors for `seconds`. busy: all cores in use; others: processes that
    are no rank's and used most.

    sent, again: TCP segments, and those of them that were sent again. flows: of about a second;
    past: of ten at most, and as of few where nobody asked before.
    """

    host: HostName
    seconds: float
    cpus: int
    busy: float
    ranks: Mapping[RankName, RankLoad]
    others: tuple[Process, ...]
    sent: int = 0
    again: int = 0
    flows: tuple[Flow, ...] = ()
    past: tuple[Flow, ...] = ()


@dataclass(frozen=True, slots=True)
class Tail:
    """A piece of a file of a job. `offset`: where to continue; `size`: of the file now; `state`: of
    the job.
    """

    text: str
    offset: int
    size: int
    state: str
