"""Calient MEMS switches over REST: `http(s)://host/rest/...`, Basic login, session cookie.

Requests as in the COSMOS Ryu application and NTT Com RENAT. What they leave open, and what is done
here:
- A refusal arrives inside HTTP 200; every item of a batch has its own result, which alone counts.
- `badd` makes a connection and activates it: no client activates what it added.
- Public clients wait 20 s for lists, 15 s for ports, 5 s for the rest: lists get four times
  `timeout_s`, ports three times, changes twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar
from urllib.parse import quote as percent

from drivers.api import Evidence
from drivers.link.http import Answer
from drivers.rounds import Marks
from drivers.session.calient import CalientSwitch, Rows
from drivers.session.rest import OPTIONS, RestSession, open_http
from drivers.watch import patience_option
from drivers.wire import calient_rest as wire
from drivers.wire import rest
from drivers.wire.calient_rows import Connection, Pair, Work, is_aid, make, natural
from drivers.wire.rest import Json
from drivers.wire.unknown import Unknown, sorted_out
from optics import Dbm, DeviceConfig, Garbled, Identity, Port, Refused, Traits

CROSS = "/rest/crossconnects/"
SYSTEM = "SYSTEM"  # the group public clients use
SLOW_LIST, SLOW_PORTS, SLOW_CHANGE = 4, 3, 2
BATCH = 64
"""Items per `badd` or `bdel`: no source gives a limit; a lost answer leaves no more than these
open.
"""


class CalientRest(CalientSwitch):
    """A Calient switch over REST."""

    # S320 hardware guide p. 44: a set of connections within 200 ms.
    TRAITS: ClassVar[Traits] = Traits(
        settle_s=0.2, at_once=None, keeps_others_lit=True, latching=False, insertion_loss_db=1.5
    )
    OPTIONS: ClassVar[Mapping[str, str]] = {
        "group": "group name of the connections made here; default SYSTEM, as public clients have it",
        **OPTIONS,
        "patience_s": patience_option(),
    }
    EVIDENCE: ClassVar[Evidence] = Evidence(
        "Calient S-series, REST",
        ("http", "https"),
        {
            "identify": "CODE",
            "read": "CODE",
            "change": "CODE",
            "refusals": "CODE",
            "power": "REAL",
            "settling": "DOC",
        },
    )

    def __init__(self, config: DeviceConfig, traits: Traits) -> None:
        super().__init__(config, traits, SYSTEM)
        self._session: RestSession = RestSession(open_http(config))

    async def identify(self) -> Identity:
        async with self._lock:
            version = await self._ask("/rest/info/?id=softwareversion")
            node = await self._ask("/rest/node/?id=summary&detail=SYSCFG")
            ports = await self._ask("/rest/ports/?id=summary", SLOW_PORTS)
        try:
            names = [rest.text(row, "port") for row in rest.rows(ports, "ports")]
            labels = sorted(filter(is_aid, names), key=natural)
            if not labels:
                raise Garbled(f"no port in {names[:4]}")
            reported, held = _first(version), _first(node)
            part = rest.text(held, "partnumber")
            return Identity(
                "Calient",
                part,
                rest.text(held, "serialnumber"),
                rest.text(reported, "version"),
                tuple(labels),
                tuple(labels),
            )
        except Garbled as error:
            raise Garbled(f"{self.name}: identity: {error}") from error

    @property
    def _owner(self) -> str:
        # In the group that every client uses, reserved connections of others cannot be
        # distinguished from this program's.
        return self._group if self._group != SYSTEM else ""

    async def _take_down(self, todo: Work, marks: Marks[Pair]) -> list[Connection]:
        await self._delete(todo.delete, marks)
        return [row for row in todo.delete if row.pairs & marks.reasons.keys()]

    async def _put_up(
        self, enter: Sequence[Connection], activate: Sequence[Connection], marks: Marks[Pair]
    ) -> None:
        items = []
        for c in enter:
            item = {"in": c.source, "out": c.destination, "dir": "bi" if c.bidirectional else "uni"}
            items.append(item if self._group == SYSTEM else {**item, "group": self._group})
            self._entered |= c.pairs
        await self._batch("badd", enter, items, marks)
        for c in activate:
            if c not in enter:  # reserved by this program before
                marks.write()
                (refused,) = await self._request("activate", {"conn": c.name, "group": c.group}, 1)
                marks.reasons.update(dict.fromkeys(c.pairs, refused) if refused else {})

    async def _roll_back(self, stale: Sequence[Connection], marks: Marks[Pair]) -> None:
        await self._delete(stale, marks)

    def _stale(self, rows: Rows, failed: set[Pair]) -> list[Connection]:
        return [row for row in rows if row.pairs & failed & self._entered]

    async def _delete(self, rows: Sequence[Connection], marks: Marks[Pair]) -> None:
        await self._batch("bdel", rows, [{"conn": row.name} for row in rows], marks)

    async def _batch(
        self, verb: str, rows: Sequence[Connection], items: Sequence[Json], marks: Marks[Pair]
    ) -> None:
        """Send one item per connection; the words of a failed one are kept for each circuit it
        carries.
        """
        for at in range(0, len(rows), BATCH):
            part = rows[at : at + BATCH]
            marks.write()
            for row, text in zip(
                part,
                await self._request(verb, list(items[at : at + BATCH]), len(part)),
                strict=True,
            ):
                for pair in row.pairs:
                    if text:
                        marks.reasons[pair] = text
                    else:
                        marks.reasons.pop(pair, None)

    async def _request(self, verb: str, content: Json, count: int) -> list[str]:
        """POST; return the reason of each item's failure, empty where it succeeded."""

        def parse(answer: Answer) -> list[str]:
            if 400 <= answer.status < 500:
                return [rest.restconf_message(answer.status, answer.body)] * count
            return wire.refusals(wire.body(answer.status, answer.body), count)

        path, headers = (
            f"{CROSS}?id={verb}",
            {"Content-Type": "application/json", "Accept": "application/json"},
        )
        body = json.dumps(content).encode()
        try:
            found = await self._session.send(
                "POST",
                path,
                parse,
                body=body,
                headers=headers,
                timeout_s=SLOW_CHANGE * self._timeout_s,
            )
        except Refused as error:  # for example a read-only user
            found = [str(error)] * count
        return [text and f'refused "{verb}": {text}' for text in found]

    async def _ask(self, path: str, slow: int = 1) -> Json:
        def parse(answer: Answer) -> Json:
            found = wire.body(answer.status, answer.body)
            # A failed query is also answered by HTTP 200 with a result of status "0".
            if (
                isinstance(held := found[0] if isinstance(found, list) and found else found, dict)
                and held.get("status") == "0"
            ):
                raise Refused(f'{self.name} refused "GET {path}": {wire.refusal(held)}')
            return found

        return await self._session.ask(
            path, parse, headers={"Accept": "application/json"}, timeout_s=slow * self._timeout_s
        )

    async def _table_now(self) -> tuple[Rows, frozenset[Unknown]]:
        answer = await self._ask(f"{CROSS}?id=list", SLOW_LIST)
        try:
            return sorted_out(wire.connections(answer), _parse_row, wire.unreadable)
        except Garbled as error:
            raise Garbled(f'{self.name}: answer to "GET {CROSS}?id=list": {error}') from error

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
                    details[label] = _first(
                        await self._ask(
                            f"/rest/ports/?id=detail&port={percent(label, safe='')}", SLOW_PORTS
                        )
                    )
                except Refused:
                    details[label] = {}  # not equipped: nothing to read
            try:
                level = wire.level(
                    details[label], "inpower" if port.label.endswith(":in") else "outpower"
                )
            except Garbled as error:
                raise Garbled(f"{self.name}: power of {port.label}: {error}") from error
            if level is not None:
                found[port] = level
        return found


