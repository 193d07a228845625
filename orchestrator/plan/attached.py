"""What a plan says of the attachments of its job (`orchestrator/extensions.py`), one kind a class.
Pure.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from optics import HostName, Link
from optics.plan import Job, Plan, WantedLink
from orchestrator.extensions import extension_parts
from orchestrator.results import to_json

if TYPE_CHECKING:
    from orchestrator.inventory.positions import Path, Problems
    from orchestrator.plan.edges import JobEdge, PlanEdge
    from orchestrator.plan.links import Links

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Site:
    """What a plan has around an attachment. edge, job: of the job, as written and as read so far;
    None: there is none, or an error.

    plan: as written, None where that has an error. always: the links outside of slots. wanted: all
    links.

    links: has the lab, and the problems, to which what is wrong is added. notes: of what works, but
    is of no use.
    """

    edge: JobEdge | None
    job: Job | None
    plan: PlanEdge | None
    links: Links
    always: Sequence[WantedLink]
    wanted: Sequence[WantedLink]
    notes: Problems


class Planned(ABC, Generic[V]):
    """One kind of attachment in a plan; `V`: what is read of it, a frozen dataclass or a tuple of
    them.
    """

    key: ClassVar[str]
    """Its name in `Job.attached`, and that of its section in the plan's `job`."""
    section: ClassVar[Any] = None
    """What its section in `job` has to be, for pydantic; None: what it reads stands elsewhere in
    the plan.
    """
    outside: ClassVar[Mapping[str, Any]] = {}
    """Its sections outside of `job`, by their keys in the plan: what they have to be."""
    place: ClassVar[str] = ""
    """Where it stands in a plan, if not at `job.KEY`."""
    adjusts: ClassVar[bool] = False
    """Whether a running job can take over another one."""
    unpartitioned: ClassVar[str] = ""
    """Why a plan with slices of hosts may not have it; empty: it may."""

    @property
    def where(self) -> Path:
        """The place in a plan file that problems with all of it are reported at."""
        return (self.place.partition("[")[0],) if self.place else ("job", self.key)

    @abstractmethod
    def read(self, at: Site) -> V | None:
        """What the plan wants; None: nothing. What is wrong is added to the problems."""

    @abstractmethod
    def of(self, data: Any) -> V:
        """What `data` (`to_json` of one) describes."""

    def write(self, value: V, document: dict[str, Any]) -> None:
        """Add to the content of a plan file what reads as this value."""
        document["job"][self.key] = to_json(value)

    def hosts(self, value: V) -> Collection[HostName]:
        """Hosts that it needs beside those of the ranks."""
        return ()

    def renamed(self, section: Any, name: Callable[[str], str]) -> Any:
        """Its section of a plan file with other hosts. name: what a host, or a host port,
        becomes.
        """
        return section

    def without(self, section: Any, host: HostName) -> Any:
        """Its section of a plan file without this host; None: then there is none."""
        return section

    def placed(self, value: V, plan: Plan, links: Sequence[Link]) -> None:
        """Look at the links with their ports, which may have been chosen only now. Raises:
        Infeasible - it cannot work on them.
        """

    def by_hand(self, value: V, job: Job) -> None:
        """Raises: Infeasible - a job that has it cannot be started by anybody else."""


def planned() -> tuple[Planned[Any], ...]:
    """Every kind, in order."""
    return extension_parts("plan", "PLANNED")


def planned_kind(key: str) -> Planned[Any]:
    """The kind with this key."""
    return next(kind for kind in planned() if kind.key == key)


def read_attached(at: Site) -> Mapping[str, Any]:
    """The attachments of a job, by their keys."""
    read = ((kind.key, kind.read(at)) for kind in planned())
    return {key: value for key, value in read if value is not None}


def attachments_of(job: Job | None) -> list[tuple[Planned[Any], Any]]:
    """Those that a job has, each with its kind."""
    return [
        (kind, job.attached[kind.key])
        for kind in planned()
        if job is not None and kind.key in job.attached
    ]


def attachment_hosts(job: Job) -> tuple[HostName, ...]:
    """The hosts that its attachments need beside those of its ranks."""
    return tuple(
        dict.fromkeys(
            host
            for kind, value in attachments_of(job)
            for host in kind.hosts(value)
            if host not in job.hosts
        )
    )


def check_placed(plan: Plan, links: Sequence[Link]) -> None:
    """links: those of the plan, with their ports. Raises: Infeasible - an attachment cannot work on
    them.
    """
    for kind, value in attachments_of(plan.job):
        kind.placed(value, plan, links)


def rewrite_attachments(job: dict[str, Any], change: Callable[[Planned[Any], Any], Any]) -> None:
    """Replace the sections of attachments in the `job` of a plan file; those of which nothing is
    left go.
    """
    for kind in planned():
        if kind.section is not None and job.get(kind.key) is not None:
            changed = change(kind, job.pop(kind.key))
            job |= {} if changed is None else {kind.key: changed}
