"""Locks against a sequential model: SQLite's order of commits is the order of what happened, so
each commit is one step of it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tests.sim.judges import Judge
from tests.sim.lab import World
from tests.sim.loop import Actor

LIVE = ("active", "waiting")


@dataclass(frozen=True)
class Held:
    """A lock as its row has it; scope: words that two locks of one thing have in common."""

    id: str
    seq: int
    state: str
    pid: int
    process: str
    scope: frozenset[str]
    reserved: bool
    owner: str

    def meets(self, other: Held) -> bool:
        if self.owner == other.owner and (self.reserved or other.reserved):
            return False
        return "everything" in self.scope | other.scope or bool(self.scope & other.scope)


def wire_text(scope: str) -> frozenset[str]:
    """Hosts, ports and owners of a scope, of whatever kind."""
    data = json.loads(scope)
    return frozenset(
        f"{kind} {one}" for kind, each in data.items() if isinstance(each, list) for one in each
    ) | (frozenset(("everything",)) if data.get("everything") else frozenset())


class LockModel(Judge):
    """S11: no two active locks on one thing; who waits is served in order; a lock ends by its own
    process, its death or a theft.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.known: dict[str, Held] = {}
        self.scopes: dict[str, frozenset[str]] = {}

    def committed(self, actor: Actor) -> None:
        if "locks" not in self.world.touched:
            return
        rows = self.world.reader.execute(
            "SELECT id, seq, state, pid, process, scope, kind, owner FROM locks ORDER BY seq"
        ).fetchall()
        found = {
            row["id"]: self.held(row)
            for row in rows
            if row["state"] in LIVE or row["id"] in self.known
        }
        changed = [one for one in found.values() if one != self.known.get(one.id)]
        if not changed:
            return
        live = [one for one in found.values() if one.state in LIVE]
        for one in changed:
            self.step(actor, self.known.get(one.id), one, live)
        if any(one.state not in LIVE for one in changed):
            for one in live:
                if one.state == "waiting" and self.alive(one) and not self.blocked(one, live):
                    self.broken(f"{one.id} waits for nobody, and is not served")
        self.known = {one.id: one for one in live}

    def held(self, row: Any) -> Held:
        scope = self.scopes.get(row["scope"])
        if scope is None:
            scope = self.scopes[row["scope"]] = wire_text(row["scope"])
        return Held(
            row["id"],
            row["seq"],
            row["state"],
            row["pid"],
            row["process"],
            scope,
            row["kind"] == "reservation",
            row["owner"],
        )

    def alive(self, one: Held) -> bool:
        actor = self.world.desk.processes.get(one.pid)
        return one.reserved or (
            actor is not None
            and not actor.dead
            and one.process == f"{self.world.desk.boot}/{self.world.desk.ticks(actor)}"
        )

    def blocked(self, one: Held, live: list[Held]) -> bool:
        """Whether it may not be active. It overtakes only who waits for its owner anyway: a run,
        for a reservation; a reservation, for a run that has all of it."""
        own = [
            o
            for o in live
            if o.state == "active" and o.owner == one.owner and o.reserved is not one.reserved
        ]
        mine = [o for o in own if not one.reserved or one.scope <= o.scope]
        return any(
            o.state == "active" or (o.seq < one.seq and not any(each.meets(o) for each in mine))
            for o in live
            if o.id != one.id and o.meets(one)
        )

    def step(self, actor: Actor, was: Held | None, one: Held, live: list[Held]) -> None:
        """One lock from one commit to the next."""
        text = f"{one.id} from {was.state if was else 'nothing'} to {one.state} by {actor}"
        others = [
            other
            for other in live
            if other.id != one.id and other.state == "active" and other.meets(one)
        ]
        if one.state == "active" and others:
            self.broken(
                f"S11: {text}: {others[0].id} has part of it: {sorted(others[0].scope & one.scope)[:4]}"
            )
        match was.state if was else "", one.state:
            case "", "active" | "waiting":
                good = one.pid == actor.pid and (
                    one.state == "waiting" or not self.blocked(one, live)
                )
            case "active", "active":
                good = one.pid == actor.pid and was is not None and was.scope <= one.scope
            case "waiting", "active":
                good = self.alive(one) and not self.blocked(one, live)
            case "active" | "waiting", "released":
                good = one.pid == actor.pid or (
                    one.reserved and one.owner == getattr(actor, "owner", "")
                )
            case "active" | "waiting", "died":
                good = not self.alive(one)
            case "active" | "waiting", "stolen":
                good = "steal" in actor.name
            case _:
                good = False
        if not good:
            self.broken(text)
