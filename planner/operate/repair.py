"""Options after a failure and their costs: close a ring with a model-parallel link, reroute now,
rewire at the next checkpoint.

Which hosts take which places so that most live links stay is the question of
`orchestrator.plan.label_search`; here is the cost of moving.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf

import numpy as np
from numpy.typing import NDArray

from planner.model.demand import Demand, Group, Infeasible
from planner.model.planes import check
from planner.model.shape import Lab, Shape
from planner.model.totient import Rules
from planner.predict.routing import even_loads
from planner.predict.score import drain_s, iteration_s, ring_steps
from planner.topology.topofinder import find

Link = tuple[int, int]


# borrowing


@dataclass(frozen=True, eq=False)
class Borrowed:
    """A ring closed again.

    removed, added: links to move, none where a parallel link replaces it as it is. lost_bytes:
    demand between pairs per iteration that had a link of its own and now has none, less what gained
    one. shape: what is there then.
    """

    failed: Link
    removed: tuple[Link, ...]
    added: tuple[Link, ...]
    lost_bytes: float
    shape: Shape

    @property
    def moves(self) -> int:
        return len(self.removed) + len(self.added)


def borrow(
    shape: Shape, failed: Link, mp: NDArray[np.float64], planes: Sequence[int] | None = None
) -> Borrowed:
    """Close the ring that used a link with model parallel links, of those that lose the least
    demand.

    A matched pair of the same two ranks replaces it as it is. Else both ranks give up a matched
    link, the two are joined by the ports that freed, and so are the partners they leave; both links
    must be on one switch where the lab has planes. planes: the switch of each of `shape.cables`,
    None where all ports are on one. Raises: Infeasible - no ring uses the link, or its ranks have
    no model parallel link to give.
    """
    src, dst = failed
    if not any(_uses(shape, ring.order, failed) for ring in shape.rings):
        raise Infeasible(
            f"no ring uses a link from rank {src} to rank {dst}", "name a link of a ring"
        )
    matched = list(shape.matched)
    same = [
        place
        for place, pair in enumerate(matched)
        if pair == failed or (shape.duplex and pair == (dst, src))
    ]
    if same:
        left = (*matched[: same[0]], *matched[same[0] + 1 :])
        return Borrowed(failed, (), (), _worth(shape, mp, failed), replace(shape, matched=left))
    best: tuple[float, int, int, Link, Link] | None = None
    for i, first in enumerate(matched):
        for j, second in enumerate(matched):
            if i == j or (planes is not None and planes[i] != planes[j]):
                continue
            partners = _partners(shape.duplex, first, second, failed)
            if partners is None:
                continue
            lost = _worth(shape, mp, first) + _worth(shape, mp, second)
            gained = _worth(shape, mp, partners) if partners[0] != partners[1] else 0.0
            if best is None or (lost - gained, i, j) < best[:3]:
                best = (lost - gained, i, j, first, second)
    if best is None:
        where = "" if planes is None else " on one switch"
        raise Infeasible(
            f"ranks {src} and {dst} have no two model parallel links{where} to borrow",
            "go round the failed link, or rewire for what is left",
        )
    lost, i, j, first, second = best
    partners = _partners(shape.duplex, first, second, failed)
    assert partners is not None
    kept = tuple(pair for place, pair in enumerate(matched) if place not in (i, j))
    new = (partners,) if partners[0] != partners[1] else ()
    return Borrowed(
        failed, (first, second), (failed, *new), lost, replace(shape, matched=kept + new)
    )


def _uses(shape: Shape, order: tuple[int, ...], link: Link) -> bool:
    steps = set(zip(order, order[1:] + order[:1], strict=True))
    return link in steps or (shape.duplex and link[::-1] in steps)


def _partners(duplex: bool, first: Link, second: Link, failed: Link) -> Link | None:
    """The ranks left over when an end of `first` (its transmitter) and one of `second` (its
    receiver) are joined as `failed`.
    """
    src, dst = failed
    if not duplex:
        return (second[0], first[1]) if first[0] == src and second[1] == dst else None
    if src not in first or dst not in second:
        return None
    other = (
        first[0] if first[1] == src else first[1],
        second[0] if second[1] == dst else second[1],
    )
    return other if dst != other[0] and src != other[1] else None


def _worth(shape: Shape, mp: NDArray[np.float64], link: Link) -> float:
    a, b = link
    return float(mp[a, b] + (mp[b, a] if shape.duplex else 0.0))


# now or later


@dataclass(frozen=True)
class Option:
    """An option after a failure: the time of an iteration, and how long the job stops first."""

    name: str
    iteration_s: float
    dark_s: float = 0.0
    moves: int = 0

    def until_s(self, iterations: int) -> float:
        """Time to finish that many iterations."""
        return self.dark_s + iterations * self.iteration_s


@dataclass(frozen=True)
class Replan:
    """The options after a failure: `reroute` at once, `rewire` at the next checkpoint; `why_not` if
    one is impossible.

    others: further options to rewire, which take longer.
    """

    before_s: float
    reroute: Option | None
    rewire: Option | None
    why_not: str = ""
    others: tuple[Option, ...] = ()

    @property
    def break_even_iterations(self) -> float:
        """Iterations after which rewiring pays; infinite if it gains nothing, 0 if rerouting is
        impossible.
        """
        if self.rewire is None:
            return inf
        if self.reroute is None:
            return 0.0
        saved = self.reroute.iteration_s - self.rewire.iteration_s
        return self.rewire.dark_s / saved if saved > 0 else inf


def replan(
    shape: Shape,
    demand: Demand,
    lab: Lab,
    *,
    links: Sequence[Link] = (),
    hosts: Collection[int] = (),
    settle_s: float = 0.0,
    at_once: int | None = None,
    link_up_s: float = 0.0,
    rules: Rules = "paper",
    seed: int = 0,
) -> Replan:
    """The cost of each option after links (with the ports at their ends) or hosts have failed.

    Rerouting keeps rings and routes by shortest paths over what is left; a ring passes a failed
    host by. Rewiring is the best of: a topology found for the hosts that remain, of the highest
    degree that the poorest of them and the lab's planes allow; a model parallel link borrowed; one
    link of each of the two ranks given up so that they and its other ends are joined. Raises:
    Infeasible - fewer than two hosts remain, or a link or host named is not there.
    """
    for host in hosts:
        if not 0 <= host < shape.n:
            raise Infeasible(
                f"host {host} has failed; there are {shape.n}",
                f"name hosts from 0 to {shape.n - 1}",
            )
    remain = [rank for rank in range(shape.n) if rank not in set(hosts)]
    if len(remain) < 2:
        raise Infeasible(f"{len(remain)} host(s) remain", "wait for a repair")
    left = _without(shape, links)
    before = iteration_s(shape, demand, lab)
    rest = _restricted(demand, remain)
    why: list[str] = []
    now: Option | None = None
    try:
        now = Option("reroute now", _around_s(shape, demand, lab, left, remain))
    except Infeasible as error:
        why.append(str(error))
    paths: list[Option] = []
    poorer = max((sum(rank in link for link in links) for rank in remain), default=0)
    smaller = replace(lab, n=len(remain), degree=max(lab.degree - poorer, 1))

    def rewired(name: str, new: Shape, moves: int, where: Lab) -> Option:
        dark = dark_s(moves, settle_s=settle_s, at_once=at_once, link_up_s=link_up_s)
        return Option(name, iteration_s(new, rest, where), dark, moves)

    for degree in range(smaller.degree, 0, -1):
        try:
            new = find(
                rest, replace(smaller, degree=degree, planes=False), rules=rules, seed=seed
            ).shape
            check(new, smaller)
        except Infeasible as error:
            why.append(str(error))
        else:
            paths.append(
                rewired(
                    "rewire at the next checkpoint", new, _moves(shape, new, remain, links), smaller
                )
            )
            break
    if len(links) == 1 and not hosts:
        try:
            leased = borrow(shape, links[0], demand.mp, check(shape, lab) if lab.planes else None)
            paths.append(rewired("borrow a model parallel link", leased.shape, leased.moves, lab))
        except Infeasible as error:
            why.append(str(error))
        for still in _exchanges(shape, links[0], left, check(shape, lab) if lab.planes else None):
            dark = dark_s(EXCHANGED, settle_s=settle_s, at_once=at_once, link_up_s=link_up_s)
            with suppress(Infeasible):  # some are cut off
                paths.append(
                    Option(
                        "exchange two links",
                        _around_s(shape, demand, lab, still, remain),
                        dark,
                        EXCHANGED,
                    )
                )
    best: dict[str, Option] = {}
    for path in sorted(paths, key=lambda path: (path.iteration_s, path.dark_s)):
        best.setdefault(path.name, path)
    later, *others = best.values() or (None,)
    return Replan(before, now, later, "; ".join(why), tuple(other for other in others if other))


EXCHANGED = 4
"""Links that an exchange takes down and puts up."""


def _exchanges(
    shape: Shape, failed: Link, left: Counter[Link], planes: Sequence[int] | None
) -> Iterator[Counter[Link]]:
    """The directed links after each exchange: the failed link's ranks give up one link each, are
    joined by the ports that freed, and so are the ranks at the other ends; both links on one switch
    where there are planes."""
    pairs = [(int(src), int(dst)) for src, dst in shape.cables]
    cables = [
        (pair, planes[k] if planes is not None else 0)
        for k, pair in enumerate(pairs)
        if set(pair) & set(failed)
    ]

    def both(link: Link) -> tuple[Link, ...]:
        return (link, link[::-1]) if shape.duplex else (link,)

    seen = set()
    for first, on in cables:
        for second, other in cables:
            new = _partners(shape.duplex, first, second, failed)
            if (
                new is None
                or on != other
                or first == second
                or new[0] == new[1]
                or (first, second) in seen
            ):
                continue
            seen.add((first, second))
            found = Counter(left)
            for link in (*both(first), *both(second)):
                found[link] -= 1
            if min(found.values()) >= 0:  # the failed link itself is not there to give
                for link in (*both(failed), *both(new)):
                    found[link] += 1
                yield found


def _restricted(demand: Demand, remain: Sequence[int]) -> Demand:
    """The traffic of the remaining ranks, renumbered in their order."""
    place = {rank: number for number, rank in enumerate(remain)}
    groups = tuple(
        Group(g.id, tuple(place[m] for m in g.members if m in place), g.bytes)
        for g in demand.groups
    )
    groups = tuple(group for group in groups if group.members)
    return Demand(len(remain), groups, demand.mp[np.ix_(remain, remain)], demand.compute_s)


def _without(shape: Shape, links: Sequence[Link]) -> Counter[Link]:
    """The directed links that are left without some. Raises: Infeasible - one is not there."""
    left = Counter(shape.links)
    for a, b in links:
        for path in ((a, b), (b, a)) if shape.duplex else ((a, b),):
            if not left[path]:
                raise Infeasible(
                    f"no link from rank {path[0]} to rank {path[1]}", "name a link of the topology"
                )
            left[path] -= 1
    return left


def _around_s(
    shape: Shape, demand: Demand, lab: Lab, left: Counter[Link], remain: Sequence[int]
) -> float:
    """An iteration with every step and pair on shortest paths over the links that are left."""
    alive = np.zeros(shape.n, dtype=bool)
    alive[list(remain)] = True
    over = Shape(
        shape.n,
        shape.degree,
        False,
        (),
        tuple(sorted(path for path in left.elements() if alive[list(path)].all())),
    )
    left_out = replace(
        shape,
        rings=tuple(
            replace(ring, order=tuple(m for m in ring.order if alive[m])) for ring in shape.rings
        ),
    )
    groups = [Group(g.id, tuple(m for m in g.members if alive[m]), g.bytes) for g in demand.groups]
    groups = [group for group in groups if len(group.members) > 1]
    own, others = ring_steps(left_out, groups)
    carried = [
        drain_s(over, even_loads(over, loads), lab)
        for loads in (own + others, demand.mp * np.outer(alive, alive))
    ]
    rounds = max((2 * (len(group.members) - 1) for group in groups), default=0)
    return demand.compute_s + sum(carried) + rounds * lab.alpha_s


def _moves(old: Shape, new: Shape, remain: Sequence[int], failed: Sequence[Link]) -> int:
    """Links to take down (failed ones need not be) and to put up, ranks staying where they are."""

    def key(a: int, b: int) -> Link:
        return (min(a, b), max(a, b)) if old.duplex else (a, b)

    existing = Counter(key(a, b) for a, b in old.cables.tolist()) - Counter(
        key(a, b) for a, b in failed
    )
    wanted = Counter(key(remain[a], remain[b]) for a, b in new.cables.tolist())
    return (existing - wanted).total() + (wanted - existing).total()


# what a move costs


@dataclass(frozen=True)
class Payoff:
    """A change: for `dark_s` the job stops and `stalled_bytes` wait; each iteration then takes
    `after_s` and not `before_s`.
    """

    moves: int
    dark_s: float
    before_s: float
    after_s: float
    stalled_bytes: float

    @property
    def iterations(self) -> float:
        """Iterations until the time saved is the time lost; infinite where nothing is saved."""
        saved = self.before_s - self.after_s
        return self.dark_s / saved if saved > 0 else inf

    @property
    def break_even_s(self) -> float:
        """As `iterations`, in time from the change on, dark time included."""
        return self.dark_s + self.iterations * self.after_s if self.iterations < inf else inf


def dark_s(
    moves: int, *, settle_s: float, at_once: int | None = None, link_up_s: float = 0.0
) -> float:
    """Time in the dark of a batch of moves: settling as often as the device needs, then the ports'
    own time to come up.

    at_once: moves the device makes together, None for all, 1 for a robot.
    """
    for name, value in (("settle_s", settle_s), ("link_up_s", link_up_s)):
        if not (np.isfinite(value) and value >= 0):
            raise Infeasible(f"{name} is {value}", "give a finite time, 0 s or more")
    if moves < 0 or (at_once is not None and at_once < 1):
        raise Infeasible(
            f"{moves} moves, {at_once} at once", "give 0 moves or more, 1 at once or more"
        )
    if not moves:
        return 0.0
    return settle_s * (1 if at_once is None else -(-moves // at_once)) + link_up_s


def payoff(
    moves: int, dark: float, before_s: float, after_s: float, bytes_per_iteration: float
) -> Payoff:
    """Dark time against what an iteration gains; the traffic that waits is what flowed in that time
    before.
    """
    stalled = dark / before_s * bytes_per_iteration if before_s > 0 else 0.0
    return Payoff(moves, dark, before_s, after_s, stalled)
