"""The plot of adapters: mixtures of experts whose circuits follow what they send, and the processes
that move them.
"""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

from tests.sim.jobs import BOUNDARY_S, Jobs, Left, OthersRanks, Reported
from tests.sim.judges import Judge
from tests.sim.lab import OWNERS
from tests.sim.loop import ACTOR, Actor
from tests.sim.plots import Plot
from tests.sim.recover import Once
from tests.sim.seams import (
    ADAPTER,
    MOVERS,
    STOP_S,
    AdaptOptions,
    Missing,
    Settings,
    TestbedError,
    UpOptions,
    adapt,
    verbs,
)
from tests.sim.story import Fate, Typed
from tests.sim.switched import SwitchedWorld

STORM_S = 46.0
"""Fates go on until then (s), also when nobody types any more."""
STOLEN_S = 2.0
"""A change that had begun when its lock was taken sends what it has prepared within this time
(s)."""
FOLLOWS_S = 60.0
"""An adapter works so long in peace (s) before it is stopped, and looks at its job meanwhile."""


@dataclass
class Follows:
    """An adapter's process."""

    owner: str
    task: asyncio.Task[Any] | None = None


class AdaptWorld(SwitchedWorld):
    """Hosts at a packet switch, too, and processes that adapt circuits."""

    endless = ("adapt",)
    count = 6

    def __init__(self, *argv: Any) -> None:
        super().__init__(*argv)
        self.adapters: dict[Actor, Follows] = {}

    def any_slot(self, row: sqlite3.Row | None) -> bool:
        """An adapter that died in a change has left light that no route uses; a rollback may go
        back to that.
        """
        return row is not None and "adapt" in json.loads(row["plan_text"])

    def moving(self, owner: str) -> bool:
        return bool(self.alive(owner))

    def alive(self, owner: str = "") -> list[Actor]:
        """The adapters that live, or those of one owner."""
        return [
            actor
            for actor, follows in self.adapters.items()
            if not actor.dead and owner in ("", follows.owner)
        ]

    # ---- processes

    def adapt(self, owner: str, doom: tuple[str, int] = ("", 0)) -> None:
        """`testbed service start adapt`."""
        actor = self.process(owner, f"adapter-{len(self.adapters)}-{owner}", doom)
        follows = self.adapters[actor] = Follows(owner)

        async def work(command: Any) -> Any:
            follows.task = asyncio.current_task()
            return await adapt(
                command, notify=partial(self._reported, actor), options=AdaptOptions()
            )

        work.__name__ = "adapt"
        self.loop.start(self.loop.sea, self.command(actor, work)).add_done_callback(self._over)

    def _reported(self, actor: Actor, event: Mapping[str, Any]) -> None:
        self.loop.note(f"{actor} says {event['event']}: {event['message']}")

    def _over(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.broken(f"an adapter ended with {error!r}")

    def stop(self, actor: Actor) -> None:
        """SIGTERM."""
        self.loop.note(f"TERM {actor}")
        if (task := self.adapters[actor].task) is not None:
            task.cancel()
        else:
            self.loop.kill(actor)

    def stop_movers(self, settings: Settings, tenancy: str) -> asyncio.Future[list[str]]:
        return asyncio.ensure_future(self._stopped(settings, tenancy))

    async def _stopped(self, settings: Settings, tenancy: str) -> list[str]:
        """As `registry.stop_movers` and `Kind.stop`, which wait in a thread. Raises: TestbedError -
        one does not end.
        """
        stopped = []
        for kind in MOVERS:
            other = kind.running(settings, tenancy)
            if other is None or other.pid == ACTOR.get().pid:
                continue
            actor = self.desk.processes[other.pid]
            self.stop(actor)
            give_up = self.loop.now + STOP_S
            while not actor.dead:
                if self.loop.now > give_up:
                    raise TestbedError(f"the {kind.noun} {actor} does not end")
                await asyncio.sleep(0.02)
            stopped.append(f"{kind.noun}{other.of} stopped")
        return stopped


class Adapted(Judge):
    """An adapter moves light under its lock alone, and leaves hosts that reach each other; a dead
    one does not count.
    """

    world: AdaptWorld

    def __init__(self, world: AdaptWorld) -> None:
        super().__init__(world)
        self.stolen: dict[str, float] = {}
        """When the locks of runs were taken."""

    def committed(self, actor: Actor) -> None:
        if "locks" in self.world.touched:
            for row in self.world.reader.execute("SELECT run FROM locks WHERE state='stolen'"):
                self.stolen.setdefault(row["run"], self.world.loop.now)

    def sends(self, actor: Actor, device: str, line: str, writes: bool) -> None:
        if not writes or actor not in self.world.adapters:
            return
        query = (
            "SELECT runs.id, locks.state FROM runs JOIN locks ON locks.run=runs.id"
            " WHERE runs.pid=? AND runs.verb='adapt' ORDER BY runs.rowid DESC"
        )
        row = self.world.reader.execute(query, (actor.pid,)).fetchone()
        if row is None or (
            row["state"] != "active"
            and self.world.loop.now > self.stolen.get(row["id"], 0.0) + STOLEN_S
        ):
            self.broken(f"{actor} sends {line!r} to {device} without a lock")

    def ended(self, actor: Actor, verb: str, came: Any) -> None:
        owner: str = actor.owner  # type: ignore[attr-defined]
        if (
            verb == "down"
            and not isinstance(came, (str, BaseException))
            and not came.left
            and self.world.alive(owner)
        ):
            waiting = [
                one for one in self.world.alive(owner) if one.began < self.world.loop.now - STOP_S
            ]
            if waiting:
                self.broken(f"{actor} is done, and {waiting} live")

    def rest(self, when: str) -> None:
        world = self.world
        for owner in OWNERS:
            place = ADAPTER.running(world.settings(owner), world.tenancy(owner))
            if (place is not None) is not bool(world.alive(owner)):
                self.broken(
                    f"{when}: of {owner}: {world.alive(owner)} live, and there is said to be {place}"
                )
            row = world.reader.execute(
                "SELECT * FROM current WHERE lab=?", (world.tenancy(owner),)
            ).fetchone()
            if row is None or world.store.unfinished(world.key, owner):
                continue
            links = [(a, b) for a, _, b, _, _ in json.loads(row["up"])["links"]]
            hosts = sorted({host for link in links for host in link})
            for host in hosts:
                agent = world.hosts[host].agent
                active = None if agent is None else agent.generations.active
                if active not in (None, row["generation"]):
                    self.broken(f"{when}: {host} runs {active}, and {row['generation']} is in use")
            calm = all(
                (agent := world.hosts[host].agent) is not None and agent.generations.active
                for host in hosts
            )
            for one, other in (
                combinations(hosts, 2) if calm and "adapt" in json.loads(row["plan_text"]) else ()
            ):
                for source, target in ((one, other), (other, one)):
                    for address in world.packets.addresses(target):
                        if world.packets.path(source, address) is None:
                            self.broken(
                                f"{when}: {source} does not reach {target}, and both are at the packet switch"
                            )


class Adapters(Jobs):
    """See the module."""

    world_of = AdaptWorld
    world: AdaptWorld
    message = ("up", "down", "adapt", "adapt stop", "job stop", "job launch", "job status")
    judges = (Adapted, Left, Reported, OthersRanks, Once)
    lost_first = 0.0

    @classmethod
    def reword(cls, draw: random.Random, one: Typed) -> Typed:
        first = 1 if one.shell[0] == OWNERS[0] else 5
        links = ((f"gpu{first:02d}:p1", f"gpu{first + 1:02d}:p1"),)
        # works beside, on hosts of his own, or wants one of the others
        if one.shell[0] != OWNERS[0]:
            first = draw.choice((5, 5, 5, 4))
            links = ((f"gpu{first:02d}:p3", f"gpu{first + 1:02d}:p3"),)
            return replace(one, word=draw.choice(("up", "up", one.word)), links=links)
        if one.shell[1]:
            word = draw.choice(
                ("adapt", "adapt", "adapt", "adapt stop", "job stop", "job launch", one.word)
            )
            doom = one.doom if draw.random() < 0.4 else ("", 0)
            return replace(one, word=word, links=links, doom=doom, after_s=draw.uniform(4.0, 14.0))
        word = draw.choice(("up", "up", "up", one.word))
        doom = one.doom if draw.random() < 0.4 else ("", 0)
        return replace(
            one, word=word, links=links, doom=doom, after_s=one.after_s + draw.choice((0.0, 20.0))
        )

    @classmethod
    def befalls(cls, draw: random.Random, fate: Fate) -> Fate | None:
        kind = draw.choice(("adapter", "adapter", "rank", fate.kind, fate.kind, fate.kind))
        return replace(fate, kind=kind) if draw.random() < 0.3 else None

    def file(self, typed: Typed) -> Path:
        """Of the first owner a mixture of experts on four hosts; of the other one a link."""
        path = Plot.file(self, typed)
        plan, draw = json.loads(path.read_text()), random.Random(typed.pick)
        if typed.shell[0] == OWNERS[0]:
            hosts = [f"gpu{host:02d}" for host in range(1, 5)]
            ports = draw.choice(((1,), (1,), (1, 2)))
            plan["links"] = [
                {"a": f"{a}:p1", "b": f"{b}:p1"}
                for a, b in ((hosts[0], hosts[1]), (hosts[2], hosts[3]))
            ]
            plan["segments"] = [{"name": "packets", "hosts": hosts}]
            region = {
                "name": "r",
                "hosts": hosts,
                "ports": [f"{h}:p{p}" for h in hosts for p in ports],
                "fallback": "packets",
            }
            args = {"iterations": draw.choice((0, 0, 0, 40)), "drift": draw.choice((3, 6, 20))}
            plan["job"] = {
                "name": "moe",
                "workload": "moe",
                "ranks": hosts,
                "regions": [region],
                "args": args,
            }
            plan["adapt"] = {"every": draw.choice((1, 2, 4)), "dark_share": 1.0}
        plan["transition"] = {"boundary_s": BOUNDARY_S}
        path.write_text(json.dumps(plan))
        self.world.desk.keep(path)
        return path

    async def _shell(self, shell: tuple[str, int]) -> None:
        await super()._shell(shell)
        await asyncio.sleep(max(0.0, STORM_S - self.loop.now))

    async def perform(self, actor: Actor, typed: Typed) -> None:
        world = self.world
        match typed.word:
            case "adapt":
                world.adapt(typed.shell[0], typed.doom)
            case "adapt stop":
                await world.command(actor, self.stopping)
            case "down":
                await world.command(actor, verbs.down, wait_s=typed.wait_s)
            case "up":
                came = await world.command(
                    actor, verbs.up, self.file(typed), UpOptions(), wait_s=typed.wait_s
                )
                if hasattr(came, "run") and typed.shell[0] == OWNERS[0] and typed.pick < 0.7:
                    world.adapt(typed.shell[0])
            case _:
                await super().perform(actor, typed)

    async def stopping(self, command: Any) -> None:
        """`testbed service stop adapt`."""
        await self.world.stop_movers(command.settings, self.world.tenancy(command.settings.owner))

    def strike(self, fate: Fate, draw: random.Random) -> None:
        alive = self.world.alive()
        if fate.kind != "adapter" or not alive:
            super().strike(fate, draw)
            return
        self.loop.note(f"{fate}")
        actor, what = draw.choice(alive), draw.choice(("kill", "kill", "dies", "pause", "stop"))
        if what == "kill":
            self.loop.kill(actor)
        elif what == "dies":
            actor.doom = "point", actor.points + draw.randint(1, 12)
        elif what == "pause":
            self.loop.pause(actor, draw.choice((0.05, 1.0, 8.0)))
        else:
            self.world.stop(actor)
        self.world.struck()

    async def _peace(self) -> None:
        world = self.world
        for actor in world.adapters:
            actor.doom = "", 0
        before = {actor: actor.steps for actor in world.alive()}
        await asyncio.sleep(FOLLOWS_S)
        for actor, steps in before.items():
            if not actor.dead and actor.steps < steps + 50:
                world.broken(f"{actor} does nothing in peace")
        for owner in OWNERS:
            await self.now(owner, self.stopping)
        await super()._peace()

    async def now(
        self, owner: str, verb: Any, *argv: Any, may: tuple[type[BaseException], ...] = ()
    ) -> Any:
        return await super().now(
            owner, verb, *argv, may=(*may, Missing) if verb is verbs.resume else may
        )
