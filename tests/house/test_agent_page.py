"""docs/reference/agent.md describes the operations, fields, events and error codes that the agent
has, and no others.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from agent.basics import VERSION
from agent.commands import COMMANDS
from agent.daemon import FENCED, OPERATIONS
from tests.house.repository import ROOT
from tests.house.test_pages import page, section

PAGE = page("reference/agent.md")
TREES = [
    ast.parse(path.read_text())
    for path in sorted([*(ROOT / "agent").rglob("*.py"), *ROOT.glob("extensions/*/host/**/*.py")])
]


def table(heading: str) -> dict[str, tuple[str, ...]]:
    """The rows of a section's table: first cell without code marks -> the other cells."""
    lines = [line for line in section(PAGE, heading).splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {first: tuple(rest) for first, *rest in cells}


def codes() -> Iterator[str]:
    """The error codes that the source names."""
    for node in (node for tree in TREES for node in ast.walk(tree)):
        match node:
            case ast.Call(func=ast.Name(id="Failure"), args=[ast.Constant(value=str(code)), _]):
                yield code
            case ast.Dict(keys=keys, values=values):
                yield from (
                    value.value
                    for key, value in zip(keys, values, strict=True)
                    if isinstance(key, ast.Constant)
                    and key.value == "code"
                    and isinstance(value, ast.Constant)
                    if isinstance(value.value, str)
                )


def events() -> Iterator[str]:
    """The kinds of event that the source names."""
    for node in (node for tree in TREES for node in ast.walk(tree)):
        match node:
            case ast.Dict(
                keys=[ast.Constant(value="event"), *_], values=[ast.Constant(value=str(kind)), *_]
            ):
                yield kind
            case ast.Call(func=ast.Name(id="dict"), keywords=keywords):
                for keyword in keywords:
                    match keyword:
                        case ast.keyword(arg="event", value=ast.Constant(value=str(kind))):
                            yield kind


def fields() -> Iterator[str]:
    """The fields of requests that the source reads."""
    for node in (node for tree in TREES for node in ast.walk(tree)):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="request"), attr="get"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield name
            case ast.Subscript(value=ast.Name(id="request"), slice=ast.Constant(value=str(name))):
                yield name
            case ast.Call(
                func=ast.Name(id="integer" | "number" | "rows"),
                args=[ast.Name(id="request"), ast.Constant(value=name), *_],
            ):
                yield str(name)


def test_the_page_has_every_operation_and_says_which_are_fenced() -> None:
    listed = {first.split("`")[1]: first.endswith(", fenced") for first in table("Operations")}
    assert listed == {operation: operation in FENCED for operation in OPERATIONS}


def test_the_page_has_every_field_of_a_request() -> None:
    listed = {
        name
        for cells in table("Operations").values()
        for name in re.findall(r"`(\w+)`", re.sub(r"\{.*?\}", "", cells[0]))
    }
    values = {"listen", "send", "accept", "pour", "heard", "log"}
    assert listed - values == set(fields()) - {"id", "op", "token"} | {"ttl", "token"}


def test_the_page_has_every_event_and_every_error_code() -> None:
    assert {first.strip("`") for first in table("Events")} == set(events())
    assert {first.strip("`") for first in table("Error codes")} == set(codes())


def test_the_page_has_every_command_and_the_version() -> None:
    lines = re.search(r"The command line takes (.*?)\. Input", PAGE, re.DOTALL)
    assert lines and set(re.findall(r"`(\w+)`", lines[1])) == set(COMMANDS) | {
        "attach",
        "gpus",
        "serve",
    }
    assert f"`version`, which is {VERSION} " in PAGE
