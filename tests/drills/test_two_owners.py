"""A short walk of the two-owner state machine (`make drill NAME=two_owners` makes 2000 steps)."""

from __future__ import annotations

import asyncio

import pytest

from tests.drills import two_owners
from tests.drills.two_owners import TwoOwners, walk


@pytest.fixture(autouse=True)
def no_loop() -> None:
    asyncio.set_event_loop(None)


def test_two_owners_with_faults_and_crashes_never_break_an_invariant() -> None:
    """S1, S2, S4: judged by the devices' mirrors and connected-since stamps after every command."""
    walk(60, seed=11, each=20)
    assert sum(two_owners.STEPS.values()) > 20


def test_a_circuit_that_nobody_knows_of_is_noticed() -> None:
    """The machine can fail: hands that made a circuit in secret."""
    state = TwoOwners()
    try:
        state.bench.make("ocs1", ("13", "29"))
        with pytest.raises(AssertionError, match="nobody knows of"):
            state.look("in secret", died=False, owner="ann")
    finally:
        state.teardown()
