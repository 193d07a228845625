"""Calient MEMS switches over REST: `http(s)://host/rest/...`, Basic login, session cookie.

Requests as in the COSMOS Ryu application and NTT Com RENAT. What they leave open, and what is done here:
- A refusal arrives inside HTTP 200; every item of a batch has its own result and is believed alone.
- `badd` makes a connection and activates it: no client activates what it added.
- A circuit is a setting when its half says AS=IS and OS=IS, as over TL1. One that also has to come to OC=OK is deleted again and
  reported where this change made it, unless no light enters it.
- Public clients wait 20 s for lists, 15 s for ports, 5 s for the rest: lists get four times `timeout_s`, ports three times,
  changes twice.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar
from urllib.parse import quote as percent

from drivers.api import Evidence, Ready, at_once
from drivers.calient_rows import Connection, Pair, Work, holders, in_the_way, is_aid, make, natural, work
from drivers.link.http import Answer
from drivers.rounds import Marks, in_rounds
from drivers.session.rest import OPTIONS, RestSession, open_http
from drivers.watch import PATIENCE_S, patience_option, patience_s, soon_s, watch
from drivers.wire import calient_rest as wire
from drivers.wire import rest
from drivers.wire.rest import Json
from optics import Change, CrossConnect, Dbm, DeviceConfig, Garbled, Identity, Outcome, Port, Refused, Setting, Traits

Rows = tuple[Connection, ...]
CROSS = "/rest/crossconnects/"
SYSTEM = "SYSTEM"  # the group public clients use
LOSS_OF_SIGNAL_DBM = -30.0  # usual threshold of the family's monitors; no source gives one
FLOOR_DBM = -60.0  # no source gives this family's own floor, so the one of Polatis meters is taken
SLOW_LIST, SLOW_PORTS, SLOW_CHANGE = 4, 3, 2
BATCH = 64
"""Items per `badd` or `bdel`: no source gives a limit; a lost answer leaves no more than these open."""


class CalientRest:
    """A Calient switch. Its ports are duplex: one AID (`1.2.5`) has a side where light enters and one where it leaves."""

    # S320 hardware guide p. 44: a set of connections within 200 ms.
    TRAITS: ClassVar[Traits] = Traits(settle_s=0.2, at_once=None, keeps_others_lit=True, latching=False, insertion_loss_db=1.5)
    OPTIONS: ClassVar[Mapping[str, str]] = {
        "group": "group name of the connections made here; default SYSTEM, as public clients have it",
        **OPTIONS,
        "patience_s": patience_option(),
    }
    EVIDENCE: ClassVar[Evidence] = Evidence(
        "Calient S-series, REST",
        ("http", "https"),
        {"identify": "CODE", "read": "CODE", "change": "CODE", "refusals": "CODE", "power": "REAL", "settling": "DOC"},
    )

    def __init__(self, config: DeviceConfig, traits: Traits) -> None:
        self.name = config.name
        self.traits = traits
        self._group = config.options.get("group", SYSTEM)
        if not re.fullmatch(r"[A-Za-z0-9_]{1,20}", self._group):
            raise ValueError(f"group {self._group!r}: letters, digits and _ only, at most 20")
        self._timeout_s = config.timeout_s
        self._patience_s = patience_s(traits, config.options.get("patience_s"), PATIENCE_S / config.time_scale)
        self._session = RestSession(open_http(config))
        self._turn = asyncio.Lock()
        self._last: Rows = ()

    async def identify(self) -> Identity:
        async with self._turn:
            version = await self._ask("/rest/info/?id=softwareversion")
            node = await self._ask("/rest/node/?id=summary&detail=SYSCFG")
            ports = await self._ask("/rest/ports/?id=summary", SLOW_PORTS)
        try:
            labels = sorted((rest.text(row, "port") for row in rest.rows(ports, "ports")), key=natural)
            if bad := [label for label in labels if not is_aid(label)]:
                raise Garbled(f"port {bad[0]!r}")
            said, held = _first(version), _first(node)
            part = rest.text(held, "partnumber")
            return Identity(
                "Calient", part, rest.text(held, "serialnumber"), rest.text(said, "version"), tuple(labels), tuple(labels)
            )
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
            made: set[Pair] = set()
            return await in_rounds(marks, lambda: self._round(change, marks, halves, made))

    async def power(self, ports: Iterable[Port]) -> Mapping[Port, Dbm]:
        """As the protocol says; a duplex AID alone means the side where light leaves, `1.2.5:in` the side where it enters."""
        async with self._turn:
            levels = await self._power(ports)
        return {port: level for port, level in levels.items() if level > FLOOR_DBM}

    async def close(self) -> None:
        async with self._turn:
            await self._session.close()

    async def _round(self, change: Change, marks: Marks[Pair], halves: set[Pair], made: set[Pair]) -> Outcome:
        """Read, send what is missing, watch, tidy up. A lost answer leaves by an exception; the next round begins with reading."""
        remove = {pair: s for s in change.remove if (pair := self._pair(s))}
        add = {pair: s for s in change.add if (pair := self._pair(s))}
        todo = self._work(await self._rows(), remove.keys(), add.keys(), halves)
        if todo and await marks.begin():
            todo = self._work(await self._rows(), remove.keys(), add.keys(), halves)
        halves |= todo.wanted - add.keys()
        marks.words.update(todo.refused)
        marks.trying(pair for row in (*todo.delete, *todo.activate) for pair in row.pairs)
        await self._carry_out(todo, marks, made)
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
        rows = last.report
        ours = wrong(rows) & wanted & made
        if stale := [row for row in rows if row.pairs & ours]:
            words = dict(marks.words)  # what went wrong first is what the operator needs
            await self._delete(stale, marks)
            marks.words.update(words)
            rows = await self._rows()
        return marks.outcome(self.name, self._settings(rows), last.at_ns, failed)

    def _work(self, rows: Rows, remove: Iterable[Pair], add: Iterable[Pair], halves: Iterable[Pair]) -> Work:
        # In the group everybody uses nothing can be told to be ours: reserved connections of others are then never in the way.
        ours = self._group if self._group != SYSTEM else ""
        return work(rows, frozenset(remove), frozenset(add), ours, frozenset(halves))

    async def _carry_out(self, todo: Work, marks: Marks[Pair], made: set[Pair]) -> None:
        if todo.delete:
            await self._delete(todo.delete, marks)
            marks.broke()
        blocked = in_the_way(todo.activate, [row for row in todo.delete if row.pairs & marks.words.keys()])
        for c, words in blocked.items():
            marks.words.update({pair: words for pair in c.pairs if pair not in marks.words})
        items = []
        enter = [c for c in todo.enter if c not in blocked]
        for c in enter:
            item = {"in": c.source, "out": c.destination, "dir": "bi" if c.two_way else "uni"}
            items.append(item if self._group == SYSTEM else {**item, "group": self._group})
            made |= c.pairs
        await self._batch("badd", enter, items, marks)
        entered = {*todo.enter, *blocked}
        for c in todo.activate:
            if c not in entered:  # else: reserved by us before
                marks.write()
                (refused,) = await self._tell("activate", {"conn": c.name, "group": c.group}, 1)
                marks.words.update(dict.fromkeys(c.pairs, refused) if refused else {})
        marks.acknowledged()

    async def _delete(self, rows: Sequence[Connection], marks: Marks[Pair]) -> None:
        await self._batch("bdel", rows, [{"conn": row.name} for row in rows], marks)

    async def _batch(self, verb: str, rows: Sequence[Connection], items: Sequence[Json], marks: Marks[Pair]) -> None:
        """Send one item per connection; the words of a failed one are kept for each circuit it carries."""
        for at in range(0, len(rows), BATCH):
            part = rows[at : at + BATCH]
            marks.write()
            for row, words in zip(part, await self._tell(verb, list(items[at : at + BATCH]), len(part)), strict=True):
                for pair in row.pairs:
                    if words:
                        marks.words[pair] = words
                    else:
                        marks.words.pop(pair, None)

    async def _tell(self, verb: str, content: Json, count: int) -> list[str]:
        """POST; return the words of each item's failure, empty where it was done."""

        def parse(answer: Answer) -> list[str]:
            if 400 <= answer.status < 500:
                return [rest.restconf_words(answer.status, answer.body)] * count
            return wire.refusals(wire.body(answer.status, answer.body), count)

        path, headers = f"{CROSS}?id={verb}", {"Content-Type": "application/json", "Accept": "application/json"}
        body = json.dumps(content).encode()
        try:
            found = await self._session.tell(
                "POST", path, parse, body=body, headers=headers, timeout_s=SLOW_CHANGE * self._timeout_s
            )
        except Refused as error:  # a read-only user, say
            found = [str(error)] * count
        return [words and f'refused "{verb}": {words}' for words in found]

    async def _ask(self, path: str, slow: int = 1) -> Json:
        def parse(answer: Answer) -> Json:
            found = wire.body(answer.status, answer.body)
            # A failed question, too, is answered by HTTP 200 with a result of status "0".
            if isinstance(held := found[0] if isinstance(found, list) and found else found, dict) and held.get("status") == "0":
                raise Refused(f'{self.name} refused "GET {path}": {wire.refusal(held)}')
            return found

        return await self._session.ask(path, parse, headers={"Accept": "application/json"}, timeout_s=slow * self._timeout_s)

    async def _rows(self) -> Rows:
        answer = await self._ask(f"{CROSS}?id=list", SLOW_LIST)
        try:
            self._last = tuple(_parse_row(row) for row in wire.connections(answer))
        except Garbled as error:
            raise Garbled(f'{self.name}: answer to "GET {CROSS}?id=list": {error}') from error
        return self._last

    async def _without_light(self, rows: Iterable[Connection]) -> set[Pair]:
        """Circuits whose OC=FAIL is explained by a dark input: nothing the switch could do better."""
        suspects = list(rows)
        inputs = {Port(self.name, f"{a}:in") for row in suspects for a, _ in row.pairs}
        read = await self._power(inputs) if inputs else {}
        dark = {port.label.removesuffix(":in") for port, level in read.items() if level <= LOSS_OF_SIGNAL_DBM}
        return {pair for row in suspects if any(a in dark for a, _ in row.pairs) for pair in row.pairs}

    async def _power(self, ports: Iterable[Port]) -> dict[Port, Dbm]:
        """What the meters read, the floor included; a port without a meter is absent."""
        found: dict[Port, Dbm] = {}
        details: dict[str, Mapping[str, Json]] = {}
        for port in ports:
            label = port.label.removesuffix(":in")
            if port.device != self.name or not is_aid(label):
                continue
            if label not in details:
                try:
                    details[label] = _first(await self._ask(f"/rest/ports/?id=detail&port={percent(label)}", SLOW_PORTS))
                except Refused:
                    details[label] = {}  # not equipped: nothing to read
            try:
                level = wire.level(details[label], "inpower" if port.label.endswith(":in") else "outpower")
            except Garbled as error:
                raise Garbled(f"{self.name}: power of {port.label}: {error}") from error
            if level is not None:
                found[port] = level
        return found

    def _settings(self, rows: Iterable[Connection]) -> frozenset[Setting]:
        return frozenset(self._setting(pair) for row in rows if row.active for pair in row.pairs)

    def _setting(self, pair: Pair) -> Setting:
        return CrossConnect(Port(self.name, pair[0]), Port(self.name, pair[1]))

    def _pair(self, setting: Setting) -> Pair | None:
        """The two AIDs, None when a label is not one (and must not reach a request)."""
        ports = (setting.ingress, setting.egress)
        if not isinstance(setting, CrossConnect) or any(port.device != self.name or not is_aid(port.label) for port in ports):
            return None
        return (ports[0].label, ports[1].label)

    def _no_pair(self, setting: Setting) -> str:
        crossing = isinstance(setting, CrossConnect)
        return f"not a port of {self.name}" if crossing else "a spectral route is not a cross-connect; this is a switch"


