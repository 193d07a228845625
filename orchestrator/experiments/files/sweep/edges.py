"""What a campaign file may contain, checked by pydantic before anything becomes a value."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Discriminator, Field, Tag

from optics.plan import Mode
from orchestrator.experiments.files.scenario.edges import LabEdge
from orchestrator.experiments.files.sweep.values import Kind
from orchestrator.inventory.schema import NAME, OPTION, Edge

SCHEMA_ID = "testbed.sweep/1"
FilePath = Annotated[
    str, Field(min_length=1, max_length=4096, description="a file, relative to the campaign file")
]
Seed = Annotated[
    int,
    Field(
        ge=0,
        le=1 << 31,
        description="of the search for a topology, or of the lab's insertion losses",
    ),
]
Repeat = Annotated[
    int, Field(ge=0, le=1 << 31, description="changes nothing: the same trial again")
]
Axis = dict[str, Any] | list[Any]


class FaultEdge(Edge):
    """A fault of the emulated lab, as `testbed lab fault add` gives it; further fields are the
    options of its kind.
    """

    model_config = Edge.model_config | {"extra": "allow"}

    at: Annotated[
        str, Field(pattern=NAME, description="a device, a host, a packet switch or `all`")
    ]
    kind: Annotated[
        str,
        Field(
            pattern=r"^[a-z][a-z-]{1,40}$", description="docs/how-to/inject-faults.md lists them"
        ),
    ]


class PredictionEdge(Edge):
    """Parameters of a prediction: as the options of `testbed design`."""

    workload: FilePath | None = None
    method: Annotated[str, Field(pattern=NAME, description="of `testbed design`")] | None = None
    seed: Seed | None = None
    repeat: Repeat | None = None
    rules: Literal["paper", "artifact"] | None = None
    backend: Annotated[str, Field(pattern=NAME)] | None = None
    ports: Annotated[int, Field(ge=1, le=64)] | None = None
    domain: Annotated[int, Field(ge=1, le=4096)] | None = None
    twisted: bool | None = None
    simplex: bool | None = None
    alpha_us: (
        Annotated[float, Field(ge=0, le=1e6, description="of each step of a ring, microseconds")]
        | None
    ) = None
    scale: (
        Annotated[float, Field(gt=0, description="bytes here per byte of the workload")] | None
    ) = None
    search: (
        Annotated[int, Field(ge=0, le=10_000_000, description="strategies of parallelism to try")]
        | None
    ) = None


class DeviceChangeEdge(Edge):
    """Parameters of a change of devices without hosts."""

    plan: FilePath | None = None
    then: Annotated[
        FilePath | None,
        Field(description="the plan whose change is measured; without it, that to `plan`"),
    ] = None
    faults: Annotated[list[FaultEdge], Field(max_length=64)] | None = None
    seed: Seed | None = None
    repeat: Repeat | None = None


class LabTrialEdge(DeviceChangeEdge):
    """Parameters of a change of a lab with hosts, or of a scenario."""

    mode: Annotated[
        Mode | None, Field(description="--job of `testbed up` for the change to `then`")
    ] = None
    job: Annotated[bool | None, Field(description="whether the plan's job runs")] = None
    scenario: Annotated[
        FilePath | None,
        Field(description="a scenario with a lab of its own, in place of plan and then"),
    ] = None
    repeats: Annotated[int, Field(ge=2, le=100, description="of the scenario")] | None = None


OF_KIND: dict[Kind, type[BaseModel]] = {
    "prediction": PredictionEdge,
    "devices": DeviceChangeEdge,
    "lab": LabTrialEdge,
}


class PlaceEdge(Edge):
    """A lab that exists, in place of a generated one."""

    inventory: Annotated[str, Field(min_length=1, max_length=4096, description="its directory")]
    resource: Annotated[
        str,
        Field(
            pattern=OPTION,
            description="a Dask resource with one slot, of the lab's worker; needed by trials on the lab",
        ),
    ] = ""


class SweepEdge(Edge):
    """A campaign: every combination of the values of `grid`, with each row of `list`, over
    `base`.
    """

    schema_url: Annotated[str, Field(alias="$schema")] = ""
    schema_id: Annotated[Literal["testbed.sweep/1"], Field(alias="schema")]
    name: Annotated[str, Field(pattern=NAME)]
    title: Annotated[str, Field(max_length=200)] = ""
    kind: Annotated[
        Kind,
        Field(
            description="prediction: the planner alone; devices: emulated devices without hosts; lab: a whole lab. "
            "A row of list may have a kind of its own"
        ),
    ]
    lab: Annotated[
        Annotated[LabEdge, Tag("generated")] | Annotated[PlaceEdge, Tag("existing")],
        Discriminator(
            lambda given: (
                "existing" if isinstance(given, dict) and "inventory" in given else "generated"
            )
        ),
        Field(description="a generated lab, or one that exists (`inventory`)"),
    ] = Field(default_factory=LabEdge)
    base: Annotated[
        dict[str, Any], Field(description="parameters that are the same in every trial")
    ] = Field(default_factory=dict)
    grid: Annotated[
        dict[str, Axis],
        Field(
            max_length=32,
            description="values of each parameter: a list, or a mapping from names to values",
        ),
    ] = Field(default_factory=dict)
    rows: Annotated[
        list[dict[str, Any]],
        Field(alias="list", max_length=100_000, description="parameters together, a row each"),
    ] = Field(default_factory=list)
    retries: Annotated[
        int, Field(ge=0, le=10, description="further attempts at a trial that failed")
    ] = 2
    watchdog_s: Annotated[
        float,
        Field(
            ge=1,
            le=86_400,
            description="longest time of a trial on a lab, seconds; then it has failed",
        ),
    ] = 1800.0


def sweep_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of a campaign file, as committed in
    docs/reference/sweep.schema.json.
    """
    schema = SweepEdge.model_json_schema(by_alias=True)
    for kind, model in OF_KIND.items():
        own = model.model_json_schema(by_alias=True)
        schema["$defs"] |= own.pop("$defs", {})
        schema["$defs"][f"Parameters of {kind}"] = own
    for part in [schema, *schema.get("$defs", {}).values()]:
        part["title"] = part["title"].removesuffix("Edge")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:{SCHEMA_ID.replace('/', ':')}",
        **schema,
    }
