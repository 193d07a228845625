"""Passbands: exclusion, settling, uploads, loss and power, without socket and clock."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulators.optics.light import Beam, edges_mhz
from emulators.optics.spectrum import SHAKES, SpectralPlant

A = ("in", "1", *edges_mhz(0, 4))  # 193.1 THz, 50 GHz
B = ("in", "2", *edges_mhz(16, 4))
C = ("in", "3", *edges_mhz(32, 4))


def wss(**more: object) -> SpectralPlant:
    return SpectralPlant("wss1", ["in"], [str(n) for n in range(1, 10)], 0.2, 1, **more)  # type: ignore[arg-type]


def test_a_passband_is_lit_after_settling_and_dark_at_once_when_it_is_taken_away() -> None:
    plant = wss()
    assert plant.connect({A: 0.0, B: 3.0}, 10.0) == {}
    assert plant.lit(10.19) == frozenset()
    assert plant.next_event(10.0) == pytest.approx(10.2)
    assert plant.lit(10.2) == {A, B}
    plant.disconnect([A], 11.0)
    assert plant.lit(11.0) == {B}
    assert [e.what for e in plant.history if e.pair == A] == ["making", "lit", "broken"]


def test_overlapping_spectrum_is_refused_on_either_port_and_kept_as_a_violation() -> None:
    plant = SpectralPlant("roadm", ["a", "b"], ["x", "y"], 0.0)
    one = ("a", "x", 193_000_000, 193_050_000)
    plant.connect({one: 0.0}, 0.0)
    over_egress = ("b", "x", 193_040_000, 193_090_000)
    over_ingress = ("a", "y", 193_049_000, 193_090_000)
    neighbours = ("b", "x", 193_050_000, 193_100_000)
    elsewhere = ("b", "y", 193_000_000, 193_040_000)
    refused = plant.connect(
        {over_egress: 0.0, over_ingress: 0.0, neighbours: 0.0, elsewhere: 0.0}, 1.0
    )
    assert refused == {
        over_egress: "spectrum in use on port x",
        over_ingress: "spectrum in use on port a",
    }
    assert [v.pair for v in plant.violations] == [over_egress, over_ingress]
    assert plant.light(1.0) == {one, neighbours, elsewhere}


def test_what_the_device_does_not_have_is_refused() -> None:
    plant = wss(light_paths=lambda _, egress: egress != "9")
    assert plant.why_not(("in", "9", *A[2:])) == "no way from in to 9"
    assert plant.why_not(("in", "10", *A[2:])) == "no out port 10"
    assert (
        plant.why_not(("in", "1", 191_200_000, 191_300_000))
        == "no spectrum from 191200000 to 191300000 MHz"
    )


def test_passbands_that_touch_are_one_stretch_and_a_slot_across_them_passes() -> None:
    plant = wss()
    low, middle, high = 193_000_000, 193_050_000, 193_100_000
    plant.connect({("in", "1", low, middle): 0.0, ("in", "1", middle, high): 2.0}, 0.0)
    plant.set_beams("in", (Beam(0.0, low, high),))
    assert plant.lit(1.0) == {("in", "1", low, high)}
    (beam,) = plant.leaving("1", 1.0)
    assert -8.5 < beam.dbm < -4.0  # the weaker half counts


def test_a_passband_narrower_than_the_slot_passes_nothing_of_use() -> None:
    plant = wss()
    plant.connect({("in", "1", 193_080_000, 193_120_000): 0.0}, 0.0)
    plant.set_beams("in", (Beam(0.0, 193_075_000, 193_125_000),))
    assert plant.lit(1.0) == frozenset()
    assert plant.leaving("1", 1.0) == ()
    assert plant.power_dbm(("out", "1"), 1.0) > -10  # the meter sees what is left of it


def test_attenuation_changes_in_place_and_shows_on_the_meter() -> None:
    plant = wss()
    plant.connect({A: 0.0}, 0.0)
    before = plant.power_dbm(("out", "1"), 1.0)
    assert plant.connect({A: 10.0}, 1.0) == {}
    assert plant.lit(1.0) == {A}
    assert plant.since(A) == 0.0
    assert plant.power_dbm(("out", "1"), 1.0) == pytest.approx(before - 10, abs=0.2)
    plant.connect({A: 30.0}, 2.0)
    assert plant.lit(2.0) == frozenset()  # too weak for anybody


def test_each_slot_has_its_own_light() -> None:
    plant = wss()
    plant.connect({A: 0.0, B: 0.0}, 0.0)
    plant.set_beams("in", (Beam(0.0, *A[2:]), Beam(-8.0, *C[2:])))
    assert plant.lit(1.0) == {A}
    assert plant.power_dbm(("out", "2"), 1.0) < -40
    assert plant.channel_dbm(plant.bands()[0], "in", 1.0) == pytest.approx(0.0, abs=1.2)
    assert plant.channel_dbm(plant.bands()[1], "in", 1.0) < -40
    assert plant.power_dbm(("out", "3"), 1.0) == plant.floor_dbm


def test_an_upload_leaves_the_old_light_until_shortly_before_the_new_comes() -> None:
    plant = wss(transient_s=(0.02, 0.02))
    plant.preset({A: 0.0})
    plant.load({B: 0.0}, plant.range_mhz, 10.0)
    assert plant.lit(10.17) == {A}
    assert plant.shown(10.17) == {A: 0.0}
    assert plant.lit(10.18) == frozenset()
    assert plant.lit(10.2) == {B}
    assert plant.shown(10.2) == {B: 0.0}


def test_an_upload_shakes_what_it_covers_and_leaves_the_rest_alone() -> None:
    plant = wss(transient_s=(0.02, 0.02))
    plant.preset({A: 0.0, B: 0.0})
    span = (A[2] - 50_000, A[3])
    plant.load({A: 1.0}, span, 10.0)
    calm = [plant.power_dbm(("out", p), 10.1) for p in ("1", "2")]
    shaken = []
    for step in range(SHAKES):
        at = 10.18 + 0.02 * (step + 0.5) / SHAKES
        shaken.append(plant.power_dbm(("out", "1"), at))
        assert plant.power_dbm(("out", "2"), at) == pytest.approx(calm[1], abs=0.2)
    assert len(set(shaken)) == SHAKES
    assert min(shaken) < calm[0] - 2
    assert plant.power_dbm(("out", "1"), 10.21) == pytest.approx(calm[0] - 1, abs=0.2)


def test_an_upload_with_the_same_spectrum_twice_on_a_common_port_is_refused_whole() -> None:
    plant = SpectralPlant("roadm", ["a", "b"], ["x", "y"], 0.0)
    one, other = ("a", "x", 193_000_000, 193_050_000), ("b", "x", 193_040_000, 193_090_000)
    with pytest.raises(ValueError, match="the same spectrum twice on port x"):
        plant.load({one: 0.0, other: 0.0}, (192_000_000, 194_000_000), 0.0)
    assert plant.bands() == ()
    plant.load({one: 0.0, ("b", "y", *other[2:]): 0.0}, (192_000_000, 194_000_000), 0.0)
    assert len(plant.lit(1.0)) == 2


def test_an_upload_that_overtakes_another_wins() -> None:
    plant = wss(transient_s=(0.02, 0.02))
    plant.load({A: 0.0}, plant.range_mhz, 10.0)
    plant.load({A: 0.0, B: 0.0}, plant.range_mhz, 10.1)
    assert plant.lit(10.25) == frozenset()
    assert plant.lit(10.3) == {A, B}
    assert plant.next_event(10.3) is None


def test_a_band_that_an_upload_cuts_is_cut_there() -> None:
    plant = wss()
    plant.preset({A: 0.0})
    middle = (A[2] + A[3]) // 2
    plant.load({}, (middle, plant.range_mhz[1]), 10.0)
    assert plant.lit(10.3) == {("in", "1", A[2], middle)}


def test_a_stuck_port_keeps_its_light_and_a_failed_one_gets_none() -> None:
    plant = wss()
    plant.preset({A: 0.0})
    plant.impair(lambda w: (w.stuck.add(("out", "1")), w.failed.add(("out", "2"))))
    plant.load({B: 0.0, C: 0.0}, plant.range_mhz, 0.0)
    assert plant.lit(1.0) == {A, C}
    assert plant.disconnect([A], 2.0) == {A: "port 1 stuck"}


def test_power_loss_is_dark_at_once_and_restored_light_settles_again() -> None:
    plant = wss()
    plant.preset({A: 0.0})
    plant.power_cycle(5.0)
    assert plant.lit(5.0) == frozenset()
    plant.restore({A: 0.0}, 5.0, 1.0)
    assert plant.lit(6.1) == frozenset()
    assert plant.lit(6.2) == {A}


def test_losses_are_those_of_the_path_and_repeat_within_a_tenth() -> None:
    first, again = wss(), wss()
    for plant in (first, again):
        plant.connect({A: 0.0}, 0.0)
    assert first.bands()[0].loss_db == again.bands()[0].loss_db
    first.disconnect([A], 1.0)
    first.connect({A: 0.0}, 2.0)
    assert first.bands()[0].loss_db == pytest.approx(again.bands()[0].loss_db, abs=0.1)
    assert 1.5 <= first.bands()[0].loss_db <= 6.1


@given(
    st.lists(
        st.tuples(
            st.sampled_from("123"),
            st.integers(0, 20),
            st.integers(1, 6),
            st.sampled_from(["make", "break", "load"]),
        ),
        max_size=25,
    )
)
@settings(max_examples=60, deadline=None)
def test_no_two_transmitters_ever_share_spectrum_on_a_port(
    story: list[tuple[str, int, int, str]],
) -> None:
    plant, now = wss(transient_s=(0.01, 0.03)), 0.0
    for port, start, width, what in story:
        low = 193_000_000 + start * 10_000
        band = ("in", port, low, low + width * 10_000)
        if what == "make":
            plant.connect({band: 0.0}, now)
        elif what == "break":
            plant.disconnect([b.band for b in plant.bands()[:1]], now)
        else:
            plant.load({band: 0.0}, (low, low + width * 10_000), now)
        now += 0.05
        spans = sorted((b.low_mhz, b.high_mhz) for b in plant.bands())
        assert all(one[1] <= other[0] for one, other in pairwise(spans))
        lit = sorted(light_path[2:] for light_path in plant.lit(now))
        assert all(one[1] <= other[0] for one, other in pairwise(lit))
    plant.advance(now + 10)
    assert plant.next_event(now + 10) is None
    assert {b.band for b in plant.bands()} == plant.light(now + 10)
