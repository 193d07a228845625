"""The states of a move in which the drill of living jobs lets something happen, and what hosts,
ranks and glass show in each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from optics import TestbedError
from orchestrator.hosts import Hello, RankState
from orchestrator.session import Session, load_lab, open_session
from tests.drills.job_truth import HOSTS, Job
from tests.drills.truth import FibrePlant
from tests.end_to_end.conftest import Lab

ENDED = ("idle", "changed", "void", "cannot")
"""States of a rank in which it waits for nobody and keeps nothing for a move."""
WAITING = ("held",)
"""States of a rank in which it does not train."""


@dataclass(frozen=True)
class Now:
    """What is at one moment. ranks: by the agents of the hosts that answer; down: hosts without
    power.
    """

    hellos: Mapping[str, Hello | Exception]
    ranks: tuple[RankState, ...]
    light: FibrePlant
    down: frozenset[str]

    def not_all(self, state: str) -> str:
        """In words which ranks are not in this state of one and the same move; empty where all
        are.
        """
        if (
            {s.state for s in self.ranks} == {state}
            and len({s.move for s in self.ranks}) == 1
            and len(self.ranks) == len(HOSTS)
        ):
            return ""
        return f"not all ranks are {state}: " + ", ".join(
            f"{s.rank} {s.state} in move {s.move}" for s in self.ranks
        )


def now(lab: Lab, job: Job) -> Now:
    """Ask the lab, the agents and, through them, the ranks. A rank whose job has ended is left
    out.
    """
    down = frozenset(name for name, host in lab.ask("status")["hosts"].items() if not host["sshd"])
    name = job.launch()

    async def ranks(session: Session, host: str) -> tuple[RankState, ...]:
        try:
            return tuple(await session.hosts.ring_changes.states(name, [host]))
        except TestbedError:
            return ()

    async def ask() -> tuple[dict[str, Hello | Exception], tuple[RankState, ...]]:
        async with open_session(
            load_lab(lab.inventory), lab.inventory, lab.folder / "look"
        ) as session:
            hellos = dict(
                await session.hosts.channels.connect([host for host in HOSTS if host not in down])
            )
            found = await asyncio.gather(
                *(ranks(session, h) for h, hello in hellos.items() if isinstance(hello, Hello))
            )
        return hellos, tuple(sorted((s for states in found for s in states), key=lambda s: s.rank))

    hellos, states = asyncio.run(ask())
    return Now(hellos, states, lab.light(), down)


@dataclass(frozen=True)
class State:
    """hold: the plan's policy under which it is looked at. like, nth: the point of the change that
    lies in it, see deadly.py.

    missing: what is not as it must be in this state, given the glass before and after the change;
    empty: the state is there.
    """

    hold: str
    like: str
    nth: int
    missing: Callable[[Now, FibrePlant, FibrePlant], str]


def _preparing(seen: Now, here: FibrePlant, _: FibrePlant) -> str:
    found = [s for s in seen.ranks if s.state == "preparing"]
    others = {s.state for s in seen.ranks if found and s.move == found[0].move} - {"preparing"}
    if found and len(found) < len(HOSTS) and not others:
        return _light(seen, here)
    return "no rank connects its next rings: " + ", ".join(
        f"{s.rank} {s.state} in move {s.move}" for s in seen.ranks
    )


def _prepared(seen: Now, here: FibrePlant, _: FibrePlant) -> str:
    return seen.not_all("prepared") or _light(seen, here)


def _held(seen: Now, here: FibrePlant, _: FibrePlant) -> str:
    return seen.not_all("held") or _light(seen, here)


def _dark(seen: Now, here: FibrePlant, other: FibrePlant) -> str:
    return seen.not_all("held") or _broken(seen, here, other)


def _riding(seen: Now, here: FibrePlant, other: FibrePlant) -> str:
    return seen.not_all("prepared") or _broken(seen, here, other)


def _rings_changed(seen: Now, _: FibrePlant, other: FibrePlant) -> str:
    pending = any(
        isinstance(hello, Hello) and hello.pending_s is not None for hello in seen.hellos.values()
    )
    return (
        seen.not_all("changed")
        or _light(seen, other)
        or ("" if pending else "no host waits to be confirmed")
    )


def _confirmed(seen: Now, _: FibrePlant, other: FibrePlant) -> str:
    pending = [
        host
        for host, hello in seen.hellos.items()
        if not isinstance(hello, Hello) or hello.pending_s is not None
    ]
    return (
        seen.not_all("changed")
        or _light(seen, other)
        or (f"not confirmed: {', '.join(pending)}" if pending else "")
    )


def _light(seen: Now, wanted: FibrePlant) -> str:
    return (
        ""
        if all(seen.light[device] == pairs for device, pairs in wanted.items())
        else "the light is elsewhere"
    )


def _broken(seen: Now, here: FibrePlant, other: FibrePlant) -> str:
    ended = any(pairs - seen.light[device] for device, pairs in here.items())
    come = all(pairs <= seen.light[device] for device, pairs in other.items())
    return (
        ""
        if ended and not come
        else "no circuit is broken"
        if not ended
        else "all circuits are made"
    )


STATES: Mapping[str, State] = {
    "preparing": State("never", r"after gpu\d+ job\.prepare", 4, _preparing),
    "prepared": State("never", r"before gpu\d+ arm", 1, _prepared),
    "held": State("always", r"before ocs\d \S+", 1, _held),
    "dark": State("always", r"after ocs\d \S+", 1, _dark),
    "riding": State("never", r"after ocs\d \S+", 1, _riding),
    "changed": State("never", r"before gpu\d+ confirm", 1, _rings_changed),
    "confirmed": State("never", r"after gpu\d+ confirm", len(HOSTS), _confirmed),
}
