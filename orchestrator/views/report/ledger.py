"""The numbers of a report: each is a cell in the result of one SQL query over the journals' tables,
and keeps a reference to it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from optics.plain import scaled_text, seconds_text
from orchestrator.results import Json, to_json
from orchestrator.telemetry.tables import fill_tables, open_tables

MISSING = "not recorded"
_SHORT = 16
"""A number with its unit that is no longer than this stays on one line."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One number (or word) of a result. place: `answer/row/column`."""

    value: Any
    place: str
    unit: str = ""

    def __bool__(self) -> bool:
        return self.value is not None

    def __html__(self) -> str:
        return self.show()

    def show(self, scale: float = 1.0, message: str = "") -> Markup:
        """As the page shows it, or in these words; device time that runs faster than real time is
        given as both.
        """
        if self.value is None:
            return missing_mark(MISSING)
        text = message or self.text(scale)
        if len(text) < _SHORT and isinstance(self.value, (int, float)):
            text = text.replace(" ", "\N{NO-BREAK SPACE}")
        return Markup('<data value="{}" data-from="{}">{}</data>').format(
            self.value, self.place, text
        )

    def text(self, scale: float = 1.0) -> str:
        return MISSING if self.value is None else number_text(self.value, self.unit, scale)


def number_text(value: Any, unit: str, scale: float = 1.0) -> str:
    """A value with its unit, for people."""
    if not isinstance(value, (int, float)):
        return str(value)
    if unit == "ms" and value < 0:
        return f"-{number_text(-value, unit, scale)}"
    if unit == "ms":
        return scaled_text(value / 1e3, scale) if scale != 1 else seconds_text(value / 1e3)
    if isinstance(value, int):
        return f"{value:,}".replace(",", " ") + (f" {unit}" if unit else "")
    return f"{value:.4g}" + (f" {unit}" if unit else "")


_UNITS = {"_ms": "ms", "_mbps": "Mb/s", "_db": "dB", "_bytes": "B", "_w": "W", "_j": "J"}


@dataclass(frozen=True, slots=True)
class Answer:
    """A query and its result. Rows of cells; `name` is short and the same in every report."""

    name: str
    what: str
    sql: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    def __len__(self) -> int:
        return len(self.rows)

    def __bool__(self) -> bool:
        return bool(self.rows)

    def cell(self, row: int, column: str) -> Cell:
        unit = next((u for end, u in _UNITS.items() if column.endswith(end)), "")
        return Cell(self.rows[row][self.columns.index(column)], f"{self.name}/{row}/{column}", unit)

    def lines(self) -> Iterator[Mapping[str, Cell]]:
        """Each row as its cells by column."""
        for row in range(len(self.rows)):
            yield {column: self.cell(row, column) for column in self.columns}

    def values(self, column: str) -> list[Any]:
        """The recorded values of a column; missing ones are left out."""
        at = self.columns.index(column)
        return [row[at] for row in self.rows if row[at] is not None]

    def to_json(self) -> dict[str, Json]:
        return {
            "what": self.what,
            "sql": self.sql,
            "columns": list(self.columns),
            "rows": [[to_json(value) for value in row] for row in self.rows],
        }


class Ledger:
    """Runs queries, and keeps every query with its result."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self.database = database
        self.answers: dict[str, Answer] = {}
        self.trouble: list[str] = []
        self._read: set[tuple[Path, str]] = set()

    def query(self, name: str, what: str, sql: str) -> Answer:
        cursor = self.database.execute(sql)
        columns = tuple(column[0] for column in cursor.description)
        answer = self.answers[name] = Answer(
            name, what, sql, columns, tuple(map(tuple, cursor.fetchall()))
        )
        return answer

    def read_more(
        self, run_dir: Path, measurement: str, near: Collection[tuple[int, int]] | None = None
    ) -> None:
        """Read a measurement that is too large to be read for every run, or for all its time; a
        second call does nothing.
        """
        if (run_dir, measurement) in self._read:
            return
        self._read.add((run_dir, measurement))
        trouble: list[str] = []
        fill_tables(self.database, run_dir, (measurement,), trouble, near)
        self.add_trouble(run_dir, trouble)

    def add_trouble(self, run_dir: Path, trouble: Sequence[str]) -> None:
        """Keep the unreadable lines of a run, each once."""
        lines = (f"{run_dir.name}/{line}" for line in trouble)
        self.trouble += [line for line in lines if line not in self.trouble]


@contextmanager
def ledger(run_dirs: Sequence[Path], wanted: Sequence[str]) -> Iterator[Ledger]:
    """A ledger over the journals of these runs; `wanted`: the measurements to read."""
    with open_tables((), wanted) as database:
        book = Ledger(database)
        for run_dir in run_dirs:
            trouble: list[str] = []
            fill_tables(database, run_dir, wanted, trouble)
            book.add_trouble(run_dir, trouble)
        database.execute("CREATE INDEX iteration_by_time ON iteration(run, time_ns)")
        database.execute("CREATE INDEX iteration_by_number ON iteration(run, iter)")
        yield book


def quoted(text: str) -> str:
    """A text as SQL has it."""
    return "'" + text.replace("'", "''") + "'"


def missing_mark(text: str) -> Markup:
    """The placeholder of a number that was not recorded."""
    return Markup('<span class="missing">{}</span>').format(escape(text))
