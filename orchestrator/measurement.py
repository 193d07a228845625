"""What a measurement is: its tags, its fields and their units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["int", "float", "str"]

COMMON_TAGS = ("testbed", "run")
"""Tags the journal adds to every point: the lab's name and the run's id."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field: its type never changes, because the first write fixes it in InfluxDB
    permanently.
    """

    kind: Kind
    unit: str
    what: str


@dataclass(frozen=True, slots=True)
class Measurement:
    """One table. `tags` are all present in every point; `events` are flushed to the file at once,
    samples are buffered.
    """

    name: str
    what: str
    tags: tuple[str, ...]
    fields: Mapping[str, Field]
    rate: str
    events: bool = False
