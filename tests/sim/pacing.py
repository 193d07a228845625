"""The plot of pacing: jobs of two owners that share the uplinks of racks, and coordinators that
shift their iterations.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import struct
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from tests.sim.agents import Agent, Counters
from tests.sim.jobs import BOUNDARY_S, Jobs, Left, OthersRanks, Reported, RingsChanged
from tests.sim.judges import Judge
from tests.sim.lab import OWNERS
from tests.sim.loop import Actor
from tests.sim.plots import Plot
from tests.sim.ranks import KILLED, Program
from tests.sim.recover import Once
from tests.sim.seams import (
    COORDINATOR,
    FENCED,
    STOP_S,
    CoordinateOptions,
    Missing,
    TestbedError,
    UpOptions,
    coordinate,
    released,
    tenants,
    verbs,
)
from tests.sim.story import Fate, Typed
from tests.sim.switched import AT, SwitchedWorld

STORM_S = 46.0
"""Fates go on until then (s), also when nobody types any more."""
ENDS_S = 20.0
"""A coordinator has seen within this time (s) that fewer than two jobs run."""
LATE_S = 0.2
"""A rank looks so often (s) at most whether it is to go on, and its host may be slow."""
EVENTS_S, ROWS = 0.25, 5
"""The counters of a host come so often (s), so many samples at once."""


class Streamed(Counters):
    """What the port at the packet switch has sent, streamed to whoever asks."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.clients: list[Any] = []

    def counters(self, request: Any = None, client: Any = None, *_: object) -> dict[str, Any]:
        if not isinstance(request, Mapping) or "interval_s" not in request:
            return super().counters()
        self.clients = [one for one in self.clients if one is not client]
        if request["interval_s"] is not None:
            self.clients.append(client)
            self.agent.sim.loop.call_later(EVENTS_S, self._send, client, context=self.agent.context)
        return {}

    def _send(self, client: Any) -> None:
        if client not in self.clients or client not in self.agent.peers:
            return
        now, sent = (
            time.monotonic_ns(),
            sum(rank.sent for rank in self.agent.actor.programs.started),
        )  # type: ignore[attr-defined]
        times = (now - int(EVENTS_S * 1e9 * (ROWS - 1 - n) / ROWS) for n in range(ROWS))
        rows = b"".join(struct.pack("=qQ8Q", at, 1, 0, 0, 0, sent, 0, 0, 0, 0) for at in times)
        packed = base64.b64encode(zlib.compress(rows)).decode()
        client.send({"event": "counters", "t_ns": now, "numbers": [AT], "rows": packed})
        self.agent.sim.loop.call_later(EVENTS_S, self._send, client, context=self.agent.context)


@dataclass
class Paces:
    """A coordinator's process."""

    owner: str
    task: asyncio.Task[Any] | None = None


