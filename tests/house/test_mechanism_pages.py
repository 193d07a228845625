"""Every mechanism has one page, in its folder; all have the same sections, and name files that are
there.
"""

from __future__ import annotations

import re

import pytest

from orchestrator.extensions import NAMES
from tests.house.test_contributing import missing
from tests.house.test_pages import MECHANISMS


@pytest.mark.parametrize("name", sorted({*NAMES, *MECHANISMS}))
def test_a_mechanism_has_a_page_with_the_same_four_sections_as_the_others_and_no_long_line(
    name: str,
) -> None:
    text = MECHANISMS[name].read_text()
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == [
        "Use",
        "How it works",
        "Limits",
        "Measured",
    ]
    assert not [line for line in text.splitlines() if len(line) > 140]


@pytest.mark.parametrize("name", NAMES)
def test_every_path_on_the_page_of_a_mechanism_is_there(name: str) -> None:
    assert not missing(MECHANISMS[name].read_text(), MECHANISMS[name].parent)


def test_a_path_of_a_page_that_moved_is_noticed() -> None:
    assert missing("`plan.py`, `host/tap.py`, `host/tab.py`", MECHANISMS["shadow"].parent) == [
        "host/tab.py"
    ]
