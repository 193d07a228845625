"""The turns of a hog, with a time of its own."""

from __future__ import annotations

import os
import signal
import time

import pytest

from emulators.fabric import linux, programs


class Ended(Exception):
    """The test has seen enough."""


def test_a_hog_that_owes_much_stops_programs_often_not_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once the programs ran for 0.25 s between two looks: four busy threads owe them a second."""
    now_s, stopped, turns_s = 0.0, False, []
    ran_ns = iter([0, 250_000_000])

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds
        if stopped:
            turns_s.append(seconds)
        if now_s > 5.0:
            raise Ended

    def send(_: object, number: signal.Signals) -> None:
        nonlocal stopped
        stopped = number == signal.SIGSTOP

    for target, name, new in (
        (linux, "close_all_but", lambda _: None),
        (linux, "die_with_parent", lambda _: None),
        (os, "setsid", lambda: None),
        (os, "fork", lambda: 1),
        (time, "monotonic", lambda: now_s),
        (time, "sleep", sleep),
        (programs, "ranks", lambda: {7: 0}),
        (programs, "runnable", lambda _: {"7": next(ran_ns, 250_000_000)}),
        (programs, "_signal", send),
    ):
        monkeypatch.setattr(target, name, new)
    with pytest.raises(Ended):
        programs._compete(4, frozenset())
    assert max(turns_s) <= programs.LONGEST_S
    assert sum(turns_s) == pytest.approx(1.0)
    assert not stopped
