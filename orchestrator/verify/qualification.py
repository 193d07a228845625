"""Test traffic on every link: the rate of a burst, and the loss of steady traffic below that rate.

Datagrams go from port to port, bound to the interface, so that they measure this fibre and not a
route. First a burst shows the rate, by the kernel's time stamps at the receiver; then traffic at
LOAD of that rate shows the loss. Links of a batch share no port.
"""

from __future__ import annotations

import secrets
import statistics
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from optics import HostName, HostPort, Link, LinkKind
from optics.plain import counted
from optics.plan import Acceptance
from orchestrator.hosts import Hosts
from orchestrator.inventory.lab import Lab
from orchestrator.verify.report import LinkQuality

BURST_BYTES = 2 << 20
"""A burst is longer than the queues on the path, and takes 0.7 ms at 25 Gb/s, 70 ms at 250 Mb/s."""
LOAD = 0.9
STEADY_S = 0.3
"""Steady traffic: its share of the rate, so that queues stay short, and its duration (s)."""
AT_ONCE = 8
"""Links that are loaded together (both directions of each): more would measure the emulated lab's
processor instead.
"""
MIN_SHARE, MAX_LOSS = 0.8, 0.005
"""Requirements if the plan gives none: this share of the median link's rate, this share of
datagrams lost.
"""
AGAIN = 2
"""How often a link that is not good enough is tested again: a busy host must not be taken for a bad
fibre.
"""
PATIENCE_S = 5.0


@dataclass(frozen=True, slots=True, order=True)
class Direction:
    """One direction of one link."""

    sender: HostPort
    receiver: HostPort

    def __str__(self) -> str:
        return f"{self.sender}->{self.receiver}"


@dataclass(frozen=True, slots=True)
class Quality:
    """All measured directions, those not good enough in words, and the reference rate (Mb/s)."""

    by_direction: Mapping[Direction, LinkQuality]
    evidence: tuple[str, ...]
    reference_mbps: float | None
    batches: int
    bad: frozenset[Direction] = frozenset()

    @property
    def links(self) -> tuple[LinkQuality, ...]:
        return tuple(self.by_direction[d] for d in sorted(self.by_direction))

    @property
    def message(self) -> str:
        rates = [link.mbps for link in self.links if link.mbps is not None]
        losses = [link.loss for link in self.links if link.loss is not None]
        slowest = (
            f", slowest {min(rates):.0f} of {self.reference_mbps:.0f} Mb/s"
            if rates and self.reference_mbps
            else ""
        )
        lost = f", loss at most {100 * max(losses):.2g} %" if losses else ""
        return f"{len(self.links) - len(self.evidence)}/{len(self.links)} directions{slowest}{lost}"


def directions(link: Link) -> Iterator[Direction]:
    yield Direction(link.a, link.b)
    if link.kind is LinkKind.DUPLEX:
        yield Direction(link.b, link.a)


def batches(links: Iterable[Link], at_once: int = AT_ONCE) -> list[list[Link]]:
    """Links in groups of at most `at_once` whose members share no host port."""
    found: list[tuple[list[Link], set[HostPort]]] = []
    for link in links:
        for members, taken in found:
            if len(members) < at_once and not {link.a, link.b} & taken:
                break
        else:
            found.append(([], set()))
            members, taken = found[-1]
        members.append(link)
        taken |= {link.a, link.b}
    return [members for members, _ in found]


