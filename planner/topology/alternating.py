"""TopoOpt's alternating optimisation: a strategy for a fixed topology, a topology for a fixed
strategy, until nothing changes.

A strategy is one option for each part of the model; parts add their traffic up. With the topology
fixed, strategies are searched by Markov chain Monte Carlo with FlexFlow's rule (a worse one is
taken with probability exp(-alpha * difference)), costed by the analytical model: compute, then the
fullest link of traffic between pairs, then that of all-reduce.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import exp

import numpy as np
from numpy.typing import NDArray

from planner.model.demand import Demand, Group, Infeasible
from planner.model.shape import Lab, Shape
from planner.model.totient import Rules
from planner.predict.routing import even_loads
from planner.predict.score import allreduce_loads
from planner.topology.topofinder import Finding, find
from planner.workers import Workers, spread

PER_MS = 1.0
"""alpha, for differences in milliseconds: the released planner's value."""
STALE = 50
"""Steps without change after which the released planner finds a new topology."""
PATIENCE = 10_000
"""Default number of strategies in a row without improvement that ends the search against one
topology.
"""
WATCH_EVERY = 16
"""Strategies between two reports of progress."""
KEPT = 1024
"""Topologies kept in a cache with the costs of every option; older ones are computed again, with
the same result.
"""


@dataclass(frozen=True, eq=False)
class Option:
    """One parallelism of a part of the model: its traffic and computation in an iteration. mp:
    bytes, shape (n, n), None for none."""

    name: str
    compute_s: float = 0.0
    groups: tuple[Group, ...] = ()
    mp: NDArray[np.float64] | None = None


@dataclass(frozen=True, eq=False)
class Part:
    """A part of the model and its options."""

    name: str
    options: tuple[Option, ...]


@dataclass(frozen=True)
class Round:
    """One turn: time of an iteration with its topology before and after the search, s; strategies
    tried and taken.
    """

    before_s: float
    after_s: float
    tried: int
    taken: int


@dataclass(frozen=True)
class Seen:
    """Progress of a search: turn (from 1), strategies tried in it and allowed, the best time (s) of
    an iteration.

    Of several chains: how many have ended, strategies tried in them, the most that all may try."""

    step: int
    tried: int
    budget: int
    best_s: float


Watch = Callable[[Seen], bool]
"""Called with the progress of the search from time to time; returning False ends it with the best
so far.
"""


@dataclass(frozen=True, eq=False)
class Alternation:
    """The best strategy (an option's name for each part) with its topology.

    settled: the last round changed nothing. stopped: the observer ended it earlier. rounds: of the
    chain that found it, which is number `chain`, from 0.
    """

    strategy: tuple[str, ...]
    demand: Demand
    finding: Finding
    iteration_s: float
    rounds: tuple[Round, ...]
    settled: bool
    stopped: bool = False
    chain: int = 0


def together(n: int, parts: Sequence[Part], chosen: Sequence[int]) -> Demand:
    """The demand of one option for each part; groups of the same ranks are summed."""
    options = [part.options[index] for part, index in zip(parts, chosen, strict=True)]
    mp = np.zeros((n, n))
    sums: dict[frozenset[int], tuple[str, tuple[int, ...], int]] = {}
    for option in options:
        if option.mp is not None:
            mp += option.mp
        for group in option.groups:
            key = frozenset(group.members)
            name, members, size = sums.get(key, (group.id, group.members, 0))
            sums[key] = (name, members, size + group.bytes)
    names: dict[str, int] = {}
    groups = []
    for name, members, size in sums.values():
        names[name] = names.get(name, 0) + 1
        groups.append(Group(name if names[name] == 1 else f"{name}-{names[name]}", members, size))
    return Demand(n, tuple(groups), mp, sum(option.compute_s for option in options))


