"""Calient MEMS switches over TL1: S-series and PXC. Raw TL1 is port 3082 (`tcp://`), with prompt
and negotiation 3083 (`telnet://`).

A circuit is made in two steps, ENT-CRS (reserve the ports) and ACT-CRS (move the mirrors), and
taken down in two, CANC-CRS and DLT-CRS. Commands and rows: Quali cloudshell-L1-calient tests
(captures), Phosphorus G2MPLS plugin (states), pynt, MonALISA.

Decisions on what the public sources leave open:
- `settled_ns` is the time of the first answer in which every wanted row reports IS, IS, OK.
- Several commands go out in one write (at most `window`) where none depends on another: all CANC,
  then all DLT, all ENT, all ACT. Their answers find them by tag. Mirrors move in parallel, so this
  keeps the dark time at one switching time.
- Connections are entered under this program's own group, to distinguish its leftovers from another
  client's reservations.
- Power is queried with RTRV-PORT-SUM (S-series); if the switch denies it, with the PXC's
  rtrv-det-eqpt.
- A circuit may take as long as the Phosphorus plugin waits, 10 s, and longer while others of the
  change come up. One that is in progress is waited for, whatever was refused about it; before a
  rollback the table is read once more.
- Whole tables of a PXC took pynt 73 s (connections) and 436 s (ports as well), with a time-out of
  120 s. That much silence is allowed in a table where RTRV-NE does not name an S-series chassis; on
  those it is timeout_s.
- Alarms are skipped, not silenced: of INH-MSG only the name is known (Lawo VSM), so it is sent
  where `silence` asks for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from drivers.api import Evidence
from drivers.rounds import Marks
from drivers.session.calient import CalientSwitch, Rows
from drivers.session.tl1 import OPTIONS, Command, Tl1Session, open_tl1, retrieve
from drivers.watch import patience_option
from drivers.wire import tl1
from drivers.wire.calient_rows import Connection, Pair, Work, is_aid, natural, parse, unreadable
from drivers.wire.unknown import Unknown, sorted_out
from optics import Dbm, DeviceConfig, Garbled, Identity, Port, Traits

OLD_DUMP_S = 120.0
"""Silence (s) allowed in the tables of a switch of the PXC era: pynt's time-out (CODE)."""
# S162 (REAL), S160, S320, Edge640 (model names)
_S_SERIES = re.compile(r"(S|EDGE)[0-9]{3}.*", re.IGNORECASE)


