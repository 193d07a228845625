"""Judges: what must be true at every step, at every commit, of every byte, and when nothing runs
any more.

To add one: a subclass of `Judge` with the methods it needs, and its name in `seeds.JUDGES`. A
method calls `self.broken(words)`; it raises nothing, for it may run inside the process that it
judges. `self.world` has the truth (`held`, `owned`, `lit`, `hosts`, `reader`).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from itertools import combinations
from typing import Any

from tests.sim.lab import OWNERS, Circuit, World, text
from tests.sim.loop import Actor
from tests.sim.seams import locks_of

READS = re.compile(r"conn:stat\?|rtrv-crs|rra\?", re.IGNORECASE)
UNTAGGED = ("polatis-scpi", "finisar-serial")
LATE_S = 10.0
"""A command arrives within this time, if at all."""


class Judge:
    """Is told of everything, and says nothing."""

    def __init__(self, world: World) -> None:
        self.world = world

    def broken(self, message: str) -> None:
        """A promise was broken."""
        self.world.broken(f"{type(self).__name__}: {message}")

    def watches(self, actor: Actor) -> bool:
        """Whether `stepped` is to be called for this process; asked once."""
        return True

    def stepped(self, actor: Actor) -> None:
        """A callback of a process has run."""

    def committed(self, actor: Actor) -> None:
        """A process has changed the store: the tables `self.world.touched`."""

    def sends(self, actor: Actor, device: str, line: str, writes: bool) -> None:
        """A command is about to send a line to a device. writes: one that changes what it holds."""

    def obeyed(self, host: str, op: str, request: Mapping[str, Any]) -> None:
        """An agent is about to do what a run asks of it: one of the fenced operations."""

    def struck(self) -> None:
        """One of the fates of the story has just happened."""

    def begins(self, actor: Actor, verb: str) -> None:
        """A command begins."""

    def ended(self, actor: Actor, verb: str, came: Any) -> None:
        """A command has ended; `came`: its report, its error, or "killed"."""

    def rest(self, when: str) -> None:
        """No command runs, no fault is left, and hosts had the time to go back by themselves."""


class NoCollision(Judge):
    """S1: no port is connected while it is in use. S2: a circuit of a stranger's is never touched,
    another owner's never taken.

    S12: light that comes has an owner.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.versions: dict[str, int] = {}
        self.held = {name: world.devices[name].held() for name in world.servers}
        self.wrote: list[tuple[float, str, str]] = []
        """When who sent what changes which device: time, device, owner."""
        self.stamps: dict[str, tuple[float | None, float | None]] = {}
        self.switches = {
            actor: (name, world.devices[name].plant) for name, actor in world.switches.items()
        }

    def watches(self, actor: Actor) -> bool:
        return actor in self.switches

    def stepped(self, actor: Actor) -> None:
        name, plant = self.switches[actor]
        if plant.version == self.versions.get(name):
            return
        self.versions[name] = plant.version
        self.owned(name)
        for one in plant.violations:
            self.broken(f"S1: {name}: {one.pair}: {one.why}")
        reboot, since = (
            self.world.disturbed.get(name),
            plant.since(self.world.devices[name].foreign),
        )
        known = self.stamps.get(name)
        if known is None or known[0] != reboot:  # it has another stamp from a reboot on
            self.stamps[name] = reboot, since
        elif since != known[1] and since is not None and known[1] is not None:
            self.broken(f"S2: {name}: the circuit of a stranger's was touched")
        elif since is None and known[1] is not None:
            self.broken(f"S2: {name}: the circuit of a stranger's is gone")

    def owned(self, name: str) -> None:
        """A circuit that has come has an owner already."""
        held, was = self.world.devices[name].held(), self.held[name]
        self.held[name] = held
        foreign = {self.world.devices[name].foreign}
        new, ended = held - was - foreign, was - held - foreign
        if not new and not ended:
            return
        own = {owner: self.world.owned(owner)[name] for owner in self.world.owners}
        if lost := new.difference(*own.values()):
            self.broken(f"S12: {name}: {lost} comes, and nobody owns it")
        now = self.world.loop.now
        if ended and self.world.disturbed.get(name, -math.inf) < now - LATE_S:
            self.wrote = [wrote for wrote in self.wrote if wrote[0] > now - LATE_S]
            did = {owner for _, device, owner in self.wrote if device == name}
            for owner, his in own.items():
                if ended & his and did and not any(self.world.acts_for(who, owner) for who in did):
                    self.broken(f"S2: {name}: {did} took {ended & his} of {owner}")

    def sends(self, actor: Actor, device: str, line: str, writes: bool) -> None:
        if writes:
            self.wrote.append((self.world.loop.now, device, actor.owner))  # type: ignore[attr-defined]


