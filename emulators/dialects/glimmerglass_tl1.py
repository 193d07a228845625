"""Glimmerglass System 100/300/500 over TL1 (port 10033: echo, prompt `<`, long answers in several blocks).

Grades: REAL is the output kept in a public driver's log and in MonALISA's comments (2005-2016), CODE a literal of public clients
(MonALISA Sys300Telnet, pynt), U unconfirmed. No denial is known: codes and texts are U. So are the login (public clients are seen
to log in to other families only: an account is asked for where one is configured) and what shows while mirrors move (nothing, as
if unconnected).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from emulators.dialects.base import AnyDialect, Session
from emulators.dialects.tl1 import Command, Denied, Reply, Tl1Dialect, Verb, Writer, listed
from emulators.family import Family
from emulators.plant import Pair, Plant, Side, Violation

FIRST_IN, FIRST_OUT = 10001, 20001  # CODE: 10001.. in, 20001.. out; a 48x48 has 10001-10048 and 20001-20048
GREETING = b'\x1b[62;1"p\x1b>\x1b[?3l\x1b[?4l'  # REAL that terminal escapes come just after the connection (driver log, pynt)
PROMPT = b"\r\n<"  # REAL; it can be glued to the front of the next echo
DARK_CAUSE = {True: "input_loss_of_light", False: "initial_connection_timer_expired"}  # REAL: was there light before


@dataclass(frozen=True, slots=True)
class Row:
    """A circuit, or a port without one ("" for the side that is missing)."""

    ingress: str
    egress: str
    number: int
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

    older: rows of older firmware, with fewer fields. block_rows: rows before the answer is continued in a block of its own (REAL:
    16 to 26). echo: how often a command is echoed; "mixed" changes from command to command (REAL that both happen). locks: port ->
    the other user who holds it. username, password: the account; "" is none, and then none is asked for.
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
        username: str = "",
        password: str = "",
        block_rows: int = 18,
        row_delay_s: float = 0.0001,
        echo: Literal["once", "twice", "mixed", "none"] = "mixed",
        locks: Mapping[str, str] | None = None,
        epoch_s: float = 1_767_268_800.0,
        seed: int = 0,
        idle_s: float | None = 90.0,  # as on the other TL1 switches MonALISA speaks to (CODE): ping after 60 s, socket timeout 90 s
        boot_s: float = 1.0,
    ) -> None:
        account = (username, password) if username else None
        writer = Writer(sid or plant.name.upper(), epoch_s, block_rows)
        super().__init__(plant, writer, account, seed=seed, idle_s=idle_s, boot_s=boot_s)
        if echo not in ("once", "twice", "mixed", "none"):
            raise ValueError(f"{plant.name}: echo {echo!r} is none of once, twice, mixed, none")
        self.model, self.serial, self.firmware, self.older, self.echo = model, serial, firmware, older, echo
        self.row_delay_s = row_delay_s
        for port, user in dict(locks or {}).items():
            try:
                plant.wrong.locked.update(dict.fromkeys(plant.sides(str(port)), str(user)))
            except KeyError as error:
                raise ValueError(f"locks: {error.args[0]}") from None
        self._side: dict[str, Side] = {p: ("in", p) for p in plant.ingress} | {p: ("out", p) for p in plant.egress}
        self._numbers: dict[Pair, int] = {}
        self._made = 0
        self._was_lit: set[Pair] = set()
        self._saved: tuple[Pair, ...] = ()
        self.verbs: Mapping[str, Verb] = {
            "ENT-CRS-FIBER": self._connect,
            "DLT-CRS-FIBER": self._disconnect,
            "RTRV-CRS-FIBER": self._circuits,
            "RTRV-PORT-POWER": self._powers,
            "RTRV-CFG-FIBER": self._configuration,
            "RTRV-SYSTEM-INFO": self._system,
        }

    def preset(self, ingress: str, egress: str) -> None:
        """Make a pair as if it had been there for ever. Raises ValueError."""
        self.plant.preset([(ingress, egress)])
        self._number((ingress, egress))

    # ---- the manner

    def open(self, now: float) -> Session | None:
        session = super().open(now)
        if session is not None and self.echo != "none":
            self.send(session, now, GREETING + PROMPT)
        return session

    def framed(self, command: str, reply: bytes) -> bytes:
        times = {"none": 0, "once": 1, "twice": 2}.get(self.echo) if self.echo != "mixed" else self._random.choice((1, 1, 2))
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
        return self.writer.autonomous("* ", "REPT ALM FIBER", ("GGN:PORTID=10001,LOS",), now)  # no public capture has one (U)

    def snapshot(self, now: float) -> tuple[Row, ...]:
        resting = self.plant.glass(now)
        rows = [self._row(pair, now) for pair in sorted(resting)]
        busy = {side for i, e in resting for side in (("in", i), ("out", e))}
        rows += [Row(p, "", 0, "single", "none", None, None) for p in self.plant.ingress if ("in", p) not in busy]
        rows += [Row("", p, 0, "single", "none", None, None) for p in self.plant.egress if ("out", p) not in busy]
        return tuple(rows)

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
        self._was_lit = {pair for pair in self._was_lit if self.plant.since(pair) is not None} | {p for p in lit if len(p) == 2}

    # ---- reading

    def _row(self, pair: Pair, now: float) -> Row:
        circuit = self.plant.circuit(("in", pair[0]))
        bright = circuit is not None and self.plant.bright(circuit, now)
        cause = "none" if bright else DARK_CAUSE[pair in self._was_lit]
        if self.plant.since(pair) is None:
            cause = "none"
        taken, given = self.plant.power_dbm(("in", pair[0]), now), self.plant.power_dbm(("out", pair[1]), now)
        return Row(*pair, self._number(pair), "steady" if bright else "fault", cause, taken, given)

    def _number(self, pair: Pair) -> int:
        if pair not in self._numbers:
            self._made += 1
            self._numbers[pair] = self._made
        return self._numbers[pair]

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
        wanted = self._asked(asked)
        rows = [
            row
            for row in self.view(now)
            if wanted is None or any(side in wanted for side in (("in", row.ingress), ("out", row.egress)))
        ]
        session.delay_s = self.row_delay_s * len(rows)
        return Reply([self._older(row, now) if self.older else self._newer(row, now) for row in rows])

    def _newer(self, row: Row, now: float) -> str:
        """All eighteen fields in their order (REAL)."""
        taken, given, lost = self._levels(row, now, 2)
        locked, user = self._lock(row)
        return (
            f"GGN:IPORTID={row.ingress or 0},IPORTGROUP=,IPORTNAME=,IPORTCOMMENT=,INPWR={taken},OPORTID={row.egress or 0},"
            f"OPORTGROUP=,OPORTNAME=,OPORTCOMMENT=,OUTPWR={given},SIGBAND=1310,PWRLOSS={lost},CONNID={row.number},CONNNAME=,"
            f"CONNSTATE={row.state},CONNCAUSE={row.cause},CONNLOCK={locked},CONNLOCKUSER={user}"
        )

    def _older(self, row: Row, now: float) -> str:
        """Fewer fields and three decimals (REAL)."""
        taken, given, lost = self._levels(row, now, 3)
        locked, user = self._lock(row)
        lock = f",CONNLOCK={locked},CONNLOCKUSER={user}" if locked else ""
        return (
            f"GGN:IPORTID={row.ingress or 0},IPORTNAME=,OPORTID={row.egress or 0},OPORTNAME=,CONNID={row.number},"
            f"CONNSTATE={row.state},CONNCAUSE={row.cause},INPWR={taken},OUTPWR={given},PWRLOSS={lost}{lock}"
        )

    def _levels(self, row: Row, now: float, digits: int) -> tuple[str, str, str]:
        """In, out and loss as printed: the loss is the difference of the two (REAL, to the last digit)."""
        missing = "NA" if not self.older else "0.000"  # REAL: older firmware says OUTPWR=0.000 of an unconnected side
        taken = row.input_dbm if row.egress else self._level(("in", row.ingress), now)
        given = row.output_dbm if row.ingress else self._level(("out", row.egress), now)
        lost = "NA" if row.input_dbm is None or row.output_dbm is None else f"{row.input_dbm - row.output_dbm:.{digits}f}"
        return (
            missing if taken is None else f"{taken:.{digits}f}",
            missing if given is None or not row.ingress else f"{given:.{digits}f}",
            lost,
        )

    def _level(self, side: Side, now: float) -> float | None:
        return self.plant.power_dbm(side, now) if side[1] else None

    def _lock(self, row: Row) -> tuple[int, str]:
        locked = self.plant.wrong.locked
        user = next((locked[s] for s in (("in", row.ingress), ("out", row.egress)) if s in locked), "")
        return int(bool(user)), user

    def _powers(self, session: Session, asked: Command, now: float) -> Reply:
        wanted = self._asked(asked)
        sides = list(self._side.values()) if wanted is None else wanted
        session.delay_s = self.row_delay_s * len(sides)
        return Reply([f"GGN:PORTID={side[1]},PORTPOWER={self._measured(side, now):.3f}" for side in sides])

    def _measured(self, side: Side, now: float) -> float:
        """Dark ports read about -48 to -52 dBm (REAL), unconnected ones too."""
        dbm = self.plant.power_dbm(side, now)
        return dbm if dbm > self.plant.floor_dbm else round(self._random.gauss(self.plant.dark_dbm, 1.0), 2)

    def _configuration(self, session: Session, asked: Command, now: float) -> Reply:
        wanted = self._asked(asked)
        rows = []
        for side in list(self._side.values()) if wanted is None else wanted:
            health = "bad" if side in self.plant.wrong.failed else "good"  # "good" is REAL, its opposite U
            more = ",CSFLTSEV=CR" if side[0] == "out" else ""
            rows.append(
                f"GGN:PORTID={side[1]},PORTGROUP=,PORTNAME=,SIGBAND=1310,SIGTHRESH=1310,PORTHEALTH={health},PORTCAT=nor,"
                f"PORTCOMMENT=,STMINSEV=DI,STMAXSEV=CR{more}"
            )
        session.delay_s = self.row_delay_s * len(rows)
        return Reply(rows)

    def _system(self, session: Session, asked: Command, now: float) -> Reply:
        """The five fields public clients look for (CODE); their order and that they stand in one row is U."""
        matrix = f"{len(self.plant.ingress)}x{len(self.plant.egress)}"
        return Reply((
            f"GGN:SystemType={self.model},ChassisType={self.model},SerialNumber={self.serial},LicensedPortMatrix={matrix},"
            f"SoftwareActiveVersion={self.firmware}",
        ))  # fmt: skip

    # ---- writing

    def _pairs(self, asked: Command) -> list[Pair]:
        """Two lists that pair by position (CODE)."""
        if len(asked.aids) != 2:
            raise Denied("IIAC", "Invalid AID - ingress and egress wanted")
        lists = [listed(aid) for aid in asked.aids]
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
            self._numbers.pop(pair, None)
            self._number(pair)
        self.plant.connect(self.some(pairs), now)
        return Reply()

    def _disconnect(self, session: Session, asked: Command, now: float) -> Reply:
        pairs = self._pairs(asked)
        for pair in pairs:
            if self.plant.since(pair) is None:
                raise Denied("SNVS", f"No connection {pair[0]},{pair[1]}")
            if why := self.plant.wrong.lock(pair):
                raise Denied("SARB", why[:1].upper() + why[1:])
        self.wrote(now)
        if refused := self.plant.disconnect(self.some(pairs), now):
            raise Denied("SROF", next(iter(refused.values())))
        return Reply()


def _preset(dialect: AnyDialect, row: object) -> None:
    """[in, out]."""
    assert isinstance(dialect, GlimmerglassTl1)
    if not isinstance(row, list | tuple) or len(row) != 2:
        raise ValueError(f"{dialect.plant.name}: preset {row!r}: wanted [in, out]")
    dialect.preset(str(row[0]), str(row[1]))


FAMILY = Family(
    "glimmerglass-tl1",
    ("tcp",),
    GlimmerglassTl1,
    numbered,
    _preset,
    settle_s=0.01,  # 2003 article on the System 300: 10 ms
)
