"""A report's page as a reader and a program see it."""

from __future__ import annotations

import csv
import json
import math
import sqlite3
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from orchestrator.telemetry.names import MEASUREMENTS
from orchestrator.telemetry.tables import Median, Percentile


class Page(HTMLParser):
    """`text`: all that is read; `shown`: value and origin of every number; `numbers`: what the page
    carries for programs.
    """

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html = html
        self.message: list[str] = []
        self.shown: list[tuple[str, str]] = []
        self.missing = 0
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._within: list[str] = []
        self._json = ""
        self.feed(html)
        self.numbers: dict[str, Any] = json.loads(self._json)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.message).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append((tag, given))
        self._within.append(tag)
        if tag == "data":
            self.shown.append((given["value"] or "", given["data-from"] or ""))
        if given.get("class") == "missing":
            self.missing += 1

    def handle_endtag(self, tag: str) -> None:
        if tag in self._within:
            while self._within and self._within.pop() != tag:
                pass

    def handle_data(self, data: str) -> None:
        if self._within and self._within[-1] == "script":
            self._json += data
        elif not self._within or self._within[-1] != "style":
            self.message.append(data)


def from_csv(folders: list[Path]) -> sqlite3.Connection:
    """What `testbed telemetry export` wrote, in a database that knows nothing of this program but
    its two aggregates.
    """
    database = sqlite3.connect(":memory:")
    database.create_aggregate("percentile", 2, Percentile)  # type: ignore[arg-type]
    database.create_aggregate("median", 1, Median)  # type: ignore[arg-type]
    kinds = {"int": int, "float": float, "str": str}
    for name, known in MEASUREMENTS.items():
        columns = ["time_ns", *known.tags, *known.fields]
        database.execute(f'CREATE TABLE "{name}" ({", ".join(columns)})')
        types = [
            int,
            *(str for _ in known.tags),
            *(kinds[field.kind] for field in known.fields.values()),
        ]
        # what a job did is in the exports of the runs that moved its circuits, too
        others: set[tuple[object, ...]] = set()
        for folder in folders:
            path = folder / f"{name}.csv"
            if path.exists():
                with path.open(encoding="utf-8", newline="") as file:
                    rows = csv.reader(file)
                    assert next(rows) == columns
                    marks = ",".join("?" * len(columns))
                    values = [
                        tuple(
                            t(x) if x != "" or t is str else None
                            for t, x in zip(types, row, strict=True)
                        )
                        for row in rows  # type: ignore[operator]
                    ]
                    database.executemany(
                        f'INSERT INTO "{name}" VALUES ({marks})',
                        [row for row in values if row not in others],
                    )
                    others.update(values)
    return database


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, (int, float)):
        return math.isclose(one, other, rel_tol=1e-12)
    return one == other or (one in ("", None) and other in ("", None))


def disagreeing(page: Page, database: sqlite3.Connection) -> list[str]:
    """Ask every question of the page again; the answers that are not what the page says."""
    found = []
    for name, answer in page.numbers["answers"].items():
        if not answer["sql"]:
            continue
        cursor = database.execute(answer["sql"])
        columns, rows = [c[0] for c in cursor.description], cursor.fetchall()
        if columns != answer["columns"] or len(rows) != len(answer["rows"]):
            found.append(f"{name}: {len(rows)} rows of {columns}")
            continue
        pairs = [
            (x, y)
            for mine, theirs in zip(rows, answer["rows"], strict=True)
            for x, y in zip(mine, theirs, strict=True)
        ]
        found += [f"{name}: {x}, the page says {y}" for x, y in pairs if not _same(x, y)]
    return found