async def flow(
    hosts: Hosts, lab: Lab, wanted: Mapping[Direction, Mapping[str, Any]], seconds: float
) -> Mapping[Direction, tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Send on all these directions at once, as each request says; return what was sent and received
    of each.

    seconds: longest duration. Raises: Refused, Unreachable, TimedOut - a host could not do its
    part.
    """
    token = secrets.token_hex(8)
    named = {str(direction): direction for direction in wanted}
    ends: dict[HostName, list[dict[str, Any]]] = defaultdict(list)
    for name, direction in named.items():
        at = direction.receiver
        ends[at.host].append(
            {"flow": name, "port": at.number, "address": lab.hosts[at.host].port_address(at.number)}
        )
    listening = await hosts.measure.traffic(
        {
            h: {"do": "listen", "token": token, "seconds": seconds + 1.0, "flows": flows}
            for h, flows in ends.items()
        },
        PATIENCE_S,
    )
    begins: dict[HostName, list[dict[str, Any]]] = defaultdict(list)
    for name, direction in named.items():
        sender, receiver = direction.sender, direction.receiver
        begins[sender.host].append(
            {
                "flow": name,
                "port": sender.number,
                "address": lab.hosts[sender.host].port_address(sender.number),
                "peer": lab.hosts[receiver.host].port_address(receiver.number),
                "udp": listening[receiver.host]["udp"][name],
                **wanted[direction],
            }
        )
    asked = {h: {"do": "send", "token": token, "flows": flows} for h, flows in begins.items()}
    sent = await hosts.measure.traffic(asked, seconds + PATIENCE_S)
    received = await hosts.measure.traffic(
        {h: {"do": "heard", "token": token} for h in ends}, seconds + PATIENCE_S
    )
    return {
        d: (sent[d.sender.host]["sent"][name], received[d.receiver.host]["heard"][name])
        for name, d in named.items()
    }


async def rates(hosts: Hosts, lab: Lab, links: Iterable[Link]) -> dict[Direction, float | None]:
    """The rate (Mb/s) of a received burst, for every direction of these links; None if nothing
    arrives.
    """
    found: dict[Direction, float | None] = {}
    for batch in batches(links):
        wanted = {d: {"bytes": BURST_BYTES} for link in batch for d in directions(link)}
        answers = await flow(hosts, lab, wanted, 1.0)
        found |= {d: received["mbps"] for d, (_, received) in answers.items()}
    return found


async def qualify(hosts: Hosts, lab: Lab, links: Sequence[Link], accept: Acceptance) -> Quality:
    """Test every link and compare. A link that is not good enough is tested again, alone: its best
    result counts, a fault remains.

    Raises: Refused, Unreachable, TimedOut - a host could not do its part.
    """
    groups = batches(links)
    measured = await measure_under_load(hosts, lab, groups)
    own = {
        d: lab.segment_at[link.a].alone_mbps(link.a.host, link.b.host)
        for link in links
        if lab.electrical(link)
        for d in directions(link)
    }
    known = [quality.mbps for d, quality in measured.items() if quality.mbps and d not in own]
    reference = accept.link_mbps or (statistics.median(known) if known else None)
    for _ in range(AGAIN):
        doubtful = compared(measured, reference, accept, own=own).bad
        if not doubtful:
            break
        again = [[link] for link in links if doubtful & set(directions(link))]
        groups += again
        for direction, quality in (await measure_under_load(hosts, lab, again)).items():
            measured[direction] = better(measured[direction], quality)
    return compared(measured, reference, accept, len(groups), own)


def better(one: LinkQuality, other: LinkQuality) -> LinkQuality:
    """The better of two measurements of the same direction."""
    worth = [
        (quality.mbps is not None, -(quality.loss or 0.0), quality.mbps or 0.0)
        for quality in (one, other)
    ]
    return one if worth[0] >= worth[1] else other


async def measure_under_load(
    hosts: Hosts,
    lab: Lab,
    groups: Iterable[Sequence[Link]],
    share: float = LOAD,
    seconds: float = STEADY_S,
) -> dict[Direction, LinkQuality]:
    """Measure every direction, one group of links after the other. share, seconds: of the steady
    traffic, as LOAD and STEADY_S.
    """
    measured: dict[Direction, LinkQuality] = {}
    for batch in groups:
        burst = await rates(hosts, lab, batch)
        lit = {d: rate for d, rate in burst.items() if rate}
        wanted = {d: {"rate_mbps": share * rate, "seconds": seconds} for d, rate in lit.items()}
        answers = await flow(hosts, lab, wanted, seconds) if wanted else {}
        for direction, mbps in burst.items():
            if direction not in answers:
                measured[direction] = LinkQuality(str(direction), None, 0.0, None)
                continue
            sent, received = answers[direction]
            out, into = int(sent["datagrams"]), int(received["datagrams"])
            loss = max(out - into, 0) / out if out else None
            measured[direction] = LinkQuality(
                str(direction), mbps, None, loss, round(share * (mbps or 0.0), 1), out, into
            )
    return measured


def compared(
    measured: Mapping[Direction, LinkQuality],
    reference: float | None,
    accept: Acceptance,
    count: int = 1,
    own: Mapping[Direction, float] | None = None,
) -> Quality:
    """Measurements compared with the requirements. own: rates (Mb/s) of directions not compared
    with the others'.
    """
    own = own or {}
    least = MIN_SHARE if accept.min_link_share is None else accept.min_link_share
    most = MAX_LOSS if accept.max_link_loss is None else accept.max_link_loss
    of = {d: own.get(d, reference) for d in measured}
    shares = {
        d: replace(q, share=round((q.mbps or 0.0) / rate, 3) if (rate := of[d]) else 0.0)
        for d, q in measured.items()
    }
    bad: dict[Direction, str] = {}
    for direction, quality in sorted(shares.items()):
        why = []
        if quality.mbps is None:
            why.append("nothing arrives")
        elif (quality.share or 0.0) < least:
            why.append(
                f"{quality.mbps:.0f} Mb/s, {100 * (quality.share or 0):.0f} % of {of[direction]:.0f} (at least {100 * least:g} %)"
            )
        if quality.loss is not None and quality.loss > most:
            why.append(
                f"loses {100 * quality.loss:.2g} % at {quality.offered_mbps:.0f} Mb/s (at most {100 * most:g} %)"
            )
        if why:
            bad[direction] = f"{direction}: {', '.join(why)}"
    common = tuple(culprits(shares, bad))
    lines = (
        f"{line}; {_of(direction, common)}" if _of(direction, common) else line
        for direction, line in bad.items()
    )
    return Quality(shares, tuple(lines), reference, count, frozenset(bad))


def culprits(measured: Collection[Direction], bad: Collection[Direction]) -> Iterator[HostName]:
    """Hosts whose several links are all bad, in one direction or the other, while others are
    good.
    """
    for host in sorted({p.host for d in bad for p in (d.sender, d.receiver)}):
        out = [d for d in measured if d.sender.host == host]
        into = [d for d in measured if d.receiver.host == host]
        if any(len(side) > 1 and all(d in bad for d in side) for side in (out, into)) and len(
            bad
        ) < len(measured):
            yield host


def _of(direction: Direction, hosts: Collection[HostName]) -> str:
    named = [h for h in (direction.sender.host, direction.receiver.host) if h in hosts]
    return f"as all of {named[0]}'s: check {named[0]}" if named else ""


def cost(links: Sequence[Link]) -> str:
    """What qualifying these links will take, in words."""
    count = len(batches(links))
    return f"{counted(len(links), 'link')} in {count} batches of at most {AT_ONCE}, about {count * (STEADY_S + 0.5):.1f} s"
