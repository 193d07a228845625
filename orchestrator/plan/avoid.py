"""`--avoid`: ports, fibres, trunks and devices that a plan must not use, and the spare ports its
links move to. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from optics import HostName, HostPort, Infeasible, Link, Port, Usage
from optics.plain import did_you_mean, summary
from optics.plan import Avoid, LinkEnd, Plan, WantedLink, host_of
from orchestrator.inventory.lab import Lab
from orchestrator.inventory.port_names import host_port, no_fibre
from orchestrator.plan.ports import assign_ports


def avoiding(plan: Plan, tokens: Sequence[str], lab: Lab) -> Plan:
    """The plan without what `tokens` name. Raises: Usage - as `read_avoid`."""
    if not tokens:
        return plan
    avoid = read_avoid(tokens, lab)
    note = f"avoids {', '.join(avoid.message)}; an up without --avoid uses them again"
    return replace(plan, avoid=avoid, warnings=(*plan.warnings, note))


def read_avoid(tokens: Sequence[str], lab: Lab) -> Avoid:
    """What the operator wants to avoid: a host port (gpu03:p1), a device port (ocs1:17), a fibre, a
    trunk or a device.

    Raises: Usage - listing all names that are not in the lab.
    """
    problems: list[str] = []
    ports: set[HostPort] = set()
    trunks: set[str] = set()
    for word in tokens:
        if not _named(word, lab, ports, trunks):
            problems.append(f"--avoid {word}: {_unknown(word, lab)}")
    if problems:
        raise Usage(
            "\n".join(problems),
            hint="name a host port (gpu03:p1), a device port (ocs1:17), a fibre, a trunk or a device",
        )
    usual = tuple(str(host_port(word, lab) or word) for word in tokens)
    return Avoid(usual, frozenset(ports), frozenset(trunks))


def _named(word: str, lab: Lab, ports: set[HostPort], trunks: set[str]) -> bool:
    """Add what `word` names; False if it names nothing."""
    port = host_port(word, lab)
    if port is not None and port in lab.fibres:
        ports.add(port)
        return True
    device, _, label = word.partition(":")
    at = Port(device, label)
    existing = {
        p for p, f in lab.fibres.items() if word in (f.name, f.device) or at in (f.enters, f.leaves)
    }
    named_trunks = {
        t.name
        for t in lab.trunks
        if word in (t.name, t.start.device, t.end.device) or at in (t.start, t.end)
    }
    ports |= existing
    trunks |= named_trunks
    return bool(existing or named_trunks)


def _unknown(word: str, lab: Lab) -> str:
    host, colon, label = word.partition(":")
    if host in lab.hosts:
        if not colon:
            return f"{host} is a host; take it out of the plan"
        return f"no fibre is attached to {host}:{label} (there are {', '.join(f'p{p.number}' for p in lab.fibres if p.host == host)})"
    if host in lab.devices:
        return no_fibre(word, lab) if colon else f"no fibre of the inventory ends at {word}"
    known = [
        *map(str, lab.fibres),
        *(f.name for f in lab.fibres.values()),
        *(t.name for t in lab.trunks),
        *lab.devices,
    ]
    return f"nothing in the lab has that name ({summary(lab.devices, 'device')}){did_you_mean(word, known)}"


def lab_without_trunks(lab: Lab, avoid: Avoid) -> Lab:
    """The lab without the trunks to avoid."""
    return (
        replace(lab, trunks=tuple(t for t in lab.trunks if t.name not in avoid.trunks))
        if avoid.trunks
        else lab
    )


def choose_ports(
    wanted: Iterable[WantedLink],
    lab: Lab,
    live: Collection[Link],
    foreign: Collection[HostPort],
    avoid: Avoid,
) -> tuple[Link, ...]:
    """The links with their ports, as `ports.assign_ports`, without the ports to avoid.

    A link that names one moves to a spare port of the same host; its other end moves too if there
    is no other solution. Raises: Infeasible - naming what is in the way and the nearest
    alternative.
    """
    wanted = tuple(wanted)
    if not avoid.ports:
        return assign_ports(wanted, lab, live, foreign)
    taken = frozenset(foreign) | avoid.ports
    hit = [index for index, link in enumerate(wanted) if {link.a, link.b} & avoid.ports]
    for freed in (_freed(wanted, hit, avoid.ports), _freed(wanted, hit, None)):
        try:
            return assign_ports(freed, lab, live, taken)
        except Infeasible as error:
            why = error
    if not hit:
        raise Infeasible(f"without {', '.join(avoid.message)}: {why}", hint=why.hint)
    lines = [_blocking(wanted[index], wanted, lab, taken, avoid) for index in hit]
    raise Infeasible("\n".join(lines), hint=_nearest(wanted, hit, lab, live, taken))


def _freed(
    wanted: Sequence[WantedLink], which: Collection[int], ports: Collection[HostPort] | None
) -> list[WantedLink]:
    """The links with some named ends left open: those at `ports`, or (None) both ends of each."""

    def open_(end: LinkEnd) -> LinkEnd:
        return host_of(end) if ports is None or end in ports else end

    return [
        replace(link, a=open_(link.a), b=open_(link.b)) if index in which else link
        for index, link in enumerate(wanted)
    ]


def _blocking(
    link: WantedLink,
    wanted: Sequence[WantedLink],
    lab: Lab,
    taken: Collection[HostPort],
    avoid: Avoid,
) -> str:
    """Why a link cannot move: what each other port of its host is used for."""
    ends = [end for end in (link.a, link.b) if isinstance(end, HostPort)]
    named = next(end for end in ends if end in avoid.ports)
    peer = host_of(link.b if link.a == named else link.a)
    used = {
        end: other
        for other in wanted
        if other is not link
        for end in (other.a, other.b)
        if isinstance(end, HostPort)
    }

    def free(host: HostName) -> Iterator[HostPort]:
        return (p for p in lab.fibres if p.host == host and p not in used and p not in taken)

    meets = {lab.fibres[p].device for p in free(peer)}
    tokens = []
    for port in (p for p in lab.fibres if p.host == named.host and p != named):
        if port in avoid.ports:
            tokens.append(f"{port} is to be avoided too")
        elif port in used:
            tokens.append(f"{port} carries {used[port]}")
        elif port in taken:
            tokens.append(f"{port} carries a foreign circuit")
        elif (device := lab.fibres[port].device) not in meets:
            tokens.append(f"{port} is free, but {peer} has no free port at {device}")
        else:
            tokens.append(f"{port} is free, but another link needs it")
    return f"{link}: {named} is to be avoided, and {named.host} has no spare port that reaches {peer}: {'; '.join(tokens)}"


def _nearest(
    wanted: Sequence[WantedLink],
    hit: Sequence[int],
    lab: Lab,
    live: Collection[Link],
    taken: Collection[HostPort],
) -> str:
    """The smallest further change that would suffice: another link that moves too, or one that is
    removed.
    """
    hosts = {host for index in hit for host in wanted[index].hosts}
    near = [
        index for index, link in enumerate(wanted) if index not in hit and hosts & set(link.hosts)
    ]
    for index in near:
        if _fits(_freed(wanted, [*hit, index], None), lab, live, taken):
            return f"it would fit if {wanted[index]} moved too: leave its ports out of the plan (its hosts alone)"
    for index in near:
        if _fits(
            [link for at, link in enumerate(_freed(wanted, hit, None)) if at != index],
            lab,
            live,
            taken,
        ):
            return f"it would fit without {wanted[index]}: take that link out of the plan"
    lost = ", ".join(str(wanted[index]) for index in hit)
    return f"take {lost} out of the plan; meanwhile its traffic is rerouted by: testbed service start guard"


def _fits(
    wanted: Iterable[WantedLink], lab: Lab, live: Collection[Link], taken: Collection[HostPort]
) -> bool:
    try:
        assign_ports(wanted, lab, live, taken)
    except Infeasible:
        return False
    return True
