"""What happens in one seed: what owners type into their shells, and what goes wrong. All of it is
decided before it begins.

So a story can be told again without some of its decisions: a command is `c0`, its kill `k0`, a
fate `f0`.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from tests.sim.lab import HOSTS, LINK_S, LOOKER, OWNERS, PORTS, Violation, World
from tests.sim.loop import Actor
from tests.sim.seams import HandsNeeded, Interlock, Missing, UpOptions, locks_of, survey, verbs

SHELLS = [(owner, number) for owner in OWNERS for number in range(2)]
LOOKS = LOOKER, 0
"""The shell of somebody who only looks."""
STORM_S = 105.0
"""When faults stop (virtual s), if commands have not all ended before: the last fate is a minute
old then.
"""
TEXTS = {"up": 10, "down": 2, "rollback": 2, "restore": 2, "status": 1, "steal": 1, "put right": 3}
"""What is typed, and how often."""
FAULTS = (
    *(
        "refuse",
        "swallow",
        "slow",
        "late",
        "drop-before",
        "drop-after",
        "split",
        "garble",
        "twice",
        "stale-read",
        "partial-bulk",
    ),
    *(
        "silent-failure",
        "half-duplex",
        "session-ended",
        "reboot-keep",
        "reboot-lose",
        "merge",
        "unsolicited-before",
    ),
    *("unsolicited-inside", "unsolicited-after", "plna", "hang", "clock-step"),
)
FATES = {
    "kill": 1,
    "pause": 1,
    "fault": 3,
    "cut": 1,
    "slow": 1,
    "host channel": 1.5,
    "agent killed": 1,
    "agent dies": 0.7,
    "clock": 1,
    "disk full": 0.3,
    "device pause": 1,
    "agent pause": 1,
    "host power": 0.25,
    "power": 0.2,
}
"""What goes wrong, and how often."""
OPS = ("commit", "arm", "confirm", "stage", "clear", "revert", "disarm", "fence", "hello", "watch")


@dataclass(frozen=True)
class Typed:
    """One command. after_s: since the one before it in its shell. pick, doom: which of what there
    is; where it is killed.
    """

    name: str
    shell: tuple[str, int]
    after_s: float
    word: str
    wait_s: float
    links: tuple[tuple[str, str], ...]
    pick: float
    doom: tuple[str, int]

    @property
    def kill(self) -> str:
        """The name of its kill."""
        return f"k{self.name[1:]}"

    def __str__(self) -> str:
        doom = f", {self.kill}: killed at {self.doom[0]} {self.doom[1]}" if self.doom[1] else ""
        what = (
            " ".join(f"{a}-{b}" for a, b in self.links) if self.word == "up" else f"{self.pick:.3f}"
        )
        return f"{self.name} {self.shell[0]}{self.shell[1]} after {self.after_s:.2f} s: {self.word} {what} wait {self.wait_s:g}{doom}"


@dataclass(frozen=True)
class Fate:
    """One thing that goes wrong at a time (s). seed: of all else that is chosen then."""

    name: str
    at_s: float
    kind: str
    seed: int

    def __str__(self) -> str:
        return f"{self.name} at {self.at_s:.2f} s: {self.kind}"


def links_of(draw: random.Random, owner: str) -> tuple[tuple[str, str], ...]:
    """Up to three links between hosts, often of the owner's usual half."""
    half = range(1, HOSTS // 2 + 1) if owner == OWNERS[0] else range(HOSTS // 2 + 1, HOSTS + 1)
    hosts = half if draw.random() < 0.6 else range(1, HOSTS + 1)
    free = [(h, p) for h in hosts for p in range(1, PORTS + 1)]
    links = []
    for _ in range(draw.randint(1, 3)):
        pairs = [(a, b) for a in free for b in free if a[0] < b[0] and (a[1] - b[1]) % 2 == 0]
        if not pairs:
            break
        a, b = draw.choice(pairs)
        free = [end for end in free if end not in (a, b)]
        links.append((f"gpu{a[0]:02d}:p{a[1]}", f"gpu{b[0]:02d}:p{b[1]}"))
    return tuple(links)


def decisions(seed: str, without: Collection[str] = ()) -> tuple[list[Typed], list[Fate]]:
    """Everything that a seed decides beforehand, but for what has one of these names."""
    draw = random.Random(f"story/{seed}")
    typed: list[Typed] = []
    for shell in SHELLS:
        for number in range(draw.randint(1, 3)):
            word = draw.choices(list(TEXTS), list(TEXTS.values()))[0]
            fate = draw.random()
            doom = (
                ("point", draw.randint(1, 90))
                if fate < 0.12
                else ("step", draw.randint(2, 420))
                if fate < 0.24
                else ("", 0)
            )
            after_s = draw.uniform(0, 2) if not number else draw.expovariate(2.0)
            wait_s = draw.choice((0.0, 0.0, 30.0))
            typed.append(
                Typed(
                    f"c{len(typed)}",
                    shell,
                    after_s,
                    word,
                    wait_s,
                    links_of(draw, shell[0]),
                    draw.random(),
                    doom,
                )
            )
    fates: list[Fate] = []
    at_s = 0.0
    while (at_s := at_s + draw.expovariate(1.0)) < 45.0:
        kind = draw.choices(list(FATES), list(FATES.values()))[0]
        fates.append(Fate(f"f{len(fates)}", at_s, kind, draw.getrandbits(32)))
    for _ in range(draw.choice((0, 1, 2))):
        typed.append(
            Typed(f"c{len(typed)}", LOOKS, draw.uniform(0, 2), "status", 0.0, (), 0.0, ("", 0))
        )
    left_out = [replace(one, doom=("", 0)) if one.kill in without else one for one in typed]
    return [one for one in left_out if one.name not in without], [
        one for one in fates if one.name not in without
    ]


def names(seed: str) -> list[str]:
    """The names of its decisions."""
    typed, fates = decisions(seed)
    return [
        *(one.name for one in typed),
        *(one.kill for one in typed if one.doom[1]),
        *(one.name for one in fates),
    ]


def plan_text(name: str, links: Collection[tuple[str, str]]) -> str:
    accept = {
        "neighbours": False,
        "all_pairs": False,
        "link_up_timeout_s": LINK_S,
        "max_loss_db": 20,
    }
    return json.dumps(
        {
            "schema": "testbed.plan/1",
            "name": name,
            "links": [{"a": a, "b": b} for a, b in links],
            "acceptance": accept,
        }
    )


class Story:
    """Tells a seed in a world. without: names of decisions that are left out."""

    def __init__(self, world: World, seed: str, without: Collection[str] = ()) -> None:
        self.world, self.loop = world, world.loop
        self.typed, self.fates = decisions(seed, without)
        self.draw = random.Random(f"peace/{seed}")
        self.running: dict[tuple[str, int], Actor] = {}
        self.stamp = 0

    async def describe(self) -> None:
        """The storm, then peace. Raises: Violation."""
        shells = [asyncio.ensure_future(self._shell(shell)) for shell in (*SHELLS, LOOKS)]
        evil = asyncio.ensure_future(self._storm())
        await asyncio.wait(shells, timeout=STORM_S)
        evil.cancel()
        await asyncio.gather(evil, return_exceptions=True)
        self.calm()
        await asyncio.gather(*shells)
        await self._peace()

    async def _shell(self, shell: tuple[str, int]) -> None:
        for typed in self.typed:
            if typed.shell == shell:
                await asyncio.sleep(typed.after_s)
                await self.enter(typed)

    # ---- commands

    async def enter(self, typed: Typed) -> None:
        """Carry out one command."""
        world, owner = self.world, typed.shell[0]
        actor = world.process(
            owner, f"{typed.name}-{owner}-{typed.word.replace(' ', '-')}", typed.doom
        )
        self.running[typed.shell] = actor
        match typed.word:
            case "up":
                path = world.folder / f"{typed.name}.json"
                path.write_text(plan_text(f"plan-{typed.name}", typed.links))
                world.desk.keep(path)
                await world.command(
                    actor, verbs.up, path, UpOptions(launch_job=False), wait_s=typed.wait_s
                )
            case "down":
                await world.command(actor, verbs.down, wait_s=typed.wait_s)
            case "restore":
                await world.command(actor, verbs.restore, wait_s=typed.wait_s)
            case "rollback":
                await world.command(actor, verbs.rollback, None, wait_s=typed.wait_s)
            case "status":
                await world.command(actor, survey.status)
            case "put right":
                if runs := self.unfinished(owner):
                    verb = verbs.resume if typed.pick < 0.5 else verbs.rollback
                    await world.command(actor, verb, runs[0].id, wait_s=typed.wait_s)
            case "steal":
                await world.command(actor, self.steal, typed.pick)
        if not actor.dead:
            world.exit(actor)

    async def steal(self, command: Any, pick: float) -> None:
        """`testbed lock steal` of one of the locks that there are."""
        locks = locks_of(self.world.lab, command.settings, command.store)
        if other := locks.listed():
            lock = other[int(pick * len(other))]
            self.loop.note(f"steals {lock.id} of {lock.owner}")
            locks.steal(lock.id, "because")

    def unfinished(self, owner: str) -> list[Any]:
        """What `status` tells an owner to put right, newest first; a look of the world's own, which
        nothing can kill.
        """
        return self.world.store.unfinished(self.world.key, owner)

    # ---- fates

    async def _storm(self) -> None:
        for fate in self.fates:
            await asyncio.sleep(max(0.0, fate.at_s - self.loop.now))
            self.strike(fate, random.Random(fate.seed))

    def strike(self, fate: Fate, draw: random.Random) -> None:
        """Let one thing go wrong, if there is anything that it can happen to."""
        world, loop = self.world, self.loop
        loop.note(f"{fate}")
        victims = [
            a for shell in SHELLS if (a := self.running.get(shell)) is not None and not a.dead
        ]
        host = world.hosts[draw.choice(sorted(world.hosts))]
        device = draw.choice(sorted(world.servers))
        match fate.kind:
            case "kill" if victims:
                loop.kill(draw.choice(victims))
            case "pause" if victims:
                loop.pause(draw.choice(victims), draw.choice((0.05, 1.0, 8.0, 45.0)))
            case "device pause":
                loop.pause(world.switches[device], draw.choice((0.05, 0.4, 2.0)))
            case "agent pause" if host.agent is not None:
                loop.pause(host.agent.actor, draw.choice((0.05, 0.4, 7.0)))
            case "agent killed" if host.agent is not None:
                loop.kill(host.agent.actor)
            case "agent dies" if host.agent is not None:
                host.agent.actor.doom = "point", host.agent.actor.points + draw.randint(1, 12)
            case "fault":
                self.fault(device, draw)
            case "cut":
                world.net.cut = draw.choice((0.0, 0.02, 0.1))
            case "slow":
                world.net.slow, world.net.long_s = (
                    draw.choice((0.0, 0.02, 0.2)),
                    draw.choice((0.1, 1.0, 4.0)),
                )
            case "host channel":
                host.trouble[draw.choice(OPS)] = draw.choice(("cut before", "cut after"))
            case "clock":
                world.desk.wall_s += draw.choice((-3600.0, -5.0, 5.0, 3600.0))
            case "disk full":
                world.disk_full = True
                loop.later(draw.uniform(0.01, 1.0), setattr, world, "disk_full", False)
            case "host power":
                world.host_power(host.name)
            case "power":
                world.desk.lose_power()
        world.struck()

    def fault(self, device: str, draw: random.Random) -> None:
        """Arm a fault of a device."""
        kind = draw.choice(FAULTS)
        if kind in ("silent-failure", "half-duplex", "partial-bulk") and device == "ocs2":
            return  # a Calient that says what is not so is believed: docs/reference/reliability.md
        more: dict[str, Any] = {
            "on": draw.choice(("write", "read")),
            "after": draw.randint(0, 4),
            "count": 1,
        }
        try:
            self.world.servers[device].add_fault(kind, **more)
        except ValueError:  # not of this family
            return
        self.loop.note(f"fault {kind} at {device} {more}")

    # ---- peace

    def calm(self) -> None:
        """Faults stop."""
        world, loop = self.world, self.loop
        loop.note("faults stop")
        world.net.calm()
        world.disk_full = False
        for server in world.servers.values():
            for armed in server.list_faults():
                server.remove_fault(int(str(armed["id"])))
        for actor in loop.actors:
            loop.go_on(actor)
        for host in world.hosts.values():
            host.trouble.clear()
            if host.agent is not None:
                host.agent.actor.doom = "", 0
        world.calm_since = loop.now

    async def _peace(self) -> None:
        """What is left unfinished is put right; then everything must be as the program says."""
        world, draw = self.world, self.draw
        self.loop.note("peace")
        await asyncio.sleep(130.0)  # hosts revert what nobody confirmed
        world.rest("after the storm")
        for owner in draw.sample(OWNERS, 2):
            await self.put_right(owner)
        for owner in draw.sample(OWNERS, 2):
            if not self.unfinished(owner):
                await self.now(owner, survey.status)
        if draw.random() < 0.25:
            await self.now(LOOKER, survey.status)
        for owner in draw.sample(OWNERS, 2):
            await self.now(owner, verbs.down)
            world.rest(f"after down of {owner}")
        world.rest("after all")

    async def put_right(self, owner: str) -> None:
        """Do what `status` tells an owner to do, in one of the two ways."""
        for _ in range(4):
            if not (runs := self.unfinished(owner)):
                return
            begun = [run for run in runs if run.begun]
            verb = self.draw.choice((verbs.resume, verbs.rollback)) if begun else verbs.resume
            came = await self.now(owner, verb, (begun or runs)[0].id, may=(Interlock, Missing))
            if isinstance(came, HandsNeeded) or (
                isinstance(came, Interlock) and self.draw.random() < 0.5
            ):
                return  # another owner uses by now what it needs: told, and `down` ends it
            self.world.rest(f"after {verb.__name__} of {owner}")

    async def now(
        self, owner: str, verb: Any, *argv: Any, may: tuple[type[BaseException], ...] = ()
    ) -> Any:
        """A command in peace, which has to succeed, or to end with one of `may`."""
        self.stamp += 1
        actor = self.world.process(owner, f"p{self.stamp}-{owner}-{verb.__name__}")
        came = await self.world.command(actor, verb, *argv)
        if isinstance(came, BaseException) and not isinstance(came, may):
            raise Violation(
                f"in peace {verb.__name__} of {owner} came to {type(came).__name__}: {came}"
            )
        if not isinstance(came, BaseException) and (left := getattr(came, "left", ())):
            raise Violation(f"in peace {verb.__name__} of {owner} left {left}")
        return came
