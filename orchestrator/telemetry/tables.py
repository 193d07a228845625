"""The journal as tables: SQL over runs in memory, files for other programs."""

from __future__ import annotations

import csv
import math
import re
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

from optics.errors import Usage
from optics.extras import extra
from orchestrator.files.atomic import atomic_write
from orchestrator.measurement import Measurement
from orchestrator.telemetry.lineprotocol import INT_MAX, INT_MIN, Point
from orchestrator.telemetry.names import MEASUREMENTS
from orchestrator.telemetry.reader import Recorded, read_points

_SQL = {"int": "INTEGER", "float": "REAL", "str": "TEXT"}
_DUCK = {"int": "BIGINT", "float": "DOUBLE", "str": "VARCHAR"}
_READING = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
}
TIME = "time_ns"
_AT_ONCE = 10_000


class Percentile:
    """percentile(x, p), nearest rank, as in InfluxQL: the value that p percent of all values do not
    exceed.
    """

    def __init__(self) -> None:
        self.values: list[float] = []
        self.share = 50.0

    def step(self, value: float | None, share: float) -> None:
        if value is not None:
            self.values.append(value)
            self.share = share

    def finalize(self) -> float | None:
        # InfluxDB: floor(n * p / 100 + 0.5) - 1, no value when that is out of range
        at = math.floor(len(self.values) * self.share / 100 + 0.5) - 1
        return sorted(self.values)[at] if 0 <= at < len(self.values) else None


class Median(Percentile):
    """median(x), the mean of the two middle values if their number is even."""

    def step(self, value: float | None, share: float = 50.0) -> None:
        super().step(value, share)

    def finalize(self) -> float | None:
        ranked, half = sorted(self.values), len(self.values) // 2
        if not ranked:
            return None
        return ranked[half] if len(ranked) % 2 else (ranked[half - 1] + ranked[half]) / 2


def columns(known: Measurement) -> tuple[str, ...]:
    """The columns of a measurement's table: time (wall ns), tags, fields."""
    return (TIME, *known.tags, *known.fields)


def query(
    runs: Sequence[Recorded], sql: str, trouble: list[str] | None = None
) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """Run one SELECT over the journals of these runs, a table per measurement; return the column
    names and rows.

    Only measurements named in the text are read. Raises: Usage - the SQL is wrong, or does more
    than read.
    """
    tokens = set(re.findall(r"\w+", sql))
    wanted = tuple(name for name in MEASUREMENTS if name in tokens)
    with open_tables(runs, wanted, trouble) as database:
        database.set_authorizer(
            lambda action, *_: sqlite3.SQLITE_OK if action in _READING else sqlite3.SQLITE_DENY
        )
        try:
            return answer(database, sql)
        except (sqlite3.Error, sqlite3.Warning, OverflowError) as error:
            hint = f"the tables are {', '.join(MEASUREMENTS)}; docs/reference/telemetry.md lists their columns"
            raise Usage(f"the SQL is wrong: {error}", hint=hint) from None


def answer(database: sqlite3.Connection, sql: str) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """The column names and rows of one SELECT. Raises: Usage - it is none; as sqlite3.

    It is carried out in a thread: signals, of Ctrl-C and of --timeout, are handled between
    statements of Python, and one statement of SQL may take forever.
    """
    found: list[tuple[tuple[str, ...], list[tuple[Any, ...]]]] = []
    errors: list[Exception] = []
    over, ended = Event(), Event()

    def work() -> None:
        try:
            if not over.is_set():
                cursor = database.execute(sql)
                if cursor.description is None:
                    raise Usage("the SQL is not a SELECT")
                found.append((tuple(column[0] for column in cursor.description), cursor.fetchall()))
        except Exception as error:
            errors.append(error)
        finally:
            ended.set()

    thread = Thread(target=work, daemon=True)
    try:  # a signal may come as soon as the thread runs, within `start`
        thread.start()
        ended.wait()
    finally:
        over.set()
        # an interrupt before the statement has begun has no effect
        while thread.is_alive() and not ended.is_set():
            database.interrupt()
            ended.wait(0.05)
    if errors:
        raise errors[0]
    return found[0]


