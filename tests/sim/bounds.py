"""Judges of what a run may touch: nothing outside its lock, nothing of another owner's; and hosts
keep only what was confirmed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.sim.judges import Judge
from tests.sim.lab import World
from tests.sim.loop import Actor

CHANGES = ("stage", "commit", "confirm", "revert", "arm", "disarm")


def labels(names: list[str]) -> set[str]:
    """The ports of settings in words: `3->19`."""
    return {label for name in names for label in name.split("->")}


class Covered(Judge):
    """S11: every host that a run asks to change something, and every port that it is about to use,
    is in its lock.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.begun: set[tuple[str, int]] = set()

    def committed(self, actor: Actor) -> None:
        if "steps" not in self.world.touched:
            return
        query = "SELECT run, seq, subject, intent FROM steps WHERE state='doing' AND kind='device' AND subject<>'all'"
        for row in self.world.reader.execute(query).fetchall():
            if (row["run"], row["seq"]) in self.begun:
                continue
            self.begun.add((row["run"], row["seq"]))
            scope = self.scope("run", row["run"])
            intent, device = json.loads(row["intent"]), row["subject"]
            locked = {port[1] for port in scope["ports"] if port[0] == device}
            used = labels([*intent["add"], *intent["remove"]])
            if not scope["everything"] and device not in scope["devices"] and used - locked:
                self.broken(
                    f"S11: {row['run']} uses {used - locked} of {device}, which it has not locked"
                )

    def obeyed(self, host: str, op: str, request: Mapping[str, Any]) -> None:
        if (token := request.get("token")) is None:
            return
        scope = self.scope("token", token)
        if not scope["everything"] and host not in scope["hosts"]:
            self.broken(f"S11: {host} does {op} of token {token}, whose run has not locked it")

    def scope(self, column: str, value: object) -> Any:
        """What a run has locked, or had when it was robbed."""
        row = self.world.reader.execute(
            f"SELECT scope FROM locks WHERE {column}=? ORDER BY seq DESC", (value,)
        ).fetchone()
        return (
            json.loads(row["scope"])
            if row
            else {"everything": False, "hosts": [], "ports": [], "devices": []}
        )


class OthersRoutes(Judge):
    """Routes that another owner's plan runs on, or that he has staged, stay as they are."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.kept: list[tuple[Any, set[int], str]] = []

    def obeyed(self, host: str, op: str, request: Mapping[str, Any]) -> None:
        agent, reader = self.world.hosts[host].agent, self.world.reader
        run = reader.execute(
            "SELECT id, owner FROM runs WHERE token=?", (request.get("token"),)
        ).fetchone()
        if run is None or agent is None:
            return
        found = agent.generations
        whose = {
            row["generation"]: row["owner"]
            for row in reader.execute("SELECT generation, owner FROM generation_owners")
        }
        if op in CHANGES and whose.get(found.active, run["owner"]) != run["owner"]:
            self.broken(
                f"{host} does {op} of {run['id']} of {run['owner']}, and runs {found.active} of {whose[found.active]}"
            )
        if op == "clear":
            others = {number for number in found.staged if whose.get(number) != run["owner"]}
            self.kept.append(
                (found, others, f"{host} clears what {run['id']} of {run['owner']} asks")
            )

    def watches(self, actor: Actor) -> bool:
        return actor.name.startswith("agent-")

    def stepped(self, actor: Actor) -> None:
        while self.kept:
            found, others, text = self.kept.pop()
            if others - found.staged.keys():
                self.broken(f"{text}, and {others - found.staged.keys()} of another owner's, too")


class Kept(Judge):
    """S7: a host runs at rest only routes that were confirmed, or committed for good, or that the
    next change found.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.good: set[tuple[str, int]] = set()

    def obeyed(self, host: str, op: str, request: Mapping[str, Any]) -> None:
        agent, number = self.world.hosts[host].agent, request.get("generation")
        if op == "slots.load":
            self.good.update((host, slot["generation"]) for slot in request["slots"])
        if number is None or agent is None:
            return
        if (op == "confirm" and agent.generations.active == number) or (
            op == "commit" and request.get("revert_after_s") is None
        ):
            self.good.add((host, number))
        elif op in ("commit", "arm") and agent.generations.active not in (None, number):
            # what a newer change found: it goes back to that
            self.good.add((host, agent.generations.active))

    def rest(self, when: str) -> None:
        for name, host in self.world.hosts.items():
            active = None if host.agent is None else host.agent.generations.active
            if active is not None and (name, active) not in self.good:
                self.broken(f"S7 {when}: {name} runs {active}, which nobody has confirmed")


class Overtaken(Judge):
    """When a newer run comes, nothing stays armed on a host that an older one asked for."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.highest: dict[str, int] = {}

    def obeyed(self, host: str, op: str, request: Mapping[str, Any]) -> None:
        token, agent = request.get("token"), self.world.hosts[host].agent
        if token is None or agent is None:
            return
        if token > self.highest.get(host, 0) and op != "arm" and agent.generations.armed:
            self.broken(
                f"{host} knows run {token}, and is still armed with {agent.generations.armed['generation']}"
            )
        self.highest[host] = max(token, self.highest.get(host, 0))
