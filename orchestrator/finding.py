"""What `doctor` found: one line each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Check:
    """One finding. `state`: ok, warn (works without) or fail. `works`: what can still be done in spite of it.

    area: machine, store, inventory or reach; it decides the exit code.
    """

    name: str
    state: str
    detail: str
    fix: str = ""
    works: str = ""
    area: str = "machine"
