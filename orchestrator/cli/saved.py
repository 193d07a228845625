"""Saved plans: `plan -o FILE` writes one, `up --plan FILE` applies exactly that, or refuses if the
lab has changed.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from optics.errors import BadFile
from optics.plain import reason
from orchestrator.files.atomic import write_whole
from orchestrator.files.reading import MAX_BYTES, text_of
from orchestrator.inventory.json_reader import read_json
from orchestrator.plan.interchangeable import relabelled_text
from orchestrator.plan.report import PlanReport
from orchestrator.settings import private_dir

FORMAT = "testbed.saved-plan/1"
MAX_SAVED_BYTES = 4 * MAX_BYTES
"""The largest saved plan (bytes): the plan's text as a string, and the report of changes."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A saved plan; `topology` is a private copy of the plan file as it was."""

    file: Path
    topology: Path
    fingerprint: str


def keep(out: Path, topology: Path, report: PlanReport) -> None:
    """Write the saved plan."""
    body = {
        "schema": FORMAT,
        "topology_name": topology.name,
        "topology": relabelled_text(
            text_of(topology), report.relabel.labels if report.relabel else {}
        ),
        "fingerprint": report.fingerprint,
        "report": report.to_json(),
    }
    write_whole(out, json.dumps(body, indent=2, ensure_ascii=False) + "\n")


def load(file: Path, cache: Path) -> Saved:
    """Read a saved plan. Raises: BadFile - it is not one."""
    try:
        body = read_json(text_of(file, MAX_SAVED_BYTES), str(file)).value
        if body["schema"] != FORMAT:
            raise ValueError(f"schema is {body['schema']!r}, wanted {FORMAT!r}")
        text, name, fingerprint = (
            str(body["topology"]),
            Path(str(body["topology_name"])).name,
            str(body["fingerprint"]),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadFile(
            [f"{file}: not a saved plan: {reason(error)}"],
            hint=f"testbed plan --topology PLAN -o {file}",
        ) from error
    folder = private_dir(cache / "plans" / hashlib.sha256(text.encode()).hexdigest()[:12])
    copy = folder / (name or "plan.json")
    write_whole(copy, text)
    return Saved(file, copy, fingerprint)
