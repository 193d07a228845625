"""What ranks agree on apart from sums: where to stop, where to resume, that all hold the same
weights, when to leave.

All of it goes through rank 0's store on the management network, a few bytes at a time, so it works
while circuits move.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from datetime import timedelta
from typing import Any


class Accord:
    """The ranks of one job, talking through `store`. A wait without a time of its own is
    bounded by the store's timeout.
    """

    def __init__(self, store: Any, rank: int, world: int) -> None:
        self._store = store
        self._rank = rank
        self.world = world
        self._announced = False
        self.asked = False
        """Whether this rank was asked to stop."""

    def handle_signals(self) -> None:
        """From now on SIGTERM and SIGINT ask for an agreed stop; a second one ends the process at
        once.

        Until then they kill it, as they should a process that waits in vain for its peers. A thread
        receives them: a handler in Python would only run once the main thread leaves torch, and a
        rank waiting for a peer does not.
        """
        written, read = socket.socketpair()
        written.setblocking(False)
        signal.set_wakeup_fd(written.fileno())
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda _number, _frame: None)
        threading.Thread(target=self._watch_signals, args=(written, read), daemon=True).start()

    def _watch_signals(self, _written: socket.socket, read: socket.socket) -> None:
        while number := read.recv(1):
            if number[0] in (signal.SIGTERM, signal.SIGINT):
                if self.asked:
                    os._exit(128 + number[0])
                self.asked = True

    def ask_to_stop(self) -> None:
        """Ask for an agreed stop, as a signal does."""
        self.asked = True

    def before(self, iteration: int) -> None:
        """Announce, if this rank was asked to stop, that `iteration` shall be the last.

        No rank can finish `iteration` without this rank's part in its sums, and the announcement is
        in the store before that, so every rank finds it there in `last()`.
        """
        if self.asked and not self._announced:
            self._store.compare_set("stop", "", str(iteration))
            self._announced = True

    def last(self, iteration: int) -> bool:
        """Say whether `iteration`, just finished, was the last one."""
        return bool(self._store.check(["stop"])) and int(self._store.get("stop")) <= iteration

    def gather(self, topic: str, value: object, within_s: float | None = None) -> list[Any]:
        """Return what every rank gave for `topic`, in rank order. A topic is used once. within_s: how
        long the others may take, by default the store's timeout.
        """
        self._store.set(f"{topic}/{self._rank}", json.dumps(value))
        keys = [f"{topic}/{rank}" for rank in range(self.world)]
        if within_s is not None:
            self._store.wait(keys, timedelta(seconds=within_s))
        return [json.loads(self._store.get(key)) for key in keys]

    def leave(self, within_s: float = 10.0) -> None:
        """Return once all ranks are done, within `within_s` seconds; rank 0, who keeps the store,
        after the others took note.
        """
        if self._store.add("leave/arrived", 1) == self.world:
            self._store.set("leave/go", "1")
        self._store.wait(["leave/go"], timedelta(seconds=within_s))
        if self._rank > 0:
            if self._store.add("leave/left", 1) == self.world - 1:
                self._store.set("leave/empty", "1")
        elif self.world > 1:
            self._store.wait(["leave/empty"], timedelta(seconds=within_s))


def appears(store: Any, key: str, within_s: float) -> bool:
    """Whether `key` is in `store` within this time (s). Raises: RuntimeError (torch's own) - the
    store is gone.
    """
    try:
        store.wait([key], timedelta(seconds=within_s))
    # the time is over, or the store is gone: then it does not answer this either
    except RuntimeError:
        return bool(store.check([key]))
    return True


def kept_by_each(found: list[tuple[bool, list[int]]]) -> list[list[int]]:
    """Return which iterations each rank has kept, of (was it given its state by another, which).

    Such a rank that has kept one while another has not yet is as one without any.
    """
    oldest = min((max(have) for _, have in found if have), default=0)
    return [[] if given and have and min(have) > oldest else have for given, have in found]


def common(kept: list[list[int]]) -> int:
    """Return the newest iteration that every rank with any checkpoint has kept, 0 when no rank has
    any.

    A rank without any is new on its host, and is given that state. Raises ValueError when no
    iteration is common to the others: starting again would throw their work away.
    """
    if not any(kept):
        return 0
    shared = set.intersection(*(set(have) for have in kept if have))
    if shared:
        return max(shared)
    text = "; ".join(
        f"rank {rank} has {', '.join(map(str, sorted(have))) or 'none'}"
        for rank, have in enumerate(kept)
    )
    raise ValueError(
        f"no checkpoint is common to all ranks: {text}; to start again, launch the job without --resume"
    )
