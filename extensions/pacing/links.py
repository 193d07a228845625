"""Which links a job sends over, and how much on each: from its plan, its routes and its rings.
Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from optics import HostName, HostPort, Link
from optics.plan import Job, Plan, ring_steps
from orchestrator.fabric.next_hops import follow, lanes_of, next_hops
from orchestrator.inventory.lab import Lab

Flow = tuple[HostName, HostName, int, float]
"""From, to, over which lane, how many bytes in an iteration (of a job without declared traffic:
shares).
"""


@dataclass(frozen=True, slots=True)
class Use:
    """What a job sends: at each host port that sends, and of that over each limit of packet
    switches (ports, uplinks), by name.

    mbps: of each limit. declared: whether these are bytes of an iteration; else they are shares of
    what is measured.
    """

    sent: Mapping[HostPort, float]
    over: Mapping[str, Mapping[HostPort, float]]
    mbps: Mapping[str, float]
    declared: bool

    def bytes_over(self, limit: str, measured: Mapping[HostPort, float]) -> float:
        """Bytes of an iteration over a limit. measured: what each port sent in one."""
        return sum(
            measured.get(port, 0.0) * part / self.sent[port]
            for port, part in self.over[limit].items()
            if self.sent[port]
        )


def flows(job: Job, lanes: int) -> Iterator[Flow]:
    """Everything that one host sends another in an iteration. Ring k goes over lane k modulo their
    number, as in `hosts.launch`.
    """
    if job.traffic is None:
        rings = job.rings or (job.hosts,)
        for number, ring in enumerate(rings):
            yield from ((a, b, number % lanes, 1.0 / len(rings)) for a, b in ring_steps(ring))
        return
    lane = count()
    for group in job.traffic.groups:
        for send in group.schedule:
            part = (send.end - send.begin) * group.bytes / len(group.rings[0])
            yield send.src, send.dst, 0, part
            yield send.dst, send.src, 0, part
        for ring in () if group.schedule else group.rings:
            over, each = (
                next(lane) % lanes,
                2 * (len(ring) - 1) / len(ring) * group.bytes / len(group.rings),
            )
            yield from ((a, b, over, each) for a, b in ring_steps(ring))
    for transfer in job.traffic.transfers:
        yield from ((a, b, transfer.lane, float(transfer.bytes)) for a, b in transfer.steps)


def use(plan: Plan, links: Sequence[Link], lab: Lab) -> Use | None:
    """What the plan's job sends where; None where it has no job. links: those that are up."""
    if plan.job is None:
        return None
    lanes = lanes_of(lab)
    chosen = next_hops(links, lanes, plan.routes, plan.rings)
    sent: Counter[HostPort] = Counter()
    over: dict[str, Counter[HostPort]] = {}
    rates: dict[str, float] = {}
    for source, target, lane, size in flows(plan.job, lanes):
        for hop in follow(chosen, lab, source, target, lane):
            sent[hop.out] += size  # type: ignore[assignment]
            segment = lab.segment_at.get(hop.out)
            # a circuit is one owner's
            for name, mbps in (
                () if segment is None else segment.limits(hop.out.host, hop.into.host)
            ):
                rates[name] = mbps
                over.setdefault(name, Counter())[hop.out] += size  # type: ignore[assignment]
    return Use(sent, over, rates, plan.job.traffic is not None)
