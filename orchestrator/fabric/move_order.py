"""The order in which a device that moves one fibre at a time makes a change: ports dark for the
shortest time, hosts connected for the longest. Pure.

Settings to remove and settings to make that share a port form a chain. Each chain is done without a
pause, from one end to the other; the ports of a new circuit are freed just before it is made.
Chains do not depend on each other, so their order decides only how long the hosts stay connected by
the remaining links: chains whose links are not needed come first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from optics import Change, DeviceName, HostName, Setting, clash
from orchestrator.fabric.lightpath import Held, LightMap, lit
from orchestrator.fabric.transition import Transition
from orchestrator.inventory.lab import Lab

Step: TypeAlias = tuple[HostName, HostName]
"""Light from one host to another."""
Chain: TypeAlias = tuple[Setting, ...]
EXACT_CHAINS = 8
"""Up to this many chains every order is evaluated (256 sets of them); beyond it a spanning forest
decides which come last.
"""


def in_order(
    change: Transition, early: Mapping[DeviceName, Change], observed: Held, lab: Lab
) -> Transition:
    """The same change with the moves of each serial device in order: those of `early` first, then
    as `ordered`.

    What other devices remove at once counts as gone.
    """
    slow = [device for device in change.changes if lab.traits_of(device).at_once == 1]
    if not slow:
        return change
    traces = [trace for trace in LightMap(observed, lab).traces() if trace.receiver is not None]
    changes = dict(change.changes)
    for device in slow:
        before = early.get(device, Change(device))
        asked = _rest(changes[device], before)
        rest = [
            t
            for t in traces
            if not any(
                s in change.removed.get(s.ingress.device, ()) and s not in asked.remove
                for s in t.path
            )
        ]
        carried = {
            s: (t.transmitter.host, t.receiver.host)
            for t in rest
            if t.receiver
            for s in t.path
            if s in asked.remove
        }
        stay = [
            (t.transmitter.host, t.receiver.host)
            for t in rest
            if t.receiver and not asked.remove.intersection(t.path)
        ]
        changes[device] = replace(
            changes[device], order=(*before.order, *ordered(asked, carried, stay))
        )
    return replace(change, changes=changes)


def remaining_transition(change: Transition, early: Mapping[DeviceName, Change]) -> Transition:
    """What is left of the transition once `early` is done; `made` and `removed` still describe the
    whole.
    """
    if not early:
        return change
    left = {d: _rest(c, early[d]) if d in early else c for d, c in change.changes.items()}
    return replace(change, changes={d: c for d, c in left.items() if c})


def _rest(change: Change, early: Change) -> Change:
    remove, add = change.remove - early.remove, change.add - early.add
    return Change(
        change.device, remove, add, tuple(s for s in change.order if s in remove or s in add)
    )


def ordered(
    change: Change, carried: Mapping[Setting, Step] | None = None, stay: Iterable[Step] = ()
) -> tuple[Setting, ...]:
    """All settings of the change, each port free when it is reused, with the fewest dark port-moves
    (see `dark_moves`).

    carried: the hosts that a setting to be removed connects; stay: those connected throughout.
    Among orders that are equally dark, hosts stay connected for as long as possible. New circuits
    that need no port freed come first, settings only removed last.
    """
    chains = _chains(change)
    fresh = [chain for chain in chains if not change.remove.intersection(chain)]
    removed = [chain for chain in chains if not change.add.intersection(chain)]
    swaps = [chain for chain in chains if chain not in fresh and chain not in removed]
    carried = carried or {}
    stay = list(stay)
    later = [carried[s] for chain in removed for s in chain if s in carried]
    steps = [
        *fresh,
        *_joined_longest(swaps, carried, [*stay, *later]),
        *_joined_longest(removed, carried, stay),
    ]
    return tuple(setting for chain in steps for setting in chain)


def dark_moves(
    order: Sequence[Setting], change: Change, lit: Collection[Setting] | None = None
) -> int:
    """Dark time of an order, in moves times ports: a port of a lit circuit is dark from the start
    of the move that breaks it to the end of the one that lights it again. Ports that stay dark
    afterwards are not counted: the plan asks for that."""
    lit = change.remove if lit is None else lit
    at = {setting: place for place, setting in enumerate(order)}
    return sum(
        (at[new] - at[old] + 1) * _shared(old, new)
        for new in change.add
        for old in change.remove
        if old in lit and clash(old, new) is not None
    )


def dark_port_s(change: Change, lab: Lab, lit: Collection[Setting] | None = None) -> float:
    """Expected dark time (s times ports, of this lab) of a change made in its order by a device
    that moves one fibre at a time.
    """
    order = change.order or ordered(change)
    return dark_moves(order, change, lit) * lab.traits_of(change.device).settle_s


def _shared(one: Setting, other: Setting) -> int:
    return (one.ingress == other.ingress) + (one.egress == other.egress)


def _chains(change: Change) -> list[Chain]:
    """The settings grouped by shared ports, each chain in its own best order; chains in the order
    of their first port.
    """
    users: dict[object, list[Setting]] = {}
    for setting in sorted(change.remove, key=str):
        for side in (("in", setting.ingress), ("out", setting.egress)):
            users.setdefault(side, []).append(setting)
    needs: dict[Setting, list[Setting]] = {}
    freed: dict[Setting, list[Setting]] = {old: [] for old in change.remove}
    for new in sorted(change.add, key=_key):
        olds = dict.fromkeys(
            old
            for side in (("in", new.ingress), ("out", new.egress))
            for old in users.get(side, ())
            if clash(old, new) is not None
        )
        needs[new] = list(olds)
        for old in olds:
            freed[old].append(new)
    chains: list[Chain] = []
    left = dict.fromkeys(needs)
    while left:
        group = _group(next(iter(left)), needs, freed)
        for new in group:
            del left[new]
        ends = [new for new in group if len(_neighbouring(new, needs, freed)) < 2]
        chains.append(_sweep((ends or group)[0], needs, freed))
    chains += [(old,) for old in sorted(change.remove, key=_key) if not freed[old]]
    return chains


def _neighbouring(
    new: Setting, needs: Mapping[Setting, list[Setting]], freed: Mapping[Setting, list[Setting]]
) -> list[Setting]:
    """New settings that need a port which `new` also waits for."""
    return [other for old in needs[new] for other in freed[old] if other != new]


def _group(
    start: Setting, needs: Mapping[Setting, list[Setting]], freed: Mapping[Setting, list[Setting]]
) -> list[Setting]:
    seen, open_ = {start: None}, [start]
    while open_:
        fresh = [other for other in _neighbouring(open_.pop(), needs, freed) if other not in seen]
        seen.update(dict.fromkeys(fresh))
        open_ += fresh
    return sorted(seen, key=_key)


def _sweep(
    start: Setting, needs: Mapping[Setting, list[Setting]], freed: Mapping[Setting, list[Setting]]
) -> Chain:
    """Walk the chain: free what the next new setting needs, make it, continue with its
    neighbour. What frees a port for another one too is broken last: that port stays dark longest.
    """
    order: dict[Setting, None] = {}
    open_ = [start]
    while open_:
        new = open_.pop()
        if new in order:
            continue
        order.update(dict.fromkeys(sorted(needs[new], key=lambda old: len(freed[old]))))
        order[new] = None
        open_ += _neighbouring(new, needs, freed)
    return tuple(order)


def _joined_longest(
    chains: list[Chain], carried: Mapping[Setting, Step], stay: Collection[Step]
) -> list[Chain]:
    """The chains in the order in which connected pairs of hosts lose their paths as late as
    possible.
    """
    cuts = [frozenset(carried[s] for s in chain if s in carried) for chain in chains]
    if len(chains) < 2 or not any(cuts):
        return chains
    if len(chains) > EXACT_CHAINS:
        return _forest_last(chains, carried, stay)
    counted = [(sum(s in carried for s in chain), chain) for chain in chains]
    whole = (1 << len(chains)) - 1
    best: dict[int, tuple[int, tuple[int, ...]]] = {0: (0, ())}
    for done in range(1, whole + 1):
        edges = [
            *stay,
            *(
                carried[s]
                for i, (_, c) in enumerate(counted)
                if not done >> i & 1
                for s in c
                if s in carried
            ),
        ]
        lost = -_pairs(edges)
        options = ((best[done ^ (1 << i)], i) for i in range(len(chains)) if done >> i & 1)
        best[done] = min(
            (cost + lost * len(chains[i]), (*steps, i)) for (cost, steps), i in options
        )
    return [chains[i] for i in best[whole][1]]


def _pairs(edges: Iterable[Step]) -> int:
    """How many ordered pairs of hosts are connected, over other hosts too."""
    onward: dict[HostName, set[HostName]] = {}
    for a, b in edges:
        onward.setdefault(a, set()).add(b)
    count = 0
    for host in onward:
        seen, open_ = {host}, [host]
        while open_:
            fresh = onward.get(open_.pop(), set()) - seen
            seen |= fresh
            open_ += fresh
        count += len(seen) - 1
    return count


def _forest_last(
    chains: list[Chain], carried: Mapping[Setting, Step], stay: Collection[Step]
) -> list[Chain]:
    """Chains that the other links can do without come first; of the rest, those that connect the
    most hosts last.
    """
    parent: dict[HostName, HostName] = {}

    def root(host: HostName) -> HostName:
        while parent.setdefault(host, host) != host:
            parent[host] = host = parent[parent[host]]
        return host

    def join(steps: Iterable[Step]) -> int:
        count = 0
        for a, b in steps:
            if (one := root(a)) != (other := root(b)):
                parent[one] = other
                count += 1
        return count

    join(stay)
    long_first = sorted(chains, key=lambda chain: -sum(s in carried for s in chain))
    joins = {chain: join(carried[s] for s in chain if s in carried) for chain in long_first}
    return sorted(chains, key=lambda chain: joins[chain] / len(chain))


def _key(setting: Setting) -> tuple[object, ...]:
    return setting.ingress, setting.egress, str(setting)


def per_device_dark(change: Transition, observed: Held, lab: Lab) -> Mapping[DeviceName, float]:
    """Expected dark time (s times ports) of the slow devices whose moves interrupt light, as
    `dark_port_s`.
    """
    if not any(lab.slow(device) for device in change.changes):
        return {}
    alight = lit(observed, lab)
    return {d: dark_port_s(c, lab, alight) for d, c in change.changes.items() if lab.slow(d)}
