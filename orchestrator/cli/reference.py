"""The verbs as the tables of docs/reference/cli.md: `python -m orchestrator.cli.reference PAGE`."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from orchestrator.cli.listing import COMMON_OPTIONS, GROUPS
from orchestrator.cli.main import app

METHODS = 5
"""Verbs of a family with the same options that are one row."""
BEGIN, END = "<!-- verbs: begin (generated) -->\n", "<!-- verbs: end -->\n"


def _options(command: Any) -> str:
    own = [
        p for p in command.params if p.param_type_name == "option" and p.name not in COMMON_OPTIONS
    ]
    return ", ".join(f"`{max(param.opts, key=len)}`" for param in own)


def _arguments(command: Any) -> str:
    return "".join(
        f" {p.metavar or p.name.upper()}" for p in command.params if p.param_type_name == "argument"
    )


def _rows(command: Any, path: str) -> Iterator[tuple[str, str, str]]:
    """The verb, or those of its family: command, purpose, options. Methods, which have the same
    options, are one row.
    """
    if not hasattr(command, "commands"):
        yield f"`{path}{_arguments(command)}`", command.get_short_help_str(200), _options(command)
        return
    verbs = {
        name: inner for name, inner in command.commands.items() if not hasattr(inner, "commands")
    }
    times = Counter(_options(inner) for inner in verbs.values())
    methods = [
        name
        for name, inner in verbs.items()
        if times[_options(inner)] >= METHODS and _options(inner)
    ]
    if methods:
        purpose = " ".join(f"`{name}`: {verbs[name].get_short_help_str(200)}" for name in methods)
        yield f"`{path} METHOD`", purpose, _options(verbs[methods[0]])
    for name, inner in [
        *verbs.items(),
        *((n, c) for n, c in command.commands.items() if n not in verbs),
    ]:
        if name not in methods:
            yield from _rows(inner, f"{path} {name}")


def tables() -> str:
    """One section per group."""
    whole: Any = get_command(app())
    lines = []
    for heading, verbs in GROUPS.items():
        lines += [f"### {heading}", "", "| command | does | options |", "|---|---|---|"]
        for verb in verbs:
            for row in _rows(whole.commands[verb], f"testbed {verb}"):
                cells = " | ".join(cell.replace("|", r"\|") for cell in row)
                lines.append(f"| {cells} |")
        lines.append("")
    return "\n".join(lines)


def rewrite_tables(page: str) -> str:
    """The page with its tables as the command line is now."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{tables()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(rewrite_tables(path.read_text(encoding="utf-8")), encoding="utf-8")
