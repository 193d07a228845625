"""The checked content of a plan file. Frozen values."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal, TypeAlias

from optics import Db, Dbm, HostName, HostPort, LinkKind
from optics.ranks import RankName, hosts_of

Ring: TypeAlias = Sequence[HostName]

LinkEnd: TypeAlias = HostPort | HostName
"""A host port, or a host alone whose port is still to be chosen."""


@dataclass(frozen=True, slots=True)
class WantedLink:
    """One link of the plan. `place`: its place in the file, for error messages (`links[3]`)."""

    a: LinkEnd
    b: LinkEnd
    kind: LinkKind = LinkKind.DUPLEX
    place: str = field(default="", compare=False)

    @property
    def hosts(self) -> tuple[HostName, HostName]:
        return host_of(self.a), host_of(self.b)

    def __str__(self) -> str:
        return f"{self.a} {'--' if self.kind is LinkKind.DUPLEX else '->'} {self.b}"


def host_of(end: LinkEnd) -> HostName:
    return end.host if isinstance(end, HostPort) else end


@dataclass(frozen=True, slots=True)
class Send:
    """In step `step` of gathering, `src` sends `dst` the part from `begin` to `end` (0 to 1) of the
    piece of `shard`.
    """

    step: int
    src: HostName
    dst: HostName
    shard: HostName
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class RingGroup:
    """Hosts that all-reduce a buffer of `bytes` together; each of `rings` is an order of them and
    carries an equal part.

    schedule: they go by it instead, backwards while they reduce, forwards while they gather; the
    one ring then only names them.
    """

    id: str
    bytes: int
    rings: tuple[tuple[HostName, ...], ...]
    schedule: tuple[Send, ...] = ()


@dataclass(frozen=True, slots=True)
class Transfer:
    """Bytes from host to host over a lane's addresses. Several ranks of a host share them, as those
    of a group's buffer. via: the host whose ranks pass them on, None for none.
    """

    src: HostName
    dst: HostName
    bytes: int
    lane: int = 0
    via: HostName | None = None

    @property
    def steps(self) -> tuple[tuple[HostName, HostName], ...]:
        """From which host to which one a rank sends."""
        return tuple(pairwise((self.src, *([self.via] if self.via else ()), self.dst)))


@dataclass(frozen=True, slots=True)
class Traffic:
    """The traffic of one iteration of a designed job. scale: bytes here per byte of the workload;
    time_scale: of its times.
    """

    groups: tuple[RingGroup, ...] = ()
    transfers: tuple[Transfer, ...] = ()
    compute_s: float = 0.0
    scale: float = 1.0
    time_scale: float = 1.0

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Traffic:
        """The traffic that `data` describes, in the plan file's words."""
        groups = tuple(
            RingGroup(
                g["id"],
                g["bytes"],
                tuple(map(tuple, g["rings"])),
                tuple(Send(**send) for send in g.get("schedule", ())),
            )
            for g in data["groups"]
        )
        transfers = tuple(Transfer(**t) for t in data["transfers"])
        return cls(**{**data, "groups": groups, "transfers": transfers})


