"""A scenario on a lab that is k times slower, and its ratios at several k: what stays the same does
not depend on this machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Literal

from optics.errors import BadFile
from orchestrator.experiments.files.scenario.values import (
    LEAST_ROUNDS,
    Compared,
    PlanDocument,
    Scenario,
    Setup,
)
from orchestrator.experiments.scenario.judging import JudgedComparison, figures
from orchestrator.experiments.scenario.paired import Interval
from orchestrator.experiments.scenario.record import dilation_of, read_records
from orchestrator.settings import Settings

MOVED = 0.03
"""A ratio that differs by no more at another k is the same."""
LEAST_FACTOR = 2
"""Between two k that are compared: with less, the machine's part in what is measured hardly
changes.
"""
_IN_SECONDS = ("dwell_s", "guard_s")
"""What a plan's schedule says in seconds."""
Moving = Literal["same", "moves", "not told"]


def dilated(scenario: Scenario, k: float) -> Scenario:
    """The scenario on a lab of its own that is k times slower. Its files have the numbers of k = 1:
    watchdogs and what the plans' schedules say in seconds are k times as long, all else is the
    lab's part (`lab.dilated_lab`). Raises: BadFile - it cannot be."""
    lab = scenario.lab
    if k == 1:
        return scenario if lab is None else replace(scenario, lab=replace(lab, dilation=1.0))
    wrong = [*_never(scenario)]
    if lab is None:
        wrong = [
            "it runs on the lab of --inventory, and only a lab that a scenario starts for itself can be dilated"
        ]
    if wrong or lab is None:
        hint = (
            "leave out --dilation" if scenario.dilation == 1 else "take `dilation` out of its lab"
        )
        raise BadFile(
            [f"{scenario.name} cannot be dilated by {k:g}: {text}" for text in wrong], hint=hint
        )
    arms = {
        name: replace(
            arm,
            watchdog_s=k * arm.watchdog_s,
            setups={tenant: _slower(each, k) for tenant, each in arm.setups.items()},
        )
        for name, arm in scenario.arms.items()
    }
    label = "dilated" if scenario.label == "native" else scenario.label
    return replace(scenario, arms=arms, label=label, lab=replace(lab, dilation=k))


def _never(scenario: Scenario) -> Iterator[str]:
    """Why it cannot be dilated: a figure of this program has nothing that gets slower, and dilation
    would divide it by k.
    """
    for one in scenario.compared:
        changes = any(scenario.arms[name].changes for name in (one.of, one.over) if name)
        if one.metric in ("dark_ms", "lost_ms") or (one.metric == "span_ms" and changes):
            yield f"{one.metric} of a change ({one.name}) is a figure of this program, which no lab makes slower"
    for arm in scenario.arms.values():
        for setup in arm.setups.values():
            if any(
                (plan.document.get("schedule") or {}).get("guard_s") == "auto"
                for plan in (setup.plan, setup.then)
                if plan
            ):
                yield f"the plan of arm {arm.name} has guard_s auto, which is reckoned from this lab: give it in seconds"
                break


def _slower(setup: Setup, k: float) -> Setup:
    return replace(setup, plan=_at(setup.plan, k), then=setup.then and _at(setup.then, k))


def _at(plan: PlanDocument, k: float) -> PlanDocument:
    schedule = plan.document.get("schedule")
    if not isinstance(schedule, Mapping):
        return plan
    longer = {
        name: k * schedule[name]
        for name in _IN_SECONDS
        if isinstance(schedule.get(name), int | float)
    }
    made = {**plan.document, "schedule": {**schedule, **longer}}
    return PlanDocument(
        f"{plan.file}, {k:g} times slower", json.dumps(made, indent=1, ensure_ascii=False), made
    )


