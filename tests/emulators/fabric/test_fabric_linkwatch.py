"""Carriers by the hundred: by itself, the kernel announces a hundred a second."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator

import pytest

from emulators.fabric import linux
from emulators.fabric.linkwatch import Linkwatch
from emulators.fabric.netlink import (
    IFF_UP,
    NEWLINK,
    End,
    Message,
    Netlink,
    attribute,
    link_state,
    veth,
)

pytestmark = pytest.mark.lab

PAIRS = 400  # both ends change: 800 changes, eight seconds' work for the kernel by itself
GROUP = attribute(27, 7)  # IFLA_GROUP
IFF_RUNNING = 0x40  # the announced state: IFF_LOWER_UP is there at once


def announced(netlink: Netlink) -> int:
    return sum(
        index >= 3000 and bool(flags & IFF_RUNNING)
        for index, (_, flags, _) in netlink.links().items()
    )


def switch_all(netlink: Netlink, up: bool) -> None:
    """Switch all near ends within one hold of the kernel's lock, so that no run of the queue comes
    between.
    """
    netlink.send(
        [
            Message(
                NEWLINK,
                0,
                struct.pack("=BxHiII", 0, 0, 0, IFF_UP if up else 0, IFF_UP) + GROUP,
                "group",
            )
        ]
    )


@pytest.fixture
def dark() -> Iterator[Netlink]:
    """A namespace with both ends of many pairs: the near ends are down, the far ends wait for
    carrier.
    """
    net = linux.new_network()
    with linux.inside(net):
        netlink = Netlink()
    os.close(net)
    netlink.send([veth(End(1000 + n, f"near{n}"), End(3000 + n, f"far{n}")) for n in range(PAIRS)])
    netlink.send(
        [
            Message(NEWLINK, 0, struct.pack("=BxHiII", 0, 0, 1000 + n, 0, 0) + GROUP, "group")
            for n in range(PAIRS)
        ]
    )
    netlink.send([link_state(3000 + n, True) for n in range(PAIRS)])
    yield netlink
    netlink.close()


@pytest.fixture
def linkwatch() -> Iterator[Linkwatch]:
    made = Linkwatch()
    yield made
    made.close()


def test_hundreds_of_carriers_are_announced_together_both_when_they_come_and_when_they_go(
    dark: Netlink, linkwatch: Linkwatch
) -> None:
    assert linkwatch.flush(4)
    switch_all(dark, True)
    assert linkwatch.flush(4)
    assert announced(dark) == PAIRS
    switch_all(dark, False)
    assert linkwatch.flush(4)
    assert announced(dark) == 0


def test_a_flush_with_nothing_to_announce_ends_too_as_often_as_it_is_asked_for(
    linkwatch: Linkwatch,
) -> None:
    assert all(linkwatch.flush(4) for _ in range(20))
