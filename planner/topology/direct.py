"""Direct-connect topologies: base graphs, expansions that keep known costs, and the best of both
for a size and a degree.

Base graphs and expansions are those of the direct-connect work (NSDI'25, arXiv 2202.03356); costs
of base graphs are counted (`schedule/bfb.py`), as are those of small expansions; large ones follow
the published rules, and `Candidate.check` counts them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, product
from math import isqrt, prod

import numpy as np

from planner.model.demand import Infeasible
from planner.model.shape import Ring, Shape
from planner.predict.score import moore
from planner.schedule.bfb import Cost, circulant_cost, cost
from planner.topology.known import known, polarity

COUNTED = 64
"""Ranks up to which costs of expansions are counted instead of derived by rule."""

# base graphs


def ring(n: int, *, duplex: bool = True) -> Shape:
    """One ring."""
    return Shape(n, (2 if duplex and n > 2 else 1), duplex, (Ring("all", tuple(range(n)), 1),))


def graph(n: int, edges: Iterable[tuple[int, int]], *, duplex: bool = True) -> Shape:
    """A topology from links; its degree is what the busiest rank has."""
    matched = tuple(sorted((a, b) if not duplex or a < b else (b, a) for a, b in edges))
    ends = np.array(matched, dtype=np.int64).reshape(-1, 2)
    degree = max(
        (
            int(np.bincount(side, minlength=1).max())
            for side in ((ends.reshape(-1),) if duplex else ends.T)
        ),
        default=0,
    )
    return Shape(n, degree, duplex, (), matched)


def complete(n: int) -> Shape:
    """The complete graph."""
    return graph(n, combinations(range(n), 2))


def bipartite(side: int) -> Shape:
    """The complete bipartite graph of two equal sides."""
    return graph(2 * side, product(range(side), range(side, 2 * side)))


def circulant(n: int, steps: Sequence[int], *, duplex: bool = True) -> Shape:
    """Rank i joined to i + s for each step; duplex steps of n/2 are one link for two ranks."""
    if any(not 0 < step < n for step in steps):
        raise Infeasible(f"steps {tuple(steps)} among {n} ranks", f"take steps from 1 to {n - 1}")
    half = {step for step in steps if duplex and 2 * step == n}
    return graph(
        n,
        [(i, (i + step) % n) for step in steps for i in range(n // 2 if step in half else n)],
        duplex=duplex,
    )


def kautz(degree: int, n: int) -> Shape:
    """Generalised Kautz graph (Imase and Itoh): i to -degree * i - a modulo n for a from 1 to
    degree; loops leave ports free.
    """
    paths = [(i, (-degree * i - a) % n) for i in range(n) for a in range(1, degree + 1)]
    return graph(n, [(a, b) for a, b in paths if a != b], duplex=False)


def de_bruijn(degree: int, length: int) -> Shape:
    """Words of `length` letters, each leading to those it overlaps; the loops at words of one
    letter become a ring of those.
    """
    n = degree**length
    paths = [(i, (i * degree + a) % n) for i in range(n) for a in range(degree)]
    loops = [a for a, b in paths if a == b]
    joined = (
        [(a, loops[(place + 1) % len(loops)]) for place, a in enumerate(loops)]
        if len(loops) > 1
        else []
    )
    return graph(n, [path for path in paths if path[0] != path[1]] + joined, duplex=False)


def torus(*sides: int) -> Shape:
    """A ring along each side; along a side of two, one link."""
    n = prod(sides)
    edges = []
    for place in range(n):
        at = np.unravel_index(place, sides)
        for axis, side in enumerate(sides):
            if side > 2 or (side == 2 and at[axis] == 0):
                neighbours = [int(x) for x in at]
                neighbours[axis] = (neighbours[axis] + 1) % side
                edges.append((place, int(np.ravel_multi_index(neighbours, sides))))
    return graph(n, edges)


def twisted_torus(*sides: int) -> Shape:
    """A torus whose links that close a shortest side also step half of each longer side.

    For sides of k and 2k these are the twisted tori of TPU v4 (ISCA'23), every link alike: the
    lattice graphs RTT (k x 2k), FCC (k x k x 2k) and BCC (k x 2k x 2k) of Camarero, Martinez and
    Beivide (arXiv 1311.2019). Others are twisted by the same rule. Raises: Infeasible - all sides
    are equal, or one is below 2.
    """
    short = min(sides, default=0)
    if short < 2 or set(sides) == {short}:
        text = "x".join(map(str, sides))
        raise Infeasible(
            f"a torus of {text} has no longer side to twist along",
            f"take sides such as {short or 2}x{2 * (short or 2)}",
        )
    edges = []
    for place in range(prod(sides)):
        at = [int(x) for x in np.unravel_index(place, sides)]
        for axis, side in enumerate(sides):
            closes = side == short and at[axis] == side - 1
            to = [
                (x + length // 2) % length if closes and length > short else x
                for x, length in zip(at, sides, strict=True)
            ]
            to[axis] = (at[axis] + 1) % side
            edges.append((place, int(np.ravel_multi_index(to, sides))))
    return graph(prod(sides), edges)


def hypercube(dimensions: int) -> Shape:
    """Ranks whose numbers differ in one bit are joined."""
    n = 2**dimensions
    return graph(
        n, [(i, i ^ 1 << bit) for i in range(n) for bit in range(dimensions) if not i >> bit & 1]
    )


def kneser(points: int, chosen: int) -> Shape:
    """Sets without a common element are joined: Petersen's graph for (5, 2), the odd graph of
    degree 4 for (7, 3).
    """
    sets = list(combinations(range(points), chosen))
    return graph(
        len(sets),
        [(a, b) for a, b in combinations(range(len(sets)), 2) if not {*sets[a]} & {*sets[b]}],
    )


def incidence(lines: int, differences: Sequence[int]) -> Shape:
    """Points and lines of a cyclic plane given by a difference set: Heawood's graph for (7, (0, 1,
    3)).
    """
    return graph(
        2 * lines, [(i, lines + (i + d) % lines) for i in range(lines) for d in differences]
    )


def octahedron(pairs: int) -> Shape:
    """Every rank joined to all but one other: the cocktail party graph."""
    return graph(
        2 * pairs, [(a, b) for a, b in combinations(range(2 * pairs), 2) if b - a != pairs]
    )


# expansions


def line(shape: Shape) -> Shape:
    """The line graph: a rank for each directed link, joined to those that can follow it.
    Simplex.
    """
    after: dict[int, list[int]] = {}
    for place, (src, _) in enumerate(shape.links):
        after.setdefault(src, []).append(place)
    paths = [
        (place, other)
        for place, (_, dst) in enumerate(shape.links)
        for other in after[dst]
        if other != place
    ]
    return graph(len(shape.links), paths, duplex=False)


def widened(shape: Shape, copies: int) -> Shape:
    """Degree expansion: each rank becomes `copies`, each joined to all copies of its neighbours."""
    n, edges = shape.n, shape.cables.tolist()
    paths = [(a + n * i, b + n * j) for a, b in edges for i in range(copies) for j in range(copies)]
    return graph(n * copies, paths, duplex=shape.duplex)


def cartesian(first: Shape, second: Shape) -> Shape:
    """The Cartesian product: a copy of one for each rank of the other."""
    if first.duplex != second.duplex:
        raise Infeasible("a product of duplex and simplex links", "take two of one kind")
    m, n = first.n, second.n
    paths = [(a * n + i, b * n + i) for a, b in first.cables.tolist() for i in range(n)]
    paths += [(i * n + a, i * n + b) for a, b in second.cables.tolist() for i in range(m)]
    return graph(m * n, paths, duplex=first.duplex)


# the best for a size and a degree


@dataclass(frozen=True)
class Candidate:
    """A graph that is built only when asked for, and its cost: `counted`, or derived, a bound that
    some graphs go below.
    """

    name: str
    n: int
    degree: int
    cost: Cost
    build: Callable[[], Shape]
    counted: bool = True

    def check(self) -> Cost:
        """The cost, counted on the graph itself."""
        return cost(self.build())


def optimal_load(n: int) -> Fraction:
    """No all-gather among n ranks loads links less."""
    return Fraction(n - 1, n)


def pareto(n: int, degree: int, *, duplex: bool = True) -> tuple[Candidate, ...]:
    """Graphs of n ranks and this degree of which none has both fewer steps and less load, fewest
    steps first.

    Raises: Infeasible - no base graph or expansion has this size and degree.
    """
    found = _front(_candidates(n, degree, duplex, {}))
    if not found:
        raise Infeasible(
            f"no known graph of {n} ranks and degree {degree}",
            f"take degree 2, or {degree * n} ranks, or the method `exact`",
        )
    return found


def instead(n: int, degree: int, *, duplex: bool) -> str:
    """What to do where the best cannot be searched for: who answers, with what, and what is proven
    of all graphs.
    """
    try:
        shape = (
            best := best_known(n, degree, duplex=duplex) or pareto(n, degree, duplex=duplex)[0]
        ).build()
        least = moore(n, degree, duplex=duplex)
    except Infeasible:
        return "take the method `topoopt`, or fewer ranks"
    reached = f"diameter {shape.diameter}, {shape.mean_hops():.3f} mean hops"
    proven = f"no graph has a diameter below {least[0]} or fewer mean hops than {least[1]:.3f}, by the Moore bound"
    return f"take the method `direct` ({best.name}: {reached}; {proven}), or `topoopt`"


def best_known(n: int, degree: int, *, duplex: bool = True) -> Candidate | None:
    """The stored graph of this size and degree (`planner.topology.known`), None if there is
    none.
    """
    if not duplex:
        return None
    if (n, degree) == (57, 8):
        return Candidate(
            "polarity graph of the plane of order 7",
            n,
            degree,
            cost(build := graph(n, polarity(7))),
            lambda: build,
        )
    if (stored := known().get((n, degree))) is None:
        return None
    shape = graph(n, stored.edges())
    return Candidate(stored.name, n, degree, cost(shape), lambda: shape)


def _front(candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    front: list[Candidate] = []
    for candidate in sorted(
        candidates, key=lambda c: (c.cost.steps, c.cost.load, not c.counted, c.name)
    ):
        if not front or candidate.cost.load < front[-1].cost.load:
            front.append(candidate)
    return tuple(front)


def _candidates(
    n: int, degree: int, duplex: bool, known: dict[tuple[int, int], tuple[Candidate, ...]]
) -> tuple[Candidate, ...]:
    """Each once, smaller ones first found and kept in `known`."""
    if (n, degree) in known:
        return known[n, degree]
    known[n, degree] = ()
    found: list[Candidate] = []
    for pair in _steps(n, degree, duplex):
        name = f"{'' if duplex else 'one-way '}circulant {n}{pair}"
        found.append(
            Candidate(
                name, n, degree, circulant_cost(n, pair, duplex=duplex), _circulant(n, pair, duplex)
            )
        )
    if (stored := best_known(n, degree, duplex=duplex)) is not None:
        found.append(stored)
    for name, build in _bases(n, degree, duplex):
        shape = build()
        if shape.n == n and shape.degree == degree and shape.connected:
            found.append(Candidate(name, n, degree, cost(shape), build))
    if not duplex and degree > 1 and n % degree == 0:
        for small in _candidates(n // degree, degree, duplex, known):
            load = small.cost.load + Fraction(1, small.n)
            found.append(
                _derived(
                    f"line graph of {small.name}",
                    n,
                    degree,
                    small.cost.steps + 1,
                    load,
                    line,
                    small,
                )
            )
    for copies in range(2, degree + 1):
        if degree % copies == 0 and n % copies == 0 and n > copies:
            for small in _candidates(n // copies, degree // copies, duplex, known):
                load = small.cost.load + Fraction(copies - 1, n)
                # Published: one step more. Over duplex links copies are two hops apart, whatever
                # the graph.
                steps = max(small.cost.steps, 2) if duplex else small.cost.steps + 1
                found.append(
                    _derived(
                        f"{small.name} widened by {copies}",
                        n,
                        degree,
                        steps,
                        load,
                        _with(widened, copies),
                        small,
                    )
                )
    for power in range(2, degree + 1):
        root = round(n ** (1 / power))
        if root > 1 and root**power == n and degree % power == 0:
            for small in _candidates(root, degree // power, duplex, known):
                load = small.cost.load * Fraction(root, root - 1) * Fraction(n - 1, n)
                build_power = _power(power)
                found.append(
                    _derived(
                        f"({small.name})^{power}",
                        n,
                        degree,
                        power * small.cost.steps,
                        load,
                        build_power,
                        small,
                    )
                )
    for a in range(2, isqrt(n) + 1):
        if n % a == 0:
            for first_degree in range(1, degree):
                ones = _best(_candidates(a, first_degree, duplex, known))
                others = _best(_candidates(n // a, degree - first_degree, duplex, known))
                for one, other in product(ones, others):
                    steps = one.cost.steps + other.cost.steps
                    build_product = _product(one, other)
                    name = f"{one.name} x {other.name}"
                    found.append(
                        Candidate(
                            name,
                            n,
                            degree,
                            Cost(steps, optimal_load(n)),
                            build_product,
                            counted=False,
                        )
                    )
    known[n, degree] = _front(found)
    return known[n, degree]


def _derived(
    name: str,
    n: int,
    degree: int,
    steps: int,
    load: Fraction,
    grow: Callable[[Shape], Shape],
    small: Candidate,
) -> Candidate:
    """By the rule; up to COUNTED ranks counted, which can be less."""

    def build() -> Shape:
        return grow(small.build())

    return Candidate(
        name,
        n,
        degree,
        cost(build()) if n <= COUNTED else Cost(steps, load),
        build,
        counted=n <= COUNTED,
    )


def _best(candidates: Iterable[Candidate]) -> list[Candidate]:
    return [
        candidate for candidate in candidates if candidate.cost.load == optimal_load(candidate.n)
    ][:1]


def _with(grow: Callable[[Shape, int], Shape], copies: int) -> Callable[[Shape], Shape]:
    return lambda shape: grow(shape, copies)


def _power(times: int) -> Callable[[Shape], Shape]:
    def build(shape: Shape) -> Shape:
        whole = shape
        for _ in range(times - 1):
            whole = cartesian(whole, shape)
        return whole

    return build


def _product(one: Candidate, other: Candidate) -> Callable[[], Shape]:
    return lambda: cartesian(one.build(), other.build())


def _circulant(n: int, steps: tuple[int, ...], duplex: bool) -> Callable[[], Shape]:
    return lambda: circulant(n, steps, duplex=duplex)


def _steps(n: int, degree: int, duplex: bool) -> Iterator[tuple[int, int]]:
    """Pairs of steps of circulants: 1 and another, and neighbouring numbers, which about the root
    of n/2 are of least diameter.
    """
    if degree == (4 if duplex else 2) and n > degree:
        near = isqrt(n // 2)
        for steps in [(a, a + 1) for a in range(max(2, near - 1), near + 2)] + [
            (1, step) for step in range(2, n)
        ]:
            if (2 if duplex else 1) * steps[1] < n:
                yield steps


def _bases(n: int, degree: int, duplex: bool) -> Iterator[tuple[str, Callable[[], Shape]]]:
    """Names and builders of the base graphs of about this size and degree."""
    if not duplex:
        if degree == 1:
            yield f"one-way ring of {n}", lambda: ring(n, duplex=False)
        if degree > 1 and n > degree:
            yield f"generalised Kautz ({degree}, {n})", lambda: kautz(degree, n)
        for length in range(2, n):
            if degree > 1 and degree**length == n:
                yield (
                    f"modified de Bruijn ({degree}, {length})",
                    lambda length=length: de_bruijn(degree, length),  # type: ignore[misc]
                )
            if degree**length >= n:
                break
        return
    if degree == n - 1:
        yield f"complete graph of {n}", lambda: complete(n)
    if degree == 2 and n > 2:
        yield f"ring of {n}", lambda: ring(n)
    if n == 2 * degree:
        yield f"complete bipartite graph of {n}", lambda: bipartite(degree)
    if n == 2 * degree + 2:
        yield (
            f"{n} ranks bipartite but for a matching",
            lambda: incidence(degree + 1, range(1, degree + 1)),
        )
    if n == degree + 2 and n % 2 == 0:
        yield f"octahedron of {n}", lambda: octahedron(n // 2)
    if n == 2**degree:
        yield f"hypercube of {n}", lambda: hypercube(degree)
    for size, width, name, build in (
        (10, 3, "Petersen's graph", lambda: kneser(5, 2)),
        (35, 4, "odd graph of degree 4", lambda: kneser(7, 3)),
        (14, 3, "Heawood's graph", lambda: incidence(7, (0, 1, 3))),
        (26, 4, "incidence graph of the plane of order 3", lambda: incidence(13, (0, 1, 3, 9))),
        (
            42,
            5,
            "incidence graph of the plane of order 4",
            lambda: incidence(21, (0, 1, 4, 14, 16)),
        ),
    ):
        if (n, degree) == (size, width):
            yield name, build
