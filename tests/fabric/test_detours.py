"""Decisions of the guard: which links are dead, how traffic goes round them, who is cut off, when a
flapping link may come back.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optics import Circuit, CrossConnect, HostPort, Link, LinkKind, Port
from optics.plan import FixedRoute
from orchestrator.fabric.detour import (
    FlapDamping,
    broken,
    dark_circuits,
    dead_links,
    detour,
    link_text,
    questions,
    reaching,
)
from orchestrator.fabric.next_hops import hops, lanes_of
from orchestrator.fabric.rules import rules
from tests.oracles.walk import Lost, walk
from tests.properties.labs import lab, macs, name, planes

RING = [name(k) for k in range(6)]


def port(host: int, number: int) -> HostPort:
    return HostPort(name(host), number)


def ring(hosts: int = 6, kind: LinkKind = LinkKind.DUPLEX) -> tuple[Link, ...]:
    """A ring; its steps use two ports in turn, one-way steps each host's two ports."""
    if kind is LinkKind.SIMPLEX:
        return tuple(Link(port(k, 1), port((k + 1) % hosts, 1), kind) for k in range(hosts))
    return tuple(Link(port(k, 1 + k % 2), port((k + 1) % hosts, 1 + k % 2)) for k in range(hosts))


def test_a_link_is_dead_when_either_of_its_ends_is_dark() -> None:
    links = ring()
    assert dead_links(links, {}) == frozenset(), "what nobody knows is no reason to move traffic"
    assert dead_links(links, {links[2].b: False, links[2].a: True}) == {links[2]}
    assert dead_links(links, {port(2, 3): False}) == frozenset(), (
        "an unplanned port is no link of ours"
    )


def test_a_port_without_receive_light_sends_nothing_over_its_one_way_link_either() -> None:
    links = ring(kind=LinkKind.SIMPLEX)
    assert dead_links(links, {port(3, 1): False}) == {links[2], links[3]}
    lone = (Link(port(0, 1), port(1, 1), LinkKind.SIMPLEX),)
    assert dead_links(lone, {port(0, 1): False, port(1, 1): True}) == frozenset(), (
        "nothing is meant to arrive at its sender"
    )


def test_circuits_are_named_by_their_dark_receivers() -> None:
    path = (CrossConnect(Port("ocs1", "1"), Port("ocs1", "9")),)
    directions = [
        Circuit(port(0, 1), port(1, 1), path, 1.0),
        Circuit(port(1, 1), port(0, 1), path, 1.0),
    ]
    assert dark_circuits(directions, {port(1, 1): False, port(0, 1): True}) == (directions[0],)


def test_traffic_of_a_ring_goes_the_other_way_round_and_says_so() -> None:
    here, links = lab(6, 4), ring()
    found = detour(links, {links[2]}, here, macs(here), rings=[RING])
    assert [link_text(link) for link in found.dead] == ["gpu03:p1--gpu04:p1"]
    assert len(found.groups) == 1 and found.lost == 0 and found.pairs == 30
    for lane in range(4):
        assert len(walk(found.rules, here, macs(here), found.alive, name(2), name(3), lane)) == 6
    assert found.text() == ["rerouted ring steps: gpu03->gpu04"]
    assert all(
        count is not None and count <= 5
        for asked in questions(found, here, RING)
        for hosts in asked.values()
        for count in hosts.values()
    )


def test_who_is_cut_off_is_named_and_the_rest_stays_joined() -> None:
    here, links = lab(6, 4), ring()
    found = detour(links, {links[1], links[2]}, here, macs(here))
    assert found.groups == ((name(0), name(1), name(3), name(4), name(5)), (name(2),))
    assert found.text() == ["cut off: gpu03; 5 hosts stay joined"]
    assert len(walk(found.rules, here, macs(here), found.alive, name(1), name(3))) == 5
    with pytest.raises(Lost):
        walk(found.rules, here, macs(here), found.alive, name(0), name(2))
    asked = questions(found, here, RING)
    assert len(asked) == lanes_of(here) and all(name(2) not in lane for lane in asked)


def test_a_one_way_ring_that_is_cut_has_pairs_without_a_way() -> None:
    here, links = lab(4, 2), ring(4, LinkKind.SIMPLEX)
    found = detour(links, {links[0]}, here, macs(here))
    assert found.pairs == 12 and found.lost == 6
    assert found.text() == ["6 of 12 pairs of hosts have no path left"]


