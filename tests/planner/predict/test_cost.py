"""Prices are data, marked until they are checked; fabrics of equal cost follow from them."""

from __future__ import annotations

import numpy as np
import pytest

from orchestrator.verbs.design_files import read_prices
from planner.model.demand import Demand, Group, Infeasible
from planner.model.shape import Lab
from planner.predict.cost import Clos, clos, rails
from planner.topology.railonly import Rails, template

PRICES = read_prices()


def test_prices_bear_the_mark_until_somebody_verified_them() -> None:
    assert PRICES.mark == "prices unverified"
    assert PRICES.model_copy(update={"verified": "offer 17"}).mark == "prices verified: offer 17"


def test_optical_switches_cost_more_than_look_ahead_panels_by_what_the_facts_say() -> None:
    ratios = [
        PRICES.host("optical", link.gbps) / PRICES.host("look-ahead", link.gbps)
        for link in PRICES.links
    ]
    assert min(ratios) == pytest.approx(1.2, abs=0.05) and max(ratios) == pytest.approx(
        1.69, abs=0.05
    )


def test_an_interface_is_the_sum_of_its_parts() -> None:
    assert PRICES.host("panel", 25, 4) == 4 * (39 + 185 + 100)
    assert PRICES.host("look-ahead", 25) == 39 + 185 + 2 * 100 + 25
    assert PRICES.host("three tiers", 100) == 678 + 6 * 99 + 5 * 187


def test_a_fat_tree_of_equal_cost_is_slower_than_the_optical_ports_together() -> None:
    rate = PRICES.equal_rate(PRICES.host("panel", 25, 4), "three tiers")
    assert 25 < rate < 100
    assert PRICES.host("three tiers", rate) == pytest.approx(PRICES.host("panel", 25, 4), rel=1e-4)
    with pytest.raises(Infeasible, match="buy no three tiers fabric"):
        PRICES.equal_rate(100, "three tiers")


def test_no_price_is_made_up_beyond_the_table() -> None:
    with pytest.raises(Infeasible, match="no price for links of 400"):
        PRICES.of(400)


def test_two_tiers_and_one_save_what_they_leave_out() -> None:
    whole, rails = PRICES.host("three tiers", 100), PRICES.host("two tiers", 100)
    assert rails < whole and PRICES.host_watts("two tiers") == pytest.approx(
        0.6 * PRICES.host_watts("three tiers"), abs=2
    )


def test_traffic_between_rails_turns_within_its_domain() -> None:
    rails = Rails(12, 4, 300, 25)
    assert (rails.path(0, 5), rails.path(0, 4), rails.path(0, 3), rails.path(0, 0)) == (
        (0, 1, 5),
        (0, 4),
        (0, 3),
        (0,),
    )
    assert rails.domains[1] == (4, 5, 6, 7) and rails.rails[1] == (1, 5, 9)


def sparse() -> Demand:
    groups = [Group(f"t{k}", (2 * k, 2 * k + 1), 80_000_000) for k in range(6)]
    groups += [Group(f"d{k}", tuple(range(k, 12, 2)), 40_000_000) for k in range(2)]
    return Demand(12, tuple(groups), np.zeros((12, 12)), 0.01)


def test_sparse_traffic_takes_as_long_on_rails_as_its_sums_at_the_networks_rate() -> None:
    wire = 2 * 5 / 6 * 40e6 * 8 / 25e9
    assert Rails(12, 2, 300, 25).iteration_s(sparse()) == pytest.approx(
        0.01 + max(80e6 * 8 / 300e9, wire)
    )


def test_any_to_any_takes_longer_on_rails() -> None:
    mp = np.full((12, 12), 1e6)
    np.fill_diagonal(mp, 0)
    spread = Demand(12, (), mp)
    # to 8 ranks of other domains, at the network's rate
    one, other = Rails(12, 4, 300, 25).iteration_s(spread), 8 * 1e6 * 8 / 25e9
    assert 1 + 3 / 4 * 25 / 300 < one / other < 1 + 2 * 25 / 300


def test_a_template_has_rings_in_domains_and_along_rails() -> None:
    shape = template(Lab(12, 4, planes=True), 2)
    assert shape.connected and len(shape.cables) == 24 and shape.adjacency[0, 1] == 2
    assert {ring.order for ring in shape.rings} >= {(0, 1), tuple(range(0, 12, 2))}
    with pytest.raises(Infeasible, match="domains of 5 do not divide 12"):
        template(Lab(12, 4), 5)
    with pytest.raises(Infeasible, match="2 ports do not make"):
        template(Lab(12, 2), 3)


# --- clusters


@pytest.mark.parametrize(
    ("gpus", "radix", "wanted"),
    [
        (64, 64, Clos(1, 64, 1, 128)),
        (65, 64, Clos(2, 64, 5, 2 * (65 + 96))),
        (2048, 64, Clos(2, 64, 96, 4 * 2048)),
        (65536, 64, Clos(3, 64, 5 * 1024, 6 * 65536)),
    ],
)
def test_full_networks_have_the_ports_and_transceivers_of_a_fat_tree(
    gpus: int, radix: int, wanted: Clos
) -> None:
    assert clos(gpus, radix) == wanted


def test_more_gpus_than_three_tiers_take_are_refused_with_how_many_they_take() -> None:
    with pytest.raises(Infeasible, match="more than three tiers") as caught:
        clos(65537, 64)
    assert "at most 65536 GPUs" in caught.value.hint
    with pytest.raises(Infeasible, match="not whole domains of 7"):
        rails(64, 64, 7)


@pytest.mark.parametrize(("radix", "least", "most"), [(64, 1 / 3, 0.4), (128, 2 / 3, 0.8)])
def test_whatever_the_prices_rails_of_32768_gpus_save_what_the_source_says(
    radix: int, least: float, most: float
) -> None:
    """Wang and others, HOTI'24: 38 to 77 % of cost, 37 to 75 % of power."""
    whole, rail = clos(32768, radix), rails(32768, radix, 256)
    assert (whole.tiers, rail.tiers) == (3, 2 if radix == 64 else 1)
    for port, transceiver in ((1, 0), (0, 1), (2.8, 1), (3.6, 1), (1.5, 1), (2.2, 1)):
        paid = [
            one.switches * one.radix * port + one.transceivers * transceiver
            for one in (whole, rail)
        ]
        assert least - 1e-9 <= 1 - paid[1] / paid[0] <= most + 1e-9


def test_short_rails_share_switches_and_need_no_transceiver_less() -> None:
    apart, shared = rails(4096, 64, 256), rails(4096, 64, 256, shared=True)
    assert (apart.switches, shared.switches) == (256, 64)
    assert apart.transceivers == shared.transceivers
    assert rails(65536, 64, 8, shared=True) == rails(65536, 64, 8), "long rails share none"


def test_a_cluster_without_domains_saves_nothing() -> None:
    assert rails(4096, 64, 1) == clos(4096, 64)
