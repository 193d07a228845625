"""Reads a scenario file (`testbed.scenario/1`): its arms with their plans; all errors at once, each
with line and column.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from optics import BadFile
from optics.plain import did_you_mean, reason
from orchestrator.experiments.files.scenario.documents import (
    differing_fields,
    job_document,
    undeclared,
    with_fields,
    with_job,
)
from orchestrator.experiments.files.scenario.edges import (
    CompareEdge,
    LabEdge,
    ScenarioEdge,
    SetupEdge,
)
from orchestrator.experiments.files.scenario.values import (
    OF_A_CHANGE,
    Arm,
    Compared,
    PlanDocument,
    Scenario,
    Setup,
    WantedLab,
    arm_services,
)
from orchestrator.inventory.json_reader import read_json
from orchestrator.inventory.positions import Path, Problems
from orchestrator.inventory.schema import check
from orchestrator.inventory.yaml_reader import read_yaml

Fetch = Callable[[str], str]
"""Returns the text of a file that the scenario names. Raises: OSError, UnicodeDecodeError,
BadFile.
"""
MOST_ARMS = 32


def read_scenario(text: str, filename: str, fetch: Fetch) -> Scenario:
    """The scenario that `text` describes, JSON if the file's name says so and YAML otherwise.

    The plans are not checked against a lab here. Raises: BadFile - everything wrong with it, in the
    order of the file.
    """
    document = (
        read_json(text, filename) if filename.endswith(".json") else read_yaml(text, filename)
    )
    problems = Problems(document)
    edge = check(ScenarioEdge, document.value, problems)
    if edge is None:
        raise BadFile(problems.lines(), hint="see docs/how-to/scenarios.md")
    files = _Files(fetch, problems)
    arms = _Arms(edge, files, problems).all()
    compared = tuple(_compared(edge, arms, problems))
    for index, one in enumerate(compared):
        if one.name in (other.name for other in compared[:index]):
            problems.add(
                ("compare", index),
                f"another comparison is called {one.name!r}, too: give each a `name` of its own",
            )
    if all(one.role != "claim" for one in compared):
        problems.add(("compare",), "no comparison has the role claim, so nothing could be shown")
    if not problems:
        _differences(edge, arms, problems)
    if problems:
        raise BadFile(problems.lines(), hint="correct the scenario; nothing was changed")
    return Scenario(
        name=edge.name,
        title=edge.title,
        source=tuple(edge.source),
        claim=edge.claim,
        label=edge.label,
        lab=None if edge.lab == "any" else wanted_lab(edge.lab),
        tenants=tuple(edge.tenants),
        arms=arms,
        compared=compared,
        repeats=edge.repeats,
        width=edge.width,
        budget_s=edge.budget_s,
        iterations=edge.iterations,
        warm_up=edge.warm_up,
        description=edge.description,
        differs=tuple(edge.differs),
        sha256=hashlib.sha256("\0".join([text, *files.texts]).encode()).hexdigest(),
    )


def wanted_lab(edge: LabEdge) -> WantedLab:
    """The lab of a file as the generator of emulated labs takes it."""
    lines = tuple(
        f"{port.removeprefix('p')}:{line.delay_ms:g}:{line.queue_packets}:{line.loss:g}:{line.rate_mbps:g}"
        for port, line in edge.lines.items()
    )
    queue = f"{edge.queue.kb}:{edge.queue.share}" if edge.queue else ""
    return WantedLab(
        **{
            **edge.model_dump(),
            "electrical": tuple(edge.electrical),
            "lines": lines,
            "queue": queue,
        }
    )


class _Files:
    """The JSON files that a scenario names, each read once."""

    def __init__(self, fetch: Fetch, problems: Problems) -> None:
        self._fetch, self._problems = fetch, problems
        self._read: dict[str, tuple[str, Mapping[str, Any]]] = {}

    @property
    def texts(self) -> list[str]:
        """The names and texts of all that were read."""
        return [part for name, (text, _) in sorted(self._read.items()) for part in (name, text)]

    def read(self, name: str, path: Path) -> tuple[str, Mapping[str, Any]]:
        """The file's text and document, empty after adding to the problems what is wrong with
        it.
        """
        if name not in self._read:
            self._read[name] = "", {}
            try:
                text = self._fetch(name)
                found = read_json(text, name).value
                if isinstance(found, Mapping):
                    self._read[name] = text, found
                else:
                    self._problems.add(path, f"{name}: wanted a JSON object")
            except BadFile as error:
                self._problems.add(path, str(error.problems[0]))
            except (OSError, UnicodeDecodeError) as error:
                self._problems.add(path, f"{name}: {reason(error)}")
        return self._read[name]


class _Arms:
    """Makes the arms: what tenants, arms and an arm's tenants say, put together; a sweep is one arm
    for each value.
    """

    def __init__(self, edge: ScenarioEdge, files: _Files, problems: Problems) -> None:
        self._edge, self._files, self._problems = edge, files, problems

    def all(self) -> dict[str, Arm]:
        found: dict[str, Arm] = {}
        for name, arm in self._edge.arms.items():
            for tenant in arm.tenants:
                if tenant not in self._edge.tenants:
                    text = f"there is no tenant {tenant}{did_you_mean(tenant, self._edge.tenants)}"
                    self._problems.add(("arms", name, "tenants", tenant), text, key=True)
            if (arm.lab or arm.sweep) and self._edge.lab == "any":
                self._problems.add(
                    ("arms", name),
                    "an arm can change only a lab that the scenario starts: lab is any",
                )
            if (
                arm.lab
                and arm.lab.share
                and (self._edge.lab == "any" or self._edge.lab.queue is None)
            ):
                self._problems.add(
                    ("arms", name, "lab", "share"),
                    "the lab has no `queue` whose share could be another",
                )
            if arm.lab and arm.lab.settle_ms is not None and arm.sweep:
                self._problems.add(
                    ("arms", name, "sweep"), "lab.settle_ms is given by lab, too", key=True
                )
            taking = [
                tenant for tenant in self._edge.tenants if arm.tenants.get(tenant, arm) is not None
            ]
            if not taking:
                self._problems.add(("arms", name, "tenants"), "no tenant takes part", key=True)
            read = {tenant: self._setup(name, tenant) for tenant in taking}
            setups = {tenant: setup for tenant, setup in read.items() if setup is not None}
            watchdog_s = arm.watchdog_s or self._edge.watchdog_s
            kinds = {kind.key: kind for kind in arm_services().values() if kind.key}
            asked = {key: how for key in kinds if (how := getattr(arm, key)) is not None}
            for key, how in asked.items():
                for text in kinds[key].wrong(how, read):
                    self._problems.add(("arms", name, key), text)
            if arm.sweep is None:
                settle_ms, share = (arm.lab.settle_ms, arm.lab.share) if arm.lab else (None, None)
                found[name] = Arm(name, setups, settle_ms, watchdog_s, asked=asked, share=share)
                continue
            for value in arm.sweep.settle_ms:
                swept, share = ("lab.settle_ms", value), arm.lab.share if arm.lab else None
                found[f"{name}@{value:g}"] = Arm(
                    f"{name}@{value:g}", setups, value, watchdog_s, swept, asked, share
                )
        if len(found) > MOST_ARMS:
            self._problems.add(
                ("arms",), f"wanted at most {MOST_ARMS} arms with those of sweeps, got {len(found)}"
            )
        return found

    def _setup(self, arm: str, tenant: str) -> Setup | None:
        """What a tenant does in an arm, None after adding what is wrong."""
        base, own = self._edge.tenants[tenant], self._edge.arms[arm]
        levels: list[tuple[SetupEdge, Path]] = [(base, ("tenants", tenant)), (own, ("arms", arm))]
        if (alone := own.tenants.get(tenant)) is not None:
            levels.append((alone, ("arms", arm, "tenants", tenant)))
        given = {
            name: (value, (*path, name))
            for level, path in levels
            for name in ("plan", "then", "job", "backend", "mode")
            if (value := getattr(level, name)) is not None
        }
        if "plan" not in given:
            self._problems.add(
                ("arms", arm), f"tenant {tenant} has no plan: give it one here or in tenants"
            )
            return None
        if "mode" in given and "then" not in given:
            self._problems.add(
                given["mode"][1], "mode is of the change to another plan, which `then` names"
            )
        job = job_document(self._files.read(*given["job"])[1]) if "job" in given else {}
        more: dict[str, Any] = {
            name: {key: value for level, _ in levels for key, value in getattr(level, name).items()}
            for name in ("args", "env", "transition")
        }
        more["backend"] = given["backend"][0] if "backend" in given else None
        plans: dict[str, PlanDocument] = {}
        for name in ("plan", "then"):
            if name in given:
                file, path = given[name]
                text, document = self._files.read(file, path)
                plans[name] = PlanDocument.of(
                    file, text, document, made := with_fields(with_job(document, job), **more)
                )
                if made and not isinstance(made.get("job"), Mapping):
                    self._problems.add(
                        path, f"{file} has no job, so nothing can be measured; `job` names one"
                    )
        return Setup(
            plans["plan"], plans.get("then"), given["mode"][0] if "mode" in given else None
        )


def _compared(
    edge: ScenarioEdge, arms: Mapping[str, Arm], problems: Problems
) -> Iterator[Compared]:
    for index, one in enumerate(edge.compare):
        path: Path = ("compare", index)
        for field, name in (("of", one.of), ("over", one.over)):
            if name and name not in arms:
                problems.add((*path, field), f"there is no arm {name}{did_you_mean(name, arms)}")
            elif name and one.metric in OF_A_CHANGE and not arms[name].changes:
                problems.add(
                    (*path, field),
                    f"{one.metric} is of a change, and arm {name} changes to no other plan (`then`)",
                )
        if not one.over and one.metric != "stalled":
            problems.add(
                path,
                f"{one.metric} of one arm alone says nothing about another lab: name the arm to divide by (`over`)",
            )
        if one.over and one.over == one.of:
            problems.add((*path, "over"), f"arm {one.of} is divided by itself")
        if one.metric == "stalled" and one.over:
            problems.add((*path, "over"), "stalled is counted for one arm; leave it out")
        for arm in arms.values():
            if one.seconds is not None and arm.watchdog_s <= one.seconds:
                problems.add(
                    (*path, "seconds"),
                    f"the watchdog of arm {arm.name} ends a measurement after {arm.watchdog_s:g} s",
                )
        tenant = one.tenant or next(iter(edge.tenants))
        if tenant not in edge.tenants:
            problems.add(
                (*path, "tenant"),
                f"there is no tenant {tenant}{did_you_mean(tenant, edge.tenants)}",
            )
        for field, name in (("of", one.of), ("over", one.over)):
            if tenant in edge.tenants and name in arms and tenant not in arms[name].setups:
                problems.add((*path, field), f"tenant {tenant} takes no part in arm {name}")
        if not one.tenant and len(edge.tenants) > 1:
            problems.add(path, f"whose {one.metric}? name the tenant: {', '.join(edge.tenants)}")
        yield _with_band(one, tenant, path, edge, problems)


def _with_band(
    one: CompareEdge, tenant: str, path: Path, edge: ScenarioEdge, problems: Problems
) -> Compared:
    low, high = one.band.min, one.band.max
    if low is None and high is None:
        problems.add((*path, "band"), "a band has min, max, or both")
    elif low is not None and high is not None and low > high:
        problems.add((*path, "band", "min"), f"min {low:g} is above max {high:g}")
    if one.iterations is not None and one.metric != "span_ms":
        problems.add(
            (*path, "iterations"), f"only span_ms is of a number of iterations, not {one.metric}"
        )
    elif one.iterations is not None and one.iterations > edge.iterations:
        problems.add(
            (*path, "iterations"),
            f"a measurement has {edge.iterations} iterations, not {one.iterations}",
        )
    if one.seconds is not None and one.metric != "loss":
        problems.add((*path, "seconds"), f"only loss is of a time, not {one.metric}")
    whose = f"{tenant}: " if len(edge.tenants) > 1 else ""
    after = f" after {one.seconds:g} s" if one.seconds else ""
    text = one.name or f"{whose}{one.metric}{after} {one.of}" + (
        f" / {one.over}" if one.over else ""
    )
    count = (one.iterations or edge.iterations) if one.metric == "span_ms" else 0
    seconds = one.seconds or 0.0
    return Compared(text, one.metric, one.of, one.over, tenant, low, high, one.role, count, seconds)


def _differences(edge: ScenarioEdge, arms: Mapping[str, Arm], problems: Problems) -> None:
    """Report every field in which arms differ without the file saying so, and every one that it
    names in vain.
    """
    found: list[str] = []
    for tenant in edge.tenants:
        setups = [arm.setups[tenant] for arm in arms.values() if tenant in arm.setups]
        found += ["tenants"] if len(setups) < len(arms) and setups else []
        found += differing_fields([setup.plan.document for setup in setups], "plan")
        found += differing_fields(
            [setup.then.document if setup.then else None for setup in setups], "then"
        )
        found += (
            ["mode"] if len({setup.mode for setup in setups if setup.then is not None}) > 1 else []
        )
    keys = (kind.key for kind in arm_services().values())
    found += [key for key in keys if len({arm.asked.get(key) for arm in arms.values()}) > 1]
    found += ["lab.settle_ms"] if len({arm.settle_ms for arm in arms.values()}) > 1 else []
    own = edge.lab.queue.share if edge.lab != "any" and edge.lab.queue else None
    found += ["lab.share"] if len({arm.share or own for arm in arms.values()}) > 1 else []
    missing, vain = undeclared(list(dict.fromkeys(found)), edge.differs)
    for field in missing:
        problems.add(
            ("differs",),
            f"the arms differ in {field}, too: name it here, or make it the same in all arms",
        )
    for field in vain:
        problems.add(("differs", edge.differs.index(field)), f"the arms do not differ in {field}")
