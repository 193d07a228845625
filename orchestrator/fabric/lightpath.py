"""Follows light through the settings that devices hold, over trunks from device to device. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from optics import Db, DeviceName, FrequencySlot, HostPort, Port, Setting, SpectralRoute
from orchestrator.inventory.lab import Lab

MAX_PASSES = 32
"""Light is followed through this many devices: the whole way round a ring of sixteen nodes of two
modules each.
"""

Held: TypeAlias = Mapping[DeviceName, frozenset[Setting]]
"""What each device holds, or should."""
Route: TypeAlias = object
"""A setting without its attenuation; only to be compared."""


def without_attenuation(setting: Setting) -> Route:
    """The setting without its attenuation."""
    return setting.route if isinstance(setting, SpectralRoute) else setting


def routes(settings: Iterable[Setting]) -> frozenset[Route]:
    return frozenset(map(without_attenuation, settings))


def among(settings: Iterable[Setting], known: Iterable[Setting]) -> frozenset[Setting]:
    """The settings that `known` contains too, at any attenuation."""
    listed = routes(known)
    return frozenset(setting for setting in settings if without_attenuation(setting) in listed)


@dataclass(frozen=True, slots=True)
class Trace:
    """The path of one transmitter's light; `receiver` None: it ends at a port without a setting or
    without a known fibre.
    """

    transmitter: HostPort
    path: tuple[Setting, ...]
    receiver: HostPort | None


class LightMap:
    """The settings of some devices, indexed to follow light through them."""

    def __init__(self, held: Held, lab: Lab) -> None:
        self.lab = lab
        self._at: dict[Port, list[Setting]] = {}
        for settings in held.values():
            for setting in settings:
                self._at.setdefault(setting.ingress, []).append(setting)

    def follow(self, ingress: Port, slot: FrequencySlot | None) -> tuple[Setting, ...]:
        """The settings that light of `slot` passes from `ingress` on. Light of unknown slot ends at
        a spectral device.
        """
        path: list[Setting] = []
        at: Port | None = ingress
        while at is not None and len(path) < MAX_PASSES:
            found = next((s for s in self._at.get(at, ()) if passes(s, slot)), None)
            if found is None:
                break
            path.append(found)
            trunk = self.lab.onward.get(found.egress)
            at = trunk.end if trunk is not None else None
        return tuple(path)

    def traces(self) -> Iterator[Trace]:
        """The path of every transmitter whose light reaches a setting."""
        for port, fibre in self.lab.fibres.items():
            if path := self.follow(fibre.enters, fibre.slot):
                yield Trace(port, path, self.lab.receivers.get(path[-1].egress))

    def ends(self) -> Mapping[Setting, tuple[frozenset[HostPort], frozenset[HostPort]]]:
        """For every setting: the transmitters whose light it carries and their receivers, as far as
        the inventory knows.
        """
        senders: dict[Setting, set[HostPort]] = {}
        receivers: dict[Setting, set[HostPort]] = {}
        for trace in self.traces():
            for setting in trace.path:
                senders.setdefault(setting, set()).add(trace.transmitter)
                if trace.receiver is not None:
                    receivers.setdefault(setting, set()).add(trace.receiver)
        found = {}
        for setting in (setting for settings in self._at.values() for setting in settings):
            # no known fibre brings light here, or its slot is not in the inventory
            if setting not in senders:
                slot = setting.slot if isinstance(setting, SpectralRoute) else None
                dark = self.follow(setting.ingress, slot) or (setting,)
                receiver = self.lab.receivers.get(dark[-1].egress)
                receivers.setdefault(setting, set()).update({receiver} - {None})  # type: ignore[arg-type]
                unsaid = (
                    p
                    for p in self.lab.transmitters.get(setting.ingress, ())
                    if self.lab.fibres[p].slot is None
                )
                senders[setting] = set(unsaid)
            found[setting] = (frozenset(senders[setting]), frozenset(receivers.get(setting, ())))
        return found


def lit(held: Held, lab: Lab) -> frozenset[Setting]:
    """The settings passed by light that reaches a host."""
    return frozenset(
        s
        for trace in LightMap(held, lab).traces()
        if trace.receiver is not None
        for s in trace.path
    )


def passes(setting: Setting, slot: FrequencySlot | None) -> bool:
    """Whether the setting passes all light of `slot`."""
    return not isinstance(setting, SpectralRoute) or (slot is not None and setting.slot.holds(slot))


def loss_db(transmitter: HostPort, receiver: HostPort, path: Iterable[Setting], lab: Lab) -> Db:
    """Expected loss (dB) end to end: both fibres, every pass, every trunk, without deliberate
    attenuation.
    """
    loss = lab.fibres[transmitter].loss_db + lab.fibres[receiver].loss_db
    for setting in path:
        loss += lab.pass_loss_db(setting)
        trunk = lab.onward.get(setting.egress)
        if trunk is not None:
            loss += trunk.loss_db
    return round(loss, 4)
