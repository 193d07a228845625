"""Judges of commands from their begin to their end: what `status` says was so meanwhile, and every
command ends.

A look takes a while, and the lab changes under it: each part of what it says must have been so at
one moment of that while.
"""

from __future__ import annotations

import asyncio
from itertools import product
from typing import Any

from tests.sim.judges import Judge
from tests.sim.lab import World, text
from tests.sim.loop import Actor

END_S = 1800.0
"""Within this time (virtual s) of its begin, or of the end of the faults if that is later, every
command ends.
"""


class Look:
    """One `status` that runs. seen: every state that a part of the lab was in; silent: what may not
    have answered.
    """

    def __init__(self, actor: Actor) -> None:
        self.actor = actor
        self.began: float = actor.loop.now
        self.owner: str = actor.owner  # type: ignore[attr-defined]
        self.seen: dict[tuple[str, str], list[Any]] = {}
        self.silent: set[str] = set()

    def note(self, part: str, name: str, state: Any) -> None:
        states = self.seen.setdefault((part, name), [])
        if state not in states:
            states.append(state)


class Status(Judge):
    """What `status` says of a device or a host that answered was so at one moment; and only what
    was disturbed does not answer.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.looks: dict[Actor, Look] = {}
        self.agents = {f"agent-{name}": name for name in world.hosts}

    # ---- what there was

    def begins(self, actor: Actor, verb: str) -> None:
        if verb != "status":
            return
        look = self.looks[actor] = Look(actor)
        for name in self.world.servers:
            self.device(look, name)
        for name in self.world.hosts:
            self.host(look, name)
        self.store(look)
        self.disturbed(look)

    def watches(self, actor: Actor) -> bool:
        return actor in self.world.switches.values() or actor.name in self.agents

    def stepped(self, actor: Actor) -> None:
        for look in self.looks.values():
            if (host := self.agents.get(actor.name)) is not None:
                self.host(look, host)
            else:
                self.device(look, actor.name)

    def committed(self, actor: Actor) -> None:
        if self.world.touched.isdisjoint(("held", "current")):
            return
        for look in self.looks.values():
            self.store(look)

    def struck(self) -> None:
        for look in self.looks.values():
            self.disturbed(look)

    def device(self, look: Look, name: str) -> None:
        for state in self.world.devices[name].shown(self.world.loop.now):
            look.note("device", name, state)

    def host(self, look: Look, name: str) -> None:
        agent = self.world.hosts[name].agent
        if agent is None:
            look.silent.add(name)
        else:
            look.note("host", name, agent.generations.active)

    def store(self, look: Look) -> None:
        """The owner's plan and circuits as the store has them."""
        world = self.world
        query = "SELECT * FROM current WHERE lab=?"
        row = world.reader.execute(query, (world.tenancy(look.owner),)).fetchone()
        links = world.links_of(row) if row else []
        look.note(
            "plan", "", (row["plan_name"], row["generation"], links) if row else ("", None, links)
        )
        wanted, owned, moving = (
            world.wanted(links),
            world.owned(look.owner),
            world.moving(look.owner),
        )
        for name in world.servers:
            look.note("wanted", name, wanted[name])
            if moving:
                look.note("wanted", name, set())
            look.note("owned", name, owned[name])

    def disturbed(self, look: Look) -> None:
        """Note what may fall silent from now on."""
        world = self.world
        # somebody waited for a file, and all stood still, as nobody would elsewhere
        paused = world.loop.stalled_at > look.began
        if look.actor.paused or world.net.slow or world.net.cut or paused:
            look.silent.update(world.servers, world.hosts)
        for name, server in world.servers.items():
            if (
                world.switches[name].paused
                or server.dialect.down(world.loop.now)
                or server.list_faults()
            ):
                look.silent.add(name)
        for name, host in world.hosts.items():
            agent = host.agent
            if (
                agent is None
                or not host.power
                or agent.actor.paused
                or agent.actor.doom[1]
                or host.trouble
            ):
                look.silent.add(name)

    # ---- what is said

    def ended(self, actor: Actor, verb: str, came: Any) -> None:
        look = self.looks.pop(actor, None)
        if look is None or not hasattr(came, "devices"):
            return
        self.disturbed(look)
        self.store(look)  # a turner that began since the last commit is seen by nothing else
        plans = look.seen["plan", ""]
        if (came.plan, came.generation) not in [plan[:2] for plan in plans]:
            self.broken(
                f"of {look.owner}: plan {came.plan}, generation {came.generation}, and there was {plans}"
            )
        for device in came.devices:
            self.shown_of_device(look, device)
        for host in came.hosts:
            place = look.seen.get(("host", host.name), [])
            silent = host.name in look.silent
            if not silent if not host.committer else host.generation not in place:
                self.broken(f"of {look.owner}: {host}, and there was {place}")
        if len(plans) == 1:
            self.shown_of_routes(look, came)

    def shown_of_device(self, look: Look, device: Any) -> None:
        name = device.name
        if not device.ok:
            if name not in look.silent:
                self.broken(f"of {look.owner}: {device}, and nothing was wrong with it")
            return
        lines = set(device.missing), set(device.foreign), device.ours
        held, owned, wanted = (look.seen[part, name] for part in ("device", "owned", "wanted"))
        for h, o, w in product(held, owned, wanted):
            if lines == (text(w - h), text(h - o - w), len(h & o)):
                return
        self.broken(
            f"of {look.owner}: {device}, and there was {held}, owned {owned}, wanted {wanted}"
        )

    def shown_of_routes(self, look: Look, came: Any) -> None:
        """A host that runs other routes than the plan's is told of."""
        _, generation, links = look.seen["plan", ""][0]
        for name in {end.partition(":")[0] for link in links for end in link}:
            existing = look.seen.get(("host", name), [])
            if (
                len(existing) == 1
                and existing[0] != generation
                and name not in look.silent
                and not (came.drift or came.slots)
            ):
                self.broken(
                    f"of {look.owner}: {name} runs {existing[0]}, not {generation}, and status is silent"
                )


class Ends(Judge):
    """Liveness: once faults have stopped, every command ends within `END_S`, unless it goes on
    until it is stopped.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.running: dict[Actor, asyncio.TimerHandle] = {}

    def begins(self, actor: Actor, verb: str) -> None:
        if verb not in self.world.endless:
            self.running[actor] = self.world.loop.later(
                END_S, self.overdue, actor, verb, self.world.loop.now
            )

    def overdue(self, actor: Actor, verb: str, began: float) -> None:
        loop, since = self.world.loop, max(began, self.world.calm_since)
        if loop.now < since + END_S:
            again = min(since, loop.now) + END_S
            self.running[actor] = loop.later(again - loop.now, self.overdue, actor, verb, began)
            return
        what = "its begin" if since == began else "the end of the faults"
        self.broken(
            f"{actor} ({verb}, begun at {began:.1f} s) has not ended {END_S:.0f} s after {what}"
        )

    def ended(self, actor: Actor, verb: str, came: Any) -> None:
        if (timer := self.running.pop(actor, None)) is not None:
            timer.cancel()
