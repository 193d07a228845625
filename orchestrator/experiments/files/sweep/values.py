"""The checked content of a campaign file. Frozen values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Kind: TypeAlias = Literal["prediction", "devices", "lab"]
Label: TypeAlias = str | int | float | bool
LAB_RESOURCE = "lab"
"""The Dask resource for emulated labs with hosts: they run one at a time on a machine."""
CHANCE = ("seed", "repeat")
"""Parameters over which intervals are taken: what differs in these alone is the same thing,
measured again.
"""


@dataclass(frozen=True, slots=True)
class Trial:
    """One run of a campaign. key: the hash of everything that its result depends on, but the
    version of the program.

    labels: its parameters as tables show them. task: what `experiments.sweep.trial` does, as JSON:
    kind, parameters, lab, files. resource: the Dask resource of which it takes one, empty: none.
    """

    key: str
    labels: Mapping[str, Label]
    task: Mapping[str, Any]
    resource: str = ""


@dataclass(frozen=True, slots=True)
class Campaign:
    """A checked campaign. trials: without duplicates, in the order of the file. retries: attempts
    after the first that failed. title: in words."""

    name: str
    title: str
    trials: tuple[Trial, ...]
    retries: int = 2

    @property
    def kinds(self) -> dict[str, int]:
        """The kinds of its trials, with how many there are of each."""
        return dict(Counter(trial.task["kind"] for trial in self.trials))

    @property
    def parameters(self) -> tuple[str, ...]:
        """The parameters of the trials, in the order of the file."""
        return tuple(dict.fromkeys(name for trial in self.trials for name in trial.labels))
