"""What the reports of all verbs have in common: frozen values that the command line renders and
`--json` dumps.

Durations are seconds in `*_s` and milliseconds in `*_ms`. `None` means not measured, never zero.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence, Set
from enum import Enum
from pathlib import Path
from typing import TypeAlias, cast

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


def to_json(value: object) -> Json:
    """Turn values, nested dataclasses and collections into what `json.dumps` takes; sets come out
    sorted by their text.
    """
    if value is None or (
        isinstance(value, (bool, int, float, str)) and not isinstance(value, Enum)
    ):
        return value
    if isinstance(value, Enum):
        return to_json(value.value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): to_json(v) for k, v in value.items()}
    if isinstance(value, Set):
        return [to_json(v) for v in sorted(value, key=str)]
    if isinstance(value, Sequence):
        return [to_json(v) for v in value]
    return str(value)


class JsonReport:
    """A result that knows its JSON; `to_json()` adds the derived numbers named in `derived`."""

    __slots__ = ()
    derived: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Json]:
        data = cast(dict[str, Json], to_json(self))
        return data | {name: to_json(getattr(self, name)) for name in self.derived}


def path_text(path: Path | str) -> str:
    """A path as the operator would type it: relative to the working directory if below it, `~` for
    the home directory.
    """
    full = Path(path).expanduser().absolute()
    if full.is_relative_to(Path.cwd()):
        return str(full.relative_to(Path.cwd()))
    return f"~/{full.relative_to(Path.home())}" if full.is_relative_to(Path.home()) else str(full)