@dataclass(frozen=True, slots=True)
class Job:
    """The program that runs on the hosts. `ranks[i]` names rank i; each ring is an order of all
    hosts, each of which it enters and leaves once, whatever the number of ranks there. The ranks of
    a host follow each other.

    args: options of the workload. env: added to its environment as it is. traffic: what a replay
    moves. predicted: what the planner expects, by the names of the plan file (`iteration_ms`,
    `busbw_mbps`, ...).

    program: of a `program`, its name in the inventory. version: identifies its declaration and
    files. training: the arguments that decide its weights, None if it keeps no checkpoints. Its
    backend is the declared one, `args` has the declared defaults.

    evicted: ranks of the same training whose place another has now, or none (empty); it goes on
    from the checkpoints of the rest. joined: ranks that it did not begin with.

    attached: what it has beside its ranks while it runs, by kind (orchestrator/extensions.py).
    aside: hosts that only these need.
    """

    name: str
    workload: Literal["train", "allreduce", "replay", "moe", "retrieve", "serve", "program"]
    ranks: tuple[RankName, ...]
    rings: tuple[tuple[HostName, ...], ...] = ()
    args: Mapping[str, int | float | str | bool] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    backend: Literal["auto", "gloo", "nccl", "testbed", "none"] = "auto"
    traffic: Traffic | None = None
    predicted: Mapping[str, float] = field(default_factory=dict)
    program: str = ""
    version: str = ""
    training: Mapping[str, int | float | str | bool] | None = None
    evicted: Mapping[RankName, RankName] = field(default_factory=dict)
    joined: tuple[RankName, ...] = ()
    attached: Mapping[str, Any] = field(default_factory=dict)
    aside: tuple[HostName, ...] = ()

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Job:
        """The job that `data` (`to_json` of one) describes; its attachments stay as they are there
        (`extensions.job_of`).
        """
        read: dict[str, Any] = {
            "ranks": tuple(data["ranks"]),
            "rings": tuple(map(tuple, data["rings"])),
            "traffic": Traffic.of(data["traffic"]) if data["traffic"] else None,
            "aside": tuple(data["aside"]),
            "joined": tuple(data.get("joined", ())),  # not in what an older version kept
        }
        return cls(**{**data, **read})

    @property
    def hosts(self) -> tuple[HostName, ...]:
        """The hosts of its ranks, in order."""
        return hosts_of(self.ranks)

    @property
    def needed(self) -> tuple[HostName, ...]:
        """The hosts of its ranks, and those of its attachments."""
        return (*self.hosts, *self.aside)

    @property
    def orders(self) -> tuple[tuple[HostName, ...], ...]:
        """Every ring, those of groups included; ring k uses lane k modulo the number of lanes."""
        groups = self.traffic.groups if self.traffic else ()
        return self.rings + tuple(
            ring for group in groups if not group.schedule for ring in group.rings
        )

    @property
    def uses_rings(self) -> bool:
        """Whether its ranks send along the rings; other programs connect as they like, and do not
        notice a change of rings.
        """
        return self.workload != "program" or self.backend == "testbed"


@dataclass(frozen=True, slots=True)
class FixedRoute:
    """Traffic from `source` to `target` goes through `via`, in order; on one lane, or on all of
    them (None).
    """

    source: HostName
    target: HostName
    via: tuple[HostName, ...]
    lane: int | None = None

    @property
    def path(self) -> tuple[HostName, ...]:
        return (self.source, *self.via, self.target)


@dataclass(frozen=True, slots=True)
class Acceptance:
    """When a change counts as done. `max_loss_db`: a circuit expected or measured above it is
    refused or fails.

    target_dbm: power wanted where light leaves the last device towards its receiver, None for
    whatever arrives. light_window_db: largest difference between measured and expected loss of any
    part of a path, None for what the parts' own numbers allow. min_link_share, max_link_loss: of
    measured traffic on every link, compared with link_mbps or else the links' median.
    min_busbw_share: of a short all-reduce, compared with what the links allow. None: not measured.
    """

    link_up_timeout_s: float = 15.0
    max_loss_db: Db = 6.3
    target_dbm: Dbm | None = None
    tolerance_db: Db = 0.5
    light_window_db: Db | None = None
    neighbours: bool = True
    all_pairs: bool = True
    link_mbps: float | None = None
    min_link_share: float | None = None
    max_link_loss: float | None = None
    min_busbw_share: float | None = None


Mode: TypeAlias = Literal["live", "restart", "keep"]
"""What becomes of a running job when another plan comes up: it takes over its rings while it runs
(`transition.live: require`), is launched again (`never`), or stays as it is."""


@dataclass(frozen=True, slots=True)
class TransitionPolicy:
    """How a change is made. drain: move traffic off circuits before they go dark. revert_after_s:
    hosts undo an unconfirmed commit.

    live: whether a running job changes its rings at an iteration boundary: `require` (or nothing is
    changed), `prefer` (or it is relaunched), `never`. hold: whether it pauses, with the pairs of
    hosts that lose their path, while circuits are dark. boundary_s: an iteration of the job ends
    within this time.
    """

    drain: bool = True
    revert_after_s: float = 30.0
    live: Literal["require", "prefer", "never"] = "prefer"
    hold: Literal["auto", "always", "never"] = "auto"
    boundary_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Avoid:
    """Parts that the plan must not use: host ports, trunks; `message` as given."""

    message: tuple[str, ...] = ()
    ports: frozenset[HostPort] = frozenset()
    trunks: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Slot:
    """The links that are lit in one slot of a schedule, beside the plan's own `links`, which always
    are.

    Not `optics.Slot`, which is a part of the spectrum.
    """

    links: tuple[WantedLink, ...]


