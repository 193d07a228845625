"""The plot of turners: plans whose light moves by a schedule, and processes in the background that
turn it until stopped.
"""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from tests.sim import story
from tests.sim.agents import Agent
from tests.sim.judges import Judge
from tests.sim.lab import OWNERS, World
from tests.sim.loop import ACTOR, Actor
from tests.sim.plots import Plot
from tests.sim.seams import (
    MOVERS,
    SCHEDULER,
    STOP_S,
    Missing,
    ScheduleOptions,
    Settings,
    Slots,
    TestbedError,
    begin_schedule,
    run_schedule,
    stop_left,
    verbs,
)
from tests.sim.story import Fate, Typed

STORM_S = 46.0
"""Fates go on until then (s), also when nobody types any more."""
RESTARTS, WITHIN_S = 5, 60.0
"""As in `services.supervise`."""
BEGUN_S = 1.0
"""A slot change that had begun when its lock was taken is completed within this time (s): it is
made ready `LEAD_S` before.
"""
SLOTS_S = 40.0
"""Slots turn so long in peace (s) before they are stopped: several of the longest, and a lease."""


@dataclass
class Kept:
    """A keeper, the scheduler that it has started, and what either leaves. It is the `Popen` of who
    started it, too.
    """

    keeper: Actor
    owner: str
    log: str
    reported: Path
    child: Actor | None = None
    task: asyncio.Task[Any] | None = None
    killed: list[float] = field(default_factory=list)
    stopping: bool = False
    returncode: int | None = None

    @property
    def pid(self) -> int:
        return self.keeper.pid

    def poll(self) -> int | None:
        return None if not self.keeper.dead else self.returncode or 0

    def terminate(self) -> None:
        """Nobody waits for it any more: it is told to end by the world, as `Kind.stop`
        would."""
        self.stopping = True
        if self.task is not None:
            self.task.cancel()

    def wait(self) -> int:
        return 0


class ScheduledWorld(World):
    """Agents have schedules, and commands leave turners behind."""

    endless = ("schedule",)

    def __init__(self, *argv: Any) -> None:
        super().__init__(*argv)
        self.kept: list[Kept] = []
        self.scheduling: set[Actor] = set()
        self.stops: dict[Actor, asyncio.Task[Any] | None] = {}
        """Processes of `service stop schedule` that bring to rest what a dead turner left: others
        find them in its place.
        """
        self.dooms = random.Random(f"turners/{self.seed}")

    def loaded(self, agent: Agent) -> None:
        agent.slots = Slots(agent)  # type: ignore[arg-type]

    def links_of(self, row: sqlite3.Row) -> list[tuple[str, str]]:
        return [(f"{a}:p{p}", f"{b}:p{q}") for a, p, b, q, _ in json.loads(row["up"])["links"]]

    def any_slot(self, row: sqlite3.Row | None) -> bool:
        return row is not None and "schedule" in json.loads(row["plan_text"])

    def moving(self, owner: str) -> bool:
        return bool(self.schedulers(owner))

    def schedulers(self, owner: str = "") -> list[Actor]:
        """The turners that live, or those of one owner."""
        return [
            actor
            for actor in self.loop.actors
            if actor in self.scheduling and not actor.dead and owner in ("", actor.owner)
        ]  # type: ignore[attr-defined]

    # ---- processes

    def spawn(self, settings: Settings, argv: list[str], message: Path) -> Kept:
        message.parent.mkdir(parents=True, exist_ok=True)
        message.touch()
        keeper = self.process(settings.owner, f"keeper-{len(self.kept)}")
        kept = Kept(keeper, settings.owner, argv[argv.index("--log") + 1], message)
        self.kept.append(kept)
        self.loop.note(f"START {keeper}")
        self._schedule(kept)
        return kept

    def _schedule(self, kept: Kept) -> None:
        if kept.keeper.dead or kept.stopping:
            return
        draw = self.dooms
        doom = (
            ("step", draw.randint(50, 4000))
            if draw.random() < 0.3
            else ("point", draw.randint(1, 80))
        )
        calm = self.loop.now > self.calm_since
        actor = self.process(
            kept.owner,
            f"turner-{len(self.scheduling)}",
            doom if draw.random() < 0.4 and not calm else ("", 0),
        )
        actor.parent = kept.keeper.pid  # type: ignore[attr-defined]
        kept.child, kept.task = actor, None
        self.scheduling.add(actor)

        async def work(command: Any) -> Any:
            kept.task = asyncio.current_task()
            options = ScheduleOptions(log=kept.log, kept=True)
            return await run_schedule(
                command,
                notify=lambda event: self.loop.note(f"{actor} says {event['message']}"),
                options=options,
            )

        work.__name__ = "schedule"
        task = self.loop.start(self.loop.sea, self.command(actor, work))
        task.add_done_callback(partial(self._over, kept), context=self.loop.context(self.loop.sea))

    def _over(self, kept: Kept, task: asyncio.Task[Any]) -> None:
        if (error := task.exception()) is not None:
            self.broken(f"a turner ended with {error!r}")
            return
        came, now = task.result(), self.loop.now
        if kept.keeper.dead:
            return
        if came == "killed" and not kept.stopping:
            kept.killed = [at for at in kept.killed if now - at < WITHIN_S] + [now]
            if len(kept.killed) <= RESTARTS:
                self.loop.later(0.01, self._schedule, kept)
                return
        if isinstance(came, TestbedError):
            kept.reported.write_text(f"{came.code} {came}\n")
        kept.returncode = int(not hasattr(came, "slot_changes"))
        self.exit(kept.keeper)

    def terminate(self, actor: Actor) -> None:
        """SIGTERM to a keeper or a turner."""
        self.loop.note(f"TERM {actor}")
        if (task := self.stops.get(actor)) is not None:
            task.cancel()
            return
        kept = next(each for each in reversed(self.kept) if actor in (each.keeper, each.child))
        kept.terminate()
        if kept.child is None or kept.child.dead:
            self.exit(kept.keeper)
        elif kept.task is None:
            self.loop.kill(kept.child)

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
            actor = self.desk.processes[other.kept.pid if other.kept.alive else other.pid]
            self.terminate(actor)
            give_up = self.loop.now + STOP_S
            while not actor.dead:
                if self.loop.now > give_up:
                    raise TestbedError(f"the {kind.noun} {actor} does not end")
                await asyncio.sleep(0.02)
            stopped.append(f"{kind.noun}{other.of} stopped")
        return stopped


