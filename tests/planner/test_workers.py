"""Searches in pieces: whoever carries them out, and in whatever number, finds the same to the last
bit.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from optics.errors import TestbedError
from orchestrator.cli.pool import workers
from planner.model.demand import Demand, Infeasible
from planner.model.shape import Lab
from planner.predict.routing import even_loads
from planner.topology.alternating import Alternation, Seen, alternate
from planner.topology.exact import search
from planner.topology.matching import GROUP, PARTNERS, _largest
from planner.topology.topofinder import find
from planner.workers import Workers
from tests.planner.predict.test_routing import all_to_all
from tests.planner.topology.test_alternating import MODEL, N


class Backwards:
    """The last piece first, each of values that were copied as for another process."""

    def map(self, fn: Callable[..., Any], /, *iterables: Iterable[Any]) -> Iterator[Any]:
        assert all(isinstance(one, list) for one in iterables), "Dask takes no iterators"
        pieces = [pickle.dumps((fn, given)) for given in zip(*iterables, strict=False)]
        found = []
        for piece in reversed(pieces):
            made, given = pickle.loads(piece)
            found.append(pickle.loads(pickle.dumps(made(*given))))
        return iter(found[::-1])


def of(found: Alternation) -> tuple[object, ...]:
    return (
        found.strategy,
        found.finding.shape,
        found.iteration_s,
        found.rounds,
        found.settled,
        found.chain,
    )


def test_chains_loads_and_the_search_of_small_clusters_are_the_same_with_all_workers() -> None:
    lab, mp = Lab(N, 3), np.random.default_rng(0).random((N, N)) * (1 - np.eye(N))
    demand = Demand(N, (), mp)
    shape = find(demand, lab).shape

    def answers(by: Workers | None) -> tuple[object, ...]:
        exact = search(demand, lab, workers=by)
        best = [(one.name, one.shape, one.score) for one in exact.best]
        chains = of(alternate(MODEL, Lab(N, 4), N, budget=60, chains=3, workers=by))
        return (
            even_loads(shape, mp, 3, by).tobytes(),
            best,
            exact.counts,
            chains,
            of(alternate(MODEL, lab, N, budget=9, workers=by)),
        )

    here = answers(None)
    assert answers(Backwards()) == here
    for count in (2, 4):
        with ThreadPoolExecutor(count) as pool:
            assert answers(pool) == here


@pytest.mark.long
def test_chains_are_the_same_in_processes_and_what_cannot_be_is_said_in_the_same_words() -> None:
    lab = Lab(N, 4)
    one = of(alternate(MODEL, lab, N, budget=60, chains=3))
    with workers(2) as pool:
        assert of(alternate(MODEL, lab, N, budget=60, chains=3, workers=pool)) == one
        with pytest.raises(Infeasible) as here:
            alternate(MODEL, Lab(2, 4), N, chains=2)
        with pytest.raises(Infeasible) as other:
            alternate(MODEL, Lab(2, 4), N, chains=2, workers=pool)
        assert (str(other.value), other.value.hint) == (str(here.value), here.value.hint)


@pytest.mark.long
def test_a_process_that_is_killed_ends_the_search_with_a_reason() -> None:
    with (
        pytest.raises(TestbedError, match="one of 2 processes of the search was killed") as refusal,
        workers(2) as pool,
    ):
        assert pool is not None
        list(pool.map(os._exit, [1, 1]))
    assert "fewer --workers" in refusal.value.hint


@pytest.mark.long
def test_an_idle_process_that_is_killed_is_not_waited_for() -> None:
    """Also at the end: a pool with one queue for all waits for ever for the lock on it that the
    process held.
    """
    with workers(3) as pool:
        assert pool is not None
        assert list(pool.map(abs, [-1, -2, -3])) == [1, 2, 3]
        for process in multiprocessing.active_children()[1:]:
            process.kill()
        with pytest.raises(TestbedError, match="one of 3 processes"):
            list(pool.map(abs, [-1, -2, -3]))


@pytest.mark.long
def test_what_is_left_of_a_call_that_failed_is_not_taken_for_the_next() -> None:
    with workers(2) as pool:
        assert pool is not None
        with pytest.raises(ZeroDivisionError):
            list(pool.map(divmod, [1, 1, 1], [0, 1, 2]))
        assert list(pool.map(divmod, [9, 8], [2, 3])) == [(4, 1), (2, 2)]
        with pytest.raises(Exception, match="lambda"):
            list(pool.map(lambda x: x, [1]))
        assert list(pool.map(abs, [-1])) == [1]


def test_ctrl_c_takes_the_best_of_the_chains_that_have_ended() -> None:
    class Pressed:
        """Ctrl-C while a chain is waited for."""

        def __init__(self, after: int) -> None:
            self.after = after

        def map(self, fn: Callable[..., Any], /, *iterables: Iterable[Any]) -> Iterator[Any]:
            yield from (fn(*given) for given in list(zip(*iterables, strict=True))[: self.after])
            raise KeyboardInterrupt

    found = alternate(
        MODEL, Lab(N, 4), N, budget=5, chains=5, watch=lambda seen: True, workers=Pressed(1)
    )
    assert found.stopped and found.chain == 0
    for after, watch in ((0, lambda seen: True), (1, None)):
        with pytest.raises(KeyboardInterrupt):
            alternate(MODEL, Lab(N, 4), N, budget=5, chains=5, watch=watch, workers=Pressed(after))


def test_a_number_in_place_of_workers_is_refused_with_what_is_wanted() -> None:
    with pytest.raises(TypeError, match="an executor, such as"):
        alternate(MODEL, Lab(N, 4), N, chains=2, workers=4)  # type: ignore[arg-type]


def test_the_first_chain_is_the_search_of_one_and_more_chains_are_never_worse() -> None:
    lab = Lab(N, 4)
    for start in ([0, 0, 0], [2, 1, 2]):
        alone = alternate(MODEL, lab, N, budget=4, rounds=1, start=start)
        three = alternate(MODEL, lab, N, budget=4, rounds=1, start=start, chains=3)
        assert three.iteration_s < alone.iteration_s or of(three) == of(alone)
    found = {
        alternate(MODEL, lab, N, budget=1, rounds=1, chains=6, seed=seed, start=[0, 1, 1]).chain
        for seed in range(3)
    }
    assert max(found) > 0, "the others have dice of their own"


def test_an_observer_of_chains_is_told_of_each_and_may_take_the_best_so_far() -> None:
    notices: list[Seen] = []

    def watch(seen: Seen) -> bool:
        notices.append(seen)
        return len(notices) < 2

    found = alternate(MODEL, Lab(N, 4), N, budget=50, rounds=2, chains=5, watch=watch)
    assert [seen.step for seen in notices] == [1, 2] and found.stopped and found.chain < 2
    assert (
        notices[0].tried < notices[1].tried <= notices[1].budget == 500
        and notices[1].best_s == found.iteration_s
    )
    with pytest.raises(Infeasible, match="0 chain"):
        alternate(MODEL, Lab(N, 4), N, chains=0)


@pytest.mark.parametrize("values", [2, 60, 10**9])
def test_the_heaviest_partners_are_those_of_a_partition_equal_ones_too(values: int) -> None:
    rows = (
        np.random.default_rng(values)
        .integers(values, size=(8, GROUP * (PARTNERS + 9) + 3))
        .astype(float)
    )
    rows[:, 5] = -np.inf
    rows[3] = np.arange(rows.shape[1])
    expected = np.argpartition(-rows, PARTNERS, axis=1)[:, :PARTNERS]
    found = _largest(rows)
    for row, mine, theirs in zip(rows, found, expected, strict=True):
        assert set(mine) == set(theirs)
        assert len(set(row[theirs])) == PARTNERS or (mine == theirs).all(), (
            "in its order where it decides between equal pairs"
        )


def test_loads_are_the_same_to_the_last_bit_as_those_summed_one_distance_and_slot_after_the_other() -> (
    None
):
    for seed, n, degree in ((0, 12, 4), (1, 37, 3), (2, 40, 6)):
        lab = Lab(n, degree, duplex=seed != 1)
        mp = np.random.default_rng(seed).random((n, n)) * (1 - np.eye(n))
        shape = find(Demand(n, (), mp), lab, seed=seed).shape
        assert (even_loads(shape, mp, 16) == slowly(shape.adjacency, shape.hops, mp, 16)).all()
    assert not even_loads(shape, 0 * all_to_all(40)).any()


def slowly(adjacency: Any, hops: Any, mp: Any, block: int) -> Any:
    """The definition: hosts pass on what waits at them, the farthest first, evenly over the links
    that lead nearer.
    """
    n = len(adjacency)
    here, other = np.nonzero(adjacency)
    slot = np.arange(len(here)) - np.searchsorted(here, here)
    loads = np.zeros((n, n))
    for first in range(0, n, block):
        away, waiting = hops[:, first : first + block], mp[:, first : first + block].copy()
        for distance in range(away.max(), 0, -1):
            paths = adjacency[here, other][:, None] * (
                (away[here] == distance) & (away[other] == distance - 1)
            ).astype(float)
            total = np.zeros_like(waiting)
            np.add.at(total, here, paths)
            unit = np.divide(waiting, total, out=np.zeros_like(waiting), where=total > 0)
            paths *= unit[here]
            loads[here, other] += paths.sum(axis=1)
            for number in range(slot.max() + 1):
                arriving = np.zeros_like(waiting)
                np.add.at(arriving, other[slot == number], paths[slot == number])
                waiting += arriving
    return loads
