"""Designs over packet switches: the segments of a method, the topology they form, what limits
traffic. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from fnmatch import fnmatchcase

from optics import HostName, Infeasible
from optics.plain import did_you_mean, summary
from orchestrator.fabric.next_hops import Hop
from orchestrator.inventory.lab import Lab
from orchestrator.inventory.segments import Segment
from planner.model.shape import Ring, Shape
from planner.predict.iteration import FlowPath, Shared
from planner.topology.methods import Found, Wanted
from planner.topology.topofinder import BASE

KINDS: Mapping[str, tuple[str, Callable[[Segment], bool]]] = {
    "ideal": ("a packet switch without racks", lambda segment: not segment.racks),
    "fat-tree": (
        "racks whose uplinks carry all that their hosts send",
        lambda segment: bool(segment.racks) and segment.full,
    ),
    "oversubscribed": (
        "racks whose uplinks carry less than their hosts send",
        lambda segment: not segment.full,
    ),
    "electrical": ("the packet switches named", lambda segment: True),
}
"""The methods over packet switches: what each needs, in words, and whether a segment qualifies."""


def find_electrical(lab: Lab, hosts: Sequence[HostName], wanted: Wanted) -> list[Found]:
    """The topology of a method's segments. Raises: Infeasible - the lab has none, or none that
    connects these hosts.
    """
    chosen = _chosen(lab, hosts, wanted)
    names = ", ".join(segment.name for segment in chosen)
    members = tuple(
        (segment.name, tuple(host for host in hosts if host in segment.ports)) for segment in chosen
    )
    rank = {host: number for number, host in enumerate(hosts)}
    every = [
        [(rank[link.a.host], rank[link.b.host]) for link in segment.links(hosts)]
        for segment in chosen
    ]
    if not any(every):
        raise Infeasible(
            f"{names or ', '.join(wanted.segments)}: no two of these {len(hosts)} hosts",
            hint="name other segments",
        )
    _joined(chosen, hosts, lab)
    degree = max(sum(host in segment.ports for segment in chosen) for host in hosts)
    why = tuple(_text(segment, hosts) for segment in chosen)
    rings: list[Ring] = []
    if all(host in segment.ports for segment in chosen for host in hosts):
        for number, segment in enumerate(chosen):
            order = tuple(
                sorted(rank.values(), key=lambda number: (segment.rack(hosts[number]), number))
            )
            along = {
                (min(step), max(step)) for step in zip(order, order[1:] + order[:1], strict=True)
            }
            every[number] = [pair for pair in every[number] if (min(pair), max(pair)) not in along]
            rings.append(Ring(BASE, order))
    shape = Shape(
        len(hosts), degree, True, tuple(rings), tuple(pair for pairs in every for pair in pairs)
    )
    return [Found(shape, f"{wanted.method} over {names}", why, members)]


def _chosen(lab: Lab, hosts: Sequence[HostName], wanted: Wanted) -> list[Segment]:
    needs, fits = KINDS[wanted.method]
    known, several = lab.segments, wanted.method == "electrical"
    if several and not wanted.segments:
        hint = (
            f"--segment {next(iter(known))}: {summary(known, 'segment')}"
            if known
            else _make(wanted)
        )
        raise Infeasible(
            "no packet switch is named" if known else "the lab has no packet switches", hint=hint
        )
    found: dict[str, Segment] = {}
    for pattern in wanted.segments:
        named = {name: segment for name, segment in known.items() if fnmatchcase(name, pattern)}
        if not named:
            listed = summary(known, "segment") if known else "it has none"
            raise Infeasible(
                f"segment {pattern} is not in the lab ({listed}){did_you_mean(pattern, known)}",
                hint=_make(wanted),
            )
        found |= named
    if several:
        return [
            segment
            for segment in found.values()
            if sum(host in segment.ports for host in hosts) > 1
        ]
    for segment in found.values():
        if not fits(segment):
            text = f"segment {segment} is not {wanted.method}: that is {needs}"
            raise Infeasible(text, hint=f"testbed design electrical --segment {segment.name}")
    fitting = [
        s for s in (found or known).values() if fits(s) and all(host in s.ports for host in hosts)
    ]
    if not fitting:
        have = f"; it has {', '.join(map(str, known.values()))}" if known else ""
        raise Infeasible(
            f"no segment of the lab joins these {len(hosts)} hosts by {needs}{have}",
            hint=_make(wanted),
        )
    return fitting[:1]


def _joined(chosen: Sequence[Segment], hosts: Sequence[HostName], lab: Lab) -> None:
    """Raises: Infeasible - these switches do not connect all of the hosts."""
    reached, before = {hosts[0]}, 0
    while len(reached) > before:
        before = len(reached)
        reached |= {
            host
            for segment in chosen
            if reached & segment.ports.keys()
            for host in hosts
            if host in segment.ports
        }
    if lost := [host for host in hosts if host not in reached]:
        names = [segment.name for segment in chosen]
        text = f"{', '.join(names)} {'does' if len(names) == 1 else 'do'} not join {hosts[0]} and {', '.join(lost[:4])}"
        further = [
            name
            for name, one in lab.segments.items()
            if name not in names and sum(host in one.ports for host in hosts) > 1
        ]
        hint = (
            f"name further segments: {summary(further, 'segment')}"
            if further
            else "design for hosts that they join: --hosts"
        )
        raise Infeasible(text + (", ..." if len(lost) > 4 else ""), hint=hint)


def _make(wanted: Wanted) -> str:
    """The command that creates such a segment on the emulated lab."""
    kind = {"oversubscribed": "oversubscribed:4", "electrical": "ideal"}.get(
        wanted.method, wanted.method
    )
    return f"list it in fibres.yml; an emulated lab has one with: python -m emulators.generate --electrical {kind} --out DIR"


def _text(segment: Segment, hosts: Sequence[HostName]) -> str:
    """A segment's rates for these hosts, in words."""
    joined = [host for host in hosts if host in segment.ports]
    text = f"{segment.name} joins {len(joined)} hosts at {segment.link_mbps:g} Mb/s each"
    if not segment.racks:
        return text
    racks = [rack for rack in segment.racks if set(rack.hosts) & set(joined)]
    worst = min(rack.uplink_mbps / len(rack.hosts) for rack in racks)
    return f"{text}, in {len(racks)} racks whose uplinks carry {worst:g} Mb/s or more a host"


def path_limits(path: Sequence[Hop], lab: Lab, link_mbps: float, lane: int) -> FlowPath:
    """What limits a lane's traffic on a path: an optical hop is one link; over a switch both ports,
    what the sender's partition may use of its port, and the uplinks between racks.

    link_mbps: the rate of a link, which the speeds are relative to.
    """
    found: list[Hashable] = []
    for hop in path:
        segment = lab.segment_at.get(hop.out)
        if segment is None:
            found.append(hop)
            continue
        found.append(Shared(hop, segment.link_mbps / link_mbps))
        limits = [*segment.limits(hop.out.host, hop.into.host)]
        part, share = lab.hosts[hop.out.host].share_of(lane)
        if share < 1:
            limits.append((f"{hop.out} of {part}", share * segment.link_mbps))
        found += [Shared(name, mbps / link_mbps, counted=False) for name, mbps in limits]
    return tuple(found)
