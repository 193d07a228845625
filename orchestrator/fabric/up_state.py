"""What is up of a plan, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class SlotsMade:
    """How far a plan's schedule is: `slot` is the one that is up, `made` are those that were made and verified."""

    slot: int
    made: tuple[int, ...] = ()

    @classmethod
    def of_json(cls, data: Mapping[str, Any]) -> SlotsMade:
        """The slots that `data` (`to_json` of them) describes."""
        return cls(data["slot"], tuple(data["made"]))
