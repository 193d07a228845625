"""Stories of a kind: those in which rules meet that the usual ones seldom visit. A seed
`crowd-20000` is of the plot `crowd`.

A plot changes what the usual story of the same number has decided, and adds words to type; all else
is the usual story's.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

from tests.drills.switches import Pair, labels
from tests.sim import lab, story
from tests.sim.judges import Judge
from tests.sim.lab import DRIVERS, HOSTS, OWNERS, World
from tests.sim.loop import Actor
from tests.sim.roadm import AT, RoadmWorld
from tests.sim.seams import Interlock, Missing, Settings, UpOptions, verbs
from tests.sim.story import LOOKS, Fate, Story, Typed

TRUNKS = (11, 12)
"""Ports of both devices with a trunk to the other."""


class Plot(Story):
    """The usual story, of the usual world; `perform` may have more words, and `plan` more in every
    plan.
    """

    world_of: type[World] = World
    message: Collection[str] = ("up",)
    """What `perform` carries out."""
    plan: ClassVar[Mapping[str, Mapping[str, object]]] = {}
    """What every plan has beside the usual."""
    judges: tuple[Callable[[World], Judge], ...] = ()
    """Judges of this plot alone."""

    def __init__(self, world: World, seed: str, without: Collection[str] = ()) -> None:
        super().__init__(world, seed, without)
        self.typed, self.fates = self.decided(seed, without)

    @classmethod
    def decided(cls, seed: str, without: Collection[str] = ()) -> tuple[list[Typed], list[Fate]]:
        """As `story.decisions`, of this plot."""
        draw = random.Random(f"plot/{seed}")
        typed, fates = story.decisions(seed)
        typed = [one if one.shell == LOOKS else cls.reword(draw, one) for one in typed]
        fates = [found for one in fates if (found := cls.befalls(draw, one)) is not None]
        left_out = [replace(one, doom=("", 0)) if one.kill in without else one for one in typed]
        return [one for one in left_out if one.name not in without], [
            one for one in fates if one.name not in without
        ]

    @classmethod
    def reword(cls, draw: random.Random, one: Typed) -> Typed:
        """What is typed instead."""
        return one

    @classmethod
    def befalls(cls, draw: random.Random, fate: Fate) -> Fate | None:
        """What goes wrong instead."""
        return fate

    async def enter(self, typed: Typed) -> None:
        if typed.word not in self.message:
            await super().enter(typed)
            return
        actor = self.world.process(
            typed.shell[0],
            f"{typed.name}-{typed.shell[0]}-{typed.word.replace(' ', '-')}",
            typed.doom,
        )
        self.running[typed.shell] = actor
        await self.perform(actor, typed)
        if not actor.dead:
            self.world.exit(actor)

    async def perform(self, actor: Actor, typed: Typed) -> None:
        """Carry out one of `message`."""
        await self.world.command(
            actor, verbs.up, self.file(typed), UpOptions(launch_job=False), wait_s=typed.wait_s
        )

    def file(self, typed: Typed) -> Path:
        """The plan of an `up`."""
        path = self.world.folder / f"{typed.name}.json"
        plan = json.loads(story.plan_text(f"plan-{typed.name}", typed.links))
        path.write_text(
            json.dumps(
                plan | {key: {**plan.get(key, {}), **more} for key, more in self.plan.items()}
            )
        )
        self.world.desk.keep(path)
        return path


class Crowd(Plot):
    """Everybody wants the same two hosts at once, and waits: locks that are queued for, and that
    grow.
    """

    @classmethod
    def reword(cls, draw: random.Random, one: Typed) -> Typed:
        word = draw.choice(("up", "up", "down", one.word))
        ends = [(host, port) for host in (1, 2, 3) for port in range(1, 5)]
        a, b = draw.choice(
            [(a, b) for a in ends for b in ends if a[0] < b[0] and (a[1] - b[1]) % 2 == 0]
        )
        links = ((f"gpu{a[0]:02d}:p{a[1]}", f"gpu{b[0]:02d}:p{b[1]}"),)
        return replace(
            one,
            word=word,
            links=links,
            wait_s=draw.choice((0.0, 30.0, 30.0)),
            after_s=draw.expovariate(3.0),
        )

    @classmethod
    def befalls(cls, draw: random.Random, fate: Fate) -> Fate | None:
        return fate if draw.random() < 0.3 else None


class SlowWorld(World):
    """Devices settle slowly: it is worth to have hosts hold still meanwhile, and light comes long
    after a command died.
    """

    async def start(self, judges: Any) -> None:
        with (
            patch.object(lab, "SETTLE_S", 0.5),
            patch.object(lab, "PATIENCE_S", 3.0),
            patch.object(lab, "BOOT_S", 2.0),
        ):
            await super().start(judges)


class Hurry(Plot):
    """Commands die just before or after an effect, and the next one is typed at once."""

    world_of = SlowWorld

    @classmethod
    def reword(cls, draw: random.Random, one: Typed) -> Typed:
        word = draw.choice(("up", "up", "put right", "rollback", "down"))
        doom = ("point", draw.randint(8, 50)) if word == "up" and draw.random() < 0.6 else one.doom
        return replace(
            one, word=word, doom=doom, after_s=draw.choice((0.0, one.after_s)), wait_s=30.0
        )

    @classmethod
    def befalls(cls, draw: random.Random, fate: Fate) -> Fate | None:
        return (
            fate
            if fate.kind not in ("host power", "power", "clock") and draw.random() < 0.5
            else None
        )


class Silence(Plot):
    """Hosts fall silent for a while, agents die; and there is more to take down."""

    @classmethod
    def reword(cls, draw: random.Random, one: Typed) -> Typed:
        return replace(one, word=draw.choice(("up", "up", "down", "rollback", one.word)))

    @classmethod
    def befalls(cls, draw: random.Random, fate: Fate) -> Fate | None:
        kinds = (
            "agent pause",
            "agent dies",
            "agent dies",
            "agent dies",
            "agent killed",
            "host power",
            fate.kind,
        )
        return replace(fate, at_s=fate.at_s / 4, kind=draw.choice(kinds))


class Stillness(Plot):
    """Devices stand still or misbehave while there is light to be taken down."""

    @classmethod
    def reword(cls, draw: random.Random, one: Typed) -> Typed:
        return replace(
            one,
            word=draw.choice(("up", "up", "down", "down", "rollback")),
            doom=("", 0),
            after_s=one.after_s + 1.0,
        )

    @classmethod
    def befalls(cls, draw: random.Random, fate: Fate) -> Fate | None:
        return (
            replace(fate, at_s=fate.at_s / 3, kind="device pause") if draw.random() < 0.7 else None
        )


class TrunkWorld(World):
    """Two trunks each way between the two devices, for whoever comes first."""

    async def start(self, judges: Any) -> None:
        def with_trunks(folder: Path, ports: Any) -> None:
            inventory(folder, ports)
            lines = ["trunks:"]
            for number in TRUNKS:
                for start, end in (("ocs1", "ocs2"), ("ocs2", "ocs1")):
                    leaves, enters = (
                        labels(DRIVERS[start], number, number)[1],
                        labels(DRIVERS[end], number, number)[0],
                    )
                    ends = f'from: {{device: {start}, port: "{leaves}"}}, to: {{device: {end}, port: "{enters}"}}'
                    lines.append(f"  - {{name: t{number}-{start}, {ends}}}")
            with (folder / "fibres.yml").open("a") as file:
                file.write("\n".join(lines) + "\n")

        inventory = lab.inventory
        with patch.object(lab, "inventory", with_trunks):
            await super().start(judges)

    def lit(self, port: str) -> bool:
        trunks = {
            (t.end.device, t.end.label): (t.start.device, t.start.label) for t in self.lab.trunks
        }
        leaves = self.cables[port].leaves
        at = (leaves.device, leaves.label)
        for _ in range(8):
            source = next(((at[0], into) for into, out in self.light[at[0]] if out == at[1]), None)
            if source not in trunks:
                return source in self.sources and self.sources[source].power
            at = trunks[source]
        return False

    def wanted(self, links: Any) -> dict[str, set[Pair]]:
        """Over which trunk a circuit goes is the program's choice: it is as the store has it."""
        existing = [
            (a, b) for a, b in links if self.cables[a].enters.device == self.cables[b].enters.device
        ]
        found = super().wanted(existing)
        ends = [self.cables[end].enters for link in links if link not in existing for end in link]
        far = {(port.device, port.label) for port in ends}
        for row in self.reader.execute("SELECT up FROM current"):
            for path in json.loads(row["up"])["paths"]:
                if (path[0][0], path[0][1]) in far:
                    for device, ingress, egress in path:
                        found[device].add((ingress, egress))
        return found


