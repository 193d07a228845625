"""The simulation notices every planted mutant: it is not blind to what it is there for."""

from __future__ import annotations

import pytest

from tests.sim.mutants import MUTANTS
from tests.sim.planting import ROOT, TESTS, TESTS_OF, noticed, places

QUICK = ("step-after-effect",)
"""Dead within a few seeds."""


@pytest.mark.parametrize("name", MUTANTS)
def test_what_a_mutant_changes_is_there_once(name: str) -> None:
    for file, old, new in MUTANTS[name].edits:
        assert len(places((ROOT / file).read_text(), old)) == 1, (file, old)
        assert old != new


def test_the_text_of_a_mutant_is_found_wherever_its_lines_are_broken() -> None:
    text = "if a:\n    call(\n        one,\n        two,\n    )\n    call(one, three)\n"
    assert [text[begin:end] for begin, end in places(text, "    call(one, two)\n")] == [
        "    call(\n        one,\n        two,\n    )\n"
    ]
    assert places(text, "call(onetwo)") == places(text, "callone") == []
    assert len(places(text, "call(one")) == 2


def test_the_tests_that_mutants_are_shown_to_are_there() -> None:
    named = {*TESTS, *(each for several in TESTS_OF.values() for each in several)}
    assert not [each for each in named if not (ROOT / each).exists()]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", QUICK)
def test_stories_notice_it(name: str) -> None:
    assert noticed(MUTANTS[name]).seed


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", sorted(MUTANTS.keys() - set(QUICK)))
def test_stories_notice_it_within_its_bound(name: str) -> None:
    assert noticed(MUTANTS[name]).seed
