"""The plot of jobs: plans whose ranks train over their links, and what becomes of them while links
move and commands die.
"""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from tests.sim.guards import ring
from tests.sim.jobhosts import JobWorld
from tests.sim.judges import Judge
from tests.sim.lab import OWNERS, Violation
from tests.sim.loop import Actor
from tests.sim.plots import Plot, SlowWorld
from tests.sim.ranks import KILLED
from tests.sim.seams import HandsNeeded, Infeasible, Missing, UpOptions, layout, verbs
from tests.sim.story import Fate, Typed

BOUNDARY_S = 3.0
PAUSES_S = (2.0, 40.0)
"""Of `job pause --for`, from and to."""
MODES = (None, None, None, "live", "restart", "keep")
TEXTS = ("job pause", "job resume", "job stop", "job launch", "job status")


def owner_of(world: JobWorld, name: str) -> str:
    """Whose job it is that hosts know by this name."""
    row = world.reader.execute(
        "SELECT owner FROM runs WHERE id=?", (name.partition(".")[2],)
    ).fetchone()
    return str(row["owner"]) if row is not None else ""


class Left(Judge):
    """At rest no rank is paused or in a move, none runs but of its owner's latest job, and ranks
    that reach each other go on.
    """

    world: JobWorld

    def rest(self, when: str) -> None:
        latest = {
            owner: self.world.store.latest_job(self.world.tenancy(owner))
            for owner in self.world.owners
        }
        for rank in self.world.ranks():
            record = latest.get(owner_of(self.world, rank.name))
            if record is None or rank.name != record.spec.on_hosts:
                self.broken(
                    f"{when}: {rank} runs, and the latest job is {record and record.spec.on_hosts}"
                )
            if rank.ring_changes is None or rank.store is None:
                continue
            if rank.ring_changes.state:
                self.broken(f"{when}: {rank} is {rank.ring_changes.state}")
            peers = rank.store.ranks.values()
            if rank.beaten_s < self.world.loop.now - 10 * BOUNDARY_S and all(
                one.alive and one.connected for one in peers
            ):
                self.broken(
                    f"{when}: {rank} stands still after iteration {rank.iteration} since {rank.beaten_s:.1f}"
                )


class RingsChanged(Judge):
    """All ranks of a job use the same rings, and those of its record, unless that says that a turn
    may have come about.
    """

    world: JobWorld

    def rest(self, when: str) -> None:
        for owner in self.world.owners:
            record = self.world.store.latest_job(self.world.tenancy(owner))
            if record is None or record.ended is not None:
                continue
            ranks = [
                rank
                for rank in self.world.ranks()
                if rank.name == record.spec.on_hosts and rank.ring_changes is not None
            ]
            rings = tuple(
                tuple(ring) for ring in layout(record.spec.wanted, self.world.lab)["rings"]
            )
            if len(used := {rank.rings for rank in ranks}) > 1 or (
                used and not record.spec.changing and used != {rings}
            ):
                self.broken(f"{when}: {record.spec.on_hosts} has {rings}, and its ranks use {used}")


class Reported(Judge):
    """What a command says of a job was so at one moment of its time; after `down` no rank of its
    owner's runs.
    """

    world: JobWorld

    def __init__(self, world: JobWorld) -> None:
        super().__init__(world)
        self.began: dict[Actor, float] = {}

    def begins(self, actor: Actor, verb: str) -> None:
        self.began[actor] = self.world.loop.now

    def ended(self, actor: Actor, verb: str, came: Any) -> None:
        owner: str = actor.owner  # type: ignore[attr-defined]
        left = [rank for rank in self.world.ranks() if owner_of(self.world, rank.name) == owner]
        if verb == "down" and left and not getattr(came, "left", "an error"):
            self.broken(f"{actor} is done, and {left} run")
        status = came if hasattr(came, "exit_codes") else getattr(came, "job", None)
        if status is not None and status.run:
            self.job(actor, status)

    def job(self, actor: Actor, status: Any) -> None:
        tables = self.world.programs.values()
        ranks = [
            rank
            for table in tables
            for rank in table.started
            if rank.name.partition(".")[2] == status.run
        ]
        went_on = [rank for rank in ranks if rank.ended_s >= self.began[actor]]
        text = f"{actor} says that {status.name} of {status.run} is {status.state}, and {ranks} ended {[r.ended_s for r in ranks]}"
        if status.state == "running" and (len(ranks) < status.ranks or len(went_on) < len(ranks)):
            self.broken(text)
        if status.state in ("stopped", "finished") and any(rank.alive for rank in ranks):
            self.broken(text)
        if status.state == "finished" and any(rank.code != 0 for rank in ranks):
            self.broken(f"{text} with {[rank.code for rank in ranks]}")


class OthersRanks(Judge):
    """A rank is started, moved and stopped only for its owner."""

    world: JobWorld

    def __init__(self, world: JobWorld) -> None:
        super().__init__(world)
        self.typed: set[str] = set()
        """Owners who have typed what needs no run."""

    def begins(self, actor: Actor, verb: str) -> None:
        if verb in ("job_stop", "job_resume"):
            self.typed.add(actor.owner)  # type: ignore[attr-defined]

    def obeyed(self, host: str, op: str, request: Any) -> None:
        if not op.startswith("job."):
            return
        owner, token = owner_of(self.world, request["name"]), request.get("token")
        run = self.world.reader.execute(
            "SELECT id, owner FROM runs WHERE token=?", (token,)
        ).fetchone()
        if (run is None and owner not in self.typed) or (run is not None and run["owner"] != owner):
            self.broken(
                f"{host} does {op} of {request['name']} of {owner!r} for {run and tuple(run)}, token {token}"
            )


