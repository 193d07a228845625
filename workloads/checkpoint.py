"""Checkpoints of one rank: written whole or not at all, the newest few kept."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

KEPT = 3  # ranks of a killed job are at most one checkpoint apart; one more, should the newest not have reached the disk


class Checkpoints:
    """The checkpoint files in `directory`: `checkpoint-<rank>-<iteration>.pt`.

    All ranks hold the same weights, so a rank writes its own but reads anyone's: hosts may have changed ranks since.
    """

    def __init__(self, directory: Path, rank: int, torch: Any) -> None:
        self._directory, self._rank, self._torch = directory, rank, torch

    def kept(self) -> list[int]:
        """Return the iterations there is a checkpoint of, oldest first."""
        return sorted(self._files())

    def forget(self) -> None:
        """Drop every checkpoint: a job that starts anew must not be resumed from what went before."""
        for iteration in self._files():
            for path in self._directory.glob(f"checkpoint-*-{iteration}.pt"):
                path.unlink(missing_ok=True)

    def _files(self) -> dict[int, Path]:
        """Return a file for each iteration, this rank's own where there is one."""
        found = {}
        for path in sorted(self._directory.glob("checkpoint-*-*.pt"), key=lambda path: path == self.path(_iteration(path))):
            if (iteration := _iteration(path)) > 0:
                found[iteration] = path
        return found

    def path(self, iteration: int) -> Path:
        return self._directory / f"checkpoint-{self._rank}-{iteration}.pt"

    def write(self, iteration: int, state: dict[str, Any]) -> Path:
        """Write `state` as that of `iteration`, then drop what is older than the newest few."""
        path = self.path(iteration)
        unfinished = path.with_suffix(".unfinished")
        with unfinished.open("wb") as file:
            self._torch.save(state | {"iteration": iteration}, file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
        for old in self.kept()[:-KEPT]:
            self.path(old).unlink(missing_ok=True)
        return path

    def read(self, iteration: int, same: dict[str, Any]) -> dict[str, Any]:
        """Return the state of `iteration`. Raises ValueError when it was made by another run than `same` describes."""
        path = self._files()[iteration]
        state: dict[str, Any] = self._torch.load(path, weights_only=True, map_location="cpu")
        for name, value in same.items():
            if state.get(name) != value:
                raise ValueError(f"{path}: was made with {name} {state.get(name)!r}, this job has {name} {value!r}")
        return state


def _iteration(path: Path) -> int:
    """Return the iteration in a checkpoint's name, 0 if the name is none of ours."""
    words = path.stem.split("-")
    return int(words[2]) if len(words) == 3 and words[1].isdigit() and words[2].isdigit() else 0
