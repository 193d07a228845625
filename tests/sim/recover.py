"""The plot of recovery: guards that look after jobs, whose ranks are killed or stand still, and
whose hosts lose power.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.sim.agents import Agent
from tests.sim.guards import Dark, GuardedWorld, Guards, OneGuard, Watch, ring
from tests.sim.jobhosts import JobWorld
from tests.sim.jobs import Jobs, Left, OthersRanks, Reported, RingsChanged, owner_of
from tests.sim.judges import Judge
from tests.sim.lab import OWNERS
from tests.sim.loop import Actor
from tests.sim.ranks import Program
from tests.sim.seams import FIRST_BACKOFF_S, Budget
from tests.sim.shown import iterations
from tests.sim.story import Fate, Typed

PER_S = 7200.0
"""The period of the budgets: longer than a story."""
SETTLED_S = 1500.0
"""Within this time (s) of peace a guarded job runs, has ended, or its guard has said why not: four
attempts, each of which may wait for two minutes for iterations, and the pauses between."""
GOES_ON_S = 30.0
"""A job that makes iterations has made one within this time (s)."""
BRINGS_BACK = ("up", "resume", "rollback", "restore", "job_launch", "job_restore")
"""What a user types that may launch a job which was stopped."""


class RecoverWorld(GuardedWorld, JobWorld):
    """Guarded plans with jobs."""

    def __init__(self, *argv: Any) -> None:
        super().__init__(*argv)
        self.damped = False

    def loaded(self, agent: Agent) -> None:
        GuardedWorld.loaded(self, agent)
        JobWorld.loaded(self, agent)

    def breaks(self, port: str, direction: str) -> None:
        self.damped = True
        super().breaks(port, direction)

    def run_of(self, rank: Program) -> Any:
        """The run that launched a rank."""
        return self.reader.execute(
            "SELECT * FROM runs WHERE id=?", (rank.name.partition(".")[2],)
        ).fetchone()

    def recovers(self, rank: Program) -> bool:
        """Whether a guard has launched this rank."""
        query = "SELECT 1 FROM recoveries WHERE run=?"
        return self.reader.execute(query, (rank.name.partition(".")[2],)).fetchone() is not None


class Evicts(Dark):
    """A guard moves no light, but to replace a host."""

    world: RecoverWorld

    def sends(self, actor: Actor, device: str, line: str, writes: bool) -> None:
        query = "SELECT 1 FROM recoveries WHERE pid=? AND outcome='' AND action LIKE 'evict %'"
        if writes and self.world.reader.execute(query, (actor.pid,)).fetchone() is None:
            super().sends(actor, device, line, writes)


def started(world: JobWorld, name: str) -> list[Program]:
    """All ranks that a job ever had, by its name on hosts."""
    return [
        rank for table in world.programs.values() for rank in table.started if rank.name == name
    ]


class Once(Judge):
    """A host runs one incarnation of an owner's job at a time."""

    world: JobWorld

    def launched(self, rank: Program) -> None:
        owner = owner_of(self.world, rank.name)
        others = [
            one
            for one in rank.table.alive.values()
            if one.name != rank.name and owner_of(self.world, one.name) == owner
        ]
        if others:
            self.broken(f"{rank} begins, and {others} still run")


