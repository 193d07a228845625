"""Reads the prices, those that came with the program or the user's own."""

from __future__ import annotations

from pathlib import Path

import planner
from optics import BadFile
from orchestrator.filecheck import check
from orchestrator.filepos import Problems, read_yaml
from planner.cost import Prices


def read_prices(path: Path | None = None) -> Prices:
    """The prices of a file, None: those that came along. Raises: BadFile."""
    given = path or Path(planner.__path__[0]) / "prices.yml"
    try:
        document = read_yaml(given.read_text(encoding="utf-8"), str(given))
    except (OSError, UnicodeDecodeError) as error:
        raise BadFile([f"{given}: {error.strerror if isinstance(error, OSError) else 'not a text file'}"]) from error
    problems = Problems(document)
    found = check(Prices, document.value, problems)
    if found is None:
        raise BadFile(problems.lines(), hint="planner/prices.yml shows the form")
    return found