def alternate(
    parts: Sequence[Part],
    lab: Lab,
    n: int,
    *,
    rules: Rules = "paper",
    seed: int = 0,
    budget: int = 1000,
    rounds: int = 10,
    patience: int = PATIENCE,
    start: Sequence[int] | None = None,
    watch: Watch | None = None,
    chains: int = 1,
    workers: Workers | None = None,
) -> Alternation:
    """Search strategies and topologies in turn; the answer is the best pair met, never worse than
    the first.

    budget: strategies tried against one topology at most; patience: fewer, if so many in a row
    bring nothing better. artifact: a new topology whenever a strategy was taken or 50 in a row were
    not, and back to the best every budget/100 steps, 1 to 1000. start: the first option of each
    part, 0 where it is left out. watch: may end the search, which then depends on when; a search of
    several chains is asked after each, and a KeyboardInterrupt ends it with the best of those that
    have ended. chains: whole searches that differ in their dice, the first in none from a search of
    one chain; of equals the first one's answer is taken. workers: carry out the chains; of one
    chain, the loads of each option. The answer does not depend on them. Raises: Infeasible - a part
    without options, or no topology for the first strategy.
    """
    for part in parts:
        if not part.options:
            raise Infeasible(
                f"{part.name} has no option",
                "give each part of the model one strategy to spread it",
            )
    if not parts or min(budget, rounds, patience, chains) < 1:
        raise Infeasible(
            f"{len(parts)} part(s), a budget of {budget}, {rounds} round(s), patience {patience}, {chains} chain(s)",
            "give 1 or more of each",
        )
    given = _Given(
        tuple(parts),
        lab,
        n,
        rules,
        seed,
        budget,
        rounds,
        patience,
        None if start is None else tuple(start),
    )
    if chains == 1:
        return _chain(given, 0, watch, workers)
    best: Alternation | None = None
    tried = 0
    try:
        for found in spread(workers, _chain, ((given, number) for number in range(chains))):
            tried += sum(step.tried for step in found.rounds)
            if best is None or found.iteration_s < best.iteration_s:
                best = found
            if watch is not None and not watch(
                Seen(found.chain + 1, tried, chains * rounds * budget, best.iteration_s)
            ):
                return replace(best, stopped=found.chain + 1 < chains)
    except KeyboardInterrupt:  # between two chains `watch` is not asked, and one may take minutes
        if best is None or watch is None:
            raise
        return replace(best, stopped=True)
    assert best is not None  # there was a first chain
    return best


@dataclass(frozen=True, eq=False)
class _Given:
    """What all chains of a search have in common: the arguments of `alternate`."""

    parts: tuple[Part, ...]
    lab: Lab
    n: int
    rules: Rules
    seed: int
    budget: int
    rounds: int
    patience: int
    start: tuple[int, ...] | None


def _chain(
    given: _Given, number: int, watch: Watch | None = None, workers: Workers | None = None
) -> Alternation:
    parts, n, budget = given.parts, given.n, given.budget
    dice = np.random.default_rng(
        np.random.SeedSequence(given.seed, spawn_key=(number,)) if number else given.seed
    )
    chosen = list(given.start) if given.start is not None else [0] * len(parts)
    search = _Search(
        n, parts, given.lab, given.rules, dice, given.seed, given.patience, watch, workers
    )
    best: tuple[float, list[int], Finding] | None = None
    history: list[Round] = []
    settled = False
    while len(history) < given.rounds and not settled and not search.stopped:
        costs = search.costs(chosen)
        before = costs.seconds(chosen)
        if best is None or before < best[0]:
            best = (before, list(chosen), costs.finding)
        after, found, on, tried, taken = search.strategy(
            costs, chosen, budget, len(history) + 1, best[0]
        )
        history.append(Round(before, after, tried, taken))
        if after < best[0] * (1 - 1e-12):
            best = (after, list(found), on.finding)
        settled = found == chosen and not search.stopped
        chosen = found
    assert best is not None  # there was a first round
    seconds, chosen, finding = best
    names = tuple(part.options[index].name for part, index in zip(parts, chosen, strict=True))
    return Alternation(
        names,
        together(n, parts, chosen),
        finding,
        seconds,
        tuple(history),
        settled,
        search.stopped,
        number,
    )