class Recovered(Judge):
    """A guard launches a job from its newest checkpoint, within its budget and its pauses, and
    never one that a user has ended.
    """

    world: RecoverWorld

    def __init__(self, world: RecoverWorld) -> None:
        super().__init__(world)
        self.begun: dict[str, list[float]] = defaultdict(list)
        self.known = 0
        self.ended_by: dict[str, tuple[float, str]] = {}
        """Of owners whose job was ended by a command that nothing has followed: when it was done,
        and which.
        """
        self.owed: dict[str, int] = {}
        """The iteration that a launch has to go on after, by the job's name on hosts."""

    def begins(self, actor: Actor, verb: str) -> None:
        if verb in BRINGS_BACK:
            self.ended_by.pop(actor.owner, None)  # type: ignore[attr-defined]

    def ended(self, actor: Actor, verb: str, came: Any) -> None:
        if (
            verb not in ("down", "job_stop")
            or isinstance(came, (str, BaseException))
            or getattr(came, "left", ())
        ):
            return
        owner: str = actor.owner  # type: ignore[attr-defined]
        typed = (
            one
            for one in self.world.loop.actors
            if not one.dead and one.mortal and getattr(one, "owner", "") == owner
        )
        if not any(
            word in one.name
            for one in typed
            for word in ("-up", "-resume", "-put-right", "-rollback", "-restore", "-job-launch")
        ):
            self.ended_by[owner] = self.world.loop.now, f"{actor}"

    def committed(self, actor: Actor) -> None:
        if "recoveries" not in self.world.touched:
            return
        now = self.world.loop.now
        query = "SELECT seq, tenancy, action FROM recoveries WHERE seq>? ORDER BY seq"
        for row in self.world.reader.execute(query, (self.known,)).fetchall():
            self.known = row["seq"]
            watch = self.world.guards.get(actor)
            if watch is None or watch.budget is None:
                self.broken(f"{actor} recovers a job ({row['action']}), and looks after none")
                return
            before = self.begun[row["tenancy"]]
            if before and now < before[-1] + FIRST_BACKOFF_S:
                self.broken(f"{actor} recovers a job again after {now - before[-1]:.1f} s")
            before.append(now)
            if len(before) > watch.budget.restarts:
                self.broken(
                    f"{actor} recovers a job for the {len(before)}th time, and may {watch.budget}"
                )

    def launched(self, rank: Program) -> None:
        if not self.world.recovers(rank):
            return
        owner, run = owner_of(self.world, rank.name), self.world.run_of(rank)
        if (ended := self.ended_by.get(owner)) is not None:
            self.broken(
                f"a guard launches {rank} at {self.world.loop.now:.1f}, which {ended[1]} had ended at {ended[0]:.1f}"
            )
        if rank.name in self.owed:
            return
        tables = self.world.programs.values()
        ranks = [
            one
            for table in tables
            for one in table.started
            if owner_of(self.world, one.name) == owner and one.name != rank.name
        ]
        latest = max(ranks, key=lambda one: one.pid, default=None)
        folder = rank.env["TESTBED_CHECKPOINT_DIR"]
        if latest is None or latest.env["TESTBED_CHECKPOINT_DIR"] != folder:
            self.broken(f"{rank} of {run['id']} keeps checkpoints elsewhere than {latest}")
            return
        kept = [iterations(one.host.disk, folder) for one in ranks if one.name == latest.name]
        self.owed[rank.name] = (
            max(set.intersection(*(each for each in kept if each)), default=0) if any(kept) else 0
        )

    def resumes(self, rank: Program) -> None:
        if rank.iteration < self.owed.get(rank.name, 0):
            self.broken(
                f"{rank} goes on after iteration {rank.iteration}, and there are checkpoints of {self.owed[rank.name]}"
            )


class Fields(Judge):
    """What a guard says of its job, and its last word, are so: its job runs, or it has said why it
    does not.
    """

    world: RecoverWorld

    def excuse(self, owner: str, watch: Watch) -> str:
        """Why the owner's job is neither running nor ended, and is not going to be; empty if that
        was not said.
        """
        last = next(
            (
                one
                for one in reversed(watch.reported)
                if one["event"] in ("recovered", "not recovered", "job fault")
            ),
            None,
        )
        query = "SELECT count(*) FROM recoveries WHERE tenancy=?"
        spent = self.world.reader.execute(query, (self.world.tenancy(owner),)).fetchone()[0]
        if last is None or watch.budget is None or last["event"] != "job fault":
            return ""
        record = self.world.store.latest_job(self.world.tenancy(owner))
        if "none knows of it" in last["message"] and record is not None:
            known = [rank for rank in started(self.world, record.spec.on_hosts) if rank.known]
            if known:
                self.broken(f"of {owner}: {last['message']}, and there is a record of {known}")
            return str(last["message"])
        if "is spent" not in last["message"]:
            return ""
        if spent < watch.budget.restarts:
            self.broken(f"of {owner}: {last['message']}, and {spent} of {watch.budget} are")
        return str(last["message"])

    def owes(self, owner: str) -> str:
        """What an owner's guard has to do for his job yet, in words."""
        world = self.world
        watches = [
            watch
            for actor, watch in world.guards.items()
            if not actor.dead and watch.owner == owner and watch.budget
        ]
        current, record = (
            world.store.current(world.tenancy(owner)),
            world.store.latest_job(world.tenancy(owner)),
        )
        if (
            not watches
            or current is None
            or record is None
            or record.state in ("stopped", "finished")
        ):
            return ""
        if record.ended is not None and record.ended < current.since:
            return ""
        ranks = [rank for rank in world.ranks() if rank.name == record.spec.on_hosts]
        wanted = len(record.spec.wanted.ranks)
        ever = started(world, record.spec.on_hosts)
        if len(ever) == wanted and all(rank.code == 0 for rank in ever):
            return ""  # it has finished
        if len(ranks) == wanted and all(
            rank.beaten_s > world.loop.now - GOES_ON_S for rank in ranks
        ):
            return ""
        return (
            ""
            if self.excuse(owner, watches[-1])
            else f"{record.spec.on_hosts} of {owner} is {record.state}, and {ranks} run"
        )


