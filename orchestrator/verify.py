"""The verification ladder: what must be seen before a plan counts as up. Each rung looks at the world, none at what we remember.

map (the devices, read whole) · light (power along every circuit, where there are meters) · power (at the receivers, where the plan
says) · link (carrier at both ends) · identity (who answers at the other end of each fibre, and at which port) · forwarding
(all host pairs, at the planned hops).
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeAlias

from optics import Circuit, CrossConnect, HostName, HostPort, Link, LinkKind, SpectralRoute, TestbedError
from orchestrator.circuits import settings
from orchestrator.hosts import Hello, HostSide
from orchestrator.lab import Lab
from orchestrator.light import Reading, judge, measure
from orchestrator.lightpath import among, route, routes
from orchestrator.paths import lanes_of
from orchestrator.plan import Plan
from orchestrator.reports import Rung
from orchestrator.rules import hops
from orchestrator.session import Session
from orchestrator.target import short, sort_key
from orchestrator.transition import Held

PROBE_S = 2.0
"""Longest time (s) for all neighbours or all pairs to answer."""
ONE_WAY_S = 0.3
"""The same where links are one-way and only hearing counts; asked once more, for longer, if somebody heard nobody."""

Readings: TypeAlias = tuple[Reading, ...]
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
    """Every wanted setting is held, whatever its attenuation; foreign ones are counted, not judged."""
    missing = []
    for device, held in sorted(wanted.items()):
        there = routes(observed.get(device, ()))
        missing += [f"{device}: {short(s)} is missing" for s in sorted(held, key=sort_key) if route(s) not in there]
    total = sum(len(held) for held in wanted.values())
    foreign = sum(len(held) - len(among(held, wanted.get(d, ()))) for d, held in observed.items())
    others = f", {foreign} foreign" if foreign else ""
    kinds = {type(s) for held in wanted.values() for s in held}
    what = "cross-connects" if kinds <= {CrossConnect} else "spectral routes" if kinds == {SpectralRoute} else "settings"
    return not missing, f"{total - len(missing)}/{total} {what}{others}", tuple(missing)


async def check_light(
    session: Session, ways: Iterable[Circuit], held: Held | None = None, keep: Callable[[Readings], None] | None = None
) -> tuple[bool, str, tuple[str, ...]]:
    """Light leaves every last device towards its receiver; where it does not, say which side of which device lost it.

    held: what the devices hold, for the attenuation set there. keep: gets what was measured.
    """
    readings = await measure(session.devices, session.lab, ways, held)
    if keep is not None:
        keep(readings)
    return judge(readings, session.lab)


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
    ports = {*sends, *hears}
    # Nobody answers against the direction of a simplex link, so the hosts would wait their whole time for what cannot come.
    one_way = any(hears.get(port) != peer for port, peer in sends.items())
    found = await hosts.neighbours(ports, timeout_s=ONE_WAY_S if one_way else PROBE_S)
    if one_way and any(port not in found or found[port].hears != peer for port, peer in hears.items()):
        found = await hosts.neighbours(ports, timeout_s=PROBE_S)
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


async def check_power(readings: Readings, target_dbm: float, tolerance_db: float) -> tuple[bool, str, tuple[str, ...]]:
    """Every circuit that is measured brings its receiver the planned power."""
    seen = [(r, r.out_dbm - target_dbm) for r in readings if r.out_dbm is not None]
    off = [f"{r.circuit}: {r.out_dbm:.1f} dBm, {error:+.1f} dB from the target" for r, error in seen if abs(error) > tolerance_db]
    unmetered = f", {len(readings) - len(seen)} without a meter" if len(seen) < len(readings) else ""
    words = f"{len(seen) - len(off)}/{len(seen)} circuits within {tolerance_db:g} dB of {target_dbm:g} dBm{unmetered}"
    return not off, words, tuple(sorted(off))


async def ladder(
    session: Session,
    plan: Plan,
    links: tuple[Link, ...],
    ways: tuple[Circuit, ...],
    observed: Held,
    hellos: Mapping[HostName, Hello],
    *,
    keep: Callable[[Readings], None] | None = None,
    power: bool = True,
) -> tuple[Rung, ...]:
    """Climb every rung the plan asks for; each is climbed whatever the lower ones said, because together they localise a fault.

    ways: the circuits of `links`, by the ways they were given. keep: gets the power that was measured. power: judge it against
    the plan's target, where there is one.
    """
    lab = session.lab
    measured: list[Reading] = []

    def note(readings: Readings) -> None:
        measured.extend(readings)
        if keep is not None:
            keep(readings)

    rungs = [
        await rung("map", lambda: check_map(observed, settings(ways))),
        await rung("light", lambda: check_light(session, ways, observed, note)),
        await rung("link", lambda: check_link(hellos, links)),
    ]
    target_dbm, tolerance_db = plan.acceptance.target_dbm, plan.acceptance.tolerance_db
    if power and target_dbm is not None:
        rungs.insert(2, await rung("power", lambda: check_power(tuple(measured), target_dbm, tolerance_db)))
    if plan.acceptance.neighbours:
        rungs.append(await rung("identity", lambda: check_identity(session.hosts, links)))
    if plan.acceptance.all_pairs:
        rungs.append(await rung("forwarding", lambda: check_forwarding(session.hosts, plan, links, lab)))
    return tuple(rungs)