@contextmanager
def open_tables(
    runs: Sequence[Recorded], wanted: Sequence[str], trouble: list[str] | None = None
) -> Iterator[sqlite3.Connection]:
    """An in-memory database with a table per measurement; those in `wanted` are filled with the
    points of these runs.
    """
    database = sqlite3.connect(":memory:", check_same_thread=False)
    try:
        database.create_aggregate("percentile", 2, Percentile)  # type: ignore[arg-type]
        database.create_aggregate("median", 1, Median)  # type: ignore[arg-type]
        for known in MEASUREMENTS.values():
            types = [f'"{TIME}" INTEGER', *(f'"{tag}" TEXT' for tag in known.tags)]
            types += [f'"{name}" {_SQL[field.kind]}' for name, field in known.fields.items()]
            database.execute(f'CREATE TABLE "{known.name}" ({", ".join(types)})')
        for run in runs:
            _fill(database, wanted, run.read(wanted, trouble))
        yield database
    finally:
        # whoever is interrupted while he interrupts a statement leaves it running, and closing
        # waits for it
        database.interrupt()
        database.close()


def fill_tables(
    database: sqlite3.Connection,
    run_dir: Path,
    wanted: Sequence[str],
    trouble: list[str] | None = None,
    near: Collection[tuple[int, int]] | None = None,
) -> None:
    """Fill tables of a database of `open_tables` with a journal's points of these measurements,
    `near` as in `read_points`.
    """
    _fill(database, wanted, read_points(run_dir, wanted, trouble, near))


def _fill(database: sqlite3.Connection, wanted: Sequence[str], points: Iterable[Point]) -> None:
    if not wanted:
        return
    rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in wanted}
    for point in points:
        if INT_MIN <= point.time_ns <= INT_MAX:
            found = rows[point.measurement]
            found.append(_row(point, MEASUREMENTS[point.measurement]))
            if len(found) >= _AT_ONCE:
                _insert(database, point.measurement, found)
    for name, found in rows.items():
        _insert(database, name, found)


def _insert(database: sqlite3.Connection, name: str, rows: list[tuple[Any, ...]]) -> None:
    marks = ", ".join("?" * len(columns(MEASUREMENTS[name])))
    database.executemany(f'INSERT INTO "{name}" VALUES ({marks})', rows)
    rows.clear()


def _rows(
    run: Recorded, known: Measurement, trouble: list[str] | None
) -> Iterator[tuple[Any, ...]]:
    for point in run.read((known.name,), trouble):
        if INT_MIN <= point.time_ns <= INT_MAX:
            yield _row(point, known)


def _row(point: Point, known: Measurement) -> tuple[Any, ...]:
    return (
        point.time_ns,
        *(point.tags.get(t) for t in known.tags),
        *(point.fields.get(f) for f in known.fields),
    )


def export_tables(
    runs: Sequence[Recorded], folder: Path, kind: str, trouble: list[str] | None = None
) -> dict[Path, int]:
    """Write one file per measurement that has points; return the files with their numbers of rows.

    kind: csv, or parquet (needs the package duckdb). Raises: Missing - it is not installed. OSError
    - the folder cannot be written.
    """
    convert = _parquet() if kind == "parquet" else None
    folder.mkdir(parents=True, exist_ok=True)
    made: dict[Path, int] = {}
    for known in MEASUREMENTS.values():
        final = folder / f"{known.name}.{kind}"
        with suppress(_Nothing), atomic_write(final) as fresh:
            plain = fresh.with_suffix(".csv") if convert is not None else fresh
            try:
                made[final] = _csv(
                    plain, known, (row for run in runs for row in _rows(run, known, trouble))
                )
                if convert is not None:
                    convert(known, plain, fresh)
            finally:
                if plain != fresh:
                    plain.unlink(missing_ok=True)
    return made


class _Nothing(Exception):
    """A measurement has no points, so no file is written for it."""


def _csv(path: Path, known: Measurement, rows: Iterable[tuple[Any, ...]]) -> int:
    """Write rows and return their number. Raises: _Nothing - there are none."""
    count = 0
    with path.open("w", encoding="utf-8", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(columns(known))
        for row in rows:
            out.writerow(row)
            count += 1
    if not count:
        raise _Nothing
    return count


def _parquet() -> Callable[[Measurement, Path, Path], None]:
    with extra("analysis", "Parquet"):
        import duckdb

    def convert(known: Measurement, plain: Path, final: Path) -> None:
        types = (
            {TIME: "BIGINT"}
            | dict.fromkeys(known.tags, "VARCHAR")
            | {n: _DUCK[f.kind] for n, f in known.fields.items()}
        )
        with duckdb.connect(":memory:") as database:
            table = database.read_csv(
                str(plain), header=True, columns=types, quotechar='"', escapechar='"', sep=","
            )
            try:
                table.write_parquet(str(final), compression="zstd")
            except duckdb.IOException as error:
                raise OSError(str(error)) from error

    return convert
