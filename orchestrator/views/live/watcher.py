"""Keep a picture current from the journals, the store and the guard; polling is cheap while nothing changes."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from optics.errors import StoreFailed
from optics.plain import counted
from orchestrator.engine.guard.process import guard_path, read_state
from orchestrator.results import path_text
from orchestrator.session import load_lab
from orchestrator.settings import Settings
from orchestrator.store.keys import key_of, slice_of
from orchestrator.store.store import Store
from orchestrator.views.live.follow import Journals
from orchestrator.views.live.picture import Picture
from orchestrator.views.live.sections import changes
from orchestrator.views.live.standing import standing

LOOK_S = 0.04
"""Interval (s) at which the journals and the store are read: an event waits half of it on average."""
SLOWLY_S = 1.0
"""Whether the process of a run still lives, and what the guard says, is looked at this often (s)."""


class Watcher:
    """The picture of one lab, from its files alone; `live.collect` adds what the hosts report."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self.settings, self.store = settings, store
        lab = load_lab(settings.inventory)
        self.picture = Picture(lab, path_text(settings.inventory))
        self._key, self._slice = key_of(lab), slice_of(lab, settings)
        self._journals = Journals(settings.state_dir, self._ours)
        self._guard: Path = guard_path(settings, self._slice)
        self._version = -1
        self._due = 0.0
        self.picture.hush = True
        self.look()
        self.picture.hush = False
        changes(self.picture)

    def _ours(self, run: str) -> bool:
        record = self.store.get(run)
        return record is None or record.lab == self._key

    def look(self) -> None:
        """Update the picture; what cannot be read is shown in it and retried."""
        trouble = ""
        try:
            self._look(time.time() * 1e3)
        except (OSError, sqlite3.Error, StoreFailed) as error:
            trouble = f"journals and store cannot be read: {error}"
        unread = self._journals.unread
        self.picture.troubled("files", trouble)
        self.picture.troubled("lines", f"{counted(unread, 'line')} of the journals cannot be read" if unread else "")

    def _look(self, now: float) -> None:
        picture = self.picture
        slowly = time.monotonic() >= self._due
        version = self.store.version()
        if version != self._version or slowly:
            self._version = version
            standing_ = standing(self.store, picture.lab, self.settings.owner or self.settings.user)
            if standing_ != picture.standing:
                picture.stand(standing_, now)
            self._journals.keep = frozenset([standing_.job.run] if standing_.job else ())
        for point in self._journals.take():
            picture.feed(point)
        picture.settle(now)
        if slowly:
            self._due = time.monotonic() + SLOWLY_S
            guard = read_state(self._guard)
            picture.around(guard.around if guard is not None and guard.alive else (), now)
            picture.tick(now)

    def close(self) -> None:
        self._journals.close()

    def __enter__(self) -> Watcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
