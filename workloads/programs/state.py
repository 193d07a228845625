"""What a training job goes on from: weights, momentum, and what a rank has for itself; read at its
start, written as it runs.
"""

from __future__ import annotations

import io
import itertools
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..training.checkpoint import KEPT, KEPT_BEHIND, Checkpoints, Damaged, Writer
from ..transport.accord import common, kept_by_each
from .observers import Observer, Training, observers
from .options import OF_SITES, OPTIONS

if TYPE_CHECKING:
    import argparse

    from ..training.compressors import Compressor
    from .program import Job


class State:
    """The tensors of a rank, in its memory and in its checkpoints.

    Weights are the same on all ranks, and so is momentum if gradients are averaged in every
    iteration. A rank's own are what a compression has left out and, with sync_every or
    site_every, momentum.
    own_lost: the number of ranks that went on without theirs, since their hosts have no checkpoint
    that the same rank wrote; what was left out is then lost, and momentum another rank's. damaged:
    the iteration of the newest checkpoint that was passed over, as it is not as a rank wrote it; 0:
    all were.
    """

    def __init__(
        self,
        job: Job,
        arguments: argparse.Namespace,
        parameters: Sequence[Any],
        momentum: Sequence[Any],
        by: Compressor,
        speed: Sequence[Any] = (),
    ) -> None:
        """speed: of the outer step (see outer.py), the same on all ranks."""
        self._job, self._resume = job, arguments.resume
        directory = Path(os.environ.get("TESTBED_CHECKPOINT_DIR") or job.place.job_dir)
        directory.mkdir(parents=True, exist_ok=True)
        behind = arguments.checkpoint == "async"
        self._checkpoints = Checkpoints(
            directory,
            job.place.rank,
            job.torch,
            KEPT_BEHIND if behind else KEPT,
            job.place.storage_mbps,
            self._written,
        )
        self._writer = Writer(self._checkpoints) if behind else None
        self._same = {
            name: getattr(arguments, name)
            for name in ("model", "hidden", "seed", "compress", "sync_every", *OF_SITES)
        }
        self._alike = {
            "parameters": list(parameters),
            "momentum": list(momentum),
            "common": by.common,
            "speed": list(speed),
        }
        self._own = {"residuals": by.residuals}
        self._later = {each.name: each.default for each in OPTIONS["train"] if each.later}
        self._observers = observers(os.environ)
        self._training = Training(
            job, list(parameters), list(momentum), arguments.lr, self._same, self.take
        )
        self._mine = False  # whether what was taken had this rank's own part
        self._has_own = bool(by.residuals) or arguments.sync_every > 1 or bool(speed)
        self.own_lost = self.damaged = 0

    def restore(self) -> int:
        """Take the newest state that all ranks have, or none; return the iteration it is of.

        Raises: ValueError - they have none in common, all are damaged, or it is of another
        training. OSError - what they begin from alone does not answer.
        """
        if alone := [observer for observer in self._observers if observer.alone]:
            return self._from(alone)
        accord, rank, torch = self._job.accord, self._job.place.rank, self._job.torch
        if not self._resume:
            # no rank can have written one of this run: that takes an iteration, and so all ranks
            self._checkpoints.forget()
        try:
            kept, done, state = self._newest()
        except ValueError:  # on all ranks
            if newer := self._newer(0):
                return newer
            raise
        if newer := self._newer(done):
            return newer
        if self.damaged and not done:
            text = f"all checkpoints are damaged, the newest of iteration {self.damaged}"
            raise ValueError(f"{text}; to start again, launch the job without --resume")
        mine = False
        with torch.no_grad():
            if state is not None:
                self._checkpoints.fits(done, state, self._same, self._later)
                mine = self._checkpoints.own(done)
                _copy(state, self._alike | self._own if mine else self._alike)
            if done and not all(kept):  # a rank has taken the place of one whose host is gone
                source = next(other for other, have in enumerate(kept) if have)
                for tensor in (each for tensors in self._alike.values() for each in tensors):
                    # else it has its own, of which momentum may be another
                    needed = rank == source or not kept[rank]
                    torch.distributed.broadcast(tensor if needed else tensor.clone(), source)
                if not kept[rank]:
                    self._checkpoints.note_given()
        if done and self._has_own:
            self.own_lost = accord.gather("own state", mine).count(False)
        return done

    def _observed(self, observer: Observer, after: int) -> int:
        """As Observer.restore. What this host has of later iterations is of a past that ended. A
        rank may be lost before all have dropped theirs: what has none in common with the others'
        does not count then (kept_by_each).
        """
        if newer := observer.restore(self._training, after):
            self._checkpoints.note_given()
            mine = self._job.accord.gather(f"own state {newer}", self._mine)
            self._checkpoints.forget(newer)
            self.own_lost = mine.count(False) if self._has_own else 0
        return newer

    def _newer(self, after: int) -> int:
        """The first state of a later iteration that an observer has; 0: none has one."""
        found = (self._observed(observer, after) for observer in self._observers)
        return next(filter(None, found), 0)

    def _from(self, alone: Sequence[Observer]) -> int:
        """The newest state that one of these has; each has it for all ranks, or fails on all.
        Raises: as the last that failed, where none has one.
        """
        done, why = 0, None
        for observer in alone:
            try:
                done = self._observed(observer, done) or done
            except (OSError, ValueError) as error:
                print(f"# restore: {error}", file=sys.stderr, flush=True)
                why = error
        if why is not None and not done:
            raise why
        return done

    def _newest(self) -> tuple[list[list[int]], int, dict[str, Any] | None]:
        """The newest iteration that all ranks have undamaged, 0 for none: which ones each has, that
        one, and its state here.
        """
        accord, mine = self._job.accord, self._checkpoints.kept()
        for look in itertools.count():
            found = accord.gather(f"checkpoints {look}", (self._checkpoints.given, mine))
            kept, state, damaged = kept_by_each(found), None, 0
            if not (done := common(kept)):
                break
            if done in mine:
                try:
                    state = self._checkpoints.read(done)
                except Damaged as error:
                    print(
                        f"# checkpoint: damaged, and passed over: {error}",
                        file=sys.stderr,
                        flush=True,
                    )
                    mine.remove(done)
                    damaged = done
            if not any(found := accord.gather(f"damaged {look}", damaged)):
                break
            self.damaged = max(self.damaged, *found)
        return kept, done, state

    def observed(self, iteration: int) -> list[Observer]:
        """What is to be reported of every later iteration."""
        for observer in self._observers:
            observer.begin(self._training, iteration)
        return self._observers

    def _written(self, iteration: int, path: Path) -> None:
        for observer in self._observers:
            observer.written(iteration, path)

    def write(self, iteration: int) -> Path:
        """Write a checkpoint, or begin to. Raises: OSError, RuntimeError - it cannot be written, or
        the one before could not.
        """
        tensors = {
            name: [each.detach().cpu() for each in some]
            for name, some in (self._alike | self._own).items()
        }
        return (self._writer or self._checkpoints).write(iteration, self._same | tensors)

    def packed(self, iteration: int) -> bytes:
        """What all ranks hold alike, as a checkpoint has it."""
        content = io.BytesIO()
        tensors = {
            name: [each.detach().cpu() for each in some] for name, some in self._alike.items()
        }
        self._job.torch.save(self._same | tensors | {"iteration": iteration}, content)
        return content.getvalue()

    def unpack(self, content: bytes) -> int:
        """Take over what `packed` of another rank gave; return the iteration. Raises: ValueError -
        it is of another training.
        """
        done = self.take(content, own=False)
        self._checkpoints.forget()  # of an earlier time on this host
        self._checkpoints.note_given()
        return done

    def take(self, content: bytes, own: bool) -> int:
        """Take over the content of a checkpoint that this rank wrote, or another (not own). Raises:
        ValueError - it is of another training.
        """
        torch = self._job.torch
        state = torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
        was = {name: state.get(name, self._later.get(name)) for name in self._same}
        if other := [name for name, value in self._same.items() if was[name] != value]:
            raise ValueError(f"the job trains with another {', '.join(other)}")
        with torch.no_grad():
            _copy(state, self._alike | self._own if own else self._alike)
        self._mine = own
        return int(state["iteration"])

    def finish(self, within_s: float | None = None) -> None:
        """As checkpoint.Writer.finish."""
        if self._writer is not None:
            self._writer.finish(within_s)


def _copy(state: Mapping[str, Any], into: Mapping[str, Sequence[Any]]) -> None:
    """Have these tensors be as the state has them, by name."""
    for name, tensors in into.items():
        for tensor, was in zip(tensors, state.get(name, ()), strict=True):
            tensor.copy_(was)
