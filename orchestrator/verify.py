"""The verification ladder: what must be seen before a plan counts as up. Each rung looks at the world, none at what we remember.

map (the devices, read whole) · light (power at the receivers' side of each switch, where there is a meter) · link (carrier at both
ends) · identity (who answers at the other end of each fibre, and at which port) · forwarding (all host pairs, at the planned hops).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping

from drivers.api import PowerMeter
from optics import Circuit, HostName, HostPort, Link, LinkKind, Port, TestbedError
from orchestrator.circuits import circuits, settings
from orchestrator.hosts import Hello, HostSide
from orchestrator.lab import Lab
from orchestrator.paths import lanes_of
from orchestrator.plan import Plan
from orchestrator.reports import Rung
from orchestrator.rules import hops
from orchestrator.session import Session
from orchestrator.target import short
from orchestrator.transition import Held

LOS_DBM = -30.0
"""Below this a port counts as dark (the LOS threshold the emulated plant uses too; transceivers state their own)."""
PROBE_S = 2.0
"""Longest time (s) for all neighbours or all pairs to answer."""

Check = Callable[[], Awaitable[tuple[bool, str, tuple[str, ...]]]]


async def rung(name: str, check: Check) -> Rung:
    """Time one rung; an error of a device or host is a failed rung, with its words as evidence."""
    begin = time.monotonic()
    try:
        ok, detail, evidence = await check()
    except TestbedError as error:
        ok, detail, evidence = False, "could not be checked", tuple(str(error).splitlines())
    return Rung(name, ok, detail, time.monotonic() - begin, evidence)


async def check_map(observed: Held, wanted: Held) -> tuple[bool, str, tuple[str, ...]]:
    """Every wanted setting is held; foreign ones are counted, not judged."""
    missing = [
        f"{d}: {short(s)} is missing" for d, held in sorted(wanted.items()) for s in sorted(held - observed.get(d, frozenset()))
    ]
    total = sum(len(held) for held in wanted.values())
    foreign = sum(len(held - wanted.get(d, frozenset())) for d, held in observed.items())
    others = f", {foreign} foreign" if foreign else ""
    return not missing, f"{total - len(missing)}/{total} cross-connects{others}", tuple(missing)


async def check_light(session: Session, circuits: Iterable[Circuit]) -> tuple[bool, str, tuple[str, ...]]:
    """Light leaves every switch towards every receiver; where it does not, say whether it arrived at the switch."""
    by_device: dict[str, list[Circuit]] = {}
    for circuit in circuits:
        by_device.setdefault(circuit.path[-1].egress.device, []).append(circuit)
    evidence: list[str] = []
    margins: list[float] = []
    measured = total = 0

    async def measure(device: str, ways: list[Circuit]) -> None:
        nonlocal measured, total
        total += len(ways)
        meter = session.devices[device]
        if not isinstance(meter, PowerMeter):
            return
        ends = {port for way in ways for port in (way.path[-1].ingress, _entry(way), way.path[-1].egress)}
        power: Mapping[Port, float] = await meter.power(ends)
        if not power:
            return  # the model has no meters
        for way in ways:
            crossing = way.path[-1]
            cable = session.lab.fibres[way.transmitter]
            duplex = cable.enters == cable.leaves  # such a port's own label reads what leaves by it
            into, out = power.get(_entry(way) if duplex else crossing.ingress), power.get(crossing.egress)
            if out is not None and out >= LOS_DBM:
                measured += 1
                margins.append(out - LOS_DBM)
            elif into is None or into < LOS_DBM:
                evidence.append(f"{way}: no light reaches {crossing.ingress}: look at {way.transmitter} and its fibre")
            else:
                evidence.append(
                    f"{way}: {into:.1f} dBm enters {crossing.ingress} but nothing leaves {crossing.egress}: look at the switch"
                )

    await asyncio.gather(*(measure(d, ways) for d, ways in by_device.items()))
    if evidence:
        return False, f"{len(evidence)} of {total} circuits dark", tuple(sorted(evidence))
    unmetered = f", {total - measured} without a meter" if measured < total else ""
    return True, f"{measured}/{total} circuits lit{unmetered}" + (f", worst margin +{min(margins):.1f} dB" if margins else ""), ()


def _entry(way: Circuit) -> Port:
    """The entering side of a circuit's last ingress port, where it is one side of a duplex port (`PowerMeter.power`)."""
    port = way.path[-1].ingress
    return Port(port.device, f"{port.label}:in")