class Trunks(Plot):
    """Links between ports at different devices, for which two owners want the same trunks."""

    world_of = TrunkWorld
    # meters of two emulated devices know nothing of each other
    plan: ClassVar = {"acceptance": {"light_window_db": 20.0}}

    @classmethod
    def reword(cls, draw: random.Random, one: Typed) -> Typed:
        hosts = (1, 2) if one.shell[0] == OWNERS[0] else (HOSTS - 1, HOSTS)
        a, b = draw.randint(1, 4), draw.randint(1, 4)
        return replace(one, links=((f"gpu{hosts[0]:02d}:p{a}", f"gpu{hosts[1]:02d}:p{b}"),))


class Roadm(Plot):
    """Links over wavelengths of one device: two owners want channels next to each other, or those
    of the same hosts.
    """

    world_of = RoadmWorld

    @classmethod
    def reword(cls, draw: random.Random, one: Typed) -> Typed:
        first = 1 if one.shell[0] == OWNERS[0] else HOSTS - 1
        a, b = (
            (first, first + 1)
            if draw.random() < 0.7
            else sorted(draw.sample(range(1, HOSTS + 1), 2))
        )
        links = ((f"gpu{a:02d}:p{AT}", f"gpu{b:02d}:p{AT}"), *one.links[: draw.randint(0, 1)])
        return replace(
            one,
            word=draw.choice(("up", "up", one.word)),
            links=links,
            wait_s=draw.choice((one.wait_s, 30.0)),
        )


