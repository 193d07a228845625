"""What locks are about: scopes meet where they share a host or a port, whoever names them and
however.
"""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optics import CrossConnect, Port, Usage
from orchestrator.store.scope import (
    WHOLE,
    Scope,
    of_settings,
    ranges,
    reachable_scope,
    read_scope,
    scope_of_data,
)
from tests.change.fibrelab import joined, roadm, select

HOSTS = [f"gpu{n:02d}" for n in range(1, 4)]
PORTS = [Port(d, label) for d in ("ocs1", "ocs2") for label in ("1", "2", "3")]


def subsets(items: list) -> st.SearchStrategy[frozenset]:  # type: ignore[type-arg]
    return st.frozensets(st.sampled_from(items))


SCOPES = st.builds(
    Scope,
    subsets(HOSTS),
    subsets(PORTS),
    subsets(["ocs1", "ocs2"]),
    st.sampled_from([False, False, False, True]),
)


def points(scope: Scope) -> set[object]:
    """The scope as plain points of a small lab: what overlap and cover mean there needs no
    cleverness.
    """
    if scope.everything:
        return {*HOSTS, *PORTS, "whole ocs1", "whole ocs2", "more"}
    whole = {p for p in PORTS if p.device in scope.devices}
    return {*scope.hosts, *scope.ports, *whole, *(f"whole {d}" for d in scope.devices)}


@given(SCOPES, SCOPES)
def test_scopes_meet_exactly_where_they_share_a_point(one: Scope, other: Scope) -> None:
    assert one.overlaps(other) is bool(points(one) & points(other))
    assert one.overlaps(other) is other.overlaps(one)
    assert points(one & other) <= points(one) & points(other)


@given(SCOPES, SCOPES)
def test_a_scope_covers_its_parts_and_what_it_shares(one: Scope, other: Scope) -> None:
    assert (one | other).covers(one) and (one | other).covers(other)
    assert one.covers(one & other) and other.covers(one & other)
    if one.covers(other):
        assert points(other) <= points(one)
        assert one.overlaps(other) or not other


@given(SCOPES, SCOPES, SCOPES)
def test_what_meets_a_part_meets_the_whole(one: Scope, other: Scope, third: Scope) -> None:
    if one.overlaps(third):
        assert (one | other).overlaps(third)
    assert (one | other).overlaps(third) is (one.overlaps(third) or other.overlaps(third))


@given(SCOPES)
def test_a_scope_comes_back_from_the_store_as_it_was(scope: Scope) -> None:
    assert scope_of_data(json.loads(json.dumps(scope.to_data()))) == scope


def test_a_scope_is_written_in_few_words() -> None:
    ports = frozenset(Port("ocs1", str(n)) for n in (1, 2, 3, 4, 9, 11, 12))
    assert str(Scope(frozenset({"gpu02", "gpu01"}), ports)) == "gpu01, gpu02, ocs1:1-4,9,11,12"
    assert str(WHOLE) == "the whole lab"
    assert ranges(["1.1.1", "1.1.2"]) == "1.1.1,1.1.2"


def test_a_host_stands_for_the_ports_its_fibres_reach() -> None:
    found = reachable_scope(joined(4), ["gpu01", "gpu02"])
    assert found.ports == {
        Port("west", "1"),
        Port("west", "101"),
        Port("east", "2"),
        Port("east", "102"),
    }
    assert not found.overlaps(reachable_scope(joined(4), ["gpu03", "gpu04"]))


@pytest.mark.parametrize("lab", [roadm(), select()])
def test_a_wavelength_selective_device_is_locked_whole(lab: object) -> None:
    one, other = reachable_scope(lab, ["gpu01"]), reachable_scope(lab, ["gpu02"])  # type: ignore[arg-type]
    assert one.devices == {"wss1"} and not one.ports
    assert one.overlaps(other)


def test_a_setting_is_its_two_ports() -> None:
    made = CrossConnect(Port("west", "901"), Port("west", "902"))
    assert of_settings(joined(), [made]) == Scope(
        ports=frozenset({Port("west", "901"), Port("west", "902")})
    )


def test_an_operator_names_ranges_and_lists() -> None:
    lab = joined()
    found = read_scope(lab, ports=["west:1-3,east:4", "west:901"])
    assert found.ports == {*(Port("west", n) for n in ("1", "2", "3", "901")), Port("east", "4")}
    assert read_scope(lab, devices=["east"]).devices == {"east"}
    assert read_scope(lab, hosts=["gpu01,gpu03"]).hosts == {"gpu01", "gpu03"}
    assert read_scope(lab) == WHOLE


def test_all_wrong_names_are_told_at_once() -> None:
    with pytest.raises(Usage) as caught:
        read_scope(joined(), hosts=["gpu09"], ports=["wst:1", "west"], devices=["north"])
    output = str(caught.value)
    assert len(output.splitlines()) == 4
    assert "host gpu09 is not in the lab (4 hosts, gpu01, gpu02, gpu03, gpu04)" in output
    assert "did you mean west" in output and "DEVICE:FIRST-LAST" in output and "north" in output