@dataclass(eq=False)
class _Costs:
    """Loads of every option on the links of one topology, so that a strategy is a sum."""

    finding: Finding
    lab: Lab
    parts: tuple[Part, ...]
    workers: Workers | None
    between: list[list[NDArray[np.float64]]] = field(default_factory=list)
    reduce: list[list[NDArray[np.float64]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        shape = self.finding.shape
        links = shape.adjacency[shape.adjacency > 0] * self.lab.port_bytes_per_s
        for part in self.parts:
            self.between.append([self._load(shape, option.mp) / links for option in part.options])
            self.reduce.append(
                [self._sums(shape, option.groups) / links for option in part.options]
            )

    def _load(self, shape: Shape, mp: NDArray[np.float64] | None) -> NDArray[np.float64]:
        loads = (
            even_loads(shape, mp, workers=self.workers)
            if mp is not None and mp.any()
            else np.zeros((shape.n, shape.n))
        )
        return loads[shape.adjacency > 0]

    @staticmethod
    def _sums(shape: Shape, groups: tuple[Group, ...]) -> NDArray[np.float64]:
        return allreduce_loads(shape, [group for group in groups if len(group.members) > 1])[
            shape.adjacency > 0
        ]

    def seconds(self, chosen: Sequence[int]) -> float:
        """Of an iteration."""
        steps = 0
        compute = 0.0
        for part, index in zip(self.parts, chosen, strict=True):
            compute += part.options[index].compute_s
            steps = max(
                steps, *(2 * (len(group.members) - 1) for group in part.options[index].groups), 0
            )
        between = sum(loads[index] for loads, index in zip(self.between, chosen, strict=True))
        reduce = sum(loads[index] for loads, index in zip(self.reduce, chosen, strict=True))
        return (
            compute
            + float(np.max(between, initial=0.0))
            + float(np.max(reduce, initial=0.0))
            + steps * self.lab.alpha_s
        )


@dataclass(eq=False)
class _Search:
    n: int
    parts: tuple[Part, ...]
    lab: Lab
    rules: Rules
    rng: np.random.Generator
    seed: int
    patience: int
    watch: Watch | None
    workers: Workers | None
    stopped: bool = False
    known: dict[tuple[int, ...], _Costs] = field(default_factory=dict)

    def costs(self, chosen: Sequence[int]) -> _Costs:
        """The topology for a strategy and what every option costs on it."""
        key = tuple(chosen)
        if key not in self.known:
            finding = find(
                together(self.n, self.parts, chosen), self.lab, rules=self.rules, seed=self.seed
            )
            if not finding.shape.connected:  # other strategies must be able to run on it
                finding = find(self._joined(chosen), self.lab, rules=self.rules, seed=self.seed)
            if len(self.known) == KEPT:
                del self.known[next(iter(self.known))]
            self.known[key] = _Costs(finding, self.lab, self.parts, self.workers)
        return self.known[key]

    def _joined(self, chosen: Sequence[int]) -> Demand:
        """The same demand and a byte round all ranks, which makes the topology connected."""
        demand = together(self.n, self.parts, chosen)
        mp = demand.mp.copy()
        mp[np.arange(self.n), (np.arange(self.n) + 1) % self.n] += 1.0
        return Demand(self.n, demand.groups, mp, demand.compute_s)

    def strategy(
        self, costs: _Costs, chosen: Sequence[int], budget: int, step: int, known_s: float
    ) -> tuple[float, list[int], _Costs, int, int]:
        """The best strategy the chain meets: time, options, its topology, tried, taken. known_s:
        the best of other turns.
        """
        here, now = list(chosen), costs.seconds(chosen)
        best, least, on = list(here), now, costs
        open_ = [place for place, part in enumerate(self.parts) if len(part.options) > 1]
        taken = stale = since = tried = 0
        back = min(max(budget // 100, 1), 1000)
        while tried < budget and open_ and since < self.patience:
            if (
                tried % WATCH_EVERY == 0
                and self.watch is not None
                and not self.watch(Seen(step, tried, budget, min(least, known_s)))
            ):
                self.stopped = True
                break
            tried += 1
            since += 1
            place = open_[int(self.rng.integers(len(open_)))]
            options = len(self.parts[place].options)
            old = here[place]
            here[place] = (old + 1 + int(self.rng.integers(options - 1))) % options
            then = costs.seconds(here)
            worse_ms = (then - now) * 1e3
            stale += 1
            if worse_ms < 0 or self.rng.random() < exp(-min(PER_MS * worse_ms, 700.0)):
                now, taken, stale = then, taken + 1, 0
            else:
                here[place] = old
            if self.rules == "artifact" and stale in (0, STALE):
                costs, stale = self.costs(here), 0
                now = costs.seconds(here)
            if now < least:
                best, least, on, since = list(here), now, costs, 0
            if self.rules == "artifact" and tried % back == 0:
                here, now, costs = list(best), least, on
        return least, best, on, tried, taken
