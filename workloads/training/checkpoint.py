"""Checkpoints of one rank: written whole or not at all, at the rate that its storage is said to
have, the newest few kept.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

# ranks of a killed job are at most one checkpoint apart; one more, should the newest not have
# reached the disk
KEPT = 3
PIECE = 1 << 16  # bytes that are written at once
KEPT_BEHIND = KEPT + 1  # where a thread writes them a rank may be one further behind


class Checkpoints:
    """The checkpoint files in `directory`: `checkpoint-<rank>-<iteration>.pt`.

    All ranks hold the same weights, so a rank writes its own but reads anyone's: hosts may have
    changed ranks since.
    """

    def __init__(
        self,
        directory: Path,
        rank: int,
        torch: Any,
        kept: int = KEPT,
        storage_mbps: float = 0.0,
        written: Callable[[int, Path], object] = lambda iteration, path: None,
    ) -> None:
        """storage_mbps: the rate (Mb/s) at which they are written; 0: as fast as the storage takes
        them. written: called with each once it is there.
        """
        self._directory, self._rank, self._torch, self._kept, self._mbps = (
            directory,
            rank,
            torch,
            kept,
            storage_mbps,
        )
        self._written = written

    def kept(self) -> list[int]:
        """Return the iterations there is a checkpoint of, oldest first."""
        return sorted(self._files())

    def forget(self, beyond: int = 0) -> None:
        """Drop every checkpoint of an iteration `beyond` this one: a job that starts again, or
        further back, must not be resumed from what went before.
        """
        for iteration in self._files():
            for path in self.of(iteration) if iteration > beyond else ():
                path.unlink(missing_ok=True)
        if not beyond:
            self._given.unlink(missing_ok=True)

    def of(self, iteration: int) -> list[Path]:
        """The checkpoints of `iteration`, whichever rank wrote them; this rank's own first."""
        found = self._directory.glob(f"checkpoint-*-{iteration}.pt")
        return sorted(found, key=lambda path: (path != self.path(iteration), path))

    @property
    def _given(self) -> Path:
        return self._directory / f"given-{self._rank}"

    def note_given(self) -> None:
        """Keep in mind that another rank gave this one its state: it keeps none of before."""
        self._given.touch()

    @property
    def given(self) -> bool:
        return self._given.exists()

    def own(self, iteration: int) -> bool:
        """Whether the checkpoint of `iteration` that is read is one this rank wrote."""
        return self.path(iteration).exists()

    def _files(self) -> dict[int, Path]:
        """Return a file for each iteration, this rank's own where there is one."""
        found = {}
        for path in sorted(
            self._directory.glob("checkpoint-*-*.pt"),
            key=lambda path: path == self.path(_iteration(path)),
        ):
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
            self._torch.save(
                state | {"iteration": iteration},
                Paced(file.write, self._mbps) if self._mbps else file,
            )
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
        for old in self.kept()[: -self._kept]:
            self.path(old).unlink(missing_ok=True)
        self._written(iteration, path)
        return path

    def read(self, iteration: int) -> dict[str, Any]:
        """Return the state of `iteration`, as it was written.

        torch.save writes a checksum (CRC-32) with every tensor and with what is between them;
        torch.load does not look at it. Raises: Damaged - it is not as it was written.
        """
        path = self._files()[iteration]
        try:
            check_whole(path)
            state: dict[str, Any] = self._torch.load(path, weights_only=True, map_location="cpu")
            if state["iteration"] != iteration:
                raise ValueError(f"it is of iteration {state['iteration']}")
        # of anything that damage can look like to a reader of zip files, and to torch
        except Exception as error:
            raise Damaged(
                f"{path}: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
            ) from error
        return state

    def fits(
        self,
        iteration: int,
        state: Mapping[str, Any],
        same: Mapping[str, Any],
        later: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Raises: ValueError - the state was made by another run than `same` describes. later: what
        holds where it does not say.
        """
        for name, value in same.items():
            if (was := state.get(name, later.get(name))) != value:
                raise ValueError(
                    f"{self._files()[iteration]}: was made with {name} {was!r}, this job has {name} {value!r}"
                )


def check_whole(path: Path) -> None:
    """Raises: ValueError, or anything else that a reader of zip files may - a checkpoint is not as
    it was written.
    """
    import zipfile

    with zipfile.ZipFile(path) as file:
        if spoilt := file.testzip():
            raise ValueError(f"{spoilt} has another checksum than when it was written")


class Paced:
    """A file that is written at a rate, by a token bucket of PIECE bytes: time in which nothing is
    written is not made up for.
    """

    def __init__(self, into: Callable[[memoryview], object], mbps: float) -> None:
        """into: takes all of a piece, or raises."""
        self._into, self._rate = into, mbps * 1e6 / 8
        self._due_s = time.monotonic()

    def write(self, data: Any) -> int:
        """As of a file; it returns when these bytes would be there."""
        memory = memoryview(data).cast("B")
        for at in range(0, len(memory), PIECE):
            piece = memory[at : at + PIECE]
            self._into(piece)
            self._due_s = (
                max(self._due_s, time.monotonic() - PIECE / self._rate) + len(piece) / self._rate
            )
            time.sleep(max(0.0, self._due_s - time.monotonic()))
        return len(memory)

    def flush(self) -> None:
        """Nothing waits here."""


class Damaged(Exception):
    """A checkpoint is not as it was written."""


class Writer:
    """Writes checkpoints in a thread, one at a time, while the job trains on; one that is still
    being written is waited for.
    """

    def __init__(self, checkpoints: Checkpoints) -> None:
        self._checkpoints = checkpoints
        self._thread: threading.Thread | None = None
        self._error: OSError | RuntimeError | None = None

    def write(self, iteration: int, state: dict[str, Any]) -> Path:
        """Copy `state`, a dictionary of lists of tensors and other values, and have it written;
        return where.

        Raises: OSError, RuntimeError - the one before could not be written.
        """
        self.finish()
        copy = {
            name: [each.clone() for each in value] if isinstance(value, list) else value
            for name, value in state.items()
        }
        self._thread = threading.Thread(
            target=self._write, args=(iteration, copy), name="checkpoint", daemon=True
        )
        self._thread.start()
        return self._checkpoints.path(iteration)

    def _write(self, iteration: int, state: dict[str, Any]) -> None:
        try:
            self._checkpoints.write(iteration, state)
        # torch's for a disk that is full is a RuntimeError
        except (OSError, RuntimeError) as error:
            self._error = error

    def finish(self, within_s: float | None = None) -> None:
        """Wait, for so long at most, until what was given is on disk. Raises: OSError, RuntimeError
        - it could not be written.
        """
        if self._thread is not None:
            self._thread.join(within_s)
        error, self._error = self._error, None
        if error is not None:
            raise error


def _iteration(path: Path) -> int:
    """Return the iteration in a checkpoint's name, 0 if the name is none of ours."""
    tokens = path.stem.split("-")
    return int(tokens[2]) if len(tokens) == 3 and tokens[1].isdigit() and tokens[2].isdigit() else 0
