"""Links that are slow or lossy by what the job's own TCP connections carried over them, as the
hosts' kernels counted it. Pure.

Only connections between the two ends of a link count: what goes on over further links may be slow
or lost there.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping

from optics import HostName
from orchestrator.hosts.api import Flow, Load
from orchestrator.inventory.lab import Lab
from orchestrator.verify.badlinks import CONTROL, LOSS, LOST, REFERENCES
from orchestrator.verify.qualification import Direction
from orchestrator.verify.signals import PlannedLink, Signals

LEAST_BYTES = 1 << 18
"""So much must have been acknowledged for a rate: the kernel counts in ticks of 1 to 10 ms, and 250
Mb/s take 8 ms for it.
"""
BUSY = 0.5
"""A link holds a job up that has something to send for this share of the time, and for twice that
of the median link.
"""
SHARE = 0.5
"""And carries less than this share of what the others carry while they have something to send:
receivers that share a processor differ by a quarter."""
LEAST_SEGMENTS, TIMES = 100, 2
"""Directions that sent fewer segments are no measure of loss; and it is one only if it comes
back.
"""


def carried(
    flows: Mapping[HostName, tuple[Flow, ...]], wires: tuple[PlannedLink, ...], lab: Lab
) -> dict[Direction, Flow]:
    """The flows, by sending host, that go over one optical link and end there."""
    far = {wire.link.a: wire.link.b for wire in wires if not wire.segment} | {
        wire.link.b: wire.link.a for wire in wires if not wire.segment
    }
    found = {}
    for sender, receiver in far.items():
        existing = lab.hosts[receiver.host]
        own = {existing.lane_address(lane) for lane in range(existing.lanes)}
        via = (existing.port_address(receiver.number), "")
        here = [
            f
            for f in flows.get(sender.host, ())
            if f.port == sender.number and f.to in own and f.via in via
        ]
        if here:
            found[Direction(sender, receiver)] = here[0] if len(here) == 1 else _sum(here)
    return found


def _sum(flows: list[Flow]) -> Flow:
    """Several lanes over the same link. busy_s: of the busiest, for they share it."""
    one = flows[0]
    busy_s = max(f.busy_s for f in flows)
    sums = (
        sum(f.segments for f in flows),
        sum(f.again for f in flows),
        max(f.times for f in flows),
    )
    return Flow(one.to, one.via, one.port, one.seconds, sum(f.bytes for f in flows), busy_s, *sums)


def flows(loads: Mapping[HostName, Load], *, past: bool) -> dict[HostName, tuple[Flow, ...]]:
    """What each host reports; past: of the latest ten seconds, else of one."""
    return {host: load.past if past else load.flows for host, load in loads.items()}


def slow(s: Signals) -> Iterator[tuple[Direction, str]]:
    """Directions that hold the job up, and why, in words."""
    rates = {
        d: 8e-6 * f.bytes / f.busy_s
        for d, f in s.carried.items()
        if f.busy_s > 0 and (f.bytes >= LEAST_BYTES or (f.bytes and f.busy_s >= BUSY * f.seconds))
    }
    for direction, rate in rates.items():
        rest = [
            d for d in rates if {d.sender, d.receiver} != {direction.sender, direction.receiver}
        ]
        if len(rest) < REFERENCES:
            continue
        usual, busy = statistics.median(rates[d] for d in rest), _busy(s.carried[direction])
        others = statistics.median(_busy(s.carried[d]) for d in rest)
        if rate < SHARE * usual and busy >= max(BUSY, 2 * others):
            text = (
                f"{direction} carries {rate:.0f} Mb/s of the job, {rate / usual:.0%} of {usual:.0f}"
            )
            more = f"the median of {len(rest)} other directions; it is busy for {busy:.0%} of the time, they for {others:.0%}"
            yield direction, f"{text}, {more}"


def _busy(flow: Flow) -> float:
    return min(1.0, flow.busy_s / flow.seconds) if flow.seconds > 0 else 0.0


def lossy(s: Signals) -> Iterator[tuple[Direction, str]]:
    """Directions over which TCP had to send again what others need not, and how often, in words."""
    shares = {d: f.again / f.segments for d, f in s.past.items() if f.segments >= LEAST_SEGMENTS}
    for direction, share in shares.items():
        rest = [
            x
            for d, x in shares.items()
            if {d.sender, d.receiver} != {direction.sender, direction.receiver}
        ]
        if len(rest) < REFERENCES:
            continue
        flow, usual = s.past[direction], statistics.median(rest)
        if direction in s.carried and not s.carried[direction].again:
            continue  # it is over, or was no more than a moment
        if share > max(LOSS, CONTROL * usual) and flow.again >= LOST and flow.times >= TIMES:
            text = f"over {direction} TCP sent {flow.again} of {flow.segments} segments again ({share:.2%})"
            more = f"in {flow.times} of {max(1, round(flow.seconds))} s; the median of {len(rest)} other directions is {usual:.2%}"
            yield direction, f"{text}, {more}"
