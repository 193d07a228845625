"""Plans of arms as documents: a job put into a plan, fields added, and the fields in which
documents differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

LABELS = ("$schema", "schema", "name", "description", "producer", "predicted")
"""Fields of a plan that change nothing on the lab."""
_PARTS = ("job", "job.args", "job.env", "transition", "acceptance")
"""Fields of a plan whose own fields are compared one by one."""
_ABSENT = object()


def job_document(document: Mapping[str, Any]) -> dict[str, Any]:
    """The job of a job file, or of a plan; without rings, which follow a plan's links."""
    found = document["job"] if isinstance(document.get("job"), Mapping) else document
    return {key: value for key, value in found.items() if key not in ("rings", "$schema")}


def with_job(plan: Mapping[str, Any], job: Mapping[str, Any]) -> dict[str, Any]:
    """The plan with this job (as `job_document`) instead of its own, whose rings are kept, and what
    it predicts if that is of the same traffic."""
    own = plan.get("job")
    rings = {"rings": own["rings"]} if isinstance(own, Mapping) and "rings" in own else {}
    if not job:
        return dict(plan)
    same = isinstance(own, Mapping) and own.get("traffic") == job.get("traffic") is not None
    return {
        **{key: value for key, value in plan.items() if same or key != "predicted"},
        "job": {**job, **rings},
    }


def with_fields(
    plan: Mapping[str, Any],
    *,
    args: Mapping[str, Any],
    env: Mapping[str, str],
    backend: str | None,
    transition: Mapping[str, Any],
) -> dict[str, Any]:
    """The plan with these fields added to those that its job and its transition have."""
    made = dict(plan)
    if isinstance(job := made.get("job"), Mapping) and (args or env or backend):
        job = dict(job)
        job |= {"args": {**job.get("args", {}), **args}} if args else {}
        job |= {"env": {**job.get("env", {}), **env}} if env else {}
        made["job"] = job | ({"backend": backend} if backend else {})
    if transition:
        made["transition"] = {**made.get("transition", {}), **transition}
    return made


def differing_fields(documents: Sequence[Mapping[str, Any] | None], prefix: str) -> list[str]:
    """The fields in which plans are not all the same: `plan.links`, `plan.job.args.model`;
    `prefix`: the first word.
    """
    existing = [document for document in documents if document is not None]
    found = [prefix] if 0 < len(existing) < len(documents) else []
    return found + [f"{prefix}.{name}" for name in _fields(existing, "")]


def _fields(documents: Sequence[Mapping[str, Any]], inside: str) -> Iterator[str]:
    for name in sorted({str(name) for document in documents for name in document}):
        place = f"{inside}{name}"
        if not inside and name in LABELS:
            continue
        values = [document.get(name, _ABSENT) for document in documents]
        if all(value == values[0] for value in values):
            continue
        parts = [{} if value is _ABSENT else value for value in values]
        if place in _PARTS and all(isinstance(part, Mapping) for part in parts):
            yield from _fields(
                [dict(part) for part in parts if isinstance(part, Mapping)], f"{place}."
            )
        else:
            yield place


def undeclared(found: Sequence[str], declared: Sequence[str]) -> tuple[list[str], list[str]]:
    """The fields found to differ of which no declared one is a part, and the declared ones that
    nothing was found for.
    """

    def covers(wide: str, field: str) -> bool:
        return field == wide or field.startswith(f"{wide}.")

    missing = [field for field in found if not any(covers(wide, field) for wide in declared)]
    return missing, [wide for wide in declared if not any(covers(wide, field) for field in found)]
