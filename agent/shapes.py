"""Types for the type checker alone: nothing imports this module at run time, for `typing` costs a
command milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypedDict, TypeVar

T = TypeVar("T")
Json = dict[str, Any]
"""One JSON object: a request, a reply, an event."""
Answer = Callable[[Json], None]
"""Sends the reply to a request that is answered later."""
Attempt = Callable[[Callable[[], "Json | None"]], None]
"""Answers a request later with what a function returns, or with why it failed."""
Operations = Mapping[str, Callable[[Any, Json, Answer], "Json | None"]]
"""Of a mechanism, by name: what is called with the mechanism, the request, and what sends an answer
that comes later.
"""
Message = tuple[int, int, bytes]
"""A netlink request: type, flags, body."""
Ancillary = list[tuple[int, int, bytes]]
"""Control messages of `socket.recvmsg`."""


class Link(TypedDict, total=False):
    """One interface as the kernel reports it. ups, downs: how often its carrier came and went since
    it was made.
    """

    ifindex: int
    name: str
    mac: str
    mtu: int
    up: bool
    carrier: bool
    ups: int
    downs: int


class Pending(TypedDict):
    """A revert that happens unless a confirmation comes. at_ns: when, CLOCK_MONOTONIC; to: None for
    no routes at all.
    """

    to: int | None
    at_ns: int


class Armed(TypedDict):
    """A commit that waits for carrier. wait: interface -> carrier-ups to be exceeded; handle: of
    the deadline's timer.
    """

    generation: int
    wait: dict[str, int]
    revert_after_s: float | None
    cross: list[str]
    handle: int


class Move(TypedDict):
    """One move of a job. generation: the job goes when it becomes active; decided: the last `go` or
    `drop` sent to the ranks.
    """

    generation: int | None
    decided: Json | None


class Waiting(TypedDict):
    """A TCP connection as sock_diag knows it. queued: bytes not acknowledged, sent or not; unacked:
    packets sent of them.
    """

    target: str
    inode: int
    queued: int
    unacked: int


class Listening(TypedDict):
    """The far ends of one token's flows. missing: those still receiving; answer: of the `heard`
    request that waits for them.
    """

    heard: Json
    missing: int
    answer: Answer | None


Counts = dict[tuple[str, int, int], tuple[int, int, int, int]]
"""(far address, own port, far port) -> bytes acknowledged, us with something to send and a peer
that takes it, data segments, and how many of them were sent again and had not arrived."""


class Ports(Protocol):
    """What a sampler needs to know of its host: the interface of each port, and every interface."""

    ports: dict[int, str]
    interfaces: dict[str, Link]


class Routes(Protocol):
    """The route generations. staged: by number, as requested; armed: the commit that waits for
    carrier.
    """

    active: int | None
    staged: dict[int, Json]
    armed: Armed | None


class Flows(Protocol):
    """The connections of this host's lanes."""

    def asked(self) -> None: ...
    def tested(self, seconds: float) -> None: ...
    def look(self) -> tuple[int, Counts]: ...
    def since(self, first: tuple[int, Counts]) -> Json: ...


class Jobs(Protocol):
    """The jobs of this host. Raises: Failure - of a request, if it names none, or a user that jobs
    may not have.
    """

    def directory(self, request: Json) -> str: ...
    def state(self, where: str) -> Json: ...
    def status(self, request: Json) -> Json: ...
    def user(self, wanted: object = None) -> object: ...


class Mechanism(Protocol):
    """What a mechanism has to do with jobs (mechanism.py). Raises: Failure - this host cannot have
    what is wished.
    """

    def wish(self, request: Json) -> Json | None: ...
    def begin(self, name: str, wanted: Json) -> object: ...
    def end(self, name: str) -> object: ...


class Sockets(Protocol):
    """One socket for each running job, by the job's name."""

    def path(self, name: str) -> str: ...
    def open(self, name: str, pid: int) -> None: ...
    def close(self, name: str) -> None: ...
    def clean(self) -> None: ...


class Handoffs(Sockets, Protocol):
    """The hand-off sockets, whose moves are kept in a file."""

    def save(self) -> None: ...


class Slots(Protocol):
    """The schedule of slots."""

    @property
    def notices(self) -> Sockets: ...


class Fence(Protocol):
    """Raises: Failure - a newer run than the request's was here."""

    def check(self, operation: str, request: Json) -> None: ...


class Daemon(Ports, Protocol):
    """What the modules of the operations ask of the daemon, which imports them: its loop, what it
    knows of its host, each other.

    cancelled: of the timers, by the number that `timer` returned; numbers: the port of each
    interface; facts: as provisioned.
    """

    host: str
    facts: Json
    numbers: dict[str, int]
    cancelled: set[int]

    def register(self, fd: int, handler: Callable[[int], object], mask: int = ...) -> None: ...
    def unregister(self, fd: int) -> None: ...
    def timer(self, at_ns: int, function: Callable[[], object]) -> int: ...
    def guard(self, function: Callable[..., object], *arguments: int) -> None: ...
    def broadcast(self, event: Json) -> None: ...
    @property
    def generations(self) -> Routes: ...
    @property
    def flows(self) -> Flows: ...
    @property
    def jobs(self) -> Jobs: ...
    @property
    def mechanisms(self) -> Sequence[Mechanism]: ...
    @property
    def handoff(self) -> Handoffs: ...
    @property
    def slots(self) -> Slots: ...
    @property
    def fence(self) -> Fence: ...
