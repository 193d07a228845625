"""Reads which functions of packet switches a plan's job uses: the switches have them, the job's hosts are there. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from optics.plain import summary
from optics.plan import Function, Job
from orchestrator.inventory.positions import Path, Problems
from orchestrator.plan.edges import SegmentEdge
from orchestrator.plan.links import Links

MOST_WORKERS = 64
"""Of an allocation (docs/reference/functions-dialect.md)."""


def function_of(job: Job) -> tuple[str, bool]:
    """The function of a packet switch that a job's program knows how to use, empty for none; whether it cannot go without."""
    if job.workload == "train" and job.args.get("exchange") == "aggregate":
        return "aggregate", True
    return ("cache", False) if job.workload == "retrieve" else ("", False)


def read_functions(segments: Sequence[SegmentEdge], job: Job | None, links: Links, notes: Problems) -> tuple[Function, ...]:
    """The functions that the plan names and its job uses; what is wrong is added to the problems, what is not used to the notes."""
    found: dict[str, str] = {}
    used, needed = function_of(job) if job is not None else ("", False)
    for index, segment in enumerate(segments):
        for at, name in enumerate(segment.functions):
            path: Path = ("segments", index, "functions", at)
            known = links.lab.segments.get(segment.name)
            if known is None:
                continue  # said already
            if name in found:
                links.problems.add(path, f"{name} is already asked of segment {found[name]}; a job uses one switch for it")
            elif name not in known.functions:
                has = ", ".join(known.functions) or "none"
                links.problems.add(
                    path, f"the packet switch of segment {known.name} cannot {name} (functions in fibres.yml: {has})"
                )
            elif name != used or job is None:
                users = "train with args.exchange aggregate" if name == "aggregate" else "workload retrieve"
                notes.add(path, f"no job of this plan uses it, so nothing of it is taken: {name} is for {users}")
                continue
            elif len(job.ranks) > MOST_WORKERS:
                links.problems.add(path, f"{len(job.ranks)} ranks; a packet switch takes at most {MOST_WORKERS} workers")
            elif away := [h for h in job.hosts if h not in (segment.hosts or known.ports) or h not in known.ports]:
                words = f"{away[0]} of the job is not at segment {known.name} in this plan"
                links.problems.add(path, f"{words} ({summary(segment.hosts or list(known.ports), 'host')} are)")
            found.setdefault(name, segment.name)
    if needed and used not in found and links.complete:
        able = [name for name, segment in links.lab.segments.items() if used in segment.functions]
        where = summary(able, "segment") + " can" if able else "no segment of this lab can"
        links.problems.add(
            ("job", "args", "exchange"),
            f'aggregate: no packet switch of the plan is to add ({where}): "segments": [{{"name": ..., "functions": ["{used}"]}}]',
        )
    return tuple(Function(segment, name) for name, segment in found.items())  # type: ignore[arg-type]
