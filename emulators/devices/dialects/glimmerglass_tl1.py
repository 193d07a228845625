"""Glimmerglass System 100/300/500 over TL1 (port 10033: echo, prompt `<`, long answers in several
blocks).

Grades: REAL is the output kept in a public driver's log (cloudshell-L1-glimmerglass, 2016: the
newer rows) and in comments of MonALISA and pynt (2005: the older rows), CODE a literal of public
clients (MonALISA Sys300Telnet, pynt), U unconfirmed. No denial is known: codes and texts are U. So
are the login (public clients are seen to log in to other families only: an account is asked for
where one is configured) and what shows while mirrors move (nothing, as if unconnected).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from emulators.devices.dialects.base import Session
from emulators.devices.dialects.tl1 import Command, Denied, Reply, Tl1Dialect, Verb, Writer, listed
from emulators.devices.family import Family
from emulators.optics.plant import Pair, Plant, Side, Violation

# CODE: 10001.. in, 20001.. out; a 48x48 has 10001-10048 and 20001-20048
FIRST_IN, FIRST_OUT = 10001, 20001
# REAL that terminal escapes come just after the connection (driver log, pynt)
GREETING = b'\x1b[62;1"p\x1b>\x1b[?3l\x1b[?4l'
PROMPT = b"\r\n<"  # REAL; it can be glued to the front of the next echo
# REAL: with line ends of two bytes, the longest block of the log has 4002, and a row more would
# have made 4022
BLOCK_BYTES = 4010
# REAL: was there light before
DARK_CAUSE = {True: "input_loss_of_light", False: "initial_connection_timer_expired"}


@dataclass(frozen=True, slots=True)
class Row:
    """A circuit, or a port without one ("" for the side that is missing)."""

    ingress: str
    egress: str
    user: str  # who made it
    state: str
    cause: str
    input_dbm: float | None
    output_dbm: float | None


def numbered(ingress: int, egress: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the labels of an NxM switch."""
    return (
        tuple(str(n) for n in range(FIRST_IN, FIRST_IN + ingress)),
        tuple(str(n) for n in range(FIRST_OUT, FIRST_OUT + egress)),
    )


