"""Circuits of a region for its next all-to-all, while a packet switch joins all ranks: greedy,
exchanges, exact where small. Pure.

A pair's bytes are split freely between its circuits and the packet switch, where a rank's traffic
shares its port. Where a pair uses one path (`Fabric.split` false), one with circuits sends over
them alone, and the slowest part decides. MixNet (SIGCOMM 2025) chooses circuits for mixtures of
experts in that way: a circuit to the pair that takes longest, again and again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from extensions.adapt.branches import Branches
from extensions.adapt.trial import FINE, Bytes, Choice, Circuit, Cost, Fabric, Pair, Trial
from planner.model.demand import Infeasible

WORK = 400
"""Choices weighed while circuits are exchanged: about 20 ms for 12 ranks of 4 ports on a core of a
virtual machine.
"""
SMALL = 6
POLISH = 2000
"""Choices that the exact search looks at after exchanges, in regions up to `SMALL`: ten in most of
them, 30 ms at most.
"""
NODES = 200_000
"""Choices that the exact search looks at, at most."""


def all_to_all_s(demand: Bytes, circuits: Sequence[Circuit], fabric: Fabric) -> float:
    """Time (s) of an all-to-all of `demand` (bytes from row to column, zero diagonal) over these
    circuits.

    Raises: Infeasible - more circuits than ports, a demand of another shape, negative or no number.
    """
    return Trial(demand, fabric, circuits).cost()[0]


def proposed(
    demand: Bytes, fabric: Fabric, now: Sequence[Circuit] = (), work: int = WORK
) -> Choice:
    """Circuits for `demand`: those of now improved, or greedy ones improved, whichever is faster;
    those of now if nothing is.

    Up to `SMALL` ranks the exact search goes on from there: with up to 3 ports each that is within
    1.1 of the fastest circuits, where traffic is split within 1.3.
    """
    kept = Choice(tuple(sorted(now)), all_to_all_s(demand, now, fabric))
    starts = [greedy(demand, fabric).circuits]
    if fabric.split:  # many circuits gain nothing alone there, and the other rule finds them
        rule = replace(fabric, split=False)
        other = greedy(demand, rule).circuits
        starts += [other, improved(demand, rule, other, work).circuits]
    tries = [improved(demand, fabric, start, work) for start in starts]
    if now:
        tries.insert(0, improved(demand, fabric, now, work))
    best = min(tries, key=lambda choice: choice.seconds)
    if fabric.n <= SMALL:
        best = Branches(demand, fabric, best, POLISH).run()[0]
    return best if best.seconds < kept.seconds * (1 - FINE) else kept


def greedy(demand: Bytes, fabric: Fabric) -> Choice:
    """A circuit to the pair that takes longest, again and again, until no port is left that
    helps.
    """
    trial = Trial(demand, fabric)
    done: set[Pair] = set()
    while (pair := trial.slowest(done)) is not None:
        before, cost = trial.state(), trial.cost()
        while trial.join(*pair):  # several at once where the packet switch is faster than one
            if trial.cost() < cost:
                break
        else:
            trial.back_to(before)
            done.add(pair)
    return trial.choice()


def improved(demand: Bytes, fabric: Fabric, start: Sequence[Circuit], work: int = WORK) -> Choice:
    """`start` with circuits exchanged while that makes it faster, never slower; at most `work`
    choices are weighed.

    A pair gets a circuit, in place of one of each of its ranks where all their ports are in use;
    the ranks that lose theirs are joined instead. First pairs that take part in what is slowest,
    then all; of each, the choice that gains most.
    """
    trial = Trial(demand, fabric, start)
    left = work
    while left > 0:
        before, cost = trial.state(), trial.cost()
        for tried in trial.exchanges([*trial.slow_pairs(), *trial.pairs]):
            left -= 1
            if _better(tried, cost) or left <= 0:
                break
        if not _better(trial.cost(), cost):
            trial.back_to(before)
            break
    return trial.choice()


def exact(demand: Bytes, fabric: Fabric, nodes: int = NODES) -> Choice:
    """The fastest circuits of all. Raises: Infeasible - the region is too large to look at every
    choice (`nodes`).
    """
    found, complete = Branches(
        demand, fabric, improved(demand, fabric, greedy(demand, fabric).circuits), nodes
    ).run()
    if not complete:
        raise Infeasible(
            f"more than {nodes} choices of circuits among {fabric.n} ranks",
            "take fewer ranks or ports, or the greedy choice",
        )
    return found


def _better(cost: Cost, than: Cost) -> bool:
    """Faster, or as fast with less on the fuller parts."""
    return cost[0] < than[0] * (1 - FINE) or (cost[0] <= than[0] and cost[1] < than[1] * (1 - FINE))
