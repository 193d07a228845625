"""Calient 3D-MEMS switches over TL1: raw mode on port 3082 (no echo, no prompt), on port 3083
telnet with the prompt `agent> `.

Grades: REAL is device output kept in public drivers (Quali cloudshell-L1-calient tests, MonALISA,
NTT RENAT), DOC vendor text (Lawo VSM's page on Calient), CODE a literal of public clients (pynt,
the Phosphorus G2MPLS plugin for the state model), U unconfirmed: which error code answers which
fault is published nowhere; the texts are the ones public clients search for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from emulators.devices.dialects.base import Session
from emulators.devices.dialects.calient_table import (
    KINDS,
    STYLES,
    Connection,
    Row,
    Table,
    aids,
    default_name,
    preset_by,
)
from emulators.devices.dialects.tl1 import Command, Denied, Reply, Tl1Dialect, Verb, Writer
from emulators.devices.family import Family
from emulators.optics.plant import Plant

# REAL that there is one, in one comment, and that its words alarm (Quali); the text is this
# project's
LEGAL = (
    "NOTICE Private system. Access without authority is denied and may be prosecuted. Failed or invalid attempts are logged.",
)


# REAL (MonALISA), of one connection; that it names the switching matrix and is the same for all is
# U
MATRIX = "31.1"
PROMPT = b"\r\nagent> "  # CODE: pynt and the Quali Calient configuration wait for `agent> `


class CalientTl1(Tl1Dialect[tuple[Row, ...]]):
    """One switch.

    plna_s: how long after ACT-USER commands are still answered PLNA (pynt waits 0.5 s; default
    none). row_delay_s: time a dump takes per row (pynt measured minutes on a PXC). meters: False
    gives NONE in power fields (REAL on some ports). matrix: rows of a PXC: they end with MATRIXUSED
    (REAL: MonALISA). block_rows, trailer: see tl1.Writer.
    """

    writes = re.compile(r"^\s*(ent|act|canc|dlt|ed)-(crs|port)", re.IGNORECASE)

    def __init__(
        self,
        plant: Plant,
        *,
        sid: str | None = None,
        model: str = "S320",
        serial: str = "C00002227",
        firmware: str = "6.0-3",
        username: str = "admin",
        password: str = "emulated",
        plna_s: float = 0.0,
        row_delay_s: float = 0.0001,
        block_rows: int = 0,
        trailer: str = "",
        matrix: bool = False,
        meters: bool = True,
        # 26-01-01 12:00:00 at second 0 unless the server says otherwise
        epoch_s: float = 1_767_268_800.0,
        seed: int = 0,
        # CODE: MonALISA pings after 60 s "otherwise the connection will be lost", socket timeout 90
        # s
        idle_s: float | None = 90.0,
        boot_s: float = 1.0,
    ) -> None:
        writer = Writer(sid or plant.name.upper(), epoch_s, block_rows, trailer.encode("latin-1"))
        super().__init__(
            plant, writer, (username, password), seed=seed, idle_s=idle_s, boot_s=boot_s
        )
        self.model, self.serial, self.firmware = model, serial, firmware
        self.plna_s = plna_s
        self.row_delay_s, self.matrix = row_delay_s, matrix
        self.table = Table(plant, meters=meters)
        self._seen_version = -1
        self._changes = 0
        self.aliases: dict[str, str] = {}
        self.verbs: dict[str, Verb] = {
            "RTRV-NE": self._identity,
            "RTRV-PORT": self._port_rows,
            "RTRV-PORT-SUM": self._port_sums,
            "RTRV-DET-EQPT": self._detail,
            "ED-PORT": self._edit_port,
            "RTRV-CRS": self._retrieve,
            "ENT-CRS": self._enter,
            "ACT-CRS": self._activate,
            "CANC-CRS": self._cancel,
            "DLT-CRS": self._delete,
            "DLT-CRS-ALL": self._delete_all,
            "INH-MSG": self._inhibit,  # DOC: Lawo names it; syntax U, so any is taken
            "INH-MSG-ALL": self._inhibit,
            "ALW-MSG": self._allow,  # U: GR-833's opposite
            "ALW-MSG-ALL": self._allow,
        }

    # ---- the manner

    def open(self, now: float) -> Session | None:
        session = super().open(now)
        if self.transport == "telnet":
            self.writer.trailer = PROMPT
            if session is not None:
                self.send(session, now, PROMPT)  # before the first command too (U)
        return session

    def unsolicited(self, now: float) -> bytes:
        return self.writer.autonomous(
            "*C", "REPT ALM CRS", (f"{self.table.ports[0]}-{self.table.ports[-1]}:CR,LOS,NSA",), now
        )

    def snapshot(self, now: float) -> tuple[Row, ...]:
        return self.table.rows(now)

    def rebooted(self, keep: bool, now: float) -> None:
        self.table.rebooted(keep, now, self.boot_s)

    def on_light(self, now: float) -> None:
        """Report alarms that came or went with the light. Payload:
        `<in>-<out>:NTFCNCDE,CONDTYPE,SRVEFF` (CODE: Phosphorus).
        """
        if self._seen_version == self.plant.version:
            return
        self._seen_version = self.plant.version
        for connection in self.table:
            self._alarm(connection, self.table.dark(connection, now), now)

    # ---- sessions

    def login(self, session: Session, asked: Command, now: float) -> Reply:
        if session.user is not None:
            # the text is CODE: Quali takes it for success
            raise Denied("SNVS", "Already logged in")
        super().login(session, asked, now)
        # REAL shape; the integer's meaning is U
        return Reply((f"{session.user}:{session.user},{session.number}",), LEGAL)

    def _inhibit(self, session: Session, asked: Command, now: float) -> Reply:
        session.inhibited = True
        return Reply()

    def _allow(self, session: Session, asked: Command, now: float) -> Reply:
        session.inhibited = False
        return Reply()

    def _notify(self, alarm: str, what: str, row: str, now: float) -> None:
        listeners = [s for s in self.sessions if s.user is not None and not s.inhibited]
        if listeners:
            message = self.writer.autonomous(alarm, what, (row,), now)
            for session in listeners:
                self.send(session, max(now, min(session.busy_until_s, now + 1.0)), message)

    def _alarm(self, connection: Connection, dark: bool, now: float) -> None:
        if dark != connection.alarmed:
            connection.alarmed = dark
            row = f"{connection.source}-{connection.target}:{'CR' if dark else 'CL'},LOS,SA"
            self._notify("*C" if dark else "A ", "REPT ALM CRS", row, now)

    def _changed(self, asked: Command, connection: Connection, now: float) -> None:
        """Report a database change. `A n REPT DBCHG EVT ...` is pynt's form; the payload is
        GR-833's idea, shortened (U).
        """
        self._changes += 1
        row = f"SOURCE={asked.ctag},DBCHGSEQ={self._changes}:{asked.verb}:{connection.source},{connection.target}:{connection.name}"
        self._notify("A ", "REPT DBCHG EVT CRS", row, now)

    # ---- reading

    def _identity(self, session: Session, asked: Command, now: float) -> Reply:
        sid = self.writer.sid
        return Reply((
            f"{sid}:SERIALNUMBER={self.serial},SWPACKAGE={self.firmware},STATUS=OK,CHASSISTYPE={self.model},PLATFORM=VERSION2",
        ))  # fmt: skip

    def _asked_ports(self, asked: Command) -> Iterable[str]:
        """`0` or nothing: every port; `1` or `1.1`: a shelf, a module; else one port (REAL
        forms).
        """
        if asked.aid in ("", "0"):
            return self.table.ports
        found = [p for p in self.table.ports if p == asked.aid or p.startswith(asked.aid + ".")]
        if not found:
            raise Denied("IIAC", f"Invalid AID {asked.aid}")
        return found

    def _port_rows(self, session: Session, asked: Command, now: float) -> Reply:
        rows = []
        for port in self._asked_ports(asked):
            owners, states = [], []
            for which, tag in (("in", "IN"), ("out", "OUT")):
                side = (which, port)
                used = self.table.user(side)
                good = "FAIL" if side in self.plant.wrong.failed else "OK"
                owners.append("TRANSIT" if used else "NONE")
                states.append(
                    f"{tag}AS={self.table.administrative(side)},{tag}OS={'IS' if used else 'OOS'},{tag}OC={good},{tag}RS=NPR"
                )
            rows.append(f"{port}:WX,{','.join(owners)}:{','.join(states)}")
        session.delay_s = self.row_delay_s * len(rows)
        return Reply(rows)

    def _port_sums(self, session: Session, asked: Command, now: float) -> Reply:
        rows = []
        for port in self._asked_ports(asked):
            both = dict.fromkeys(c for w in ("in", "out") if (c := self.table.user((w, port))))
            # REAL: both words
            names = [(c.name, "ACT" if c.active else "NONE") for c in both] + [("NONE", "NONE")] * 2
            fields = ",".join(
                f"CONNNAME{n}={name},CONNSTATE{n}={state}"
                for n, (name, state) in enumerate(names[:2], 1)
            )
            rows.append(
                f"{port}:ALIAS={self.aliases.get(port, 'NONE')},INPWR={self.table.power(('in', port), now)},"
                f"OUTPWR={self.table.power(('out', port), now)},{fields}"
            )
        session.delay_s = self.row_delay_s * len(rows)
        return Reply(rows)

    def _detail(self, session: Session, asked: Command, now: float) -> Reply:
        """Power of one port, by the field names of MonALISA (CODE): "no real way to get the power
        on all ports".
        """
        if asked.aid not in self.table.ports:
            raise Denied("IIAC", f"Invalid AID {asked.aid}")
        arriving, leaving = (self.table.power((which, asked.aid), now) for which in ("in", "out"))
        return Reply((f"{asked.aid}:INOPTICALPOWER={arriving},OUTOPTICALPOWERWORKING={leaving}",))

    def _retrieve(self, session: Session, asked: Command, now: float) -> Reply:
        """All rows, or those of a pair, a group, a name; with a name the row carries powers (CODE:
        pynt).
        """
        rows = self.view(now)
        named = [part for part in asked.payload if part and part.upper() != "ALL"]
        pair = [part for part in asked.aids if part]
        if not named and not pair:
            session.delay_s = self.row_delay_s * len(rows)
            return Reply([self._text(row) for row in rows])
        if len(pair) == 2:
            rows = tuple(r for r in rows if (r.source, r.target) == (pair[0], pair[1]))
        elif pair:
            rows = tuple(r for r in rows if pair[0] in (r.source, r.target))
        if len(asked.payload) == 2 and asked.payload[0]:
            rows = tuple(r for r in rows if r.group == asked.payload[0])
        name = asked.payload[1] if len(asked.payload) > 1 else named[0] if named else ""
        if name:
            rows = tuple(r for r in rows if r.name == name)
        if not rows:
            raise Denied("IIAC", "Invalid Connection")
        return Reply([self._text(row) + (self._powers(row, now) if name else "") for row in rows])

    def _text(self, row: Row) -> str:
        return f"{row},MATRIXUSED={MATRIX}" if self.matrix else str(row)

    def _powers(self, row: Row, now: float) -> str:
        reverse = row.kind == "2WAY"
        values = {
            "FORWARD-WORKINGPOWERINPUT": self.table.power(("in", row.source), now),
            "FORWARD-WORKINGPOWEROUTPUT": self.table.power(("out", row.target), now),
            "REVERSE-WORKINGPOWERINPUT": self.table.power(("in", row.target), now)
            if reverse
            else "NONE",
            "REVERSE-WORKINGPOWEROUTPUT": self.table.power(("out", row.source), now)
            if reverse
            else "NONE",
        }
        return "".join(f",{key}={value}" for key, value in values.items())

    # ---- writing

    def _edit_port(self, session: Session, asked: Command, now: float) -> Reply:
        """ED-PORT::<aid>:c::[ALIAS=...][,AS=IS|OOS]: DOC names the command (Lawo), the fields are
        those of the rows (U).
        """
        options = asked.options
        if asked.aid not in self.table.ports:
            raise Denied("IIAC", f"Invalid AID {asked.aid}")
        if (
            not options
            or set(options) - {"ALIAS", "AS"}
            or options.get("AS", "IS").upper() not in ("IS", "OOS")
        ):
            raise Denied("IDNV", "Invalid data")
        self.wrote(now)
        if "ALIAS" in options and not self.silent:
            self.aliases[asked.aid] = options["ALIAS"] or "NONE"
        if "AS" in options:
            sides = self.plant.sides(asked.aid)
            self.plant.set_disabled(self.some(sides), options["AS"].upper() == "OOS", now)
        return Reply()

    def _enter(self, session: Session, asked: Command, now: float) -> Reply:
        """Reserve ports: payload `[group],[type]` (CODE); a third item names the connection, else
        its name comes from its ports.
        """
        if len(asked.aids) != 2:
            raise Denied("IIAC", "Invalid AID, two ports wanted")
        source, target = asked.aids
        if (label := self.table.unknown(source, target)) is not None:
            raise Denied("IIAC", f"Invalid AID {label}")
        group, kind, name = [*asked.payload, "", "", ""][:3]
        kind = kind.upper() or "2WAY"
        if kind not in KINDS:
            raise Denied("IDNV", f"Invalid connection type {kind}")
        if kind == "2WAY" and source == target:
            raise Denied("IIAC", "Invalid Connection - a port with itself")
        connection = Connection(name.strip('"'), source, target, kind, group)
        if taken := self.table.taken(connection, now):
            raise Denied("SARB", f"Invalid Connection - port {taken[0]} busy in {taken[1]}")
        if self.table.get(connection.name):
            raise Denied("IDNV", f"Invalid Connection - name {connection.name} exists")
        self._unlocked(connection)
        self.wrote(now)
        if not self.silent:
            self.table.add(connection)
            self._changed(asked, connection, now)
        return Reply()

    def _unlocked(self, connection: Connection) -> None:
        if why := self.table.lock(connection):
            raise Denied("SARB", f"Invalid Connection - {why}")

    def _activate(self, session: Session, asked: Command, now: float) -> Reply:
        """Answer at once and turn the mirrors: the row shows when they have settled."""
        connection = self._find(asked)
        if connection.active:
            raise Denied("SNVS", "Invalid Connection state - already active")
        self._unlocked(connection)
        self.wrote(now)
        if self.silent:
            return Reply()
        connection.active = True
        self.plant.connect(self.some(connection.pairs), now)
        self._seen_version = -1  # what was not made is an alarm although no light changed
        self._changed(asked, connection, now)
        return Reply()

    def _cancel(self, session: Session, asked: Command, now: float) -> Reply:
        connection = self._find(asked)
        if not connection.active:
            raise Denied("SNVS", "Invalid Connection state - not active")
        self._unlocked(connection)
        self.wrote(now)
        if self.silent:
            return Reply()
        if refused := self.plant.disconnect(connection.pairs, now):
            raise Denied("SROF", f"Requested operation Failed - {next(iter(refused.values()))}")
        connection.active = False
        self._alarm(connection, False, now)
        self._changed(asked, connection, now)
        return Reply()

    def _delete(self, session: Session, asked: Command, now: float) -> Reply:
        """An active connection must be cancelled first: the state model has no other transition (U
        that it is denied so).
        """
        connection = self._find(asked)
        if connection.active:
            raise Denied("SNVS", "Invalid Connection state - active")
        self._unlocked(connection)
        self.wrote(now)
        if self.silent:
            return Reply()
        self.table.remove(connection)
        self._changed(asked, connection, now)
        return Reply()

    def _delete_all(self, session: Session, asked: Command, now: float) -> Reply:
        """Delete every connection, active ones too (CODE: a public client's clean-up)."""
        self.wrote(now)
        for connection in () if self.silent else self.some(tuple(self.table)):
            if not self.plant.disconnect(connection.pairs, now):
                connection.active = False
                self._alarm(connection, False, now)
                self.table.remove(connection)
                self._changed(asked, connection, now)
        return Reply()

    def _find(self, asked: Command) -> Connection:
        """Find by the name in the payload (`name,group`, `,group,name`, `name`: all in public
        clients), or by ports; the ports may be in the place of the name, as rows begin with them
        (CODE: MonALISA's dlt-crs:::dcon::S-D)."""
        tokens = [word.strip('"') for word in asked.payload if word]
        titles = {default_name(c.source, c.target, c.kind): c for c in self.table}
        found = next(
            (c for word in tokens if (c := self.table.get(word) or titles.get(word))), None
        )
        pair = [part for part in asked.aids if part]
        if found is None and len(pair) == 2:
            found = self.table.at(*pair)
        if found is None or (pair and pair != [found.source, found.target]):
            raise Denied("IIAC", "Invalid Connection")
        known = {found.name, found.group} | {title for title, c in titles.items() if c is found}
        if not known.issuperset(tokens):
            raise Denied("IIAC", "Invalid Connection - group")
        return found


FAMILY = Family(
    "calient-tl1",
    ("tcp", "telnet"),
    CalientTl1,
    lambda inputs, _: (aids(inputs), aids(inputs)),
    preset_by("type", {"2way": "2WAY", "1way": "1WAY"}),
    bulk_settle_s=0.2,  # Calient S320 hardware guide p. 44: at most 200 ms per set
    login=("admin", "emulated"),
    square=True,
    styles=STYLES,
)
