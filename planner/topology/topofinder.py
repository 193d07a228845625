"""TopologyFinder: rings for all-reduce, matched pairs for the rest, by TopoOpt's published rules or
by its released planner's.

Steps (TopoOpt, NSDI'23, as far as its public descriptions go): the degree is divided by traffic;
inside the all-reduce part groups get rings by traffic; strides are chosen so that few steps lead
anywhere; ports that are left go to matchings of other traffic.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import cycle, islice
from math import ceil

import numpy as np
from numpy.typing import NDArray

from planner.model.demand import Demand, Group, Infeasible
from planner.model.planes import check
from planner.model.shape import Lab, Ring, Shape
from planner.model.totient import Choice, Coins, Rules, coin_change, ring, select, strides, walecki
from planner.topology.matching import Match, matchings

BASE = "all"
"""The group of a ring that only connects the ranks, unless a collective has that name."""


@dataclass(frozen=True)
class Split:
    """How ports were divided. `allreduce_share`: of bytes on the wire, 0 to 1. `rings`: how many
    each group got.
    """

    allreduce_share: float
    degree_allreduce: int
    degree_mp: int
    rings: tuple[tuple[str, int], ...]


@dataclass(frozen=True, eq=False)
class Finding:
    """A topology and its derivation: the split, the strides of each group, the rounds of matching,
    notes in words.

    planes: the switch of each of `shape.cables`. merged: groups of the same ranks, which share
    rings, under the first one's name.
    """

    shape: Shape
    rules: Rules
    split: Split
    choices: tuple[tuple[str, tuple[Choice, ...]], ...]
    matches: tuple[Match, ...]
    planes: tuple[int, ...]
    merged: tuple[tuple[str, tuple[str, ...]], ...] = ()
    notes: tuple[str, ...] = ()

    def coins(self, group: str, seed: int | None = None) -> Coins:
        """Paths along the strides of a group, by places in it; the rule set `artifact` breaks ties
        by `seed`.
        """
        rings = [
            ring for ring in self.shape.rings if ring.group == group and ring.stride is not None
        ]
        if not rings:
            raise Infeasible(
                f"group {group} has no ring of a stride", "route it along shortest paths"
            )
        chosen = sorted({ring.stride for ring in rings if ring.stride is not None})
        rng = None if seed is None else np.random.default_rng(seed)
        return coin_change(len(rings[0].order), chosen, duplex=self.shape.duplex, rng=rng)


@dataclass
class _Work:
    demand: Demand
    lab: Lab
    rules: Rules
    groups: tuple[Group, ...]
    left: NDArray[np.int64]
    rings: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def duplex(self) -> bool:
        return self.lab.duplex

    def ports(self, size: int) -> int:
        """Ports a ring takes at each of its members."""
        return 2 if self.duplex and size > 2 else 1

    def give(self, group: Group, count: int) -> int:
        """Take ports for at most `count` rings from all members; return for how many there was
        room.
        """
        members = list(group.members)
        count = max(0, min(count, int(self.left[members].min()) // self.ports(len(members))))
        self.left[members] -= count * self.ports(len(members))
        if count:
            self.rings[group.id] = self.rings.get(group.id, 0) + count
        return count


def find(demand: Demand, lab: Lab, *, rules: Rules = "paper", seed: int = 0) -> Finding:
    """The topology for a demand.

    Raises: Infeasible - more ranks than hosts, a degree too small for a ring, links that the lab's
    planes cannot carry; by the rules `artifact` also an odd degree or a group whose size does not
    divide the number of ranks.
    """
    if demand.n > lab.n:
        raise Infeasible(
            f"a job of {demand.n} ranks on {lab.n} hosts",
            f"give it at most {lab.n} ranks, or more hosts",
        )
    if lab.duplex and lab.degree < 2 and demand.n > 2:
        raise Infeasible(
            f"degree 1: a ring of {demand.n} hosts takes two ports of each where links are duplex",
            "give hosts 2 ports, or take simplex links",
        )
    groups, merged = _merge(demand.groups)
    base = Group(connection(demand.groups), tuple(range(demand.n)), 0)
    for with_base in (False, True):
        work = _Work(demand, lab, rules, groups, np.full(demand.n, lab.degree, dtype=np.int64))
        for_allreduce = _share(work) if rules == "paper" else lab.degree
        if with_base:
            work.give(base, 1)
            work.notes.append(
                "a ring through all ranks joins groups that have traffic between them or no links of their own"
            )
        (_by_traffic if rules == "paper" else _inverted)(work, for_allreduce)
        if with_base or _joined(work):
            break
    found_rings: list[Ring] = []
    choices: list[tuple[str, tuple[Choice, ...]]] = []
    for group in (base, *groups):
        if group.id in work.rings:
            rings, chosen = _orders(work, group, work.rings[group.id])
            found_rings += rings
            choices.append((group.id, chosen))
    matches: tuple[Match, ...] = ()
    if rules == "paper" and demand.mp_bytes > 0 and work.left.any():
        matches = matchings(demand.mp, work.left, rules=rules, seed=seed)
    pairs = [pair for match in matches for pair in match.pairs]
    if not lab.duplex:
        pairs = [path for a, b in pairs for path in ((a, b), (b, a))]
    shape = Shape(demand.n, lab.degree, lab.duplex, tuple(found_rings), tuple(pairs))
    idle = int(
        (
            lab.degree
            - np.bincount(
                shape.cables.reshape(-1) if lab.duplex else shape.cables[:, 0], minlength=demand.n
            )
        ).sum()
    )
    if idle:
        work.notes.append(f"{idle} port(s) stay free")
    wire = demand.allreduce_bytes + demand.mp_bytes
    split = Split(
        demand.allreduce_bytes / wire if wire else 1.0,
        for_allreduce,
        lab.degree - for_allreduce,
        tuple(work.rings.items()),
    )
    return Finding(
        shape, rules, split, tuple(choices), matches, check(shape, lab), merged, tuple(work.notes)
    )


def connection(groups: Iterable[Group]) -> str:
    """A name for rings through all ranks that no collective's rings have."""
    name, taken = BASE, {group.id for group in groups}
    while name in taken:
        name += "-ranks"
    return name


