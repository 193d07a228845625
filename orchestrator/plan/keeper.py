"""What a plan says of an attachment that keeps a job's checkpoints on a host without ranks
(`jobs/keeper.py`). Pure.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeVar

from pydantic import Field

from optics import HostName
from optics.ranks import hosts_of
from orchestrator.inventory.schema import Edge
from orchestrator.plan.attached import Planned, Site

if TYPE_CHECKING:
    from orchestrator.plan.edges import JobEdge


class OnHost(Protocol):
    """What a plan says of one: at least its host."""

    @property
    def host(self) -> HostName: ...


K = TypeVar("K", bound=OnHost)


class KeeperEdge(Edge):
    """The section of one: at least its host."""

    host: Annotated[str, Field(description="a host without ranks of the job")]


class PlannedKeeper(Planned[K]):
    """One kind, of the workload train; its section is a `KeeperEdge`."""

    @abstractmethod
    def read_section(self, section: Any, edge: JobEdge, at: Site) -> K:
        """What the plan wants; host and workload were looked at. As `read`."""

    def read(self, at: Site) -> K | None:
        edge, problems, place = at.edge, at.links.problems, (*self.where, "host")
        section: KeeperEdge | None = getattr(edge, self.key, None)
        if edge is None or section is None:
            return None
        host = section.host
        if at.links.known_host(host, place) and host in hosts_of(edge.ranks):
            text = f"{host} is a host of the job's ranks: its {self.key} would be lost with them; name another host"
            problems.add(place, text)
        if edge.workload != "train":
            text = f"{self.key} is for train; this job is {edge.workload}: leave {self.key} out"
            problems.add(self.where, text)
        return self.read_section(section, edge, at)

    def hosts(self, value: K) -> tuple[HostName, ...]:
        return (value.host,)

    def renamed(self, section: Any, name: Callable[[str], str]) -> Any:
        return {**section, "host": name(section["host"])}

    def without(self, section: Any, host: HostName) -> Any:
        return None if section["host"] == host else section