def _first(answer: Json) -> Mapping[str, Json]:
    """The object of an answer, also if it is the only member of a list."""
    return rest.mapping(answer[0] if isinstance(answer, list) and answer else answer, "the answer")


def _parse_row(row: Mapping[str, Json]) -> Connection:
    """A row; a two-way connection has the state of its worse half. Raises: Garbled."""
    bidirectional = rest.text(row, "dir", "uni").lower().startswith("bi")
    halves = [rest.mapping(row.get(key), key) for key in ("half1", "half2")[: 1 + bidirectional]]
    source, destination = wire.endpoints(halves[0])
    if bidirectional and wire.endpoints(halves[1]) != (destination, source):
        raise Garbled(f"halves that are not opposite: {rest.quote(repr(row))}")
    name = (
        rest.text(row, "name", "")
        or rest.text(row, "connid", "")
        or make(source, destination, bidirectional, "").name
    )

    def state(key: str, well: str) -> str:
        lines = [rest.text(half, key, "").upper() for half in halves]
        return next((word for word in lines if word != well), well)

    admin, oper, condition = state("as", "IS"), state("os", "IS"), state("oc", "OK")
    return Connection(
        source,
        destination,
        bidirectional,
        name,
        rest.text(row, "group", SYSTEM),
        admin,
        oper,
        condition,
    )
