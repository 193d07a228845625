"""Checkpoints of one rank: written whole or not at all, the newest few kept."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

KEPT = 3  # ranks of a killed job are at most one checkpoint apart; one more, should the newest not have reached the disk


class Checkpoints:
    """The checkpoint files of one rank in `directory`: `checkpoint-<rank>-<iteration>.pt`."""

    def __init__(self, directory: Path, rank: int, torch: Any) -> None:
        self._directory, self._rank, self._torch = directory, rank, torch

    def kept(self) -> list[int]:
        """Return the iterations there is a checkpoint of, oldest first."""
        names = (path.stem.split("-") for path in self._directory.glob(f"checkpoint-{self._rank}-*.pt"))
        return sorted(int(name[2]) for name in names if len(name) == 3 and name[2].isdigit())

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
            self.path(old).unlink()
        return path

    def read(self, iteration: int, same: dict[str, Any]) -> dict[str, Any]:
        """Return the state of `iteration`. Raises ValueError when it was made by another run than `same` describes."""
        path = self.path(iteration)
        state: dict[str, Any] = self._torch.load(path, weights_only=True, map_location="cpu")
        for name, value in same.items():
            if state.get(name) != value:
                raise ValueError(f"{path}: was made with {name} {state.get(name)!r}, this job has {name} {value!r}")
        return state
