"""`--avoid`: what a name means, where links move, and what is said where they cannot."""

from __future__ import annotations

import pytest

from optics import HostPort, Infeasible, Link, Port, Usage
from optics.plan import Avoid, Plan, WantedLink
from orchestrator.plan.avoid import avoiding, choose_ports, lab_without_trunks, read_avoid
from tests.change.fibrelab import joined
from tests.properties.labs import lab, name

HERE = lab(4, 4)


def port(host: int, number: int) -> HostPort:
    return HostPort(name(host), number)


def ring() -> list[WantedLink]:
    """gpu01--gpu02--gpu03--gpu04--gpu01 on ports 1 and 2 in turn; ports 3 and 4 are spare."""
    return [WantedLink(port(k, 1 + k % 2), port((k + 1) % 4, 1 + k % 2)) for k in range(4)]


def test_ports_fibres_trunks_and_devices_go_by_their_names() -> None:
    at_ocs1 = {port(k, 1) for k in range(4)}
    fibre = HERE.fibres[port(2, 1)]
    assert (
        read_avoid(["gpu03:p1"], HERE).ports == {port(2, 1)} == read_avoid(["gpu03:1"], HERE).ports
    )
    assert read_avoid([fibre.name], HERE).ports == {port(2, 1)}
    assert (
        read_avoid([str(fibre.enters)], HERE).ports
        == {port(2, 1)}
        == read_avoid([str(fibre.leaves)], HERE).ports
    )
    assert read_avoid(["ocs1"], HERE).ports == at_ocs1
    trunked = joined()
    assert read_avoid(["we1"], trunked) == Avoid(("we1",), frozenset(), frozenset({"we1"}))
    assert read_avoid(["west:901"], trunked).trunks == {"we1"}
    assert read_avoid(["west"], trunked).trunks == {"we1", "we2", "ew1", "ew2"}
    assert {t.name for t in lab_without_trunks(trunked, read_avoid(["we1"], trunked)).trunks} == {
        "we2",
        "ew1",
        "ew2",
    }


def test_names_the_lab_does_not_know_are_refused_all_at_once() -> None:
    with pytest.raises(Usage) as refused:
        read_avoid(["ocs9", "gpu03", "gpu03:p7", "ocs1:999"], HERE)
    assert [
        line.partition(": ")[2].split(" (")[0].split("; did")[0]
        for line in str(refused.value).splitlines()
    ] == [
        "nothing in the lab has that name",
        "gpu03 is a host; take it out of the plan",
        "no fibre is attached to gpu03:p7",
        "no fibre of the inventory ends at ocs1:999",
    ]
    assert "did you mean ocs1?" in str(refused.value).splitlines()[0]


def test_a_link_moves_to_spare_ports_with_both_ends_where_one_device_joins_them() -> None:
    wanted = ring()
    found = choose_ports(wanted, HERE, (), (), read_avoid(["gpu03:p1"], HERE))
    stay = (
        Link(port(0, 1), port(1, 1)),
        Link(port(1, 2), port(2, 2)),
        Link(port(3, 2), port(0, 2)),
    )
    assert (*found[:2], found[3]) == stay
    assert found[2] in (Link(port(2, 3), port(3, 3)), Link(port(2, 4), port(3, 4)))


def test_a_link_that_has_moved_already_stays_where_it_is() -> None:
    moved = Link(port(2, 4), port(3, 4))
    live = [Link(port(k, 1 + k % 2), port((k + 1) % 4, 1 + k % 2)) for k in (0, 1, 3)] + [moved]
    assert choose_ports(ring(), HERE, live, (), read_avoid(["gpu03:p1"], HERE))[2] == moved


def test_where_every_device_has_a_spare_port_of_the_host_the_other_end_stays() -> None:
    roomy = lab(4, 4, devices=2)  # ports 1 and 3 of every host are at ocs1
    found = choose_ports(ring(), roomy, (), (), read_avoid(["gpu03:p1"], roomy))
    assert found[2] == Link(port(2, 3), port(3, 1))


def test_bare_links_take_other_ports_and_named_ones_elsewhere_stay() -> None:
    wanted = [WantedLink(name(0), name(1)), WantedLink(port(2, 1), port(3, 1))]
    found = choose_ports(wanted, HERE, (), (), Avoid(("ocs2",), read_avoid(["ocs2"], HERE).ports))
    assert found[1] == Link(port(2, 1), port(3, 1)) and found[0].a.number != 2


def test_without_a_spare_port_it_is_refused_and_everything_in_the_way_is_named() -> None:
    tight = lab(4, 2)
    with pytest.raises(Infeasible) as refused:
        choose_ports(ring(), tight, (), (), read_avoid(["gpu03:p1"], tight))
    assert str(refused.value) == (
        "gpu03:p1 -- gpu04:p1: gpu03:p1 is to be avoided, and gpu03 has no spare port that reaches gpu04: "
        "gpu03:p2 carries gpu02:p2 -- gpu03:p2"
    )
    assert (
        refused.value.hint
        == "take gpu03:p1 -- gpu04:p1 out of the plan; meanwhile its traffic is rerouted by: testbed service start guard"
    )


def test_the_nearest_possibility_is_a_link_that_could_move_too() -> None:
    three = lab(4, 3)
    # gpu04:p3 is taken; gpu04:p2 is free
    wanted = [WantedLink(port(2, 1), port(3, 1)), WantedLink(port(3, 3), port(0, 3))]
    taken = {port(2, 2)}
    with pytest.raises(Infeasible) as refused:
        choose_ports(wanted, three, (), taken, read_avoid(["gpu03:p1"], three))
    assert (
        "gpu03:p2 carries a foreign circuit; gpu03:p3 is free, but gpu04 has no free port at ocs3"
        in str(refused.value)
    )
    assert refused.value.hint == (
        "it would fit if gpu04:p3 -- gpu01:p3 moved too: leave its ports out of the plan (its hosts alone)"
    )


def test_the_plan_says_that_it_avoids_something_and_for_how_long() -> None:
    plan = Plan("ring", tuple(ring()))
    assert avoiding(plan, (), HERE) is plan
    found = avoiding(plan, ("gpu03:p1",), HERE)
    assert found.avoid.ports == {port(2, 1)}
    assert found.warnings == ("avoids gpu03:p1; an up without --avoid uses them again",)


def test_light_takes_another_trunk_than_the_one_to_avoid() -> None:
    from orchestrator.fabric.circuits import circuits

    here = joined()
    avoid = read_avoid(["we1"], here)
    [other, _] = circuits(
        [Link(HostPort("gpu01", 1), HostPort("gpu02", 1))], lab_without_trunks(here, avoid)
    )
    assert other.path[0].egress == Port("west", "902")
