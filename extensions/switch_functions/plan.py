"""Which functions of packet switches a plan's job uses: the switches have them, the job's hosts are
there. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from optics import Infeasible
from optics.plain import summary
from optics.plan import Job
from orchestrator.inventory.positions import Path
from orchestrator.plan.attached import Planned, Site

if TYPE_CHECKING:
    from orchestrator.plan.edges import PlanSegmentEdge

MOST_WORKERS = 64
"""Of an allocation (docs/reference/functions-dialect.md)."""


@dataclass(frozen=True, slots=True)
class Function:
    """What the packet switch `segment` is to do with packets of the job: add vectors of numbers, or
    answer from what it stored.
    """

    segment: str
    name: Literal["aggregate", "cache"]


def function_of(job: Job) -> tuple[str, bool]:
    """The function of a packet switch that a job's program knows how to use, empty for none;
    whether it cannot go without.
    """
    if job.workload == "train" and job.args.get("exchange") == "aggregate":
        return "aggregate", True
    return ("cache", False) if job.workload == "retrieve" else ("", False)


class PlannedFunctions(Planned[tuple[Function, ...]]):
    """The key `functions` of segments: what the job uses of them."""

    key = "functions"
    place = "segments[].functions"
    unpartitioned = "functions of packet switches were not tried with partitions"

    def read(self, at: Site) -> tuple[Function, ...] | None:
        job, links = at.job, at.links
        found: dict[str, str] = {}
        segments = at.plan.segments if at.plan is not None else ()
        used, needed = function_of(job) if job is not None else ("", False)
        for index, segment in enumerate(segments):
            for place, name in enumerate(segment.functions):
                path: Path = ("segments", index, "functions", place)
                if segment.name not in links.lab.segments:
                    continue  # said already
                if name in found:
                    links.problems.add(
                        path,
                        f"{name} is already asked of segment {found[name]}; a job uses one switch for it",
                    )
                elif name != used or job is None:
                    self._unused(name, segment, path, at)
                    continue
                elif text := self._unfit(name, segment, job, at):
                    links.problems.add(path, text)
                found.setdefault(name, segment.name)
        if needed and used not in found and links.complete and at.plan is not None:
            able = [
                name for name, segment in links.lab.segments.items() if used in segment.functions
            ]
            where = summary(able, "segment") + " can" if able else "no segment of this lab can"
            links.problems.add(
                ("job", "args", "exchange"),
                f"aggregate: no packet switch of the plan is to add ({where}): "
                f'"segments": [{{"name": ..., "functions": ["{used}"]}}]',
            )
        return tuple(Function(segment, name) for name, segment in found.items()) or None  # type: ignore[arg-type]

    def _unused(self, name: str, segment: PlanSegmentEdge, path: Path, at: Site) -> None:
        """Say that no job uses it, or that the switch could not do it."""
        if name not in at.links.lab.segments[segment.name].functions:
            at.links.problems.add(path, self._unable(name, segment, at))
            return
        users = "train with args.exchange aggregate" if name == "aggregate" else "workload retrieve"
        at.notes.add(
            path, f"no job of this plan uses it, so nothing of it is taken: {name} is for {users}"
        )

    def _unable(self, name: str, segment: PlanSegmentEdge, at: Site) -> str:
        has = ", ".join(at.links.lab.segments[segment.name].functions) or "none"
        return f"the packet switch of segment {segment.name} cannot {name} (functions in fibres.yml: {has})"

    def _unfit(self, name: str, segment: PlanSegmentEdge, job: Job, at: Site) -> str:
        """Why the job cannot use it; empty: it can."""
        known = at.links.lab.segments[segment.name]
        if name not in known.functions:
            return self._unable(name, segment, at)
        if len(job.ranks) > MOST_WORKERS:
            return f"{len(job.ranks)} ranks; a packet switch takes at most {MOST_WORKERS} workers"
        if away := [
            h for h in job.hosts if h not in (segment.hosts or known.ports) or h not in known.ports
        ]:
            text = f"{away[0]} of the job is not at segment {known.name} in this plan"
            return f"{text} ({summary(segment.hosts or list(known.ports), 'host')} are)"
        return ""

    def of(self, data: Sequence[Any]) -> tuple[Function, ...]:
        return tuple(Function(**each) for each in data)

    def write(self, value: tuple[Function, ...], document: dict[str, Any]) -> None:
        for segment in document["segments"]:
            if names := [
                function.name for function in value if function.segment == segment["name"]
            ]:
                segment["functions"] = names

    def by_hand(self, value: tuple[Function, ...], job: Job) -> None:
        raise Infeasible(
            f"job {job.name}: {value[0].name} of segment {value[0].segment} is lent to it while testbed runs it",
            hint="testbed job launch; by hand: a plan whose segments have no functions, and exchange wires",
        )


PLANNED = PlannedFunctions()
