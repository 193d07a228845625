"""What of SONiC is no matter of light: tables as its tools print them, its Redis databases, JSON
patches.
"""

from __future__ import annotations

import fnmatch
import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from emulators.optics.light import SPREAD
from emulators.optics.plant import Plant

Row: TypeAlias = dict[str, str]
# the one point at which losses are published here
FREQUENCY_THZ, TEMPERATURE_C = "193.100", "25.00"
_LOSS = "OCS_FACTORY_INSERTION_LOSS_TABLE"


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table as SONiC's tools print one: titles, a rule, rows; two blanks between columns
    (CODE: two lines of head).
    """
    body = [tuple(row) for row in rows]
    widths = [
        max([len(title) + 2, *(len(row[i]) for row in body)]) for i, title in enumerate(titles)
    ]
    lines = [tuple(titles), tuple("-" * width for width in widths), *body]
    return "".join(
        "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() + "\n"
        for line in lines
    )


@dataclass(frozen=True, slots=True)
class Databases:
    """CONFIG_DB and STATE_DB by key. The table of losses has a row per path and is made when asked
    for.
    """

    config: Mapping[str, Row]
    state: Mapping[str, Row]
    plant: Plant

    def keys(self, database: str, pattern: str) -> list[str]:
        """Return the keys that match a Redis pattern."""
        if database == "CONFIG_DB":
            return [key for key in self.config if fnmatch.fnmatchcase(key, pattern)]
        losses = (
            f"{_LOSS}|{a}-{b}|{FREQUENCY_THZ}|{TEMPERATURE_C}"
            for a in self.plant.ingress
            for b in self.plant.egress
        )
        return [key for key in (*self.state, *losses) if fnmatch.fnmatchcase(key, pattern)]

    def row(self, database: str, key: str) -> Row:
        """Return the fields of a key, none if there is no such key."""
        if database == "CONFIG_DB":
            return self.config.get(key, {})
        return self._loss(key) if key.startswith(f"{_LOSS}|") else self.state.get(key, {})

    def _loss(self, key: str) -> Row:
        """What the factory measured of a path: the loss it is made with, without the repeatability
        of each making.
        """
        _, name, *where = key.split("|")
        ingress, _, egress = name.partition("-")
        if (
            where != [FREQUENCY_THZ, TEMPERATURE_C]
            or ingress not in self.plant.ingress
            or egress not in self.plant.egress
        ):
            return {}
        return {
            "loss_dB": f"{factory_loss_db(self.plant, ingress, egress):.2f}",
            "accuracy_dB": "0.10",
        }


def database_command(
    databases: Databases, tokens: Sequence[str], write: Callable[[str, Row | None], bool]
) -> str:
    """Return what `sonic-db-cli DATABASE COMMAND ...` prints; `write` takes a key and its new
    fields, None to delete it.
    """
    match tokens:
        case [("CONFIG_DB" | "STATE_DB") as name, verb, *rest]:
            match verb.lower(), rest:
                case "ping", []:
                    return "PONG\n"
                case "keys", [pattern]:
                    return "".join(f"{key}\n" for key in databases.keys(name, pattern))
                case "hgetall", [key]:
                    # CODE: printed as Python prints a dictionary
                    return f"{databases.row(name, key)}\n"
                case "hget", [key, field]:
                    return f"{databases.row(name, key).get(field, '')}\n"
                case "exists", [key]:
                    return f"{int(bool(databases.row(name, key)))}\n"
                case (("hset" | "hmset"), [key, *pairs]) if (
                    pairs and len(pairs) % 2 == 0 and name == "CONFIG_DB"
                ):
                    new = dict(zip(pairs[::2], pairs[1::2], strict=True))
                    added = len(set(new) - set(databases.row(name, key)))
                    return f"{added}\n" if write(key, new) else "0\n"
                case "del", [key] if name == "CONFIG_DB":
                    existing = bool(databases.row(name, key))
                    return f"{int(existing and write(key, None))}\n"
            return (
                f"ERR unknown command or wrong number of arguments: {' '.join(tokens[1:])[:60]}\n"
            )
        case [name, *_]:
            return f"Invalid database name input: '{name[:40]}'\n"
    return "usage: sonic-db-cli [-h] [-s] [-n NAMESPACE] db_or_op [cmd [cmd ...]]\n"


def json_patch(text: str) -> tuple[list[str], list[str]]:
    """Return the cross-connects an RFC 6902 patch adds and removes. Raises ValueError: anything
    else.
    """
    try:
        operations = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(operations, list):
        raise ValueError("a list of operations is expected")
    add: dict[str, Row] = {}
    remove: list[str] = []
    for entry in operations:
        if not isinstance(entry, dict) or not isinstance(entry.get("path"), str):
            raise ValueError(f"not an operation: {str(entry)[:60]}")
        match entry.get("op"), entry["path"].split("/"), entry.get("value"):
            case "add", [
                "",
                "OCS_CROSS_CONNECT",
                name,
                ("a_side" | "b_side") as field,
            ], str() as value:
                add.setdefault(name, {})[field] = value
            case "add", ["", "OCS_CROSS_CONNECT", name], {
                "a_side": str() as a,
                "b_side": str() as b,
                **rest,
            } if not rest:
                add[name] = {"a_side": a, "b_side": b}
            case "remove", ["", "OCS_CROSS_CONNECT", name], _:
                remove.append(name)
            case _:
                raise ValueError(f"not supported: {str(entry)[:60]}")
    for name, row in add.items():
        if f"{row.get('a_side')}-{row.get('b_side')}" != name:
            raise ValueError(
                f"/OCS_CROSS_CONNECT/{name}: a_side and b_side do not agree with the key"
            )
    return list(add), remove


def factory_loss_db(plant: Plant, ingress: str, egress: str) -> float:
    """Return the loss of a path (dB) as the plant draws it first, before the small change of each
    making.
    """
    own = random.Random(f"{plant.seed}/{plant.name}/{ingress}>{egress}")
    drawn = own.gauss(plant.mean_loss_db, SPREAD * (plant.max_loss_db - plant.mean_loss_db))
    return min(plant.max_loss_db, max(plant.mean_loss_db / 3, drawn))
