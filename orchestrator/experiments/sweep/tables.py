"""The results of a campaign as one Parquet file, and a DuckDB database with views of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from optics.errors import Missing, first_line
from optics.extras import extra
from orchestrator.experiments.files.sweep.values import CHANCE
from orchestrator.experiments.sweep.record import DATABASE, PARQUET, CampaignRecord
from orchestrator.files.atomic import atomic_write

OWN = {
    "key": "VARCHAR",
    "state": "VARCHAR",
    "attempts": "BIGINT",
    "error": "VARCHAR",
    "worker": "VARCHAR",
    "began": "DOUBLE",
    "seconds": "DOUBLE",
    "version": "VARCHAR",
}
"""Columns beside parameters and values. seconds: of the last attempt; began: Unix time (s)."""


def write_tables(record: CampaignRecord) -> None:
    """Write the Parquet file and the database, each as a whole.

    Views: `trials`, all of them; `summary`, a row for each combination of parameters but seed and
    repeat, with the number of its trials that are done, and median, least and largest of each
    value. Raises: Missing - duckdb is not installed, or the folder cannot be written.
    """
    with extra("sweep", "tables of a campaign"):
        import duckdb
    results = list(record.results())
    parameters = {
        name: _kind([each["labels"].get(name) for each in results]) for name in record.parameters
    }
    named = {
        value: _free(value, {*OWN, *parameters}) for each in results for value in each["values"]
    }
    columns = {
        **OWN,
        **{_free(name, OWN): kind for name, kind in parameters.items()},
        **dict.fromkeys(named.values(), "DOUBLE"),
    }
    final = record.folder / PARQUET
    try:
        with atomic_write(final) as fresh:
            lines = fresh.with_suffix(".jsonl")
            try:
                lines.write_text(
                    "".join(json.dumps(_row(each, named)) + "\n" for each in results),
                    encoding="utf-8",
                )
                with duckdb.connect(":memory:") as database:
                    database.read_json(
                        str(lines), format="newline_delimited", columns=columns
                    ).write_parquet(str(fresh), compression="zstd")
            finally:
                lines.unlink(missing_ok=True)
        with atomic_write(record.folder / DATABASE) as fresh:
            fresh.unlink()
            # for older shells
            with duckdb.connect(
                str(fresh), config={"storage_compatibility_version": "v1.1.0"}
            ) as database:
                place = str(final).replace("'", "''")
                database.execute(f"CREATE VIEW trials AS SELECT * FROM read_parquet('{place}')")
                database.execute(
                    _summary(
                        [_free(name, OWN) for name in parameters if name not in CHANCE],
                        list(named.values()),
                    )
                )
    except (OSError, duckdb.Error) as error:
        raise Missing(
            f"{final}: {first_line(error)}",
            hint="free some space, then testbed experiment sweep FILE --resume",
        ) from error


def _row(result: Mapping[str, Any], named: Mapping[str, str]) -> dict[str, Any]:
    own = {name: result.get(name) for name in OWN} | {"error": (result["errors"] or [None])[-1]}
    labels = {_free(name, OWN): value for name, value in result["labels"].items()}
    return own | labels | {named[name]: value for name, value in result["values"].items()}


def _free(name: str, taken: Mapping[str, str] | set[str]) -> str:
    return f"measured_{name}" if name in taken else name


def _kind(values: Sequence[object]) -> str:
    """The type of a parameter's column."""
    kinds = {type(value) for value in values if value is not None}
    if kinds == {bool}:
        return "BOOLEAN"
    if kinds == {int}:
        return "BIGINT"
    return "DOUBLE" if kinds and kinds <= {int, float} else "VARCHAR"


def _summary(parameters: Sequence[str], values: Sequence[str]) -> str:
    def quoted(name: str) -> str:
        return '"' + name.replace('"', '""') + '"'

    figures = [
        f"{function}({quoted(value)}) AS {quoted(f'{value}{end}')}"
        for value in values
        for function, end in (("median", ""), ("min", " least"), ("max", " largest"))
    ]
    wanted = ", ".join([*map(quoted, parameters), "count(*) AS trials", *figures])
    grouped = f" GROUP BY {', '.join(map(quoted, parameters))}" if parameters else ""
    return f"CREATE VIEW summary AS SELECT {wanted} FROM trials WHERE state = 'done'{grouped}"