def _merge(
    groups: tuple[Group, ...],
) -> tuple[tuple[Group, ...], tuple[tuple[str, tuple[str, ...]], ...]]:
    """Groups of the same ranks as one, under the first one's name, the most bytes first."""
    alike: dict[frozenset[int], list[Group]] = {}
    for group in groups:
        alike.setdefault(frozenset(group.members), []).append(group)
    whole = [
        Group(same[0].id, same[0].members, sum(group.bytes for group in same))
        for same in alike.values()
    ]
    whole.sort(key=lambda group: -group.wire_bytes)
    merged = tuple(
        (same[0].id, tuple(group.id for group in same)) for same in alike.values() if len(same) > 1
    )
    return tuple(whole), merged


def _share(work: _Work) -> int:
    """Ports for all-reduce: max(1, ceil(d * share)), rounded up to whole rings."""
    wire = work.demand.allreduce_bytes + work.demand.mp_bytes
    share = work.demand.allreduce_bytes / wire if wire else 1.0
    wanted = max(1, ceil(work.lab.degree * share - 1e-9))
    each = work.ports(max((len(group.members) for group in work.groups), default=work.demand.n))
    whole = min(ceil(wanted / each), work.lab.degree // each) * each
    if whole != wanted:
        work.notes.append(
            f"all-reduce gets {whole} ports instead of {wanted}: a ring takes {each} ports of each host"
        )
    return whole


def _by_traffic(work: _Work, for_allreduce: int) -> None:
    """ceil(d_A * share) ports for each group, most traffic first.

    The share is of the traffic of the busiest of its members, so that groups without a common host
    do not divide what they need not share; where all groups are of all ranks this is the published
    share of the sum.
    """
    at_host = np.zeros(work.demand.n)
    for group in work.groups:
        at_host[list(group.members)] += group.wire_bytes / len(group.members)
    kept = work.lab.degree - for_allreduce
    work.left -= kept
    for group in work.groups:
        size = len(group.members)
        busiest = at_host[list(group.members)].max()
        share = group.wire_bytes / size / busiest if busiest else 1.0
        each = work.ports(size)
        given = work.give(group, max(1, ceil(ceil(for_allreduce * share - 1e-9) / each)))
        if not given:
            work.notes.append(
                f"group {group.id} gets no links of its own and goes over the others'"
            )
    if not work.demand.mp_bytes:
        for group in work.groups:  # no other group needs what is left
            work.give(group, work.lab.degree)
    work.left += kept


def _inverted(work: _Work, for_allreduce: int) -> None:
    """The released code's division: total * degree / own traffic, (2k-1) bytes on the wire for each
    of the buffer.
    """
    n = work.demand.n
    if work.duplex and for_allreduce % 2:
        raise Infeasible(
            f"degree {for_allreduce} is odd; the released rules take two ports for a ring",
            f"degree {for_allreduce + 1}, or the rules `paper`",
        )
    traffic = {group.id: (2 * len(group.members) - 1) * group.bytes for group in work.groups}
    total = sum(traffic.values())
    for group in work.groups:
        size = len(group.members)
        if n % size:
            divisors = [k for k in range(2, n + 1) if n % k == 0]
            near = min(divisors, key=lambda k: (abs(k - size), k))
            raise Infeasible(
                f"group {group.id} has {size} ranks, which does not divide {n}; the released rules want that",
                f"groups of {near}, or the rules `paper`",
            )
        own = traffic[group.id]
        links = max(1, int(total * for_allreduce / own) if own else 1) * (2 if work.duplex else 1)
        work.give(group, links // work.ports(size))


def _joined(work: _Work) -> bool:
    """Rings join whatever has traffic between it, and the members of groups that have none of their
    own.
    """
    label = np.arange(work.demand.n)
    for group in work.groups:
        if group.id in work.rings:
            members = list(group.members)
            label[np.isin(label, label[members])] = label[members].min()
    if any(len(set(label[list(group.members)].tolist())) > 1 for group in work.groups):
        return False
    if not work.groups and not work.demand.mp_bytes:
        return False
    return not work.demand.mp[label[:, None] != label[None, :]].any()


def _orders(work: _Work, group: Group, count: int) -> tuple[list[Ring], tuple[Choice, ...]]:
    """Rings of chosen strides; in groups with too few, Walecki's cycles, and these again where even
    they are too few.
    """
    members = group.members
    enough = len(strides(len(members), duplex=work.duplex and work.rules == "paper"))
    if count <= enough:
        chosen = select(len(members), count, duplex=work.duplex, rules=work.rules)
        return [
            Ring(group.id, ring(members, choice.stride), choice.stride) for choice in chosen
        ], chosen
    cycles = walecki(len(members))[0] if len(members) > 4 else (tuple(range(len(members))),)
    if not work.duplex and len(members) > 2:
        cycles += tuple(tuple(reversed(order)) for order in cycles)
    more = "in parallel" if count > len(cycles) else "in orders of no stride (Walecki)"
    work.notes.append(
        f"group {group.id}: {count} rings wanted, {len(members)} ranks have {enough} stride(s); rings {more}"
    )
    return [
        Ring(group.id, tuple(members[i] for i in order)) for order in islice(cycle(cycles), count)
    ], ()
