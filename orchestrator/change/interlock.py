"""What no command overrides: light or traffic that would change at a tagged-out place, and power
above a port's limit.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace

from drivers.api import CircuitSwitch, PowerMeter
from optics import (
    Change,
    Dbm,
    DeviceName,
    HostName,
    HostPort,
    Link,
    Port,
    Setting,
    SpectralRoute,
    Usage,
)
from optics.errors import Interlock
from orchestrator.fabric.lightpath import Held, LightMap, Trace
from orchestrator.inventory.lab import Lab
from orchestrator.store.tagouts import Place, Tagout, Tagouts, place_of

GLARE_HINT = "weaken the light, or correct max_input_dbm in devices.yml and tx_dbm in fibres.yml"


@dataclass(frozen=True, slots=True)
class Moves:
    """Where a change affects light, made or broken: at these ports of devices and hosts.

    made: the light paths it makes. light: all light paths afterwards.
    """

    ports: frozenset[Port]
    host_ports: frozenset[HostPort]
    made: tuple[Trace, ...]
    light: tuple[Trace, ...]

    def at(self, place: Place) -> bool:
        return bool(
            self.ports & place.ports
            or self.host_ports & place.host_ports
            or {p.device for p in self.ports} & place.devices
        )


def moves(before: Held, changes: Mapping[DeviceName, Change], lab: Lab) -> Moves:
    """Compare all light paths before and after `changes`; a setting that carries no known light
    affects its own ports.
    """
    held = {d: frozenset(settings) for d, settings in before.items()}
    left = {d: held.get(d, c.remove) | c.remove for d, c in changes.items()}
    old = set(LightMap({**held, **left}, lab).traces())
    new = set(
        LightMap(
            {**held, **{d: (left[d] - c.remove) | c.add for d, c in changes.items()}}, lab
        ).traces()
    )
    touched = [setting for c in changes.values() for setting in c.remove ^ c.add]
    touched += [setting for trace in old ^ new for setting in trace.path]
    ends = {p for trace in old ^ new for p in (trace.transmitter, trace.receiver) if p is not None}
    ports = frozenset(port for setting in touched for port in (setting.ingress, setting.egress))
    return Moves(ports, frozenset(ends), tuple(new - old), tuple(new))


def rerouted(
    before: Iterable[Link],
    after: Iterable[Link],
    lab: Lab,
    following: Container[HostName] | None = None,
) -> frozenset[HostPort]:
    """The packet-switch ports whose hosts start or stop sending over a link. following: hosts that
    send over links of `before` now, None: all."""

    def sending(links: Iterable[Link]) -> set[tuple[HostPort, HostPort]]:
        return {
            ends
            for link in links
            if lab.electrical(link)
            for ends in ((link.a, link.b), (link.b, link.a))
        }

    now = {ends for ends in sending(before) if following is None or ends[0].host in following}
    return frozenset(out for out, _ in now ^ sending(after))


def tagged(found: Moves, tags: Iterable[Tagout], lab: Lab) -> list[str]:
    """The tag-outs that forbid it, in words. One whose target is not in this inventory any more
    forbids everything.
    """
    lines = []
    for tag in tags:
        try:
            place = place_of(tag.subject, lab)
        except Usage as error:
            lines.append(f"{tag}; and the inventory does not say where that is: {error}")
            continue
        if found.at(place):
            lines.append(str(tag))
    return lines


@dataclass(frozen=True, slots=True)
class Glare:
    """How much light would enter a port with a limit: dBm, None if unknown. how: the origin of the
    number.
    """

    port: Port
    limit: Dbm
    power: Dbm | None
    how: str

    def __str__(self) -> str:
        if self.power is None:
            return f"{self.port} tolerates {self.limit:g} dBm and it is unknown how much light would enter it: {self.how}"
        return f"{self.port} tolerates {self.limit:g} dBm and {self.power:.1f} dBm would enter it ({self.how})"


def glares(found: Moves, measured: Mapping[Port, Dbm | None], lab: Lab) -> list[Glare]:
    """Every ingress whose limit the changed light exceeds, or may exceed. measured: meter readings
    of light that is there now.

    The known losses are subtracted from the measured power of a port, or from a transmitter's.
    """
    arriving: dict[Port, dict[object, tuple[Dbm | None, str]]] = {}
    for trace in found.light:
        fibre, entry = lab.fibres[trace.transmitter], trace.path[0].ingress
        source: object = trace.transmitter
        power = None if fibre.tx_dbm is None else fibre.tx_dbm - fibre.loss_db
        how = (
            f"{trace.transmitter} sends {fibre.tx_dbm:g} dBm"
            if fibre.tx_dbm is not None
            else f"fibre {fibre.name} has no tx_dbm"
        )
        if entry in measured:  # all that enters there together, from every source
            seen = measured[entry]
            source, power, how = entry, -math.inf if seen is None else seen, f"measured at {entry}"
        for setting in trace.path:
            existing = arriving.setdefault(setting.ingress, {})
            if power is None or (before := existing.get(source, (-math.inf, ""))[0]) is None:
                existing[source] = None, how
                continue
            existing[source] = max(power, before), how
            trunk = lab.onward.get(setting.egress)
            power -= lab.pass_loss_db(setting) + (trunk.loss_db if trunk else 0.0)
            power -= setting.attenuation_db if isinstance(setting, SpectralRoute) else 0.0
    lines = []
    for port in sorted(passed(found.made)):
        limit, sources = lab.max_input_dbm(port), list(arriving[port].values())
        if limit is None:
            continue
        known = [power for power, _ in sources if power is not None]
        total = _sum(known) if len(known) == len(sources) else None
        if total is None or total > limit:
            lines.append(
                Glare(port, limit, total, "; ".join(dict.fromkeys(text for _, text in sources)))
            )
    return lines


def passed(traces: Iterable[Trace]) -> frozenset[Port]:
    """Every port where this light enters a device."""
    return frozenset(setting.ingress for trace in traces for setting in trace.path)


def _sum(powers: Iterable[Dbm]) -> Dbm:
    milliwatts = sum(10 ** (power / 10) for power in powers)
    return 10 * math.log10(milliwatts) if milliwatts > 0 else -math.inf


class Interlocks:
    """Checks every change before it is sent to a device. `seen`: what the devices hold, kept
    current by whoever reads them.
    """

    def __init__(
        self, lab: Lab, devices: Mapping[DeviceName, CircuitSwitch], tagouts: Tagouts | None
    ) -> None:
        self.lab, self.devices, self.tagouts = lab, devices, tagouts
        self.seen: dict[DeviceName, frozenset[Setting]] = {}

    def tags(
        self, changes: Mapping[DeviceName, Change], switched: frozenset[HostPort] = frozenset()
    ) -> list[str]:
        """The tag-outs that forbid `changes` of light, or of traffic that starts or stops at the
        ports `switched`, in words.
        """
        hanging = self.tagouts.listed() if self.tagouts is not None else []
        if not hanging or not (switched or any(changes.values())):
            return []
        found = moves(self.seen, changes, self.lab)
        return tagged(replace(found, host_ports=found.host_ports | switched), hanging, self.lab)

    async def light(self, changes: Mapping[DeviceName, Change]) -> list[str]:
        """The ports whose power limit `changes` would exceed, in words; reads their meters."""
        if not self.lab.input_limits:
            return []
        found = moves(self.seen, changes, self.lab)
        limited = {port for port in passed(found.made) if self.lab.max_input_dbm(port) is not None}
        entries = {trace.path[0].ingress for trace in found.light if limited & passed([trace])}
        return (
            [str(glare) for glare in glares(found, await self._measured(entries), self.lab)]
            if limited
            else []
        )

    async def _measured(self, ports: Iterable[Port]) -> dict[Port, Dbm | None]:
        """Meter readings of light that enters now, None where it is too weak to measure; ports
        without a meter are absent.
        """
        by_device: dict[DeviceName, set[Port]] = {}
        for port in ports:
            by_device.setdefault(port.device, set()).add(port)

        async def ask(name: DeviceName, wanted: set[Port]) -> dict[Port, Dbm | None]:
            device = self.devices[name]
            if not isinstance(device, PowerMeter) or not self.lab.traits_of(name).meter_db:
                return {}
            inside = {
                Port(p.device, f"{p.label}:in") if name in self.lab.duplex else p: p for p in wanted
            }
            found = await device.power(inside)
            return {p: found.get(side) for side, p in inside.items()} if found else {}

        answers = await asyncio.gather(*(ask(name, wanted) for name, wanted in by_device.items()))
        return {port: power for answer in answers for port, power in answer.items()}

    async def why_not(
        self,
        changes: Mapping[DeviceName, Change],
        seen: Mapping[DeviceName, frozenset[Setting]],
        switched: frozenset[HostPort] = frozenset(),
    ) -> list[str]:
        """What `check` would refuse, in words, with the devices as they were `seen`."""
        self.seen.update(seen)
        return [*self.tags(changes, switched), *await self.light(changes)]

    async def check(
        self, changes: Mapping[DeviceName, Change], switched: frozenset[HostPort] = frozenset()
    ) -> None:
        """Raises: Interlock - light, or traffic over packet switches, would start or stop at a
        tagged-out place, or a device would get too much light; names all of them."""
        tags, light = self.tags(changes, switched), await self.light(changes)
        if tags or light:
            remedies = [
                *(["once the work there is finished: testbed tagout remove"] if tags else []),
                *([GLARE_HINT] if light else []),
            ]
            raise Interlock(
                "\n".join([*tags, *light]), hint=f"nothing overrides this; {'; '.join(remedies)}"
            )
