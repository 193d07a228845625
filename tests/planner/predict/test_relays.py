"""Which rank passes a transfer on, and what that costs: the published price where the second stage
waits for the first.
"""

from __future__ import annotations

from itertools import permutations

import pytest

from planner.model.demand import Infeasible
from planner.predict.iteration import PairFlow, Shared, pair_loads, transfers_s
from planner.predict.relays import CHUNK, relays, relays_s
from planner.topology.railonly import Rails
from workloads.transport.relay import PIECE, relay_of


@pytest.mark.parametrize(("n", "size"), [(4, 2), (6, 2), (12, 3), (12, 4), (16, 8)])
def test_planner_and_program_pass_on_by_the_same_ranks(n: int, size: int) -> None:
    rails = Rails(n, size, 9.0, 1.0)
    rates = {pair: 9.0 for domain in rails.domains for pair in permutations(domain, 2)}
    rates |= {pair: 1.0 for rail in rails.rails for pair in permutations(rail, 2)}
    pairs = list(permutations(range(n), 2))
    found = relays(pairs, rates)
    for src, dst in pairs:
        via = found.get((src, dst))
        assert via == relay_of(src, dst, size)
        assert rails.path(src, dst) == ((src, dst) if via is None else (src, via, dst))


def test_a_pair_that_no_rank_joins_is_refused_with_what_would() -> None:
    with pytest.raises(Infeasible, match="from rank 0 and one to rank 3") as refused:
        relays([(0, 3)], {(0, 1): 1.0, (1, 2): 1.0, (2, 3): 1.0})
    assert "--segment 'rail*'" in refused.value.hint


@pytest.mark.parametrize("ratio", [9, 12])
def test_stages_one_after_the_other_cost_a_rail_by_a_domain_and_chunks_their_first(
    ratio: float,
) -> None:
    size, rate = 1e6, 1.5e6
    path = (Shared("domain", ratio), "rail")
    flows, whole = [PairFlow(size, (path,), 1)] * 3, [(1.0,)] * 3
    straight = transfers_s(pair_loads(flows, whole), rate)
    assert straight == pytest.approx(3 * size / rate)
    assert relays_s(flows, whole, rate, whole=True) / straight == pytest.approx(1 / ratio)
    assert relays_s(flows, whole, rate) / straight == pytest.approx(CHUNK / size / ratio)
    short = [PairFlow(10.0, (path,), 1)] * 3
    one_chunk = relays_s(short, whole, rate, whole=True)
    assert relays_s(short, whole, rate) == pytest.approx(one_chunk) != 0
    assert relays_s([PairFlow(size, (path,))], whole[:1], rate, whole=True) == 0


def test_the_program_waits_for_the_chunk_that_the_planner_reckons_with() -> None:
    assert PIECE == CHUNK
