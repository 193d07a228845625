"""Calient MEMS switches over TL1: S-series and PXC, raw TL1 port 3082 (3083 with its prompt and telnet noise works too).

A circuit is made in two steps, ENT-CRS (reserve the ports) and ACT-CRS (move the mirrors), and taken down in two, CANC-CRS and
DLT-CRS. Commands and rows: Quali cloudshell-L1-calient tests (captures), Phosphorus G2MPLS plugin (states), pynt, MonALISA.

Decisions on what the public sources leave open:
- A circuit is a setting when its row says AS=IS and OS=IS. `OC` is a separate verdict (light or port condition): a circuit that
  stays at OC=FAIL is left standing and reported in `Outcome.failed`. A row that never becomes active is rolled back.
- `settled_ns` is the first answer in which every wanted row says IS, IS, OK.
- Several commands go out in one write (at most `window`) where none depends on another: all CANC, then all DLT, all ENT, all ACT.
  Their answers find them by tag. Mirrors move in parallel, so this keeps the dark time at one switching time.
- Connections are entered under a group of our own, so that a leftover of ours can be told from somebody else's reservation.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from drivers.calient_rows import Connection, Pair, Work, is_aid, natural, parse, work
from drivers.link import open_link
from drivers.rounds import Marks, in_rounds
from drivers.session.tl1 import KEEP_ALIVE_S, Command, Tl1Session, retrieve
from drivers.watch import patience_s, watch
from drivers.wire import tl1
from optics import Change, CrossConnect, Dbm, DeviceConfig, Garbled, Identity, Outcome, Port, Setting, Traits

Rows = tuple[Connection, ...]
FLOOR_DBM = -60.0
"""Levels down to here are no reading; no source gives this family's own floor, so the one of Polatis meters is taken."""


