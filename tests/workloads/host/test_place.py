"""The environment a rank is given: what is read from it and how everything wrong with it is
told at once.
"""

from __future__ import annotations

import pytest

from workloads.host.place import BadPlace, read_place

GOOD = {"RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


def test_the_least_environment_gives_one_ring_over_one_lane() -> None:
    place = read_place(GOOD)
    assert place.rings == ((0, 1, 2),)
    assert place.lanes == ("127.0.0.1",)
    assert (place.backend, place.timeout_s, place.gpu, place.storage_mbps) == ("auto", 60.0, 0, 0.0)
    assert read_place(GOOD | {"TESTBED_STORAGE_MBPS": "320"}).storage_mbps == 320
    sites = read_place(GOOD | {"TESTBED_SITES": '["a", "b", "a"]'})
    assert (place.site, sites.site, sites.sites) == ("", "b", ("a", "b", "a"))
    assert (place.dilation, read_place(GOOD | {"TESTBED_DILATION": "2.5"}).dilation) == (1.0, 2.5)


def test_more_rings_than_lanes_take_turns() -> None:
    place = read_place(
        GOOD
        | {
            "TESTBED_RINGS": "[[0,1,2],[2,1,0],[1,0,2]]",
            "TESTBED_LANES": '["10.255.0.1","10.255.1.1"]',
        }
    )
    assert [place.lane(ring) for ring in range(3)] == ["10.255.0.1", "10.255.1.1", "10.255.0.1"]


def test_planned_turns_are_in_the_order_of_their_iterations() -> None:
    place = read_place(
        GOOD
        | {
            "TESTBED_RING_CHANGES": '[{"after": 9, "rings": [[0,1,2]]}, {"after": 4, "rings": [[2,1,0]], "move": 8}]'
        }
    )
    assert [(ring_change.after, ring_change.rings) for ring_change in place.ring_changes] == [
        (4, ((2, 1, 0),)),
        (9, ((0, 1, 2),)),
    ]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"RANK": "3"}, "RANK: 3: not among the 3 ranks 0..2"),
        ({"RANK": "one"}, "RANK: 'one': not a whole number"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE: 0: a job has at least one rank"),
        (
            {"TESTBED_RINGS": "[[0,1,1]]"},
            "TESTBED_RINGS[0]: [0, 1, 1]: does not name each of the 3 ranks once",
        ),
        (
            {"TESTBED_RINGS": '[[0,1,2],["a"]]'},
            'TESTBED_RINGS[1]: ["a"]: does not name each of the 3 ranks once',
        ),
        (
            {"TESTBED_RINGS": "[[true,0,2]]"},
            "TESTBED_RINGS[0]: [true, 0, 2]: does not name each of the 3 ranks once",
        ),
        ({"TESTBED_RINGS": "{}"}, "TESTBED_RINGS: not a JSON list"),
        ({"TESTBED_LANES": "[1]"}, "TESTBED_LANES[0]: 1: not an address"),
        (
            {"TESTBED_SITES": '["a", "b"]'},
            "TESTBED_SITES: 2 sites for 3 ranks: wanted one for each",
        ),
        ({"TESTBED_SITES": '["a", 1, "b"]'}, "TESTBED_SITES[1]: 1: not the name of a site"),
        ({"TESTBED_LANES": "10.0.0.1"}, "TESTBED_LANES: not JSON"),
        ({"TESTBED_BACKEND": "mpi"}, "TESTBED_BACKEND: 'mpi': not one of auto, gloo, nccl"),
        (
            {"TESTBED_RING_CHANGES": '[{"after": 0, "rings": [[0,1,2]]}]'},
            'TESTBED_RING_CHANGES[0]: {"after": 0, "rings": [[0, 1, 2]]}: needs "after"',
        ),
        (
            {"TESTBED_RING_CHANGES": '[{"after": 3}]'},
            'TESTBED_RING_CHANGES[0]: {"after": 3}: needs "after"',
        ),
        (
            {"TESTBED_RING_CHANGES": '[{"after": 3, "rings": [[0,1]]}]'},
            "TESTBED_RING_CHANGES[0].rings[0]: [0, 1]: does not name each of the 3 ranks once",
        ),
        ({"TESTBED_TIMEOUT_S": "nan"}, "TESTBED_TIMEOUT_S: 'nan': not a number of seconds"),
        *(
            (
                {"TESTBED_STORAGE_MBPS": text},
                f"TESTBED_STORAGE_MBPS: {text!r}: not a number of Mb/s",
            )
            for text in ("", "0", "-1", "inf")
        ),
        ({"TESTBED_STORAGE_MBPS": "fast"}, "TESTBED_STORAGE_MBPS: 'fast': not a number of Mb/s"),
        *(
            ({"TESTBED_DILATION": text}, f"TESTBED_DILATION: {text!r}: not a number of 1 or more")
            for text in ("", "0.5", "inf", "nan", "slow")
        ),
        ({"TESTBED_TIMEOUT_S": "soon"}, "TESTBED_TIMEOUT_S: 'soon': not a number of seconds"),
    ],
)
def test_each_wrong_value_is_named(change: dict[str, str], text: str) -> None:
    with pytest.raises(BadPlace) as caught:
        read_place(GOOD | change)
    assert any(problem.startswith(text) for problem in caught.value.problems)


def test_all_problems_are_named_at_once() -> None:
    with pytest.raises(BadPlace) as caught:
        read_place({"TESTBED_BACKEND": "mpi", "WORLD_SIZE": "2"})
    assert caught.value.problems == [
        "RANK: missing",
        "MASTER_PORT: missing",
        "MASTER_ADDR: missing",
        "TESTBED_BACKEND: 'mpi': not one of auto, gloo, nccl",
    ]