class Hold(Plot):
    """Plans that replace parts of each other: traffic is drained, or pairs without another path
    hold still.
    """

    world_of = SlowWorld
    plan: ClassVar = {"transition": {"hold": "always"}}

    @classmethod
    def reword(cls, draw: random.Random, one: Typed) -> Typed:
        first, second = (1, 2) if one.shell[0] == OWNERS[0] else (3, 4)
        ports = draw.sample(range(1, 5), draw.randint(1, 3))
        links = tuple((f"gpu{first:02d}:p{port}", f"gpu{second:02d}:p{port}") for port in ports)
        return replace(one, word="up" if draw.random() < 0.4 else one.word, links=links)


class WatchedWorld(World):
    """`up` leaves a process behind that watches the deadline."""

    quiet = True
    """Until owners have typed something after the storm: a change that nobody watches any more
    waits for that.
    """

    def watch_over(self, settings: Settings, run: str) -> int:
        actor = self.process(settings.owner, f"watch-{run}")
        self.loop.start(self.loop.sea, self.command(actor, verbs.watch, run))
        return actor.pid

    def rest(self, when: str) -> None:
        if not self.quiet:
            super().rest(when)


class Confirm(Plot):
    """Changes that go back unless they are confirmed in time."""

    world_of = WatchedWorld
    message = ("up within", "confirm")

    @classmethod
    def reword(cls, draw: random.Random, one: Typed) -> Typed:
        word = {
            "up": "up within",
            "status": "confirm",
            "steal": "confirm",
            "put right": "confirm",
        }.get(one.word, one.word)
        return replace(
            one, word=word, after_s=one.after_s if word != "confirm" else draw.uniform(0.0, 40.0)
        )

    @classmethod
    def befalls(cls, draw: random.Random, fate: Fate) -> Fate | None:
        # with a power loss of the machine it may add an hour to the deadline
        return fate if fate.kind != "clock" else None

    async def perform(self, actor: Actor, typed: Typed) -> None:
        if typed.word == "confirm":
            await self.world.command(actor, verbs.confirm, None, wait_s=typed.wait_s)
            return
        options = UpOptions(launch_job=False, confirm_s=1.0 + 20.0 * typed.pick)
        await self.world.command(actor, verbs.up, self.file(typed), options, wait_s=typed.wait_s)

    async def now(
        self, owner: str, verb: Any, *argv: Any, may: tuple[type[BaseException], ...] = ()
    ) -> Any:
        came = await super().now(owner, verb, *argv, may=may)
        if verb is verbs.resume:  # of an `up` that is to be confirmed, too
            await super().now(owner, verbs.confirm, None, may=(Interlock, Missing))
        return came

    async def put_right(self, owner: str) -> None:
        if getattr(self.world, "quiet", False):
            for each in OWNERS:
                await self.now(each, verbs.confirm, None, may=(Interlock, Missing))
            await asyncio.sleep(130.0)
            self.world.quiet = False  # type: ignore[attr-defined]
            self.world.rest("after the deadlines")
        await super().put_right(owner)


class InTime(Judge):
    """S7: nothing is confirmed by who comes after the deadline; and what nobody confirmed is up no
    more, once all is put right.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.late: dict[int, str] = {}
        self.known: set[int] = set()

    def committed(self, actor: Actor) -> None:
        if "runs" not in self.world.touched:
            return
        for row in self.world.reader.execute(
            "SELECT id, token, owner FROM runs WHERE verb='confirm'"
        ).fetchall():
            if row["token"] in self.known:
                continue
            self.known.add(row["token"])
            query = "SELECT run FROM awaited WHERE tenancy=? AND state='pending' AND boot=? AND due_ns<?"
            desk = self.world.desk
            now = int((self.world.loop.now - desk.booted) * 1e9)
            for each in self.world.reader.execute(
                query, (self.world.tenancy(row["owner"]), desk.boot, now)
            ):
                self.late[row["token"]] = (
                    f"{row['id']} confirms {each['run']}, and began after its deadline"
                )

    def obeyed(self, host: str, op: str, request: Any) -> None:
        if op == "confirm" and request.get("token") in self.late:
            self.broken(f"S7: {host}: {self.late[request['token']]}")

    def rest(self, when: str) -> None:
        query = (
            "SELECT current.run FROM current JOIN awaited ON awaited.run=current.run"
            " WHERE awaited.state NOT IN ('pending','confirmed')"
            " AND NOT EXISTS (SELECT 1 FROM runs WHERE status NOT IN ('ok','rolled-back') AND resolved_by='')"
        )
        for row in self.world.reader.execute(query):
            self.broken(f"S7 {when}: {row['run']} was not confirmed, and is up")


PLOTS: dict[str, type[Plot]] = {
    "": Plot,
    "crowd": Crowd,
    "hurry": Hurry,
    "silence": Silence,
    "stillness": Stillness,
    "trunks": Trunks,
    "roadm": Roadm,
    "hold": Hold,
    "confirm": Confirm,
}
