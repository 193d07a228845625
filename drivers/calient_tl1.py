"""Calient MEMS switches over TL1: S-series and PXC. Raw TL1 is port 3082 (`tcp://`), with prompt and negotiation 3083 (`telnet://`).

A circuit is made in two steps, ENT-CRS (reserve the ports) and ACT-CRS (move the mirrors), and taken down in two, CANC-CRS and
DLT-CRS. Commands and rows: Quali cloudshell-L1-calient tests (captures), Phosphorus G2MPLS plugin (states), pynt, MonALISA.

Decisions on what the public sources leave open:
- A circuit is a setting when its row says AS=IS and OS=IS. A row that does not also come to OC=OK is deleted again and reported in
  `Outcome.failed`, as the Phosphorus plugin does, unless the switch's own meter says that no light enters: then the circuit is as
  good as the switch can make it (light and link are other verdicts) and stands.
- `settled_ns` is the first answer in which every wanted row says IS, IS, OK.
- Several commands go out in one write (at most `window`) where none depends on another: all CANC, then all DLT, all ENT, all ACT.
  Their answers find them by tag. Mirrors move in parallel, so this keeps the dark time at one switching time.
- Connections are entered under a group of our own, so that a leftover of ours can be told from somebody else's reservation.
- Power is asked with RTRV-PORT-SUM (S-series); a switch that denies it is asked with the PXC's rtrv-det-eqpt.
- A circuit may take as long as the Phosphorus plugin waits, 10 s, and longer while others of the change come up. One that is under
  way is waited for, whatever was refused about it; before a rollback the table is read once more.
- Whole tables of a PXC took pynt 73 s (connections) and 436 s (ports as well), with a time-out of 120 s. So much silence is allowed
  in a table where RTRV-NE does not name an S-series chassis; on those it is timeout_s.
- Alarms are skipped, not silenced: of INH-MSG only the name is known (Lawo VSM), so it is sent where `silence` asks for it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from drivers.api import Evidence, Ready, at_once
from drivers.calient_rows import Connection, Pair, Work, holders, in_the_way, is_aid, natural, parse, work
from drivers.link import open_link
from drivers.rounds import Marks, in_rounds
from drivers.session.tl1 import Command, Tl1Session, retrieve, session_options
from drivers.watch import PATIENCE_S, patience_option, patience_s, soon_s, watch
from drivers.wire import tl1
from optics import Change, CrossConnect, Dbm, DeviceConfig, Garbled, Identity, Outcome, Port, Setting, Traits

Rows = tuple[Connection, ...]
OLD_DUMP_S = 120.0
"""Silence (s) allowed in the tables of a switch of the PXC era: pynt's time-out (CODE)."""
_S_SERIES = re.compile(r"(S|EDGE)[0-9]{3}.*", re.IGNORECASE)  # S162 (REAL), S160, S320, Edge640 (model names)
LOSS_OF_SIGNAL_DBM = -30.0  # usual threshold of the family's monitors; no source gives one
FLOOR_DBM = -60.0
"""Levels down to here are no reading; no source gives this family's own floor, so the one of Polatis meters is taken."""


