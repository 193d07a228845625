"""A running job gets more ranks at the end of an iteration, or goes on as it was.

A move whose rings name more ranks than the job has is one that it grows by (ring_changes.py). New
ranks, launched with TESTBED_JOINING, are asked to prepare it as all others are: all connect its set.
They decide no move. At the end of iteration K, which those that run decide, rank 0 gives what it
holds to each new rank, and the ranks agree once more:

    state/N      bytes and SHA-256 of what rank 0 sends, and how many ranks there were
    took/N       how many new ranks hold that state
    joined/N     "yes": all go on as one job after K | "no": those that ran go on as before

The last new rank that holds the state writes "yes". Whoever finds a new rank gone, is asked to stop,
or has waited as long as for any peer, writes "no"; a new rank then ends.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..transport.accord import appears
from .moves import VOID, Move
from .ring_changes import CHECK_S, RingChanges
from .sets import Layout


class Held(Protocol):
    """What a rank holds of the training."""

    def packed(self, iteration: int) -> bytes: ...  # the state after it
    def unpack(self, content: bytes) -> int:  # take it over; the iteration that it is of
        """Raises: ValueError - it is of another training."""


class Growing(RingChanges):
    """As RingChanges, of a job that may grow. Its sets have a `group`, over which states are
    sent.
    """

    held: Held
    torch: Any
    grown: Callable[[Layout, Any], None]
    """Called as the job grows, with the layout and the set that it uses next."""

    def join(self) -> int:
        """Become a rank of the job that runs; return the iteration after which. Raises: RuntimeError
        - it did not ask for this rank in time, or goes on without it.
        """
        until_s = time.monotonic() + self._timeout_s
        while (move := self._move) is None:
            if time.monotonic() >= until_s or self._asked_to_stop():
                raise RuntimeError("joining: the job did not ask for this rank")
            time.sleep(CHECK_S)
        store, number = self._agreed.store, move.number
        while not appears(store, f"move/{number}", CHECK_S):
            if move.ready and move.state == "preparing":
                self._answer(move, "prepared", took_ms=move.took_ms)
            if time.monotonic() >= move.until_s or self._asked_to_stop():
                self._agreed.decide(number, VOID)
        after = self._agreed.decision(number)
        if isinstance(after, int):
            try:
                self._take(move, after)
            except (RuntimeError, ValueError) as error:
                move.error = str(error)
                store.compare_set(f"joined/{number}", "", "no")
            if self._joined(move):
                self._iteration = after
                super()._change_rings(move, after)
                return after
        self._abandon(move)
        why = move.error or "it, or who asked for this rank, gave that up"
        raise RuntimeError(f"joining: the job goes on without this rank: {why}")

    def _change_rings(self, move: Move, iteration: int) -> None:
        if move.world != self._world:
            began_ns = time.monotonic_ns()
            self._on_hold(True)
            try:
                joined = self._given(move, iteration)
            finally:
                self._on_hold(False)
            move.held_ms = round((time.monotonic_ns() - began_ns) / 1e6, 3)
            if not joined:
                self._abandon(move)
                return
        super()._change_rings(move, iteration)

    def _given(self, move: Move, iteration: int) -> bool:
        """Have the new ranks hold the state after `iteration`; whether they are ranks of the job
        now.
        """
        failed = list[str]()
        if self._rank == 0:
            try:
                self._give(move, iteration, failed)
            except RuntimeError as error:
                failed.append(str(error))
        return self._joined(move, failed)

    def _give(self, move: Move, iteration: int, failed: list[str]) -> None:
        """Begin to send the state to all new ranks at once. failed: gets why one did not take it."""
        content = bytearray(self.held.packed(iteration))
        about = len(content), hashlib.sha256(content).hexdigest(), self._world
        self._agreed.store.set(f"state/{move.number}", json.dumps(about))
        tensor = self.torch.frombuffer(content, dtype=self.torch.uint8)
        formed: Any = move.formed
        sends = [formed.group.send([tensor], rank, 0) for rank in range(self._world, move.world)]

        def wait() -> None:
            try:
                for each in sends:
                    each.wait()
            except RuntimeError as error:
                failed.append(str(error))

        # a thread: nothing else interrupts it, and this rank may be asked to stop
        threading.Thread(target=wait, name=f"state {move.number}", daemon=True).start()

    def _take(self, move: Move, after: int) -> None:
        """Take over rank 0's state. Raises: RuntimeError, ValueError - it did not come, or is not
        what rank 0 has.
        """
        store, key = self._agreed.store, f"state/{move.number}"
        if not appears(store, key, self._timeout_s):
            raise RuntimeError(f"rank 0 gave no state within {self._timeout_s:g} s")
        size, digest, before = json.loads(store.get(key))
        tensor = self.torch.empty(size, dtype=self.torch.uint8)
        formed: Any = move.formed
        formed.group.recv([tensor], 0, 0).wait()
        content = tensor.numpy().tobytes()
        if hashlib.sha256(content).hexdigest() != digest:
            raise ValueError("the state has another checksum than rank 0's")
        if (of := self.held.unpack(content)) != after:
            raise ValueError(f"the state is of iteration {of}, not {after}")
        if store.add(f"took/{move.number}", 1) == move.world - before:
            store.compare_set(f"joined/{move.number}", "", "yes")

    def _joined(self, move: Move, failed: Sequence[str] = ()) -> bool:
        """Wait until it is agreed whether the job grows; if so it has on return. failed: why a new
        rank did not take the state.
        """
        store, key = self._agreed.store, f"joined/{move.number}"
        formed, until_s = move.formed, time.monotonic() + self._timeout_s
        assert formed is not None
        while not appears(store, key, CHECK_S):
            if failed:
                move.error = f"a new rank did not take the state: {failed[0]}"
            elif self._asked_to_stop():
                move.error = "the job was asked to stop"
            elif (lost := formed.lost()) or time.monotonic() >= until_s:
                move.error = f"a new rank was lost: {lost or f'silent for {self._timeout_s:g} s'}"
            else:
                continue
            store.compare_set(key, "", "no")
        if store.get(key) != b"yes":
            return False
        self.grown(move.layout, formed)
        self._world = move.world
        return True
