"""What the benchmark `diagnosis` takes for the right component, from entries of a lab's log made by
hand.
"""

from __future__ import annotations

import pytest

from benchmarks.diagnosis import KINDS, fits, wilson

PLACES = {"link", "circuit", "device", "rank", "host", "segment", "cable", "fibres"}
FIBRE = {"host": "gpu05", "port": 1, "device": "ocs1", "enters": "5", "leaves": "21"}
ENTRY = {
    "host": "gpu05",
    "device": "ocs1",
    "port": 5,
    "switch": "segment ideal",
    "a": "f-gpu03-p1",
    "b": "f-gpu08-p1",
}


@pytest.mark.parametrize(
    ("place", "right", "wrong"),
    [
        ("link", "link gpu04:p2 - gpu05:p1", "link gpu04:p2 - gpu05:p2"),
        ("link", "link gpu05:p1 - gpu06:p1", "host gpu05"),
        ("circuit", "circuit ocs1:6->21", "circuit ocs1:21->6"),
        ("circuit", "circuit ocs1:5->22", "circuit ocs2:5->22"),
        ("circuit", "link gpu05:p1 - gpu06:p1", "link gpu05:p11 - gpu06:p1"),
        ("device", "circuit ocs1:1->2", "circuit ocs11:1->2"),
        ("rank", "rank gpu05", "rank gpu06"),
        ("rank", "rank gpu05/0", "rank gpu05/1"),
        ("host", "host gpu05", "rank gpu05"),
        ("segment", "segment ideal", "cable gpu05:p5 - ideal"),
        ("cable", "cable gpu05:p5 - ideal", "cable gpu04:p5 - ideal"),
        (
            "fibres",
            "links gpu03:p1 - gpu04:p1 and gpu07:p1 - gpu08:p1",
            "links gpu03:p1 - gpu04:p1 and gpu07:p1 - gpu08:p11",
        ),
    ],
)
def test_only_the_component_where_the_fault_is_counts_as_right(
    place: str, right: str, wrong: str
) -> None:
    assert fits(right, place, ENTRY, FIBRE) and not fits(wrong, place, ENTRY, FIBRE)
    assert not fits("", place, ENTRY, FIBRE)


def test_every_kind_of_fault_can_be_judged() -> None:
    assert {kind.place for kind in KINDS.values()} == PLACES and len(KINDS) >= 10


def test_the_interval_of_a_share_is_wilsons() -> None:
    assert wilson(9, 10) == pytest.approx((0.596, 0.982), abs=5e-4)
    assert wilson(10, 10)[1] == pytest.approx(1.0)
