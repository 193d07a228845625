"""Adopting circuits by name: what there is, whose it was, and what could not be ended alone."""

from __future__ import annotations

import pytest

from optics import CrossConnect, Interlock, Missing, Port
from orchestrator.store.ownership import adopted
from orchestrator.store.records import Belonging

BOB = Belonging("bob", "2026-11-21-0003", "his")


def cross(ingress: str, egress: str) -> CrossConnect:
    return CrossConnect(Port("ocs1", ingress), Port("ocs1", egress))


present = cross("1.1.1", "1.1.2")
back = cross("1.1.2", "1.1.1")
alone = cross("1.1.3", "1.1.4")
seen = {"ocs1": frozenset({present, back, alone})}


def test_one_direction_of_a_pair_is_not_adopted_without_the_other() -> None:
    with pytest.raises(
        Interlock, match=r"ocs1:1.1.1->1.1.2: may be one connection with ocs1:1.1.2->1.1.1"
    ) as refused:
        adopted(["ocs1:1.1.1->1.1.2"], seen, (), {present: BOB, back: BOB})
    assert refused.value.hint == 'add --adopt "ocs1:1.1.2->1.1.1"'


def test_both_together_one_that_is_alone_and_one_whose_other_half_is_ours_are() -> None:
    both = ["ocs1:1.1.1->1.1.2", "ocs1:1.1.2->1.1.1"]
    assert adopted(both, seen, (), {}) == {present, back}
    assert adopted(["ocs1:1.1.3->1.1.4"], seen, (), {}) == {alone}
    assert adopted(["ocs1:1.1.1->1.1.2"], seen, [back], {}) == {present}
    assert adopted(["owner:bob"], seen, (), {present: BOB, back: BOB}) == {present, back}


def test_what_is_not_there_is_missing_and_what_is_not_ours_is_listed() -> None:
    with pytest.raises(
        Missing, match=r"ocs1:9->9 does not exist; foreign circuits: ocs1:1.1.1->1.1.2, "
    ):
        adopted(["ocs1:9->9"], seen, (), {})
