"""Circuits over several devices and by wavelength: which way they take, and what is refused with
which words.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from optics import (
    Circuit,
    CrossConnect,
    FrequencySlot,
    HostPort,
    Infeasible,
    Interlock,
    Link,
    LinkKind,
    Port,
    SpectralRoute,
)
from optics.plan import Plan, WantedLink
from orchestrator.fabric.circuits import circuit, circuits, foreign_ports, live_links, settings
from orchestrator.fabric.transition import transition
from orchestrator.fabric.up_state import UpState
from orchestrator.inventory.lab import Lab
from orchestrator.plan.ports import assign_ports
from orchestrator.plan.target import circuit_rows, target
from tests.change.fibrelab import SWITCH, hosts_yml, joined, read, roadm, select, slot


def port(number: int, at: int = 1) -> HostPort:
    return HostPort(f"gpu{number:02d}", at)


def link(a: int, b: int, kind: LinkKind = LinkKind.DUPLEX) -> Link:
    return Link(port(a), port(b), kind)


def route(device: str, a: str, b: str, light: FrequencySlot, weaker: float = 0.0) -> SpectralRoute:
    return SpectralRoute(Port(device, a), Port(device, b), light, weaker)


def cross(device: str, a: str, b: str) -> CrossConnect:
    return CrossConnect(Port(device, a), Port(device, b))


def plan(*links: Link) -> Plan:
    from optics.plan import Acceptance

    return Plan(
        "p",
        tuple(WantedLink(x.a, x.b, x.kind) for x in links),
        acceptance=Acceptance(max_loss_db=20.0),
    )


RING = (
    link(1, 2, LinkKind.SIMPLEX),
    link(2, 3, LinkKind.SIMPLEX),
    link(3, 4, LinkKind.SIMPLEX),
    link(4, 1, LinkKind.SIMPLEX),
)


def test_light_of_a_transmitter_passes_multiplexer_trunk_and_demultiplexer_in_its_own_slot() -> (
    None
):
    path = circuit(port(1), port(3), roadm())
    assert path.path == (
        route("wss1", "4101", "4201", slot(1)),
        route("wss1", "5101", "5203", slot(1)),
    )
    assert path.loss_db == pytest.approx(0.6 + 4.0 + 0.7 + 4.0 + 0.6)


def test_all_slots_share_the_trunk_of_a_roadm() -> None:
    lab = roadm()
    held = settings(circuits(RING, lab))
    assert len(held["wss1"]) == 8
    assert live_links(held, lab) == tuple(sorted(RING))


def test_behind_a_coupler_the_slot_says_whose_light_a_route_carries() -> None:
    lab = select()
    held = settings(circuits(RING, lab))
    assert route("wss1", "in", "2", slot(1)) in held["wss1"] and len(held["wss1"]) == 4
    assert live_links(held, lab) == tuple(sorted(RING))
    assert foreign_ports({"wss1": {route("wss1", "in", "2", slot(4))}}, {}, lab) == {
        port(4),
        port(2),
    }


def test_a_transmitter_without_a_slot_cannot_cross_a_spectral_device_and_is_told_what_to_add() -> (
    None
):
    lab = roadm(2, slots={1: "", 2: ", slot: {n: -264, m: 4}"})
    with pytest.raises(
        Infeasible, match="wss1 switches by wavelength, and fibre f1 has no slot"
    ) as refused:
        circuit(port(1), port(2), lab)
    assert "fibre f1 in fibres.yml: slot: {n:" in refused.value.hint


def test_overlapping_spectrum_on_a_trunk_is_refused_with_circuits_port_and_slots() -> None:
    lab = roadm(4, slots={k: f", slot: {{n: {-280 + 8 * min(k, 3)}, m: 4}}" for k in range(1, 5)})
    with pytest.raises(Infeasible) as refused:
        circuits(RING, lab)
    text = str(refused.value)
    assert text == (
        f"gpu03:p1->gpu04:p1 and gpu04:p1->gpu01:p1 overlap at wss1:4201 (trunk t1): {slot(3)} and {slot(3)}"
    )


def test_a_circuit_takes_the_trunk_of_least_loss_and_the_next_one_the_other() -> None:
    lab = joined()
    first, second = circuits([link(1, 2, LinkKind.SIMPLEX), link(3, 4, LinkKind.SIMPLEX)], lab)
    assert first.path == (cross("west", "1", "901"), cross("east", "801", "102"))
    assert second.path == (cross("west", "3", "902"), cross("east", "802", "104"))
    assert first.loss_db == pytest.approx(0.6 + 1.5 + 0.6 + 1.5 + 0.6)


def test_more_circuits_than_trunks_are_refused_by_name() -> None:
    lab = joined(trunks=1)
    with pytest.raises(
        Infeasible,
        match=r"gpu01:p1->gpu02:p1 and gpu03:p1->gpu04:p1 both need west:901 \(trunk we1\)",
    ):
        circuits([link(1, 2, LinkKind.SIMPLEX), link(3, 4, LinkKind.SIMPLEX)], lab)


def test_a_circuit_that_has_one_way_only_gets_it_whatever_the_order() -> None:
    """gpu01 could take either middle, gpu02 only the first: who comes first must give way."""
    devices = dict.fromkeys(("left", "one", "two", "right"), SWITCH)
    limited = replace(SWITCH, directions=(("1", "9[12]"), ("2", "91")))
    fibres = [
        'name: f1, host: gpu01, port: 1, device: left, enters: "1", leaves: "101"',
        'name: f2, host: gpu02, port: 1, device: left, enters: "2", leaves: "102"',
        'name: f3, host: gpu03, port: 1, device: right, enters: "3", leaves: "103"',
        'name: f4, host: gpu04, port: 1, device: right, enters: "4", leaves: "104"',
    ]
    trunks = [
        'name: a1, from: {device: left, port: "91"}, to: {device: one, port: "1"}',
        'name: a2, from: {device: left, port: "92"}, to: {device: two, port: "1"}, loss_db: 2.0',
        'name: b1, from: {device: one, port: "2"}, to: {device: right, port: "81"}',
        'name: b2, from: {device: two, port: "2"}, to: {device: right, port: "82"}',
    ]
    lab = read(hosts_yml(4), devices | {"left": limited}, fibres, trunks)
    one, two = circuits(
        [Link(port(1), port(3), LinkKind.SIMPLEX), Link(port(2), port(4), LinkKind.SIMPLEX)], lab
    )
    assert [x.ingress.device for x in one.path] == ["left", "two", "right"]
    assert [x.ingress.device for x in two.path] == ["left", "one", "right"]


def test_bare_hosts_at_different_devices_are_joined_over_trunks() -> None:
    lab = joined()
    chosen = assign_ports([WantedLink("gpu01", "gpu02"), WantedLink("gpu03", "gpu04")], lab)
    assert chosen == (link(1, 2), link(3, 4)) and len(circuits(chosen, lab)) == 4


def test_no_way_at_all_is_said_with_both_ends() -> None:
    with pytest.raises(Infeasible, match="no fibre path: no trunks lead from west:1 to east:102"):
        circuit(port(1), port(2), read_without_directions())


def read_without_directions() -> Lab:
    fibres = [
        'name: f1, host: gpu01, port: 1, device: west, enters: "1", leaves: "101"',
        'name: f2, host: gpu02, port: 1, device: east, enters: "2", leaves: "102"',
    ]
    back = 'name: t, from: {device: east, port: "9"}, to: {device: west, port: "8"}'
    return read(hosts_yml(2), {"west": SWITCH, "east": SWITCH}, fibres, [back])


def test_light_that_arrives_already_keeps_its_way() -> None:
    lab = joined()
    live = {"west": {cross("west", "1", "902")}, "east": {cross("east", "802", "102")}}
    (path,) = circuits([link(1, 2, LinkKind.SIMPLEX)], lab, live)
    assert path.path[0] == cross("west", "1", "902")


def test_a_trunk_that_somebody_else_uses_is_avoided_and_refused_only_where_there_is_no_other() -> (
    None
):
    theirs = cross("west", "77", "901")
    lab = joined()
    goal = target(
        plan(link(1, 2, LinkKind.SIMPLEX)),
        lab,
        {"west": frozenset({theirs}), "east": frozenset()},
        (),
    )
    assert goal.circuits[0].path[0] == cross("west", "1", "902")
    with pytest.raises(Interlock, match="west:1->901 needs west:901, which west:77->901 uses"):
        target(
            plan(link(1, 2, LinkKind.SIMPLEX)),
            joined(trunks=1),
            {"west": frozenset({theirs}), "east": frozenset()},
            (),
        )


def test_a_route_with_another_attenuation_is_kept_and_stays_ours() -> None:
    weaker = route("wss1", "in", "2", slot(1), 3.5)
    wanted = {"wss1": frozenset({route("wss1", "in", "2", slot(1))})}
    change = transition(
        {"wss1": frozenset({weaker})},
        wanted,
        {"wss1": frozenset({route("wss1", "in", "2", slot(1), 1.0)})},
    )
    assert not change and change.kept["wss1"] == {weaker}
    ended = transition({"wss1": frozenset({weaker})}, {}, wanted)
    assert ended.removed["wss1"] == {weaker}


def test_foreign_spectrum_that_overlaps_is_an_interlock_and_beside_it_none() -> None:
    mine = {"wss1": frozenset({route("wss1", "in", "2", slot(1))})}
    neighbour = route("wss1", "in", "3", slot(2))
    across = route("wss1", "in", "3", FrequencySlot(slot(1).low_mhz + 6250, slot(2).high_mhz))
    assert transition({"wss1": frozenset({neighbour})}, mine, {}).foreign["wss1"] == {neighbour}
    with pytest.raises(Interlock, match="needs wss1:in, which wss1:in->3@"):
        transition({"wss1": frozenset({across})}, mine, {})


def test_circuits_of_a_change_name_both_ends_over_several_devices() -> None:
    lab = joined()
    goal = target(plan(link(1, 2)), lab, {d: frozenset() for d in lab.devices}, ())
    found = circuit_rows(goal, lab)
    assert {row.circuit for row in found} == {"gpu01:p1->gpu02:p1", "gpu02:p1->gpu01:p1"}
    assert all(len(row.path) == 2 and row.loss_db == pytest.approx(4.8) for row in found)


def test_a_stored_plan_keeps_its_ways() -> None:
    lab = joined()
    path = Circuit(port(1), port(2), (cross("west", "1", "902"), cross("east", "802", "102")))
    up = UpState.of([Link(port(1), port(2), LinkKind.SIMPLEX)], [path], "")
    stored = UpState.of_json(json.loads(json.dumps(up.to_json())))
    assert stored == up and [found.path for found in stored.circuits(lab)] == [path.path]


def test_behind_a_coupler_nobody_may_hear_two_transmitters() -> None:
    fibres = [
        'name: f1, host: gpu01, port: 1, device: ocs1, enters: "1", leaves: "101", slot: {n: -280, m: 4}',
        'name: f2, host: gpu02, port: 1, device: ocs1, enters: "1", leaves: "102", slot: {n: -272, m: 4}',
        'name: f3, host: gpu03, port: 1, device: ocs1, enters: "3", leaves: "103"',
    ]
    lab = read(hosts_yml(3), {"ocs1": SWITCH}, fibres)
    with pytest.raises(
        Infeasible, match="gpu03:p1 would also receive light from gpu02:p1: both pass ocs1:1->103"
    ):
        circuits([Link(port(1), port(3), LinkKind.SIMPLEX)], lab)