class PacingWorld(SwitchedWorld):
    """Racks whose uplinks jobs share, and coordinators."""

    endless = ("pacing",)
    racks = ", racks: [{hosts: [gpu01, gpu03], uplink_mbps: 100}, {hosts: [gpu02, gpu04], uplink_mbps: 100}]"
    step_s = 0.2, 0.2

    def __init__(self, *argv: Any) -> None:
        super().__init__(*argv)
        self.pacing: dict[Actor, Paces] = {}

    def loaded(self, agent: Agent) -> None:
        super().loaded(agent)
        agent.samples = Streamed(agent)  # type: ignore[assignment]

    def alive(self) -> list[Actor]:
        """The coordinators that live."""
        return [actor for actor in self.pacing if not actor.dead]

    def coordinate(self, owner: str, doom: tuple[str, int] = ("", 0)) -> None:
        """`testbed service start pacing`."""
        actor = self.process(owner, f"coordinator-{len(self.pacing)}-{owner}", doom)
        paces = self.pacing[actor] = Paces(owner)

        async def work(command: Any) -> Any:
            paces.task = asyncio.current_task()
            return await coordinate(
                command,
                notify=partial(self._reported, actor),
                options=CoordinateOptions(seconds=1.0),
            )

        work.__name__ = "pacing"
        self.loop.start(self.loop.sea, self.command(actor, work)).add_done_callback(self._over)

    def _reported(self, actor: Actor, event: Mapping[str, Any]) -> None:
        self.loop.note(f"{actor} says {event['event']}: {event['message']}")

    def _over(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.broken(f"a coordinator ended with {error!r}")

    def stop(self, actor: Actor) -> None:
        """SIGTERM."""
        self.loop.note(f"TERM {actor}")
        if (task := self.pacing[actor].task) is not None:
            task.cancel()
        else:
            self.loop.kill(actor)

    async def off(self, command: Any) -> Any:
        """As `testbed service stop pacing`. Raises: TestbedError - it does not end."""
        if (other := COORDINATOR.running(command.settings, self.key)) is not None:
            actor, give_up = self.desk.processes[other.pid], self.loop.now + STOP_S
            self.stop(actor)
            while not actor.dead:
                if self.loop.now > give_up:
                    raise TestbedError(f"the coordinator {actor} does not end")
                await asyncio.sleep(0.02)
        return await released(command)


class Paced(Judge):
    """Nobody waits longer than a period, nor beyond its lease; one coordinator works, holds no run,
    and says what is so.
    """

    world: PacingWorld

    def waited(self, rank: Program, notified: Any, seconds: float, paused_s: float) -> None:
        """paused_s: of this time the whole world stood still (`clocks.sleep`)."""
        now_ns, seconds = int((self.world.loop.now - paused_s) * 1e9), seconds - paused_s
        if seconds > notified.period_ns / 1e9 + LATE_S:
            self.broken(
                f"{rank} has waited {seconds:.3f} s, and its period is {notified.period_ns / 1e9:.3f} s"
            )
        if now_ns > notified.until_ns + LATE_S * 1e9:
            self.broken(
                f"{rank} has waited until {now_ns / 1e9:.3f}, and nothing counts after {notified.until_ns / 1e9:.3f}"
            )

    def obeyed(self, host: str, op: str, request: Mapping[str, Any]) -> None:
        query = "SELECT id FROM runs WHERE verb='pacing'"
        if op in FENCED and (run := self.world.reader.execute(query).fetchone()) is not None:
            self.broken(f"{run['id']} is a run of a coordinator")

    def rest(self, when: str) -> None:
        world, alive = self.world, self.world.alive()
        place = COORDINATOR.running(world.settings(OWNERS[0]), world.key)
        if len(alive) > 1 or (place is not None) is not bool(alive):
            self.broken(f"{when}: {alive} live, and there is said to be {place}")
        if not alive:
            now_ns = int(world.loop.now * 1e9)
            if held := [
                rank
                for rank in world.ranks()
                if rank.pace._now is not None and rank.pace._now.until_ns > now_ns
            ]:
                self.broken(f"{when}: {held} are paced, and by nobody")
            return
        found = tenants(world.store, world.lab)
        if len(found) < 2 and min(actor.began for actor in alive) < world.loop.now - ENDS_S:
            self.broken(f"{when}: {alive} goes on, and {[one.name for one in found]} run")
        if place is None or place.state != "pacing" or len(found) < 2:
            return
        for rank in world.ranks():
            if (
                any(rank.name == one.on_hosts for one in found)
                and rank.pace._now is None
                and rank.iteration > 5
            ):
                self.broken(f"{when}: there is {place}, and {rank} is sent nothing")


class Pacing(Jobs):
    """See the module."""

    world_of = PacingWorld
    world: PacingWorld
    message = (
        "up",
        "down",
        "coordinate",
        "coordinate off",
        "job stop",
        "job launch",
        "job pause",
        "job status",
    )
    judges = (Paced, Left, RingsChanged, Reported, OthersRanks, Once)
    plan: ClassVar = {"transition": {"boundary_s": BOUNDARY_S}}
    lost_first = 0.0

    @classmethod
    def reword(cls, draw: random.Random, one: Typed) -> Typed:
        if one.shell[1]:
            word = draw.choice(
                (
                    "coordinate",
                    "coordinate",
                    "coordinate",
                    "coordinate off",
                    "job stop",
                    "job launch",
                    "job pause",
                )
            )
            return replace(one, word=word, links=(), doom=("", 0), after_s=draw.uniform(5.0, 14.0))
        word = draw.choice(("up", "up", "up", "up", one.word))
        doom = one.doom if draw.random() < 0.3 else ("", 0)
        return replace(
            one, word=word, links=(), doom=doom, after_s=one.after_s + draw.choice((0.0, 25.0))
        )

    @classmethod
    def befalls(cls, draw: random.Random, fate: Fate) -> Fate | None:
        kind = draw.choice(("coordinator", "coordinator", "rank", fate.kind, fate.kind))
        return replace(fate, kind=kind) if draw.random() < 0.25 else None

    def file(self, typed: Typed) -> Path:
        """A training over the packet switch, between hosts of two racks."""
        path = Plot.file(self, typed)
        plan, draw = json.loads(path.read_text()), random.Random(typed.pick)
        hosts = ["gpu01", "gpu02"] if typed.shell[0] == OWNERS[0] else ["gpu03", "gpu04"]
        plan["segments"] = [{"name": "packets", "hosts": hosts}]
        args = {
            "iterations": draw.choice((0, 0, 0, 200)),
            "seed": draw.choice((1, 1, 2)),
            "checkpoint_every": 20,
        }
        plan["job"] = {
            "name": "train",
            "workload": "train",
            "ranks": hosts,
            "rings": [hosts],
            "args": args,
        }
        path.write_text(json.dumps(plan))
        self.world.desk.keep(path)
        return path

    async def _shell(self, shell: tuple[str, int]) -> None:
        await super()._shell(shell)
        await asyncio.sleep(max(0.0, STORM_S - self.loop.now))

    async def perform(self, actor: Actor, typed: Typed) -> None:
        world = self.world
        match typed.word:
            case "coordinate":
                world.coordinate(typed.shell[0])
            case "coordinate off":
                await world.command(actor, world.off)
            case "down":
                await world.command(actor, verbs.down, wait_s=typed.wait_s)
            case "up":
                await world.command(
                    actor, verbs.up, self.file(typed), UpOptions(), wait_s=typed.wait_s
                )
            case _:
                await super().perform(actor, typed)

    def strike(self, fate: Fate, draw: random.Random) -> None:
        alive, ranks = self.world.alive(), sorted(self.world.ranks(), key=lambda rank: rank.pid)
        self.loop.note(f"{fate}")
        if fate.kind == "coordinator" and alive:
            actor, what = draw.choice(alive), draw.choice(("kill", "kill", "pause", "stop"))
            if what == "kill":
                self.loop.kill(actor)
            elif what == "pause":
                self.loop.pause(actor, draw.choice((0.5, 8.0, 30.0)))
            else:
                self.world.stop(actor)
        elif fate.kind == "rank" and ranks:
            draw.choice(ranks).ends(KILLED)
        else:
            Plot.strike(self, fate, draw)
            return
        self.world.struck()

    async def _peace(self) -> None:
        for owner in OWNERS:
            if not self.world.alive() and self.draw.random() < 0.4:
                self.world.coordinate(owner)
                await asyncio.sleep(ENDS_S)
        await super()._peace()
        if alive := self.world.alive():
            self.world.broken(f"{alive} do not end")

    async def now(
        self, owner: str, verb: Any, *argv: Any, may: tuple[type[BaseException], ...] = ()
    ) -> Any:
        came = await super().now(
            owner, verb, *argv, may=(*may, Missing) if verb is verbs.resume else may
        )
        if self.world.alive():
            await asyncio.sleep(ENDS_S)
        return came
