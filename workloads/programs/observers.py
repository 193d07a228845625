"""What follows a training from beside its ranks: a part of an extension, found by the environment
and notified of every step.

TESTBED_OBSERVER_NAME has words for `observer` of the package extensions.NAME.rank, which is copied
to the hosts as this one is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .program import Job

PREFIX = "TESTBED_OBSERVER_"


@dataclass(frozen=True, slots=True)
class Training:
    """What a rank trains. same: what names its weights, as its checkpoints have it. take: takes
    over the content of a checkpoint, which this rank wrote or another, and returns the iteration;
    raises ValueError: it is of another training.
    """

    job: Job
    parameters: Sequence[Any]
    momentum: Sequence[Any]
    lr: float
    same: Mapping[str, Any]
    take: Callable[[bytes, bool], int]


class Observer:
    """One of a rank. A method that it does not need does nothing."""

    alone = False
    """Whether ranks begin from its state, and look for none of their own."""

    def restore(self, training: Training, after: int) -> int:
        """Give all ranks a state of a later iteration than `after`, and return that iteration; 0:
        it has none.

        Raises: ValueError, OSError - it has none, and ranks begin from it alone.
        """
        return 0

    def begin(self, training: Training, iteration: int) -> None:
        """The state is that after `iteration`, from which the job goes on."""

    def see(self, bucket: Any, rings: Any) -> None:
        """A bucket of gradients is about to be summed over these rings."""

    def before_step(self) -> None:
        """The state is about to change."""

    def after_step(self, iteration: int) -> None:
        """The state is that after `iteration`."""

    def written(self, iteration: int, path: Path) -> None:
        """This rank has written the checkpoint of `iteration`; with `--checkpoint async` a thread
        has."""

    def end(self) -> None:
        """No iteration follows."""


def observers(environ: Mapping[str, str]) -> list[Observer]:
    """Those that the environment names. Raises: ValueError - this host has no such extension, or it
    cannot read its words.
    """
    found = []
    for variable in sorted(name for name in environ if name.startswith(PREFIX)):
        try:
            part = import_module(f"extensions.{variable.removeprefix(PREFIX).lower()}.rank")
        except ModuleNotFoundError as error:
            raise ValueError(f"{variable}: {error}") from error
        found.append(part.observer(environ[variable]))
    return found