def _first(answer: Json) -> Mapping[str, Json]:
    """The object of an answer, also where it is the only member of a list."""
    return rest.mapping(answer[0] if isinstance(answer, list) and answer else answer, "the answer")


def _parse_row(row: Mapping[str, Json]) -> Connection:
    """A row; a two-way connection is as well as the worse of its halves. Raises: Garbled."""
    two_way = rest.text(row, "dir", "uni").lower().startswith("bi")
    halves = [rest.mapping(row.get(key), key) for key in ("half1", "half2")[: 1 + two_way]]
    source, destination = wire.endpoints(halves[0])
    if two_way and wire.endpoints(halves[1]) != (destination, source):
        raise Garbled(f"halves that are not opposite: {rest.quote(repr(row))}")
    name = rest.text(row, "name", "") or rest.text(row, "connid", "") or make(source, destination, two_way, "").name

    def state(key: str, well: str) -> str:
        said = [rest.text(half, key, "").upper() for half in halves]
        return next((word for word in said if word != well), well)

    admin, oper, condition = state("as", "IS"), state("os", "IS"), state("oc", "OK")
    return Connection(source, destination, two_way, name, rest.text(row, "group", SYSTEM), admin, oper, condition)


def _silence(pair: Pair, row: Connection | None, watched_s: float) -> str:
    """Words for a change the device neither made nor refused."""
    reports = f"connection {row.name!r} {row.state}" if row else "no connection"
    return f"wanted {pair[0]}->{pair[1]}, reports {reports} after {watched_s:.1f} s"
