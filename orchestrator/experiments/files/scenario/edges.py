"""What a scenario file may contain, checked by pydantic before anything becomes a value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, create_model

from optics.plan import Mode
from orchestrator.experiments.files.scenario.values import (
    BUDGET_S,
    LEAST_ROUNDS,
    WIDTH,
    Label,
    Metric,
    arm_services,
)
from orchestrator.inventory.edges import QueueEdge
from orchestrator.inventory.schema import LINE, NAME, OPTION, VARIABLE, Edge

SCHEMA_ID = "testbed.scenario/1"
Name = Annotated[str, Field(pattern=NAME)]
Text = Annotated[str, Field(min_length=1, max_length=4096)]
FilePath = Annotated[
    str,
    Field(min_length=1, max_length=4096, description="a plan file, relative to the scenario file"),
]
SETTLE_MS = Field(
    ge=0.5, le=60_000, description="switching time of every emulated switch, milliseconds"
)
WATCHDOG_S = Field(
    ge=1,
    le=3600,
    description="longest time for the iterations of one measurement, seconds; then it has stalled",
)


class LineEdge(Edge):
    """A line with delay: what all hosts send at one port."""

    delay_ms: Annotated[float, Field(ge=0, le=10_000, description="in one direction, milliseconds")]
    queue_packets: Annotated[int, Field(ge=1, le=10_000, description="packets that wait at most")]
    loss: Annotated[float, Field(ge=0, lt=1, description="share of packets lost at random")] = 0.0
    rate_mbps: Annotated[
        float, Field(ge=0, le=100_000, description="megabits per second; 0: the port's")
    ] = 0.0


class LabEdge(Edge):
    """The emulated lab of a scenario, as `python -m emulators.generate` makes one: port p of every
    host at switch p.
    """

    hosts: Annotated[int, Field(ge=2, le=64)] = 12
    ports: Annotated[int, Field(ge=1, le=8, description="fabric ports of a host")] = 4
    rate_mbps: Annotated[
        int, Field(ge=1, le=100_000, description="rate of a port, megabits per second")
    ] = 250
    settle_ms: Annotated[float, SETTLE_MS] = 50.0
    driver: Annotated[
        str,
        Field(
            pattern=r"^[a-z0-9-]{0,64}$", description="of all switches, such as lumentum-netconf"
        ),
    ] = ""
    wavelengths: Annotated[
        int,
        Field(
            ge=0,
            le=64,
            description="that hosts send on in turn, where the driver routes spectrum; 0: each on its own",
        ),
    ] = 0
    ring: Annotated[
        bool,
        Field(
            description="hosts on a ring of these switches, two ports for each of `wavelengths`; `ports` is not used"
        ),
    ] = False
    priority: Annotated[
        bool,
        Field(
            description="real-time priority for ranks while they are measured; false: as any other program of the machine"
        ),
    ] = True
    seed: Annotated[
        int,
        Field(
            ge=0,
            le=1 << 31,
            description="of everything random in the lab, such as insertion losses",
        ),
    ] = 1
    electrical: Annotated[
        list[
            Annotated[
                str,
                Field(
                    pattern=r"^[a-z-]{1,32}(:[0-9.]{1,12})?(@[0-9.]{1,12})?(\+[a-z]{1,16}){0,2}$"
                ),
            ]
        ],
        Field(
            max_length=8,
            description="packet switches: ideal, fat-tree, oversubscribed:F, domains:K, rails:K or dual:K, with @MBPS, +aggregate, "
            "+cache",
        ),
    ] = Field(default_factory=list)
    storage_mbps: Annotated[
        float,
        Field(
            ge=0,
            le=10_000_000,
            description="rate at which a host keeps checkpoints, megabits per second; 0: as fast as it can",
        ),
    ] = 0.0
    sites: Annotated[
        int,
        Field(
            ge=0,
            le=64,
            description="in which the hosts are, as many in each, in order; 0: not said",
        ),
    ] = 0
    rack: Annotated[int, Field(ge=1, le=64, description="hosts of a leaf switch of a fat-tree")] = 4
    queue: Annotated[
        QueueEdge | None,
        Field(description="of the packet switches; `share` is of those that have racks"),
    ] = None
    lines: Annotated[
        dict[Annotated[str, Field(pattern=r"^p[1-9][0-9]?$")], LineEdge],
        Field(description="ports whose traffic takes time, as p1"),
    ] = Field(default_factory=dict)


class ScenarioLabEdge(LabEdge):
    """The same, which may be slower as a whole; trials of campaigns measure this program, and
    nothing makes that slower.
    """

    dilation: Annotated[
        float,
        Field(
            ge=1,
            le=100,
            description="how many times slower all of it is: rates, switching, delays, time-outs, modelled computing",
        ),
    ] = 1.0


class SetupEdge(Edge):
    """What tenants do; fields of an arm replace those of a tenant, and those of an arm's tenant
    replace both.
    """

    plan: FilePath | None = None
    then: Annotated[
        FilePath | None,
        Field(description="the plan to change to while the job runs, after the warm-up"),
    ] = None
    job: Annotated[
        FilePath | None,
        Field(description="a job file, or a plan whose job is taken; rings stay those of the plan"),
    ] = None
    args: Annotated[
        dict[Annotated[str, Field(pattern=OPTION)], int | float | str | bool],
        Field(description="added to the job's args"),
    ] = Field(default_factory=dict)
    env: Annotated[
        dict[Annotated[str, Field(pattern=VARIABLE)], Annotated[str, Field(pattern=LINE)]],
        Field(description="added to its env"),
    ] = Field(default_factory=dict)
    backend: Annotated[
        Literal["auto", "gloo", "nccl"] | None, Field(description="replaces the job's")
    ] = None
    transition: Annotated[dict[str, Any], Field(description="added to the plans' transition")] = (
        Field(default_factory=dict)
    )
    mode: Annotated[Mode | None, Field(description="--job of `testbed up` for the change")] = None


class TenantEdge(SetupEdge):
    """One owner with plan and job, as it is in every arm that does not say otherwise."""


class ArmLabEdge(Edge):
    """What an arm changes about the lab."""

    settle_ms: Annotated[float, SETTLE_MS] | None = None
    share: Annotated[
        Literal["fifo", "job"] | None,
        Field(description="of the packet switches' uplinks, in place of `queue` of the lab"),
    ] = None


class ParameterEdge(Edge):
    """One parameter; the arm becomes one arm for each of its values."""

    settle_ms: Annotated[
        list[Annotated[float, SETTLE_MS]],
        Field(alias="lab.settle_ms", min_length=2, max_length=32, description="of the switches"),
    ]


class ArmEdge(SetupEdge):
    """One of the things that are compared."""

    tenants: Annotated[
        dict[Name, SetupEdge | None],
        Field(description="what only one of the tenants does differently; null: it takes no part"),
    ] = Field(default_factory=dict)
    lab: ArmLabEdge | None = None
    sweep: Annotated[
        ParameterEdge | None, Field(description="arm NAME becomes the arms NAME@VALUE")
    ] = None
    watchdog_s: Annotated[float, WATCHDOG_S] | None = None


if not TYPE_CHECKING:
    sections = {kind.key: (kind.section, None) for kind in arm_services().values() if kind.key}
    ArmEdge = create_model("ArmEdge", __base__=ArmEdge, __doc__=ArmEdge.__doc__, **sections)


class BandEdge(Edge):
    """Where the whole interval must be. Written before the scenario is run."""

    min: float | None = None
    max: float | None = None


class CompareEdge(Edge):
    """A metric of one arm divided by that of another, and the band that counts as reproduced."""

    name: Annotated[str, Field(max_length=200, description="what is compared, in words")] = ""
    metric: Metric
    of: Annotated[str, Field(description="an arm")]
    over: Annotated[
        str,
        Field(
            description="an arm; without it the value itself is judged, which only `stalled` allows"
        ),
    ] = ""
    tenant: Annotated[str, Field(description="whose job, where there are several tenants")] = ""
    iterations: Annotated[int, Field(ge=1, le=100_000, description="of span_ms")] | None = None
    seconds: (
        Annotated[
            float,
            Field(
                ge=1,
                le=3600,
                description="of loss: so long after the warm-up or the change, in place of `iterations` of the scenario",
            ),
        ]
        | None
    ) = None
    band: BandEdge
    role: Annotated[
        Literal["claim", "control", "ablation"],
        Field(
            description="control: must hold for the measurement to mean anything; ablation: the mechanism taken away"
        ),
    ] = "claim"


class ScenarioEdge(Edge):
    """Arms measured alternately on one lab, and the ratios that count as reproduced."""

    schema_url: Annotated[str, Field(alias="$schema")] = ""
    schema_id: Annotated[Literal["testbed.scenario/1"], Field(alias="schema")]
    name: Name
    title: Annotated[str, Field(min_length=1, max_length=200)]
    description: Annotated[str, Field(max_length=8192)] = ""
    source: Annotated[
        list[Text],
        Field(min_length=1, max_length=32, description="citations of what is to be reproduced"),
    ]
    claim: Annotated[Text, Field(description="what the source claims, in own words")]
    label: Annotated[
        Label,
        Field(
            description="native: the effect itself in real time; dilated: all times scaled; analytic: computed; stand-in: a reading"
        ),
    ]
    lab: Annotated[
        ScenarioLabEdge | Literal["any"],
        Field(description="a lab of its own, or `any`: the lab of --inventory"),
    ]
    tenants: Annotated[
        dict[Name, TenantEdge], Field(min_length=1, max_length=16, description="by owner")
    ]
    arms: Annotated[dict[Name, ArmEdge], Field(min_length=2, max_length=32)]
    differs: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=200)]],
        Field(
            description="every field in which arms differ: plan.links, plan.job.rings, mode, lab.settle_ms, ..."
        ),
    ]
    order: Annotated[
        Literal["ABBA"],
        Field(description="a round is all arms in turn, every second one backwards"),
    ] = "ABBA"
    repeats: Annotated[
        int,
        Field(
            ge=2,
            le=100,
            description=f"rounds at least, each of which measures every arm once; never fewer than {LEAST_ROUNDS}",
        ),
    ] = LEAST_ROUNDS
    width: Annotated[
        float,
        Field(
            gt=0,
            le=1,
            description="measuring ends when all intervals are this narrow, relative to ratio or band",
        ),
    ] = WIDTH
    budget_s: Annotated[
        float,
        Field(
            ge=60,
            le=86_400,
            description="longest time of all measurements together, seconds; then no round begins",
        ),
    ] = BUDGET_S
    warm_up: Annotated[
        int, Field(ge=1, le=10_000, description="iterations before those that count")
    ] = 1
    iterations: Annotated[
        int, Field(ge=3, le=100_000, description="iterations that count, in each measurement")
    ] = 20
    watchdog_s: Annotated[float, WATCHDOG_S] = 120.0
    compare: Annotated[list[CompareEdge], Field(min_length=1, max_length=64)]


def scenario_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of a scenario file, as committed in
    docs/reference/scenario.schema.json.
    """
    schema = ScenarioEdge.model_json_schema(by_alias=True)
    for part in [schema, *schema.get("$defs", {}).values()]:
        part["title"] = part["title"].removesuffix("Edge")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:{SCHEMA_ID.replace('/', ':')}",
        **schema,
    }
