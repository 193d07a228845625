"""What must hold for every change from one map to another, whatever the maps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optics import CrossConnect, Infeasible, Interlock, Port
from orchestrator.fabric.transition import Transition, transition

Held = dict[str, frozenset[CrossConnect]]
DEVICES = ("ocs1", "ocs2")


def connect(device: str, into: int, out: int) -> CrossConnect:
    return CrossConnect(Port(device, str(into)), Port(device, str(out)))


@st.composite
def maps(draw: st.DrawFn, size: int = 8) -> Held:
    """A state of two devices: each port used at most once a side."""
    held = {}
    for device in DEVICES:
        outs = draw(st.permutations(range(size)))
        used = draw(st.sets(st.integers(0, size - 1)))
        held[device] = frozenset(connect(device, into, outs[into]) for into in used)
    return held


@st.composite
def scenes(draw: st.DrawFn) -> tuple[Held, Held, Held]:
    """What is seen, what is wanted, what is ours; what we once put up may be gone."""
    observed, wanted, older = draw(maps()), draw(maps()), draw(maps())
    owned = {
        d: frozenset(s for s in sorted(observed[d]) if draw(st.booleans())) | older[d]
        for d in DEVICES
    }
    return observed, wanted, owned


def carried_out(observed: Held, change: Transition) -> Held:
    """A glass that does as told, removals first, and refuses a port that is in use."""
    after = {}
    for device, held in observed.items():
        light = {setting.ingress: setting.egress for setting in held}
        asked = change.changes.get(device)
        for setting in asked.remove if asked else ():
            assert light.pop(setting.ingress) == setting.egress, f"{setting} was not there"
        for setting in asked.add if asked else ():
            assert setting.ingress not in light and setting.egress not in light.values(), (
                f"{setting} needs a port in use"
            )
            light[setting.ingress] = setting.egress
        after[device] = frozenset(CrossConnect(into, out) for into, out in light.items())
    return after


def attempt(scene: tuple[Held, Held, Held]) -> Transition | None:
    try:
        return transition(*scene)
    except Interlock:
        return None


@given(scenes())
def test_every_port_is_free_before_it_is_used_again_and_the_map_becomes_as_wanted(
    scene: tuple[Held, Held, Held],
) -> None:
    observed, wanted, _ = scene
    change = attempt(scene)
    if change is None:
        return
    after = carried_out(observed, change)
    for device in DEVICES:
        assert wanted[device] <= after[device]
        assert after[device] - wanted[device] == change.foreign[device]
        assert after[device] == change.after(observed)[device]


@given(scenes())
def test_what_is_not_ours_is_never_removed(scene: tuple[Held, Held, Held]) -> None:
    observed, _, owned = scene
    change = attempt(scene)
    for device in change.changes if change else ():
        assert not change.changes[device].remove & (observed[device] - owned[device])


@given(scenes())
def test_the_second_time_there_is_nothing_to_do(scene: tuple[Held, Held, Held]) -> None:
    observed, wanted, _ = scene
    change = attempt(scene)
    if change is not None:
        assert not transition(carried_out(observed, change), wanted, wanted)


@given(scenes())
def test_only_what_differs_is_changed(scene: tuple[Held, Held, Held]) -> None:
    observed, wanted, _ = scene
    change = attempt(scene)
    for device in change.changes if change else ():
        assert not change.changes[device].remove & wanted[device]
        assert not change.changes[device].add & observed[device]


@given(scenes())
def test_a_refusal_names_a_foreign_circuit_on_a_wanted_port(scene: tuple[Held, Held, Held]) -> None:
    observed, wanted, owned = scene
    clashes = [
        (mine, theirs)
        for device in DEVICES
        for mine in wanted[device] - observed[device]
        for theirs in observed[device] - owned[device] - wanted[device]
        if mine.ingress == theirs.ingress or mine.egress == theirs.egress
    ]
    if not clashes:
        transition(observed, wanted, owned)
        return
    with pytest.raises(Interlock) as refused:
        transition(observed, wanted, owned)
    assert all(
        str(mine) in str(refused.value) and str(theirs) in str(refused.value)
        for mine, theirs in clashes
    )


def test_a_foreign_circuit_that_the_plan_wants_is_kept() -> None:
    existing = frozenset({connect("ocs1", 1, 2)})
    change = transition({"ocs1": existing}, {"ocs1": existing}, {})
    assert not change
    assert change.kept["ocs1"] == existing and not change.foreign["ocs1"]


def test_a_plan_that_uses_a_port_twice_is_refused() -> None:
    twice = frozenset({connect("ocs1", 1, 2), connect("ocs1", 1, 3)})
    with pytest.raises(Infeasible, match="both use ocs1:1"):
        transition({"ocs1": frozenset()}, {"ocs1": twice}, {})


def test_a_device_that_was_not_read_is_not_changed() -> None:
    with pytest.raises(Infeasible, match="ocs2, whose state was not read"):
        transition({"ocs1": frozenset()}, {"ocs2": frozenset({connect("ocs2", 1, 2)})}, {})
