"""A lab on a clock of its own, for the guard and the loop that are the real ones: plans are names,
and each phase of the job has a time of an iteration for each.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

from extensions.tend.budget import HOUR_S
from extensions.tend.guard import Priced
from extensions.tend.loop import Loop
from extensions.tend.service import KIND, TendOptions
from optics import BadFile, Interlock, Missing, NotVerified, RolledBack
from tests.background.toy import settings

BEGIN = 1_795_000_000.0


class Killed(BaseException):
    """As SIGKILL: nothing of the process goes on."""


class SimLab:
    """phases: of the job, each with the time (ms) of an iteration by plan. costs: moves, darkness
    (ms) and watts of a plan; breaks: plans that fail in rehearsal; fails: those that fail on the
    lab. doom: the process is killed at its so many-th step; stops: it is stopped so often while it
    goes back. slower: how many times as long as rehearsed a change is dark; takes_s: `up`. theirs:
    a plan that another command has brought up, to be confirmed, when `up` begins.
    """

    longest_s = 60.0

    def __init__(
        self,
        phases: Sequence[Mapping[str, float]],
        *,
        per_phase: int = 10_000,
        costs: Mapping[str, tuple[int, float, float]] | None = None,
        breaks: Sequence[str] = (),
        fails: Sequence[str] = (),
        doom: int = 0,
        stops: int = 0,
        slower: float = 1.0,
        takes_s: float = 2.0,
        theirs: str = "",
        seed: int = 1,
    ) -> None:
        self.phases, self.per_phase, self.costs = phases, per_phase, costs or {}
        self.breaks, self.fails, self.doom, self.slower = breaks, fails, doom, slower
        self.stops, self.takes_s, self.theirs = stops, takes_s, theirs
        self.dice = random.Random(seed)
        self.plan, self.before, self.due = "base", "", 0.0
        self.clock, self.steps, self.on = BEGIN, 0, dict[str, int]()
        self.spent: list[tuple[float, int, float]] = []
        self.seen = {"base"}
        self.trying: asyncio.Task[Any] | None = None

    @property
    def done(self) -> int:
        return sum(self.on.values())

    def cost(self, name: str) -> tuple[int, float, float]:
        return self.costs.get(name, (4, 50.0, 30.0))

    def ms(self, name: str) -> float:
        return self.phases[self.done // self.per_phase][name]

    def run(self, seconds: float) -> None:
        """The job goes on for so long."""
        end = self.clock + seconds
        while self.clock < end and self.done < self.per_phase * len(self.phases):
            self.iterate()

    def iterate(self) -> float:
        """Raises: Missing - the job has finished."""
        if self.done >= self.per_phase * len(self.phases):
            raise Missing("job sim is finished")
        if self.before and self.clock > self.due:
            self.move(self.before)
        took = self.ms(self.plan) * self.dice.uniform(0.98, 1.02)
        self.clock += took / 1e3
        self.on[self.plan] = self.on.get(self.plan, 0) + 1
        return took

    def move(self, to: str) -> float:
        """Change light; the way back is that of the plan that was tried."""
        tried = self.plan if to == self.before else to
        moves, dark_ms = self.cost(tried)[0], self.cost(tried)[1] * self.slower
        self.clock += dark_ms / 1e3
        self.spent.append((self.clock, moves, dark_ms))
        self.before = "" if to == self.before else self.plan
        self.plan = to
        self.seen.add(to)
        return dark_ms

    def later(self) -> None:
        """An hour after the process died: the watch over the deadline has done its work."""
        if self.before:
            self.clock = max(self.clock, self.due)
            self.move(self.before)

    def step(self) -> None:
        self.steps += 1
        if self.doom and self.steps >= self.doom:
            raise Killed

    # --- as the guard sees it

    def now(self) -> float:
        return self.clock

    def at(self) -> tuple[str, str, Mapping[str, Any]]:
        return self.plan, self.plan, {"name": self.plan}

    async def rest(self, seconds: float) -> None:
        self.step()
        self.run(seconds)

    async def price(self, name: str, text: str) -> Priced:
        self.step()
        self.trying = asyncio.current_task()
        try:
            plan = json.loads(text)["name"]
        except ValueError as error:
            raise BadFile([f"{name}: {error}"]) from error
        if plan not in self.phases[0]:
            raise BadFile([f"{name}: no such plan"])
        moves, dark_ms, watts = self.cost(plan)
        return Priced(plan, text, plan, watts, moves, dark_ms)

    async def rehearse(self, priced: Priced) -> Priced:
        self.step()
        self.run(5)
        if priced.name in self.breaks:
            raise NotVerified("it failed in rehearsal: dark")
        return replace(priced, place="here")

    async def up(self, priced: Priced, within_s: float) -> float:
        self.step()
        assert within_s > 0 and priced.place == "here"
        if self.theirs:
            self.move(self.theirs)
            self.due = self.clock + HOUR_S
            raise Interlock(f"{self.theirs} waits to be confirmed")
        assert not self.before
        self.run(self.takes_s)
        if not priced.moves:  # there is no deadline then
            self.plan = priced.name
            return 0.0
        dark_ms = self.move(priced.name)
        self.due = self.clock + within_s
        self.step()
        if priced.name in self.fails:
            self.move(self.before)
            raise RolledBack(f"{priced.name} failed")
        return dark_ms

    async def iterations(self, count: int, limit_s: float) -> Sequence[float]:
        self.step()
        end, found = self.clock + limit_s, list[float]()
        while len(found) < count and self.clock < end:
            found.append(self.iterate())
        self.step()
        return found

    async def confirm(self) -> None:
        self.step()
        self.before = ""
        self.step()

    async def back(self, priced: Priced) -> float | None:
        self.step()
        if not self.before or self.plan != priced.name:
            return None
        to, self.before = self.before, ""  # once it has begun there is no deadline
        for _ in range(self.stops):
            stopped = self.trying
            assert stopped is not None
            stopped.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        self.before = to
        dark_ms = self.move(to)
        self.step()
        return dark_ms


def plan(name: str) -> str:
    return json.dumps({"name": name})


# --- the loop over phases of a job

PLANS = ("base", "a", "b", "c", "d", "e")
PHASES, PER_PHASE = 20, 6000


def tended(
    lab: SimLab, folder: Path, predicted: Mapping[str, float], **options: Any
) -> tuple[Loop, list[Mapping[str, Any]]]:
    """The loop, until it has ended; with its events. The job's end is not an error here."""
    events: list[Mapping[str, Any]] = []
    here, wanted = settings(folder), TendOptions(workload="w.yaml", **options)
    known = [
        {"name": name, "predicted_ms": ms, "watts": 30.0, "plan": {"name": name}}
        for name, ms in predicted.items()
    ]

    async def work(one: Loop) -> None:
        with suppress(Missing):
            await one.work()

    with KIND.file(here, "lab/ann", KIND.own(here)) as file:
        one = Loop(lab, file, events.append, wanted, known, [], "sim")
        asyncio.run(work(one))
    return one, events


def phases(seed: int) -> list[dict[str, float]]:
    dice = random.Random(seed)
    return [{name: dice.uniform(60, 140) for name in PLANS} for _ in range(PHASES)]


def regrets(seed: int, folder: Path) -> tuple[dict[str, float], Loop]:
    """The mean iteration (ms) of an oracle, who knows each phase's best plan and changes for
    nothing, of the loop, of the best fixed plan and of that of the begin; and the loop.
    """
    times = phases(seed)
    lab = SimLab(times, per_phase=PER_PHASE, seed=seed)
    fixed = {name: mean(phase[name] for phase in times) for name in PLANS}
    began = lab.clock
    loop, _ = tended(lab, folder, fixed, moves=10_000, dark_ms=1e6)
    assert lab.done == PHASES * PER_PHASE
    found = {
        "oracle": mean(min(phase.values()) for phase in times),
        "tend": (lab.clock - began) / lab.done * 1e3,
        "best fixed": min(fixed.values()),
        "plan of the begin": fixed["base"],
    }
    return found, loop