class Journal(Judge):
    """S4: a step begins only under its run's lock, and no byte that changes a device is sent
    without its step in the journal.

    S5: a command that the device cannot know again is not sent again before its map was read.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.sent: dict[tuple[Actor, str], set[str]] = {}
        self.begun: set[tuple[str, int]] = set()

    def committed(self, actor: Actor) -> None:
        if "steps" not in self.world.touched:
            return
        doing = self.world.reader.execute(
            "SELECT run, seq FROM steps WHERE state='doing'"
        ).fetchall()
        for run in {row["run"] for row in doing if (row["run"], row["seq"]) not in self.begun}:
            if not self.world.reader.execute(
                "SELECT 1 FROM locks WHERE run=? AND state='active'", (run,)
            ).fetchone():
                self.broken(f"S4: a step of {run} begins without its lock")
        self.begun.update((row["run"], row["seq"]) for row in doing)

    def sends(self, actor: Actor, device: str, line: str, writes: bool) -> None:
        sent = self.sent.setdefault((actor, device), set())
        if not writes:
            if READS.search(line):
                sent.clear()
            return
        query = (
            "SELECT 1 FROM steps JOIN runs ON runs.id=steps.run WHERE runs.pid=? AND runs.exit_code IS NULL"
            " AND steps.kind='device' AND steps.subject=? AND steps.state='doing'"
        )
        self.world.loop.note(f"{actor} -> {device} {line}")
        if actor in self.world.scheduling:
            return
        if self.world.reader.execute(query, (actor.pid, device)).fetchone() is None:
            self.broken(
                f"S4: {actor} sends {line!r} to {device}, and no step of it is in the journal"
            )
        message = re.sub(r":\d+:", "::", line)  # without the tag
        if self.world.drivers[device] in UNTAGGED and message in sent:
            self.broken(f"S5: {actor} sends {line!r} to {device} again without having read its map")
        sent.add(message)


class Fencing(Judge):
    """No host obeys a run that is older than one that it has obeyed, also over its power losses."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.highest: dict[str, int] = {}

    def obeyed(self, host: str, op: str, request: Mapping[str, Any]) -> None:
        token = request.get("token")
        if token is None:
            return
        if token < self.highest.get(host, 0):
            self.broken(f"{host} does {op} of token {token} after {self.highest[host]}")
        self.highest[host] = token

    def rest(self, when: str) -> None:
        for name, token in self.highest.items():
            agent = self.world.hosts[name].agent
            if agent is not None and (agent.fence.highest or 0) < token:
                self.broken(
                    f"{when}: {name} has obeyed {token}, and knows of {agent.fence.highest}"
                )


class Ownership(Judge):
    """S12: light is somebody's, and of one owner; at rest the store knows of all that is lit."""

    def rest(self, when: str) -> None:
        world = self.world
        own = {owner: world.owned(owner) for owner in world.owners}
        for device in world.servers:
            known = {world.devices[device].foreign}.union(*(his[device] for his in own.values()))
            if lost := world.devices[device].held() - known:
                self.broken(f"S12 {when}: {device}: nobody knows of {lost}")
            for one, other in combinations(own, 2):
                if both := own[one][device] & own[other][device]:
                    self.broken(f"S12 {when}: {device}: {both} belongs to {one} and {other}")
            if when == "after all" and world.devices[device].held() - {
                world.devices[device].foreign
            }:
                self.broken(f"{when}: {device} still holds {world.devices[device].held()}")


