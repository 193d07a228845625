"""What light means for host ports, without a kernel."""

from __future__ import annotations

import pytest

from emulators.fabric.fibre_plant import FibrePlant, HostPort, Relight, Strand, Tie
from emulators.optics.light import Lit, edges_mhz

A, B, C = HostPort("a", 1), HostPort("b", 1), HostPort("c", 1)
CABLES = tuple(
    Strand(f"f-{p.host}", p, "ocs1", str(n), str(16 + n)) for n, p in enumerate((A, B, C), 1)
)


def pairs(*argv: str) -> frozenset[tuple[str, str]]:
    return frozenset((a, b) for a, _, b in (w.partition(">") for w in argv))


def test_a_lit_pair_lights_the_receiver_only() -> None:
    fibre_plant = FibrePlant(CABLES)
    assert fibre_plant.show("ocs1", pairs("1>18")) == Relight((), (), ((A, B),), (B,))
    assert fibre_plant.sources == {B: A}


def test_a_broken_circuit_darkens_the_receiver_and_takes_the_redirect_away() -> None:
    fibre_plant = FibrePlant(CABLES)
    fibre_plant.show("ocs1", pairs("1>18", "2>17"))
    assert fibre_plant.show("ocs1", pairs("2>17")) == Relight((B,), (A,), (), ())


def test_light_from_another_sender_is_a_loss_of_light_in_between() -> None:
    fibre_plant = FibrePlant(CABLES)
    fibre_plant.show("ocs1", pairs("1>18"))
    assert fibre_plant.show("ocs1", pairs("3>18")) == Relight((B,), (A,), ((C, B),), (B,))


def test_unchanged_light_asks_nothing_of_the_kernel() -> None:
    fibre_plant = FibrePlant(CABLES)
    fibre_plant.show("ocs1", pairs("1>18", "2>17"))
    assert fibre_plant.show("ocs1", pairs("1>18", "2>17")) == Relight((), (), (), ())


def test_a_loop_back_plug_lights_its_own_port() -> None:
    assert FibrePlant(CABLES).show("ocs1", pairs("1>17")).sent == ((A, A),)


def test_light_between_unplugged_ports_reaches_nobody() -> None:
    assert FibrePlant(CABLES).show("ocs1", pairs("9>18", "1>30")) == Relight((), (), (), ())


def test_a_cut_cable_is_dark_both_ways_until_it_is_spliced() -> None:
    fibre_plant = FibrePlant(CABLES)
    fibre_plant.show("ocs1", pairs("1>18", "2>17", "3>19"))
    assert fibre_plant.sever("f-a", True) == Relight((A, B), (A, B), (), ())
    assert fibre_plant.sources == {C: C}
    assert fibre_plant.sever("f-a", False).lit == (A, B)


def test_cutting_an_unknown_cable_is_an_error() -> None:
    with pytest.raises(KeyError):
        FibrePlant(CABLES).sever("f-z", True)


def test_devices_do_not_disturb_each_other() -> None:
    other = Strand("f-a2", HostPort("a", 2), "ocs2", "1", "17")
    fibre_plant = FibrePlant((*CABLES, other))
    fibre_plant.show("ocs1", pairs("1>18"))
    fibre_plant.show("ocs2", pairs("1>17"))
    assert fibre_plant.show("ocs2", frozenset()).darkened == (HostPort("a", 2),)
    assert fibre_plant.sources == {B: A}


def test_swapped_cables_bring_light_to_the_wrong_hosts_until_swapped_again() -> None:
    fibre_plant = FibrePlant(CABLES)
    fibre_plant.show("ocs1", pairs("1>18", "3>19"))
    assert fibre_plant.sources == {B: A, C: C}
    unplugged, plugged = fibre_plant.swap("f-b", "f-c")
    assert unplugged.darkened == (B, C) and unplugged.unsent == (A, C)
    assert plugged.sent == ((B, B), (A, C))
    assert fibre_plant.sources == {C: A, B: B}
    fibre_plant.swap("f-b", "f-c", "leaves")
    assert fibre_plant.sources == {B: A, C: B}
    fibre_plant.swap("f-c", "f-b", "leaves")
    fibre_plant.swap("f-b", "f-c")
    assert fibre_plant.sources == {B: A, C: C}


def test_a_half_of_a_cable_cannot_go_to_another_device_and_whole_ones_can() -> None:
    fibre_plant = FibrePlant([*CABLES, Strand("f-d", HostPort("d", 1), "ocs2", "1", "17")])
    with pytest.raises(ValueError, match="different devices"):
        fibre_plant.swap("f-a", "f-d", "enters")
    fibre_plant.show("ocs1", pairs("1>18"))
    fibre_plant.show("ocs2", pairs("1>17"))
    dark1, dark2, *lit = fibre_plant.swap("f-a", "f-d")
    assert (dark1.darkened, dark2.darkened) == ((B,), (HostPort("d", 1),))
    assert [change.sent for change in lit] == [((HostPort("d", 1), B),), ((A, A),)]


def test_a_dead_link_stays_dark_whatever_light_arrives() -> None:
    fibre_plant = FibrePlant(CABLES)
    fibre_plant.show("ocs1", pairs("1>18"))
    assert fibre_plant.kill(B, True).darkened == (B,)
    assert fibre_plant.show("ocs1", pairs("3>18", "1>19")).sent == ((A, C),)
    assert fibre_plant.kill(B, False).sent == ((C, B),)


