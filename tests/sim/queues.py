"""The plot of the queue: two users add jobs that want each other's hosts, and the processes that
serve them die and start again.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from tests.sim.jobhosts import JobWorld
from tests.sim.jobs import BOUNDARY_S, Left, Reported, RingsChanged
from tests.sim.judges import Judge
from tests.sim.lab import OWNERS
from tests.sim.loop import Actor
from tests.sim.plots import Plot
from tests.sim.ranks import KILLED
from tests.sim.seams import (
    HOLDING,
    QUEUE,
    STOP_S,
    Missing,
    ServiceOptions,
    Settings,
    UpOptions,
    drop,
    queue_add,
    queue_serve,
    queued,
    verbs,
    who,
)
from tests.sim.story import Fate, Typed

STORM_S = 46.0
"""Fates go on until then (s), also when nobody types any more."""
DRAINED_S = 3000.0
"""In peace every job has ended within this time (s): a failed start is tried again after up to 5
minutes.
"""
FOR_S = (10.0, 60.0)
"""How long a job may run, from and to."""


@dataclass
class Serves:
    """A process that serves a user's queue."""

    owner: str
    task: asyncio.Task[Any] | None = None


class QueueWorld(JobWorld):
    """Users have files of their own, and processes that serve their queues."""

    endless = ("serve",)

    def __init__(self, *argv: Any) -> None:
        super().__init__(*argv)
        self.serving: dict[Actor, Serves] = {}

    def settings(self, owner: str, wait_s: float = 0.0) -> Settings:
        return replace(
            super().settings(owner, wait_s),
            data_dir=self.folder / f"data-{owner}",
            store=self.folder / "data",
        )

    @property
    def owners(self) -> Collection[str]:  # type: ignore[override]
        return [
            *OWNERS,
            *(
                row["tenancy"]
                for row in self.reader.execute("SELECT tenancy FROM queue ORDER BY number")
            ),
        ]

    def acts_for(self, who: str, owner: str) -> bool:
        return owner == who or owner.partition(".q")[0] == who

    def alive(self, owner: str = "") -> list[Actor]:
        """The processes that serve, or those of one user."""
        return [
            actor
            for actor, serves in self.serving.items()
            if not actor.dead and owner in ("", serves.owner)
        ]

    def serve(self, owner: str, doom: tuple[str, int] = ("", 0)) -> None:
        """As `testbed service start queue`: one that serves already is found there."""
        if self.alive(owner):
            return
        actor = self.process(owner, f"server-{len(self.serving)}-{owner}", doom)
        serves = self.serving[actor] = Serves(owner)

        async def serve(command: Any) -> Any:
            serves.task = asyncio.current_task()
            return await queue_serve(
                command, notify=partial(self._reported, actor), options=ServiceOptions()
            )

        self.loop.start(self.loop.sea, self.command(actor, serve)).add_done_callback(self._over)

    def _reported(self, actor: Actor, event: Mapping[str, Any]) -> None:
        self.loop.note(f"{actor} says {event['event']}: {event['message']}")

    def _over(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.broken(f"a server of the queue ended with {error!r}")

    def stop(self, actor: Actor) -> None:
        """SIGTERM."""
        self.loop.note(f"TERM {actor}")
        if (task := self.serving[actor].task) is not None:
            task.cancel()
        else:
            self.loop.kill(actor)


class Queue(Judge):
    """No host is of two jobs; a job is done once; one that has ended holds nothing, and one that
    failed says why.
    """

    world: QueueWorld

    def committed(self, actor: Actor) -> None:
        if "queue" not in self.world.touched:
            return
        existing: dict[str, int] = {}
        for row in self.world.reader.execute(
            f"SELECT number, hosts FROM queue WHERE state IN {HOLDING}"
        ).fetchall():
            for host in json.loads(row["hosts"]):
                if existing.setdefault(host, row["number"]) != row["number"]:
                    self.broken(f"{host} is given to {existing[host]} and to {row['number']}")

    def rest(self, when: str) -> None:
        world = self.world
        for row in world.reader.execute("SELECT * FROM queue").fetchall():
            runs = [
                r["id"]
                for r in world.reader.execute(
                    "SELECT id FROM runs WHERE owner=? ORDER BY token", (row["tenancy"],)
                )
            ]
            tables = [rank for table in world.programs.values() for rank in table.started]
            whole = [
                run
                for run in runs
                if (mine := [r for r in tables if r.name.endswith(run)])
                and all(r.finished for r in mine)
            ]
            query = "SELECT run FROM jobs WHERE lab=? AND state='finished'"
            seen = {r["run"] for r in world.reader.execute(query, (world.tenancy(row["tenancy"]),))}
            # an end that a host forgot with its power, before anybody had looked, is known to
            # nobody: the job is launched again
            if (
                len(
                    known := [
                        run
                        for run in whole
                        if run in seen or all(r.kept for r in tables if r.name.endswith(run))
                    ]
                )
                > 1
            ):
                self.broken(f"{when}: job {row['number']} was done in {known}")
            if row["state"] not in ("done", "failed"):
                continue
            if (
                any(world.owned(row["tenancy"]).values())
                or world.store.current(world.tenancy(row["tenancy"])) is not None
            ):
                self.broken(
                    f"{when}: job {row['number']} is {row['state']}, and has light or a plan"
                )
            if left := [rank for rank in world.ranks() if rank.name.partition(".")[2] in runs]:
                self.broken(f"{when}: job {row['number']} is {row['state']}, and {left} run")
            if row["state"] == "failed" and not row["detail"]:
                self.broken(f"{when}: job {row['number']} failed, and nobody knows why")
            if row["detail"].startswith("finished") and not whole:
                self.broken(
                    f"{when}: job {row['number']} is said to have {row['detail']}, and was never done"
                )


class Served(Judge):
    """One process serves a user, and a dead one does not count."""

    world: QueueWorld

    def rest(self, when: str) -> None:
        for owner in OWNERS:
            place = QUEUE.running(self.world.settings(owner), self.world.key)
            alive = self.world.alive(owner)
            if len(alive) > 1 or (place is not None) is not bool(alive):
                self.broken(f"{when}: of {owner}: {alive} live, and there is said to be {place}")


class Queues(Plot):
    """See the module."""

    world_of = QueueWorld
    world: QueueWorld
    message = ("up", "add", "drop", "serve")
    judges = (Left, RingsChanged, Reported, Queue, Served)
    plan: ClassVar = {"transition": {"boundary_s": BOUNDARY_S}}

    @classmethod
    def reword(cls, draw: random.Random, one: Typed) -> Typed:
        first = draw.choice((1, 1, 2, 3))
        ports = draw.sample(range(1, 5), draw.randint(1, 2))
        links = tuple((f"gpu{first:02d}:p{port}", f"gpu{first + 1:02d}:p{port}") for port in ports)
        word = draw.choice(("add", "add", "add", "serve", "serve", "drop", "up", "down", one.word))
        word = "add" if one.name in ("c0", "c3") else word
        return replace(one, word=word, links=links, after_s=draw.expovariate(0.4))

    @classmethod
    def befalls(cls, draw: random.Random, fate: Fate) -> Fate | None:
        kind = draw.choice(("server", "server", "rank", fate.kind, fate.kind))
        # after a power loss of the machine a job rests by the wall clock: perhaps an hour longer
        if kind == "clock":
            return None
        return replace(fate, kind=kind) if draw.random() < 0.4 else None

    async def _shell(self, shell: tuple[str, int]) -> None:
        await super()._shell(shell)
        await asyncio.sleep(max(0.0, STORM_S - self.loop.now))

    def file(self, typed: Typed) -> Path:
        path = super().file(typed)
        plan, draw = json.loads(path.read_text()), random.Random(typed.pick)
        hosts = sorted({end.partition(":")[0] for link in typed.links for end in link})
        args = {"iterations": draw.choice((0, 20, 60, 100))}
        plan["job"] = {
            "name": typed.name,
            "workload": "train",
            "ranks": hosts,
            "rings": [hosts],
            "args": args,
        }
        path.write_text(json.dumps(plan))
        self.world.desk.keep(path)
        return path

    async def perform(self, actor: Actor, typed: Typed) -> None:
        world, owner, draw = self.world, typed.shell[0], random.Random(typed.pick + 1)
        text = self.file(typed).read_text()

        async def add(command: Any) -> Any:
            more = {"for_s": draw.uniform(*FOR_S), "preemptible": draw.random() < 0.4}
            return queue_add(command, text, typed.name, hosts=None, **more)

        async def drops(command: Any) -> Any:
            if jobs := queued(command.store, world.key):
                return drop(
                    command.store, world.key, who(command.settings), draw.choice(jobs).number
                )
            return None

        match typed.word:
            case "add":
                await world.command(actor, add)
                if draw.random() < 0.8:
                    world.serve(owner, typed.doom if draw.random() < 0.5 else ("", 0))
            case "drop":
                await world.command(actor, drops)
            case "serve":
                world.serve(owner, typed.doom)
            case _:
                await world.command(
                    actor,
                    verbs.up,
                    self.file(typed),
                    UpOptions(launch_job=False),
                    wait_s=typed.wait_s,
                )

    def strike(self, fate: Fate, draw: random.Random) -> None:
        world, ranks = self.world, sorted(self.world.ranks(), key=lambda rank: rank.pid)
        alive = world.alive()
        if fate.kind == "server" and alive:
            actor, what = draw.choice(alive), draw.choice(("kill", "kill", "pause", "stop"))
            if what == "kill":
                self.loop.kill(actor)
            elif what == "pause":
                self.loop.pause(actor, draw.choice((0.5, 5.0, 20.0)))
            else:
                world.stop(actor)
        elif fate.kind == "rank" and ranks:
            draw.choice(ranks).ends(KILLED)
        else:
            super().strike(fate, draw)
            return
        self.loop.note(f"{fate}")
        world.struck()

    async def _stopped(self) -> None:
        """`testbed service stop queue`, of everybody."""
        alive = self.world.alive()
        for actor in alive:
            self.world.stop(actor)
        give_up = self.loop.now + 10 * STOP_S
        while left := [actor for actor in alive if not actor.dead]:
            if self.loop.now > give_up:
                self.world.broken(f"{left} do not end")
                return
            await asyncio.sleep(0.1)

    async def _peace(self) -> None:
        world = self.world
        for actor in world.serving:
            actor.doom = "", 0
        await self._stopped()
        await asyncio.sleep(130.0)
        world.rest("while nobody serves")
        for owner in self.draw.sample(OWNERS, 2):
            await self.put_right(owner)
            await self.now(owner, verbs.down)
        give_up = self.loop.now + DRAINED_S
        while jobs := queued(world.store, world.key):
            for owner in sorted({job.user for job in jobs}):
                if not world.alive(owner):
                    world.serve(owner)
            if self.loop.now > give_up:
                world.broken(
                    f"in peace {[(job.number, job.state, job.detail) for job in jobs]} do not end"
                )
                return
            await asyncio.sleep(2.0)
        await asyncio.sleep(STOP_S)
        if alive := world.alive():
            world.broken(f"{alive} serve an empty queue")
        await super()._peace()
        for row in world.reader.execute("SELECT tenancy FROM queue").fetchall():
            await self.now(row["tenancy"], verbs.job_status, may=(Missing,))
