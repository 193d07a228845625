"""What `--json` printed, against its published schema; fields that the schema does not have are
errors here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

import jsonschema

from orchestrator.cli.groups import TAKE_A_VALUE
from tests.house.repository import ROOT

PAGE = ROOT / "docs" / "reference" / "data.schema.json"


@cache
def published() -> dict[str, Any]:
    found = json.loads(PAGE.read_text())
    assert isinstance(found, dict)
    return found


def closed(part: Any) -> Any:
    """The schema without room for further fields."""
    if isinstance(part, dict):
        room = (
            {}
            if "properties" not in part or "additionalProperties" in part
            else {"additionalProperties": False}
        )
        return {name: closed(inner) for name, inner in part.items()} | room
    return [closed(inner) for inner in part] if isinstance(part, list) else part


@cache
def definitions() -> Any:
    return closed(published()["$defs"])


@cache
def validator(name: str) -> Any:
    return jsonschema.Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": definitions()})


def verb_of(argv: Sequence[str]) -> str:
    """The name in the schema of the verb of a command line; empty: it has none."""
    arguments: list[str] = []
    left = iter(argv)
    for word in left:
        if word in TAKE_A_VALUE:
            next(left, None)
        elif not word.startswith("-"):
            arguments.append(word)
    known = published()["$defs"]
    named = (
        "-".join([*arguments[:end], *more])
        for end in (3, 2, 1)
        for more in ((), ("list",))
        if len(arguments) >= end
    )
    return "version" if "--version" in argv else next((name for name in named if name in known), "")


def fits(argv: Sequence[str], body: dict[str, Any]) -> None:
    """Raises: AssertionError - the data is not what the schema says, with the place."""
    jsonschema.Draft202012Validator(
        {k: v for k, v in published().items() if k != "$defs"}
    ).validate(body)
    if not body["ok"] and validator("error").is_valid(body["data"]):
        return
    name = verb_of(argv)
    assert name, f"no schema has the data of {' '.join(argv)}"
    error = jsonschema.exceptions.best_match(validator(name).iter_errors(body["data"]))
    assert error is None, (
        f"{name}: data{error.json_path[1:]}: {error.message[:400]}; is it in orchestrator/cli/shapes.py?"
    )
