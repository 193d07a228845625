"""What slow devices can do ahead of a change without interrupting light: the look-ahead side of a
patch panel. Pure.

TopoOpt puts a 1x2 switch at every interface, in front of two ports of the panel: while one carries
light, the robot wires the other, and the change itself only flips the switch within milliseconds.
Nothing here depends on sides. A setting of a slow device is *dark* when no light that reaches a
host passes it; dark settings of a change can be made before it, and dark settings it no longer
needs can stay connected, for a rollback, until their ports are needed.
"""

from __future__ import annotations

from collections.abc import Mapping

from optics import Change, DeviceName, HostPort, Setting, clash
from orchestrator.fabric.lightpath import Held, LightMap, among, lit
from orchestrator.fabric.move_order import ordered
from orchestrator.fabric.transition import Transition
from orchestrator.inventory.lab import Lab


def spare(observed: Held, wanted: Held, owned: Held, lab: Lab) -> Held:
    """Owned settings that are no longer wanted and may stay: on slow devices, dark once `wanted` is
    up, clashing with nothing.
    """
    found: dict[DeviceName, frozenset[Setting]] = {}
    for device, held in observed.items():
        if not lab.slow(device):
            continue
        goal = frozenset(wanted.get(device, ()))
        unwanted = among(held, owned.get(device, ())) - among(held, goal)
        if free := frozenset(s for s in unwanted if not any(clash(s, other) for other in goal)):
            found[device] = free
    if not found:
        return {}
    none: frozenset[Setting] = frozenset()
    after: dict[DeviceName, frozenset[Setting]] = {}
    for device, held in observed.items():
        foreign = frozenset(held) - among(held, owned.get(device, ()))
        after[device] = foreign.union(wanted.get(device, none), found.get(device, none))
    alight = lit(after, lab)
    return {device: free - alight for device, free in found.items() if free - alight}


def prewired(observed: Held, wanted: Held, owned: Held, lab: Lab) -> Held:
    """Owned dark settings of slow devices that the current plan does not want: prewired, or kept
    for a rollback.
    """
    alight = lit(observed, lab)
    found = {
        device: among(held, owned.get(device, ())) - among(held, wanted.get(device, ())) - alight
        for device, held in observed.items()
        if lab.slow(device)
    }
    return {device: settings for device, settings in found.items() if settings}


def ahead(change: Transition, observed: Held, lab: Lab) -> Mapping[DeviceName, Change]:
    """The part of `change` that slow devices can do now without effect on any host: make dark
    settings, first removing dark ones that block them."""
    slow = [device for device in change.changes if lab.slow(device)]
    if not slow:
        return {}
    alight = lit(observed, lab)
    changes: dict[DeviceName, Change] = {}
    for device in slow:
        asked = change.changes[device]
        blocked = {
            new: [old for old in asked.remove if clash(old, new) is not None] for new in asked.add
        }
        free = frozenset(new for new, olds in blocked.items() if alight.isdisjoint(olds))
        changes[device] = _of(device, free, blocked)
    before = _received(observed, lab)
    after = {
        d: (frozenset(held) - changes[d].remove) | changes[d].add if d in changes else held
        for d, held in observed.items()
    }
    # Light that would reach a host without any before: its circuit is made with the rest of the
    # change.
    early = {s for ends, path in _received(after, lab).items() if ends not in before for s in path}
    for device in slow:
        kept = frozenset(changes[device].add - early)
        changes[device] = _of(
            device,
            kept,
            {s: [old for old in changes[device].remove if clash(old, s) is not None] for s in kept},
        )
    return {device: found for device, found in changes.items() if found}


def _of(
    device: DeviceName, add: frozenset[Setting], blocked: Mapping[Setting, list[Setting]]
) -> Change:
    found = Change(device, frozenset(old for new in add for old in blocked[new]), add)
    return Change(device, found.remove, found.add, ordered(found))


def _received(held: Held, lab: Lab) -> dict[tuple[HostPort, HostPort], tuple[Setting, ...]]:
    return {
        (t.transmitter, t.receiver): t.path
        for t in LightMap(held, lab).traces()
        if t.receiver is not None
    }
