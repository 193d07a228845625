"""Lumentum ROADM-20 over NETCONF: two wavelength-selective switches in one box, a multiplexer and a
demultiplexer.

CODE (Mininet-Optical, COSMOS team): the namespaces, <connections> with their leaves,
<remove-all-connections> and <delete-connection>, the powers in <state>, the leaves of amplifiers
with the prefix lotee, module 1 = 41xx -> 4201, module 2 = 5101 -> 52xx, the floor of -30 dBm, 4.0
dB of loss, that an amplifier goes out-of-service, is configured, goes in-service. U, and chosen so
that they ask most of a driver:

- overlapping spectrum is refused until the old connection is deleted (their own emulator deletes
  it);
- <edit-config> does not delete connections, and does not move the edges or ports of one that is in
  service;
- <ok/> to <edit-config> comes when the light has settled; until then a connection has no <state>;
- an amplifier out of service lets no light of its module through; `edfa_first`: a module changes
  only while its amplifier is out of service (the other reading of the public code);
- the words of errors, the range of frequencies and attenuations, that the running configuration
  survives a power cycle.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, cast

from lxml import etree

from emulators.devices.dialects.base import AnyDialect, Session
from emulators.devices.dialects.lumentum_values import (
    AMPLIFIED,
    CARD,
    CONNECTION,
    EDFA,
    FLOOR_DBM,
    IN_SERVICE,
    LOSS_DB,
    OUT_OF_SERVICE,
    PORTS,
    RANGE_MHZ,
    SCHEMAS,
    Connection,
    Key,
    Shown,
    amplifier_of,
    connection_of,
    default,
    dn_of,
    faceplate,
    ghz,
    invalid,
    joins,
    key_of,
    leaf_of,
    listed,
    measured,
    prefixed,
)
from emulators.devices.dialects.netconf import NetconfDialect, RpcError
from emulators.devices.dialects.xml import local, namespace, text
from emulators.devices.family import Family
from emulators.optics.light import Violation
from emulators.optics.spectrum import SpectralPlant


class LumentumNetconf(NetconfDialect[tuple[Shown, ...]]):
    """One ROADM-20."""

    writes = re.compile(r"<([\w.-]+:)?(edit-config|remove-all-connections|delete-connection)\b")
    schemas = SCHEMAS

    def __init__(
        self,
        plant: SpectralPlant,
        *,
        edfa_first: bool = False,
        base_1_1: bool = True,
        epoch_s: float = 0.0,
        seed: int = 0,
        idle_s: float | None = None,
        boot_s: float = 1.0,
    ) -> None:
        # the base asks what every plant has
        super().__init__(
            cast(Any, plant),
            base_1_1=base_1_1,
            epoch_s=epoch_s,
            seed=seed,
            idle_s=idle_s,
            boot_s=boot_s,
        )
        self.spectrum, self.edfa_first = plant, edfa_first
        self._table: dict[Key, Connection] = {}
        self._amplifiers: dict[int, dict[str, str]] = {
            number: {
                "maintenance-state": IN_SERVICE,
                "control-mode": "constant-gain",
                "gain-switch-mode": "low-gain",
                "target-gain": "0.0",
                "target-power": "0.0",
                "target-gain-tilt": "0.0",
                "los-shutdown": "true",
                "optical-loo-threshold": "-50.0",
            }  # CODE: the leaves and their words
            for number in AMPLIFIED
        }
        self._wait_s = 0.0

    def preset(self, key: Key, connection: Connection) -> None:
        """Hold a connection as if it had been there for ever. Raises ValueError."""
        self.spectrum.preset(
            {connection.band: connection.attenuation_db} if connection.passes else {}
        )
        self._table[key] = connection

    # ---- the manner

    def execute(self, session: Session, command: str, now: float) -> bytes:
        reply = super().execute(session, command, now)
        session.delay_s, self._wait_s = self._wait_s, 0.0
        return reply

    def capabilities(self) -> Sequence[str]:
        return [
            f"{space}?module={space.rpartition('/')[2]}&revision=2017-01-27"
            for space in (CONNECTION, EDFA)
        ]

    def snapshot(self, now: float) -> tuple[Shown, ...]:
        return tuple(
            Shown(key, found, self._powers(found, now))
            for key, found in sorted(self._table.items())
        )

    def dress(self, reply: etree._Element) -> None:
        prefixed(reply)

    def configuration(self, now: float) -> list[etree._Element]:
        return self._trees(now, with_state=False)

    def state(self, now: float) -> list[etree._Element]:
        return self._trees(now, with_state=True)

    def event(self, now: float) -> etree._Element:
        event = etree.Element(f"{{{CONNECTION}}}connection-event", nsmap=default(CONNECTION))
        etree.SubElement(event, f"{{{CONNECTION}}}dn").text = f"{CARD};module=1"
        return event

    def configure(self, config: list[etree._Element], now: float) -> None:
        wanted: dict[Key, Connection] = {}
        amplifiers = {number: dict(leaves) for number, leaves in self._amplifiers.items()}
        for top in config:
            for node in top:
                dn = leaf_of(node, "dn")
                leaves = {
                    local(str(leaf.tag)): text(leaf)
                    for part in node
                    if local(str(part.tag)) == "config"
                    for leaf in part
                }
                if namespace(str(top.tag)) == EDFA:
                    amplifiers[amplifier_of(dn)] = leaves
                else:
                    key = key_of(dn)
                    wanted[key] = connection_of(key, leaves)
        ended = self._table.keys() - wanted.keys()
        if ended:
            raise RpcError("operation-not-supported", f"{dn_of(min(ended))}: use delete-connection")
        changed = {key: new for key, new in wanted.items() if self._table.get(key) != new}
        self._check_amplifiers(amplifiers)
        self._check(changed, amplifiers, now)
        self._wait_s = self.plant.settle_s if changed else 0.0
        if self.silent:
            return
        self._set_amplifiers(amplifiers, now)
        for key in self.some(sorted(changed)):
            self._set(key, changed[key], now)

    def operation(
        self, session: Session, asked: etree._Element, now: float
    ) -> list[etree._Element] | None:
        name = local(str(asked.tag))
        if namespace(str(asked.tag)) != CONNECTION or name not in (
            "remove-all-connections",
            "delete-connection",
        ):
            return None
        self._free(session)
        dn = leaf_of(asked, "dn")
        if name == "delete-connection":
            keys = [key_of(dn)]
            if keys[0] not in self._table:
                raise RpcError("data-missing", f"no {dn}")
        else:
            found = re.fullmatch(rf"{CARD};module=([12])", dn)
            if found is None:
                raise invalid("dn", dn)
            keys = sorted(key for key in self._table if key[0] == int(found[1]))
        self._check_service({key[0] for key in keys}, self._amplifiers)
        self.wrote(now)
        if not self.silent:
            self._remove(self.some(keys), now)
        return []

    def rebooted(self, keep: bool, now: float) -> None:
        if not keep:
            self._table.clear()
        lit = {c.band: c.attenuation_db for c in self._table.values() if c.passes}
        self.spectrum.restore(lit, now, self.boot_s)

    # ---- connections

    def _check(
        self, changed: dict[Key, Connection], amplifiers: dict[int, dict[str, str]], now: float
    ) -> None:
        """Raises RpcError: the module cannot carry these together, or not now."""
        self._check_service({key[0] for key in changed}, amplifiers)
        after = self._table | changed
        for key, new in changed.items():
            old = self._table.get(key)
            if old is not None and old.in_service and old.band != new.band:
                raise RpcError("operation-failed", f"{dn_of(key)}: in-service")
            for other, held in after.items():
                if (
                    other != key
                    and other[0] == key[0]
                    and new.low_mhz < held.high_mhz
                    and held.low_mhz < new.high_mhz
                ):
                    why = f"{dn_of(key)}: spectrum overlaps {dn_of(other)}"
                    self.plant.violations.append(Violation(now, new.band, why))
                    raise RpcError("data-exists", why)
            for which, label in (("in", new.ingress), ("out", new.egress)):
                if (which, label) in self.plant.wrong.failed or (
                    which,
                    label,
                ) in self.plant.wrong.stuck:
                    raise RpcError("operation-failed", f"{dn_of(key)}: port {label} failed")
            if locked := self.plant.wrong.lock((new.ingress, new.egress)):
                raise RpcError("operation-failed", f"{dn_of(key)}: {locked}")

    def _set(self, key: Key, new: Connection, now: float) -> None:
        old = self._table.get(key)
        if old is not None and (old.band != new.band or not new.passes):
            self.spectrum.disconnect([old.band], now)
        if new.passes:
            self.spectrum.connect({new.band: new.attenuation_db}, now)
        self._table[key] = new

    def _remove(self, keys: Iterable[Key], now: float) -> None:
        for key in keys:
            refused = self.spectrum.disconnect([self._table[key].band], now)
            if refused:
                raise RpcError("operation-failed", f"{dn_of(key)}: {next(iter(refused.values()))}")
            del self._table[key]

    def _powers(self, found: Connection, now: float) -> tuple[float, float] | None:
        passband = self.spectrum.passband(found.band)
        if passband is None:
            return (self.plant.floor_dbm, self.plant.floor_dbm)
        if not passband.settled(now):
            return None
        return self.spectrum.channel_dbm(passband, "in", now), self.spectrum.channel_dbm(
            passband, "out", now
        )

    # ---- amplifiers

    def _check_amplifiers(self, amplifiers: dict[int, dict[str, str]]) -> None:
        for number, leaves in amplifiers.items():
            if leaves.get("maintenance-state") not in (IN_SERVICE, OUT_OF_SERVICE):
                raise invalid("maintenance-state", leaves.get("maintenance-state", ""))
            old = self._amplifiers[number]
            kept = {k: v for k, v in old.items() if k != "maintenance-state"}
            asked = {k: v for k, v in leaves.items() if k != "maintenance-state"}
            if asked != kept and old["maintenance-state"] == IN_SERVICE:
                raise RpcError("operation-failed", f"{CARD};edfa={number}: in-service")

    def _check_service(self, modules: set[int], amplifiers: dict[int, dict[str, str]]) -> None:
        for module in sorted(modules) if self.edfa_first else ():
            if amplifiers[module]["maintenance-state"] == IN_SERVICE:
                raise RpcError("operation-failed", f"{CARD};edfa={module}: in-service")

    def _set_amplifiers(self, amplifiers: dict[int, dict[str, str]], now: float) -> None:
        for number, leaves in amplifiers.items():
            if leaves != self._amplifiers[number]:
                self._amplifiers[number] = leaves
                self.spectrum.set_disabled(
                    [AMPLIFIED[number]], leaves["maintenance-state"] == OUT_OF_SERVICE, now
                )

    # ---- trees

    def _trees(self, now: float, *, with_state: bool) -> list[etree._Element]:
        connections = etree.Element(f"{{{CONNECTION}}}connections", nsmap=default(CONNECTION))
        for shown in self.view(now):
            found = shown.connection
            leaves = {
                "maintenance-state": IN_SERVICE if found.in_service else OUT_OF_SERVICE,
                "blocked": str(found.blocked).lower(),
                "start-freq": ghz(found.low_mhz),
                "end-freq": ghz(found.high_mhz),
                "attenuation": f"{found.attenuation_db:.1f}",
                "input-port-reference": f"{CARD};port={found.ingress}",
                "output-port-reference": f"{CARD};port={found.egress}",
                "custom-name": found.name,
            }
            node = listed(connections, "connection", dn_of(shown.key), leaves)
            if with_state and shown.powers is not None:
                state = etree.SubElement(node, f"{{{CONNECTION}}}state")
                for side, dbm in zip(("input", "output"), shown.powers, strict=True):
                    attributes = etree.SubElement(
                        state, f"{{{CONNECTION}}}{side}-channel-attributes"
                    )
                    etree.SubElement(attributes, f"{{{CONNECTION}}}power").text = f"{dbm:.2f}"
        edfas = etree.Element(f"{{{EDFA}}}edfas", nsmap=default(EDFA))
        for number, kept in self._amplifiers.items():
            node = listed(edfas, "edfa", f"{CARD};edfa={number}", kept)
            if with_state:
                measured(node, self.spectrum.power_dbm(AMPLIFIED[number], now))
        return [connections, edfas]


def _preset(dialect: AnyDialect, row: object) -> None:
    """[module, connection, input port, output port, start GHz, end GHz] or [..., attenuation in
    dB].
    """
    assert isinstance(dialect, LumentumNetconf)
    if not isinstance(row, list | tuple) or len(row) not in (6, 7):
        raise ValueError(
            f"{dialect.plant.name}: preset {row!r}: wanted [module, connection, in, out, GHz, GHz] or [..., dB]"
        )
    low_mhz, high_mhz = (round(float(edge) * 1000) for edge in row[4:6])
    attenuation_db = float(row[6]) if len(row) == 7 else 0.0
    dialect.preset(
        (int(row[0]), int(row[1])),
        Connection(str(row[2]), str(row[3]), low_mhz, high_mhz, attenuation_db, in_service=True),
    )


def _plant(*values: Any, **more: Any) -> SpectralPlant:
    mean_db, most_db = LOSS_DB
    return SpectralPlant(
        *values,
        floor_dbm=FLOOR_DBM,
        mean_loss_db=mean_db,
        max_loss_db=most_db,
        light_paths=joins,
        range_mhz=RANGE_MHZ,
        **more,
    )


FAMILY = Family(
    "lumentum-netconf",
    ("netconf",),
    LumentumNetconf,
    faceplate,
    _preset,
    size=f"{PORTS + 1}x{PORTS + 1}",
    settle_s=1.0,  # 1 to 5 s per edit-config (U)
    login=("superuser", "emulated"),
    plant=_plant,
    spectral=True,
    trunks=(("4201", "5101"),),
)
