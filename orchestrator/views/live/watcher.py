"""Keep a picture current from the journals, the store and the guard; polling is cheap while nothing
changes.
"""

from __future__ import annotations

import sqlite3
import time

from optics import TestbedError
from optics.errors import StoreFailed
from optics.plain import counted
from orchestrator.background.registry import kind, state
from orchestrator.results import path_text
from orchestrator.session import load_lab
from orchestrator.settings import Settings
from orchestrator.store.keys import key_of, tenancy_key, tenancy_of
from orchestrator.store.store import Store
from orchestrator.views.live.follow import Journals
from orchestrator.views.live.lab_state import LabState, read_store
from orchestrator.views.live.picture import Picture
from orchestrator.views.live.sections import changed_sections
from orchestrator.views.live.slots import Cycle, cycle_of

LOOK_S = 0.04
"""Interval (s) at which the journals and the store are read: an event waits half of it on
average.
"""
SLOWLY_S = 1.0
"""Interval (s) of checks whether a run's process is alive, and of the guard's state."""


class Watcher:
    """The picture of one lab, from its files alone; `live.collect` adds what the hosts report."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self.settings, self.store = settings, store
        lab = load_lab(settings.inventory)
        self.picture = Picture(lab, path_text(settings.inventory))
        self._key, self._tenancy = key_of(lab), tenancy_of(lab, settings)
        self._journals = Journals(settings.state_dir, self._owned)
        self._guard, self._scheduler = map(kind, ("guard", "schedule"))
        self._read: list[tuple[str, str, str]] | None = None
        self._cycle: Cycle | None = None
        self._version = -1
        self._due = 0.0
        self.picture.events.replaying = True
        self.refresh()
        self.picture.events.replaying = False
        changed_sections(self.picture)

    def _owned(self, run: str) -> bool:
        record = self.store.get(run)
        return record is None or record.lab == self._key

    def refresh(self) -> None:
        """Update the picture; a read error is shown in it, and the read is retried."""
        trouble = ""
        try:
            self._refresh(time.time() * 1e3)
        except (OSError, sqlite3.Error, StoreFailed) as error:
            trouble = f"journals and store cannot be read: {error}"
        unread = self._journals.unread
        self.picture.troubled("files", trouble)
        self.picture.troubled(
            "lines", f"{counted(unread, 'line')} of the journals cannot be read" if unread else ""
        )

    def _refresh(self, now: float) -> None:
        picture = self.picture
        slowly = time.monotonic() >= self._due
        version = self.store.version()
        if version != self._version or slowly:
            self._version = version
            state_ = read_store(self.store, picture.lab, self.settings.owner or self.settings.user)
            changed = picture.slots.scheduled_now
            self._schedule(state_)
            if state_ != picture.state or changed != picture.slots.scheduled_now:
                picture.update(state_, now)
            self._journals.keep = frozenset([state_.job.run] if state_.job else ())
        for point in self._journals.take():
            picture.feed(point)
        picture.settle(now)
        if slowly:
            self._due = time.monotonic() + SLOWLY_S
            guard = self._guard.running(self.settings, self._tenancy)
            picture.around(guard.around if guard is not None else (), now)
            for name, live in picture.services.live.items():
                live.state(state(kind(name), self.settings, self._tenancy, self._key))
            picture.tick(now)

    def _schedule(self, now: LabState) -> None:
        """Tell the picture which schedule is up: the viewer's own, else the first, and what its
        turner says of itself.
        """
        mine = self.settings.owner or self.settings.user
        plans = sorted((now.plans or {}).items(), key=lambda item: item[0] != mine)
        if self._read != (read := [(owner, p.run, p.plan_sha) for owner, p in plans]):
            self._read, self._cycle, trouble = read, None, ""
            try:
                found = (
                    cycle_of(self.picture.lab, now.held or {}, owner, plan)
                    for owner, plan in plans
                    if '"schedule"' in plan.plan_text
                )
                self._cycle = next((cycle for cycle in found if cycle is not None), None)
            except TestbedError as error:
                trouble = f"the slots of the plan that is up cannot be shown: {error.line}"
            self.picture.troubled("slots", trouble)
        scheduler = (
            self._scheduler.path(self.settings, tenancy_key(self._key, self._cycle.owner))
            if self._cycle is not None
            else None
        )
        self.picture.slots.scheduled(
            self._cycle, self._scheduler.read(scheduler) if scheduler is not None else None
        )

    def close(self) -> None:
        self._journals.close()

    def __enter__(self) -> Watcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