class Recover(Guards, Jobs):
    """See the module."""

    world_of = RecoverWorld
    world: RecoverWorld
    message = ("up", "guard", "down", "job stop", "job launch", "job pause", "job status")
    judges = (Evicts, OneGuard, Left, RingsChanged, Reported, OthersRanks, Once, Recovered, Fields)
    lost_first = 0.0
    launches = True

    @classmethod
    def reword(cls, draw: random.Random, one: Typed) -> Typed:
        first = 1 if one.shell[0] == OWNERS[0] else 3
        links = tuple((f"gpu{first:02d}:p{port}", f"gpu{first + 1:02d}:p{port}") for port in (1, 2))
        links = ring(draw, one.shell[0]) if draw.random() < 0.3 else links
        if one.shell[1]:
            word = draw.choice(
                ("guard", "guard", "job stop", "job launch", "job pause", "job status", one.word)
            )
            return replace(
                one,
                word=word,
                links=links,
                after_s=draw.uniform(3.0, 16.0),
                doom=one.doom if draw.random() < 0.5 else ("", 0),
            )
        word = draw.choice(("up", "up", "up", one.word))
        doom = one.doom if draw.random() < 0.5 else ("", 0)
        return replace(
            one, word=word, links=links, doom=doom, after_s=one.after_s + draw.choice((0.0, 15.0))
        )

    @classmethod
    def befalls(cls, draw: random.Random, fate: Fate) -> Fate | None:
        # after a power loss of the machine the age of an attempt is told by the wall clock
        if fate.kind == "clock":
            return None
        usual = (
            "agent killed",
            "agent pause",
            "host channel",
            draw.choice(("fibre", "splice")),
            fate.kind,
        )
        kind = draw.choice(
            ("rank", "rank", "rank", "rank", "host power", "guard", draw.choice(usual))
        )
        return replace(fate, kind=kind) if draw.random() < 0.3 else None

    def file(self, typed: Typed) -> Path:
        """A plan with a training that writes checkpoints often; some have spares."""
        path = super().file(typed)
        plan, draw = json.loads(path.read_text()), random.Random(typed.pick + 2)
        if "job" in plan:
            plan["job"]["args"]["checkpoint_every"] = draw.choice((3, 10, 100))
            others = sorted({f"gpu{host:02d}" for host in range(1, 5)} - set(plan["job"]["ranks"]))
            if draw.random() < 0.5:
                plan["spares"] = others[: draw.randint(1, 2)]
        path.write_text(json.dumps(plan))
        self.world.desk.keep(path)
        return path

    def guard(self, owner: str, name: str, doom: tuple[str, int], *, stay: bool) -> None:
        draw = random.Random(f"{self.world.seed}/{name}")
        restarts = random.Random(f"{self.world.seed}/{owner}").randint(1, 4)
        budget = Budget(restarts, PER_S) if draw.random() < 0.9 else None
        self.world.guard(owner, name, doom, stay=stay, budget=budget)

    async def perform(self, actor: Actor, typed: Typed) -> None:
        await (Jobs if typed.word.startswith("job") else Guards).perform(self, actor, typed)

    async def quiet(self, seconds: float) -> None:
        """Also until each guarded job runs, has ended, or will not be tried again, and no guard is
        at work.
        """
        await asyncio.sleep(seconds)
        text = next(judge for judge in self.world.judges if isinstance(judge, Fields))
        give_up = self.loop.now + SETTLED_S
        while left := [found for owner in OWNERS if (found := text.owes(owner))] or self.acting():
            if self.loop.now > give_up:
                self.world.broken(f"in peace {left}, and the guards said {self.last()}")
                return
            await asyncio.sleep(1.0)

    def acting(self) -> list[str]:
        """Attempts that go on."""
        alive = {actor.pid for actor in self.world.alive()}
        query = "SELECT action, pid FROM recoveries WHERE outcome=''"
        return [row["action"] for row in self.world.reader.execute(query) if row["pid"] in alive]

    def last(self) -> Mapping[str, Any]:
        """The latest words of each guard that lives."""
        return {
            f"{actor}": [one["message"] for one in self.world.guards[actor].reported[-3:]]
            for actor in self.world.alive()
        }