class SlotChanged(Judge):
    """Slots turn under their run's lock; `status` tells of slots that should turn and do not;
    nothing of it is left after all.
    """

    world: ScheduledWorld

    def __init__(self, world: ScheduledWorld) -> None:
        super().__init__(world)
        self.stolen: dict[str, float] = {}
        """When the locks of runs were taken."""

    def committed(self, actor: Actor) -> None:
        if "locks" in self.world.touched:
            for row in self.world.reader.execute("SELECT run FROM locks WHERE state='stolen'"):
                self.stolen.setdefault(row["run"], self.world.loop.now)

    def sends(self, actor: Actor, device: str, line: str, writes: bool) -> None:
        if not writes or actor not in self.world.scheduling:
            return
        query = (
            "SELECT runs.id, locks.state FROM runs JOIN locks ON locks.run=runs.id"
            " WHERE runs.pid=? AND runs.verb='schedule' ORDER BY runs.rowid DESC"
        )
        row = self.world.reader.execute(query, (actor.pid,)).fetchone()
        if row is None or (
            row["state"] != "active"
            and self.world.loop.now > self.stolen.get(row["id"], 0.0) + BEGUN_S
        ):
            self.broken(f"{actor} sends {line!r} to {device} without a lock")

    def ended(self, actor: Actor, verb: str, came: Any) -> None:
        owner: str = actor.owner  # type: ignore[attr-defined]
        if (
            verb != "status"
            or self.world.loop.now < self.world.calm_since
            or not hasattr(came, "devices")
        ):
            return
        row = self.world.reader.execute(
            "SELECT plan_text FROM current WHERE lab=?", (self.world.tenancy(owner),)
        ).fetchone()
        scheduled = row is not None and "schedule" in json.loads(row["plan_text"])
        if (
            scheduled
            and not self.world.schedulers(owner)
            and not (came.slots or came.drift or came.unfinished)
        ):
            self.broken(f"of {owner}: no slots change, and status is silent")

    def rest(self, when: str) -> None:
        for owner in OWNERS:
            place = SCHEDULER.running(self.world.settings(owner), self.world.tenancy(owner))
            if (place is not None) is not bool(self.world.schedulers(owner)):
                self.broken(
                    f"{when}: of {owner}: {self.world.schedulers(owner)} live, and there is said to be {place}"
                )
        for name, host in self.world.hosts.items():
            if (
                when == "after all"
                and host.agent is not None
                and host.agent.slots.machine is not None
            ):
                self.broken(f"{when}: {name} has a schedule: {host.agent.slots.status()}")


