"""A ROADM that speaks the OpenROADM device model 2.2.1 over NETCONF: degrees, one group of add/drop
ports.

DOC (YANG of the OpenROADM MSA, 2017-12-15 and 2018-10-19): the tree, its namespaces, key and
mandatory leaves, units and digits, the slots that mc-capabilities allow, one use of a wavelength in
a group (`duplication`). CODE (TransportPCE and its sample node, ONOS, a NETCONF client program):
the layout, the interfaces that a line has from its commissioning on, the order of edits, that a
connection is made `off` and lit by a merge of `power`, with a target towards a degree and without
one towards a drop. U, and chosen so that they ask most of a driver:

- <ok/> comes at once, light follows settle_s after `power`; a connection that is `off` is dark,
  deletion darkens at once;
- channels that overlap at a port are refused; so is moving an interface that something refers to, a
  second connection from or to one network media channel, and a connection between channels of other
  frequencies;
- what nothing refers to any more stays until it is deleted; the line's own interfaces cannot be
  changed;
- the words of errors, the range of frequencies, that the running configuration survives a power
  cycle.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar, cast

from lxml import etree

from emulators.devices.dialects.base import AnyDialect
from emulators.devices.dialects.netconf import NetconfDialect, RpcError
from emulators.devices.dialects.openroadm_values import (
    DEVICE,
    MEDIA,
    MODULES,
    NETWORK,
    OMS,
    RANGE_MHZ,
    SCHEMAS,
    Cross,
    Interface,
    Place,
    entries,
    faceplate,
    joins,
    lines,
    on_grid,
    places,
    tree,
)
from emulators.devices.dialects.xml import element, leaf
from emulators.devices.family import Family
from emulators.optics.light import Band, Violation
from emulators.optics.spectrum import SpectralPlant

T = TypeVar("T")
State = tuple[tuple[Interface, ...], tuple[Cross, ...]]
SHARED = ("one-per-degree", "one-per-srg")


class OpenroadmNetconf(NetconfDialect[State]):
    """One node. duplication: how often a wavelength may be used in its group of add/drop ports."""

    writes = re.compile(r"<([\w.-]+:)?edit-config\b")
    schemas = SCHEMAS

    def __init__(
        self,
        plant: SpectralPlant,
        *,
        duplication: str = "one-per-degree",
        base_1_1: bool = True,
        epoch_s: float = 0.0,
        seed: int = 0,
        idle_s: float | None = None,
        boot_s: float = 1.0,
    ) -> None:
        if duplication not in SHARED:
            raise ValueError(
                f"{plant.name}: duplication: wanted {' or '.join(SHARED)}, seen {duplication!r}"
            )
        super().__init__(
            cast(Any, plant),
            base_1_1=base_1_1,
            epoch_s=epoch_s,
            seed=seed,
            idle_s=idle_s,
            boot_s=boot_s,
        )
        self.spectrum, self.duplication = plant, duplication
        self.places = places(plant.ingress, plant.egress)
        self._at = {(place.pack, place.port): place for place in self.places}
        self._lines = lines(self.places)
        self._held: dict[str, Interface] = dict(self._lines)
        self._crosses: dict[str, Cross] = {}

    def preset(self, ingress: str, egress: str, low_mhz: int, high_mhz: int) -> None:
        """Hold a lit connection as if another controller had made it long ago. Raises
        ValueError.
        """
        try:
            on_grid(f"{ingress}->{egress}", low_mhz, high_mhz)
        except RpcError as error:
            raise ValueError(f"{self.plant.name}: preset {error.message}") from None
        self.spectrum.preset({(ingress, egress, low_mhz, high_mhz): 0.0})
        ends = []
        for which, label in (("in", ingress), ("out", egress)):
            place = next(p for p in self.places if (which, label) in p.sides)
            supporting = ""
            if place.degree:
                line = next(
                    i
                    for i in self._lines.values()
                    if i.kind == OMS and (i.pack, i.port) == (place.pack, place.port)
                )
                channel = Interface(
                    f"{label}-mc-{low_mhz}",
                    MEDIA,
                    place.pack,
                    place.port,
                    line.name,
                    low_mhz,
                    high_mhz,
                )
                self._held[channel.name] = channel
                supporting = channel.name
            name = f"{label}{'' if place.direction == 'bidirectional' else which}-nmc-{low_mhz}"
            self._held[name] = Interface(
                name, NETWORK, place.pack, place.port, supporting, low_mhz, high_mhz
            )
            ends.append(name)
        cross = Cross(
            f"{ends[0]}-to-{ends[1]}",
            ends[0],
            ends[1],
            "power",
            "-9" if egress.startswith("DEG") else "",
        )
        self._crosses[cross.name] = cross

    # ---- the manner

    def capabilities(self) -> Sequence[str]:
        return [f"{space}?module={name}&revision={date}" for space, (name, date) in MODULES.items()]

    def snapshot(self, now: float) -> State:
        return tuple(self._held.values()), tuple(self._crosses.values())

    def configuration(self, now: float) -> list[etree._Element]:
        return [self._tree(now, with_state=False)]

    def state(self, now: float) -> list[etree._Element]:
        return [self._tree(now, with_state=True)]

    def event(self, now: float) -> etree._Element:
        event = element(f"{{{DEVICE}}}change-notification", {None: DEVICE})
        leaf(event, "datastore", "running")
        return event

    def _tree(self, now: float, *, with_state: bool) -> etree._Element:
        held, crosses = self.view(now)
        if self.keys is not None:
            held = tuple(one for one in held if one.name in self.keys)
            crosses = tuple(one for one in crosses if one.name in self.keys)
        facts = {
            "node-id": f"openroadm-{self.plant.name}",
            "node-number": "1",
            "node-type": "rdm",
            "vendor": "OpenROADM",
            "model": "ROADM-A",
            "serial-id": f"SN-{self.plant.name}",
            "softwareVersion": "2.2.1",
            "openroadm-version": "2.2.1",
            "max-degrees": "2",
            "max-srgs": "1",
            "wavelength-duplication": self.duplication,
        }
        return tree(
            self.places, {one.name: one for one in held}, crosses, facts, with_state=with_state
        )

    def configure(self, config: list[etree._Element], now: float) -> None:
        held, crosses = entries(config)
        if self.keys is not None:
            held = {name: one for name, one in self._held.items() if name not in self.keys} | held
            crosses = {
                name: one for name, one in self._crosses.items() if name not in self.keys
            } | crosses
        for name, line in self._lines.items():
            if held.get(name) != line:
                raise RpcError("operation-failed", f"{name}: belongs to the line")
        changed = [
            ("interface", n)
            for n in held.keys() | self._held.keys()
            if held.get(n) != self._held.get(n)
        ]
        changed += [
            ("connection", n)
            for n in crosses.keys() | self._crosses.keys()
            if crosses.get(n) != self._crosses.get(n)
        ]
        self._check(held, crosses, {name for kind, name in changed if kind == "interface"}, now)
        self._check_ports(held, crosses, {name for kind, name in changed if kind == "connection"})
        if self.silent:
            return
        before = self._bands(self._held, self._crosses)
        kept = set(self.some(sorted(changed)))
        for name in [
            name for kind, name in changed if kind == "interface" and (kind, name) in kept
        ]:
            _put(self._held, name, held)
        for name in [
            name for kind, name in changed if kind == "connection" and (kind, name) in kept
        ]:
            _put(self._crosses, name, crosses)
        after = self._bands(self._held, self._crosses)
        refused = self.spectrum.disconnect([band for band in before if band not in after], now)
        refused |= self.spectrum.connect({band: 0.0 for band in after if band not in before}, now)
        if refused:
            raise RpcError("operation-failed", next(iter(refused.values())))

    def rebooted(self, keep: bool, now: float) -> None:
        if not keep:
            self._held, self._crosses = dict(self._lines), {}
        self.spectrum.restore(
            dict.fromkeys(self._bands(self._held, self._crosses), 0.0), now, self.boot_s
        )

    # ---- what goes together

    def _place(self, one: Interface) -> Place:
        found = self._at.get((one.pack, one.port))
        if found is None:
            raise _missing(f"{one.name}: supporting-port {one.pack} {one.port}")
        return found

    def _check(
        self,
        held: Mapping[str, Interface],
        crosses: Mapping[str, Cross],
        changed: set[str],
        now: float,
    ) -> None:
        """Raises RpcError: references, channels or connections do not go together."""
        users = {one.supporting for one in self._held.values()} | {
            end for cross in self._crosses.values() for end in (cross.source, cross.destination)
        }
        for name in changed & held.keys() & self._held.keys() & users:
            old, new = self._held[name], held[name]
            if (old.kind, old.pack, old.port, old.supporting, old.low_mhz, old.high_mhz) != (
                *(new.kind, new.pack, new.port),
                *(new.supporting, new.low_mhz, new.high_mhz),
            ):
                raise RpcError("operation-failed", f"{name}: in use")
        for one in held.values():
            place = self._place(one)
            base = held.get(one.supporting) if one.supporting else None
            if one.supporting and base is None:
                raise _missing(f"{one.name}: supporting-interface {one.supporting}")
            if one.kind == MEDIA and (
                base is None or base.kind != OMS or (base.pack, base.port) != (one.pack, one.port)
            ):
                raise RpcError(
                    "invalid-value",
                    f"{one.name}: a media channel is on the OMS interface of its degree",
                )
            if one.kind == NETWORK:
                self._check_network(one, place, base)
        self._check_overlaps(held, now)
        self._check_crosses(held, crosses)

    def _check_network(self, one: Interface, place: Place, base: Interface | None) -> None:
        if not place.degree:
            if base is not None:
                raise RpcError(
                    "invalid-value",
                    f"{one.name}: at an add/drop port there is no supporting-interface",
                )
        elif base is None or base.kind != MEDIA or (base.pack, base.port) != (one.pack, one.port):
            raise RpcError(
                "invalid-value", f"{one.name}: at a degree it is on a media channel of that degree"
            )
        elif not base.low_mhz <= one.low_mhz < one.high_mhz <= base.high_mhz:
            raise RpcError("invalid-value", f"{one.name}: outside of {base.name}")

    def _check_overlaps(self, held: Mapping[str, Interface], now: float) -> None:
        whole = self.duplication == "one-per-srg"
        channels = sorted(
            (
                one.kind,
                one.pack if whole and not self._place(one).degree else f"{one.pack} {one.port}",
                *(one.low_mhz, one.high_mhz),
                one.name,
            )
            for one in held.values()
            if one.kind in (MEDIA, NETWORK)
        )
        for (kind, at, _, end, name), (other, where, begin, _, second) in pairwise(channels):
            if (kind, at) == (other, where) and begin < end:
                why = f"{second}: spectrum overlaps {name}"
                self.plant.violations.append(Violation(now, (name, second), why))
                raise RpcError("data-exists", why)

    def _check_crosses(self, held: Mapping[str, Interface], crosses: Mapping[str, Cross]) -> None:
        used: set[tuple[str, str]] = set()
        for cross in crosses.values():
            ends = []
            for which, name in (("src-if", cross.source), ("dst-if", cross.destination)):
                if name not in held:
                    raise _missing(f"{cross.name}: {which} {name}")
                if held[name].kind != NETWORK:
                    raise RpcError(
                        "invalid-value", f"{cross.name}: {which} {name} is no network media channel"
                    )
                if (which, name) in used:
                    raise RpcError("data-exists", f"{cross.name}: {which} {name} is in use")
                used.add((which, name))
                ends.append(held[name])
            source, destination = (self._place(end) for end in ends)
            paths = [
                ("in", source.label) in source.sides,
                ("out", destination.label) in destination.sides,
            ]
            if not all(paths) or not joins(source.label, destination.label):
                raise RpcError(
                    "invalid-value",
                    f"{cross.name}: no way from {source.port} to {destination.port}",
                )
            if (ends[0].low_mhz, ends[0].high_mhz) != (ends[1].low_mhz, ends[1].high_mhz):
                raise RpcError(
                    "invalid-value",
                    f"{cross.name}: {cross.source} and {cross.destination} are of other frequencies",
                )
            if cross.mode != "off" and destination.degree and not cross.target_dbm:
                raise RpcError("missing-element", f"{cross.name}: target-output-power is missing")

    def _check_ports(
        self, held: Mapping[str, Interface], crosses: Mapping[str, Cross], changed: set[str]
    ) -> None:
        for name in sorted(changed):
            cross, known = (
                (crosses[name], held) if name in crosses else (self._crosses[name], self._held)
            )
            labels = [self._place(known[end]).label for end in (cross.source, cross.destination)]
            for side in zip(("in", "out"), labels, strict=True):
                if side in self.plant.wrong.stuck or (
                    name in crosses and side in self.plant.wrong.failed
                ):
                    raise RpcError("operation-failed", f"{name}: port {side[1]} failed")
            if locked := self.plant.wrong.lock((labels[0], labels[1])):
                raise RpcError("operation-failed", f"{name}: {locked}")

    def _bands(
        self, held: Mapping[str, Interface], crosses: Mapping[str, Cross]
    ) -> dict[Band, None]:
        """What passes light, in the order of the connections: the spectrum that the channels at the
        degrees of both ends have.
        """
        found: dict[Band, None] = {}
        for cross in crosses.values():
            ends = [held.get(cross.source), held.get(cross.destination)]
            if cross.mode == "off" or ends[0] is None or ends[1] is None:
                continue
            channels = [held.get(end.supporting, end) for end in ends if end is not None]
            low, high = max(one.low_mhz for one in channels if one.kind == MEDIA), 0
            high = min(one.high_mhz for one in channels if one.kind == MEDIA)
            found[self._place(ends[0]).label, self._place(ends[1]).label, low, high] = None
        return found


def _put(table: dict[str, T], name: str, new: Mapping[str, T]) -> None:
    if name in new:
        table[name] = new[name]
    else:
        del table[name]


def _missing(text: str) -> RpcError:
    return RpcError("data-missing", f"{text}: no such", app_tag="instance-required")


def _preset(dialect: AnyDialect, row: object) -> None:
    """[in, out, GHz, GHz]: from where to where, and the edges of the slot."""
    assert isinstance(dialect, OpenroadmNetconf)
    if not isinstance(row, list | tuple) or len(row) != 4:
        raise ValueError(f"{dialect.plant.name}: preset {row!r}: wanted [in, out, GHz, GHz]")
    dialect.preset(str(row[0]), str(row[1]), *(round(float(edge) * 1000) for edge in row[2:]))


def _plant(*values: Any, **more: Any) -> SpectralPlant:
    return SpectralPlant(*values, light_paths=joins, range_mhz=RANGE_MHZ, **more)


FAMILY = Family(
    "openroadm-netconf",
    ("netconf",),
    OpenroadmNetconf,
    faceplate,
    _preset,
    size="22x22",
    settle_s=12.0,  # power is reached within 12 s (TransportPCE, TRNSPRTPCE-88)
    login=("openroadm", "emulated"),
    plant=_plant,
    spectral=True,
    trunks=(("DEG1", "DEG1"),),
)