class CalientTl1(CalientSwitch):
    """A Calient switch over TL1."""

    # S320 hardware guide p. 44: a set of connections within 200 ms (DOC). Loss and meter accuracy
    # are assumed: the guide's figures are not public.
    TRAITS: ClassVar[Traits] = Traits(
        settle_s=0.2,
        at_once=None,
        keeps_others_lit=True,
        latching=False,
        insertion_loss_db=1.5,
        meter_db=1.0,
    )
    OPTIONS: ClassVar[Mapping[str, str]] = {
        "group": "group name that marks the connections made by this program; default TESTBED",
        **OPTIONS,
        "silence": "true to send INH-MSG after the login, against alarms and event messages; default false",
        "patience_s": patience_option(),
    }

    EVIDENCE: ClassVar[Evidence] = Evidence(
        "Calient S-series and PXC, TL1",
        ("tcp", "telnet"),
        {
            "identify": "REAL",
            "read": "REAL",
            "change": "CODE",
            "refusals": "assumed",
            "power": "REAL",
            "settling": "DOC",
            "unsolicited": "CODE",
        },
    )

    def __init__(self, config: DeviceConfig, traits: Traits) -> None:
        super().__init__(config, traits, "TESTBED")
        if (silence := config.options.get("silence", "false")) not in ("true", "false"):
            raise ValueError(f"silence {silence!r}: true or false")
        self._sums = True  # whether RTRV-PORT-SUM is known here
        self._old_dump_s = max(config.timeout_s, OLD_DUMP_S / config.time_scale)
        # silence (s) allowed in a whole table, once the chassis is known
        self._dump_s: float | None = None
        self._session: Tl1Session = open_tl1(
            config, opening=[Command("INH-MSG")] if silence == "true" else []
        )

    async def identify(self) -> Identity:
        async with self._lock:
            element = await self._session.ask(retrieve("RTRV-NE"))
            ports = await self._table(retrieve("RTRV-PORT", "0"))
        try:
            if len(element.rows) != 1:
                raise Garbled(f"{len(element.rows)} rows")
            row = tl1.parse_row(element.rows[0])
            names = [tl1.parse_row(port).name for port in ports.rows]
            labels = tuple(sorted(filter(is_aid, names), key=natural))
            if not labels:
                raise Garbled(f"no port in {names[:4]}")
            return Identity(
                "Calient", row["CHASSISTYPE"], row["SERIALNUMBER"], row["SWPACKAGE"], labels, labels
            )
        except Garbled as error:
            raise Garbled(f"{self.name}: identity: {error}") from error

    async def _roll_back(self, stale: Sequence[Connection], marks: Marks[Pair]) -> None:
        await self._one_by_one(
            "CANC-CRS", [row for row in stale if row.engaged], "DLT-CRS", stale, marks
        )

    def _stale(self, rows: Rows, failed: set[Pair]) -> list[Connection]:
        return [row for row in rows if row.group == self._group and row.pairs & failed]

    async def _power(self, ports: Iterable[Port]) -> dict[Port, Dbm]:
        wanted = [port for port in ports if is_aid(port.label.removesuffix(":in"))]
        labels = sorted({port.label.removesuffix(":in") for port in wanted}, key=natural)
        read = await self._sums_of(labels) if self._sums else {}
        if missing := [label for label in labels if label not in read]:
            details = await self._details_of(missing)
            self._sums = self._sums and (bool(read) or not details)
            read |= details
        found: dict[Port, Dbm] = {}
        for port in wanted:
            level = read.get(port.label.removesuffix(":in"), ("", ""))[
                0 if port.label.endswith(":in") else 1
            ]
            if level in ("", "NONE", "NA"):
                continue  # not equipped, or without a meter
            if not re.fullmatch(r"[+-]?\d{1,3}(\.\d+)?", level):
                raise Garbled(f"{self.name}: power of {port.label} is {level!r}")
            found[port] = float(level)
        return found

    async def _sums_of(self, labels: Sequence[str]) -> dict[str, tuple[str, str]]:
        """Levels in and out of each port (S-series, Quali); a port it denies is absent."""
        replies = await self._session.batch([retrieve("RTRV-PORT-SUM", label) for label in labels])
        rows = {
            label: tl1.parse_row(reply.rows[0])
            for label, reply in zip(labels, replies, strict=True)
            if reply.rows
        }
        return {label: (row["INPWR"], row["OUTPWR"]) for label, row in rows.items()}

    async def _details_of(self, labels: Sequence[str]) -> dict[str, tuple[str, str]]:
        """The same of the PXC era (MonALISA); its two levels may come in one row or in two."""
        replies = await self._session.batch([retrieve("RTRV-DET-EQPT", label) for label in labels])
        found: dict[str, tuple[str, str]] = {}
        for label, reply in zip(labels, replies, strict=True):
            fields = {
                key: value for row in reply.rows for key, value in tl1.parse_row(row).fields.items()
            }
            levels = fields.get("INOPTICALPOWER", ""), fields.get("OUTOPTICALPOWERWORKING", "")
            if any(levels):
                found[label] = levels
        return found

    async def _take_down(self, todo: Work, marks: Marks[Pair]) -> list[Connection]:
        return await self._one_by_one("CANC-CRS", todo.cancel, "DLT-CRS", todo.delete, marks)

    async def _put_up(
        self, enter: Sequence[Connection], activate: Sequence[Connection], marks: Marks[Pair]
    ) -> None:
        if denied := await self._one_by_one("ENT-CRS", enter, "ACT-CRS", activate, marks):
            # Perhaps only the name differs from the default: query it.
            rows = {(row.aid, row.kind, row.group): row for row in await self._rows()}
            renamed = [
                row
                for c in denied
                if (row := rows.get((c.aid, c.kind, c.group))) and row.name != c.name
            ]
            await self._send([("ACT-CRS", row) for row in renamed], marks)

    async def _one_by_one(
        self,
        first: str,
        ones: Sequence[Connection],
        then: str,
        others: Sequence[Connection],
        marks: Marks[Pair],
    ) -> list[Connection]:
        """Send `first` for `ones` and `then` for `others` in one batch; return those of `others`
        whose `then` was denied.

        A switch that is still busy with `first` may deny `then`: it is sent once more, after all
        answers. Where `first` was denied, its reason is kept.
        """
        denied = await self._send(
            [*((first, c) for c in ones), *((then, c) for c in others)], marks
        )
        early = [c for verb, c in denied if verb == then and c in ones and (first, c) not in denied]
        late = await self._send([(then, c) for c in early], marks)
        return [c for verb, c in denied if verb == then and (c not in early or (then, c) in late)]

    async def _send(
        self, orders: Sequence[tuple[str, Connection]], marks: Marks[Pair]
    ) -> list[tuple[str, Connection]]:
        """Send one command per connection, in this order; return the denied ones. The first reason
        for each circuit is kept.
        """
        commands: list[tuple[tuple[str, Connection], Command]] = []
        denied: list[tuple[str, Connection]] = []
        for verb, connection in orders:
            try:
                commands.append(((verb, connection), _command(verb, connection)))
            except ValueError as error:  # a quote in its name, for example
                denied.append((verb, connection))
                text = f"connection {connection.name!r} of group {connection.group!r} cannot be named in a command: {error}"
                marks.reasons.update(dict.fromkeys(connection.pairs, text))
        if not commands:
            return denied
        marks.write(len(commands))
        replies = await self._session.batch([command for _, command in commands])
        against: dict[Pair, str] = {}
        for ((verb, connection), command), reply in zip(commands, replies, strict=True):
            for pair in connection.pairs:
                if reply.completed:
                    against.pop(pair, None)
                    marks.reasons.pop(pair, None)
                else:
                    against.setdefault(pair, f'refused "{command}": {reply.message}')
            if not reply.completed:
                denied.append((verb, connection))
        marks.reasons.update(against)
        return denied

    async def _table(self, question: Command) -> tl1.Reply:
        """Query a whole table, with the time limit that the switch's chassis needs."""
        if self._dump_s is None:
            (element,) = await self._session.batch([retrieve("RTRV-NE")])
            kinds = [tl1.parse_row(row).fields.get("CHASSISTYPE", "") for row in element.rows]
            self._dump_s = (
                self._timeout_s if any(map(_S_SERIES.fullmatch, kinds)) else self._old_dump_s
            )
        return await self._session.ask(question, timeout_s=self._dump_s)

    async def _table_now(self) -> tuple[Rows, frozenset[Unknown]]:
        reply = await self._table(retrieve("RTRV-CRS", "", "ALL"))
        try:
            if reply.stray:
                raise Garbled(f"not a row: {reply.stray[0][:120]!r}")
            return sorted_out(reply.rows, parse, unreadable)
        except Garbled as error:
            raise Garbled(f"{self.name}: connection table: {error}") from error


def _command(verb: str, connection: Connection) -> Command:
    """The four commands take the same arguments in three orders (Quali, Phosphorus)."""
    group, name = tl1.identifier(connection.group), tl1.identifier(connection.name)
    payload = {"ENT-CRS": f"{group},{connection.kind}", "ACT-CRS": f"{name},{group}"}.get(
        verb, f",{group},{name}"
    )
    return Command(verb, connection.aid, (payload,))