def receivers(links: Iterable[Link]) -> tuple[HostPort, ...]:
    """Host ports that the links bring light to."""
    return tuple(sorted({p for link in links for p in ((link.a, link.b) if link.kind is LinkKind.DUPLEX else (link.b,))}))


async def check_link(hellos: Mapping[HostName, Hello], links: Iterable[Link]) -> tuple[bool, str, tuple[str, ...]]:
    """Every planned receiver has carrier."""
    wanted = receivers(links)
    dark = [p for p in wanted if not _carrier(hellos, p)]
    return not dark, f"{len(wanted) - len(dark)}/{len(wanted)} ports up", tuple(f"{p} has no carrier" for p in dark)


def _carrier(hellos: Mapping[HostName, Hello], port: HostPort) -> bool:
    state = hellos[port.host].ports.get(port.number) if port.host in hellos else None
    return state is not None and state.carrier


async def check_identity(hosts: HostSide, links: Iterable[Link]) -> tuple[bool, str, tuple[str, ...]]:
    """The planned host and port answer at the other end of each link, each way; swapped fibres are named."""
    sends: dict[HostPort, HostPort] = {}
    for link in links:
        sends[link.a] = link.b
        if link.kind is LinkKind.DUPLEX:
            sends[link.b] = link.a
    hears = {receiver: sender for sender, receiver in sends.items()}
    found = await hosts.neighbours({*sends, *hears}, timeout_s=PROBE_S)
    wrong: list[str] = []
    for port, peer in sorted(hears.items()):
        seen = found[port].hears if port in found else None
        if seen is None:
            wrong.append(f"{port}: hears nobody; {peer} is planned")
        elif seen != peer:
            wrong.append(f"{port}: hears {seen}; {peer} is planned: fibres swapped, or another cross-connect")
    return not wrong, f"neighbours {len(hears) - len(wrong)}/{len(hears)}", tuple(wrong)


async def check_forwarding(hosts: HostSide, plan: Plan, links: tuple[Link, ...], lab: Lab) -> tuple[bool, str, tuple[str, ...]]:
    """Every ordered pair that the links join answers on every lane, at the planned number of hops."""
    planned = {lane: hops(links, lab, plan.routes, lane=lane) for lane in range(lanes_of(lab))}
    wrong: dict[tuple[HostName, HostName], str] = {}
    for lane, pairs in planned.items():  # one after the other: a job that runs meanwhile keeps room between the probes
        questions: dict[HostName, dict[str, int | None]] = {}
        for (source, target), count in pairs.items():
            questions.setdefault(source, {})[lab.hosts[target].lane_address(lane)] = count
        answers = await hosts.probe(questions, timeout_s=PROBE_S)
        for (source, target), count in sorted(pairs.items()):
            address = lab.hosts[target].lane_address(lane)
            seen = answers[source][address]
            if not seen.ok:
                why = f"{seen.hops} hops, planned {count}" if seen.hops not in (None, count) else seen.error or "no answer"
                wrong.setdefault((source, target), f"{source}->{target}: lane {lane} ({address}): {why}")
    total = len({pair for pairs in planned.values() for pair in pairs})
    return not wrong, f"pairs {total - len(wrong)}/{total} at planned hop counts", tuple(wrong.values())


def pairs_of(forwarding: Rung) -> tuple[int, int]:
    """The figures of the forwarding rung: pairs that answered as planned, pairs in all."""
    try:
        ok, total = forwarding.detail.split()[1].split("/")
        return int(ok), int(total)
    except (IndexError, ValueError):
        return 0, 0


async def ladder(
    session: Session, plan: Plan, links: tuple[Link, ...], observed: Held, hellos: Mapping[HostName, Hello]
) -> tuple[Rung, ...]:
    """Climb every rung the plan asks for; each is climbed whatever the lower ones said, because together they localise a fault."""
    lab = session.lab
    ways = circuits(links, lab)
    rungs = [
        await rung("map", lambda: check_map(observed, settings(ways))),
        await rung("light", lambda: check_light(session, ways)),
        await rung("link", lambda: check_link(hellos, links)),
    ]
    if plan.acceptance.neighbours:
        rungs.append(await rung("identity", lambda: check_identity(session.hosts, links)))
    if plan.acceptance.all_pairs:
        rungs.append(await rung("forwarding", lambda: check_forwarding(session.hosts, plan, links, lab)))
    return tuple(rungs)
