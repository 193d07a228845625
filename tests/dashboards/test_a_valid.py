"""The committed JSON is what the generator writes, and what Grafana's schemas allow."""

from __future__ import annotations

import json
import os
import types
import typing
from copy import deepcopy
from enum import Enum
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models import dashboard as models

from dashboards.__main__ import files, finished
from tests.dashboards.grafana import DASHBOARDS, FOLDER, panels

register_default_plugins()

CONTRACTS = os.environ.get("TESTBED_GRAFANA_CONTRACTS", "")
SCHEMAS = {
    "barchart": "barchart",
    "histogram": "histogram",
    "nodeGraph": "nodegraph",
    "stat": "stat",
    "state-timeline": "statetimeline",
    "table": "table",
    "timeseries": "timeseries",
    "xychart": "xychart",
}


def test_the_committed_files_are_what_the_generator_writes() -> None:
    held = {path.name: path.read_text() for path in FOLDER.glob("*.json")}
    assert held == files(), "write them again: python -m dashboards"


def test_the_files_are_sorted_and_indented_by_two() -> None:
    for path in FOLDER.glob("*.json"):
        text = path.read_text()
        assert (
            text
            == json.dumps(json.loads(text), indent=2, sort_keys=True, ensure_ascii=False) + "\n"
        )


# --- by the models of Grafana's library


def wrongs(value: Any, hint: Any, place: str) -> list[str]:
    """Where a value read back is not what the library's types say: unknown words of enumerations,
    numbers for texts.
    """
    if hint in (Any, object) or isinstance(hint, str):
        return []
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return (
            []
            if any(not wrongs(value, each, place) for each in inside)
            else [f"{place}: {value!r} is no {hint}"]
        )
    if origin is typing.Literal:
        return [] if value in inside else [f"{place}: {value!r} is none of {inside}"]
    if origin in (list, dict) and not isinstance(value, origin):
        return [f"{place}: {value!r} is no {origin.__name__}"]
    if origin is list:
        return (
            [w for n, each in enumerate(value) for w in wrongs(each, inside[0], f"{place}[{n}]")]
            if isinstance(value, list)
            else [place]
        )
    if origin is dict:
        return [w for key, each in value.items() for w in wrongs(each, inside[1], f"{place}.{key}")]
    if hint is type(None):
        return [] if value is None else [f"{place}: {value!r} is not nothing"]
    if isinstance(hint, type) and issubclass(hint, Enum):
        return (
            []
            if value in [member.value for member in hint]
            else [f"{place}: {value!r} is no {hint.__name__}"]
        )
    if hint in (int, float, str, bool):
        fits = isinstance(value, (int, float) if hint is float else hint) and (
            hint is bool or not isinstance(value, bool)
        )
        return [] if fits else [f"{place}: {value!r} is no {hint.__name__}"]
    # the library leaves some parts as it found them
    if isinstance(value, dict) and hasattr(hint, "from_json"):
        value = hint.from_json(deepcopy(value))
    return (
        obeyed(value, place)
        if isinstance(value, hint)
        else [f"{place}: {value!r} is no {hint.__name__}"]
    )


def obeyed(thing: Any, place: str) -> list[str]:
    """The same for every attribute of one of the library's objects."""
    hints = typing.get_type_hints(type(thing))
    return [
        w
        for name, value in vars(thing).items()
        if name in hints
        for w in wrongs(value, hints[name], f"{place}.{name}")
    ]


def read_back(model: dict[str, Any]) -> tuple[models.Dashboard, dict[str, Any]]:
    """A dashboard as the library reads it, and what it writes again: a key it does not know is lost
    on the way.
    """
    built = models.Dashboard.from_json(deepcopy(model))
    again = json.loads(json.dumps(built, cls=JSONEncoder))
    return built, finished(again)


def problems(model: dict[str, Any]) -> list[str]:
    built, again = read_back(model)
    found = obeyed(built, "dashboard")
    for panel in built.panels or []:
        for each in (
            (panel, *(panel.panels or [])) if isinstance(panel, models.RowPanel) else (panel,)
        ):
            for part in (
                getattr(each, "options", None),
                getattr(getattr(each, "field_config", None), "defaults", None),
            ):
                if hasattr(part, "to_json"):
                    found += obeyed(part, each.title or "")
                    found += (
                        obeyed(part.custom, each.title or "")
                        if hasattr(getattr(part, "custom", None), "to_json")
                        else []
                    )
    return found + ([] if again == model else ["a key that the library does not know"])


@pytest.mark.parametrize("name", DASHBOARDS)
def test_a_dashboard_is_one_by_the_models_of_the_library(name: str) -> None:
    assert not problems(DASHBOARDS[name])


def test_the_schema_is_of_the_version_that_grafana_10_to_13_load() -> None:
    assert {model["schemaVersion"] for model in DASHBOARDS.values()} == {42}


@pytest.mark.parametrize(
    "spoil",
    [
        lambda d: d["panels"][9].update(drawStyle="line"),
        lambda d: d["panels"][9]["fieldConfig"]["defaults"]["custom"].update(drawStyle="lines"),
        lambda d: d.update(refresh=5),
        lambda d: d["panels"][9]["gridPos"].update(w="24"),
        lambda d: d["templating"]["list"][1].update(refresh=7),
    ],
    ids=[
        "unknown panel key",
        "wrong draw style",
        "numeric refresh",
        "width as text",
        "unknown refresh of a variable",
    ],
)
def test_what_grafana_would_not_take_is_noticed(spoil: Any) -> None:
    model = deepcopy(DASHBOARDS["testbed-live"])
    assert model["panels"][9]["type"] == "timeseries"
    spoil(model)
    assert problems(model)


# --- by Grafana's published schemas, where they are given


def schema(name: str) -> dict[str, Any]:
    path = Path(CONTRACTS) / "grafana-schemas" / f"{name}.jsonschema.json"
    if not CONTRACTS or not path.is_file():
        pytest.skip(
            "not compared with Grafana's own schemas: TESTBED_GRAFANA_CONTRACTS names no folder of them"
        )
    read: dict[str, Any] = loosened(json.loads(path.read_text()))
    return read


def loosened(part: Any) -> Any:
    """The schema with `any` where it says "an object of anything": so the converter wrote Grafana's
    `any` (matchers, overrides).
    """
    if isinstance(part, dict):
        anything = (
            part.get("type") == "object"
            and part.get("additionalProperties") == {}
            and "properties" not in part
        )
        return {} if anything else {key: loosened(value) for key, value in part.items()}
    return [loosened(each) for each in part] if isinstance(part, list) else part


@pytest.mark.parametrize("name", DASHBOARDS)
def test_a_dashboard_fits_the_published_schemas(name: str) -> None:
    jsonschema.validate(DASHBOARDS[name], schema("dashboard"))
    for panel in panels(DASHBOARDS[name]):
        kind = schema(SCHEMAS[panel["type"]])
        for part, value in (
            ("Options", panel["options"]),
            ("FieldConfig", panel["fieldConfig"]["defaults"].get("custom")),
        ):
            if value is not None and part in kind["definitions"]:
                jsonschema.validate(value, {**kind, "$ref": f"#/definitions/{part}"})