class Quiet(Judge):
    """Liveness: at rest no lock is held and no host will change its routes by itself; after all
    nothing is left on any host.
    """

    def rest(self, when: str) -> None:
        locks = locks_of(self.world.lab, self.world.settings(OWNERS[0]), self.world.store)
        if left := locks.listed():
            self.broken(f"{when}: locked: {[str(one) for one in left]}")
        for name, host in self.world.hosts.items():
            if host.agent is None:
                self.broken(f"{when}: no agent on {name}")
                continue
            generations = host.agent.generations
            if generations.armed or generations.pending:
                self.broken(f"{when}: {name} still owes {generations.summary()}")
            if when == "after all" and (
                generations.active is not None or host.kernel.rules or generations.staged
            ):
                self.broken(f"{when}: {name} runs {generations.summary()} {host.kernel.selected()}")


class Outcome(Judge):
    """The end of a run that still has its lock is true: "ok" and "rolled-back" (S7), and of a step
    "done".

    Judged in the commit that says so; but for devices and hosts that have lost something by
    themselves since the run began.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.began: dict[str, float] = {}
        self.routes: dict[tuple[str, int | None], object] = {}
        """What hosts ran when a run began, by host and generation."""
        self.judged: set[object] = set()
        self.fresh: set[Actor] = set()
        """Processes whose run has not yet noted what was before it."""

    def committed(self, actor: Actor) -> None:
        if actor not in self.fresh and self.world.touched.isdisjoint(("runs", "steps")):
            return
        reader, now = self.world.reader, self.world.loop.now
        query = "SELECT id, verb, owner, status, before, target FROM runs WHERE pid=? ORDER BY rowid DESC LIMIT 1"
        run = reader.execute(query, (actor.pid,)).fetchone()
        if run is None:
            return
        if (began := self.began.get(run["id"])) is None:
            began = self.began[run["id"]] = now
        if run["before"] == "null":
            self.fresh.add(actor)
            self.routes |= {
                (name, self.active(name)): self.rules(name) for name in self.world.hosts
            }
        else:
            self.fresh.discard(actor)
        if (
            run["id"] in self.judged
            or not reader.execute(
                "SELECT 1 FROM locks WHERE run=? AND state='active'", (run["id"],)
            ).fetchone()
        ):
            return
        query = (
            "SELECT * FROM steps WHERE run=? AND state='done' AND kind='device' AND subject<>'all'"
        )
        for step in reader.execute(query, (run["id"],)).fetchall():
            if (run["id"], step["seq"]) not in self.judged:
                self.judged.add((run["id"], step["seq"]))
                self.done(step, began)
        if run["status"] == "running":
            return
        self.judged.add(run["id"])
        if (run["verb"], run["before"]) == ("rollback", "null"):
            return  # of a run that died before it changed anything: it says nothing of others
        if run["status"] == "ok" and run["verb"] in ("up", "down", "rollback", "restore"):
            self.ok(run, began)
        elif run["status"] == "rolled-back" and run["before"] != "null":
            self.as_before(run, began)

    def active(self, name: str) -> int | None:
        agent = self.world.hosts[name].agent
        return None if agent is None else agent.generations.active

    def rules(self, name: str) -> object:
        """The routes that a host runs."""
        agent, active = self.world.hosts[name].agent, self.active(name)
        return (
            None if agent is None or active is None else agent.generations.staged[active]["routes"]
        )

    def calm(self, name: str, began: float) -> bool:
        """Whether a device or host has lost nothing by itself since."""
        return self.world.disturbed.get(name, -1.0) < began

    def done(self, step: Any, began: float) -> None:
        device, intent = step["subject"], json.loads(step["intent"])
        if step["error"] or not self.calm(device, began):
            return
        held = text(self.world.devices[device].held())
        if (lost := set(intent["add"]) - held) or (still := set(intent["remove"]) & held):
            self.broken(
                f"S4: {step['run']} has a step of {device} done, and {lost or still} is not so"
            )

    def ok(self, run: Any, began: float) -> None:
        world, owner = self.world, run["owner"]
        row = world.reader.execute(
            "SELECT * FROM current WHERE lab=?", (world.tenancy(owner),)
        ).fetchone()
        links = world.links_of(row) if row else []
        if run["verb"] == "rollback" and world.any_slot(row):
            return  # to a slot in which a turner died: `status` tells of it
        goal, own, message = (
            world.wanted(links),
            world.owned(owner),
            f"{run['id']} ({run['verb']} of {owner}) is ok",
        )
        for device in world.servers:
            held = own[device] & world.devices[device].held()
            wanted = goal[device]
            # to a plan whose light was lost before: `status` tells
            if run["verb"] == "rollback" and device in world.disturbed:
                before = {
                    tuple(one[:4]) for one in json.loads(run["target"])["settings"].get(device, ())
                }
                wanted = before if before < wanted else wanted
            if self.calm(device, began) and (
                held != wanted or own[device] - held - self.of_living(run, device)
            ):
                self.broken(
                    f"{message}: {device}: wanted {goal[device]}, {own[device]} owned, {held} there"
                )
        for name in sorted({end.partition(":")[0] for link in links for end in link}):
            host = world.hosts[name]
            if host.agent is None or not self.calm(name, began):
                continue
            found = host.agent.generations
            selected = [found.table(row["generation"])]
            waits = "SELECT 1 FROM awaited WHERE tenancy=? AND generation=? AND state='pending'"
            pending = (
                found.pending
                and not world.reader.execute(
                    waits, (world.tenancy(owner), row["generation"])
                ).fetchone()
            )
            if found.active != row["generation"] or pending or host.kernel.selected() != selected:
                self.broken(
                    f"{run['id']} ({run['verb']} of {owner}) is ok, generation {row['generation']}: {name}: {found.summary()}"
                )

    def of_living(self, run: Any, device: str) -> set[Circuit]:
        """What other runs of its owner have recorded that live, though perhaps robbed: their light
        may come yet.
        """
        query = (
            "SELECT ingress, egress, low_mhz, high_mhz, runs.pid FROM held JOIN runs ON runs.id=held.run"
            " WHERE held.lab=? AND device=? AND runs.id<>? AND runs.exit_code IS NULL"
        )
        rows = self.world.reader.execute(
            query, (self.world.tenancy(run["owner"]), device, run["id"])
        ).fetchall()
        alive = {pid for pid, actor in self.world.desk.processes.items() if not actor.dead}
        return {
            (*row[:4],) if row["high_mhz"] else (*row[:2],) for row in rows if row["pid"] in alive
        }

    def as_before(self, run: Any, began: float) -> None:
        world, before, target = self.world, json.loads(run["before"]), json.loads(run["target"])
        own = world.owned(run["owner"])
        for device in world.servers:
            was = {tuple(one[:4]) for one in before["ours"].get(device, ())}
            held = own[device] & world.devices[device].held()
            if self.calm(device, began) and (held != was or own[device] != held):
                self.broken(
                    f"S7: {run['id']} was rolled back: {device}: {was} before, {held} now, {own[device]} owned"
                )
        for name in target["hosts"]:
            host = world.hosts[name]
            if (
                host.agent is None
                or not self.calm(name, began)
                or name not in before["generations"]
            ):
                continue
            found = host.agent.generations
            ran = self.routes.get((name, before["generations"][name]))
            # perhaps staged again, with another number
            if found.armed or found.pending or ran != self.rules(name):
                self.broken(
                    f"S7: {run['id']} was rolled back: {name} ran {before['generations'][name]}: {found.summary()}"
                )
