"""Polatis (HUBER+SUHNER) switches over TL1 (port 3082: no echo, no prompt).

Grades: CODE is the literal of a public client (Quali cloudshell-L1-polatis templates; another public client for login, idle
timeout, port labels, flaps and attenuators), U unconfirmed. No public capture of a Polatis denial or autonomous message is known:
every code and text of a DENY is U. Where no source says, the choice is the one that asks most of a driver: one patch per ENT-PATCH,
no patch shown before it is at rest, `( nil )` as the switch's name until a user logs in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from emulators.dialects.base import Session
from emulators.dialects.polatis_port import Attenuator, Flap, Monitor, metered, number_of
from emulators.dialects.polatis_scpi import numbered
from emulators.dialects.tl1 import Command, Denied, Reply, Tl1Dialect, Verb, Writer, listed
from emulators.family import Family
from emulators.plant import Pair, Plant, Side, Violation

NIL = "( nil )"  # CODE: the name before the login
IDLE_S = 60.0  # CODE: idle TL1 sessions die after about 60 s (MonALISA); ED-EQPT::TIMEOUT changes it


class PolatisTl1(Tl1Dialect[tuple[Pair, ...]]):
    """One switch.

    boot_mode: DARK, RESTORE or AUTOSAVE, as over SCPI. bare_netype: RTRV-NETYPE answers without quotes (CODE that some do).
    voa: egress ports have variable attenuators. block_rows: see tl1.Writer (U that this family continues answers at all).
    """

    writes = re.compile(
        r"^\s*((ent|dlt)-patch|(opr|rls)-port-shutter|set-port|ed-(port|eqpt)|(ent|opr|rls)-port-flap)", re.IGNORECASE
    )

    def __init__(
        self,
        plant: Plant,
        *,
        sid: str | None = None,
        model: str | None = None,
        serial: str = "001705",
        firmware: str = "6.5.1.7",
        username: str = "admin",
        password: str = "root",
        plna_s: float = 0.0,
        row_delay_s: float = 0.0,
        block_rows: int = 0,
        bare_netype: bool = False,
        voa: bool = True,
        boot_mode: str = "AUTOSAVE",
        epoch_s: float = 1_767_268_800.0,
        seed: int = 0,
        idle_s: float | None = IDLE_S,
        boot_s: float = 1.0,
    ) -> None:
        writer = Writer(sid or plant.name, epoch_s, block_rows)
        super().__init__(plant, writer, (username, password), seed=seed, idle_s=idle_s, boot_s=boot_s)
        if boot_mode.upper() not in ("DARK", "RESTORE", "AUTOSAVE"):
            raise ValueError(f"{plant.name}: boot_mode {boot_mode!r} is none of DARK, RESTORE, AUTOSAVE")
        self.model = model or f"N-VST-{len(plant.ingress)}x{len(plant.egress)}-LA1-DMHNV-801"
        self.serial, self.firmware, self.boot_mode = serial, firmware, boot_mode.upper()
        self.plna_s, self.row_delay_s, self.bare_netype, self.voa = plna_s, row_delay_s, bare_netype, voa
        self.labels: dict[str, str] = {}
        self.monitors: dict[str, Monitor] = {}
        self.attenuators: dict[str, Attenuator] = {}
        self.flaps: dict[str, Flap] = {}
        self._saved: tuple[Pair, ...] = ()
        self._turned = False  # an attenuator moved since the last tick
        self._side: dict[str, Side] = {p: ("in", p) for p in plant.ingress} | {p: ("out", p) for p in plant.egress}
        self.verbs: Mapping[str, Verb] = {
            "RTRV-EQPT": self._equipment,
            "ED-EQPT": self._edit_equipment,
            "RTRV-INV": self._inventory,
            "RTRV-NETYPE": self._type,
            "RTRV-PATCH": self._patches,
            "ENT-PATCH": self._connect,
            "DLT-PATCH": self._disconnect,
            "OPR-PORT-SHUTTER": lambda session, asked, now: self._shutter(asked, True, now),
            "RLS-PORT-SHUTTER": lambda session, asked, now: self._shutter(asked, False, now),
            "RTRV-PORT-SHUTTER": lambda session, asked, now: self._rows(session, asked, self._shutter_row, now),
            "RTRV-PORT-POWER": lambda session, asked, now: self._rows(session, asked, self._power_row, now),
            "RTRV-PORT-PMON": lambda session, asked, now: self._rows(session, asked, self._monitor_row, now),
            "SET-PORT-PMON": self._set_monitor,
            "ED-PORT-LABEL": self._label,
            "ENT-PORT-FLAP": self._flap_entered,
            "OPR-PORT-FLAP": lambda session, asked, now: self._flap(asked, True, now),
            "RLS-PORT-FLAP": lambda session, asked, now: self._flap(asked, False, now),
            "SET-PORT-ATTEN": self._set_attenuation,
            "RTRV-PORT-ATTEN": lambda session, asked, now: self._rows(session, asked, self._attenuation_row, now),
        }

    def preset(self, ingress: str, egress: str) -> None:
        """Make a pair as if it had been there for ever. Raises ValueError."""
        self.plant.preset([(ingress, egress)])
        self._saved = self.plant.pairs() if self.boot_mode != "DARK" else ()

    # ---- the manner

    def shown_sid(self, session: Session) -> str | None:
        return NIL if session.user is None else None

    def unsolicited(self, now: float) -> bytes:
        return self.writer.autonomous("* ", "REPT ALM PORT", ("1:LOS",), now)  # no public capture has one (U)

    def snapshot(self, now: float) -> tuple[Pair, ...]:
        """Only patches at rest are shown: clients read back, up to four times, because patches are "not confirmed" (CODE)."""
        return tuple(sorted(self.plant.glass(now), key=lambda pair: int(pair[0])))

    def rebooted(self, keep: bool, now: float) -> None:
        """DARK comes up empty, RESTORE with the map at the time it was set (U), AUTOSAVE with the last map, as over SCPI."""
        if keep:
            self.plant.restore(self._saved, now, self.boot_s)
        else:
            self._saved = ()

    def tick(self, now: float) -> None:
        for port, flap in self.flaps.items():
            if (dark := flap.turned(now)) is not None and not flap.was_shut:
                self.plant.set_disabled([self._side[port]], dark, now)
        self._turned = False
        super().tick(now)

    def next_event(self, now: float) -> float | None:
        times = [t for t in (super().next_event(now), *(f.next_s for f in self.flaps.values())) if t is not None]
        if self._turned:  # the light is to be re-evaluated
            times.append(now)
        return min(times, default=None)

    def on_light(self, now: float) -> None:
        self._hold_levels(now)

    # ---- what it is

    def _equipment(self, session: Session, asked: Command, now: float) -> Reply:
        match (asked.aid.upper(), asked.options.get("PARAMETER", "").upper()):
            case ("SYSTEM", "SIZE"):
                return Reply((f"SYSTEM:SIZE={len(self.plant.ingress)}x{len(self.plant.egress)}",))  # CODE: the text contains this
            case ("PMON", "CONFIG"):
                ports = [s for s in self._side.values() if metered(self.model, s)]
                return Reply([f"PMON::PORT={label},MODE={'INPUT' if which == 'in' else 'OUTPUT'}" for which, label in ports])
            case ("ATTEN", "CONFIG"):  # the row is in the shape of the PMON inventory (U)
                return Reply([f"ATTEN::PORT={port}" for port in self.plant.egress] if self.voa else [])
        raise Denied("IIAC", f"Invalid equipment {asked.aid[:20]}")

    def _edit_equipment(self, session: Session, asked: Command, now: float) -> Reply:
        """ED-EQPT::TIMEOUT:c:::ADMIN=60: idle time of sessions; seconds (U), 0 is for ever (U)."""
        given = number_of(asked.options.get("ADMIN", ""))
        if asked.aid.upper() != "TIMEOUT" or given is None or not 0 <= given <= 86_400:
            raise Denied("IDNV", "Invalid data")
        self.wrote(now)
        if not self.silent:
            self.idle_s = given or None
        return Reply()

    def _inventory(self, session: Session, asked: Command, now: float) -> Reply:
        if asked.aid.upper() != "OCS":
            raise Denied("IIAC", f"Invalid inventory {asked.aid[:20]}")
        return Reply((f"OCS::PN={self.model},SN={self.serial}",))  # CODE: SN=<serial> at the end

    def _type(self, session: Session, asked: Command, now: float) -> Reply:
        text = f"Polatis,{self.model},OCS,{self.firmware}"
        return Reply(bare=(text,)) if self.bare_netype else Reply((text,))

    # ---- patches

    def _patches(self, session: Session, asked: Command, now: float) -> Reply:
        wanted = None if asked.aid.upper() in ("", "ALL") else {label for _, label in self._listed(asked)}
        pairs = [pair for pair in self.view(now) if wanted is None or wanted & set(pair)]
        session.delay_s = self.row_delay_s * len(pairs)
        return Reply([f"{ingress},{egress}" for ingress, egress in pairs])

    def _connect(self, session: Session, asked: Command, now: float) -> Reply:
        """One patch, the ingress first (CODE)."""
        if len(asked.aids) != 2:
            raise Denied("IIAC", "Invalid AID, ingress,egress wanted")
        pair = (self._known(asked.aids[0])[1], self._known(asked.aids[1])[1])
        if self._side[pair[0]][0] != "in" or self._side[pair[1]][0] != "out":
            raise Denied("IIAC", f"Invalid AID {pair[0]},{pair[1]}: not ingress,egress")
        if self.plant.since(pair) is None and (why := self.plant.why_not(pair) or self.plant.wrong.lock(pair)):
            if why.endswith("in use"):
                self.plant.violations.append(Violation(now, pair, why))
            raise Denied("SROF", why[:1].upper() + why[1:])
        self.wrote(now)
        self.plant.connect([pair], now)
        self._changed()
        return Reply()

    def _disconnect(self, session: Session, asked: Command, now: float) -> Reply:
        """The patches at one port, at a list of ports (both ends of one are one patch), or ALL (CODE)."""
        if asked.aid.upper() == "ALL":
            pairs = list(self.plant.pairs())
        else:
            found = [c.pair for side in self._listed(asked) if (c := self.plant.circuit(side))]
            pairs = list(dict.fromkeys(found))
            if not pairs:
                raise Denied("SNVS", f"No patch at {asked.aid[:40]}")
        for pair in pairs:
            if why := self.plant.wrong.lock(pair):
                raise Denied("SROF", why[:1].upper() + why[1:])
        self.wrote(now)
        refused = self.plant.disconnect(self.some(pairs), now)
        self._changed()
        if refused:
            raise Denied("SROF", next(iter(refused.values())))
        return Reply()

    def _changed(self) -> None:
        if self.boot_mode == "AUTOSAVE":
            self._saved = self.plant.pairs()

    # ---- ports

    def _known(self, label: str) -> Side:
        try:
            return self._side[str(int(label))]
        except (KeyError, ValueError):
            raise Denied("IIAC", f"Invalid port {label[:20]}") from None

    def _listed(self, asked: Command) -> list[Side]:
        return [self._known(label) for label in listed(asked.aid)]

    def _rows(self, session: Session, asked: Command, row: Callable[[Side, float], str | None], now: float) -> Reply:
        """One row per port asked for; a port that has no such thing has no row, and if none has it the question is denied (U)."""
        sides = self._listed(asked) if asked.aid.upper() not in ("", "ALL") else list(self._side.values())
        rows = [text for side in sides if (text := row(side, now)) is not None]
        if sides and not rows:
            raise Denied("ENEQ", "Not equipped")
        session.delay_s = self.row_delay_s * len(rows)
        return Reply(rows)

    def _shutter(self, asked: Command, shut: bool, now: float) -> Reply:
        sides = self._listed(asked)
        self.wrote(now)
        self.plant.set_disabled(self.some(sides), shut, now)
        return Reply()

    def _shutter_row(self, side: Side, now: float) -> str:
        """`1:open` is CODE; `closed` is U, and so is `failed`: over SCPI a port has these three states (DOC notes)."""
        if side in self.plant.wrong.failed:
            return f"{side[1]}:failed"
        return f"{side[1]}:{'closed' if self.plant.disabled(side) else 'open'}"

    def _power_row(self, side: Side, now: float) -> str | None:
        return f"{side[1]}:{self.plant.power_dbm(side, now):.2f}" if metered(self.model, side) else None

    def _monitor_row(self, side: Side, now: float) -> str | None:
        return f"{side[1]}:{self.monitors.get(side[1], Monitor())}" if metered(self.model, side) else None

    def _set_monitor(self, session: Session, asked: Command, now: float) -> Reply:
        """`wave` is CODE; `offset` and `avgtime` are named after the columns of the answer (U)."""
        sides, options = self._listed(asked), asked.options
        if not options or set(options) - {"WAVE", "OFFSET", "AVGTIME"}:
            raise Denied("IDNV", "Invalid data")
        values = {key: number_of(text) for key, text in options.items()}
        if any(value is None for value in values.values()):
            raise Denied("IDNV", "Invalid data")
        if any(not metered(self.model, side) for side in sides):
            raise Denied("ENEQ", "Not equipped")
        self.wrote(now)
        for _, label in () if self.silent else self.some(sides):
            self.monitors[label] = self.monitors.get(label, Monitor()).changed(values)
        return Reply()

    def _label(self, session: Session, asked: Command, now: float) -> Reply:
        sides, text = self._listed(asked), asked.options.get("LABEL")
        if text is None or len(text) > 40:
            raise Denied("IDNV", "Invalid label")
        self.wrote(now)
        for _, label in () if self.silent else sides:
            self.labels[label] = text
        return Reply()

    # ---- flaps: the switch's own fault injection

    def _flap_entered(self, session: Session, asked: Command, now: float) -> Reply:
        """ENT-PORT-FLAP::10:c::1000,500,1: period (ms), dark time in it (ms), how often, 0 for ever; the meaning is U."""
        sides = self._listed(asked)
        numbers = [number_of(item) for item in asked.payload]
        if len(numbers) != 3 or any(n is None for n in numbers):
            raise Denied("IDNV", "Invalid data")
        period_ms, dark_ms, times = (float(n) for n in numbers if n is not None)
        if not 10 <= period_ms <= 3.6e6 or not 0 < dark_ms <= period_ms or not 0 <= times <= 1e6:
            raise Denied("IDNV", "Invalid data")
        self.wrote(now)
        for _, label in () if self.silent else sides:
            self._stop_flap(label, now)
            self.flaps[label] = Flap(period_ms / 1000, dark_ms / 1000, int(times))
        return Reply()

    def _flap(self, asked: Command, start: bool, now: float) -> Reply:
        sides = self._listed(asked)
        for side in sides:
            if side[1] not in self.flaps:
                raise Denied("SNVS", f"No flap entered for {side[1]}")
        self.wrote(now)
        for side in () if self.silent else sides:
            if start:
                self.flaps[side[1]].start(now, self.plant.disabled(side))
            else:
                self._stop_flap(side[1], now)
        self.tick(now)
        return Reply()

    def _stop_flap(self, label: str, now: float) -> None:
        flap = self.flaps.get(label)
        if flap is not None and flap.stop() and not flap.was_shut:
            self.plant.set_disabled([self._side[label]], False, now)

    # ---- variable attenuators

    def _set_attenuation(self, session: Session, asked: Command, now: float) -> Reply:
        """SET-PORT-ATTEN::33:c:::MODE=..,LEVEL=..,REFS=..; output ports only (CODE)."""
        options = asked.options
        mode, level = options.get("MODE", "").upper(), number_of(options.get("LEVEL", "0"))
        if set(options) - {"MODE", "LEVEL", "REFS"} or level is None or abs(level) > 100:
            raise Denied("IDNV", "Invalid data")
        if mode not in Attenuator.MODES or (mode != "NONE" and "LEVEL" not in options):
            raise Denied("IDNV", "Invalid data - mode")
        sides = self._listed(asked)
        if not self.voa or any(which != "out" for which, _ in sides):
            raise Denied("ENEQ", "Not equipped - output ports only")
        refs = self._known(options["REFS"])[1] if options.get("REFS") else ""
        self.wrote(now)
        for _, label in () if self.silent else self.some(sides):
            self.attenuators[label] = Attenuator(mode, level, refs)
            self.plant.attenuate(("out", label), 0.0)
        self._hold_levels(now)
        return Reply()

    def _attenuation_row(self, side: Side, now: float) -> str | None:
        """In the words of SET-PORT-ATTEN (U)."""
        if not self.voa or side[0] != "out":
            return None
        return f"{side[1]}:{self.attenuators.get(side[1], Attenuator())}"

    def _hold_levels(self, now: float) -> None:
        """Turn the attenuators to what their modes ask, from the light there is now."""
        for label, attenuator in self.attenuators.items():
            circuit = self.plant.circuit(("out", label))
            if circuit is None or not self.plant.settled(circuit, now):
                attenuator.released()
                continue
            reference = attenuator.refs or circuit.ingress
            db = attenuator.needed(
                self.plant.true_dbm(self._side[reference], now),
                self.plant.true_dbm(("out", label), now),
                self.plant.attenuators.get(("out", label), 0.0),
            )
            if db is not None and abs(db - self.plant.attenuators.get(("out", label), 0.0)) > 0.005:
                self.plant.attenuate(("out", label), db)
                self._turned = True


FAMILY = Family("polatis-tl1", ("tcp",), PolatisTl1, numbered, login=("admin", "root"))