def test_a_fixed_route_over_a_dead_link_is_off_and_named_and_another_stays() -> None:
    here, links = lab(6, 4), ring()
    off = FixedRoute(name(0), name(3), (name(1), name(2)))
    stays = FixedRoute(name(5), name(3), (name(4),))
    found = detour(links, {links[1]}, here, macs(here), [off, stays])
    assert found.dropped == (off,) and found.kept_routes == (stays,)
    assert found.text() == ["fixed route gpu01-gpu02-gpu03-gpu04 is not used meanwhile"]
    assert walk(found.rules, here, macs(here), found.alive, name(0), name(3)) == (
        name(0),
        name(5),
        name(4),
        name(3),
    )


def test_with_nothing_dead_the_rules_are_the_plans_own() -> None:
    here, links = lab(6, 4), ring()
    assert detour(links, (), here, macs(here), rings=[RING]).rules == rules(
        links, here, macs(here), (), [RING]
    )


def test_a_dead_link_breaks_the_pairs_whose_way_leads_over_it() -> None:
    here, links = lab(4, 2, lanes=1), ring(4)
    assert broken(links, (), here) == 0
    assert 2 <= broken(links, {links[0]}, here) < 12
    assert broken(links, set(links), here) == 12


graphs = st.builds(
    lambda count, degree, seed: planes(count, degree, Random(seed)),
    st.integers(2, 10),
    st.integers(1, 4),
    st.integers(0, 10_000),
)


@settings(deadline=None)
@given(graphs, st.data(), st.sampled_from(["kernel", "npar-rdma"]))
def test_whatever_dies_every_pair_that_is_still_joined_arrives(
    links: tuple[Link, ...], data: st.DataObject, mode: str
) -> None:
    here = lab(14, 4, forwarding=mode)
    dead = frozenset(data.draw(st.lists(st.sampled_from(links), max_size=4)))
    found = detour(links, dead, here, macs(here))
    left = reaching(found.alive)
    assert found.lost == len(reaching(links) - left)
    planned = hops(found.alive, here)
    for source, target in left:
        assert (
            len(walk(found.rules, here, macs(here), found.alive, source, target))
            == planned[source, target] + 1
        )
    assert sum(map(len, found.groups)) == len(
        {end.host for link in links for end in (link.a, link.b)}
    )


LINK, OTHER = ring()[:2]


def test_light_that_is_lost_counts_at_once_and_light_that_is_back_when_it_stayed() -> None:
    damper = FlapDamping(hold_s=3.0)
    damper.see({LINK}, 10.0)
    assert damper.out(10.0) == {LINK} and damper.due() is None
    damper.see((), 12.0)
    assert damper.out(14.9) == {LINK} and damper.due() == 15.0
    assert damper.out(15.0) == frozenset() and damper.due() is None


def test_each_further_loss_doubles_the_hold_up_to_its_bound() -> None:
    damper, now = FlapDamping(hold_s=3.0, longest_s=20.0), 0.0
    held: list[float] = []
    for _ in range(5):
        damper.see({LINK, OTHER} if not held else {LINK}, now)
        damper.see((), now + 0.1)
        held.append(damper.hold(LINK))
        now += 1.0
    assert held == [3.0, 6.0, 12.0, 20.0, 20.0] and damper.hold(OTHER) == 3.0


def test_a_link_that_flaps_all_the_time_moves_routes_a_bounded_number_of_times() -> None:
    damper, moves, before = FlapDamping(), 0, frozenset[Link]()
    for tick in range(36_000):  # an hour; dark for one second of every five
        now = tick / 10
        damper.see({LINK} if tick % 50 < 10 else (), now)
        moves += damper.out(now) != before
        before = damper.out(now)
    assert moves <= 5


def test_after_a_long_calm_the_hold_is_short_again() -> None:
    damper = FlapDamping(hold_s=3.0, forget_s=900.0)
    for now in (0.0, 10.0, 20.0):
        damper.see({LINK}, now)
        damper.see((), now + 1)
    assert damper.hold(LINK) == 12.0
    damper.see({LINK}, 1000.0)
    assert damper.hold(LINK) == 3.0
