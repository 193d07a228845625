"""The rules, followed packet by packet by an oracle that knows nothing of how they were
computed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optics import HostPort, Infeasible, Link, LinkKind
from optics.plan import FixedRoute, Job
from orchestrator.fabric.next_hops import joined, next_hops
from orchestrator.fabric.rules import (
    Macs,
    Neighbour,
    RdmaNeighbour,
    Route,
    TransitFilter,
    drain_rules,
    hops,
    rules,
)
from tests.oracles.rings import edge_disjoint, plan_rings
from tests.oracles.walk import Lost, rdma_address, walk, walk_to
from tests.properties.labs import lab, macs, name, planes

MODES = ("kernel", "npar-rdma")
modes = st.sampled_from(MODES)
graphs = st.builds(
    lambda count, degree, seed: planes(count, degree, Random(seed)),
    st.integers(2, 14),
    st.integers(1, 4),
    st.integers(0, 10_000),
)


def members(links: tuple[Link, ...]) -> list[str]:
    return sorted({end.host for link in links for end in (link.a, link.b)})


def ring_links(order: list[int], ports: tuple[int, ...] = (1, 2)) -> tuple[Link, ...]:
    return tuple(
        Link(HostPort(name(a), ports[at % len(ports)]), HostPort(name(b), ports[at % len(ports)]))
        for at, (a, b) in enumerate(zip(order, order[1:] + order[:1], strict=True))
    )


def shortest(links: tuple[Link, ...], source: str) -> dict[str, int]:
    """Distances by the plainest method, for comparison."""
    neighbours: dict[str, set[str]] = {}
    for link in links:
        neighbours.setdefault(link.a.host, set()).add(link.b.host)
        if link.kind is LinkKind.DUPLEX:
            neighbours.setdefault(link.b.host, set()).add(link.a.host)
    far = {source: 0}
    while True:
        grown = dict(far)
        for host, away in far.items():
            for other in neighbours.get(host, ()):
                grown.setdefault(other, away + 1)
        if grown == far:
            return far
        far = grown


@given(graphs, modes, st.sampled_from([0, 1, 237]))
def test_every_pair_is_reached_in_the_planned_number_of_hops_on_every_lane(
    links: tuple[Link, ...], mode: str, first_id: int
) -> None:
    here = lab(14, 4, forwarding=mode, first_id=first_id)
    known = macs(here)
    written, planned = rules(links, here, known), hops(links, here)
    assert joined(links, here) == len(planned)
    for source in members(links):
        far = shortest(links, source)
        assert {target: count for (start, target), count in planned.items() if start == source} == {
            target: count for target, count in far.items() if target != source
        }
        for target in far.keys() - {source}:
            for lane in range(4):
                for tagged in {False, mode == "npar-rdma" and lane == 0}:
                    trail = walk(written, here, known, links, source, target, lane, tagged=tagged)
                    assert (
                        trail[0] == source and trail[-1] == target and len(trail) - 1 == far[target]
                    )


@given(graphs, modes, st.integers(0, 10_000))
def test_while_links_are_dark_no_packet_loops_and_every_surviving_pair_is_reached(
    links: tuple[Link, ...], mode: str, seed: int
) -> None:
    here = lab(14, 4, forwarding=mode)
    known = macs(here)
    random = Random(seed)
    kept = tuple(link for link in links if random.random() < 0.7)
    written = drain_rules(links, kept, here, known)
    for source in members(links):
        survives = shortest(kept, source) if kept else {source: 0}
        for target in shortest(links, source).keys() - {source}:
            for lane in (0, 3):
                # the light is still on
                assert walk(written, here, known, links, source, target, lane)[-1] == target
                if target in survives:
                    trail = walk(written, here, known, kept, source, target, lane)
                    assert len(trail) - 1 == survives[target]


@given(graphs, st.integers(0, 10_000))
def test_a_hold_reaches_every_surviving_pair_and_has_no_route_for_the_others(
    links: tuple[Link, ...], seed: int
) -> None:
    here = lab(14, 4)
    known = macs(here)
    random = Random(seed)
    kept = tuple(link for link in links if random.random() < 0.7)
    written = drain_rules(links, kept, here, known, hold=True)
    assert sorted(written) == members(links), "a host that can reach no other one holds too"
    for source in members(links):
        survives = shortest(kept, source) if kept else {source: 0}
        addresses = {rule.destination for rule in written[source] if isinstance(rule, Route)}
        for target in shortest(links, source).keys() - {source}:
            for lane in (0, 3):
                present = f"{here.hosts[target].lane_address(lane)}/32" in addresses
                assert present is (target in survives)
                if present:
                    assert (
                        len(walk(written, here, known, kept, source, target, lane)) - 1
                        == survives[target]
                    )


@given(graphs, st.integers(0, 10_000))
def test_hosts_that_forward_in_the_nic_are_drained_and_not_held(
    links: tuple[Link, ...], seed: int
) -> None:
    here = lab(14, 4, forwarding="npar-rdma")
    random = Random(seed)
    kept = tuple(link for link in links if random.random() < 0.7)
    assert drain_rules(links, kept, here, macs(here), hold=True) == drain_rules(
        links, kept, here, macs(here)
    )


@given(graphs, modes, st.integers(0, 10_000))
def test_a_fixed_route_is_followed_and_nobody_else_is_lost(
    links: tuple[Link, ...], mode: str, seed: int
) -> None:
    here = lab(14, 4, forwarding=mode)
    known = macs(here)
    random = Random(seed)
    neighbours: dict[str, list[str]] = {}
    for link in links:
        neighbours.setdefault(link.a.host, []).append(link.b.host)
        neighbours.setdefault(link.b.host, []).append(link.a.host)
    trail = [random.choice(sorted(neighbours))]
    while len(trail) < 6 and (onward := sorted(set(neighbours[trail[-1]]) - set(trail))):
        trail.append(random.choice(onward))
    fixed = (FixedRoute(trail[0], trail[-1], tuple(trail[1:-1])),)
    written, planned = rules(links, here, known, fixed), hops(links, here, fixed)
    for lane in range(4):
        assert walk(written, here, known, links, trail[0], trail[-1], lane) == tuple(trail)
    for source, target in planned:
        for lane in range(4):
            seen = walk(written, here, known, links, source, target, lane)
            assert (
                len(seen) - 1 == hops(links, here, fixed, lane=lane)[source, target]
                if lane == 0
                else seen[-1] == target
            )


def test_a_fixed_route_that_goes_dark_is_dropped_while_draining() -> None:
    here, links = lab(4, 4), ring_links([0, 1, 2, 3])
    fixed = (FixedRoute("gpu01", "gpu02", ("gpu04", "gpu03")),)
    kept = tuple(link for link in links if {link.a.host, link.b.host} != {"gpu03", "gpu04"})
    written = drain_rules(links, kept, here, macs(here), fixed)
    assert walk(written, here, macs(here), kept, "gpu01", "gpu02") == ("gpu01", "gpu02")


def test_simplex_rings_carry_traffic_one_way_round() -> None:
    here = lab(5, 1, lanes=1)
    links = tuple(
        Link(HostPort(name(i), 1), HostPort(name((i + 1) % 5), 1), LinkKind.SIMPLEX)
        for i in range(5)
    )
    written = rules(links, here, macs(here))
    assert walk(written, here, macs(here), links, "gpu02", "gpu01") == (
        "gpu02",
        "gpu03",
        "gpu04",
        "gpu05",
        "gpu01",
    )
    assert hops(links, here)["gpu02", "gpu01"] == 4


# spreading


@given(graphs)
def test_the_choice_of_links_does_not_depend_on_the_order_of_the_plan(
    links: tuple[Link, ...],
) -> None:
    assert next_hops(links, 4) == next_hops(
        tuple(Link(link.b, link.a) for link in reversed(links)), 4
    )


@pytest.mark.parametrize("count", [2, 3, 4])
def test_each_lane_takes_its_own_parallel_link_and_both_ends_agree(count: int) -> None:
    links = tuple(Link(HostPort("gpu01", 1 + at), HostPort("gpu02", 4 - at)) for at in range(count))
    chosen = next_hops(links, 4)
    for lane in range(4):
        other, back = chosen["gpu01", "gpu02", lane], chosen["gpu02", "gpu01", lane]
        assert other.out.number == 1 + lane % count
        assert (other.out, other.into) == (back.into, back.out)


def test_equal_paths_share_the_destinations_of_a_host() -> None:
    torus = tuple(
        link
        for r in range(4)
        for c in range(4)
        for link in (
            Link(
                HostPort(name(4 * r + c), 1 + c % 2), HostPort(name(4 * r + (c + 1) % 4), 1 + c % 2)
            ),
            Link(
                HostPort(name(4 * r + c), 3 + r % 2),
                HostPort(name(4 * ((r + 1) % 4) + c), 3 + r % 2),
            ),
        )
    )
    chosen = next_hops(torus, 4)
    load = Counter(hop.out for hop in chosen.values())
    # 15 destinations on 4 lanes by 4 links
    assert len(load) == 64 and set(load.values()) <= {14, 15, 16}, load


def ring_lanes(links: tuple[Link, ...], rings: tuple[tuple[str, ...], ...]) -> None:
    here = lab(12, 4)
    known = macs(here)
    job = Job("j", "train", tuple(sorted(rings[0])), rings)
    paths = plan_rings(job, links, here)
    assert not edge_disjoint(paths)
    written = rules(links, here, known, rings=rings)
    for path in paths:
        for (host, follower), hop in zip(
            zip(path.order, path.order[1:] + path.order[:1], strict=True), path.hops, strict=True
        ):
            address = here.hosts[follower].lane_address(path.lane)
            route = next(
                rule
                for rule in written[host]
                if isinstance(rule, Route) and rule.destination == f"{address}/32"
            )
            assert route.interface == here.interface(hop.out)
            assert walk_to(written, here, known, links, host, address) == (host, follower)


@pytest.mark.parametrize("steps", ["frfr", "ffrr", "rffr", "fr", "ff"])
def test_rings_of_one_direction_take_different_parallel_links(steps: str) -> None:
    order = list(range(12))
    doubled = ring_links(order, (1, 3)) + ring_links(order, (2, 4))
    forth = tuple(name(i) for i in order)
    ring_lanes(
        doubled, tuple(forth if step == "f" else (forth[0], *forth[:0:-1]) for step in steps)
    )


def test_the_four_rings_of_two_strides_have_their_links_to_themselves() -> None:
    def stride(step: int) -> list[int]:
        return [step * at % 12 for at in range(12)]

    links = ring_links(stride(1), (1, 2)) + ring_links(stride(5), (3, 4))
    ring_lanes(links, tuple(tuple(name(i) for i in stride(step)) for step in (1, 11, 5, 7)))


def test_rings_that_share_a_link_are_told() -> None:
    forth = tuple(name(i) for i in range(12))
    paths = plan_rings(Job("j", "train", forth, (forth, forth)), ring_links(list(range(12))), lab())
    assert edge_disjoint(paths)[0] == "rings 0, 1 share gpu01:p1->gpu02:p1"


def test_a_ring_step_without_a_link_is_named() -> None:
    order = ("gpu01", "gpu03", "gpu02", "gpu04")
    with pytest.raises(
        Infeasible, match="ring 0 steps from gpu01 to gpu03, but no link joins them"
    ):
        plan_rings(Job("j", "train", order, (order,)), ring_links([0, 1, 2, 3]), lab())


# the recipe of the split NIC ports, case by case


def npar_line() -> tuple[Link, ...]:
    """gpu01 p1 -- p2 gpu02 p3 -- p4 gpu03, on one device so that any ports can be joined."""
    return (
        Link(HostPort("gpu01", 1), HostPort("gpu02", 2)),
        Link(HostPort("gpu02", 3), HostPort("gpu03", 4)),
    )


def test_a_frame_for_a_neighbour_goes_to_its_rdma_function_and_one_for_a_relay_to_its_plain_function() -> (
    None
):
    here = lab(3, 4, forwarding="npar-rdma", devices=1)
    known = macs(here)
    written = rules(npar_line(), here, known)
    assert {rule for rule in written["gpu01"] if isinstance(rule, RdmaNeighbour)} == {
        RdmaNeighbour("10.100.2.2", known[HostPort("gpu02", 2)].mac, "pp1rdma"),
        RdmaNeighbour("10.100.3.4", str(known[HostPort("gpu02", 2)].eth), "pp1rdma"),
    }
    assert rdma_address(written["gpu01"], here.hosts["gpu03"], 0) == "10.100.3.4"
    assert rdma_address(written["gpu01"], here.hosts["gpu01"], 0) is None


def test_a_relay_filters_both_plain_and_tagged_packets_by_the_host_block() -> None:
    here = lab(3, 4, forwarding="npar-rdma", devices=1)
    known = macs(here)
    relay = [
        rule for rule in rules(npar_line(), here, known)["gpu02"] if isinstance(rule, TransitFilter)
    ]
    assert sorted(rule.command() for rule in relay if rule.destination == "10.100.3.0/24") == [
        f"tc filter add dev pp2eth prio 0 protocol 802.1Q parent ffff: flower skip_hw vlan_ethtype ip dst_ip 10.100.3.0/24 "
        f"action pedit ex munge eth dst set {known[HostPort('gpu03', 4)].mac} pipe action mirred egress redirect dev pp3rdma",
        f"tc filter add dev pp2eth prio 0 protocol ip parent ffff: flower skip_hw dst_ip 10.100.3.0/24 "
        f"action pedit ex munge eth dst set {known[HostPort('gpu03', 4)].mac} pipe action mirred egress redirect dev pp3rdma",
    ]


def test_a_missing_mac_is_named() -> None:
    here = lab(3, 4, forwarding="npar-rdma", devices=1)
    known = macs(here)
    known[HostPort("gpu02", 2)] = Macs("02:00:00:00:00:01")
    with pytest.raises(Infeasible, match=r"gpu02:p2 \(second function\) is not known"):
        rules(npar_line(), here, known)


# the oracle itself: each wrong rule is caught


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("damage", ["route", "neighbour", "mac", "filter", "light", "loop"])
def test_the_oracle_sees_each_kind_of_damage(mode: str, damage: str) -> None:
    here = lab(6, 4, forwarding=mode)
    known = macs(here)
    links = ring_links([0, 1, 2, 3, 4, 5])
    written = {host: set(found) for host, found in rules(links, here, known).items()}
    source, target = "gpu01", "gpu03"
    assert len(walk(written, here, known, links, source, target)) == 3  # type: ignore[arg-type]
    address = (
        here.hosts[target].lane_address(0)
        if mode == "kernel"
        else rdma_address(written[source], here.hosts[target], 0)
    )
    if damage == "route":
        written[source] -= {
            rule for rule in written[source] if getattr(rule, "destination", "") == f"{address}/32"
        }
    elif damage == "neighbour":
        written[source] -= {
            rule for rule in written[source] if isinstance(rule, Neighbour | RdmaNeighbour)
        }
    elif damage == "mac":
        odd = {rule for rule in written[source] if isinstance(rule, Neighbour | RdmaNeighbour)}
        written[source] = (written[source] - odd) | {
            replace(rule, mac="02:00:00:ff:ff:ff") for rule in odd
        }
    elif damage == "filter":
        written["gpu02"] -= {
            rule for rule in written["gpu02"] if isinstance(rule, TransitFilter | Route)
        }
    elif damage == "light":
        links = tuple(link for link in links if {link.a.host, link.b.host} != {"gpu02", "gpu03"})
    else:
        back = HostPort("gpu01", 1)
        if mode == "kernel":
            old = next(
                rule
                for rule in written["gpu02"]
                if getattr(rule, "destination", "") == f"{address}/32"
            )
            via = here.hosts["gpu01"].port_address(1)
            written["gpu02"] -= {old}
            written["gpu02"] |= {
                replace(old, via=via, interface="opt1"),
                Neighbour(via, known[back].mac, "opt1"),
            }
        else:
            rotated = {
                rule
                for rule in written["gpu02"]
                if isinstance(rule, TransitFilter) and rule.destination == "10.100.3.0/24"
            }
            written["gpu02"] -= rotated
            written["gpu02"] |= {
                replace(rule, out_interface="pp1rdma", mac=str(known[back].eth)) for rule in rotated
            }
    with pytest.raises(Lost) as lost:
        walk(written, here, known, links, source, target)  # type: ignore[arg-type]
    assert lost.value.trail[0] == source


def test_the_rdma_function_consumes_what_is_addressed_to_it_even_if_meant_for_another() -> None:
    here = lab(3, 4, forwarding="npar-rdma", devices=1)
    known = macs(here)
    written = {host: set(found) for host, found in rules(npar_line(), here, known).items()}
    far = {
        rule
        for rule in written["gpu01"]
        if isinstance(rule, RdmaNeighbour) and rule.address == "10.100.3.4"
    }
    written["gpu01"] = (written["gpu01"] - far) | {
        replace(rule, mac=known[HostPort("gpu02", 2)].mac) for rule in far
    }
    with pytest.raises(Lost, match="the RDMA function at gpu02:p2 consumes a packet for"):
        walk(written, here, known, npar_line(), "gpu01", "gpu03")  # type: ignore[arg-type]


def test_the_oracle_takes_the_longest_prefix() -> None:
    here, links = lab(6, 4), ring_links([0, 1, 2, 3, 4, 5])
    known = macs(here)
    written = {host: set(found) for host, found in rules(links, here, known).items()}
    back = here.hosts["gpu06"].port_address(2)
    for host in written:
        if host == "gpu01":
            written[host] |= {
                Route("10.255.0.0/16", back, "opt2", "10.255.0.1", 0),
                Route("0.0.0.0/0", back, "opt2", "10.255.0.1", 0),
            }
    for target, lane in ((target, lane) for target in ("gpu02", "gpu03") for lane in range(4)):
        trail = walk(written, here, known, links, "gpu01", target, lane)  # type: ignore[arg-type]
        assert trail == ("gpu01", "gpu02", "gpu03")[: len(trail)] and trail[-1] == target
    written["gpu01"] = {
        rule for rule in written["gpu01"] if getattr(rule, "destination", "") != "10.255.0.2/32"
    }
    with pytest.raises(Lost, match="still on the way") as lost:
        walk(written, here, known, links, "gpu01", "gpu02")  # type: ignore[arg-type]
    assert lost.value.trail[:3] == ("gpu01", "gpu06", "gpu01")
