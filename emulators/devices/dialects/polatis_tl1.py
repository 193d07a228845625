"""Polatis (HUBER+SUHNER) switches over TL1 (port 3082: no echo, no prompt).

Grades: REAL is a log of a live switch of 2017 that its vendor published (login, denials of login
and of a port, lists and ranges), CODE the literal of a public client or of a test suite of the
vendor (Quali cloudshell-L1-polatis templates; pypolatis; scripts that read labels and flaps), U
unconfirmed. Where no source says, the choice is the one that asks most of a driver: a command with
a list is done as a whole or not at all, and no patch is shown before it is at rest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from emulators.devices.dialects.base import Session
from emulators.devices.dialects.polatis_port import metered, number_of
from emulators.devices.dialects.polatis_scpi import numbered
from emulators.devices.dialects.polatis_tl1_ports import PolatisPorts
from emulators.devices.dialects.tl1 import Command, Denied, Reply, Verb, Writer
from emulators.devices.family import Family
from emulators.optics.plant import Pair, Plant, Violation

NIL = "( nil )"  # CODE (Quali): some switches' name before the login; the captured one says its own
# CODE: idle TL1 sessions die after about 60 s (MonALISA); ED-EQPT::TIMEOUT changes it
IDLE_S = 60.0
LONGEST_IDLE = 60  # CODE: the most that ED-EQPT::TIMEOUT takes; its unit is U
BOOT = ("DARK", "RESTORE", "AUTOSAVE")
# REAL: how long the live switch took to let a user in, and to say no
LOGIN_S, DENIED_S = 0.62, 0.13


class PolatisTl1(PolatisPorts):
    """One switch.

    boot_mode: DARK, RESTORE or AUTOSAVE, as over SCPI. bare_netype: RTRV-NETYPE answers without
    quotes (CODE that some do). voa: egress ports have variable attenuators. block_rows: see
    tl1.Writer (U that this family continues answers at all). login_s, denied_s: how long a login
    takes, of the real device; divided by time_scale.

    What differs between versions of the software: bad_port, IIAC (REAL) or IDNV (CODE), denies a
    port that is not there; nil_sid: the name is `( nil )` until a user logs in (CODE); all_aid:
    `ALL` names all ports (REAL), older software wants no AID (DOC).
    """

    writes = re.compile(
        r"^\s*((ent|dlt)-patch|(opr|rls)-port-shutter|set-port|ed-(port|eqpt)|dlt-port-label|(ent|opr|rls)-port-flap)",
        re.IGNORECASE,
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
        bad_port: str = "IIAC",
        nil_sid: bool = False,
        all_aid: bool = True,
        login_s: float = LOGIN_S,
        denied_s: float = DENIED_S,
        time_scale: float = 1.0,
        epoch_s: float = 1_767_268_800.0,
        seed: int = 0,
        idle_s: float | None = IDLE_S,
        boot_s: float = 1.0,
    ) -> None:
        writer = Writer(sid or plant.name, epoch_s, block_rows, b"\r\n")
        if boot_mode.upper() not in BOOT:
            raise ValueError(f"{plant.name}: boot_mode {boot_mode!r} is none of {', '.join(BOOT)}")
        if bad_port not in ("IIAC", "IDNV"):
            raise ValueError(f"{plant.name}: bad_port {bad_port!r} is neither IIAC nor IDNV")
        super().__init__(
            plant,
            writer,
            (username, password),
            model=model or f"N-VST-{len(plant.ingress)}x{len(plant.egress)}-LA1-DMHNV-801",
            voa=voa,
            row_delay_s=row_delay_s,
            bad_port=bad_port,
            all_aid=all_aid,
            seed=seed,
            idle_s=idle_s,
            boot_s=boot_s,
        )
        self.login_user, self.nil_sid = username, nil_sid
        self.login_s, self.denied_s = login_s / time_scale, denied_s / time_scale
        self.serial, self.firmware, self.boot_mode = serial, firmware, boot_mode.upper()
        self.plna_s, self.bare_netype = plna_s, bare_netype
        self._saved: tuple[Pair, ...] = ()
        self.verbs: Mapping[str, Verb] = {
            **self.port_verbs,
            "RTRV-EQPT": self._equipment,
            "ED-EQPT": self._edit_equipment,
            "OPR-ARC-EQPT": self._inhibit,
            "RTRV-INV": self._inventory,
            "RTRV-NETYPE": self._type,
            "RTRV-TOD": self._time_of_day,
            "RTRV-PATCH": self._patches,
            "ENT-PATCH": self._connect,
            "DLT-PATCH": self._disconnect,
        }

    def preset(self, ingress: str, egress: str) -> None:
        """Make a pair as if it had been there for ever. Raises ValueError."""
        self.plant.preset([(ingress, egress)])
        self._saved = self.plant.pairs() if self.boot_mode != "DARK" else ()

    # ---- the manner

    def shown_sid(self, session: Session) -> str | None:
        return NIL if self.nil_sid and session.user is None else None

    def unsolicited(self, now: float) -> bytes:
        # no public capture has one (U)
        return self.writer.autonomous("* ", "REPT ALM PORT", ("1:LOS",), now)

    def snapshot(self, now: float) -> tuple[Pair, ...]:
        """Only patches at rest are shown: clients read back, up to four times, because patches are
        "not confirmed" (CODE).
        """
        return tuple(sorted(self.plant.light(now), key=lambda pair: int(pair[0])))

    def rebooted(self, keep: bool, now: float) -> None:
        """DARK comes up empty, RESTORE with the map at the time it was set (U), AUTOSAVE with the
        last map, as over SCPI.
        """
        if keep:
            self.plant.restore(self._saved, now, self.boot_s)
        else:
            self._saved = ()

    # ---- sessions

    def answer(self, session: Session, asked: Command, now: float) -> Reply:
        """CODE: the switch says where it stopped reading: at a ctag that is missing, at a target
        that is not its own.
        """
        parts = asked.parts
        if len(parts) < 4 or not parts[3].strip():
            raise Denied(
                "IICT",
                f"Parse error at offset {sum(len(part) + 1 for part in parts[:3]) + 1} in command",
            )
        try:
            return super().answer(session, asked, now)
        except Denied as denial:
            if denial.code == "IITA":
                raise Denied(
                    "IITA", f"Parse error at offset {len(parts[0]) + 2} in command"
                ) from None
            raise

    def login(self, session: Session, asked: Command, now: float) -> Reply:
        """REAL: a wrong name is answered PICC without a comment. CODE: what is said when one of the
        two is missing.
        """
        session.delay_s = self.denied_s
        if not asked.aid:
            raise Denied("IIAC", "Too few parameters (0/1)")
        if not asked.payload[0]:
            raise Denied("IPMS", "Too few parameters (0/1) in block 1")
        if (asked.aid.strip('"'), asked.payload[0].strip('"')) != self.account:
            raise Denied("PICC")
        reply = super().login(session, asked, now)
        session.delay_s = self.login_s
        return reply

    def logout(self, session: Session, asked: Command, now: float) -> Reply:
        """CODE: nobody ends another user's session."""
        if asked.aid.strip('"') not in ("", session.user or self.login_user):
            raise Denied("PICC", "Permission denied")
        return super().logout(session, asked, now)

    def _inhibit(self, session: Session, asked: Command, now: float) -> Reply:
        """`opr-arc-eqpt::repmgr:123::ind;`: no reports (CODE). This switch makes none but those of
        faults, which it makes still.
        """
        if asked.aid.upper() != "REPMGR":
            raise Denied("IIAC", f"Invalid equipment {asked.aid[:20]}")
        return Reply()

    # ---- what it is

    def _equipment(self, session: Session, asked: Command, now: float) -> Reply:
        match (asked.aid.upper(), asked.options.get("PARAMETER", "").upper()):
            case ("SYSTEM", "SIZE"):
                # CODE: the text contains this
                return Reply((f"SYSTEM:SIZE={len(self.plant.ingress)}x{len(self.plant.egress)}",))
            case ("PMON", "CONFIG"):
                ports = [s for s in self._side.values() if metered(self.model, s)]
                return Reply(
                    [
                        f"PMON::PORT={label},MODE={'INPUT' if which == 'in' else 'OUTPUT'}"
                        for which, label in ports
                    ]
                )
            case ("ATTEN", "CONFIG"):  # the row is in the shape of the PMON inventory (U)
                return Reply(
                    [f"ATTEN::PORT={port}" for port in self.plant.egress] if self.voa else []
                )
            case ("BOOT", "MODE"):  # CODE: the text contains the mode
                return Reply((f"BOOT:MODE={self.boot_mode}",))
            case ("TIMEOUT", "ADMIN"):  # CODE: the text contains the number
                return Reply((f"TIMEOUT:ADMIN={self.idle_s or 0:g}",))
        raise Denied("IIAC", f"Invalid equipment {asked.aid[:20]}")

    def _edit_equipment(self, session: Session, asked: Command, now: float) -> Reply:
        """ED-EQPT::TIMEOUT:c:::ADMIN=60: idle time of sessions; seconds (U), 0 is for ever (U).
        ED-EQPT::BOOT:c:::MODE=DARK.
        """
        given = ":".join(asked.parts[6:])
        name, _, value = (part.strip() for part in given.partition("="))
        wanted = {"TIMEOUT": "ADMIN", "BOOT": "MODE"}.get(asked.aid.upper())
        if wanted is None:
            raise Denied("IIAC", f"Invalid equipment {asked.aid[:20]}")
        if name.upper() != wanted:
            raise Denied("IPNV", f"Unexpected parameter {name[:20]} in block 2")
        idle = number_of(value)
        if wanted == "ADMIN" and (idle is None or not 0 <= idle <= LONGEST_IDLE):
            raise Denied("IPNV", "Parameter not valid")
        if wanted == "MODE" and value.upper() not in BOOT:
            raise Denied("IDNV", f"Invalid value {value[:20]}")
        self.wrote(now)
        if wanted == "ADMIN" and not self.silent:
            self.idle_s = idle or None
        elif not self.silent:
            self.boot_mode = value.upper()
            self._saved = self.plant.pairs() if self.boot_mode != "DARK" else ()
        return Reply()

    def _inventory(self, session: Session, asked: Command, now: float) -> Reply:
        if asked.aid.upper() != "OCS":
            raise Denied("IIAC", f"Invalid inventory {asked.aid[:20]}")
        return Reply((f"OCS::PN={self.model},SN={self.serial}",))  # CODE: SN=<serial> at the end

    def _type(self, session: Session, asked: Command, now: float) -> Reply:
        text = f"Polatis,{self.model},OCS,{self.firmware}"
        return Reply(bare=(text,)) if self.bare_netype else Reply((text,))

    def _time_of_day(self, session: Session, asked: Command, now: float) -> Reply:
        """CODE: the text contains YYYY,MM,DD,HH,MM."""
        return Reply((self.writer.clock(now).strftime("%Y,%m,%d,%H,%M,%S"),))

    # ---- patches

    def _patches(self, session: Session, asked: Command, now: float) -> Reply:
        wanted = None if self.everyone(asked) else {label for _, label in self.listed(asked.aid)}
        pairs = [pair for pair in self.view(now) if wanted is None or wanted & set(pair)]
        session.delay_s = self.row_delay_s * len(pairs)
        return Reply([f"{ingress},{egress}" for ingress, egress in pairs])

    def _connect(self, session: Session, asked: Command, now: float) -> Reply:
        """Ingress ports, then as many egress ports (REAL). A port in use loses its patch: "create
        or move" (CODE: pypolatis).
        """
        if len(asked.aids) != 2:
            raise Denied("IIAC", "Invalid AID, ingress,egress wanted")
        sides = [self.listed(aid) for aid in asked.aids]
        for which, given in zip(("in", "out"), sides, strict=True):
            if strange := [port for side, port in given if side != which]:
                raise Denied(self.bad_port, f"Invalid OXC port: {strange[0]}")
            if len(set(given)) < len(given) or len(given) != len(sides[0]):
                raise Denied("IIAC", f"Invalid AID {asked.aid[:40]}")
        pairs = [(ingress, egress) for (_, ingress), (_, egress) in zip(*sides, strict=True)]
        new = [pair for pair in pairs if self.plant.since(pair) is None]
        held = list(
            dict.fromkeys(
                c.pair
                for i, e in new
                for s in (("in", i), ("out", e))
                if (c := self.plant.circuit(s))
            )
        )
        for pair in [*held, *new]:
            if why := self.plant.wrong.lock(pair) or self._blocked(pair, pair in held):
                raise Denied("SROF", why[:1].upper() + why[1:])
        self.wrote(now)
        if not self.silent:
            self.plant.violations += [
                Violation(now, pair, "taken down by ENT-PATCH on a port in use") for pair in held
            ]
            made = self.some(new)
            ports = {s for i, e in made for s in (("in", i), ("out", e))}
            self.plant.disconnect([p for p in held if {("in", p[0]), ("out", p[1])} & ports], now)
            self.plant.connect(made, now)
        self._changed()
        return Reply()

    def _blocked(self, pair: Pair, held: bool) -> str | None:
        """Return why mirrors do not move: to break a patch, only a stuck one matters."""
        wrong = self.plant.wrong
        for side in (("in", pair[0]), ("out", pair[1])):
            if side in wrong.stuck:
                return f"port {side[1]} stuck"
            if not held and (side in wrong.failed or self.plant.disabled(side)):
                return f"port {side[1]} {'failed' if side in wrong.failed else 'disabled'}"
        return None

    def _disconnect(self, session: Session, asked: Command, now: float) -> Reply:
        """The patches at one port, at a list of ports (both ends of one are one patch; REAL), or
        all of them.
        """
        if self.everyone(asked):
            pairs = list(self.plant.pairs())
        else:
            found = [c.pair for side in self.listed(asked.aid) if (c := self.plant.circuit(side))]
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


FAMILY = Family(
    "polatis-tl1",
    ("tcp",),
    PolatisTl1,
    numbered,
    login=("admin", "root"),
    quick={"login_s": 0.0, "denied_s": 0.0},
)
