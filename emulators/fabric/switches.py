"""Packet switches, as kernel bridges: the fixed cabling next to the optical switches.

The near end of a host's cable is made as that of a fibre. It is joined for good with a port of the
switch, a pair of interfaces whose inner one is in a bridge: traffic from the host is shaped at
ingress, traffic to it at egress, as by a real cable's rate. With racks there is a bridge for each
and one above them; the pair between two bridges is shaped in both directions, so that all of a
rack's traffic contends for its uplinks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from emulators.fabric.fibre_plant import HostPort
from emulators.fabric.netlink import (
    End,
    Message,
    bridge,
    clsact,
    enslave,
    link_state,
    redirect,
    shaper,
    veth,
)
from emulators.fabric.queues import Queues
from emulators.inventory.config import Segment

FIRST_INDEX = 20_000
OUTWARD = 1 << 20
"""The end of a switch's port that the traffic of a host leaves by has the index of the host's cable
and this.
"""
UNLIMITED_BPS = 1 << 35
"""The shaper counts bytes a second in 32 bits: a faster cable has no limit but the machine's."""
QUEUE_BYTES = 524_288
"""The queue limit of a port, as at a fibre's end."""
BURST_S, GSO_BYTES = 0.002, 65_536


def cables(segments: Iterable[Segment]) -> dict[str, HostPort]:
    """The host port at the end of each cable, by the cable's name: SEGMENT-HOST."""
    return {name: HostPort(*port) for s in segments for name, port in s.cables.items()}


def limited(index: int, rate_bps: int, limit_bytes: int = QUEUE_BYTES) -> list[Message]:
    """Shape the traffic leaving an interface; 0, or a rate beyond the shaper's range, is no limit.
    limit_bytes: of its queue.
    """
    return shaper(index, rate_bps, limit_bytes=limit_bytes) if 0 < rate_bps < UNLIMITED_BPS else []


def at_once(rate_bps: int, mtu: int) -> int:
    """How many packets of TCP a port of this rate takes at once: what it carries in `BURST_S`, one
    at least; 0: no limit.

    On a short path the kernel hands over 64 kB at once whatever the rate is (since Linux 5.18), and
    two of these wait: 0.04 ms of a port of 25 Gb/s, but 10 ms of one at 100 Mb/s, which no network
    card has.
    """
    fit = max(1, int(rate_bps / 8 * BURST_S / mtu))
    return fit if rate_bps and fit * mtu < GSO_BYTES else 0


def queue_bytes(segment: Segment | None) -> int:
    """The queue limit of a port of a segment (bytes); None: of a port that a fibre is plugged
    into.
    """
    return segment.queue.limit_bytes if segment and segment.queue else QUEUE_BYTES


def switched(
    segments: Iterable[Segment],
    index: Mapping[HostPort, int],
    mtu: int,
    queues: Queues,
    functions: Mapping[str, End] | None = None,
) -> Iterator[Message]:
    """Build the switches of all segments and plug the cables in; index: of the light path's end of
    each host port.

    queues: is notified of the uplinks of segments whose queues are given. functions: far end of a
    cable without a limit, to the functions of a segment, by its name.
    """
    fresh = iter(range(FIRST_INDEX, 1 << 20))
    for number, segment in enumerate(segments):
        spine = next(fresh)
        yield from _bridge(spine, f"sw{number}")
        leaf_of = dict.fromkeys(segment.ports, spine)
        for at, (hosts, uplink_bps) in enumerate(segment.racks):
            leaf, below, above = next(fresh), next(fresh), next(fresh)
            yield from _bridge(leaf, f"sw{number}r{at}")
            yield veth(
                End(below, f"sw{number}u{at}", mtu=mtu), End(above, f"sw{number}d{at}", mtu=mtu)
            )
            for end, inside in ((below, leaf), (above, spine)):
                if segment.queue and uplink_bps < UNLIMITED_BPS:
                    yield from queues.laid(segment, end, uplink_bps, hosts, up=end == below)
                else:
                    # uplinks are several, with a queue each
                    yield from limited(end, uplink_bps, len(hosts) * QUEUE_BYTES)
                yield enslave(end, inside)
            leaf_of |= dict.fromkeys(hosts, leaf)
        for at, (host, port) in enumerate(segment.ports.items()):
            cable, inner = index[HostPort(host, port)], next(fresh)
            outer = cable + OUTWARD
            yield veth(
                End(outer, f"sw{number}o{at}", mtu=mtu), End(inner, f"sw{number}p{at}", mtu=mtu)
            )
            yield from limited(outer, segment.rate_bps, queue_bytes(segment))
            yield clsact(outer)
            yield enslave(inner, leaf_of[host])
            yield redirect(cable, outer)
            yield redirect(outer, cable)
            yield link_state(outer, True)
            yield link_state(cable, True)
        if functions and segment.name in functions:
            inner = next(fresh)
            yield veth(End(inner, f"sw{number}f", mtu=mtu), functions[segment.name])
            yield enslave(inner, spine)


def _bridge(index: int, name: str) -> tuple[Message, Message]:
    return bridge(index, name), link_state(index, True)
