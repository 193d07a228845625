"""The storage of a plan's job: the host that keeps its checkpoints, and at which rate and over which
network they go there. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from optics import HostName
from optics.plan import reached, steps_of
from optics.ranks import hosts_of
from orchestrator.plan.attached import Site
from orchestrator.plan.keeper import KeeperEdge, PlannedKeeper

if TYPE_CHECKING:
    from orchestrator.plan.edges import JobEdge


@dataclass(frozen=True, slots=True)
class Storage:
    """A process on `host`, where the job has no rank, that keeps its checkpoints. mbps: the rate
    (Mb/s) of all ranks together. over: the network that they take.
    """

    host: HostName
    mbps: float
    over: Literal["management", "optical"] = "management"


class StorageEdge(KeeperEdge):
    """A host that keeps the job's checkpoints, which the ranks send it at a rate."""

    mbps: Annotated[
        float,
        Field(gt=0, le=10_000_000, description="of all ranks together, which share it evenly"),
    ]
    over: Annotated[
        Literal["management", "optical"],
        Field(description="the network; optical: the plan's links, beside the gradients"),
    ] = "management"


class PlannedStorage(PlannedKeeper[Storage]):
    """The key `storage` of a job."""

    key = "storage"
    section = StorageEdge | None

    def read_section(self, section: StorageEdge, edge: JobEdge, at: Site) -> Storage:
        problems, host, hosts = at.links.problems, section.host, hosts_of(edge.ranks)
        if edge.workload == "train" and not edge.args.get("checkpoint_every"):
            text = "the job would write no checkpoints while it runs: write checkpoint_every in job.args, the iterations between two"
            problems.add(self.where, text)
        if section.over == "optical" and host in at.links.lab.hosts and host not in hosts:
            steps = steps_of(at.always)
            back = reached(host, steps)
            far = [one for one in hosts if one not in back or host not in reached(one, steps)]
            if far:
                text = f"no links of the plan lead from {', '.join(far[:4])} to {host} and back: add some, or leave over out"
                problems.add((*self.where, "over"), text)
        return Storage(host, section.mbps, section.over)

    def of(self, data: Mapping[str, Any]) -> Storage:
        return Storage(**data)


PLANNED = PlannedStorage()
