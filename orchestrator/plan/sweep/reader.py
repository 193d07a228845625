"""Reads a campaign file (`testbed.sweep/1`): its trials with their keys; all errors at once, each with line and column."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from itertools import product
from math import prod
from pathlib import PurePath
from typing import Any

from optics import BadFile
from optics.plain import did_you_mean, reason
from orchestrator.inventory.folders import FILES
from orchestrator.inventory.positions import Path, Problems, read_json, read_yaml
from orchestrator.inventory.schema import check
from orchestrator.plan.scenario.edges import LabEdge
from orchestrator.plan.scenario.reader import Fetch, read_scenario, wanted_lab
from orchestrator.plan.sweep.edges import OF_KIND, PlaceEdge, SweepEdge
from orchestrator.plan.sweep.values import LAB_RESOURCE, Campaign, Label, Trial

MOST_TRIALS = 100_000
"""More are refused: results are one file a trial."""
FILED = ("workload", "plan", "then", "scenario")
"""Parameters that are files; workers get their content."""
_LAB = "lab."
_HINT = "see docs/how-to/sweep.md"


def read_campaign(text: str, filename: str, fetch: Fetch) -> Campaign:
    """The campaign that `text` describes, JSON if the file's name says so and YAML otherwise.

    Plans are not checked against the lab here: a trial whose plan is wrong fails.
    Raises: BadFile - everything wrong with it, in the order of the file; or there are more than MOST_TRIALS trials.
    """
    document = read_json(text, filename) if filename.endswith(".json") else read_yaml(text, filename)
    problems = Problems(document)
    edge = check(SweepEdge, document.value, problems)
    if edge is None:
        raise BadFile(problems.lines(), hint=_HINT)
    if (count := size(edge)) > MOST_TRIALS:
        wide = " x ".join(f"{len(axis)} {name}" for name, axis in edge.grid.items())
        rows = f"{len(edge.rows)} rows x " if edge.rows else ""
        raise BadFile([f"{filename}: {count} trials ({rows}{wide}), at most {MOST_TRIALS} are possible"], hint="fewer values")
    found = _Trials(edge, fetch, problems).all()
    if problems:
        raise BadFile(problems.lines(), hint=f"correct the campaign; nothing was started; {_HINT}")
    resource = edge.lab.resource if isinstance(edge.lab, PlaceEdge) else LAB_RESOURCE if edge.kind == "lab" else ""
    return Campaign(edge.name, edge.title or edge.name, edge.kind, found, resource, edge.retries)


def size(edge: SweepEdge) -> int:
    """The number of combinations, also of those that are the same."""
    return max(len(edge.rows), 1) * prod(len(axis) for axis in edge.grid.values())


class _Trials:
    """Makes the trials: the values of each parameter are checked once, then put together."""

    def __init__(self, edge: SweepEdge, fetch: Fetch, problems: Problems) -> None:
        self._edge, self._fetch, self._problems = edge, fetch, problems
        self._texts: dict[str, str] = {}
        self._scenarios: dict[str, dict[str, str]] = {}
        self._labs: dict[str, dict[str, Any]] = {}

    def all(self) -> tuple[Trial, ...]:
        edge = self._edge
        base = {name: self._value(name, value, ("base", name)) for name, value in edge.base.items()}
        axes = {name: list(self._axis(name, axis)) for name, axis in edge.grid.items()}
        rows = [
            {name: self._value(name, value, ("list", at, name)) for name, value in row.items()} for at, row in enumerate(edge.rows)
        ]
        for at, row in enumerate(rows or [{}]):
            self._needed({*base, *axes, *row}, ("list", at) if rows else ())
        if isinstance(edge.lab, PlaceEdge):
            self._existing(edge.lab)
        if self._problems:
            return ()
        found: dict[str, Trial] = {}
        for row in rows or [{}]:
            for values in product(*axes.values()):
                trial = self._trial(base | dict(zip(axes, values, strict=True)) | row)
                found.setdefault(trial.key, trial)
        return tuple(found.values())

    def _axis(self, name: str, axis: Mapping[str, Any] | list[Any]) -> Iterator[tuple[Label, Any]]:
        path: Path = ("grid", name)
        if not axis:
            self._problems.add(path, "no values")
        if isinstance(axis, Mapping):
            for label, value in axis.items():
                yield label, self._value(name, value, (*path, label))[1]
        else:
            found = [self._value(name, value, (*path, at)) for at, value in enumerate(axis)]
            plain = len({label for label, _ in found}) == len(found)  # two files of one name in two folders
            yield from found if plain else [(str(given), value) for given, (_, value) in zip(axis, found, strict=True)]

    def _value(self, name: str, value: Any, path: Path) -> tuple[Label, Any]:
        """A value with what tables show of it, after adding to the problems what is wrong with it."""
        model, field = (LabEdge, name.removeprefix(_LAB)) if name.startswith(_LAB) else (OF_KIND[self._edge.kind], name)
        if field not in model.model_fields:
            known = [*OF_KIND[self._edge.kind].model_fields, *(f"{_LAB}{each}" for each in LabEdge.model_fields)]
            words = f"no parameter of kind {self._edge.kind}{did_you_mean(name, known)}"
            self._problems.add(path, words, key=path[0] != "grid" or len(path) == 2)
            return str(value), value
        checked = check(model, {field: value}, self._problems, place=lambda inner: (*path, *inner[1:]))
        if checked is None or value is None:
            return str(value), value
        if model is LabEdge and isinstance(self._edge.lab, PlaceEdge):
            self._problems.add(path, "only a generated lab has parameters: this one exists (`inventory`)")
        if name in FILED:
            self._read(str(value), path, scenario=name == "scenario")
            return PurePath(value).stem, value
        if isinstance(value, str | int | float | bool):
            return value, value
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False), value

    def _read(self, name: str, path: Path, *, scenario: bool) -> None:
        if name in self._texts:
            return
        self._texts[name] = ""
        try:
            self._texts[name] = self._fetch(name)
            if scenario:
                self._scenarios[name] = self._files_of(name, path)
        except BadFile as error:
            self._problems.add(path, str(error.problems[0]))
        except (OSError, UnicodeDecodeError) as error:
            self._problems.add(path, f"{name}: {reason(error)}")

    def _files_of(self, name: str, path: Path) -> dict[str, str]:
        """The files that a scenario names, by the names that it gives them. Raises: BadFile."""
        texts: dict[str, str] = {}

        def fetch(word: str) -> str:
            texts[word] = self._fetch(str(PurePath(name).parent / word))
            return texts[word]

        if read_scenario(self._texts[name], name, fetch).lab is None:
            self._problems.add(path, f"{name}: only a scenario with a lab of its own can be a trial (`lab` is any)")
        if outside := [word for word in texts if PurePath(word).is_absolute() or ".." in PurePath(word).parts]:
            self._problems.add(path, f"{name}: {outside[0]} is outside the scenario's folder")
        return texts

    def _needed(self, given: set[str], path: Path) -> None:
        kind = self._edge.kind
        if kind == "lab" and "scenario" in given:
            if wrong := sorted(given - {"scenario", "repeats", "seed", "repeat"}):
                self._problems.add(path, f"a scenario has its own {wrong[0]}: leave one of the two out")
            return
        for name in ("workload", "method") if kind == "prediction" else ("plan",):
            if name not in given:
                self._problems.add(path, f"{name} is missing: it belongs in base, grid or list")
        if "repeats" in given:
            self._problems.add(path, "repeats is of a scenario; `repeat: [1, 2, 3]` in grid makes trials several times")

    def _existing(self, place: PlaceEdge) -> None:
        if self._edge.kind == "devices":
            self._problems.add(
                ("lab", "inventory"), "devices without hosts are those of a generated lab; kind lab uses one that exists"
            )
        if self._edge.kind == "lab" and not place.resource:
            self._problems.add(("lab",), "resource is missing: a Dask resource with one slot, which this lab's worker offers")
        if self._edge.kind == "prediction":
            if place.resource:
                self._problems.add(("lab", "resource"), "a prediction uses no lab, only its files")
            for name in FILES:
                self._read(f"{place.inventory}/{name}", ("lab", "inventory"), scenario=False)

    def _trial(self, given: Mapping[str, tuple[Label, Any]]) -> Trial:
        used = {name: value for name, (_, value) in given.items() if value is not None}
        files: dict[str, dict[str, Any]] = {
            name: {"name": used[name], "text": self._texts[used[name]]} for name in FILED if name in used
        }
        if "scenario" in used:
            files["scenario"]["files"] = self._scenarios[used["scenario"]]
        own = {name: value for name, value in used.items() if name not in FILED and not name.startswith(_LAB)}
        lab = self._lab({name.removeprefix(_LAB): value for name, value in used.items() if name.startswith(_LAB)}, own.get("seed"))
        task = {"kind": self._edge.kind, "parameters": own, "files": files, "lab": lab}
        content = {name: {**file, "name": ""} for name, file in files.items()}
        return Trial(_hash(task | {"files": content}), {n: label for n, (label, _) in given.items()}, task | {
            "watchdog_s": self._edge.watchdog_s})  # fmt: skip

    def _lab(self, fields: Mapping[str, Any], seed: int | None) -> dict[str, Any]:
        """The lab of a trial: a generated one by its parameters, or one that exists by its directory or its files."""
        edge = self._edge.lab
        if isinstance(edge, PlaceEdge):
            if self._edge.kind != "prediction":
                return {"inventory": edge.inventory}
            return {"files": {name: self._texts[f"{edge.inventory}/{name}"] for name in FILES}}
        memo = json.dumps([fields, seed], sort_keys=True)
        if memo not in self._labs:
            wanted = wanted_lab(LabEdge.model_validate(edge.model_dump(by_alias=True) | dict(fields)))
            lab = wanted if seed is None or self._edge.kind == "prediction" else replace(wanted, seed=seed)
            self._labs[memo] = {"wanted": asdict(lab)}
        return self._labs[memo]


def _hash(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, ensure_ascii=False).encode()).hexdigest()[:20]
