"""What ranks say of their traffic, added up by hosts; the forecast; how much time an iteration
leaves for a change.
"""

from __future__ import annotations

import random

import pytest

from extensions.adapt.plan import Region
from extensions.adapt.region import proposal, split, used
from extensions.adapt.traffic import (
    Demand,
    Forecast,
    Pace,
    Sent,
    bytes_of,
    distance,
    pace,
    period,
    skew,
)
from optics import HostPort, Link
from tests.extensions.adapt.site import HOSTS, electrical, lab

MS = 1_000_000


def reported(rank: str, *iterations: tuple[int, int, int, tuple[int, ...]]) -> Demand:
    """A rank's iterations: number, begin and gate (ms), bytes to each rank."""
    sent = tuple(
        Sent(number, begin * MS, gate * MS, None, to) for number, begin, gate, to in iterations
    )
    return Demand(rank, "running", 2 * sent[-1].iteration + 1, sent[-1].gate_ns, sent)


def test_bytes_of_several_ranks_of_a_host_are_added_up_and_those_inside_a_host_left_out() -> None:
    ranks = ("a/0", "a/1", "b/0")
    found = {
        "a/0": reported("a/0", (7, 0, 1, (0, 5, 10))),
        "a/1": reported("a/1", (7, 0, 1, (5, 0, 20))),
        "b/0": reported("b/0", (7, 0, 1, (3, 4, 0))),
    }
    assert bytes_of(found, ranks, 7) == {("a", "b"): 30, ("b", "a"): 7}


def test_traffic_is_unknown_while_one_rank_has_not_told_or_tells_of_other_ranks() -> None:
    one, two = reported("a", (7, 0, 1, (0, 5))), reported("b", (6, 0, 1, (5, 0)))
    assert bytes_of({"a": one, "b": two}, ("a", "b"), 7) is None
    assert bytes_of({"a": one}, ("a", "b"), 7) is None
    assert bytes_of({"a": one, "b": reported("b", (7, 0, 1, (5, 0, 9)))}, ("a", "b"), 7) is None


def test_a_mean_forgets_pairs_that_went_quiet_by_half_at_each_look() -> None:
    mean, last = Forecast("ewma"), Forecast("last")
    for each in ({("a", "b"): 8.0}, {("b", "a"): 8.0}):
        mean.see(each), last.see(each)
    assert mean.now == {("a", "b"): 4.0, ("b", "a"): 4.0}
    assert last.now == {("b", "a"): 8.0}


def cycle(iteration: int, length: int = 3) -> dict[tuple[str, str], float]:
    """Traffic of one host that goes to another one in each iteration, and some that does not."""
    return {("a", f"b{iteration % length}"): 80.0 + iteration % 2, ("a", "c"): 10.0}


def test_traffic_that_comes_again_is_forecast_from_a_period_before() -> None:
    forecast = Forecast("period")
    for iteration in range(1, 12):
        assert forecast.see(cycle(iteration), iteration) == cycle(iteration), "too few are known"
    for iteration in range(12, 40):
        assert forecast.see(cycle(iteration), iteration) == cycle(iteration - 2)
    assert max(forecast.seen) == 39


def test_iterations_that_no_look_was_taken_at_are_made_up_for_by_what_ranks_still_say() -> None:
    forecast = Forecast("period")
    for at in range(8, 41, 8):
        before = {number: cycle(number) for number in range(max(1, at - 7), at)}
        found = forecast.see(cycle(at), at, before)
    assert found == cycle(38) and period(forecast.seen, 40) == 3
    forecast.see(cycle(90), 90)
    assert period(forecast.seen, 90) == 0, "there is a gap before it"


def test_traffic_without_a_period_is_forecast_as_the_last() -> None:
    chance = random.Random(3)
    forecast = Forecast("period")
    hit = 0
    for iteration in range(1, 200):
        traffic = {("a", f"b{chance.randrange(3)}"): 80.0}
        hit += forecast.see(traffic, iteration) == traffic
    assert hit > 190
    steady = Forecast("period")
    for iteration in range(1, 40):
        assert steady.see({("a", "b"): 5.0}, iteration) == {("a", "b"): 5.0}
    assert Forecast("period").see({}, 1) == {}


def test_the_pace_counts_from_the_last_rank_that_begins_to_the_first_gate() -> None:
    one = reported("a", (1, 0, 150, ()), (2, 400, 560, ()))
    two = reported("b", (1, 10, 160, ()), (2, 420, 550, ()))
    found = pace([one, two])
    assert found is not None and (found.compute_s, found.iteration_s) == pytest.approx(
        (0.135, 0.41)
    )
    assert pace([reported("a", (1, 0, 150, ()))]) is None, "one iteration has no length yet"


def test_what_of_a_turn_does_not_fit_into_the_time_of_computing_is_exposed() -> None:
    usual = Pace(compute_s=0.1, iteration_s=0.4)
    assert usual.exposed_s(0.08) == 0
    assert usual.exposed_s(0.08, late_s=0.05) == pytest.approx(0.03)


def test_traffic_is_as_far_from_another_as_bytes_would_have_to_be_sent_otherwise() -> None:
    one = {("a", "b"): 6.0, ("b", "a"): 4.0}
    assert distance(one, one) == 0
    assert distance(one, {("a", "b"): 5.0, ("b", "a"): 4.0, ("a", "c"): 1.0}) == pytest.approx(0.2)
    assert distance({}, {}) == 0 and distance({}, one) == 1


def test_uniform_traffic_has_skew_one() -> None:
    assert skew({(a, b): 5.0 for a in "abc" for b in "abc" if a != b}) == 1
    assert skew({}) == 1


def test_a_region_gets_circuits_where_its_traffic_is() -> None:
    region = Region("r", HOSTS, tuple(HostPort(h, p) for h in HOSTS for p in (1, 2)), "packets")
    here = [
        Link(HostPort("gpu01", 1), HostPort("gpu02", 1)),
        Link(HostPort("gpu03", 1), HostPort("gpu04", 1)),
    ]
    heavy = {
        ("gpu01", "gpu02"): 1e6,
        ("gpu03", "gpu04"): 1e6,
        ("gpu01", "gpu03"): 1e6,
        ("gpu02", "gpu04"): 1e6,
    }
    found = proposal(region, lab(), heavy, [*here, *electrical()])
    assert {frozenset((link.a.host, link.b.host)) for link in found.links} >= {
        frozenset(pair) for pair in heavy
    }
    assert found.gain > 1.5


def test_uniform_traffic_gains_nothing_from_other_circuits() -> None:
    region = Region("r", HOSTS, tuple(HostPort(h, p) for h in HOSTS for p in (1, 2)), "packets")
    here = [
        Link(HostPort(HOSTS[k], 1 + k % 2), HostPort(HOSTS[(k + 1) % 4], 1 + k % 2))
        for k in range(4)
    ]
    assert proposal(
        region, lab(), {(a, b): 1e6 for a in HOSTS for b in HOSTS if a != b}, here
    ).gain == pytest.approx(1.0)


def test_traffic_of_a_pair_with_a_circuit_leaves_the_packet_switch() -> None:
    region = Region("r", HOSTS, tuple(HostPort(h, 1) for h in HOSTS), "packets")
    circuit = Link(HostPort("gpu01", 1), HostPort("gpu02", 1))
    links = [circuit, *electrical()]
    own, rest = split(links, [region])
    assert own == (circuit,) and len(rest) == 6
    left = used(links, lab(), [region])
    assert circuit in left and len(left) == 6
    assert not any(
        {link.a.host, link.b.host} == {"gpu01", "gpu02"} for link in left if link != circuit
    )
