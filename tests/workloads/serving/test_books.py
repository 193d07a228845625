"""Times of requests and what they amount to."""

from __future__ import annotations

import pytest

from workloads.serving.books import Answered, Books, figures


def test_times_to_first_token_and_per_token_come_from_what_happened() -> None:
    books = Books()
    for what, at_s in (("arrived", 1.0), ("computed", 1.2), ("there", 1.25), ("first", 1.5)):
        books.note(3, what, at_s)
    assert books.answered(3, 5) is None, "its last token is missing"
    books.note(3, "last", 2.5)
    found = books.answered(3, 5)
    assert found is not None
    assert (found.ttft_s, found.tpot_s) == (0.5, 0.25)
    assert found.moved_s == pytest.approx(0.05)
    assert books.answered(4, 5) is None
    with pytest.raises(RuntimeError, match="request 3 is first twice"):
        books.note(3, "first", 3.0)


def test_a_request_for_one_token_has_no_time_for_others_and_together_nothing_moves() -> None:
    books = Books()
    for what in ("arrived", "first", "last"):
        books.note(0, what, 2.0)
    assert books.answered(0, 1) == Answered(0.0, 0.0, 0.0)


def test_goodput_counts_who_met_both_targets_of_all_that_asked() -> None:
    answered = [Answered(0.1, 0.01, 0), Answered(0.3, 0.01, 0), Answered(0.1, 0.09, 0)]
    found = figures(answered, 4, 0.2, 0.05)
    assert (found["served"], found["lost"], found["goodput"]) == (3, 1, 0.25)
    assert (found["ttft_ms"], found["ttft_p99_ms"], found["tpot_p99_ms"]) == (100, 300, 90)
    assert figures([], 2, 1.0, 1.0)["goodput"] == 0
    one_token = Answered(0.1, 0.0, 0)
    found = figures([one_token, one_token, Answered(0.1, 0.04, 0)], 3, 0.2, 0.05)
    assert found["tpot_ms"] == 40 and found["goodput"] == 1, "two have no time per token"
