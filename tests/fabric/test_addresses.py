"""Addresses of hosts on the fabric, up to the last number that a host may have."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.inventory.edges import LANES, LAST
from tests.properties.labs import lab


def test_hosts_up_to_number_1023_have_addresses_of_their_own_in_every_lane_and_at_every_port() -> (
    None
):
    some = lab(1, 1).hosts["gpu01"]
    every = [replace(some, host_id=number) for number in range(LAST + 1)]
    assert (
        len({host.lane_address(lane) for host in every for lane in range(LANES)})
        == (LAST + 1) * LANES
    )
    assert len({host.port_address(port) for host in every for port in (1, 64)}) == (LAST + 1) * 2
    assert all(int(octet) < 256 for octet in every[-1].lane_address(LANES - 1).split("."))


def test_a_number_above_255_goes_on_in_the_octet_before_and_lower_ones_are_where_they_always_were() -> (
    None
):
    low, high = (replace(lab(1, 1).hosts["gpu01"], host_id=number) for number in (255, 259))
    assert (low.lane_address(3), low.port_address(2)) == ("10.255.3.255", "10.2.0.255")
    assert (high.lane_address(3), high.port_address(2)) == ("10.255.67.3", "10.2.1.3")
