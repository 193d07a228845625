"""Ports for links that name only hosts: always a legal choice, live links kept, and an honest
no.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

from optics import HostPort, Infeasible, Link, LinkKind
from optics.plan import WantedLink
from orchestrator.fabric.circuits import circuits, foreign_ports, live_links, settings
from orchestrator.inventory.lab import Lab
from orchestrator.plan.ports import assign_ports
from tests.properties.labs import lab, name, planes, tangled

seeds = st.integers(0, 100_000)


def bare(links: tuple[Link, ...]) -> list[WantedLink]:
    return [WantedLink(link.a.host, link.b.host, link.kind) for link in links]


def legal(chosen: tuple[Link, ...], wanted: list[WantedLink], here: Lab | None = None) -> None:
    """Each port in one link, both ends on one device, and the links those that were asked for."""
    here = here or lab(14, 4)
    ports = [port for link in chosen for port in (link.a, link.b)]
    assert len(set(ports)) == len(ports)
    assert all(here.fibres[link.a].device == here.fibres[link.b].device for link in chosen)
    for link, asked in zip(chosen, wanted, strict=True):
        for end, named in ((link.a, asked.a), (link.b, asked.b)):
            assert end == named if isinstance(named, HostPort) else end.host == named


@given(st.integers(2, 14), st.integers(1, 4), seeds)
def test_whatever_the_planes_can_carry_is_found(count: int, degree: int, seed: int) -> None:
    random = Random(seed)
    wanted = bare(planes(count, degree, random))
    random.shuffle(wanted)
    legal(assign_ports(wanted, lab(14, 4)), wanted)


@given(st.integers(3, 6), st.integers(2, 4), st.integers(2, 4), seeds)
@effort(max_examples=200)
def test_whatever_a_lab_wired_at_random_can_carry_is_found(
    hosts: int, ports: int, devices: int, seed: int
) -> None:
    random = Random(seed)
    here, links = tangled(hosts, ports, devices, random)
    wanted = bare(links)
    random.shuffle(wanted)
    legal(assign_ports(wanted, here), wanted, here)


@given(st.integers(2, 14), st.integers(1, 4), seeds)
def test_links_that_are_live_stay_where_they_are(count: int, degree: int, seed: int) -> None:
    random = Random(seed)
    live = planes(count, degree, random)
    kept = [link for link in live if random.random() < 0.7]
    random.shuffle(kept)
    chosen = assign_ports(bare(tuple(kept)), lab(14, 4), live)
    ends = {frozenset((link.a, link.b)) for link in live}
    assert all(frozenset((link.a, link.b)) in ends for link in chosen)


@given(st.integers(4, 14), seeds)
def test_named_ports_stay_as_named(count: int, seed: int) -> None:
    random = Random(seed)
    whole = planes(count, 4, random)
    wanted = [
        random.choice(
            [
                WantedLink(link.a, link.b),
                WantedLink(link.a, link.b.host),
                WantedLink(link.a.host, link.b.host),
            ]
        )
        for link in whole
    ]
    legal(assign_ports(wanted, lab(14, 4)), wanted)


@given(st.integers(4, 14), seeds)
def test_a_second_assignment_over_its_own_result_changes_nothing(count: int, seed: int) -> None:
    here = lab(14, 4)
    wanted = bare(planes(count, 4, Random(seed)))
    first = assign_ports(wanted, here)
    live = live_links(settings(circuits(first, here)), here)
    assert settings(circuits(assign_ports(wanted, here, live), here)) == settings(
        circuits(first, here)
    )


def test_large_tight_plans_are_coloured_by_repair() -> None:
    wanted = bare(planes(64, 4, Random(5)))
    Random(6).shuffle(wanted)
    chosen = assign_ports(wanted, lab(64, 4))
    assert len({port for link in chosen for port in (link.a, link.b)}) == 256


def test_one_device_for_all_ports_takes_any_plan() -> None:
    here = lab(5, 4, devices=1)
    complete = [WantedLink(name(a), name(b)) for a in range(5) for b in range(a + 1, 5)]
    chosen = assign_ports(complete, here)
    assert len({port for link in chosen for port in (link.a, link.b)}) == 20


def test_a_sender_and_a_receiver_of_one_way_links_share_a_port() -> None:
    wanted = [WantedLink(name(i), name((i + 1) % 5), LinkKind.SIMPLEX) for i in range(5)]
    here = lab(5, 1)
    assert {link.a.number for link in assign_ports(wanted, here)} == {1}


def test_as_many_live_links_as_possible_stay_when_not_all_can() -> None:
    # live: a triangle's two links on plane 1 and 2; wanted: a third link that needs one of those
    # planes at both ends
    here = lab(4, 2)
    live = (
        Link(HostPort("gpu01", 1), HostPort("gpu02", 1)),
        Link(HostPort("gpu03", 2), HostPort("gpu04", 2)),
    )
    wanted = [
        WantedLink(a, b)
        for a, b in (("gpu01", "gpu02"), ("gpu03", "gpu04"), ("gpu02", "gpu03"), ("gpu04", "gpu01"))
    ]
    chosen = assign_ports(wanted, here, live)
    assert len(set(chosen) & set(live)) == 1


@pytest.mark.parametrize(
    ("pairs", "hosts", "ports", "why"),
    [
        (
            [(0, b) for b in range(1, 6)],
            6,
            4,
            "gpu01 needs 5 more ports for links without named ports, 4 are free",
        ),
        (
            [(a, b) for a in range(5) for b in range(a + 1, 5)],
            5,
            4,
            "5 hosts (gpu01, ...) want 10 links, but the free ports at ocs1, ocs2, ocs3, ocs4 pair up to 8 at most",
        ),
        # the Petersen graph: 3-regular, even, and not 3-colourable
        (
            [(i, (i + 1) % 5) for i in range(5)]
            + [(i, i + 5) for i in range(5)]
            + [(5 + i, 5 + (i + 2) % 5) for i in range(5)],
            10,
            3,
            "no choice of ports carries these 15 links: every assignment to devices was tried",
        ),
    ],
)
def test_what_cannot_be_is_said_with_the_condition_that_fails(
    pairs: list[tuple[int, int]], hosts: int, ports: int, why: str
) -> None:
    with pytest.raises(Infeasible) as refused:
        assign_ports([WantedLink(name(a), name(b)) for a, b in pairs], lab(hosts, ports))
    assert str(refused.value) == why


def test_ports_that_carry_foreign_circuits_are_avoided_unless_named() -> None:
    here = lab(4, 2)
    theirs = settings(circuits([Link(HostPort("gpu01", 1), HostPort("gpu03", 1))], here))
    busy = foreign_ports(theirs, {}, here)
    assert busy == {HostPort("gpu01", 1), HostPort("gpu03", 1)}
    assert foreign_ports(theirs, theirs, here) == frozenset()
    (link,) = assign_ports([WantedLink("gpu01", "gpu02")], here, (), busy)
    assert link.a.number == 2
    (named,) = assign_ports([WantedLink(HostPort("gpu01", 1), "gpu02")], here, (), busy)
    assert named.a.number == 1
    with pytest.raises(
        Infeasible, match=r"gpu01 needs 2 more ports .*, 1 are free \(1 carry foreign circuits\)"
    ):
        assign_ports([WantedLink("gpu01", "gpu02"), WantedLink("gpu01", "gpu04")], here, (), busy)


def test_live_links_read_both_directions_as_one_link_and_one_as_simplex() -> None:
    here = lab(4, 2)
    links = (
        Link(HostPort("gpu01", 1), HostPort("gpu02", 1)),
        Link(HostPort("gpu03", 2), HostPort("gpu04", 2), LinkKind.SIMPLEX),
    )
    assert live_links(settings(circuits(links, here)), here) == links