def at_other_dilations(settings: Settings, data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Of the same scenario file, the latest judged record at each k that is twice this one or more,
    or half of it or less.
    """
    facts, own, found = data.get("scenario") or {}, dilation_of(data), dict[float, dict[str, Any]]()
    if not facts.get("lab"):
        return []
    for other in read_records(settings, str(facts.get("name"))):
        k = dilation_of(other)
        if (
            other["scenario"].get("sha256") == facts["sha256"]
            and other.get("outcome")
            and max(k / own, own / k) >= LEAST_FACTOR
        ):
            found[k] = {"dilation": k, "record": other["name"], "findings": other["findings"]}
    return [found[k] for k in sorted(found)]


@dataclass(frozen=True, slots=True)
class AtTwo:
    """One comparison at two k. moved: how much larger the ratio is at the larger k, relative; None:
    a k has no ratio.
    """

    compared: Compared
    lower_k: float
    upper_k: float
    lower: Interval | None
    upper: Interval | None
    moved: float | None
    moving: Moving
    record: str

    @property
    def message(self) -> str:
        """In words:
        `0.998 at k = 1 and 1 at k = 2, 0.2 % more: the same, so it does not depend on this machine`.
        """
        if self.lower is None or self.upper is None or self.moved is None:
            return f"has no ratio at k = {self.lower_k:g} or {self.upper_k:g}: {MOVING_TEXT[self.moving]}"
        lower, upper = figures(self.lower, self.compared)[0], figures(self.upper, self.compared)[0]
        more = f"{abs(self.moved):.1%} {'more' if self.moved >= 0 else 'less'}"
        return f"{lower} at k = {self.lower_k:g} and {upper} at k = {self.upper_k:g}, {more}: {MOVING_TEXT[self.moving]}"


MOVING_TEXT: Mapping[Moving, str] = {
    "same": "the same, so it does not depend on this machine",
    "moves": "it moves, which is a finding: this machine, or a time that is not dilated, has a part in it",
    "not told": "rounds are too few, or intervals too wide, to say whether it depends on this machine",
}


def at_two(
    judged: Sequence[JudgedComparison], data: Mapping[str, Any], other: Mapping[str, Any]
) -> list[AtTwo]:
    """Each ratio of a record beside that of another one (`at_other_dilations`). The same: no
    further apart than `MOVED`, and both intervals, by their ratio, as narrow as the scenario wants
    them; it moves: further apart, and the intervals do not overlap. Both need the least rounds."""
    # older records do not count rounds
    theirs = {one["name"]: one for one in other["findings"] if "n" in one}
    swap, found = other["dilation"] < dilation_of(data), []
    for mine in judged:
        if not mine.compared.over or mine.compared.name not in theirs:
            continue
        present = theirs[mine.compared.name]["found"]
        second = replace(
            mine, found=Interval(**present) if present else None, n=theirs[mine.compared.name]["n"]
        )
        low, high = (second, mine) if swap else (mine, second)
        lower_k, upper_k = sorted((dilation_of(data), float(other["dilation"])))
        moved, moving = _moving(low, high, float(data.get("width", 0.0)))
        found.append(
            AtTwo(
                mine.compared,
                lower_k,
                upper_k,
                low.found,
                high.found,
                moved,
                moving,
                str(other["record"]),
            )
        )
    return found


def _moving(
    low: JudgedComparison, high: JudgedComparison, width: float
) -> tuple[float | None, Moving]:
    one, two = low.found, high.found
    if one is None or two is None or not one.value:
        return None, "not told"
    moved = two.value / one.value - 1
    if min(low.n, high.n) < LEAST_ROUNDS:
        return moved, "not told"
    if max(map(_relative_width, (one, two))) <= width and abs(moved) <= MOVED:
        return moved, "same"
    ends = (one.low, one.high, two.low, two.high)
    if None in ends or abs(moved) <= MOVED or (two.low <= one.high and one.low <= two.high):  # type: ignore[operator]
        return moved, "not told"
    return moved, "moves"


def _relative_width(found: Interval) -> float:
    """Of an interval, by its ratio; infinite without one."""
    if found.low is None or found.high is None or not found.value:
        return inf
    return (found.high - found.low) / found.value
