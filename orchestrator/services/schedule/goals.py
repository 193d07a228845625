"""What each slot of a schedule comes to on this lab: circuits, changes, routes and holds of its
hosts, and its times. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from optics import (
    Change,
    Circuit,
    DeviceName,
    HostName,
    HostPort,
    Infeasible,
    Interlock,
    Link,
    Setting,
    Traits,
)
from optics.plan import Plan, Schedule
from orchestrator.fabric.lightpath import Held
from orchestrator.fabric.rules import Macs, Rules, drain_rules, rules
from orchestrator.fabric.transition import per_device, transition
from orchestrator.inventory.lab import Lab
from orchestrator.plan.schedule import REACTION_S
from orchestrator.plan.target import normal, slowest_device, target

NONE: frozenset[Setting] = frozenset()
LATE_S = 0.1
"""Light that is later (s) than this is not waited for in a hold; longer where slots are long
(`Times`).
"""


@dataclass(frozen=True, slots=True)
class Times:
    """The times of a schedule (s). dark_window_s: from the end of light to the next slot's. late_s:
    how late either may be.
    """

    dwell_s: float
    dark_window_s: float
    guard_s: float
    late_s: float

    @property
    def period_s(self) -> float:
        return self.dwell_s + self.dark_window_s

    def duty(self, *, stored: bool) -> float:
        """The share of time in which devices pass a slot's light, 0 to 1. stored: they change by
        their own clock and keep the dark window.

        Those that are given each slot pass light as soon as they have settled, `REACTION_S` before
        the dark window ends for the hosts.
        """
        return (self.dwell_s + (0.0 if stored else REACTION_S)) / self.period_s


@dataclass(frozen=True, slots=True)
class SlotGoal:
    """One slot. wanted: what the devices hold. falling, rising: host ports whose light ends with
    it, and whose light it brings.
    """

    plan: Plan
    links: tuple[Link, ...]
    circuits: tuple[Circuit, ...]
    wanted: Held
    falling: frozenset[HostPort] = frozenset()
    rising: frozenset[HostPort] = frozenset()


def slot_goals(plan: Plan, schedule: Schedule, lab: Lab, foreign: Held) -> tuple[SlotGoal, ...]:
    """All slots, beside the circuits `foreign` of others. Raises: Infeasible, Interlock - as
    `target`, with the slot's number.
    """
    found: list[SlotGoal] = []
    before: Held = {}
    for index in range(len(schedule.slots)):
        seen = {d: foreign.get(d, NONE) | before.get(d, NONE) for d in lab.devices}
        wanted_plan = plan.slot(index)
        with naming(index):
            goal = target(wanted_plan, lab, seen, every([before]))
        found.append(SlotGoal(wanted_plan, goal.links, goal.circuits, goal.wanted))
        before = goal.wanted
    return tuple(
        _with_ports(one, found[i - 1], found[(i + 1) % len(found)]) for i, one in enumerate(found)
    )


@contextmanager
def naming(slot: int) -> Iterator[None]:
    """Say of which slot it is what is refused before anything moves."""
    try:
        yield
    except (Infeasible, Interlock) as error:
        raise type(error)(f"slot {slot}: {error}", hint=error.hint) from error


def _with_ports(slot: SlotGoal, before: SlotGoal, after: SlotGoal) -> SlotGoal:
    stays, came = every([after.wanted]), every([before.wanted])
    falling = frozenset(c.receiver for c in slot.circuits if not stays.issuperset(c.path))
    rising = frozenset(c.receiver for c in slot.circuits if not came.issuperset(c.path))
    return SlotGoal(slot.plan, slot.links, slot.circuits, slot.wanted, falling, rising)


def every(held: Iterable[Held]) -> frozenset[Setting]:
    """All settings of these."""
    return frozenset(s for one in held for settings in one.values() for s in settings)


def change_to(
    observed: Held, goal: SlotGoal, owned: frozenset[Setting]
) -> Mapping[DeviceName, Change]:
    """What the devices must change to hold this slot. Raises: Interlock - circuits of others are in
    the way.
    """
    return transition(observed, goal.wanted, per_device(owned)).changes


def times_of(
    schedule: Schedule, goals: tuple[SlotGoal, ...], traits: Mapping[DeviceName, Traits], lab: Lab
) -> Times:
    """The times. Raises: Infeasible - all slots are the same, so nothing would ever change."""
    owned, dark_windows = every(g.wanted for g in goals), []
    for i, goal in enumerate(goals):
        seen = {d: goal.wanted.get(d, NONE) for d in lab.devices}
        found = slowest_device(
            transition(seen, goals[(i + 1) % len(goals)].wanted, per_device(owned)), traits
        )
        dark_windows += [found[1]] if found is not None else []
    if not dark_windows:
        raise Infeasible(
            "every slot of the schedule has the same circuits, so there is no slot to change"
        )
    dark_window_s = max(dark_windows) + REACTION_S
    return Times(
        schedule.dwell_s, dark_window_s, schedule.guard_s, max(LATE_S, schedule.dwell_s / 2)
    )


def slot_rules(
    goal: SlotGoal, lab: Lab, macs: Mapping[HostPort, Macs], hosts: Iterable[HostName]
) -> Mapping[HostName, Rules]:
    """The routes of a slot; none for a host that is idle in it."""
    found = rules(goal.links, lab, macs, goal.plan.routes, goal.plan.rings)
    return {host: found.get(host, frozenset()) for host in hosts}


def hold_rules(
    goal: SlotGoal,
    after: SlotGoal,
    lab: Lab,
    macs: Mapping[HostPort, Macs],
    hosts: Iterable[HostName],
) -> Mapping[HostName, Rules]:
    """The routes at the end of a slot: pairs that lose their path have none."""
    kept = kept_links(goal, after)
    found = drain_rules(goal.links, kept, lab, macs, goal.plan.routes, goal.plan.rings, hold=True)
    return {host: found.get(host, frozenset()) for host in hosts}


def generation_rules(
    goals: Sequence[SlotGoal],
    days: Sequence[int],
    dark_windows: Sequence[int],
    schedule: Schedule,
    lab: Lab,
    macs: Mapping[HostPort, Macs],
    hosts: Iterable[HostName],
) -> dict[int, Mapping[HostName, Rules]]:
    """The routes of every slot, and those at its end, by their numbers."""
    names = tuple(hosts)
    found = {day: slot_rules(goal, lab, macs, names) for day, goal in zip(days, goals, strict=True)}
    for k, number in enumerate(dark_windows):
        after = goals[(k + 1) % len(goals)]
        found[number] = (
            hold_rules(goals[k], after, lab, macs, names) if schedule.hold else found[days[k]]
        )
    return found


def kept_links(goal: SlotGoal, after: SlotGoal) -> tuple[Link, ...]:
    """The links that stay lit from this slot to the next."""
    next_ = {normal(link) for link in after.links}
    return tuple(x for x in goal.links if normal(x) in next_ and not {x.a, x.b} & goal.falling)


def host_requests(
    goals: tuple[SlotGoal, ...],
    days: tuple[int, ...],
    dark_windows: tuple[int, ...],
    times: Times,
    schedule: Schedule,
    lab: Lab,
    hosts: Iterable[HostName],
    count: int,
) -> dict[HostName, dict[str, Any]]:
    """What each agent is to load. days, dark_windows: the numbers of the slots' routes and
    holds.
    """

    def ports(found: frozenset[HostPort], host: HostName) -> list[str]:
        return [lab.interface(p) for p in sorted(found) if p.host == host]

    shared = {
        "dwell_s": times.dwell_s,
        "dark_window_s": times.dark_window_s,
        "guard_s": times.guard_s,
        "late_s": times.late_s,
        "follow": schedule.follow,
        "kind": schedule.kind,
        "count": count,
    }
    return {
        host: {
            **shared,
            "slots": [
                {
                    "generation": day,
                    "hold": dark_window,
                    "falling": ports(goal.falling, host),
                    "rising": ports(goal.rising, host),
                }
                for goal, day, dark_window in zip(goals, days, dark_windows, strict=True)
            ],
        }
        for host in hosts
    }


def network_requests(
    goals: tuple[SlotGoal, ...],
    days: tuple[int, ...],
    schedule: Schedule,
    hosts: Iterable[HostName],
) -> dict[HostName, dict[str, Any]]:
    """What each agent is to load so that TCP keeps a window for each network; nothing where it is
    cubic.

    Network 1 are slots in which a host has a circuit that is not there in all of them; holds, and
    all other slots, are network 0.
    """
    if schedule.tcp == "cubic":
        return {}
    always = frozenset[Setting].intersection(*(every([goal.wanted]) for goal in goals))
    found: dict[HostName, dict[str, int]] = {host: {} for host in hosts}
    if schedule.tcp != "not-told":
        for goal, day in zip(goals, days, strict=True):
            switched = {c.receiver.host for c in goal.circuits if not always.issuperset(c.path)}
            for host, numbers in found.items():
                numbers[str(day)] = int(host in switched)
    states = 1 if schedule.tcp == "one-window" else 2
    return {host: {"networks": numbers, "states": states} for host, numbers in found.items()}
