"""Reads a campaign file (`testbed.sweep/1`): its trials with their keys; all errors at once, each
with line and column.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import product
from math import prod
from pathlib import PurePath
from typing import Any

from pydantic import BaseModel

from optics import BadFile, Infeasible
from optics.plain import did_you_mean, reason
from orchestrator.experiments.files.scenario.edges import LabEdge
from orchestrator.experiments.files.scenario.reader import Fetch, read_scenario, wanted_lab
from orchestrator.experiments.files.sweep.edges import OF_KIND, PlaceEdge, SweepEdge
from orchestrator.experiments.files.sweep.values import LAB_RESOURCE, Campaign, Kind, Label, Trial
from orchestrator.inventory.folders import FILES
from orchestrator.inventory.json_reader import read_json
from orchestrator.inventory.positions import Path, Problems
from orchestrator.inventory.schema import check
from orchestrator.inventory.yaml_reader import read_yaml
from orchestrator.plan.design.workload import read_text
from orchestrator.plan.edges import PlanEdge

MOST_TRIALS = 100_000
"""More are refused: results are one file a trial."""
FILED = ("workload", "plan", "then", "scenario")
"""Parameters that are files; workers get their content."""
_LAB, KIND = "lab.", "kind"
_OF_GENERATED = {
    "faults": "only emulated labs that a trial starts have faults",
    "seed": "it is that of a generated lab's losses; `repeat` makes trials again",
    "scenario": "it has a lab of its own",
}
_HINT = "see docs/how-to/sweep.md"


def read_campaign(text: str, filename: str, fetch: Fetch) -> Campaign:
    """The campaign that `text` describes, JSON if the file's name says so and YAML otherwise.

    Plans are not checked against the lab here: a trial whose plan is wrong fails. Raises: BadFile -
    everything wrong with it, in the order of the file; or there are more than MOST_TRIALS trials.
    """
    document = (
        read_json(text, filename) if filename.endswith(".json") else read_yaml(text, filename)
    )
    problems = Problems(document)
    edge = check(SweepEdge, document.value, problems)
    if edge is None:
        raise BadFile(problems.lines(), hint=_HINT)
    if (count := count_combinations(edge)) > MOST_TRIALS:
        wide = " x ".join(f"{len(axis)} {name}" for name, axis in edge.grid.items())
        rows = f"{len(edge.rows)} rows x " if edge.rows else ""
        raise BadFile(
            [f"{filename}: {count} trials ({rows}{wide}), at most {MOST_TRIALS} are possible"],
            hint="fewer values",
        )
    found = _Trials(edge, fetch, problems).all()
    if problems:
        raise BadFile(problems.lines(), hint=f"correct the campaign; nothing was started; {_HINT}")
    return Campaign(edge.name, edge.title or edge.name, found, edge.retries)


def count_combinations(edge: SweepEdge) -> int:
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
        kinds = [
            self._kind(row.get(KIND, edge.kind), ("list", at, KIND))
            for at, row in enumerate(edge.rows)
        ] or [edge.kind]
        used = sorted(set(kinds))
        base = {
            name: self._value(name, value, ("base", name), used)
            for name, value in edge.base.items()
        }
        axes = {name: list(self._axis(name, axis, used)) for name, axis in edge.grid.items()}
        rows = (
            [
                {
                    name: self._value(name, value, ("list", at, name), [kind])
                    for name, value in row.items()
                    if name != KIND
                }
                for at, (row, kind) in enumerate(zip(edge.rows, kinds, strict=True))
            ]
            if edge.rows
            else [{}]
        )
        for at, (row, kind) in enumerate(zip(rows, kinds, strict=True)):
            self._needed({*base, *axes, *row}, ("list", at) if edge.rows else (), kind)
        if isinstance(edge.lab, PlaceEdge):
            self._existing(edge.lab, used)
        if self._problems:
            return ()
        notified = any(KIND in row for row in edge.rows)
        found: dict[str, Trial] = {}
        for row, kind in zip(rows, kinds, strict=True):
            for values in product(*axes.values()):
                given = base | dict(zip(axes, values, strict=True)) | row
                trial = self._trial(given, kind, {KIND: kind} if notified else {})
                found.setdefault(trial.key, trial)
        return tuple(found.values())

    def _kind(self, given: object, path: Path) -> Kind:
        for kind in OF_KIND:
            if kind == given:
                return kind
        self._problems.add(path, f"{given!r}: wanted one of {', '.join(OF_KIND)}")
        return self._edge.kind

    def _axis(
        self, name: str, axis: Mapping[str, Any] | list[Any], kinds: Sequence[Kind]
    ) -> Iterator[tuple[Label, Any]]:
        path: Path = ("grid", name)
        if not axis:
            self._problems.add(path, "no values")
        if isinstance(axis, Mapping):
            for label, value in axis.items():
                yield label, self._value(name, value, (*path, label), kinds)[1]
        else:
            found = [self._value(name, value, (*path, at), kinds) for at, value in enumerate(axis)]
            # two files of one name in two folders
            plain = len({label for label, _ in found}) == len(found)
            yield from (
                found
                if plain
                else [(str(given), value) for given, (_, value) in zip(axis, found, strict=True)]
            )

    def _value(self, name: str, value: Any, path: Path, kinds: Sequence[Kind]) -> tuple[Label, Any]:
        """A value with what tables show of it, after adding to the problems what is wrong with it
        in trials of these kinds.
        """
        field = name.removeprefix(_LAB)
        models: set[type[BaseModel]] = set()
        for kind in kinds:
            model = LabEdge if name.startswith(_LAB) else OF_KIND[kind]
            if field not in model.model_fields:
                known = [
                    *OF_KIND[kind].model_fields,
                    *(f"{_LAB}{each}" for each in LabEdge.model_fields),
                ]
                text = f"no parameter of kind {kind}{did_you_mean(name, known)}"
                self._problems.add(path, text, key=path[0] != "grid" or len(path) == 2)
                return str(value), value
            models.add(model)
        checked = [
            check(each, {field: value}, self._problems, place=lambda inner: (*path, *inner[1:]))
            for each in models
        ]
        if None in checked or value is None:
            return str(value), value
        if name.startswith(_LAB) and isinstance(self._edge.lab, PlaceEdge):
            self._problems.add(
                path, "only a generated lab has parameters: this one exists (`inventory`)"
            )
        if name in FILED:
            self._read(str(value), path, scenario=name == "scenario", workload=name == "workload")
            return PurePath(value).stem, value
        if isinstance(value, str | int | float | bool):
            return value, value
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False), value

    def _read(
        self, name: str, path: Path, *, scenario: bool = False, workload: bool = False
    ) -> None:
        if name in self._texts:
            return
        self._texts[name] = ""
        try:
            self._texts[name] = self._fetch(name)
            if scenario:
                self._scenarios[name] = self._files_of(name, path)
            elif path[0] != "lab":
                self._known(name, workload=workload)
        except BadFile as error:
            self._problems.add(path, str(error.problems[0]))
        except Infeasible as error:
            self._problems.add(path, f"{name}: {error}")
        except (OSError, UnicodeDecodeError) as error:
            self._problems.add(path, f"{name}: {reason(error)}")

    def _known(self, name: str, *, workload: bool) -> None:
        """Only workloads and plans are sent to workers: a campaign may name any file of its user.
        Raises: BadFile, Infeasible.
        """
        if workload:
            read_text(self._texts[name], name)
            return
        document = read_json(self._texts[name], name)
        problems = Problems(document)
        if check(PlanEdge, document.value, problems) is None:
            raise BadFile(problems.lines())

    def _files_of(self, name: str, path: Path) -> dict[str, str]:
        """The files that a scenario names, by the names that it gives them. Raises: BadFile."""
        texts: dict[str, str] = {}

        def fetch(word: str) -> str:
            texts[word] = self._fetch(str(PurePath(name).parent / word))
            return texts[word]

        if read_scenario(self._texts[name], name, fetch).lab is None:
            self._problems.add(
                path, f"{name}: only a scenario with a lab of its own can be a trial (`lab` is any)"
            )
        if outside := [
            word for word in texts if PurePath(word).is_absolute() or ".." in PurePath(word).parts
        ]:
            self._problems.add(path, f"{name}: {outside[0]} is outside the scenario's folder")
        return texts

    def _needed(self, given: set[str], path: Path, kind: Kind) -> None:
        if kind == "lab" and isinstance(self._edge.lab, PlaceEdge):
            for name in sorted(given & _OF_GENERATED.keys()):
                self._problems.add(
                    path, f"{name}: {_OF_GENERATED[name]}; this lab exists (`inventory`)"
                )
        if kind == "lab" and "scenario" in given:
            if wrong := sorted(given - {"scenario", "repeats", "seed", "repeat"}):
                self._problems.add(
                    path, f"a scenario has its own {wrong[0]}: leave one of the two out"
                )
            return
        for name in ("workload", "method") if kind == "prediction" else ("plan",):
            if name not in given:
                self._problems.add(path, f"{name} is missing: it belongs in base, grid or list")
        if "repeats" in given:
            self._problems.add(
                path,
                "repeats is of a scenario; `repeat: [1, 2, 3]` in grid makes trials several times",
            )

    def _existing(self, place: PlaceEdge, kinds: Sequence[Kind]) -> None:
        if "devices" in kinds:
            self._problems.add(
                ("lab", "inventory"),
                "devices without hosts are those of a generated lab; kind lab uses one that exists",
            )
        if "lab" in kinds and not place.resource:
            self._problems.add(
                ("lab",),
                "resource is missing: a Dask resource with one slot, which this lab's worker offers",
            )
        if "lab" not in kinds and place.resource:
            self._problems.add(("lab", "resource"), "a prediction uses no lab, only its files")
        if "prediction" in kinds:
            for name in FILES:
                self._read(f"{place.inventory}/{name}", ("lab", "inventory"))

    def _trial(
        self, given: Mapping[str, tuple[Label, Any]], kind: Kind, also: Mapping[str, Label]
    ) -> Trial:
        used = {name: value for name, (_, value) in given.items() if value is not None}
        files: dict[str, dict[str, Any]] = {
            name: {"name": used[name], "text": self._texts[used[name]]}
            for name in FILED
            if name in used
        }
        if "scenario" in used:
            files["scenario"]["files"] = self._scenarios[used["scenario"]]
        own = {
            name: value
            for name, value in used.items()
            if name not in FILED and not name.startswith(_LAB)
        }
        fields = {
            name.removeprefix(_LAB): value for name, value in used.items() if name.startswith(_LAB)
        }
        lab = self._lab(fields, kind, None if kind == "prediction" else own.get("seed"))
        task = {"kind": kind, "parameters": own, "files": files, "lab": lab}
        key = _hash(task | {"files": {name: {**file, "name": ""} for name, file in files.items()}})
        labels = {**also, **{name: label for name, (label, _) in given.items()}}
        place = self._edge.lab
        resource = (
            ""
            if kind != "lab"
            else place.resource
            if isinstance(place, PlaceEdge)
            else LAB_RESOURCE
        )
        return Trial(key, labels, task | {"watchdog_s": self._edge.watchdog_s}, resource)

    def _lab(self, fields: Mapping[str, Any], kind: Kind, seed: int | None) -> dict[str, Any]:
        """The lab of a trial: a generated one by its parameters, or one that exists by its
        directory or its files.
        """
        edge = self._edge.lab
        if isinstance(edge, PlaceEdge):
            if kind == "lab":
                return {"inventory": edge.inventory}
            return {"files": {name: self._texts[f"{edge.inventory}/{name}"] for name in FILES}}
        memo = json.dumps([fields, seed], sort_keys=True)
        if memo not in self._labs:
            wanted = wanted_lab(
                LabEdge.model_validate(edge.model_dump(by_alias=True) | dict(fields))
            )
            lab = wanted if seed is None else replace(wanted, seed=seed)
            self._labs[memo] = {"wanted": asdict(lab)}
        return self._labs[memo]


def _hash(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(
        json.dumps(content, sort_keys=True, ensure_ascii=False).encode()
    ).hexdigest()[:20]
