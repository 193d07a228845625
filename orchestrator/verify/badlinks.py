"""Links that measured traffic shows to be slow or lossy, each direction compared with the others
that were measured. Pure.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from optics import HostName, HostPort
from orchestrator.verify.qualification import Direction, culprits
from orchestrator.verify.report import LinkQuality
from orchestrator.verify.signals import PlannedLink, Signals

SHARE, SHARE_WITH_A_JOB = 0.8, 0.65
"""A link is slow below this share of the median link's rate: alone as `verify --qualify` requires;
beside a job its burst shares the link, and its best of three results counts."""
SPREADS = 4.0
"""And if it is so many robust standard deviations below it: on an overloaded machine all results
differ.
"""
LOSS, LOST = 0.003, 8
"""A link loses data if this share of the datagrams is lost, and so many of them: queues that a job
fills lose less.
"""
CONTROL = 5.0
"""And if it loses this many times as much as the median of the other directions, which the same job
loads.
"""
REFERENCES = 3
"""So many other directions are needed to compare with."""


@dataclass(frozen=True, slots=True)
class BadLink:
    """A link, how it is bad, and the largest factor by which it misses what is required."""

    wire: PlannedLink
    kind: str
    evidence: tuple[str, ...]
    weight: float


def bad(s: Signals) -> list[BadLink]:
    """The links that measured traffic shows to be bad, the worst first."""
    measured = s.quality or {}
    found: list[BadLink] = []
    for wire in s.wires:
        kinds: dict[str, list[str]] = {}
        weight = 0.0
        for direction in (Direction(wire.link.a, wire.link.b), Direction(wire.link.b, wire.link.a)):
            if (quality := measured.get(direction)) is None:
                continue
            rest = [
                q
                for d, q in measured.items()
                if {d.sender, d.receiver} != {direction.sender, direction.receiver}
            ]
            for kind, line, factor in _judged(direction, quality, rest, s.shared):
                kinds.setdefault(kind, []).append(line)
                weight = max(weight, factor)
        if kinds:
            kind = "lossy-link" if "lossy-link" in kinds else "slow-link"
            found.append(
                BadLink(
                    wire, kind, tuple(line for lines in kinds.values() for line in lines), weight
                )
            )
    return sorted(found, key=lambda bad: -bad.weight)


def _judged(
    direction: Direction, quality: LinkQuality, rest: Sequence[LinkQuality], shared: bool
) -> Iterator[tuple[str, str, float]]:
    """What is bad about one direction, compared with others; and by what factor it misses what is
    required.
    """
    rates = [q.mbps for q in rest if q.mbps]
    if len(rates) < REFERENCES:
        return
    usual = statistics.median(rates)
    if quality.mbps is None:
        yield (
            "lossy-link",
            f"{direction}: nothing of a burst arrives, others carry {usual:.0f} Mb/s",
            10.0,
        )
        return
    reference = quality.mbps / quality.share if quality.share else usual
    least = SHARE_WITH_A_JOB if shared else SHARE
    share = quality.mbps / reference
    spread = 1.4826 * statistics.median(abs(rate - usual) for rate in rates)
    if share < least and quality.mbps < reference - SPREADS * spread:
        of = (
            f"the median of {len(rates)} other directions"
            if not quality.share
            else "what it should carry"
        )
        yield (
            "slow-link",
            f"{direction} carries {quality.mbps:.0f} Mb/s, {share:.0%} of {reference:.0f} ({of})",
            least / share,
        )
    if quality.loss is None or not quality.sent:
        return
    others = [q.loss for q in rest if q.loss is not None]
    control = statistics.median(others) if others else 0.0
    lost = quality.sent - quality.arrived
    if quality.loss > max(LOSS, CONTROL * control) and lost >= LOST:
        text = f"{direction} loses {lost} of {quality.sent} datagrams ({quality.loss:.2%}) at {quality.offered_mbps or 0:.0f} Mb/s"
        yield (
            "lossy-link",
            f"{text}, the median of the others is {control:.2%}",
            quality.loss / max(LOSS, CONTROL * control),
        )


def cable(s: Signals, found: Sequence[BadLink]) -> HostPort | None:
    """The port at a packet switch of which all measured links are bad, if that is more than one,
    and those of others are not.
    """
    measured = [
        wire
        for wire in s.wires
        if {Direction(*wire.ports), Direction(*reversed(wire.ports))} & (s.quality or {}).keys()
    ]
    wrong = [one.wire for one in found]
    for port in sorted({port for wire in wrong if wire.segment for port in wire.ports}):
        own = [wire for wire in measured if port in wire.ports]
        if (
            len(own) > 1
            and all(wire in wrong for wire in own)
            and all(port in wire.ports for wire in wrong)
        ):
            return port
    return None


def common(s: Signals, found: Sequence[BadLink]) -> HostName | None:
    """The host of which all measured links are bad in one direction, if that is more than one
    link.
    """
    measured = [d for d, q in (s.quality or {}).items()]
    wrong = {
        d
        for d, q in (s.quality or {}).items()
        for one in found
        if {d.sender, d.receiver} == set(one.wire.ports)
        and any(line.startswith(f"{d} ") or line.startswith(f"{d}:") for line in one.evidence)
    }
    return next(culprits(measured, wrong), None)