SLOTS = [edges_mhz(-280 + 16 * k, 4) for k in range(3)]
COUPLED = tuple(
    Strand(f"f-{p.host}", p, "wss1", "in", str(n), SLOTS[n - 1]) for n, p in enumerate((A, B, C), 1)
)
"""Three hosts whose light enters one port, each in a slot of its own."""


def passing(*light_paths: tuple[int, int]) -> frozenset[Lit]:
    """Return passbands: (whose slot, counted from 1; to which egress)."""
    return frozenset(("in", str(to), *SLOTS[sender - 1]) for sender, to in light_paths)


def test_light_goes_where_its_slot_goes() -> None:
    fibre_plant = FibrePlant(COUPLED)
    fibre_plant.show("wss1", passing((1, 2), (2, 3)))
    assert fibre_plant.sources == {B: A, C: B}
    assert fibre_plant.show("wss1", passing((1, 2), (3, 1))) == Relight((C,), (B,), ((C, A),), (A,))


def test_a_passband_narrower_than_the_slot_lights_nobody() -> None:
    fibre_plant = FibrePlant(COUPLED)
    low, high = SLOTS[0]
    assert fibre_plant.show("wss1", frozenset({("in", "2", low, high - 1)})).lit == ()
    assert fibre_plant.show("wss1", frozenset({("in", "2", low - 5, high + 5)})).lit == (B,)


def test_light_of_no_known_frequency_passes_mirrors_and_no_passband() -> None:
    strand = COUPLED[0]._replace(slot=None)
    assert FibrePlant((strand,)).show("wss1", passing((1, 1))).lit == ()
    assert FibrePlant((strand,)).show("wss1", frozenset({("in", "1")})).lit == (A,)


def test_a_receiver_that_two_transmitters_reach_is_dark_and_the_collision_is_told_once() -> None:
    fibre_plant = FibrePlant(COUPLED)
    fibre_plant.show("wss1", passing((1, 2)))
    wide = frozenset({("in", "2", SLOTS[0][0], SLOTS[2][1])})
    assert fibre_plant.show("wss1", wide) == Relight((B,), (A,), (), (), ((B, (A, B, C)),))
    assert fibre_plant.show("wss1", wide | passing((1, 2))) == Relight((), (), (), ())
    assert fibre_plant.sources == {}
    assert fibre_plant.silence(B, True).collided == ((B, (A, C)),)
    assert fibre_plant.silence(C, True).sent == ((A, B),)


TRUNKED = (*CABLES[:2], Strand("f-c", C, "ocs2", "1", "17"))
TRUNKS = (
    Tie("t-there", ("ocs1", "30"), ("ocs2", "14")),
    Tie("t-back", ("ocs2", "30"), ("ocs1", "14")),
)


def test_light_crosses_a_trunk_to_another_device() -> None:
    fibre_plant = FibrePlant(TRUNKED, TRUNKS)
    assert fibre_plant.show("ocs1", pairs("1>30")).lit == ()
    assert fibre_plant.show("ocs2", pairs("14>17")) == Relight((), (), ((A, C),), (C,))
    assert fibre_plant.show("ocs1", pairs("2>30")) == Relight((C,), (A,), ((B, C),), (C,))
    assert fibre_plant.show("ocs1", frozenset()) == Relight((C,), (B,), (), ())


def test_a_cut_trunk_is_dark_until_it_is_spliced() -> None:
    fibre_plant = FibrePlant(TRUNKED, TRUNKS)
    fibre_plant.show("ocs1", pairs("1>30"))
    fibre_plant.show("ocs2", pairs("14>17"))
    assert fibre_plant.sever("t-there", True) == Relight((C,), (A,), (), ())
    assert fibre_plant.sever("t-there", False).sent == ((A, C),)


def test_light_in_a_circle_ends() -> None:
    fibre_plant = FibrePlant(TRUNKED, TRUNKS)
    fibre_plant.show("ocs2", pairs("14>30"))
    assert fibre_plant.show("ocs1", pairs("1>30", "14>30", "2>18")).lit == (B,)


def test_a_multiplexer_and_a_demultiplexer_of_one_device_are_joined_by_a_trunk() -> None:
    roadm = tuple(
        Strand(f"f-{p.host}", p, "wss1", f"410{n}", f"520{n}", SLOTS[n - 1])
        for n, p in enumerate((A, B), 1)
    )
    fibre_plant = FibrePlant(roadm, (Tie("t", ("wss1", "4201"), ("wss1", "5101")),))
    mux = frozenset({("4101", "4201", *SLOTS[0]), ("4102", "4201", *SLOTS[1])})
    assert fibre_plant.show("wss1", mux).lit == ()
    assert fibre_plant.show(
        "wss1", mux | {("5101", "5202", *SLOTS[0]), ("5101", "5201", *SLOTS[1])}
    ).sent == ((B, A), (A, B))
    assert fibre_plant.show("wss1", mux | {("5101", "5202", *SLOTS[0])}) == Relight(
        (A,), (B,), (), ()
    )
