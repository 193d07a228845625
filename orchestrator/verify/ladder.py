"""The verification ladder: what must be observed before a plan counts as up. Each rung checks the
real lab, none the store.

map (the devices, read completely) · light (power along every circuit against the loss model, if
there are meters) · power (at the receivers, if the plan gives a target) · link (carrier and speed
at both ends) · identity (which port answers at the other end of each fibre) · forwarding (all host
pairs, at the planned hops). Two more put traffic on the links and are climbed on request:
qualification (`qualification.py`) and collective (`collective.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from optics import Circuit, CrossConnect, HostName, HostPort, Link, Setting, SpectralRoute
from optics.plan import Plan
from optics.values import short, sort_key
from orchestrator.fabric.cabling import explained, led, senders
from orchestrator.fabric.circuits import receivers, settings
from orchestrator.fabric.lightpath import Held, among, routes, without_attenuation
from orchestrator.hosts import Hello, Hosts
from orchestrator.inventory.lab import Lab
from orchestrator.session import Session
from orchestrator.verify.carriers import carriers, has_carrier, no_carrier, speeds
from orchestrator.verify.collective import MIN_SHARE as BUSBW_SHARE
from orchestrator.verify.collective import all_reduce
from orchestrator.verify.forwarding import Asked, check_forwarding
from orchestrator.verify.level import LEVELS, TRAFFIC, Check, Finding, check_level
from orchestrator.verify.losses import judge, weaker
from orchestrator.verify.power import LossDrift, Reading, measure
from orchestrator.verify.qualification import Direction, qualify
from orchestrator.verify.report import LevelResult

PROBE_S = 1.0
"""Longest time (s) for frames from all neighbours; deviations are checked again, at all ports, for
as long.
"""
CARRIER_S = 1.0
"""A planned port's carrier may be this late (s): hosts report it at once, and the wait ends when
all are up.
"""

Readings: TypeAlias = tuple[Reading, ...]


@dataclass(frozen=True, slots=True)
class Background:
    """Optional context that makes the rungs' reports more precise.

    owned: the owner's settings. whose: other owners' settings, and the owners in words. silent:
    devices and hosts that do not answer, with their errors. drifts: how circuits' losses changed
    since they were first measured. prewired: owned, and meant to be dark.
    """

    owned: Held | None = None
    whose: Mapping[Setting, str] = field(default_factory=dict)
    silent: Mapping[str, str] = field(default_factory=dict)
    drifts: Callable[[], Iterable[LossDrift]] = tuple
    prewired: Held = field(default_factory=dict)


async def check_map(
    observed: Held,
    wanted: Held,
    around: Background = Background(),
) -> Finding:
    """Every wanted setting is held, whatever its attenuation, and no owned one is left over;
    foreign ones are only listed.
    """
    wrong, notes, present_of_wanted, foreign = [], [], 0, 0
    total = sum(len(held) for held in wanted.values())
    owners = {without_attenuation(setting): text for setting, text in around.whose.items()}

    def whose(setting: Setting) -> str:
        known = owners.get(without_attenuation(setting))
        return f"belongs to {known}" if known else "of no owner this store knows"

    for device in sorted({*observed, *wanted}):
        goal = wanted.get(device, frozenset())
        if device not in observed:
            wrong.append(f"{device}: {around.silent.get(device, 'was not read')}")
            continue
        held = frozenset(observed[device])
        existing = routes(held)
        rest = sorted(held - among(held, goal), key=sort_key)
        owned = among(rest, (around.owned or {}).get(device, ()))
        for setting in sorted(goal, key=sort_key):
            if without_attenuation(setting) in existing:
                present_of_wanted += 1
                continue
            taken = next(
                (s for s in rest if {s.ingress, s.egress} & {setting.ingress, setting.egress}), None
            )
            instead = (
                f"; {short(taken)} is there instead, {'owned' if taken in owned else whose(taken)}"
                if taken
                else ""
            )
            wrong.append(f"{device}: {short(setting)} is missing{instead}")
        ahead = around.prewired.get(device, frozenset())
        wrong += [
            f"{device}: {short(s)} is owned and not in the plan"
            for s in rest
            if s in owned and s not in ahead
        ]
        notes += (
            [f"{device}: {len(ahead)} cross-connects are prewired and carry no light"]
            if ahead
            else []
        )
        foreign += len(rest) - len(owned)
        notes += [f"{device}: {short(s)} is foreign, {whose(s)}" for s in rest if s not in owned]
    others = f", {foreign} foreign" if foreign else ""
    kinds = {type(s) for held in wanted.values() for s in held}
    what = (
        "cross-connects"
        if kinds <= {CrossConnect}
        else "spectral routes"
        if kinds == {SpectralRoute}
        else "settings"
    )
    return Finding(
        not wrong, f"{present_of_wanted}/{total} {what}{others}", tuple(wrong), tuple(notes)
    )


async def check_light(
    session: Session,
    circuits: Iterable[Circuit],
) -> tuple[bool, str, tuple[str, ...]]:
    """Light leaves every last device towards its receiver; if not, name the side of the device
    where it is lost.
    """
    return judge(await measure(session.devices, session.lab, circuits), session.lab)


async def check_link(
    hellos: Mapping[HostName, Hello], links: Iterable[Link]
) -> tuple[bool, str, tuple[str, ...]]:
    """Every planned receiver has carrier, as its host last reported."""
    wanted = receivers(links)
    dark = [p for p in wanted if not has_carrier(hellos, p)]
    return (
        not dark,
        f"{len(wanted) - len(dark)}/{len(wanted)} ports up",
        tuple(f"{p} has no carrier" for p in dark),
    )


async def check_identity(
    hosts: Hosts,
    links: Iterable[Link],
    lab: Lab,
    held: Held,
    hellos: Mapping[HostName, Hello],
    silent: Mapping[str, str],
) -> Finding:
    """The planned host and port answer at the other end of each fibre, in each direction; swapped
    fibres are named. At a segment, any other port of it does: a packet switch forwards every port's
    frames to all others.

    Only planned ports are asked at first, and the wait ends once all have received frames.
    Deviations are checked again at every port of every host that answers: the other half of a swap
    may be at a port that the plan does not use.
    """
    links = tuple(links)
    planned = senders(link for link in links if not lab.electrical(link))
    switched = {
        port: lab.segment_at[port]
        for link in links
        if lab.electrical(link)
        for port in (link.a, link.b)
    }
    answering = {name for name, hello in hellos.items() if hello.installed and name not in silent}
    ports = {port for port in {*planned, *planned.values(), *switched} if port.host in answering}
    found = await hosts.measure.neighbours(
        ports, timeout_s=PROBE_S, expecting=[p for p in (*planned, *switched) if p in ports]
    )
    received = {port: found[port].receives if port in found else None for port in planned}
    misplaced = [
        f"{port}: receives {end.receives or 'nothing'}; the packet switch {segment.name} is planned there"
        for port, segment in sorted(switched.items(), key=lambda item: item[0])
        if (end := found.get(port)) is not None
        and (end.receives is None or lab.segment_at.get(end.receives) is not segment)
    ]
    lines: tuple[str, ...] = ()
    if any(received[port] != peer for port, peer in planned.items() if port in ports):
        everywhere = {port for port in lab.fibres if port.host in answering}
        wide = await hosts.measure.neighbours(everywhere, timeout_s=PROBE_S, expecting=everywhere)
        received |= {port: end.receives for port, end in wide.items()}
        lit = {port for port, end in wide.items() if end.carrier}
        lines = explained(
            {r: s for r, s in planned.items() if r in ports}, led(held, lab), received, lab, lit
        )
    mute = sorted({port.host for port in (*planned, *switched) if port.host not in answering})
    wrong = sum(received.get(port) != peer for port, peer in planned.items())
    wrong += len(misplaced) + sum(port not in found for port in switched)
    total = len(planned) + len(switched)
    unasked = tuple(f"{host}: does not answer, so what it receives is unknown" for host in mute)
    return Finding(not wrong, f"neighbours {total - wrong}/{total}", (*lines, *misplaced, *unasked))


async def check_power(readings: Readings, target_dbm: float, tolerance_db: float) -> Finding:
    """Every circuit that is measured brings its receiver the planned power."""
    seen = [(r, r.out_dbm - target_dbm) for r in readings if r.out_dbm is not None]
    off = [
        f"{r.circuit}: {r.out_dbm:.1f} dBm, {error:+.1f} dB from the target"
        for r, error in seen
        if abs(error) > tolerance_db
    ]
    unmetered = (
        f", {len(readings) - len(seen)} without a meter" if len(seen) < len(readings) else ""
    )
    text = f"{len(seen) - len(off)}/{len(seen)} circuits within {tolerance_db:g} dB of {target_dbm:g} dBm{unmetered}"
    return Finding(not off, text, tuple(sorted(off)))


class Ladder:
    """The rungs of one plan on one lab, to be climbed in any selection."""

    def __init__(
        self,
        session: Session,
        plan: Plan,
        links: tuple[Link, ...],
        circuits: tuple[Circuit, ...],
        observed: Held,
        hellos: Mapping[HostName, Hello],
        keep: Callable[[Readings], None] | None = None,
        around: Background = Background(),
    ) -> None:
        self.session, self.plan, self.links, self.circuits = session, plan, links, circuits
        self.observed, self.hellos, self.keep, self.around = observed, hellos, keep, around
        self.wanted = settings(circuits)
        self._readings: Readings | None = None
        self._rates: Mapping[Direction, float | None] | None = None

    @property
    def mute(self) -> tuple[HostName, ...]:
        """Hosts of the plan that cannot be asked."""
        needed = {p.host for link in self.links for p in (link.a, link.b)}
        answering = {
            name
            for name, hello in self.hellos.items()
            if hello.installed and name not in self.around.silent
        }
        return tuple(sorted(needed - answering))

    async def held(self) -> Held:
        """What the devices hold: as just read by the caller, the plan's other devices read now,
        completely.
        """
        missing = [
            name
            for name in self.wanted
            if name not in self.observed and name not in self.around.silent
        ]
        if missing:
            found = await asyncio.gather(*(self.session.devices[name].read() for name in missing))
            self.observed = {**self.observed, **dict(zip(missing, found, strict=True))}
        return self.observed

    async def readings(self) -> Readings:
        if self._readings is None:
            session, held = self.session, await self.held()
            self._readings = await measure(
                session.devices, session.lab, self.circuits, held, silent=self.around.silent
            )
            if self.keep is not None:
                self.keep(self._readings)
        return self._readings

    async def map(self) -> Finding:
        return await check_map(await self.held(), self.wanted, self.around)

    async def light(self) -> Finding:
        accept = self.plan.acceptance
        ok, text, evidence = judge(
            await self.readings(),
            self.session.lab,
            window_db=accept.light_window_db,
            max_loss_db=accept.max_loss_db,
        )
        return Finding(ok, text, evidence, weaker(self.around.drifts()))

    async def power(self) -> Finding:
        accept = self.plan.acceptance
        assert accept.target_dbm is not None
        return await check_power(await self.readings(), accept.target_dbm, accept.tolerance_db)

    async def link(self) -> Finding:
        wanted = receivers(self.links)
        asked = [port for port in wanted if port.host not in self.mute]
        up: Mapping[HostPort, bool] = {p: has_carrier(self.hellos, p) for p in asked}
        if not all(up.values()):
            up = await carriers(self.session.hosts, asked, CARRIER_S)
        dark = [port for port in asked if not up.get(port)]
        readings = await self.readings() if dark or self.mute else ()
        evidence = [
            no_carrier(port, readings, self.session.lab, self.around.silent) for port in dark
        ]
        evidence += [
            f"{host}: {self.around.silent.get(host, 'no agent runs there')}" for host in self.mute
        ]
        uneven = speeds(self.hellos, self.links)
        good = len(asked) - len(dark)
        return Finding(
            good == len(wanted) and not uneven,
            f"{good}/{len(wanted)} ports up",
            (*evidence, *uneven),
        )

    async def identity(self) -> Finding:
        hosts, silent = self.session.hosts, self.around.silent
        return await check_identity(
            hosts, self.links, self.session.lab, await self.held(), self.hellos, silent
        )

    async def forwarding(self) -> Finding:
        """Of a large lab some pairs, drawn by the plan and the generation of its routes: the same
        again until they change.
        """
        # others may have plans of others
        own = {p.host for link in self.links for p in (link.a, link.b)}
        generation = max(
            (hello.active or 0 for name, hello in self.hellos.items() if name in own), default=0
        )
        asked = Asked(self.session.bounds.pairs, f"{self.plan.sha256[:8]}-{generation}")
        return await check_forwarding(
            self.session.hosts, self.plan, self.links, self.session.lab, self.mute, asked
        )

    def asked_for(self) -> tuple[str, ...]:
        """The rungs that the plan asks for."""
        accept = self.plan.acceptance
        given = {
            "power": accept.target_dbm is not None,
            "identity": accept.neighbours,
            "forwarding": accept.all_pairs,
            "qualification": accept.min_link_share is not None or accept.max_link_loss is not None,
            "collective": accept.min_busbw_share is not None,
        }
        return tuple(name for name in LEVELS if given.get(name, True))

    async def qualification(self) -> Finding:
        found = await qualify(
            self.session.hosts, self.session.lab, self._asked_links(), self.plan.acceptance
        )
        self._rates = {d: q.mbps for d, q in found.by_direction.items()}
        bad = found.evidence + tuple(
            f"{host}: does not answer, so its links are not measured" for host in self.mute
        )
        return Finding(
            not bad,
            f"{found.message}, {found.batches} batch{'' if found.batches == 1 else 'es'}",
            bad,
            links=found.links,
        )

    def _asked_links(self) -> tuple[Link, ...]:
        """Links whose hosts can both be asked."""
        mute = set(self.mute)
        return tuple(link for link in self.links if not {link.a.host, link.b.host} & mute)

    async def collective(self) -> Finding:
        if self.mute:
            return Finding(
                False,
                "could not be checked",
                tuple(f"{host}: does not answer" for host in self.mute),
            )
        figures = await all_reduce(
            self.session.hosts, self.session.lab, self.plan, self.links, self._rates
        )
        least = self.plan.acceptance.min_busbw_share
        wanted = BUSBW_SHARE if least is None else least
        text = f"busbw {figures.busbw_mbps:.1f} of {figures.expected_mbps:.1f} MB/s expected ({100 * figures.share:.0f} %)"
        slow = f"slowest link {figures.slowest}, {figures.link_mbps:.0f} Mb/s; at least {100 * wanted:g} % is wanted"
        return Finding(
            figures.share >= wanted,
            text,
            () if figures.share >= wanted else (slow,),
            collective=figures,
        )

    async def run_levels(self, names: Iterable[str], busy: str = "") -> tuple[LevelResult, ...]:
        """Climb these rungs, bottom first; each regardless of the results below.

        busy: why no traffic may be put on the links; rungs that would are reported as skipped.
        """
        found: list[LevelResult] = []
        checks: Mapping[str, Check] = {
            "map": self.map,
            "light": self.light,
            "power": self.power,
            "link": self.link,
            "identity": self.identity,
            "forwarding": self.forwarding,
            "qualification": self.qualification,
            "collective": self.collective,
        }
        chosen = set(names)
        for name, check in checks.items():
            if name in chosen and name in TRAFFIC and busy:
                found.append(LevelResult(name, True, f"skipped: {busy}", code="SKIPPED"))
            elif name in chosen and name == "power" and self.plan.acceptance.target_dbm is None:
                found.append(
                    LevelResult(
                        name,
                        True,
                        "skipped: the plan gives no acceptance.target_dbm",
                        code="SKIPPED",
                    )
                )
            elif name in chosen:
                found.append(await check_level(name, check))
        return tuple(found)


async def ladder(
    session: Session,
    plan: Plan,
    links: tuple[Link, ...],
    circuits: tuple[Circuit, ...],
    observed: Held,
    hellos: Mapping[HostName, Hello],
    *,
    keep: Callable[[Readings], None] | None = None,
    power: bool = True,
    busy: str = "",
) -> tuple[LevelResult, ...]:
    """Climb every rung that the plan asks for; each regardless of the results below.

    circuits: those of `links`, on their stored paths. observed: what devices hold that were just
    read; the plan's others are read now. keep: receives the power readings. power: judge it against
    the plan's target, if any. busy: as `Ladder.run_levels`.
    """
    whole = Ladder(session, plan, links, circuits, observed, hellos, keep)
    return await whole.run_levels(
        (name for name in whole.asked_for() if name != "power" or power), busy
    )