class Schedulers(Plot):
    """See the module."""

    world_of = ScheduledWorld
    world: ScheduledWorld
    message = ("up", "turn", "turn stop")
    judges = (SlotChanged,)

    @classmethod
    def reword(cls, draw: random.Random, one: Typed) -> Typed:
        first, second = (1, 2) if one.shell[0] == OWNERS[0] else (3, 4)
        ends = [(a, b) for a in (1, 3) for b in (1, 3)]
        links = tuple(
            (f"gpu{first:02d}:p{a}", f"gpu{second:02d}:p{b}")
            for a, b in draw.sample(ends, draw.choice((2, 3)))
        )
        if one.shell[1]:
            word = draw.choice(("turn", "turn", "turn stop", "status", one.word))
            return replace(one, word=word, links=links, after_s=draw.uniform(2.0, 15.0))
        word = draw.choice(("up", "up", "up", one.word))
        return replace(one, word=word, links=links, after_s=one.after_s + draw.choice((0.0, 10.0)))

    @classmethod
    def befalls(cls, draw: random.Random, fate: Fate) -> Fate | None:
        kind = draw.choice(("scheduler", "scheduler", "keeper", fate.kind, fate.kind))
        return replace(fate, kind=kind) if draw.random() < 0.4 else None

    def file(self, typed: Typed) -> Path:
        """A plan of slots, or one that stays as it is."""
        path = super().file(typed)
        plan = json.loads(path.read_text())
        if typed.pick < 0.8:
            first, second = (link.partition(":")[0] for link in typed.links[0])
            slots = [{"links": [link]} for link in plan["links"]]
            plan["links"] = [{"a": f"{first}:p2", "b": f"{second}:p2"}] if typed.pick < 0.4 else []
            plan["schedule"] = {"dwell_s": 0.5 + 3.0 * typed.pick, "slots": slots}
        else:
            plan["links"] = plan["links"][:1]
        path.write_text(json.dumps(plan))
        self.world.desk.keep(path)
        return path

    async def _shell(self, shell: tuple[str, int]) -> None:
        await super()._shell(shell)
        await asyncio.sleep(max(0.0, STORM_S - self.loop.now))

    async def perform(self, actor: Actor, typed: Typed) -> None:
        match typed.word:
            case "turn":
                await self.world.command(actor, begin_schedule, ScheduleOptions())
            case "turn stop":
                await self.world.command(actor, self.stop, wait_s=typed.wait_s)
            case _:
                await super().perform(actor, typed)

    async def stop(self, command: Any) -> None:
        """`testbed service stop schedule`."""
        settings = command.settings
        if not await self.world.stop_movers(settings, self.world.tenancy(settings.owner)):
            self.world.scheduling.add(ACTOR.get())
            self.world.stops[ACTOR.get()] = asyncio.current_task()
            await stop_left(command)

    def strike(self, fate: Fate, draw: random.Random) -> None:
        world = self.world
        alive = (
            world.schedulers()
            if fate.kind == "scheduler"
            else [one.keeper for one in world.kept if not one.keeper.dead]
        )
        if fate.kind not in ("scheduler", "keeper") or not alive:
            super().strike(fate, draw)
            return
        self.loop.note(f"{fate}")
        actor = draw.choice(alive)
        if fate.kind == "scheduler" and draw.random() < 0.3:
            self.loop.pause(actor, draw.choice((0.05, 1.0, 8.0)))
        else:
            self.loop.kill(actor)

    async def _peace(self) -> None:
        world = self.world
        for actor in world.scheduling:
            actor.doom = "", 0
        before = {actor: actor.steps for actor in world.schedulers()}
        await asyncio.sleep(SLOTS_S)
        for actor, steps in before.items():
            if not actor.dead and actor.steps < steps + 100:
                world.broken(f"{actor} does not turn in peace")
        for owner in self.draw.sample(OWNERS, 2):
            await self.now(owner, self.stop, may=(Missing,))
        await super()._peace()

    async def now(
        self, owner: str, verb: Any, *argv: Any, may: tuple[type[BaseException], ...] = ()
    ) -> Any:
        came = await super().now(owner, verb, *argv, may=may)
        if verb is verbs.resume and self.world.schedulers(owner):
            await asyncio.sleep(story.LINK_S)
            await super().now(owner, self.stop)
        return came
