"""Routes written as prefixes send every address as single routes do, by an independent
longest-prefix match and by the agent.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from agent.routes.prefixes import expanded
from optics import HostPort, Link
from orchestrator.fabric.prefixes import FEW, Row, aggregated, rows
from orchestrator.fabric.rules import Macs, Route, rules
from tests.properties.labs import lab

DIRECTIONS = [(f"10.{port}.0.9", f"opt{port}", "10.255.0.1") for port in range(1, 5)]
tables = st.dictionaries(
    st.tuples(st.integers(0, 2), st.integers(0, 255)), st.sampled_from(DIRECTIONS), max_size=200
)


def single(table: dict[tuple[int, int], tuple[str, str, str]]) -> list[Row]:
    return [(f"10.255.{block}.{last}/32", *path) for (block, last), path in sorted(table.items())]


def looked_up(table: list[Row]) -> dict[str, tuple[str, str, str]]:
    """The way of every address of the blocks in use, as a kernel finds it; an address that has none
    is absent.
    """
    networks = sorted(
        ((IPv4Network(row[0]), row[1:]) for row in table),
        key=lambda each: each[0].prefixlen,
        reverse=True,
    )
    found = {}
    for block in range(4):
        for last in range(256):
            address = IPv4Address(f"10.255.{block}.{last}")
            path = next((path for network, path in networks if address in network), ("", "", ""))
            if path[1]:
                found[str(address)] = path
    return found


@given(tables)
def test_every_address_goes_the_same_way_and_an_address_without_a_route_has_none(
    table: dict[tuple[int, int], tuple[str, str, str]],
) -> None:
    before = single(table)
    after = aggregated(before)
    assert (
        looked_up(after)
        == looked_up(before)
        == {f"10.255.{b}.{n}": path for (b, n), path in table.items()}
    )
    assert len(after) <= len(before)
    assert len({row[0] for row in after}) == len(after)
    assert {
        a: tuple(path[1:]) for a, path in expanded([list(row) for row in after]).items()
    } == looked_up(before)


def test_hosts_that_follow_each_other_share_a_route_and_a_gap_in_it_has_none() -> None:
    table = {(0, n): DIRECTIONS[0] for n in range(64, 128) if n != 77} | {
        (0, n): DIRECTIONS[1] for n in range(128, 256)
    }
    assert aggregated(single(table)) == [
        ("10.255.0.128/25", *DIRECTIONS[1]),
        ("10.255.0.64/26", *DIRECTIONS[0]),
        ("10.255.0.77/32", "", "", ""),
    ]


def test_every_pair_of_a_lab_keeps_its_next_hop_on_every_lane() -> None:
    hosts, here = 40, lab(40)
    macs = {
        HostPort(name, port): Macs(f"02:00:00:00:{host.host_id:02x}:{port:02x}")
        for name, host in here.hosts.items()
        for port in host.ports
    }
    names, links = list(here.hosts), []
    for port in (1, 2, 3, 4):
        Random(port).shuffle(names)
        links += [
            Link(HostPort(a, port), HostPort(b, port))
            for a, b in zip(names[::2], names[1::2], strict=True)
        ]
    for host, wanted in rules(links, here, macs).items():
        routes = [rule for rule in wanted if isinstance(rule, Route)]
        table = rows(routes)
        assert len(routes) == 4 * (hosts - 1) > len(table) > 0, host
        paths = {
            f"{address}/32": tuple(row[1:])
            for address, row in expanded([list(row) for row in table]).items()
        }
        assert paths == {r.destination: (r.via, r.interface, r.source) for r in routes}


def test_a_small_table_is_written_route_by_route() -> None:
    routes = [
        Route(f"10.255.0.{n}/32", "10.1.0.9", "opt1", "10.255.0.1", 0) for n in range(2, 2 + FEW)
    ]
    assert [row[0] for row in rows(routes)] == sorted(r.destination for r in routes)
    more = [*routes, Route("10.255.0.1/32", "10.1.0.9", "opt1", "10.255.0.1", 0)]
    assert len(rows(more)) < 20
