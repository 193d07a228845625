"""Insertion losses of single paths through devices: losses.csv of an inventory, and the tables that
factories deliver. Pure.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Container, Iterator, Mapping
from typing import Any, TypeAlias

from optics import BadFile, Db, DeviceName
from optics.errors import first_line
from optics.plain import did_you_mean

LOSSES = "losses.csv"
"""An inventory need not have it."""
HEAD = ("device", "ingress", "egress", "loss_db")
TABLE = "OCS_FACTORY_INSERTION_LOSS"
"""Of SONiC for optical circuit switches (github.com/sonic-net/SONiC/pull/2269), with or without
`_TABLE`: a row per path, frequency and temperature, `1A-1B|193.100|25.00`, with `loss_dB`.
"""
MOST_DB = 60.0
Losses: TypeAlias = Mapping[tuple[DeviceName, str, str], Db]


def read_losses(
    text: str, name: str, devices: Container[DeviceName]
) -> dict[tuple[str, str, str], Db]:
    """The file of an inventory. Raises: BadFile - all problems of it."""
    found: dict[tuple[str, str, str], Db] = {}
    problems: list[str] = []
    for line, row in _rows(text, name, HEAD, problems):
        device, ingress, egress = row["device"], row["ingress"], row["egress"]
        if device not in devices:
            problems.append(f"{name}:{line}: device {device} is not in the lab")
        _put(found, (device, ingress, egress), row["loss_db"], f"{name}:{line}", problems)
    if problems:
        raise BadFile(
            problems,
            hint="correct the file, or import it again with `testbed devices losses FILE --device DEVICE`",
        )
    return found


def losses_text(losses: Losses) -> str:
    """The text of such a file."""
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow(HEAD)
    rows.writerows((*path, f"{db:g}") for path, db in sorted(losses.items()))
    return out.getvalue()


def read_factory(text: str, name: str) -> dict[tuple[str, str], Db]:
    """The losses of a device's paths by ingress and egress, from a factory's table: SONiC's JSON, or
    CSV with the columns ingress, egress, loss_db. Of several frequencies and temperatures the
    greatest. Raises: BadFile - all problems of it, or it has no path.
    """
    found: dict[tuple[str, str], Db] = {}
    problems: list[str] = []
    if text.lstrip().startswith("{"):
        for path, db, where in _sonic(text, name, problems):
            once: dict[tuple[str, str], Db] = {}
            _put(once, path, db, where, problems)
            found |= {path: max(value, found.get(path, value)) for path, value in once.items()}
    else:
        for line, row in _rows(text, name, HEAD[1:], problems):
            _put(found, (row["ingress"], row["egress"]), row["loss_db"], f"{name}:{line}", problems)
    if not found and not problems:
        problems.append(f"{name}: no path is in it")
    if problems:
        hint = f"JSON with the table {TABLE}, or CSV with the columns {', '.join(HEAD[1:])}"
        raise BadFile(problems, hint=f"{hint}; nothing was changed")
    return found


def _sonic(text: str, name: str, problems: list[str]) -> Iterator[tuple[tuple[str, str], Any, str]]:
    """The rows of a dump of STATE_DB: keys with or without the table's name before them, fields as
    they are or below `value`.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        problems.append(f"{name}: no JSON: {first_line(error)}")
        return
    rows: dict[str, Any] = {}
    for key, value in data.items():
        table, bar, rest = key.partition("|")
        if table.removesuffix("_TABLE") == TABLE:
            rows |= {rest: value} if bar else value if isinstance(value, dict) else {"": value}
    for key, fields in rows.items():
        where = f"{name}: {TABLE}|{key}"
        if isinstance(fields, dict) and isinstance(fields.get("value"), dict):
            fields = fields["value"]
        ingress, dash, egress = key.partition("|")[0].partition("-")
        if not (isinstance(fields, dict) and dash):
            problems.append(f"{where}: a path such as 1A-1B with loss_dB is expected")
            continue
        yield (ingress, egress), fields.get("loss_dB"), where


def _rows(
    text: str, name: str, columns: tuple[str, ...], problems: list[str]
) -> Iterator[tuple[int, dict[str, str]]]:
    rows = csv.DictReader(io.StringIO(text.removeprefix("\ufeff")), strict=True)
    try:
        if missing := [column for column in columns if column not in (rows.fieldnames or ())]:
            problems.append(
                f"{name}:1: column {missing[0]} is missing{did_you_mean(missing[0], rows.fieldnames or ())}"
            )
            return
        for row in rows:
            yield rows.line_num, {column: (row[column] or "").strip() for column in columns}
    except csv.Error as error:
        problems.append(f"{name}:{rows.line_num}: {error}")


def _put(
    found: dict[Any, Db], path: tuple[str, ...], text: object, where: str, problems: list[str]
) -> None:
    try:
        db = float(str(text))
    except ValueError:
        db = math.nan
    if not 0 <= db <= MOST_DB:
        problems.append(
            f"{where}: a loss of 0 to {MOST_DB:g} dB is expected, not {str(text)[:40]!r}"
        )
    elif not all(path) or not all(part.isprintable() and len(part) <= 64 for part in path):
        problems.append(f"{where}: a port has no name, or one that is not printable")
    elif path in found:
        problems.append(f"{where}: {' -> '.join(path)} is given twice")
    else:
        found[path] = db