@dataclass(frozen=True, slots=True)
class Schedule:
    """Slots that follow each other, the first again after the last.

    dwell_s: from light to the end of light, one slot. guard_s: hosts stop sending this long before
    the expected end.

    kind: what ends a slot: the time, or a phase of the job (an iteration boundary). follow: what
    hosts go by: their own light, or their clocks. late: what happens when a slot's light does not
    come: it is left out, or the schedule stops. pattern: as written in the file, for display; the
    slots are what counts. tcp: per-network has a window for circuits that come and go and one for
    the rest, one-window and not-told are the same with one window, and without word of the slots,
    to compare with. hold: hosts take the routes of a slot away before it is dark; without, which is
    to compare with, they keep them until the next slot.
    """

    slots: tuple[Slot, ...]
    dwell_s: float
    guard_s: float = 0.0
    kind: Literal["clock", "phase"] = "clock"
    follow: Literal["light", "clock"] = "light"
    late: Literal["skip", "stop"] = "skip"
    pattern: str = ""
    tcp: Literal["cubic", "per-network", "one-window", "not-told"] = "cubic"
    hold: bool = True


@dataclass(frozen=True, slots=True)
class Plan:
    """A checked plan. `sha256` is that of the file's text; `warnings` do not stop a change.

    interchangeable: groups of equal hosts that may be exchanged. segments: names of packet
    switches, whose pairs of ports are among the links. spares: hosts outside of it that may take
    the place of one that fails, in this order. schedule: links that come and go beside `links`.
    """

    name: str
    links: tuple[WantedLink, ...]
    job: Job | None = None
    routes: tuple[FixedRoute, ...] = ()
    acceptance: Acceptance = Acceptance()
    transition: TransitionPolicy = TransitionPolicy()
    description: str = ""
    sha256: str = ""
    warnings: tuple[str, ...] = field(default=(), compare=False)
    avoid: Avoid = Avoid()
    interchangeable: tuple[tuple[HostName, ...], ...] = ()
    segments: tuple[str, ...] = ()
    spares: tuple[HostName, ...] = ()
    schedule: Schedule | None = None

    @property
    def rings(self) -> tuple[tuple[HostName, ...], ...]:
        return self.job.orders if self.job else ()

    @property
    def hosts(self) -> tuple[HostName, ...]:
        """The hosts of its links, those of every slot included, in the order of the links."""
        slots = self.schedule.slots if self.schedule else ()
        every = (self.links, *(slot.links for slot in slots))
        return tuple(
            dict.fromkeys(host for links in every for link in links for host in link.hosts)
        )

    def slot(self, index: int) -> Plan:
        """What the schedule wants in slot `index`, as an ordinary plan: without job and schedule,
        with the fixed routes whose links are there. All pairs of hosts are only asked for where
        links join them all. Raises: IndexError, ValueError - no schedule.
        """
        if self.schedule is None:
            raise ValueError(f"plan {self.name} has no schedule")
        links = self.links + self.schedule.slots[index].links
        steps = steps_of(links)
        first, back = self.hosts[0], {(b, a) for a, b in steps}
        whole = reached(first, steps) == reached(first, back) == set(self.hosts)
        return replace(
            self,
            links=links,
            routes=tuple(
                route
                for route in self.routes
                if all(step in steps for step in pairwise(route.path))
            ),
            acceptance=replace(self.acceptance, all_pairs=self.acceptance.all_pairs and whole),
            job=None,
            schedule=None,
            interchangeable=(),  # hosts exchanged in one slot would have to be in all
        )


def ring_steps(order: Ring) -> list[tuple[HostName, HostName]]:
    """The steps of a ring, the closing one included; a ring of one host has none."""
    return list(zip(order, [*order[1:], order[0]], strict=True)) if len(order) > 1 else []


def steps_of(links: Sequence[WantedLink]) -> set[tuple[HostName, HostName]]:
    """From which host to which one a link leads."""
    found = {link.hosts for link in links}
    return found | {
        (b, a) for link in links if link.kind is LinkKind.DUPLEX for a, b in [link.hosts]
    }


def reached(host: HostName, steps: Collection[tuple[HostName, HostName]]) -> set[HostName]:
    """The hosts that packets of `host` can reach over these steps, itself included."""
    onward: dict[HostName, list[HostName]] = {}
    for a, b in steps:
        onward.setdefault(a, []).append(b)
    seen, open_ = {host}, [host]
    while open_:
        fresh = set(onward.get(open_.pop(), ())) - seen
        seen |= fresh
        open_ += fresh
    return seen