class GlimmerglassTl1(Tl1Dialect[tuple[Row, ...]]):
    """One switch.

    older: rows of older firmware, with fewer fields. lock_fields: older rows end with CONNLOCK and
    CONNLOCKUSER (REAL that some do and some do not). names: of ports; by default IN1.., OUT1..
    (REAL), and none on older firmware (REAL). group: of all ports. band_nm: SIGBAND. block_bytes,
    block_rows: see tl1.Writer. echo: how often a command is echoed; "mixed" changes from command to
    command (REAL that both happen). indents: blanks before the header and before a row: three as a
    rule, two in a comment of 2005 on circuits, and one reader kept its rows without any (REAL).
    locks: port -> the other user who holds it. username, password: the account; "" is none, and
    then none is asked for.
    """

    writes = re.compile(r"^\s*(ent|dlt|ed)-", re.IGNORECASE)

    def __init__(
        self,
        plant: Plant,
        *,
        sid: str | None = None,
        model: str = "System 300",
        serial: str = "GG-000417",
        firmware: str = "3.4.2",
        older: bool = False,
        lock_fields: bool = True,
        names: Mapping[str, str] | None = None,
        group: str = "OpenGroup",
        band_nm: int = 1550,
        username: str = "",
        password: str = "",
        block_bytes: int = BLOCK_BYTES,
        block_rows: int = 0,
        row_delay_s: float = 0.0001,
        echo: Literal["once", "twice", "mixed", "none"] = "mixed",
        indents: Sequence[int] = (3, 3),
        locks: Mapping[str, str] | None = None,
        epoch_s: float = 1_767_268_800.0,
        seed: int = 0,
        # as on the other TL1 switches MonALISA speaks to (CODE): ping after 60 s, socket timeout 90
        # s
        idle_s: float | None = 90.0,
        boot_s: float = 1.0,
    ) -> None:
        account = (username, password) if username else None
        if len(indents) != 2 or not all(
            type(blanks) is int and 0 <= blanks <= 8 for blanks in indents
        ):
            raise ValueError(
                f"{plant.name}: indents: wanted two numbers of blanks, seen {indents!r}"
            )
        writer = Writer(
            sid or plant.name.upper(),
            epoch_s,
            block_rows,
            block_bytes=block_bytes,
            indents=(indents[0], indents[1]),
        )
        super().__init__(plant, writer, account, seed=seed, idle_s=idle_s, boot_s=boot_s)
        if echo not in ("once", "twice", "mixed", "none"):
            raise ValueError(f"{plant.name}: echo {echo!r} is none of once, twice, mixed, none")
        self.model, self.serial, self.firmware, self.older, self.echo = (
            model,
            serial,
            firmware,
            older,
            echo,
        )
        self.lock_fields, self.group, self.band_nm = lock_fields, group, band_nm
        self.row_delay_s = row_delay_s
        for port, user in dict(locks or {}).items():
            try:
                plant.wrong.locked.update(dict.fromkeys(plant.sides(str(port)), str(user)))
            except KeyError as error:
                raise ValueError(f"locks: {error.args[0]}") from None
        self._side: dict[str, Side] = {p: ("in", p) for p in plant.ingress} | {
            p: ("out", p) for p in plant.egress
        }
        usual = (
            {}
            if older
            else {
                p: f"{'IN' if p in plant.ingress else 'OUT'}{int(p) % 10_000}" for p in self._side
            }
        )
        self._names = usual | {str(port): str(name) for port, name in dict(names or {}).items()}
        if unknown := self._names.keys() - self._side.keys():
            raise ValueError(f"names: no port {min(unknown)}")
        # REAL: `admin` with CONNLOCK=0 on newer firmware, nothing in 2005
        self._nobody = "" if older else "admin"
        self._users: dict[Pair, str] = {}
        self._was_lit: set[Pair] = set()
        self._saved: tuple[Pair, ...] = ()
        self.verbs: Mapping[str, Verb] = {
            "ENT-CRS-FIBER": self._connect,
            "DLT-CRS-FIBER": self._disconnect,
            "RTRV-CRS-FIBER": self._circuits,
            "RTRV-PORT-POWER": self._powers,
            "RTRV-CFG-FIBER": self._configuration,
            "RTRV-SYSTEM-INFO": self._system,
            "RTRV-SIGTYPE-FIBER": self._bands,
            "ED-PARAM": self._edit_parameter,
        }

    def preset(self, ingress: str, egress: str) -> None:
        """Make a pair as if it had been there for ever. Raises ValueError."""
        self.plant.preset([(ingress, egress)])

    # ---- the manner

    def open(self, now: float) -> Session | None:
        session = super().open(now)
        if session is not None and self.echo != "none":
            self.send(session, now, GREETING + PROMPT)
        return session

    def framed(self, command: str, reply: bytes) -> bytes:
        times = (
            {"none": 0, "once": 1, "twice": 2}.get(self.echo)
            if self.echo != "mixed"
            else self._random.choice((1, 1, 2))
        )
        if not times:
            return reply
        shown = f"{command};".encode("latin-1", "replace")
        return b"\r\n".join([shown] * times) + reply + PROMPT

    def inside(self, reply: bytes) -> int:
        """Between two blocks where there are several, else after the first row or header line."""
        between = reply.find(b"\r\n>\r\n")
        if between >= 0:
            return between + 5
        header = reply.find(b"\r\n\n")
        return reply.find(b"\r\n", header + 3) + 2

    def unsolicited(self, now: float) -> bytes:
        # no public capture has one (U)
        return self.writer.autonomous("* ", "REPT ALM FIBER", ("GGN:PORTID=10001,LOS",), now)

    def snapshot(self, now: float) -> tuple[Row, ...]:
        """One row per port in their order, so that a circuit is there twice (REAL): among the
        inputs and among the outputs.
        """
        made = {
            side: row
            for pair in self.plant.light(now)
            if (row := self._row(pair, now))
            for side in (("in", pair[0]), ("out", pair[1]))
        }
        return tuple(made.get(side) or self._unconnected(side, now) for side in self._side.values())

    def rebooted(self, keep: bool, now: float) -> None:
        """Circuits come back after a power cycle (U)."""
        if keep:
            self.plant.restore(self._saved, now, self.boot_s)
        self._saved = self._saved if keep else ()
        self._was_lit.clear()

    def reboot(self, keep: bool, now: float) -> None:
        self._saved = self.plant.pairs()
        super().reboot(keep, now)

    def on_light(self, now: float) -> None:
        lit = self.plant.lit(now)
        self._was_lit = {pair for pair in self._was_lit if self.plant.since(pair) is not None} | {
            p for p in lit if len(p) == 2
        }

    # ---- reading

    def _row(self, pair: Pair, now: float) -> Row:
        circuit = self.plant.circuit(("in", pair[0]))
        bright = circuit is not None and self.plant.bright(circuit, now)
        cause = "none" if bright else DARK_CAUSE[pair in self._was_lit]
        if self.plant.since(pair) is None:
            cause = "none"
        taken, given = self._measured(("in", pair[0]), now), self._measured(("out", pair[1]), now)
        user = self._users.get(pair, self._nobody)
        return Row(*pair, user, "steady" if bright else "fault", cause, taken, given)

    def _unconnected(self, side: Side, now: float) -> Row:
        level = self._measured(side, now)
        return (
            Row(side[1], "", "", "single", "none", level, None)
            if side[0] == "in"
            else Row("", side[1], "", "single", "none", None, level)
        )

    def _asked(self, asked: Command) -> list[Side] | None:
        """Return the ports of an AID list, None for all."""
        if asked.aid.lower() in ("all", ""):
            return None
        return [self._known(label) for label in listed(asked.aid)]

    def _known(self, label: str) -> Side:
        if label not in self._side:
            raise Denied("IIAC", f"Invalid port {label[:20]}")
        return self._side[label]

    def _circuits(self, session: Session, asked: Command, now: float) -> Reply:
        rows = dict(zip(self._side.values(), self.view(now), strict=True))
        wanted = [rows[side] for side in self._asked(asked) or rows]
        session.delay_s = self.row_delay_s * len(wanted)
        return Reply([self._older(row) if self.older else self._newer(row) for row in wanted])

    def _newer(self, row: Row) -> str:
        """All eighteen fields in their order (REAL)."""
        taken, given, lost = self._levels(row, 2)
        locked, user = self._lock(row)
        into, out = self._names.get(row.ingress, ""), self._names.get(row.egress, "")
        # REAL: a connection has the name of its input
        named = into if row.ingress and row.egress else ""
        return (
            f"GGN:IPORTID={row.ingress or 0},IPORTGROUP={self.group if row.ingress else ''},IPORTNAME={into},IPORTCOMMENT=,"
            f"INPWR={taken},OPORTID={row.egress or 0},OPORTGROUP={self.group if row.egress else ''},OPORTNAME={out},"
            f"OPORTCOMMENT=,OUTPWR={given},"
            f"SIGBAND={self.band_nm},PWRLOSS={lost},CONNID=0,CONNNAME={named},CONNSTATE={row.state},CONNCAUSE={row.cause},"
            f"CONNLOCK={locked},CONNLOCKUSER={user}"
        )

    def _older(self, row: Row) -> str:
        """Fewer fields and three decimals (REAL)."""
        taken, given, lost = self._levels(row, 3)
        locked, user = self._lock(row)
        lock = f",CONNLOCK={locked},CONNLOCKUSER={user}" if self.lock_fields else ""
        return (
            f"GGN:IPORTID={row.ingress or 0},IPORTNAME={self._names.get(row.ingress, '')},OPORTID={row.egress or 0},"
            f"OPORTNAME={self._names.get(row.egress, '')},CONNID=0,CONNSTATE={row.state},CONNCAUSE={row.cause},"
            f"INPWR={taken},OUTPWR={given},PWRLOSS={lost}{lock}"
        )

    def _levels(self, row: Row, digits: int) -> tuple[str, str, str]:
        """In, out and loss as printed. A missing side is NA, on older firmware 0.000 (REAL).

        The loss comes from another meter reading: REAL are 0.000 to 0.013 dB off the difference of
        the two with light, 0.031 without.
        """
        missing = "0.000" if self.older else "NA"
        taken, given = (
            missing if dbm is None else f"{dbm:.{digits}f}"
            for dbm in (row.input_dbm, row.output_dbm)
        )
        if row.input_dbm is None or row.output_dbm is None:
            return taken, given, missing
        lost = (
            row.input_dbm
            - row.output_dbm
            + self._random.gauss(0.0, 0.007 if row.state == "steady" else 0.03)
        )
        return taken, given, f"{lost:.{digits}f}"

    def _lock(self, row: Row) -> tuple[int, str]:
        locked = self.plant.wrong.locked
        holder = next(
            (locked[s] for s in (("in", row.ingress), ("out", row.egress)) if s in locked), ""
        )
        return int(bool(holder)), holder or row.user

    def _powers(self, session: Session, asked: Command, now: float) -> Reply:
        wanted = self._asked(asked)
        sides = list(self._side.values()) if wanted is None else wanted
        session.delay_s = self.row_delay_s * len(sides)
        return Reply(
            [f"GGN:PORTID={side[1]},PORTPOWER={self._measured(side, now):.3f}" for side in sides]
        )

    def _measured(self, side: Side, now: float) -> float:
        """Return what the meter reads, to 0.001 dB (REAL). Dark ports read about -48 to -52 dBm
        (REAL), unconnected ones too.
        """
        dbm = self.plant.power_dbm(side, now)
        if dbm <= self.plant.floor_dbm:
            return self._random.gauss(self.plant.dark_dbm, 1.0)
        return dbm + self._random.uniform(-0.005, 0.005)  # the plant's meters have steps of 0.01 dB

    def _configuration(self, session: Session, asked: Command, now: float) -> Reply:
        wanted = self._asked(asked)
        rows = []
        for side in list(self._side.values()) if wanted is None else wanted:
            # "good" is REAL, its opposite U
            health = "bad" if side in self.plant.wrong.failed else "good"
            more = ",CSFLTSEV=CR" if side[0] == "out" else ""
            rows.append(
                f"GGN:PORTID={side[1]},PORTGROUP={self.group},PORTNAME={self._names.get(side[1], '')},SIGBAND={self.band_nm},"
                f"SIGTHRESH={self.band_nm},PORTHEALTH={health},PORTCAT=nor,PORTCOMMENT=,STMINSEV=DI,STMAXSEV=DI{more}"
            )
        session.delay_s = self.row_delay_s * len(rows)
        return Reply(rows)

    def _system(self, session: Session, asked: Command, now: float) -> Reply:
        """The five fields that public clients search for (CODE); their order and that they are in
        one row is U.
        """
        matrix = f"{len(self.plant.ingress)}x{len(self.plant.egress)}"
        return Reply((
            f"GGN:SystemType={self.model},ChassisType={self.model},SerialNumber={self.serial},LicensedPortMatrix={matrix},"
            f"SoftwareActiveVersion={self.firmware}",
        ))  # fmt: skip

    def _bands(self, session: Session, asked: Command, now: float) -> Reply:
        """The three fields that a lab's client searches for (CODE)."""
        wanted = self._asked(asked)
        return Reply([
            f"GGN:PORTID={side[1]},PORTNAME={self._names.get(side[1], '')},SIGTYPE={self.band_nm}"
            for side in (self._side.values() if wanted is None else wanted)
        ])  # fmt: skip

    # ---- writing

    def _pairs(self, asked: Command) -> list[Pair]:
        """Two lists that pair by position; `all` is every port of its side (CODE)."""
        if len(asked.aids) != 2:
            raise Denied("IIAC", "Invalid AID - ingress and egress wanted")
        every = (self.plant.ingress, self.plant.egress)
        lists = [
            list(ports) if aid.lower() == "all" else listed(aid)
            for aid, ports in zip(asked.aids, every, strict=True)
        ]
        if len(lists[0]) != len(lists[1]):
            raise Denied("IIAC", "Invalid AID - lists differ in length")
        pairs = list(zip(*lists, strict=True))
        for ingress, egress in pairs:
            if self._known(ingress)[0] != "in" or self._known(egress)[0] != "out":
                raise Denied("IIAC", f"Invalid AID - {ingress},{egress} is not ingress,egress")
        if len({i for i, _ in pairs}) < len(pairs) or len({e for _, e in pairs}) < len(pairs):
            raise Denied("IIAC", "Invalid AID - a port twice")
        return pairs

    def _connect(self, session: Session, asked: Command, now: float) -> Reply:
        """All of the pairs or, if one cannot be, none (U)."""
        pairs = self._pairs(asked)
        for pair in pairs:
            if self.plant.since(pair) is not None:
                raise Denied("SNVS", f"Connection {pair[0]},{pair[1]} exists")
            if why := self.plant.why_not(pair) or self.plant.wrong.lock(pair):
                if why.endswith("in use"):
                    self.plant.violations.append(Violation(now, pair, why))
                raise Denied("SARB", why[:1].upper() + why[1:])
        self.wrote(now)
        for pair in pairs:
            self._users[pair] = session.user or self._nobody
        self.plant.connect(self.some(pairs), now)
        return Reply()

    def _ended(self, asked: Command) -> list[Pair]:
        """Return the pairs to end. One list is of ports, each with whatever it is connected to;
        `all` and `all,all` are every connection, and none is no mistake (CODE: a lab's daily calls;
        U that either side may be named)."""
        if {aid.lower() for aid in asked.aids} == {"all"}:
            return list(self.plant.pairs())
        if len(asked.aids) == 2:
            return self._pairs(asked)
        held = [(port, self.plant.circuit(self._known(port))) for port in listed(asked.aid)]
        if free := next((port for port, circuit in held if circuit is None), None):
            raise Denied("SNVS", f"No connection {free}")
        return list(dict.fromkeys(circuit.pair for _, circuit in held if circuit is not None))

    def _disconnect(self, session: Session, asked: Command, now: float) -> Reply:
        pairs = self._ended(asked)
        for pair in pairs:
            if self.plant.since(pair) is None:
                raise Denied("SNVS", f"No connection {pair[0]},{pair[1]}")
            if why := self.plant.wrong.lock(pair):
                raise Denied("SARB", why[:1].upper() + why[1:])
        self.wrote(now)
        if refused := self.plant.disconnect(self.some(pairs), now):
            raise Denied("SROF", next(iter(refused.values())))
        return Reply()

    def _edit_parameter(self, session: Session, asked: Command, now: float) -> Reply:
        """ED-PARAM:::c:::NAME=...,VAL=...; nothing reads a parameter back (CODE: the command; U:
        which names there are).
        """
        if set(asked.options) != {"NAME", "VAL"} or not all(asked.options.values()):
            raise Denied("IPMS", "NAME and VAL wanted")
        self.wrote(now)
        return Reply()


FAMILY = Family(
    "glimmerglass-tl1",
    ("tcp",),
    GlimmerglassTl1,
    numbered,
    settle_s=0.01,  # 2003 article on the System 300: 10 ms
)
