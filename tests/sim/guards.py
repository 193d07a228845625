"""The plot of guards: fibres break and are spliced, hosts fall over, and guards of owners' plans
route around what is dark.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations
from typing import Any

from tests.sim.agents import Agent
from tests.sim.judges import Judge
from tests.sim.lab import OWNERS, World
from tests.sim.loop import Actor
from tests.sim.packets import Packets, SimProbes
from tests.sim.plots import Plot
from tests.sim.seams import (
    GUARD,
    STOP_S,
    Budget,
    GuardOptions,
    TestbedError,
    UpOptions,
    guard,
    verbs,
)
from tests.sim.story import Fate, Typed

STORM_S = 46.0
"""Fates go on until then (s), also when nobody types any more."""
HOLD_S = 330.0
"""Light that was spliced is used again after this time (s): `LONGEST_HOLD_S`, and a look."""
DIRECTIONS = ("both", "both", "to the switch", "from the switch")
"""Which fibres of a cable break."""
DONE = ("watching", "on again", "rerouted", "restored")
"""What a guard says when it is in line again with what it sees."""


@dataclass
class Watch:
    """One guard process: whose, and what it has said."""

    owner: str
    stay: bool
    budget: Budget | None = None
    reported: list[Mapping[str, Any]] = field(default_factory=list)
    task: asyncio.Task[Any] | None = None

    @property
    def excuse(self) -> str:
        """Why it could not do what it wanted, if that was the last of what became of it."""
        last = next(
            (one for one in reversed(self.reported) if one["event"] in (*DONE, "failed")), None
        )
        return str(last["message"]) if last is not None and last["event"] == "failed" else ""


class GuardedWorld(World):
    """Fibres break; packets find their way or do not; guards watch."""

    endless = ("guard",)

    def __init__(self, *argv: Any) -> None:
        super().__init__(*argv)
        self.damped = True
        """Whether fibres that were spliced may yet have to stay lit for a while before they are
        used.
        """
        self.cut: dict[str, str] = {}
        """Ports whose fibres are broken, and which of the two."""
        self.guards: dict[Actor, Watch] = {}
        self._packets: Packets | None = None

    @property
    def packets(self) -> Packets:
        if self._packets is None:
            self._packets = Packets(self)
        return self._packets

    def loaded(self, agent: Agent) -> None:
        agent.probes = SimProbes(agent, self.packets)

    def lit(self, port: str) -> bool:
        if self.cut.get(port) in ("both", "from the switch"):
            return False
        leaves = self.cables[port].leaves
        for into, out in self.light[leaves.device]:
            if out == leaves.label:
                sender = self.packets.into.get((leaves.device, into), "")
                return super().lit(port) and self.cut.get(sender) not in ("both", "to the switch")
        return False

    def breaks(self, port: str, direction: str) -> None:
        """A fibre of a port breaks; direction: empty if it is spliced."""
        self.loop.note(f"fibre of {port}: {direction or 'spliced'}")
        self.cut.pop(port, None)
        if direction:
            self.cut[port] = direction
        self._lights()

    # ---- guards

    def alive(self, owner: str = "") -> list[Actor]:
        """The guards that live, or those of one owner."""
        return [
            actor
            for actor, watch in self.guards.items()
            if not actor.dead and owner in ("", watch.owner)
        ]

    def guard(
        self,
        owner: str,
        name: str,
        doom: tuple[str, int],
        *,
        stay: bool,
        budget: Budget | None = None,
    ) -> None:
        """As `testbed service start guard`. budget: of recoveries of jobs."""
        actor = self.process(owner, name, doom)
        watch = self.guards[actor] = Watch(owner, stay, budget)
        options = GuardOptions(stay=stay, jobs=budget is not None, restarts=str(budget or ""))

        async def work(command: Any) -> Any:
            watch.task = asyncio.current_task()
            return await guard(
                command, notify=partial(self._reported, actor, watch), options=options
            )

        work.__name__ = "guard"
        self.loop.start(self.loop.sea, self.command(actor, work)).add_done_callback(self._over)

    def _reported(self, actor: Actor, watch: Watch, event: Mapping[str, Any]) -> None:
        watch.reported.append(event)
        self.loop.note(f"{actor} says {event['event']}: {event['message']}")

    def _over(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.broken(f"a guard ended with {error!r}")

    def stop(self, actor: Actor) -> None:
        """SIGTERM."""
        task = self.guards[actor].task
        self.loop.note(f"TERM {actor}")
        if task is not None:
            task.cancel()

    async def stopped(self, command: Any) -> None:
        """As `Kind.stop`, which waits in a thread. Raises: TestbedError - it does not end."""
        other = GUARD.running(command.settings, self.tenancy(command.settings.owner))
        if other is None:
            return
        actor = self.desk.processes[other.pid]
        self.stop(actor)
        give_up = self.loop.now + STOP_S
        while not actor.dead:
            if self.loop.now > give_up:
                raise TestbedError(f"the guard {actor} does not end")
            await asyncio.sleep(0.02)


class Dark(Judge):
    """A guard moves no light; and whoever light connects reaches each other, or their guard has
    said why not.
    """

    world: GuardedWorld

    def sends(self, actor: Actor, device: str, line: str, writes: bool) -> None:
        if writes and actor in self.world.guards:
            self.broken(f"{actor} sends {line!r} to {device}")

    def rest(self, when: str) -> None:
        for actor in self.world.alive():
            watch = self.world.guards[actor]
            query = "SELECT plan_text, generation FROM current WHERE lab=?"
            row = self.world.reader.execute(query, (self.world.tenancy(watch.owner),)).fetchone()
            if row is not None and not watch.excuse:
                self.plan(
                    f"{when}: {actor}", watch, json.loads(row["plan_text"]), row["generation"]
                )

    def plan(self, when: str, watch: Watch, plan: Mapping[str, Any], generation: int) -> None:
        packets, hosts = self.world.packets, self.world.hosts
        links = [(link["a"], link["b"]) for link in plan["links"]]
        lit = [(a, b) for a, b in links if packets.receiver(a) == b and packets.receiver(b) == a]
        groups: list[set[str]] = []
        for link in lit:
            ends = {end.partition(":")[0] for end in link}
            joined = [group for group in groups if group & ends]
            groups = [group for group in groups if group not in joined] + [ends.union(*joined)]
        for one, other in (
            pair
            for group in groups
            for each in combinations(sorted(group), 2)
            for pair in (each, each[::-1])
        ):
            for address in packets.addresses(other):
                if packets.path(one, address) is None:
                    self.broken(
                        f"{when}: {one} does not reach {other}, and light does; of {links} lit are {lit}"
                    )
        if len(lit) < len(links):
            return
        state = GUARD.read(
            GUARD.path(self.world.settings(watch.owner), self.world.tenancy(watch.owner))
        )
        if state is None or state.around:
            self.broken(f"{when}: all is lit, and it is {state}")
        for name in sorted({end.partition(":")[0] for link in links for end in link}):
            agent = hosts[name].agent
            if agent is not None and agent.generations.active != generation:
                self.broken(
                    f"{when}: all is lit, and {name} runs {agent.generations.active}, not {generation}"
                )


class OneGuard(Judge):
    """Of the guards of an owner one works, no dead one counts as running; and one ends with its
    plan.
    """

    world: GuardedWorld

    def rest(self, when: str) -> None:
        for owner in OWNERS:
            place = GUARD.running(self.world.settings(owner), self.world.tenancy(owner))
            alive = self.world.alive(owner)
            if len(alive) > 1 or (place is not None) is not bool(alive):
                self.broken(f"{when}: of {owner}: {alive} live, and there is said to be {place}")
            up = self.world.reader.execute(
                "SELECT 1 FROM current WHERE lab=?", (self.world.tenancy(owner),)
            ).fetchone()
            if up is None and any(not self.world.guards[actor].stay for actor in alive):
                self.broken(f"{when}: {alive[0]} goes on, and no plan of {owner} is up")


class Guards(Plot):
    """See the module."""

    world_of = GuardedWorld
    world: GuardedWorld
    message = ("up", "guard", "down")
    launches = False
    """Whether `up` launches jobs."""
    judges = (Dark, OneGuard)

    @classmethod
    def reword(cls, draw: random.Random, one: Typed) -> Typed:
        if one.shell[1]:
            doom = (
                ("step", draw.randint(20, 2500))
                if draw.random() < 0.5
                else ("point", draw.randint(1, 60))
            )
            doom = doom if draw.random() < 0.4 else ("", 0)
            word = "guard" if draw.random() < 0.8 else one.word
            return replace(one, word=word, after_s=draw.uniform(1.0, 12.0), doom=doom)
        word = draw.choice(("up", "up", "up", one.word))
        return replace(
            one,
            word=word,
            links=ring(draw, one.shell[0]),
            after_s=one.after_s + draw.choice((0.0, 12.0)),
        )

    @classmethod
    def befalls(cls, draw: random.Random, fate: Fate) -> Fate | None:
        usual = ("host power", "agent killed", "agent pause", "host channel", fate.kind)
        kind = draw.choice(("fibre", "fibre", "splice", "splice", "guard", draw.choice(usual)))
        return replace(fate, kind=kind) if draw.random() < 0.5 else None

    async def _shell(self, shell: tuple[str, int]) -> None:
        await super()._shell(shell)
        await asyncio.sleep(max(0.0, STORM_S - self.loop.now))

    async def perform(self, actor: Actor, typed: Typed) -> None:
        match typed.word:
            case "guard":
                self.guard(typed.shell[0], f"{actor.name}ing", typed.doom, stay=typed.pick < 0.3)
            case "down" if typed.pick < 0.5:
                await self.world.command(actor, self.down, wait_s=typed.wait_s)
            case "down":
                await self.world.command(actor, verbs.down, wait_s=typed.wait_s)
            case _:
                options = UpOptions(launch_job=self.launches)
                came = await self.world.command(
                    actor, verbs.up, self.file(typed), options, wait_s=typed.wait_s
                )
                # as `up --guard`
                if typed.pick < 0.7 and not isinstance(came, (str, BaseException)):
                    self.guard(
                        typed.shell[0], f"{actor.name}-guard", ("", 0), stay=typed.pick < 0.2
                    )

    def guard(self, owner: str, name: str, doom: tuple[str, int], *, stay: bool) -> None:
        """Have somebody guard the plan of an owner."""
        self.world.guard(owner, name, doom, stay=stay)

    async def quiet(self, seconds: float) -> None:
        """Wait so long (s) in peace, and until guards have done what they had to."""
        await asyncio.sleep(seconds)

    async def down(self, command: Any) -> Any:
        """As the command line does it."""
        await self.world.stopped(command)
        return await verbs.down(command)

    def strike(self, fate: Fate, draw: random.Random) -> None:
        world, port = self.world, draw.choice(sorted(self.world.cables))
        used = sorted(
            {end for one in self.typed if one.word == "up" for link in one.links for end in link}
        )
        match fate.kind:
            case "fibre":
                world.breaks(draw.choice(used or [port]), draw.choice(DIRECTIONS))
            case "splice" if world.cut:
                world.breaks(draw.choice(sorted(world.cut)), "")
            case "guard" if alive := world.alive():
                actor, what = draw.choice(alive), draw.choice(("kill", "kill", "pause", "stop"))
                if what == "kill":
                    self.loop.kill(actor)
                elif what == "pause":
                    self.loop.pause(actor, draw.choice((0.05, 1.0, 8.0)))
                else:
                    world.stop(actor)
            case _:
                super().strike(fate, draw)
                return
        self.loop.note(f"{fate}")
        world.struck()

    async def _peace(self) -> None:
        world = self.world
        for actor in world.guards:
            actor.doom = "", 0
        for owner in OWNERS:
            if not world.alive(owner) and self.draw.random() < 0.7:
                self.guard(owner, f"guard-in-peace-{owner}", ("", 0), stay=self.draw.random() < 0.3)
        await self.quiet(130.0)
        world.rest("while fibres are broken")
        for port in sorted(world.cut):
            world.breaks(port, "")
        await self.quiet(HOLD_S if world.damped else 0.0)
        await super()._peace()
        for actor in world.alive():
            world.stop(actor)
        await asyncio.sleep(STOP_S)
        if left := world.alive():
            world.broken(f"{left} do not end")
        world.rest("after all")

    async def now(
        self, owner: str, verb: Any, *argv: Any, may: tuple[type[BaseException], ...] = ()
    ) -> Any:
        if verb is verbs.down and self.draw.random() < 0.5:
            verb = self.down
        came = await super().now(owner, verb, *argv, may=may)
        await self.quiet(15.0)  # a guard sees another plan within a second, and looks at it
        return came


def ring(draw: random.Random, owner: str) -> tuple[tuple[str, str], ...]:
    """Links among hosts that each have two ways to each other: parallel ones, or round a ring."""
    hosts = [1, 2] if owner == OWNERS[0] else [3, 4]
    if draw.random() < 0.3:
        hosts = draw.sample(range(1, 5), draw.choice((3, 4)))
    free = {host: {0: [2, 4], 1: [1, 3]} for host in hosts}
    links = []
    for a, b in zip(hosts, hosts[1:] + hosts[:1], strict=True):
        kind = draw.choice([kind for kind in (0, 1) if free[a][kind] and free[b][kind]])
        links.append((f"gpu{a:02d}:p{free[a][kind].pop()}", f"gpu{b:02d}:p{free[b][kind].pop()}"))
    return tuple(links)
