"""Verdicts on packet switches, circuits, cables and links. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from optics import HostPort
from optics.plain import counted
from orchestrator.verify import carried
from orchestrator.verify.badlinks import bad, cable, common
from orchestrator.verify.case import CABLES, LIKELY, SURE, WEAK, Case, dead, move, top, wire_text
from orchestrator.verify.signals import PlannedLink, Verdict


def dead_segments(case: Case) -> Iterator[Verdict]:
    """A packet switch, or all those of a segment, at which nothing arrives at any port whose host
    answers, of two or more.
    """
    s = case.signals
    segments: dict[str, dict[str, set[HostPort]]] = {}
    for wire in s.wires:
        for port, switch in zip(wire.ports, wire.switches, strict=True):
            if wire.segment:
                segments.setdefault(wire.segment, {}).setdefault(switch or wire.segment, set()).add(
                    port
                )
    whole = {
        name: set[HostPort]().union(*switches.values())
        for name, switches in segments.items()
        if len(switches) > 1
    }
    each = {switch: at for switches in segments.values() for switch, at in switches.items()}
    for name, at in (*sorted(whole.items()), *sorted(each.items())):
        ports = sorted(at - case.cut)  # not again those of a segment that is dead as a whole
        asked = [port for port in ports if port.host not in s.silent and port in s.carriers]
        lost = [port for port in asked if dead(port, s)]
        if len(asked) < 2 or len(lost) < len(asked):
            continue
        if name in whole and any(segments[name][switch] >= {*asked} for switch in segments[name]):
            continue  # nothing is known of its other switches
        dark = sum(s.carriers.get(port) is False for port in lost)
        case.cut |= set(ports)
        case.explained = True
        how = f"{dark} have no carrier" if dark else "they have carrier, and no frame arrives"
        yield Verdict(
            f"segment {name}",
            "dead-segment",
            (
                f"nothing arrives at any of the {len(asked)} ports of {name} whose hosts answer: {how}",
            ),
            SURE if dark == len(lost) or len(asked) > 2 else LIKELY,
            CABLES,
        )


def dead_cables(case: Case) -> Iterator[Verdict]:
    """A port at a packet switch at which nothing arrives: its cable, whatever links it carries."""
    s = case.signals
    cables = (
        (port, wire.segment, at)
        for wire in s.wires
        if wire.segment
        for port, at in zip(wire.ports, wire.switches, strict=True)
    )
    switches = {port: (segment, at) for port, segment, at in cables}
    for port, (segment, switch) in sorted(switches.items()):
        if (
            port in case.cut
            or port.host in case.ended
            or port.host in s.silent
            or not dead(port, s)
        ):
            continue
        case.cut.add(port)
        case.explained = True
        dark = s.carriers.get(port) is False
        why = (
            f"{port} has no carrier" if dark else f"{port} has carrier, and no frame arrives there"
        )
        served = sum(
            at == (segment, switch) and s.carriers.get(p) is True and not dead(p, s)
            for p, at in switches.items()
        )
        kind, count = (
            "dark-circuit" if dark else "lossy-link",
            sum(port in wire.ports for wire in s.wires),
        )
        more = f"{switch or segment} serves {served} other ports; the cable carries {counted(count, 'planned link')}"
        yield Verdict(f"cable {port} - {switch or segment}", kind, (why, more), LIKELY, CABLES)


def dark_planned_links(case: Case) -> Iterator[Verdict]:
    """A planned link without light at a port whose far host lives; the place by the meters and the
    devices' maps.
    """
    s = case.signals
    for wire in s.wires:
        if (
            wire.segment
            or {port.host for port in wire.ports} & case.ended
            or set(wire.ports) & case.cut
        ):
            continue
        dark = [port for port in wire.receivers if s.carriers.get(port) is False]
        if not dark:
            continue
        case.cut |= set(wire.ports)
        case.explained = True
        evidence = [
            f"{' and '.join(map(str, dark))} {'has' if len(dark) == 1 else 'have'} no carrier"
        ]
        ours = {
            name: path
            for name, path in wire.circuits.items()
            if any(name.endswith(f"->{port}") for port in dark)
        } or wire.circuits
        removed = [setting for name in ours for setting in s.missing.get(name, ())]
        places = [f"{name}: {s.lost[name]}" for name in ours if name in s.lost]
        if removed:
            evidence.append(f"the device does not hold {', '.join(removed)}")
            yield Verdict(
                f"circuit {removed[0]}", "dark-circuit", tuple(evidence), SURE, "testbed restore"
            )
            continue
        evidence += places
        path = next((ours[name] for name in ours if name in s.lost), next(iter(ours.values()), ()))
        at = next(
            (
                setting
                for setting in path
                if any(setting.partition(":")[0] + ":" in place for place in places)
            ),
            "",
        )
        named = at or (path[0] if path else "")
        silent = [device for setting in path if (device := setting.partition(":")[0]) in s.silent]
        evidence += [
            f"{device} does not answer: {s.silent[device].splitlines()[0]}"
            for device in dict.fromkeys(silent)
        ]
        yield Verdict(
            f"circuit {named}" if named else f"link {wire_text(wire)}",
            "dark-circuit",
            (*evidence, f"it carries {wire_text(wire)}"),
            SURE if places else LIKELY,
            move(wire, dark[0], s),
        )


def crossed_fibres(case: Case) -> Iterator[Verdict]:
    """Links whose ends receive each other's light: two fibres are exchanged, at one end of both
    links or at the other.
    """
    s = case.signals
    at = {port: wire for wire in s.wires if not wire.segment for port in wire.ports}
    wrong = {
        port: other
        for port, other in s.strangers.items()
        if port in at and not set(at[port].ports) & case.cut
    }
    for port in sorted(wrong):
        if set(at[port].ports) & case.cut:
            continue
        group = {port}
        while more := {
            p
            for p in wrong
            if p not in group and any(p in at[q].ports or _joined(p, q, wrong, at) for q in group)
        }:
            group |= more
        links = sorted(
            {wire_text(at[p]) for p in group}
            | {wire_text(at[wrong[p]]) for p in group if wrong[p] in at}
        )
        case.cut |= {end for p in group for end in at[p].ports}
        case.explained = True
        evidence = tuple(
            f"{p} receives {wrong[p]}, planned is {_far_end(p, at)}" for p in sorted(group)
        )
        name = f"link {links[0]}" if len(links) == 1 else f"links {' and '.join(links)}"
        yield Verdict(name, "crossed-fibres", evidence, SURE if len(group) > 1 else LIKELY, CABLES)


def _far_end(port: HostPort, at: Mapping[HostPort, PlannedLink]) -> HostPort:
    a, b = at[port].ports
    return b if port == a else a


def _joined(
    one: HostPort,
    other: HostPort,
    wrong: Mapping[HostPort, HostPort],
    at: Mapping[HostPort, PlannedLink],
) -> bool:
    """Whether one of two ports receives what belongs to the link of the other."""
    return wrong[one] in at[other].ports or wrong[other] in at[one].ports


def carried_links(case: Case) -> Iterator[Verdict]:
    """A link that the job's own traffic shows to be slow or lossy; of several, measured traffic has
    to tell.
    """
    s = case.signals
    if s.state != "running":
        return
    links = {
        port: wire for wire in s.wires for port in wire.ports if not set(wire.ports) & case.cut
    }
    held_up = case.pace.slow or case.waits or case.slowing
    found = [("slow-link", d, why) for d, why in carried.slow(s) if held_up and not case.explained]
    found += [("lossy-link", d, why) for d, why in carried.lossy(s)]
    named = {wire_text(links[d.sender]) for _, d, _ in found if d.sender in links}
    if len(named) != 1:
        return
    case.explained = True
    kind, direction, _ = next((one for one in found if one[0] == "lossy-link"), found[0])
    wire = links[direction.sender]
    case.cut |= set(wire.ports)
    evidence = (*(why for _, _, why in found), case.pace.message)
    yield Verdict(f"link {wire_text(wire)}", kind, evidence, LIKELY, move(wire, wire.link.a, s))


def bad_links(case: Case) -> Iterator[Verdict]:
    """Links whose traffic is slow, lossy, or does not arrive although both ends have carrier."""
    s = case.signals
    for wire in s.wires:
        deaf = [port for port in wire.receivers if port in (s.deaf or ()) and port not in case.cut]
        if (
            not deaf
            or wire.segment
            or {port.host for port in wire.ports} & (case.ended | set(s.silent))
        ):
            continue
        case.cut |= set(wire.ports)
        case.explained = True
        text = f"{' and '.join(map(str, deaf))} {'has' if len(deaf) == 1 else 'have'} carrier, and no signed frame arrives there"
        yield Verdict(
            f"link {wire_text(wire)}", "lossy-link", (text,), LIKELY, move(wire, deaf[0], s)
        )
    found = [
        b
        for b in bad(s)
        if not set(b.wire.ports) & case.cut and not {p.host for p in b.wire.ports} & case.ended
    ]
    slow = (case.pace.slow or case.waits) and not case.explained
    if not found or (
        s.state == "running" and not slow and all(b.kind == "slow-link" for b in found)
    ):
        return
    if (port := cable(s, found)) is not None:
        case.explained = True
        wire = next(wire for wire in s.wires if port in wire.ports)
        at = wire.switches[wire.ports.index(port)] or wire.segment
        evidence = (
            f"all links over the cable of {port} that were measured are bad, others are not",
            *found[0].evidence,
        )
        yield Verdict(f"cable {port} - {at}", found[0].kind, evidence, LIKELY, CABLES)
        return
    if (host := common(s, found)) is not None:
        case.explained = True
        evidence = (
            f"all links of {host} that were measured are bad in the same direction, others are not",
            *found[0].evidence,
        )
        yield Verdict(f"host {host}", "busy-host", evidence, WEAK, top(host))
        return
    for one in found:
        effect = (case.pace.message,) if s.state == "running" else ()
        sure = SURE if one.weight >= 2 and (slow or s.state != "running") else LIKELY
        yield Verdict(
            f"link {wire_text(one.wire)}",
            one.kind,
            (*one.evidence, *effect),
            sure,
            move(one.wire, one.wire.link.a, s),
        )
    case.explained = True
