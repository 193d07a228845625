"""The slots of a schedule as viewers see them: which is there, how long each had light, what was
late. Pure.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from optics import HostName, Setting
from orchestrator.fabric.transition import per_device
from orchestrator.inventory.lab import Lab
from orchestrator.plan.reader import read_plan
from orchestrator.results import Json
from orchestrator.services.schedule.goals import every, slot_goals
from orchestrator.services.schedule.process import ScheduleState
from orchestrator.store.records import Belonging, CurrentPlan
from orchestrator.telemetry.lineprotocol import Point
from orchestrator.views.live.fabric import DARK, LOST, LiveCircuit, live_circuits

WAITS, BY_SCHEDULE = "waits", "in turn"
"""States of circuits of a schedule: dark until its slot comes; in slots that are too short to be
shown one by one.
"""
FAST_S = 0.25
"""Slots that begin more often than this (s) are shown as a cycle with counts: a picture that
changes as often flickers.
"""
LATEST = 20
"""Times of a slot are medians over so many of its slot changes."""
GRACE_MS = 400.0
"""Light may be away for so long (ms) around a slot change, until hosts and journal have said that
it is back.
"""


@dataclass(frozen=True, slots=True)
class Cycle:
    """The schedule of a plan that is up. settings: of every slot. owner: whose plan it is."""

    owner: str
    name: str
    run: str
    sha: str
    dwell_s: float
    settings: tuple[frozenset[Setting], ...]

    @property
    def moving(self) -> frozenset[Setting]:
        """What is not there in every slot."""
        return frozenset().union(*self.settings) - frozenset.intersection(*self.settings)


def cycle_of(
    lab: Lab, held: Mapping[Setting, Belonging], owner: str, current: CurrentPlan
) -> Cycle | None:
    """The schedule of a plan, beside the circuits of others; None if it has none. Raises: as
    `read_plan`, `slot_goals`.
    """
    plan = read_plan(current.plan_text, current.plan_name, lab)
    if plan.schedule is None:
        return None
    foreign = per_device(frozenset(s for s, b in held.items() if b.owner != owner))
    goals = slot_goals(plan, plan.schedule, lab, foreign)
    settings = tuple(every([goal.wanted]) for goal in goals)
    return Cycle(
        owner, current.plan_name, current.run, current.plan_sha, plan.schedule.dwell_s, settings
    )


@dataclass
class _SlotChanges:
    """What is known of one slot (ms)."""

    dark: deque[float] = field(default_factory=lambda: deque(maxlen=LATEST))
    lit: deque[float] = field(default_factory=lambda: deque(maxlen=LATEST))
    late: deque[float] = field(default_factory=lambda: deque(maxlen=LATEST))
    seen: int = 0
    longer: int = 0


class TimeslotState:
    """Takes the schedule and its turner's state, and points `slot` and `slot_host`. Times are wall
    ms.
    """

    def __init__(self) -> None:
        self.cycle: Cycle | None = None
        self.slot, self.slot_change = 0, 0
        self.state: ScheduleState | None = None
        self._since = 0.0
        self._began: deque[float] = deque(maxlen=LATEST)
        self._slot_changes: dict[int, _SlotChanges] = {}
        self._duty = 0.0
        self._errors: dict[HostName, float] = {}
        self._members: dict[str, frozenset[int]] = {}
        self._fresh = False

    def scheduled(self, cycle: Cycle | None, state: ScheduleState | None) -> None:
        """Take the schedule that is up and what its turner says of itself; a state of another
        plan's turner is left out.
        """
        if state is not None and (cycle is None or state.run != cycle.run):
            state = None
        alive = state is not None and state.alive
        if (
            cycle == self.cycle
            and state == self.state
            and alive == (self.state is not None and self.state.alive)
        ):
            return
        if cycle is None or self.cycle is None or cycle.run != self.cycle.run:
            self._slot_changes, self._errors, self._members = {}, {}, {}
            self._began.clear()
            self._since = self._duty = 0.0
        self.cycle, self.state, self._fresh = cycle, state, True
        if state is not None and not self._since:
            self.slot, self.slot_change = state.slot, state.cycle

    @property
    def scheduled_now(self) -> bool:
        """Whether slots change now: also after the scheduler died, as the store then still has
        those of all slots.
        """
        return (
            self.cycle is not None
            and self.state is not None
            and self.state.state not in ("starting", "ended")
        )

    @property
    def fast(self) -> bool:
        """Whether slots are too short to be shown one by one."""
        return (
            self.cycle is not None
            and (self._period_ms() or self.cycle.dwell_s * 1e3) < FAST_S * 1e3
        )

    def point(self, point: Point) -> bool:
        """Take one point; whether another slot began."""
        if self.cycle is None or point.tags.get("plan") != self.cycle.name:
            return False
        at, slot = point.time_ns / 1e6, int(point.fields.get("slot", 0))
        self._fresh = True
        if point.measurement == "slot_host":
            if "edge_error_ms" in point.fields:
                self._errors[point.tags["host"]] = float(point.fields["edge_error_ms"])
            return False
        begun = slot != self.slot or int(point.fields["cycle"]) != self.slot_change
        before = (slot - 1) % max(1, len(self.cycle.settings))
        if begun or not self._since:
            self.slot, self.slot_change, self._since = slot, int(point.fields["cycle"]), at
            self._began.append(at)
            ended, lit = (
                self._slot_changes.setdefault(before, _SlotChanges()),
                float(point.fields["lit_ms"]),
            )
            ended.seen += 1
            ended.lit.append(lit)
            ended.late.append(float(point.fields["late_ms"]))
            ended.longer += lit > 1.5e3 * self.cycle.dwell_s
            self._slot_changes.setdefault(slot, _SlotChanges()).dark.append(
                float(point.fields["dark_ms"])
            )
        elif (dark := self._slot_changes.setdefault(slot, _SlotChanges()).dark) and float(
            point.fields["dark_ms"]
        ) > dark[-1]:
            dark[-1] = float(point.fields["dark_ms"])
        self._duty = float(point.fields["duty"])
        return begun

    def circuits(self, lab: Lab, held: Mapping[Setting, Belonging]) -> dict[str, LiveCircuit]:
        """The circuits of all slots, by id: each slot's own light is followed by itself."""
        assert self.cycle is not None
        moving, found, members = self.cycle.moving, dict[str, LiveCircuit](), dict[str, set[int]]()
        for index, settings in enumerate(self.cycle.settings):
            for id_, circuit in live_circuits(
                lab, {s: b for s, b in held.items() if s not in moving or s in settings}
            ).items():
                found.setdefault(id_, circuit)
                members.setdefault(id_, set()).add(index)
        whole = len(self.cycle.settings)
        self._members = {
            id_: frozenset(slots) for id_, slots in members.items() if len(slots) < whole
        }
        return found

    def moves(self, id_: str) -> bool:
        """Whether the circuit has slot changes, so that it is dark in some slots."""
        return self.scheduled_now and id_ in self._members

    def state_of(self, id_: str, now: float, carrier: tuple[float, bool]) -> str | None:
        """The state of a circuit that has slot changes; None: it is to carry light, and nothing
        speaks against that.

        carrier: when its receiver was last heard (wall ms), and whether it had carrier.
        """
        if not self.moves(id_):
            return None
        if self.fast:
            return BY_SCHEDULE
        if self.slot not in self._members[id_]:
            return WAITS
        at, lit = carrier
        if lit or now - self._since < GRACE_MS:
            return None
        return DARK if now - at < GRACE_MS else LOST

    def taken(self) -> bool:
        """Whether something changed since the last call."""
        fresh, self._fresh = self._fresh, False
        return fresh

    def _period_ms(self) -> float:
        apart = [b - a for a, b in zip(self._began, list(self._began)[1:], strict=False)]
        return statistics.median(apart) if apart else 0.0

    def worst(self) -> tuple[HostName, float] | None:
        """The host whose latest expectation was most wrong, and by how much (ms)."""
        return max(self._errors.items(), key=lambda item: abs(item[1]), default=None)

    @property
    def status(self) -> str:
        """turning, repairing, stopped, or died: while slots turned."""
        if self.state is None or self.state.state == "ended":
            return "stopped"
        return self.state.state if self.state.alive else "died"

    def text(self) -> str:
        """In a line; empty without a schedule."""
        if self.cycle is None:
            return ""
        if self.status == "stopped":
            return f"slots do not change; slot {self.slot} is there: testbed service start schedule"
        text = f"slot {self.slot} of {len(self.cycle.settings)}, cycle {self.slot_change}"
        if self.fast:
            text = (
                f"{len(self.cycle.settings)} slots, {1e3 / self._period_ms():.0f} a second, cycle {self.slot_change}"
                if self._began
                else text
            )
        if self.status == "died":
            return f"{text}: the schedule service died; to go on: testbed service start schedule"
        text += ", repairing" if self.status == "repairing" else ""
        if self._duty:
            text += f", duty {self._duty:.3f}"
            text += (
                f" (planned {self.state.planned_duty:.3f})"
                if self.state is not None and self.state.planned_duty
                else ""
            )
        text += f", {self.state.late} late" if self.state is not None and self.state.late else ""
        if (worst := self.worst()) is not None:
            text += f", worst host {worst[0]} {worst[1]:+.1f} ms"
        if self.state is not None and self.state.silent:
            text += f", silent: {', '.join(self.state.silent)}"
        return text

    def json(self) -> Json:
        """As viewers receive them; None without a schedule."""
        if self.cycle is None:
            return None
        rows: list[dict[str, Json]] = []
        for index in range(len(self.cycle.settings)):
            known = self._slot_changes.get(index, _SlotChanges())
            times = {
                f"{name}_ms": round(statistics.median(got), 3)
                for name in ("lit", "dark", "late")
                if (got := getattr(known, name))
            }
            worst = {"late_most_ms": round(max(known.late), 3)} if known.late else {}
            circuits = sum(index in slots for slots in self._members.values())
            rows.append(
                {"circuits": circuits, "seen": known.seen, "longer": known.longer, **times, **worst}
            )
        return {
            "plan": self.cycle.name,
            "status": self.status,
            "fast": self.fast,
            "slot": self.slot,
            "cycle": self.slot_change,
            "since": round(self._since, 3),
            "dwell_s": self.cycle.dwell_s,
            "message": self.text(),
            "slots": cast(Json, rows),
        }
