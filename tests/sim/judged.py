"""What of the world judges are told, and what they say."""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

from tests.sim.agents import Hooks
from tests.sim.loop import ACTOR, Actor, Killed, SimLoop, point
from tests.sim.seams import StandIns, full

Judge = Any
"""Of `tests.sim.judges`, which builds on the world."""
SHOWN = (
    "committed",
    "sends",
    "obeyed",
    "struck",
    "begins",
    "ended",
    "launched",
    "resumes",
    "waited",
)


class Violation(AssertionError):
    """A promise was broken."""


class Judged(StandIns, Hooks):
    """`bad` is the first violation that a judge names."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.judges: Sequence[Judge] = ()
        self.shown: dict[str, list[Callable[..., None]]] = defaultdict(list)
        self.touched: Set[str] = frozenset()
        """Tables of the store that the last commit has written to."""
        self.bad = ""
        self.disk_full = False

    def appoint(self, judges: Sequence[Judge]) -> None:
        """Have them judge from now on."""
        self.judges = judges
        self.shown = {hook: self._of(hook) for hook in SHOWN}
        self.loop.watch = self._watchers

    def broken(self, message: str) -> None:
        """Note what was broken: raised by the loop, not inside the process that did it, which would
        only roll back.
        """
        if not self.bad:
            self.bad = message
            self.loop.failure = Violation(message)

    def _of(self, hook: str) -> list[Callable[..., None]]:
        """The judges that have this method, without those that only inherit it from `Judge`."""
        own = [
            [vars(c) for c in type(judge).__mro__ if c.__name__ != "Judge"] for judge in self.judges
        ]
        return [
            getattr(judge, hook)
            for judge, classes in zip(self.judges, own, strict=True)
            if any(hook in c for c in classes)
        ]

    def _watchers(self, actor: Actor) -> tuple[Callable[[Actor], None], ...]:
        return tuple(stepped for stepped in self._of("stepped") if stepped.__self__.watches(actor))  # type: ignore[attr-defined]

    def obeyed(self, host: str, op: str, request: Mapping[str, Any]) -> None:
        for notify in self.shown["obeyed"]:
            notify(host, op, request)

    def struck(self) -> None:
        """Something has gone wrong by itself, just now."""
        for notify in self.shown["struck"]:
            notify()

    def rest(self, when: str) -> None:
        """Nothing runs and no fault is left: everything must be as the program says. Raises:
        Violation.
        """
        for judge in self.judges:
            judge.rest(when)
        if self.bad:
            raise Violation(self.bad)

    def in_background(self, file: Any) -> None:
        ACTOR.get().on_death.append(lambda: file._fd < 0 or file.__exit__(None, None, None))

    # ---- plans that are up

    def links_of(self, row: sqlite3.Row) -> list[tuple[str, str]]:
        """The links of the plan that a row of `current` says is up."""
        return [(link["a"], link["b"]) for link in json.loads(row["plan_text"])["links"]]

    def any_slot(self, row: sqlite3.Row | None) -> bool:
        """Whether the plan of a row of `current` has several sets of links, of which one is lit
        when nothing moves.
        """
        return False

    def acts_for(self, who: str, owner: str) -> bool:
        """Whether the processes of one may change what another owns."""
        return who == owner

    def moving(self, owner: str) -> bool:
        """Whether an owner's light moves by itself, so that nobody says what it should be now."""
        return False

    # ---- stand-ins for what processes do to the store

    def began(self, store: Any) -> None:
        actor = ACTOR.get(self.loop.sea)
        if actor.dead:
            raise Killed("transaction")

    def about_to_commit(self, store: Any) -> None:
        if self.disk_full and ACTOR.get(self.loop.sea).mortal:
            raise full(store.path, "database or disk is full")
        point("before commit")

    def committed(self, store: Any, tables: Set[str]) -> None:
        actor, self.touched = ACTOR.get(self.loop.sea), tables
        for notify in self.shown["committed"]:
            notify(actor)
        point("after commit")

    def claimed(self, claim: Any) -> None:
        ACTOR.get().on_death.append(claim.release)
