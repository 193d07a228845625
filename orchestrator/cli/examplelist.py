"""What `testbed examples` lists: for each example what it shows, how long it takes, and the
commands to begin.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.results import Json

TABLE = Path("examples") / "examples.yaml"


def example_table(home: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The examples that have commands, each with its group, and the files without; home: the
    directory with `examples`.
    """
    import yaml

    table = yaml.safe_load((home / TABLE).read_text(encoding="utf-8"))
    rows = [
        {"group": part["group"], "end": [], **row}
        for part in table["groups"]
        for row in part["examples"]
    ]
    return rows, table["more"]


def example_list(home: Path) -> tuple[dict[str, Json], str]:
    """The data and the text of the list."""
    rows, more = example_table(home)
    data: dict[str, Json] = {"folder": str(home / "examples"), "examples": [*rows], "more": [*more]}
    return data, "\n".join(_lines(rows, more))


def _lines(rows: list[dict[str, Any]], more: list[dict[str, Any]]) -> Iterator[str]:
    yield "Run them where `examples` and `inventory` are: in the repository or a copy. Times: on two cores, with no lab running."
    yield "Afterwards: testbed down; testbed lab stop, each with the -i and --as of the example."
    group = ""
    for row in rows:
        if row["group"] != group:
            yield f"\n{(group := row['group'])}"
        yield f"  {row['name']}, about {_about(row['seconds'])}: {row['shows']}"
        yield from (f"    {command}" for command in row["run"])
        if row["end"]:
            yield f"    to end: {'; '.join(row['end'])}"
    yield "\nMore"
    width = max(len(each["file"]) for each in more)
    yield from (f"  {each['file']:<{width}}  {each['shows']}" for each in more)


def _about(seconds: float) -> str:
    return f"{seconds:g} s" if seconds < 60 else f"{seconds / 60:.2g} min"
