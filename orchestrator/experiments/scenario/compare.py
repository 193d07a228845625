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
from orchestrator.experiments.files.scenario.values import (
    Arm,
    PlanDocument,
    Scenario,
    Setup,
)
from orchestrator.experiments.scenario.judging import JudgedComparison, to_first
from orchestrator.experiments.scenario.paired import LEVEL
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
        compared=tuple(to_first(texts)),
        repeats=repeats,
        iterations=iterations,
        warm_up=1,
    )


def resumed_scenario(record: ComparisonRecord, watchdog_s: float) -> Scenario:
    """The scenario of a comparison that was stopped, from its record. Raises: BadFile - its plans
    are gone.
    """
    paths, data = [record.plan(letter) for letter in record.data["arms"]], record.data
    given = {"repeats": data["repeats"], "iterations": data["iterations"]}
    return scenario_of(paths, job=None, **given, watchdog_s=watchdog_s)


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


def difference_text(one: JudgedComparison, a: str, b: str) -> str:
    """In words how plan b differs from plan a, by a comparison that was found."""
    found, (of, over) = one.found, one.middles
    assert found is not None
    longer = f"{b}: iterations {abs(found.value - 1) * 100:.1f} % {'longer' if found.value > 1 else 'shorter'} than {a}"
    if found.low is None:
        return f"{longer}, {of:.1f} against {over:.1f} ms; an interval needs at least two rounds"
    head = longer if one.sure else f"no difference found between {a} and {b}"
    interval = f"{LEVEL} % interval {found.low:.4g} to {found.high:.4g}, n = {one.n}"
    return f"{head}: {of:.1f} against {over:.1f} ms, ratio {found.value:.4g}, {interval}"
