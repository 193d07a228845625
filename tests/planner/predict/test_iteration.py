"""Bandwidth arithmetic: worked values, loads that add up, transfers spread as well as can be."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.model.backend import orders, single_order
from planner.model.demand import Demand, Group
from planner.model.shape import Ring, Shape
from planner.predict.iteration import (
    PairFlow,
    RingFlow,
    StepFlow,
    allreduce_s,
    pair_loads,
    ring_loads,
    spread,
)
from planner.schedule.bfb import cost, schedule
from planner.topology.direct import circulant

PORT = 25e9 / 8


def around(order: tuple[int, ...], size: float) -> RingFlow:
    return RingFlow(
        size, tuple(((a, b),) for a, b in zip(order, order[1:] + order[:1], strict=True))
    )


def strided(stride: int, size: float) -> RingFlow:
    return around(tuple(k * stride % 12 for k in range(12)), size)


def test_the_worked_times_of_twelve_ranks_at_25_gigabit_come_out() -> None:
    four = [strided(stride, 1e9 / 4) for stride in (1, 5, 7, 11)]
    assert allreduce_s(four, PORT) == pytest.approx(0.146666667)
    assert allreduce_s([strided(1, 1e9)], PORT) == pytest.approx(0.586666667)
    assert allreduce_s(four, PORT, 1e-3) == pytest.approx(0.146666667 + 22e-3)


def test_rings_that_share_a_link_take_turns() -> None:
    assert allreduce_s([strided(1, 5e8), strided(1, 5e8)], PORT) == pytest.approx(0.586666667)
    assert sum(ring_loads([strided(1, 5e8)]).values()) == pytest.approx(2 * 11 * 5e8)


def test_a_schedule_takes_its_steps_and_its_load() -> None:
    shape = circulant(12, (2, 3))
    found = cost(shape)  # of 4 ports of 25 Gb/s
    sends = tuple((send.step, send.part, ((send.src, send.dst),)) for send in schedule(shape))
    assert StepFlow(1e9, 12, sends).seconds(PORT, 1e-3) == pytest.approx(
        2 * (found.steps * 1e-3 + float(found.load) * 1e9 / 12.5e9), rel=1e-6
    )
    assert sum(StepFlow(1e9, 12, sends).loads.values()) == pytest.approx(2 * 11 * 1e9)


LINKS = st.integers(0, 6)
FLOWS = st.lists(
    st.tuples(
        st.integers(1, 1000),
        st.lists(st.lists(LINKS, min_size=1, max_size=3, unique=True), min_size=1, max_size=3),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=60, deadline=None)
@given(FLOWS)
def test_spread_transfers_arrive_whole_and_no_single_choice_loads_links_less(
    found: list[tuple[int, list[list[int]]]],
) -> None:
    flows = [PairFlow(float(size), tuple(tuple(path) for path in paths)) for size, paths in found]
    shares = spread(flows, least=0.0)
    assert all(sum(part) == pytest.approx(1, abs=1e-5) and min(part) >= 0 for part in shares)
    fullest = max(pair_loads(flows, shares).values())
    for pick in range(3):
        one = [
            tuple(float(k == pick % len(flow.paths)) for k in range(len(flow.paths)))
            for flow in flows
        ]
        assert fullest <= max(pair_loads(flows, one).values()) * (1 + 1e-4)


def test_parallel_links_are_what_one_order_can_fill() -> None:
    demand = Demand(6, (Group("g", tuple(range(6)), 60),), [[0.0] * 6] * 6)  # type: ignore[arg-type]
    shape = Shape(6, 4, True, (Ring("g", (0, 1, 2, 3, 4, 5), 1), Ring("g", (0, 5, 4, 3, 2, 1), 5)))
    assert single_order(shape).adjacency[0, 1] == 2
    assert len(orders(demand, single_order(shape), "single-order")["g"]) == 2
    assert len(orders(demand, shape, "ring-groups")["g"]) == 4
