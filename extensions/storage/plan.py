"""The storage of a plan's job: the host that keeps its checkpoints, and at which rate and over which
network they go there. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from optics import HostName
from optics.plan import reached, steps_of
from optics.ranks import hosts_of
from orchestrator.inventory.schema import Edge
from orchestrator.plan.attached import Planned, Site


@dataclass(frozen=True, slots=True)
class Storage:
    """A process on `host`, where the job has no rank, that keeps its checkpoints. mbps: the rate
    (Mb/s) of all ranks together. over: the network that they take.
    """

    host: HostName
    mbps: float
    over: Literal["management", "optical"] = "management"


class StorageEdge(Edge):
    """A host that keeps the job's checkpoints, which the ranks send it at a rate."""

    host: Annotated[str, Field(description="a host without ranks of the job")]
    mbps: Annotated[
        float,
        Field(gt=0, le=10_000_000, description="of all ranks together, which share it evenly"),
    ]
    over: Annotated[
        Literal["management", "optical"],
        Field(description="the network; optical: the plan's links, beside the gradients"),
    ] = "management"


class PlannedStorage(Planned[Storage]):
    """The key `storage` of a job."""

    key = "storage"
    section = StorageEdge | None

    def read(self, at: Site) -> Storage | None:
        edge, path = at.edge, self.where
        section: StorageEdge | None = getattr(edge, self.key, None)
        if edge is None or section is None:
            return None
        problems, host, hosts = at.links.problems, section.host, hosts_of(edge.ranks)
        known = at.links.known_host(host, (*path, "host"))
        if known and host in hosts:
            text = f"{host} is a host of the job's ranks: checkpoints there would be lost with them; name another host"
            problems.add((*path, "host"), text)
        if edge.workload != "train":
            text = f"storage keeps the checkpoints of train; this job is {edge.workload}: leave storage out"
            problems.add(path, text)
        elif not edge.args.get("checkpoint_every"):
            text = "the job would write no checkpoints while it runs: write checkpoint_every in job.args, the iterations between two"
            problems.add(path, text)
        if section.over == "optical" and known and host not in hosts:
            steps = steps_of(at.always)
            back = reached(host, steps)
            far = [one for one in hosts if one not in back or host not in reached(one, steps)]
            if far:
                text = f"no links of the plan lead from {', '.join(far[:4])} to {host} and back: add some, or leave over out"
                problems.add((*path, "over"), text)
        return Storage(host, section.mbps, section.over)

    def of(self, data: Mapping[str, Any]) -> Storage:
        return Storage(**data)

    def hosts(self, value: Storage) -> tuple[HostName, ...]:
        return (value.host,)

    def renamed(self, section: Any, name: Callable[[str], str]) -> Any:
        return {**section, "host": name(section["host"])}

    def without(self, section: Any, host: HostName) -> Any:
        return None if section["host"] == host else section


PLANNED = PlannedStorage()
