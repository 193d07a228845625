"""Wavelengths on a ring of fibres: which links share one, which way round each goes, and which rank
stands where. Pure.

Node k of n is joined to node k + 1 by stretch k, the last to the first: a pair of fibres, one for
each direction. A link between two nodes runs over the stretches between them, one way round the
ring or the other, on one wavelength; its two directions use the two fibres. Links may have the same
wavelength if they share no stretch. So links are arcs of a circle, wavelengths their colours.

- At least as many colours are needed as there are arcs over the fullest stretch, the largest cut.
  Where some stretch is empty the arcs are intervals, and exactly that many suffice: taken from left
  to right, each has a colour left.
- On a closed ring more may be needed: three arcs over two thirds of a circle each have a cut of 2
  and need 3 colours. The largest cut plus the smallest always suffices: arcs over the emptiest
  stretch get colours of their own, the others are intervals. (Tucker, "Coloring a family of
  circular arcs", SIAM J. Appl. Math. 29, 1975, has 2 x cut - 1; from memory, not looked up.)
- The least number is hard to find in general (Garey, Johnson, Miller, Papadimitriou 1980, from
  memory); the search here is bounded and says whether it ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from planner.model.demand import Demand

STEPS = 20_000
"""Colours tried in one search for so many wavelengths; beyond it the search gives up. Of 3000
random sets of up to 19 spans on 12 nodes, 11 were not solved from left to right; the search ended
in all of them."""
EXHAUSTIVE = 7
"""Ranks whose every order on the ring is tried (5040); more are placed by exchanges."""
RESTARTS = 8
Pair: TypeAlias = tuple[int, int]
"""Two nodes of the ring that are linked, in any order."""


class Span(NamedTuple):
    """`length` stretches from node `start` on, clockwise: 1 to n - 1."""

    start: int
    length: int

    def mask(self, n: int) -> int:
        """The stretches as bits."""
        bits = ((1 << self.length) - 1) << self.start
        return (bits | bits >> n) & ((1 << n) - 1)


@dataclass(frozen=True)
class Colouring:
    """A wavelength, counted from 0, for each span. least: no smaller number of wavelengths would
    do. cut: the largest, which is a lower bound; most: the largest plus the smallest, which always
    suffices."""

    colours: tuple[int, ...]
    cut: int
    most: int
    least: bool

    @property
    def count(self) -> int:
        """Wavelengths used."""
        return max(self.colours, default=-1) + 1


def cuts(spans: Iterable[Span], n: int) -> tuple[int, ...]:
    """How many spans run over each stretch of a ring of n nodes."""
    found = [0] * n
    for start, length in spans:
        for stretch in range(start, start + length):
            found[stretch % n] += 1
    return tuple(found)


def routed(pairs: Sequence[Pair], n: int, taken: Sequence[int] = ()) -> tuple[Span, ...]:
    """The way round for each pair: the shorter one, then changed as long as the fullest stretches
    get emptier.

    taken: stretches already in use, as bits for each wavelength. A local optimum: the least largest
    cut may be smaller.
    """
    paths = [(Span(a, (b - a) % n), Span(b, (a - b) % n)) for a, b in pairs]
    load = np.array([sum(mask >> k & 1 for mask in taken) for k in range(n)], dtype=np.int64)

    def over(span: Span) -> NDArray[np.int64]:
        return np.array([span.mask(n) >> k & 1 for k in range(n)], dtype=np.int64)

    arcs = [(over(one), over(other)) for one, other in paths]
    chosen = [int(other.length < one.length) for one, other in paths]
    for path, arc in zip(chosen, arcs, strict=True):
        load = load + arc[path]
    better = True
    while better:
        better = False
        for index, arc in enumerate(arcs):
            now = load - arc[chosen[index]] + arc[1 - chosen[index]]
            if (now.max(initial=0), int((now**2).sum())) < (
                load.max(initial=0),
                int((load**2).sum()),
            ):
                load, chosen[index], better = now, 1 - chosen[index], True
    return tuple(both[path] for both, path in zip(paths, chosen, strict=True))


def fit(
    spans: Sequence[Span], n: int, taken: Sequence[int], steps: int = STEPS
) -> tuple[tuple[int, ...] | None, bool]:
    """Colours for spans on wavelengths whose stretches in use are `taken` (bits); and whether the
    answer is certain.

    (None, True): there are none. (None, False): none were found in so many steps.
    """
    masks = [span.mask(n) for span in spans]
    load = [sum(mask >> k & 1 for mask in (*masks, *taken)) for k in range(n)]
    if max(load, default=0) > len(taken):
        return None, True
    for stretch in sorted(range(n), key=lambda k: load[k]):
        if (found := _greedy(spans, masks, n, taken, stretch)) is not None:
            return found, True
    emptiest = min(range(n), key=lambda k: load[k])
    return _searched(masks, _order(spans, masks, n, emptiest), list(taken), steps)


def coloured(spans: Sequence[Span], n: int, steps: int = STEPS) -> Colouring:
    """Colours for all spans, as few as the search finds in so many steps for each number of
    wavelengths.
    """
    load = cuts(spans, n)
    cut, most = max(load), max(load) + min(load)
    certain = True
    for count in range(cut, most + 1):
        found, sure = fit(spans, n, [0] * count, steps)
        if found is not None:
            return Colouring(found, cut, most, certain)
        certain &= sure
    raise AssertionError("the largest cut plus the smallest suffices")


def first_fit(pairs: Sequence[Pair], n: int) -> Colouring:
    """What one gets without planning: each pair in its turn the shorter way round (clockwise if
    both are as long), on the first wavelength that is free there."""
    spans = [
        min(Span(a, (b - a) % n), Span(b, (a - b) % n), key=lambda span: span.length)
        for a, b in pairs
    ]
    used: list[int] = []
    colours = []
    for mask in (span.mask(n) for span in spans):
        colour = next((c for c, existing in enumerate(used) if not existing & mask), len(used))
        used += [0] * (colour == len(used))
        used[colour] |= mask
        colours.append(colour)
    load = cuts(spans, n)
    return Colouring(tuple(colours), max(load), max(load) + min(load), len(used) == max(load))


def _order(spans: Sequence[Span], masks: Sequence[int], n: int, stretch: int) -> list[int]:
    """Spans over `stretch` first, the longest of them first; then from there on round the ring."""
    crossing = [index for index, mask in enumerate(masks) if mask >> stretch & 1]
    rest = [index for index, mask in enumerate(masks) if not mask >> stretch & 1]
    crossing.sort(key=lambda index: -spans[index].length)
    return crossing + sorted(
        rest, key=lambda index: ((spans[index].start - stretch - 1) % n, -spans[index].length)
    )


def _greedy(
    spans: Sequence[Span], masks: Sequence[int], n: int, taken: Sequence[int], stretch: int
) -> tuple[int, ...] | None:
    used, colours = list(taken), [0] * len(spans)
    for index in _order(spans, masks, n, stretch):
        colour = next((c for c, existing in enumerate(used) if not existing & masks[index]), None)
        if colour is None:
            return None
        used[colour] |= masks[index]
        colours[index] = colour
    return tuple(colours)


def _searched(
    masks: Sequence[int], order: Sequence[int], used: list[int], steps: int
) -> tuple[tuple[int, ...] | None, bool]:
    """Try all colours in this order. Wavelengths in use at the same stretches are alike: one of
    them is tried.
    """
    colours, left = [0] * len(masks), steps

    def place(at: int) -> bool:
        nonlocal left
        if at == len(order):
            return True
        index, tried = order[at], set()
        for colour, location in enumerate(used):
            if location & masks[index] or location in tried:
                continue
            tried.add(location)
            if left <= 0:
                return False
            left -= 1
            used[colour], colours[index] = location | masks[index], colour
            if place(at + 1):
                return True
            used[colour] = location
        return False

    if place(0):
        return tuple(colours), True
    return None, left > 0


@dataclass(frozen=True)
class Flow:
    """Bytes of an iteration between members that are linked to a ring of their own, or between two:
    `bytes` over each link.
    """

    members: tuple[int, ...]
    bytes: float


def flows(demand: Demand) -> tuple[Flow, ...]:
    """What moves over the links of a demand if each group has a ring and each pair a link: in each
    direction, the larger one.
    """
    rings = [
        Flow(group.members, 2 * (len(group.members) - 1) / len(group.members) * group.bytes)
        for group in demand.groups
    ]
    both = np.triu(np.maximum(demand.mp, demand.mp.T))
    return tuple(rings) + tuple(
        Flow((int(a), int(b)), float(both[a, b])) for a, b in np.argwhere(both > 0)
    )


def ring_order(members: Iterable[int], at: Sequence[int]) -> tuple[int, ...]:
    """Ranks in the order of their nodes: the ring among them that is shortest along the fibres. at:
    node of each rank.
    """
    return tuple(sorted(members, key=lambda rank: at[rank]))


def steps_of(order: Sequence[int]) -> list[Pair]:
    """The links of a duplex ring in this order: one between two members."""
    return (
        [(order[0], order[1])]
        if len(order) == 2
        else list(zip(order, [*order[1:], order[0]], strict=True))
    )


def placed(demand: Demand, nodes: Sequence[int], n: int, seed: int = 1) -> tuple[int, ...]:
    """A node for each rank, of these, so that few bytes run over the fullest stretch, then few in
    all.

    Every order is tried up to `EXHAUSTIVE` ranks; beyond that exchanges of two, from the order
    given and from random ones.
    """
    wanted = flows(demand)
    best = tuple(nodes)
    if demand.n <= EXHAUSTIVE:
        whole = len(nodes) == n  # then every rotation is alike
        orders = permutations(nodes[1:]) if whole else permutations(nodes)
        return min(
            ((nodes[0], *one) if whole else one for one in orders),
            key=lambda at: _weight(wanted, at, n),
        )
    rng = np.random.default_rng(seed)
    least = _weight(wanted, best, n)
    for step in range(RESTARTS):
        at = list(nodes) if step == 0 else [nodes[k] for k in rng.permutation(len(nodes)).tolist()]
        now, better = _weight(wanted, at, n), True
        while better:
            better = False
            for a in range(len(at)):
                for b in range(a + 1, len(at)):
                    at[a], at[b] = at[b], at[a]
                    weight = _weight(wanted, at, n)
                    if weight < now:
                        now, better = weight, True
                    else:
                        at[a], at[b] = at[b], at[a]
        if now < least:
            least, best = now, tuple(at)
    return best


def _weight(wanted: Sequence[Flow], at: Sequence[int], n: int) -> tuple[float, float]:
    """Bytes over the fullest stretch, and over all, if every link goes the shorter way round."""
    load = [0.0] * n
    for flow in wanted:
        for a, b in steps_of(ring_order(flow.members, at)):
            start, length = min(
                (at[a], (at[b] - at[a]) % n), (at[b], (at[a] - at[b]) % n), key=lambda path: path[1]
            )
            for stretch in range(start, start + length):
                load[stretch % n] += flow.bytes
    return round(max(load), 3), round(sum(load), 3)


@dataclass(frozen=True)
class Linked:
    """Links for a demand on so many wavelengths. rings: orders of ranks, with the group of each;
    matched: pairs of ranks. spans, colours: of all links, those of `matched` first, then ring by
    ring (`steps_of`)."""

    rings: tuple[tuple[str, tuple[int, ...]], ...]
    matched: tuple[Pair, ...]
    spans: tuple[Span, ...]
    colours: tuple[int, ...]


@dataclass(frozen=True)
class _Unit:
    """What is added at once: a ring of a group, or (group empty) a link of two ranks. bytes: over
    each of its links.
    """

    group: str
    order: tuple[int, ...]
    bytes: float


def linked(
    demand: Demand,
    at: Sequence[int],
    n: int,
    taken: Sequence[int],
    base: str,
    transfers: float = 1.0,
) -> list[Linked]:
    """Links that join all ranks, from each of `_starts` that fits, and then what has most bytes a
    link, while anything fits.

    at: node of each rank. taken: stretches in use, as bits for each wavelength. base: name of the
    ring of all ranks. transfers: how much a byte between two ranks counts. Empty: not even a ring
    through all ranks fits.
    """
    units = _units(demand, at, transfers)
    answers = []
    for chosen in _starts(demand, at, units, base):
        best = _fitted(chosen, at, n, taken)
        if best is not None:
            answers.append(_filled(best, chosen, units, at, n, taken))
    return list(dict.fromkeys(answers))


def _starts(
    demand: Demand, at: Sequence[int], units: Sequence[_Unit], base: str
) -> list[list[_Unit]]:
    """A ring for each group, joined by the heaviest pairs or by a ring through all ranks; and that
    ring alone.
    """
    rings = [unit for unit in units if unit.group]
    whole = _Unit(base, ring_order(range(demand.n), at), 0.0)
    whole = next((unit for unit in rings if unit.order == whole.order), whole)
    if _joined(demand.n, rings):
        return [rings, [whole]] if rings != [whole] else [rings]
    paired = list(rings)
    for unit in sorted((unit for unit in units if not unit.group), key=lambda unit: -unit.bytes):
        if not set(unit.order) <= _reached(unit.order[0], paired):
            paired.append(unit)
    return [*([paired] if _joined(demand.n, paired) else []), [*rings, whole], [whole]]


def _filled(
    best: Linked,
    chosen: Sequence[_Unit],
    units: Sequence[_Unit],
    at: Sequence[int],
    n: int,
    taken: Sequence[int],
) -> Linked:
    open_ = list(units)
    while open_:
        existing = [frozenset(pair) for unit in chosen for pair in steps_of(unit.order)]
        counts = [
            sum(one.order == u.order for one in chosen)
            if u.group
            else existing.count(frozenset(u.order))
            for u in open_
        ]
        shares = [u.bytes / (count or 0.5) for u, count in zip(open_, counts, strict=True)]
        unit = open_[shares.index(max(shares))]
        found = _fitted([*chosen, unit], at, n, taken)
        if found is None:
            open_.remove(unit)
        else:
            best, chosen = found, [*chosen, unit]
    return best


def _units(demand: Demand, at: Sequence[int], transfers: float) -> list[_Unit]:
    """One ring for all groups of the same members, one link for each pair with bytes."""
    rings: dict[tuple[int, ...], _Unit] = {}
    for group, flow in zip(demand.groups, flows(demand), strict=False):
        order = ring_order(group.members, at)
        known = rings.get(order, _Unit(group.id, order, 0.0))
        rings[order] = _Unit(known.group, order, known.bytes + flow.bytes)
    pairs = [
        _Unit("", flow.members, flow.bytes * transfers)
        for flow in flows(demand)[len(demand.groups) :]
    ]
    return [*rings.values(), *(pair for pair in pairs if pair.bytes)]


def _fitted(
    units: Sequence[_Unit], at: Sequence[int], n: int, taken: Sequence[int]
) -> Linked | None:
    rings = tuple((unit.group, unit.order) for unit in units if unit.group)
    matched = tuple((unit.order[0], unit.order[1]) for unit in units if not unit.group)
    pairs = [*matched, *(pair for _, order in rings for pair in steps_of(order))]
    spans = routed([(at[a], at[b]) for a, b in pairs], n, taken)
    colours = fit(spans, n, taken)[0]
    return None if colours is None else Linked(rings, matched, spans, colours)


def _joined(count: int, units: Sequence[_Unit]) -> bool:
    return len(_reached(0, units)) == count


def _reached(rank: int, units: Sequence[_Unit]) -> set[int]:
    """The ranks that these join with one."""
    whole, left = {rank}, [set(unit.order) for unit in units]
    while near := [one for one in left if one & whole]:
        whole |= set().union(*near)
        left = [one for one in left if one not in near]
    return whole
