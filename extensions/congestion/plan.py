"""TCP's congestion control of a job's connections, as a plan says it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field

from optics.ranks import hosts_of
from orchestrator.inventory.schema import Edge
from orchestrator.plan.attached import Planned, Site
from orchestrator.results import to_json

OWN = "mltcp"
Control = Literal["cubic", "reno", "bbr", "mltcp"]


@dataclass(frozen=True, slots=True)
class Congestion:
    """TCP's congestion control of a job's connections. The other fields are of `mltcp` alone, whose
    window grows the faster the more of an iteration's bytes a connection has sent: by slope * share
    + intercept segments a round trip.

    bytes: of an iteration, of each connection; gap_ms: an acknowledgement that comes later than
    this after the one before begins an iteration. auto: each connection learns it.
    """

    control: Control
    slope: float = 1.75
    intercept: float = 0.25
    bytes: Literal["auto"] | int = "auto"
    gap_ms: Literal["auto"] | float = "auto"


class CongestionEdge(Edge):
    """TCP's congestion control. The rest is of mltcp alone: a window that grows the faster the more
    of an iteration was sent.
    """

    control: Control
    slope: Annotated[
        float,
        Field(ge=0, le=64, description="of the growth, by the share of the bytes that were sent"),
    ] = 1.75
    intercept: Annotated[
        float, Field(ge=0.001, le=64, description="the growth when an iteration begins; TCP's is 1")
    ] = 0.25
    bytes: Annotated[
        Literal["auto"] | Annotated[int, Field(ge=1, le=2**53)],
        Field(
            description="of an iteration, of each connection; auto: learned from its last iterations"
        ),
    ] = "auto"
    gap_ms: Annotated[
        Literal["auto"] | Annotated[float, Field(gt=0, le=3_600_000)],
        Field(
            description="an acknowledgement later than this after the last begins an iteration; auto: half of the usual gap"
        ),
    ] = "auto"


def _control(value: Any) -> Any:
    return {"control": value} if isinstance(value, str) else value


def _or_its_name(schema: dict[str, Any]) -> None:
    schema["anyOf"].insert(0, {"enum": list(get_args(Control)), "type": "string"})


class PlannedCongestion(Planned[Congestion]):
    """The key `congestion` of a job: a control's name, or the name with its parameters."""

    key = "congestion"
    adjusts = True
    section = Annotated[
        CongestionEdge | None,
        BeforeValidator(_control),
        Field(
            description="TCP's, of the job's connections; null: what the routes pin, cubic",
            json_schema_extra=_or_its_name,
        ),
    ]

    def read(self, at: Site) -> Congestion | None:
        edge, links = at.edge, at.links
        found: CongestionEdge | None = getattr(edge, self.key, None)
        if edge is None or found is None:
            return None
        hosts = [links.lab.hosts[name] for name in hosts_of(edge.ranks) if name in links.lab.hosts]
        nccl = edge.backend == "nccl" or (
            edge.backend == "auto" and bool(hosts) and all(host.gpus for host in hosts)
        )
        if nccl and (rdma := [host.name for host in hosts if host.forwarding == "npar-rdma"]):
            few = ", ".join(rdma[:4]) + (", ..." if len(rdma) > 4 else "")
            links.problems.add(
                self.where,
                f"a job over nccl sends by RDMA on {few}, where there is no TCP; leave it out",
            )
        for name in sorted(found.model_fields_set - {"control"}) if found.control != OWN else ():
            links.problems.add(
                (*self.where, name), f"only {OWN} has it; this control is {found.control}", key=True
            )
        return Congestion(**found.model_dump())

    def of(self, data: Mapping[str, Any]) -> Congestion:
        return Congestion(**data)

    def write(self, value: Congestion, document: dict[str, Any]) -> None:
        document["job"][self.key] = to_json(value) if value.control == OWN else value.control


PLANNED = PlannedCongestion()
