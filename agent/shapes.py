"""Types for the type checker alone: nothing imports this module at run time, for `typing` costs a command milliseconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypedDict, TypeVar

T = TypeVar("T")
Json = dict[str, Any]
"""One JSON object: a request, a reply, an event."""
Answer = Callable[[Json], None]
"""Sends the reply to a request that is answered later."""
Attempt = Callable[[Callable[[], "Json | None"]], None]
"""Answers a request later with what a function returns, or with why it failed."""
Message = tuple[int, int, bytes]
"""A netlink request: type, flags, body."""
Ancillary = list[tuple[int, int, bytes]]
"""Control messages of `socket.recvmsg`."""


class Link(TypedDict, total=False):
    """One interface as the kernel reports it. ups, downs: how often its carrier came and went since it was made."""

    ifindex: int
    name: str
    mac: str
    mtu: int
    up: bool
    carrier: bool
    ups: int
    downs: int


class Pending(TypedDict):
    """A revert that happens unless a confirmation comes. at_ns: when, CLOCK_MONOTONIC; to: None for no routes at all."""

    to: int | None
    at_ns: int


class Armed(TypedDict):
    """A commit that waits for carrier. wait: interface -> carrier-ups to be exceeded; handle: of the deadline's timer."""

    generation: int
    wait: dict[str, int]
    revert_after_s: float | None
    cross: list[str]
    handle: int


class Move(TypedDict):
    """One move of a job. generation: the job goes when it becomes active; decided: the last `go` or `drop` sent to the ranks."""

    generation: int | None
    decided: Json | None


class Waiting(TypedDict):
    """A TCP connection as sock_diag knows it. queued: bytes not acknowledged, sent or not; unacked: packets sent of them."""

    target: str
    inode: int
    queued: int
    unacked: int


class Listening(TypedDict):
    """The far ends of one token's flows. missing: those still receiving; answer: of the `heard` request that waits for them."""

    heard: Json
    missing: int
    answer: Answer | None


class Ports(Protocol):
    """What a sampler needs to know of its host: the interface of each port, and every interface."""

    ports: dict[int, str]
    interfaces: dict[str, Link]
