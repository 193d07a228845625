"""`testbed experiment compare`: plans given on the command line as the arms of a scenario without
bands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from optics.errors import BadFile
from optics.plain import reason
from orchestrator.experiments.files.scenario.documents import job_document, with_job
from orchestrator.experiments.files.scenario.values import Arm, PlanDocument, Scenario, Setup
from orchestrator.experiments.scenario.record import ComparisonRecord
from orchestrator.files.reading import text_of
from orchestrator.inventory.json_reader import read_json

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def scenario_of(
    paths: Sequence[Path], *, job: Path | None, repeats: int, iterations: int, watchdog_s: float
) -> Scenario:
    """The plans as arms a, b, c, ..., each with its own job or all with `job`.

    Raises: BadFile - a file cannot be read.
    """
    given = job_document(_read(job)[1]) if job is not None else {}
    read = {letter: (str(path), *_read(path)) for letter, path in zip(LETTERS, paths, strict=False)}
    texts = {
        letter: PlanDocument.of(file, text, plan, with_job(plan, given))
        for letter, (file, text, plan) in read.items()
    }
    names = [str(text.document.get("name", text.file)) for text in texts.values()]
    return Scenario(
        name="compare",
        title=f"Comparison of {', '.join(names[:-1])} and {names[-1]}",
        source=(),
        claim="",
        label="native",
        lab=None,
        tenants=("",),
        arms={
            letter: Arm(letter, {"": Setup(plan)}, None, watchdog_s)
            for letter, plan in texts.items()
        },
        compared=(),
        repeats=repeats,
        iterations=iterations,
        warm_up=1,
    )


def _read(path: Path) -> tuple[str, Mapping[str, Any]]:
    try:
        text = text_of(path)
        found = read_json(text, str(path)).value
    except (OSError, UnicodeDecodeError) as error:
        raise BadFile(
            [f"{path}: {reason(error)}"], hint="see examples/ for plans to start from"
        ) from error
    if not isinstance(found, dict):
        raise BadFile([f"{path}: wanted a JSON object"])
    return text, found


def resumed_scenario(record: ComparisonRecord, watchdog_s: float) -> Scenario:
    """The scenario of a comparison that was stopped, from its record. Raises: BadFile - its plans
    are gone.
    """
    arms = {
        letter: Arm(letter, {"": Setup(_plan(record, letter))}, None, watchdog_s)
        for letter in record.data["arms"]
    }
    data = record.data
    return Scenario(
        "compare",
        str(data["title"]),
        (),
        "",
        "native",
        None,
        ("",),
        arms,
        (),
        data["repeats"],
        data["iterations"],
        data["warm_up"],
    )


def _plan(record: ComparisonRecord, letter: str) -> PlanDocument:
    text, document = _read(record.plan(letter))
    return PlanDocument(str(record.plan(letter)), text, document)
