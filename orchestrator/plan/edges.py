"""The schema of a plan file, `testbed.plan/1`, checked by pydantic, and its JSON Schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, create_model

from orchestrator.extensions import extension_parts
from orchestrator.inventory.edges import Name
from orchestrator.inventory.schema import END, LINE, OPTION, VARIABLE, Edge

SCHEMA_ID = "testbed.plan/1"
MOST_SLOTS = 64
"""Slots of a schedule: each is a whole set of routes that every host keeps ready."""
_BIG = 2**53  # beyond it JSON readers disagree about integers (RFC 8259 section 6)

End = Annotated[
    str,
    Field(
        pattern=END,
        description="a host port such as gpu01:p1, or a host alone: its port is then chosen",
    ),
]
Seconds = Annotated[float, Field(gt=0, le=3600)]


def _exact(value: bool | int | float | str) -> bool | int | float | str:
    if isinstance(value, int) and abs(value) > _BIG:
        raise ValueError(f"the number {value} is beyond 2**53, where JSON readers no longer agree")
    return value


Scalar = Annotated[bool | int | float | Annotated[str, Field(pattern=LINE)], AfterValidator(_exact)]


class LinkEdge(Edge):
    """A link between two host ports; without ports the program chooses them, `count` of them in
    parallel.
    """

    a: End
    b: End
    kind: Literal["duplex", "simplex"] = "duplex"
    count: Annotated[int, Field(ge=1, le=64)] = 1


Bytes = Annotated[int, Field(ge=0, le=_BIG)]
Figure = Annotated[float, Field(ge=0)]


class SendEdge(Edge):
    """One send of a schedule: part of the piece that `shard` starts with."""

    step: Annotated[int, Field(ge=1, le=4096)]
    src: str
    dst: str
    shard: str
    begin: Annotated[float, Field(ge=0, lt=1)] = 0.0
    end: Annotated[float, Field(gt=0, le=1)] = 1.0


class GroupEdge(Edge):
    """Hosts that all-reduce a buffer together in every iteration."""

    id: Name
    bytes: Annotated[Bytes, Field(description="of the buffer, at each member")]
    rings: Annotated[
        list[Annotated[list[str], Field(min_length=2)]],
        Field(
            min_length=1,
            max_length=64,
            description="orders of the members; each carries an equal part of the buffer",
        ),
    ]
    schedule: Annotated[
        list[SendEdge],
        Field(
            max_length=65536,
            description="sends of an all-gather, which the members go by instead of rings",
        ),
    ] = Field(default_factory=list)


class TransferEdge(Edge):
    """Bytes that go from one host to another in every iteration."""

    src: str
    dst: str
    bytes: Annotated[int, Field(ge=1, le=_BIG)]
    lane: Annotated[
        int,
        Field(
            ge=0, le=63, description="which of the addresses, and so which of the equal-cost paths"
        ),
    ] = 0
    via: Annotated[
        str | None,
        Field(description="the host whose rank passes it on; links join it with both ends"),
    ] = None


class TrafficEdge(Edge):
    """What one iteration of a designed job computes and moves."""

    groups: Annotated[list[GroupEdge], Field(max_length=256)] = Field(default_factory=list)
    transfers: Annotated[list[TransferEdge], Field(max_length=65536)] = Field(default_factory=list)
    compute_s: Annotated[float, Field(ge=0, le=3600)] = 0.0
    scale: Annotated[
        float, Field(gt=0, description="bytes here per byte of the workload that was designed for")
    ] = 1.0
    time_scale: Annotated[
        float, Field(gt=0, description="time here per time of that workload on its own links")
    ] = 1.0


class PredictedEdge(Edge):
    """What the planner predicts for the job on these links; shown next to the measured values."""

    iteration_ms: Figure | None = None
    compute_ms: Figure | None = None
    transfers_ms: Figure | None = None
    allreduce_ms: Figure | None = None
    busbw_mbps: Annotated[
        Figure | None, Field(description="megabytes per second (1e6), as nccl-tests count")
    ] = None
    link_mbps: Annotated[
        Figure | None,
        Field(description="rate of a port that is reckoned with, megabits per second"),
    ] = None
    diameter: Figure | None = None
    mean_hops: Figure | None = None
    bandwidth_tax: Annotated[
        Figure | None, Field(description="bytes on all links per byte that is sent")
    ] = None


class ProducerEdge(Edge):
    """What made the plan."""

    name: Name
    version: str = ""
    method: str = ""
    rules: Literal["paper", "artifact"] | None = None
    seed: int | None = None
    backend: str = ""
    workload: str = ""
    workload_sha256: str = ""


class JobEdge(Edge):
    """What runs on the hosts once the links are up."""

    name: Name
    workload: Literal["train", "allreduce", "replay", "moe", "retrieve", "serve", "program"]
    program: Annotated[
        Name | None,
        Field(
            description="of a program: its name in programs.yml, where the lab's owner declares it"
        ),
    ] = None
    ranks: Annotated[
        list[str],
        Field(
            min_length=1,
            description="the host of rank 0, of rank 1, ...; several ranks of one: gpu01/0, gpu01/1, ...",
        ),
    ]
    rings: Annotated[
        list[list[str]],
        Field(max_length=64, description="orders of all its hosts whose steps are links"),
    ] = Field(default_factory=list)
    args: Annotated[
        dict[Annotated[str, Field(pattern=OPTION)], Scalar],
        Field(
            description="options of the workload, as its command line has them; of a program those that its owner opened"
        ),
    ] = Field(default_factory=dict)
    env: Annotated[
        dict[Annotated[str, Field(pattern=VARIABLE)], Annotated[str, Field(pattern=LINE)]],
        Field(
            description="variables that tune NCCL, gloo, OpenMP or torch; none that names a file, a library or a host"
        ),
    ] = Field(default_factory=dict)
    backend: Literal["auto", "gloo", "nccl"] = "auto"
    traffic: Annotated[
        TrafficEdge | None,
        Field(description="of a replay: what an iteration moves, with its rings"),
    ] = None
    evicted: Annotated[
        dict[str, str],
        Field(
            max_length=4096,
            description="ranks of this training whose place another rank took, or nobody (empty); `job evict` writes it",
        ),
    ] = Field(default_factory=dict)
    joined: Annotated[
        list[str],
        Field(
            max_length=4096,
            description="ranks that joined this training after its beginning; `job join` writes it",
        ),
    ] = Field(default_factory=list)


def _with(model: type[Edge], sections: Mapping[str, Any]) -> Any:
    """The model with these sections of attachments, all of which may be left out."""
    more: dict[str, Any] = {key: (section, None) for key, section in sections.items()}
    return create_model(model.__name__, __base__=model, __doc__=model.__doc__, **more)


if not TYPE_CHECKING:
    JobEdge = _with(
        JobEdge,
        {
            kind.key: kind.section
            for kind in extension_parts("plan", "PLANNED")
            if kind.section is not None
        },
    )


class RouteEdge(Edge):
    """A path that traffic from `src` to `dst` must take instead of a shortest one."""

    src: str
    dst: str
    via: list[str]
    lane: Annotated[int, Field(ge=0, le=63)] | None = None


class AcceptanceEdge(Edge):
    """When the change counts as done."""

    link_up_timeout_s: Annotated[
        Seconds, Field(description="every link has carrier within this time")
    ] = 15.0
    max_loss_db: Annotated[
        float,
        Field(
            gt=0,
            le=60,
            description="largest loss of a circuit; the default is the channel insertion loss of 25GBASE-LR, IEEE 802.3cc",
        ),
    ] = 6.3
    target_dbm: Annotated[
        float | None,
        Field(
            ge=-40,
            le=20,
            description="power wanted where light leaves the last device; spectral routes are attenuated to it",
        ),
    ] = None
    tolerance_db: Annotated[
        float, Field(ge=0.1, le=10, description="allowed deviation from target_dbm")
    ] = 0.5
    light_window_db: Annotated[
        float | None,
        Field(
            gt=0,
            le=30,
            description="how far measured and expected loss may differ, instead of what the devices' numbers allow",
        ),
    ] = None
    neighbours: Annotated[bool, Field(description="each port must reach the planned port")] = True
    all_pairs: Annotated[
        bool,
        Field(description="each pair of hosts must be reachable in the planned number of hops"),
    ] = True
    link_mbps: Annotated[
        float | None,
        Field(
            gt=0,
            le=1_000_000,
            description="rate a link should carry; by default what the median link carries",
        ),
    ] = None
    min_link_share: Annotated[
        float | None,
        Field(
            gt=0, le=1, description="measured traffic: each link carries this share of link_mbps"
        ),
    ] = None
    max_link_loss: Annotated[
        float | None,
        Field(
            ge=0,
            lt=1,
            description="measured traffic: each link loses at most this share of datagrams",
        ),
    ] = None
    min_busbw_share: Annotated[
        float | None,
        Field(
            gt=0, le=1, description="a short all-reduce reaches this share of what the links allow"
        ),
    ] = None


class TransitionEdge(Edge):
    """How to change from the current circuits to those of the plan."""

    drain: Annotated[bool, Field(description="move traffic off circuits before they go dark")] = (
        True
    )
    revert_after_s: Annotated[
        Seconds, Field(description="hosts undo a commit that is not confirmed within this time")
    ] = 30.0
    live: Annotated[
        Literal["require", "prefer", "never"],
        Field(
            description="a running job changes its rings at an iteration boundary: or nothing is changed, or it is relaunched"
        ),
    ] = "prefer"
    hold: Annotated[
        Literal["auto", "always", "never"],
        Field(
            description="pause the job, and keep packets of pairs without a path in their sockets, while circuits are dark"
        ),
    ] = "auto"
    boundary_s: Annotated[
        float,
        Field(ge=1, le=3600, description="an iteration of the job ends within this time, seconds"),
    ] = 30.0


class PlanSegmentEdge(Edge):
    """An electrical segment of the inventory whose ports carry traffic of the plan, as if every two
    of them were linked.
    """

    name: Name
    hosts: Annotated[
        list[str] | None,
        Field(
            min_length=2, description="which of its hosts; without them all that have a port there"
        ),
    ] = None
    functions: Annotated[
        list[Literal["aggregate", "cache"]],
        Field(
            max_length=2,
            description="what its packet switch is to do for the job: add vectors of numbers, answer from a cache",
        ),
    ] = Field(default_factory=list)


class TimeslotEdge(Edge):
    """Links that are lit in one slot, beside those that always are."""

    links: Annotated[list[LinkEdge], Field(max_length=8192)]


class ScheduleEdge(Edge):
    """Links that come and go in turn: either `slots`, or a `pattern` over the `ports` of hosts."""

    kind: Annotated[
        Literal["clock", "phase"],
        Field(
            description="what ends a slot: its time, or (phase) the first end of an iteration of the job after that time"
        ),
    ] = "clock"
    dwell_s: Annotated[Seconds, Field(description="light of one slot, from its arrival to its end")]
    guard_s: Annotated[
        Annotated[float, Field(ge=0, le=3600)] | Literal["auto"],
        Field(
            description="hosts stop sending this long before a slot's expected end; auto: until what waits in a port has arrived"
        ),
    ] = 0.0
    slots: Annotated[
        list[TimeslotEdge],
        Field(description=f"one after the other, then from the first again; at most {MOST_SLOTS}"),
    ] = Field(default_factory=list)
    pattern: Annotated[
        Literal["round-robin", "staggered", "opera"] | None,
        Field(
            description="every pair of hosts in turn: all ports alike, each port its own part of the pairs, or so that one port "
            "moves at a time"
        ),
    ] = None
    ports: Annotated[
        list[Annotated[str, Field(pattern=r"^p[0-9]{1,3}$")]],
        Field(
            max_length=64,
            description="of a pattern: the ports of each host that it joins, such as p1",
        ),
    ] = Field(default_factory=list)
    hosts: Annotated[
        list[str],
        Field(
            max_length=4096,
            description="of a pattern: the hosts it joins; those of the job unless given",
        ),
    ] = Field(default_factory=list)
    follow: Annotated[
        Literal["light", "clock"],
        Field(description="what hosts go by: light at their own ports, or their clocks alone"),
    ] = "light"
    late: Annotated[
        Literal["skip", "stop"],
        Field(description="a slot whose light is late is left out, or ends the schedule"),
    ] = "skip"
    tcp: Annotated[
        Literal["cubic", "per-network", "one-window", "not-told"],
        Field(
            description="per-network keeps one window for circuits that come and go and one for all else; one-window and "
            "not-told are its ablation and its control"
        ),
    ] = "cubic"
    hold: Annotated[
        bool,
        Field(
            description="packets of pairs that lose their path wait in their sockets while it is dark; false: an ablation"
        ),
    ] = True


class PlanEdge(Edge):
    """Which host ports should be linked, which packet switches used, and what should then run.
    Links or segments are needed.
    """

    schema_url: Annotated[str, Field(alias="$schema")] = ""
    schema_id: Annotated[Literal["testbed.plan/1"], Field(alias="schema")]
    name: Name
    description: Annotated[str, Field(max_length=4096)] = ""
    links: Annotated[list[LinkEdge], Field(max_length=8192)] = Field(default_factory=list)
    segments: Annotated[list[PlanSegmentEdge], Field(max_length=64)] = Field(default_factory=list)
    job: JobEdge | None = None
    predicted: PredictedEdge | None = None
    producer: ProducerEdge | None = None
    routes: Annotated[list[RouteEdge], Field(max_length=65536)] = Field(default_factory=list)
    interchangeable: Annotated[
        Literal["all"] | list[list[str]],
        Field(
            description="groups of hosts that --relabel may exchange; all: all equal hosts of the plan"
        ),
    ] = Field(default_factory=list)
    spares: Annotated[
        list[str],
        Field(
            max_length=256,
            description="hosts outside the plan that may take the place of one that fails, in this order",
        ),
    ] = Field(default_factory=list)
    acceptance: AcceptanceEdge = AcceptanceEdge()
    transition: TransitionEdge = TransitionEdge()
    schedule: ScheduleEdge | None = None


if not TYPE_CHECKING:
    PlanEdge = _with(
        PlanEdge,
        {
            key: section
            for kind in extension_parts("plan", "PLANNED")
            for key, section in kind.outside.items()
        },
    )


def plan_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of a plan file, as committed in docs/reference/plan.schema.json."""
    schema = PlanEdge.model_json_schema(by_alias=True)
    for part in [schema, *schema.get("$defs", {}).values()]:
        part["title"] = part["title"].removesuffix("Edge")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:{SCHEMA_ID.replace('/', ':')}",
        **schema,
    }
