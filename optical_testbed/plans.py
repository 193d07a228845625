"""Plans as the API takes them (a file, its content, values) and gives them (a design)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from optics.plan import Plan
    from orchestrator.session import PlanText


@dataclass(frozen=True, slots=True)
class Designed:
    """A designed topology.

    plan: the content of its plan file. predicted: what the planner expects of its job here, by the
    names of the plan file (`iteration_ms`, milliseconds; `busbw_mbps`, megabytes per second).
    others: further topologies that were evaluated, with their iteration (s) at the workload's own
    rate. why: the reasons for this one, a line each.
    """

    plan: Mapping[str, Any]
    predicted: Mapping[str, float]
    why: tuple[str, ...] = ()
    others: tuple[tuple[str, float], ...] = ()

    @property
    def name(self) -> str:
        return str(self.plan["name"])

    def save(self, path: str | PathLike[str]) -> Path:
        """Write the plan file, as a whole. Raises: OSError - it cannot be written; an older file is
        unchanged.
        """
        from orchestrator.files.atomic import write_whole

        target = Path(path)
        write_whole(target, json.dumps(self.plan, indent=1) + "\n")
        return target


PlanLike: TypeAlias = "str | PathLike[str] | Mapping[str, Any] | Plan | Designed"
"""A plan file, the content of one, the values of `optics.plan`, or a design."""


def source(plan: PlanLike) -> Path | PlanText:
    """What the engine reads a plan from. Raises: BadFile - it is none of these, or its content
    cannot be written as JSON.
    """
    from optics.errors import BadFile
    from optics.plan import Plan
    from orchestrator.session import PlanText

    if isinstance(plan, str | PathLike):
        return Path(plan)
    if isinstance(plan, Plan):
        from orchestrator.plan.written import document_of

        plan = document_of(plan)
    content = plan.plan if isinstance(plan, Designed) else plan
    if not isinstance(content, Mapping):
        raise BadFile(
            [f"plan: wanted a file, the content of one or a Plan, got {type(plan).__name__}"]
        )
    name = content.get("name")
    try:
        text = json.dumps(content, indent=2, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadFile([f"plan: it cannot be written as JSON: {error}"]) from error
    return PlanText(text, name if isinstance(name, str) and name else "plan")
