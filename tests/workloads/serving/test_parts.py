"""Ranks that answer requests, in virtual time: nothing is lost, and apart and together differ as they
should.
"""

from __future__ import annotations

from statistics import mean

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.workloads.serving.virtual import Network, served
from workloads.serving.drawing import draw
from workloads.serving.queues import Costs
from workloads.serving.trace import Load, Request

COSTS = Costs(prompt_s=0.0003, step_s=0.015, sequence_s=0.001, chunk=128, batch=32)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0, 2), st.integers(1, 300), st.integers(1, 9)), min_size=1, max_size=20
    ),
    st.sampled_from([(2, 0), (2, 1), (3, 1), (3, 2), (4, 2)]),
    st.floats(0, 0.05),
    st.integers(20, 60),
)
def test_every_request_is_answered_once_however_short_memory_and_long_the_way(
    drawn: list[tuple[float, int, int]], ranks: tuple[int, int], delay_s: float, pages: int
) -> None:
    requests = [Request(number, *each) for number, each in enumerate(sorted(drawn))]
    network = Network(0.0, delay_s, dark=(0.5, 0.9))
    found = served(requests, COSTS, *ranks, pages=pages, network=network)
    assert sorted(found) == list(range(len(requests)))
    assert all(one.ttft_s > 0 and one.tpot_s >= 0 for one in found.values())


def test_apart_prompts_do_not_hold_tokens_up_and_keys_and_values_take_their_time() -> None:
    requests = draw(Load("poisson", 8.0, 4.0, 8, 512, 32, 0, 4096, 0.0, 0, 1), 40, 1)
    slow, fast = (
        served(requests, COSTS, 4, 2, network=Network(rate, 0.0003)) for rate in (11.6e6, 1e9)
    )
    together = served(requests, COSTS, 4, 0)
    assert max(one.tpot_s for one in slow.values()) < 0.02
    assert max(one.tpot_s for one in together.values()) > 0.03, "a prompt takes 154 ms"
    assert all(one.moved_s == 0 for one in together.values())
    # a chunk of 128 tokens, 256 KiB, takes 23 ms, and the others went while prompts were computed
    assert 0.005 < mean(one.moved_s for one in slow.values()) < 0.06
    assert mean(one.moved_s for one in fast.values()) < 0.002
    assert mean(one.ttft_s for one in slow.values()) > mean(one.ttft_s for one in together.values())
