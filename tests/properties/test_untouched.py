"""What two plans have in common is never touched on the way from one to the other, on labs of every
shape (promise S2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

from optics import HostPort, LinkKind, Setting, clash
from optics.plan import Acceptance, Plan, WantedLink
from orchestrator.fabric.lightpath import LightMap
from orchestrator.inventory.lab import Lab
from orchestrator.plan.target import Target, target
from tests.change.fibrelab import SWITCH, hosts_yml, joined, read, roadm, select
from tests.change.test_slow_devices import ROBOT
from tests.properties.lookahead import lookahead

Held = Mapping[str, frozenset[Setting]]
FlowPath = tuple[HostPort, HostPort]


def single(traits: object = SWITCH) -> Lab:
    fibres = [
        f'name: f{k}-{p}, host: gpu{k:02d}, port: {p}, device: one, enters: "{2 * k + p}", leaves: "{100 + 2 * k + p}"'
        for k in range(1, 7)
        for p in (1, 2)
    ]
    return read(hosts_yml(6, 2), {"one": traits}, fibres)  # type: ignore[dict-item]


LABS = {
    "one switch": single(),
    "one robot": single(ROBOT),
    "two switches and trunks": joined(8, trunks=4),
    "spectrum over a trunk": roadm(6),
    "broadcast and select": select(6),
    "look-ahead": lookahead(),
}


def plan(lab: Lab, paths: list[FlowPath]) -> Plan:
    links = tuple(WantedLink(a, b, LinkKind.SIMPLEX) for a, b in paths)
    return Plan("made", links, acceptance=Acceptance(max_loss_db=60.0))


def pair_of_plans(lab: Lab, seed: int) -> tuple[Plan, Plan]:
    """Two plans over named ports; a part of the first is in the second too."""
    random = Random(seed)
    ports = list(lab.fibres)

    def paths(kept: list[FlowPath]) -> list[FlowPath]:
        senders = [p for p in ports if p not in {a for a, _ in kept}]
        hearers = [p for p in ports if p not in {b for _, b in kept}]
        random.shuffle(senders)
        random.shuffle(hearers)
        fresh = [
            (a, b)
            for a, b in zip(senders, hearers, strict=False)
            if a.host != b.host and random.random() < 0.8
        ]
        found = kept + fresh
        random.shuffle(found)
        return found

    first = paths([])
    return plan(lab, first), plan(lab, paths([path for path in first if random.random() < 0.5]))


def lit(held: Held, lab: Lab) -> dict[FlowPath, tuple[Setting, ...]]:
    return {
        (t.transmitter, t.receiver): t.path
        for t in LightMap(held, lab).traces()
        if t.receiver is not None
    }


def stages(goal: Target, observed: Held, random: Random) -> list[dict[str, frozenset[Setting]]]:
    """Every state the devices can be in on the way: what is early first, then all devices in any
    interleaving, each removing before it adds or in the order it was given. No port may ever carry
    two circuits."""
    seen = [dict(observed)]
    for changes in (goal.early, goal.late.changes):
        moves: dict[str, list[tuple[bool, Setting]]] = {}
        for device, change in changes.items():
            removed, added = sorted(change.remove, key=str), sorted(change.add, key=str)
            random.shuffle(removed)
            random.shuffle(added)
            order = list(change.order) or [*removed, *added]
            moves[device] = [(setting in change.add, setting) for setting in order]
        while any(moves.values()):
            device = random.choice([d for d, left in moves.items() if left])
            add, setting = moves[device].pop(0)
            held = seen[-1].get(device, frozenset())
            if add:
                assert not any(clash(setting, other) for other in held), (
                    f"{setting} needs a port in use"
                )
            else:
                assert setting in held
            seen.append(seen[-1] | {device: held | {setting} if add else held - {setting}})
    return seen


@pytest.mark.parametrize("name", LABS)
@given(st.integers(0, 100_000))
@effort(max_examples=15)
def test_common_circuits_stay_lit_the_same_way_through_every_prefix_of_a_change(
    name: str, seed: int
) -> None:
    lab, random = LABS[name], Random(seed)
    first, second = pair_of_plans(lab, seed)
    dark: Held = {device: frozenset() for device in lab.devices}
    up = target(first, lab, dark, ())
    observed = stages(up, dark, random)[-1]
    before = lit(observed, lab)
    assert before.keys() == {(link.a, link.b) for link in first.links}
    owned = [setting for held in observed.values() for setting in held]
    goal = target(second, lab, observed, owned)
    common = before.keys() & {(link.a, link.b) for link in second.links}
    states = stages(goal, observed, random)
    for held in states:
        now = lit(held, lab)
        assert all(now.get(path) == before[path] for path in common)
    unseen = stages(
        replace(goal, change=replace(goal.change, changes=goal.early)), observed, random
    )
    assert all(lit(held, lab) == before for held in unseen), "what is early is seen by no host"
    if name == "look-ahead":
        assert goal.late.changes.keys() <= {"flip1"}, "nobody waits in the dark for the robot"
    assert lit(states[-1], lab).keys() == {(link.a, link.b) for link in second.links}
    again = target(
        second, lab, states[-1], [*owned, *(s for held in states[-1].values() for s in held)]
    )
    assert not again.moving, "the second time there is nothing to do"


@given(st.integers(0, 100_000))
def test_foreign_circuits_are_neither_moved_nor_crossed(seed: int) -> None:
    lab, random = LABS["one switch"], Random(seed)
    first, second = pair_of_plans(lab, seed)
    theirs = [link for link in first.links if random.random() < 0.3]
    taken = {("a", link.a) for link in theirs} | {("b", link.b) for link in theirs}
    ours = [
        link for link in second.links if ("a", link.a) not in taken and ("b", link.b) not in taken
    ]
    dark: Held = {device: frozenset() for device in lab.devices}
    mine = [link for link in first.links if link not in theirs]
    observed = stages(target(first, lab, dark, ()), dark, random)[-1]
    owned = target(
        Plan("mine", tuple(mine), acceptance=Acceptance(max_loss_db=60.0)), lab, dark, ()
    ).wanted
    goal = target(
        Plan("next", tuple(ours), acceptance=Acceptance(max_loss_db=60.0)),
        lab,
        observed,
        [s for h in owned.values() for s in h],
    )
    foreign = {device: held - owned.get(device, frozenset()) for device, held in observed.items()}
    for held in stages(goal, observed, random):
        assert all(foreign[device] <= held[device] for device in foreign)
