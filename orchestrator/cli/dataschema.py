"""The JSON Schemas of what `--json` prints: the object around all results, and the data of each
verb, from the types behind it.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any, NotRequired

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema
from typing_extensions import TypedDict

from orchestrator.cli.call import API
from orchestrator.cli.shapes import PLAN_FILE, Shapes, data, fields
from orchestrator.plan.edges import plan_schema

DRAFT = "https://json-schema.org/draft/2020-12/schema"
SCHEMA_ID = "urn:testbed:v1"
ERRORS: Shapes = ({"problems": list[str]}, {"left": list[str]}, {})
"""The data of a failure: of an invalid file, of one half way, of any other; some verbs fail with a
result of their own.
"""


class _Schema(GenerateJsonSchema):
    """Every field of a report is there, as `to_json` writes defaults, too; names stand for
    themselves, without a title.
    """

    def field_is_required(self, field: Any, total: bool) -> bool:
        return bool(field.get("required", total)) if field["type"] == "typed-dict-field" else True

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def default_schema(self, schema: Any) -> dict[str, Any]:
        return self.generate_inner(schema["schema"])


@cache
def json_schema() -> dict[str, Any]:
    """The schema of everything that `--json` prints, as committed in
    docs/reference/data.schema.json.

    `$defs` has the data of each verb under its words (`job-status`), of failures under `error`.
    """
    forms: dict[int, Any] = {}
    adapters = [
        (key(verb), "serialization", _adapter(verb, shapes, forms))
        for verb, shapes in {**data(), "error": ERRORS}.items()
    ]
    made, found = TypeAdapter.json_schemas(adapters, schema_generator=_Schema)  # type: ignore[arg-type]
    plan = plan_schema()
    parts = {f"plan-{name.removesuffix('Edge')}": part for name, part in plan.pop("$defs").items()}
    parts["plan-file"] = {name: part for name, part in plan.items() if not name.startswith("$")}
    definitions = (
        _with_plans(found["$defs"])
        | {name: _with_plans(schema) for (name, _), schema in made.items()}
        | _moved(parts)
    )
    return {
        "$schema": DRAFT,
        "$id": SCHEMA_ID,
        "title": "What --json prints",
        "description": "The data of a verb is the part of $defs with its words, as job-status; with ok false it may be `error`.",
        "type": "object",
        "properties": {
            "api": {"const": API},
            "ok": {"type": "boolean"},
            "code": {
                "type": "string",
                "description": "OK, DIFFERENCES, or the stable name of an error",
            },
            "message": {"type": "string"},
            "hint": {"type": "string", "description": "what to do next: a command, or words"},
            "data": {"type": "object"},
        },
        "required": ["api", "ok", "code", "message", "hint", "data"],
        "$defs": dict(sorted(definitions.items())),
    }


def key(verb: str) -> str:
    """The name in `$defs` of the data of a verb: `job status` is `job-status`."""
    return verb.replace(" ", "-")


def schema_of(verb: str, whole: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of the data of one verb alone, out of that of all. Raises: KeyError - there is no
    such verb.
    """
    name = key(verb)
    wanted, open_ = {}, [name]
    while open_:
        one = open_.pop()
        if one not in wanted:
            wanted[one] = whole["$defs"][one]
            open_ += _referred(wanted[one])
    top = wanted.pop(name)
    return {
        "$schema": DRAFT,
        "$id": f"{SCHEMA_ID}:{name}",
        **top,
        "$defs": dict(sorted(wanted.items())),
    }


def _referred(part: Any) -> list[str]:
    if isinstance(part, Mapping):
        own = [part["$ref"].rpartition("/")[2]] if isinstance(part.get("$ref"), str) else []
        return own + [name for inner in part.values() for name in _referred(inner)]
    return [name for inner in part for name in _referred(inner)] if isinstance(part, list) else []


def _with_plans(part: Any) -> Any:
    """The part with a reference where a plan file stands."""
    if isinstance(part, Mapping):
        return (
            {"$ref": "#/$defs/plan-file"}
            if part == PLAN_FILE
            else {name: _with_plans(inner) for name, inner in part.items()}
        )
    return [_with_plans(inner) for inner in part] if isinstance(part, list) else part


def _moved(part: Any) -> Any:
    """A part of the schema of plans, with its references to where those parts are here."""
    if isinstance(part, Mapping):
        return {
            name: f"#/$defs/plan-{value.rpartition('/')[2].removesuffix('Edge')}"
            if name == "$ref"
            else _moved(value)
            for name, value in part.items()
        }
    return [_moved(inner) for inner in part] if isinstance(part, list) else part


def _adapter(verb: str, shapes: Shapes, forms: dict[int, Any]) -> TypeAdapter[Any]:
    name = "".join(word.capitalize() for word in re.split("[ -]", verb))
    types: Any = tuple(
        _typed(f"{name}Data{index + 1 if index else ''}", shape, forms)
        for index, shape in enumerate(shapes)
    )
    either: Any = typing.Union[types]  # noqa: UP007 - of a tuple
    return TypeAdapter(either)


def _typed(name: str, shape: Any, forms: dict[int, Any]) -> Any:
    """The type of a shape; forms: those that were made, so that a shape of several verbs has one
    name.
    """
    if isinstance(shape, list):
        return list[_typed(name, shape[0], forms)]  # type: ignore[misc]
    if isinstance(shape, tuple):
        return typing.Union[tuple(_typed(name, one, forms) for one in shape)]  # noqa: UP007 - of a tuple
    if isinstance(shape, Mapping) and str in shape:
        return dict[str, _typed(name, shape[str], forms)]  # type: ignore[misc]
    if isinstance(shape, Mapping):
        inner, doc = shape, ""
    elif getattr(shape, "derived", ()):
        inner, name, doc = fields(shape), shape.__name__, inspect.getdoc(shape) or ""
    else:
        return shape
    if id(shape) not in forms:
        typed = {}
        for names, kind in inner.items():
            for field in names.split():
                bare = field.removesuffix("?")
                one = _typed(f"{name}{bare.title().replace('_', '')}", kind, forms)
                typed[bare] = one if field == bare else NotRequired[one]
        forms[id(shape)] = TypedDict(name, typed)  # type: ignore[operator]
        forms[id(shape)].__doc__ = doc
    return forms[id(shape)]
