"""What a rank computes when: prompts in chunks, steps of tokens, both on one processor; and who has
which pages.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads.serving.pages import Pages, page_bytes, pages_of
from workloads.serving.queues import Chunk, Costs, Decode, Prefill, Rooms, Together, Token
from workloads.serving.trace import Request

COSTS = Costs(prompt_s=0.01, step_s=0.1, sequence_s=0.01, chunk=32, batch=2)


def test_pages_are_of_the_size_of_keys_and_values() -> None:
    # Llama 3 8B: 32 layers, 8 heads of 128 numbers of 2 bytes, keys and values: 128 KiB a token
    assert page_bytes(32, 8, 128, 2) == 16 * 131072
    assert [pages_of(tokens) for tokens in (1, 16, 17, 250)] == [1, 1, 2, 16]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 12)), max_size=40))
def test_no_page_is_of_two_requests_and_none_is_lost(steps: list[tuple[int, int]]) -> None:
    pages = Pages(20)
    for request, count in steps:
        if request in pages.tables:
            pages.give(request)
        else:
            room = pages.free
            assert pages.take(request, count) == (count <= room)
        used = [page for table in pages.tables.values() for page in table]
        assert len(set(used)) == len(used) == 20 - pages.free


def test_a_prompt_is_computed_in_chunks_and_the_next_follows_without_a_gap() -> None:
    queue = Prefill(Pages(10), COSTS)
    assert queue.advance(0.0) == [] and queue.next_s is None
    queue.arrive(Request(7, 0.0, 40, 5))
    queue.arrive(Request(8, 0.0, 16, 5))
    assert queue.advance(1.0) == [] and queue.next_s == pytest.approx(1.32)
    assert queue.advance(1.35) == [Chunk(7, 0, 2, False)] and queue.next_s == pytest.approx(1.40)
    # its end was noticed late: the next began at its end
    assert queue.advance(1.45) == [Chunk(7, 2, 1, True)] and queue.next_s == pytest.approx(1.56)
    assert queue.advance(2.0) == [Chunk(8, 0, 1, True)] and queue.next_s is None


def test_a_prompt_waits_for_pages() -> None:
    pages = Pages(3)
    queue = Prefill(pages, COSTS)
    for number in (1, 2):
        queue.arrive(Request(number, 0.0, 32, 5))
    queue.advance(0.0)
    assert queue.advance(1.0) == [Chunk(1, 0, 2, True)] and queue.next_s is None
    pages.give(1)
    assert queue.advance(2.0) == [] and queue.next_s == pytest.approx(2.32)


def test_a_step_makes_a_token_for_each_of_a_batch_and_who_is_done_makes_room() -> None:
    pages = Pages(10)
    queue = Decode(pages, COSTS)
    for number, output in ((1, 1), (2, 3), (3, 1)):
        pages.take(number, 2)
        queue.join(number, output)
    assert queue.advance(0.0) == [] and queue.next_s == pytest.approx(0.12), "two of them"
    assert queue.advance(0.125) == [Token(1, True, True), Token(2, True, False)]
    assert queue.advance(0.245) == [Token(3, True, True)]
    assert queue.advance(0.355) == [Token(2, False, True)] and queue.next_s is None
    assert pages.free == 10


def test_together_a_prompt_goes_before_the_next_step_and_its_end_is_a_token() -> None:
    pages = Pages(20)
    queue = Together(pages, COSTS)
    queue.arrive(Request(1, 0.0, 32, 3))
    assert queue.advance(0.0) == [] and queue.next_s == pytest.approx(0.32)
    assert queue.advance(0.33) == [Token(1, True, False)] and queue.next_s == pytest.approx(0.43)
    queue.arrive(Request(2, 0.4, 100, 1))
    assert queue.advance(0.44) == [] and queue.next_s == pytest.approx(1.43), "1 waits for 2"
    assert queue.advance(1.435) == [Token(2, True, True)]
    assert queue.advance(1.545) == [Token(1, False, True)] and queue.next_s is None
    assert pages.free == 20


@given(
    st.lists(
        st.tuples(st.floats(0, 5), st.integers(1, 90), st.integers(1, 6)), min_size=1, max_size=25
    )
)
def test_every_request_has_one_first_and_one_last_token(
    drawn: list[tuple[float, int, int]],
) -> None:
    pages = Pages(12)
    queue = Together(pages, COSTS)
    coming = [Request(n, *each) for n, each in enumerate(sorted(drawn))]
    found: list[Token] = []
    for request in coming:
        found += queue.advance(request.at_s)
        queue.arrive(request)
    now_s = 5.0
    for _ in range(10_000):
        found += queue.advance(now_s)
        if queue.next_s is None:
            break
        now_s = queue.next_s
    numbers = list(range(len(coming)))
    assert sorted(token.request for token in found if token.first) == numbers
    assert sorted(token.request for token in found if token.last) == numbers
    assert pages.free == 12


def test_pages_are_asked_of_the_rank_with_most_room() -> None:
    rooms = Rooms({4: 10, 5: 10})
    assert rooms.ask(1, 6) == 4, "the first of equals"
    assert rooms.ask(2, 3) == 5, "what was asked of 4 is not there any more"
    rooms.answer(1)
    rooms.hear(4, 4)
    assert rooms.ask(3, 1) == 5
    rooms.hear(4, 9)
    assert rooms.ask(4, 1) == 4
    assert rooms.ask(5, 1, home=5) == 5, "whatever room it has"