class CalientTl1:
    """A Calient switch. Its ports are duplex: one AID (`1.2.5`) has a side where light enters and one where it leaves."""

    # S320 hardware guide p. 44: a set of connections within 200 ms (DOC). Loss and meter accuracy are assumed: the guide's figures
    # are not public.
    TRAITS: ClassVar[Traits] = Traits(
        settle_s=0.2, at_once=None, keeps_others_lit=True, latching=False, insertion_loss_db=1.5, meter_db=1.0
    )
    OPTIONS: ClassVar[Mapping[str, str]] = {
        "group": "group name of the connections made here, how they are told from others'; default TESTBED",
        "window": "commands under way at once, 1 to ask strictly one by one; default 16",
        "keep_alive_s": "idle time after which the session is refreshed (s), 0 for never; default 30",
        "silence": "true to send INH-MSG after the login, against alarms and event messages; default false",
        "tid": "target identifier of every command, auto for the switch's own name; default none",
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
        self.name = config.name
        self.traits = traits
        self._group = config.options.get("group", "TESTBED")
        if not re.fullmatch(r"[A-Za-z0-9_]{1,20}", self._group):
            raise ValueError(f"group {self._group!r}: letters, digits and _ only, at most 20")
        self._patience_s = patience_s(traits, config.options.get("patience_s"), PATIENCE_S / config.time_scale)
        if (silence := config.options.get("silence", "false")) not in ("true", "false"):
            raise ValueError(f"silence {silence!r}: true or false")
        window, keep_alive_s = session_options(config.options)
        self._sums = True  # whether RTRV-PORT-SUM is known here
        self._timeout_s = config.timeout_s
        self._old_dump_s = max(config.timeout_s, OLD_DUMP_S / config.time_scale)
        self._dump_s: float | None = None  # silence (s) allowed in a whole table, once the chassis is known
        self._session = Tl1Session(
            open_link(config.address, config.timeout_s, config.name),
            config.username,
            config.password,
            window=window,
            keep_alive_s=keep_alive_s,
            tid=config.options.get("tid", ""),
            opening=[Command("INH-MSG")] if silence == "true" else [],
        )
        self._turn = asyncio.Lock()
        self._last: Rows = ()

    async def identify(self) -> Identity:
        async with self._turn:
            element = await self._session.ask(retrieve("RTRV-NE"))
            ports = await self._table(retrieve("RTRV-PORT", "0"))
        try:
            if len(element.rows) != 1:
                raise Garbled(f"{len(element.rows)} rows")
            row = tl1.parse_row(element.rows[0])
            labels = tuple(sorted((tl1.parse_row(port).name for port in ports.rows), key=natural))
            if bad := [label for label in labels if not is_aid(label)]:
                raise Garbled(f"port {bad[0]!r}")
            return Identity("Calient", row["CHASSISTYPE"], row["SERIALNUMBER"], row["SWPACKAGE"], labels, labels)
        except Garbled as error:
            raise Garbled(f"{self.name}: identity: {error}") from error

    async def read(self) -> frozenset[Setting]:
        async with self._turn:
            return self._settings(await self._rows())

    def holders(self) -> Mapping[Setting, str]:
        """Connections that are reserved or not yet, or no longer, in service."""
        return holders(self.name, self._last)

    async def apply(self, change: Change, ready: Ready = at_once) -> Outcome:
        async with self._turn:
            marks = Marks[Pair](ready)
            halves: set[Pair] = set()  # of broken two-way connections: known only to the round that broke them
            return await in_rounds(marks, lambda: self._round(change, marks, halves))

    async def power(self, ports: Iterable[Port]) -> Mapping[Port, Dbm]:
        """As the protocol says; a duplex AID alone means the side where light leaves, `1.2.5:in` the side where it enters."""
        async with self._turn:
            levels = await self._power(ports)
        return {port: level for port, level in levels.items() if level > FLOOR_DBM}

    async def close(self) -> None:
        async with self._turn:
            await self._session.close()

    async def _round(self, change: Change, marks: Marks[Pair], halves: set[Pair]) -> Outcome:
        """Read, send what is missing, watch, tidy up. A lost answer leaves by an exception; the next round begins with reading."""
        remove = {pair: s for s in change.remove if (pair := self._pair(s))}
        add = {pair: s for s in change.add if (pair := self._pair(s))}
        todo = work(await self._rows(), frozenset(remove), frozenset(add), self._group, frozenset(halves))
        if todo and await marks.begin():
            todo = work(await self._rows(), frozenset(remove), frozenset(add), self._group, frozenset(halves))
        halves |= todo.wanted - add.keys()
        marks.words.update(todo.refused)
        marks.trying(pair for row in (*todo.delete, *todo.activate) for pair in row.pairs)
        await self._carry_out(todo, marks)
        wanted = todo.wanted
        excused: set[Pair] = set()  # made, and dark for want of light at the input

        def wrong(rows: Rows) -> set[Pair]:
            held = {pair for row in rows for pair in row.pairs}
            good = {pair for row in rows if row.healthy or (row.active and row.pairs <= excused) for pair in row.pairs}
            return (held & remove.keys()) | (wanted - good)

        def done(rows: Rows) -> bool:
            coming = {pair for row in rows if row.engaged for pair in row.pairs & wanted}  # whatever was refused, it is under way
            return all(marks.final(pair) and pair not in coming for pair in wrong(rows))

        for wait_s in (soon_s(self.traits, self._patience_s), self._patience_s, 0.0):  # one last look: what came now must stand
            last = await watch(self._rows, done, expected_s=self.traits.settle_s, patience_s=wait_s)
            if last.done:
                break
            excused |= await self._without_light(
                row for row in last.report if row.active and not row.healthy and row.pairs & wanted
            )
        state = {pair: row for row in last.report for pair in row.pairs}
        failed = {s: self._no_pair(s) for s in (change.remove | change.add) if not self._pair(s)}
        for pair in wrong(last.report):
            setting = remove.get(pair) or add.get(pair) or self._setting(pair)
            failed[setting] = marks.words.get(pair) or _silence(pair, state.get(pair), last.watched_s)
        rows = await self._roll_back(last.report, wrong(last.report) & wanted, marks)
        return marks.outcome(self.name, self._settings(rows), last.at_ns, failed)

    async def _without_light(self, rows: Iterable[Connection]) -> set[Pair]:
        """Circuits whose OC=FAIL is explained by a dark input: nothing the switch could do better."""
        suspects = list(rows)
        inputs = {Port(self.name, f"{a}:in") for row in suspects for a, _ in row.pairs}
        read = await self._power(inputs) if inputs else {}
        dark = {port.label.removesuffix(":in") for port, level in read.items() if level <= LOSS_OF_SIGNAL_DBM}
        return {pair for row in suspects if any(a in dark for a, _ in row.pairs) for pair in row.pairs}

    async def _roll_back(self, rows: Rows, failed: set[Pair], marks: Marks[Pair]) -> Rows:
        """Delete our own connections that did not become what they should; return the table as it then is."""
        stale = [row for row in rows if row.group == self._group and row.pairs & failed]
        if not stale:
            return rows
        words = dict(marks.words)  # what went wrong first is what the operator needs
        await self._in_turn("CANC-CRS", [row for row in stale if row.engaged], "DLT-CRS", stale, marks)
        marks.words.update(words)
        return await self._rows()

    async def _power(self, ports: Iterable[Port]) -> dict[Port, Dbm]:
        """What the meters read, the floor included; a port without a meter is absent."""
        wanted = [port for port in ports if is_aid(port.label.removesuffix(":in"))]
        labels = sorted({port.label.removesuffix(":in") for port in wanted}, key=natural)
        read = await self._sums_of(labels) if self._sums else {}
        if lacking := [label for label in labels if label not in read]:
            details = await self._details_of(lacking)
            self._sums = self._sums and (bool(read) or not details)
            read |= details
        found: dict[Port, Dbm] = {}
        for port in wanted:
            level = read.get(port.label.removesuffix(":in"), ("", ""))[0 if port.label.endswith(":in") else 1]
            if level in ("", "NONE", "NA"):
                continue  # not equipped, or without a meter
            if not re.fullmatch(r"[+-]?\d{1,3}(\.\d+)?", level):
                raise Garbled(f"{self.name}: power of {port.label} is {level!r}")
            found[port] = float(level)
        return found

    async def _sums_of(self, labels: Sequence[str]) -> dict[str, tuple[str, str]]:
        """Levels in and out of each port (S-series, Quali); a port it denies is absent."""
        replies = await self._session.batch([retrieve("RTRV-PORT-SUM", label) for label in labels])
        rows = {label: tl1.parse_row(reply.rows[0]) for label, reply in zip(labels, replies, strict=True) if reply.rows}
        return {label: (row["INPWR"], row["OUTPWR"]) for label, row in rows.items()}

    async def _details_of(self, labels: Sequence[str]) -> dict[str, tuple[str, str]]:
        """The same of the PXC era (MonALISA); its two levels may come in one row or in two."""
        replies = await self._session.batch([retrieve("RTRV-DET-EQPT", label) for label in labels])
        found: dict[str, tuple[str, str]] = {}
        for label, reply in zip(labels, replies, strict=True):
            fields = {key: value for row in reply.rows for key, value in tl1.parse_row(row).fields.items()}
            levels = fields.get("INOPTICALPOWER", ""), fields.get("OUTOPTICALPOWERWORKING", "")
            if any(levels):
                found[label] = levels
        return found

    async def _carry_out(self, todo: Work, marks: Marks[Pair]) -> None:
        """Take down, then put up, each in one go: what is dark does not wait for answers in between."""
        still = await self._in_turn("CANC-CRS", todo.cancel, "DLT-CRS", todo.delete, marks)
        if todo.delete:
            marks.broke()
        blocked = in_the_way(todo.activate, still)
        for c, words in blocked.items():
            marks.words.update({pair: words for pair in c.pairs if pair not in marks.words})
        enter = [c for c in todo.enter if c not in blocked]
        activate = [c for c in todo.activate if c not in blocked]
        if denied := await self._in_turn("ENT-CRS", enter, "ACT-CRS", activate, marks):
            # Perhaps only the name is another than the default one: ask for it.
            rows = {(row.aid, row.kind, row.group): row for row in await self._rows()}
            renamed = [row for c in denied if (row := rows.get((c.aid, c.kind, c.group))) and row.name != c.name]
            await self._send([("ACT-CRS", row) for row in renamed], marks)
        marks.acknowledged()

    async def _in_turn(
        self, first: str, ones: Sequence[Connection], then: str, others: Sequence[Connection], marks: Marks[Pair]
    ) -> list[Connection]:
        """Send `first` for `ones` and `then` for `others` in one batch; return those of `others` whose `then` was denied.

        A switch that is still busy with `first` may deny `then`: it is asked once more, after all answers. Where `first` was
        denied, its words count.
        """
        denied = await self._send([*((first, c) for c in ones), *((then, c) for c in others)], marks)
        early = [c for verb, c in denied if verb == then and c in ones and (first, c) not in denied]
        late = await self._send([(then, c) for c in early], marks)
        return [c for verb, c in denied if verb == then and (c not in early or (then, c) in late)]

    async def _send(self, orders: Sequence[tuple[str, Connection]], marks: Marks[Pair]) -> list[tuple[str, Connection]]:
        """Send one command per connection, in this order, return the denied ones; the first words against each circuit are kept."""
        commands: list[tuple[tuple[str, Connection], Command]] = []
        denied: list[tuple[str, Connection]] = []
        for verb, connection in orders:
            try:
                commands.append(((verb, connection), _command(verb, connection)))
            except ValueError as error:  # a quote in somebody's name for it, say
                denied.append((verb, connection))
                words = f"connection {connection.name!r} of group {connection.group!r} cannot be named in a command: {error}"
                marks.words.update(dict.fromkeys(connection.pairs, words))
        if not commands:
            return denied
        marks.write(len(commands))
        replies = await self._session.batch([command for _, command in commands])
        against: dict[Pair, str] = {}
        for ((verb, connection), command), reply in zip(commands, replies, strict=True):
            for pair in connection.pairs:
                if reply.completed:
                    against.pop(pair, None)
                    marks.words.pop(pair, None)
                else:
                    against.setdefault(pair, f'refused "{command}": {reply.words}')
            if not reply.completed:
                denied.append((verb, connection))
        marks.words.update(against)
        return denied

    async def _table(self, question: Command) -> tl1.Reply:
        """Ask for a whole table, with the patience that the switch's chassis needs."""
        if self._dump_s is None:
            (element,) = await self._session.batch([retrieve("RTRV-NE")])
            kinds = [tl1.parse_row(row).fields.get("CHASSISTYPE", "") for row in element.rows]
            self._dump_s = self._timeout_s if any(map(_S_SERIES.fullmatch, kinds)) else self._old_dump_s
        return await self._session.ask(question, timeout_s=self._dump_s)

    async def _rows(self) -> Rows:
        reply = await self._table(retrieve("RTRV-CRS", "", "ALL"))
        try:
            if reply.stray:
                raise Garbled(f"not a row: {reply.stray[0][:120]!r}")
            self._last = tuple(parse(row) for row in reply.rows)
        except Garbled as error:
            raise Garbled(f"{self.name}: connection table: {error}") from error
        return self._last

    def _settings(self, rows: Iterable[Connection]) -> frozenset[Setting]:
        return frozenset(self._setting(pair) for row in rows if row.active for pair in row.pairs)

    def _setting(self, pair: Pair) -> Setting:
        return CrossConnect(Port(self.name, pair[0]), Port(self.name, pair[1]))

    def _pair(self, setting: Setting) -> Pair | None:
        """The two AIDs, None when a label is not one (and must not reach a command line)."""
        ports = (setting.ingress, setting.egress)
        if not isinstance(setting, CrossConnect) or any(port.device != self.name or not is_aid(port.label) for port in ports):
            return None
        return (ports[0].label, ports[1].label)

    def _no_pair(self, setting: Setting) -> str:
        route = "a spectral route, not a cross-connect"
        return f"not a port of {self.name}" if isinstance(setting, CrossConnect) else route


def _command(verb: str, connection: Connection) -> Command:
    """The four verbs take the same words in three orders (Quali, Phosphorus)."""
    group, name = tl1.identifier(connection.group), tl1.identifier(connection.name)
    payload = {"ENT-CRS": f"{group},{connection.kind}", "ACT-CRS": f"{name},{group}"}.get(verb, f",{group},{name}")
    return Command(verb, connection.aid, (payload,))


def _silence(pair: Pair, row: Connection | None, watched_s: float) -> str:
    """Words for a change the device neither made nor refused."""
    reports = f"connection {row.name!r} {row.state}" if row else "no connection"
    return f"wanted {pair[0]}->{pair[1]}, reports {reports} after {watched_s:.1f} s"