class CalientTl1:
    """A Calient switch. Its ports are duplex: one AID (`1.2.5`) has a side where light enters and one where it leaves."""

    # S320 hardware guide p. 44: a set of connections within 200 ms.
    TRAITS: ClassVar[Traits] = Traits(settle_s=0.2, at_once=None, keeps_others_lit=True, latching=False, insertion_loss_db=1.5)
    OPTIONS: ClassVar[Mapping[str, str]] = {
        "group": "group name of the connections made here, how they are told from others'; default TESTBED",
        "window": "commands under way at once, 1 to ask strictly one by one; default 16",
        "keep_alive_s": "idle time after which the session is refreshed (s), 0 for never; default 30",
        "patience_s": "longest wait for the device to report a change (s); default ten times settle_s, at least 2",
    }

    def __init__(self, config: DeviceConfig, traits: Traits) -> None:
        self.name = config.name
        self.traits = traits
        self._group = config.options.get("group", "TESTBED")
        if not re.fullmatch(r"[A-Za-z0-9_]{1,20}", self._group):
            raise ValueError(f"group {self._group!r}: letters, digits and _ only, at most 20")
        self._patience_s = patience_s(traits, config.options.get("patience_s"))
        self._session = Tl1Session(
            open_link(config.address, config.timeout_s, config.name),
            config.username,
            config.password,
            window=int(config.options.get("window", "16")),
            keep_alive_s=float(config.options.get("keep_alive_s", KEEP_ALIVE_S)),
        )
        self._turn = asyncio.Lock()

    async def identify(self) -> Identity:
        async with self._turn:
            element = await self._session.ask(retrieve("RTRV-NE"))
            ports = await self._session.ask(retrieve("RTRV-PORT", "0"))
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

    async def apply(self, change: Change) -> Outcome:
        async with self._turn:
            marks = Marks[Pair]()
            halves: set[Pair] = set()  # of broken two-way connections: known only to the round that broke them
            return await in_rounds(marks, lambda: self._round(change, marks, halves))

    async def power(self, ports: Iterable[Port]) -> Mapping[Port, Dbm]:
        """As the protocol says; a duplex AID alone means the side where light leaves, `1.2.5:in` the side where it enters."""
        wanted = [port for port in ports if is_aid(port.label.removesuffix(":in"))]
        asked = [retrieve("RTRV-PORT-SUM", port.label.removesuffix(":in")) for port in wanted]
        async with self._turn:
            replies = await self._session.batch(asked)
        found: dict[Port, Dbm] = {}
        for port, reply in zip(wanted, replies, strict=True):
            if not reply.completed or not reply.rows:
                continue  # not equipped: nothing to read
            level = tl1.parse_row(reply.rows[0])["INPWR" if port.label.endswith(":in") else "OUTPWR"]
            if level == "NONE":
                continue
            if not re.fullmatch(r"[+-]?\d{1,3}(\.\d+)?", level):
                raise Garbled(f"{self.name}: power of {port.label} is {level!r}")
            if (dbm := float(level)) > FLOOR_DBM:
                found[port] = dbm
        return found

    async def close(self) -> None:
        async with self._turn:
            await self._session.close()

    async def _round(self, change: Change, marks: Marks[Pair], halves: set[Pair]) -> Outcome:
        """Read, send what is missing, watch, tidy up. A lost answer leaves by an exception; the next round begins with reading."""
        remove = {pair: s for s in change.remove if (pair := self._pair(s))}
        add = {pair: s for s in change.add if (pair := self._pair(s))}
        todo = work(await self._rows(), frozenset(remove), frozenset(add) | halves, self._group)
        halves |= todo.wanted - add.keys()
        marks.words.update(todo.refused)
        await self._carry_out(todo, marks)
        wanted = todo.wanted

        def done(rows: Rows) -> bool:
            held = {pair for row in rows for pair in row.pairs}
            good = {pair for row in rows if row.healthy for pair in row.pairs}
            return all(pair in marks.words for pair in (held & remove.keys()) | (wanted - good))

        last = await watch(self._rows, done, expected_s=self.traits.settle_s, patience_s=self._patience_s)
        rows = last.report
        state = {pair: row for row in rows for pair in row.pairs}
        failed = {s: f"not a port of {self.name}" for s in (change.remove | change.add) if not self._pair(s)}
        for pair in (remove.keys() & state.keys()) | {p for p in wanted if p not in state or not state[p].healthy}:
            setting = remove.get(pair) or add.get(pair) or self._setting(pair)
            failed[setting] = marks.words.get(pair) or _silence(pair, state.get(pair), last.watched_s)
        if stale := [row for row in rows if row.group == self._group and not row.active and row.pairs & wanted]:
            await self._send("CANC-CRS", [row for row in stale if row.engaged], marks)
            await self._send("DLT-CRS", stale, marks)
            rows = await self._rows()
        return marks.outcome(self.name, self._settings(rows), last.at_ns, failed)

    async def _carry_out(self, todo: Work, marks: Marks[Pair]) -> None:
        """Take down, then put up; what was denied in one step is left out of the next."""
        still = await self._send("CANC-CRS", todo.cancel, marks)
        await self._send("DLT-CRS", [c for c in todo.delete if c not in still], marks)
        if todo.delete:
            marks.broke()
        unmade = await self._send("ENT-CRS", todo.enter, marks)
        entered = [c for c in todo.activate if c not in unmade]
        if denied := await self._send("ACT-CRS", entered, marks):
            # Perhaps only the name is another than the default one: ask for it.
            rows = {(row.aid, row.kind, row.group): row for row in await self._rows()}
            renamed = [row for c in denied if (row := rows.get((c.aid, c.kind, c.group))) and row.name != c.name]
            await self._send("ACT-CRS", renamed, marks)
        marks.acknowledged()

    async def _send(self, verb: str, connections: Sequence[Connection], marks: Marks[Pair]) -> list[Connection]:
        """Send one command per connection, return the denied ones; their words are kept for each circuit they carry."""
        if not connections:
            return []
        marks.write(len(connections))
        commands = [_command(verb, connection) for connection in connections]
        denied: list[Connection] = []
        for connection, command, reply in zip(connections, commands, await self._session.batch(commands), strict=True):
            for pair in connection.pairs:
                if reply.completed:
                    marks.words.pop(pair, None)
                else:
                    marks.words[pair] = f'refused "{command}": {reply.words}'
            if not reply.completed:
                denied.append(connection)
        return denied

    async def _rows(self) -> Rows:
        reply = await self._session.ask(retrieve("RTRV-CRS", "", "ALL"))
        try:
            if reply.stray:
                raise Garbled(f"not a row: {reply.stray[0][:120]!r}")
            return tuple(parse(row) for row in reply.rows)
        except Garbled as error:
            raise Garbled(f"{self.name}: connection table: {error}") from error

    def _settings(self, rows: Iterable[Connection]) -> frozenset[Setting]:
        return frozenset(self._setting(pair) for row in rows if row.active for pair in row.pairs)

    def _setting(self, pair: Pair) -> Setting:
        return CrossConnect(Port(self.name, pair[0]), Port(self.name, pair[1]))

    def _pair(self, setting: Setting) -> Pair | None:
        """The two AIDs, None when a label is not one (and must not reach a command line)."""
        ports = (setting.ingress, setting.egress)
        if any(port.device != self.name or not is_aid(port.label) for port in ports):
            return None
        return (ports[0].label, ports[1].label)


def _command(verb: str, connection: Connection) -> Command:
    """The four verbs take the same words in three orders (Quali, Phosphorus)."""
    group, name = tl1.identifier(connection.group), tl1.identifier(connection.name)
    payload = {"ENT-CRS": f"{group},{connection.kind}", "ACT-CRS": f"{name},{group}"}.get(verb, f",{group},{name}")
    return Command(verb, connection.aid, (payload,))


def _silence(pair: Pair, row: Connection | None, watched_s: float) -> str:
    """Words for a change the device neither made nor refused."""
    reports = f"connection {row.name!r} {row.state}" if row else "no connection"
    return f"wanted {pair[0]}->{pair[1]}, reports {reports} after {watched_s:.1f} s"
