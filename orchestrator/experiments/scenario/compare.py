"""`testbed experiment compare`: plans given on the command line as the arms of a scenario without
bands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from optics.errors import BadFile
from optics.plain import reason
from orchestrator.experiments.files.scenario.documents import job_document, with_job
from orchestrator.experiments.files.scenario.values import (
    Arm,
    Compared,
    PlanDocument,
    Scenario,
    Setup,
)
from orchestrator.experiments.scenario.judging import Samples, judge_comparison
from orchestrator.experiments.scenario.paired import LEVEL, PairedRatio
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


def compare_to_first(found: Samples, kept: Mapping[str, Any]) -> dict[str, PairedRatio]:
    """The iterations of each later plan over those of the first, as arms of a scenario are
    compared; without those that no round has beside the first. kept: `ComparisonRecord.data`. A
    measurement without iterations is as if it had not been made: here no band is at stake.
    """
    first, *others = kept["arms"]
    by_arm = {arm: Compared("", "iteration_ms", arm, first, "", None, None) for arm in kept["arms"]}
    seen = {
        arm: found.get((arm, one.tenant, one.metric, one.extent), {}) for arm, one in by_arm.items()
    }
    slots = [
        {**slot, "state": slot["state"] if seen[slot["arm"]].get(number) else "failed"}
        for number, slot in enumerate(kept["slots"])
    ]
    judged = (judge_comparison(by_arm[other], found, slots) for other in others)
    return {
        one.compared.of: PairedRatio(one.found, one.n, one.how)
        for one in judged
        if one.found is not None
    }


def medians_of(times: Mapping[str, Sequence[Sequence[float]]]) -> dict[str, float]:
    """The median of all iterations of each plan that has some; of a ratio see `compare_to_first`."""
    return {
        arm: median(value for values in each for value in values)
        for arm, each in times.items()
        if any(each)
    }


def difference_text(one: PairedRatio, a: str, b: str) -> str:
    """In words how plan b differs from plan a."""
    value, low, high = one.found.value, one.found.low, one.found.high
    longer = f"{abs(value - 1) * 100:.1f} % {'longer' if value > 1 else 'shorter'} than {a}"
    if low is None or high is None:
        return f"{b}: iterations {longer}; an interval needs at least two rounds"
    interval = f"ratio {value:.4g}, {LEVEL} % interval {low:.4g} to {high:.4g}, n = {one.n}"
    if not one.sure:
        return f"no difference found between {a} and {b}: {interval}"
    return f"{b}: iterations {longer}: {interval}"