class SlowJobWorld(SlowWorld, JobWorld):
    """Links are dark long enough to pause for."""


class Jobs(Plot):
    """See the module."""

    world_of = SlowJobWorld
    world: JobWorld
    message = ("up", *TEXTS)
    judges = (Left, RingsChanged, Reported, OthersRanks)
    plan: ClassVar = {"transition": {"boundary_s": BOUNDARY_S}}
    lost_first = 0.4
    """How often a rank is lost just before a `down` in peace."""

    @classmethod
    def reword(cls, draw: random.Random, one: Typed) -> Typed:
        links = ring(draw, one.shell[0])
        if draw.random() < 0.7 and len(links) > 2:  # fewer meet
            first = 1 if one.shell[0] == OWNERS[0] else 3
            links = tuple(
                (f"gpu{first:02d}:p{port}", f"gpu{first + 1:02d}:p{port}") for port in (1, 2)
            )
        if one.shell[1]:
            word = draw.choice((*TEXTS, "job pause", "job pause", "job resume", one.word))
            return replace(
                one,
                word=word,
                links=links,
                after_s=draw.uniform(3.0, 12.0),
                wait_s=draw.choice((0.0, 30.0)),
            )
        word = draw.choice(("up", "up", "up", "up", one.word))
        doom = ("point", draw.randint(40, 150)) if one.doom[1] and draw.random() < 0.7 else ("", 0)
        return replace(
            one, word=word, links=links, after_s=one.after_s + draw.choice((0.0, 5.0)), doom=doom
        )

    @classmethod
    def befalls(cls, draw: random.Random, fate: Fate) -> Fate | None:
        kind = draw.choice(("rank", fate.kind, fate.kind, fate.kind))
        return replace(fate, kind=kind) if draw.random() < 0.3 else None

    def file(self, typed: Typed) -> Path:
        """A plan with a job on its hosts; most of them the same training."""
        path = super().file(typed)
        plan, draw = json.loads(path.read_text()), random.Random(typed.pick)
        hosts = sorted({end.partition(":")[0] for link in typed.links for end in link})
        plan["transition"]["hold"] = draw.choice(("auto", "always"))
        if draw.random() < 0.95:
            order = list(
                dict.fromkeys(end.partition(":")[0] for link in typed.links for end in link)
            )[:: draw.choice((1, -1))]
            args = {"iterations": draw.choice((0, 0, 0, 30)), "seed": draw.choice((1, 1, 1, 2))}
            plan["job"] = {
                "name": "train",
                "workload": "train",
                "ranks": hosts,
                "rings": [order],
                "args": args,
            }
        path.write_text(json.dumps(plan))
        self.world.desk.keep(path)
        return path

    async def perform(self, actor: Actor, typed: Typed) -> None:
        world, draw = self.world, random.Random(typed.pick + 1)
        match typed.word:
            case "up":
                options = UpOptions(job=draw.choice(MODES), launch_job=draw.random() < 0.9)
                await world.command(actor, verbs.up, self.file(typed), options, wait_s=typed.wait_s)
            case "job pause":
                came = await world.command(
                    actor, verbs.job_pause, wait_s=typed.wait_s, for_s=draw.uniform(*PAUSES_S)
                )
                if hasattr(came, "state") and draw.random() < 0.5:
                    await asyncio.sleep(draw.uniform(0.0, 10.0))
                    again = world.process(typed.shell[0], f"{actor.name}-resume", typed.doom)
                    await world.command(again, verbs.job_resume, wait_s=typed.wait_s)
            case _:
                verb = getattr(verbs, typed.word.replace(" ", "_"))
                await world.command(actor, verb, wait_s=typed.wait_s)

    def strike(self, fate: Fate, draw: random.Random) -> None:
        ranks = self.world.ranks()
        if fate.kind != "rank" or not ranks:
            super().strike(fate, draw)
            return
        self.loop.note(f"{fate}")
        program = draw.choice(sorted(ranks, key=lambda rank: rank.pid))
        if draw.random() < 0.3:
            self.loop.pause(program.actor, draw.choice((0.5, 5.0, 30.0)))
        else:
            program.ends(KILLED)
        self.world.struck()

    async def _peace(self) -> None:
        await super()._peace()
        for owner in OWNERS:
            await self.now(owner, verbs.job_status, may=(Missing,))

    async def now(
        self, owner: str, verb: Any, *argv: Any, may: tuple[type[BaseException], ...] = ()
    ) -> Any:
        mine = [rank for rank in self.world.ranks() if owner_of(self.world, rank.name) == owner]
        if (
            verb is verbs.down and mine and self.draw.random() < self.lost_first
        ):  # `down` is the first to see that the job has failed
            self.draw.choice(sorted(mine, key=lambda rank: rank.pid)).ends(KILLED)
        # of an `up --job live`: another training may have been launched meanwhile
        if verb is verbs.resume:
            may = (*may, Infeasible)
        came = await super().now(owner, verb, *argv, may=(*may, HandsNeeded))
        if isinstance(came, HandsNeeded) and not (
            self.dark(owner) and all(text.startswith("job: ") for text in came.left)
        ):
            raise Violation(f"in peace {verb.__name__} of {owner} came to {came}: {came.left}")
        return came

    def dark(self, owner: str) -> bool:
        """Whether light of an owner's plan was lost: a job cannot start on half of its links,
        though all is as it was before.
        """
        world = self.world
        row = world.reader.execute(
            "SELECT * FROM current WHERE lab=?", (world.tenancy(owner),)
        ).fetchone()
        return row is not None and any(
            pairs - world.devices[device].held()
            for device, pairs in world.wanted(world.links_of(row)).items()
        )
