"""Glimmerglass MEMS switches (System 100/300/500) over TL1, port 10033: echo, the prompt `<`, long
answers in blocks.

Requests as in MonALISA (CODE), rows as in a public driver log (REAL); read by key, older firmware
has fewer. Ports: 10001.. light enters, 20001.. light leaves.

Decisions on what the public sources leave open:
- A row is an established circuit when it reports `steady`, or `fault` and no light enters (its
  cause says so, or INPWR does): then it is as good as the switch can make it. A `fault` with light
  at the input holds its ports and is not a circuit, but `holders` reports it; one that `apply` made
  is deleted again and reported with its cause.
- A circuit may need a while to become steady. What this change entered is waited for, not entered
  again, and deleted only after `patience_s` without a change and a last read.
- A port locked by another user is not driven: the change fails with the holder's name before
  anything is sent for it.
- Several circuits go in one command, lists paired by position (CODE for duplex pairs); where the
  switch denies a list, what is missing is sent one by one, so that each gets its own answer.
- One question at a time: the switch echoes.
- No source shows a login. A user in the inventory logs in; a switch that does not know the command
  is assumed to need none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from drivers.api import Evidence
from drivers.rounds import Marks
from drivers.session.crossconnects import believed
from drivers.session.pairs import Pair, PairSwitch
from drivers.session.tl1 import Command, Tl1Session, open_tl1, retrieve
from drivers.watch import late_s, patience_option, watch
from drivers.wire import tl1, unknown
from drivers.wire.unknown import Unknown, sorted_out
from optics import Change, Dbm, DeviceConfig, Garbled, Identity, Outcome, Port, Setting, Traits
from optics.plain import printable

LOSS_OF_SIGNAL_DBM = -30.0  # usual threshold of the family's monitors; no source gives one
FLOOR_DBM = -45.0
"""Dark ports read about -48 to -52 dBm (REAL): from here down there is no light."""
PAIRS_PER_COMMAND = 32  # keeps a command under 450 bytes; no source gives a limit
_SIDE = re.compile(r"0|[12][0-9]{4}")
_LABEL = re.compile(r"[12][0-9]{4}")
_LABELS = re.compile(r"(?<![0-9.])[12][0-9]{4}(?![0-9.])")
_OPEN = frozenset({"", "0", "NO", "NONE", "NA", "UNLOCKED"})
_NUMBER = re.compile(r"[+-]?\d{1,3}(\.\d+)?")


@dataclass(frozen=True, slots=True)
class Row:
    """One row of RTRV-CRS-FIBER. 0 for a side that is not connected; `locked_by`: None when it is
    not locked.
    """

    ingress: int
    egress: int
    state: str
    cause: str
    input_dbm: Dbm | None
    locked_by: str | None

    @property
    def connected(self) -> bool:
        return bool(self.ingress and self.egress)

    @property
    def pair(self) -> Pair:
        return self.ingress, self.egress

    @property
    def established(self) -> bool:
        dark = self.cause == "input_loss_of_light" or (
            self.input_dbm is not None and self.input_dbm <= LOSS_OF_SIGNAL_DBM
        )
        return self.connected and (self.state == "steady" or (self.state == "fault" and dark))

    @property
    def message(self) -> str:
        return f"CONNSTATE={self.state},CONNCAUSE={self.cause}"


def parse(text: str) -> Row:
    """Read a row by its keys. Raises: Garbled."""
    row = tl1.parse_row(text)
    sides = (row.fields.get("IPORTID", "0"), row.fields.get("OPORTID", "0"))
    for side in sides:
        if not _SIDE.fullmatch(side):
            raise Garbled(f"row {text[:60]!r}: port {side!r}")
    if sides == ("0", "0") or (sides[0][0], sides[1][0]) in {
        ("2", "2"),
        ("1", "1"),
        ("2", "1"),
        ("2", "0"),
        ("0", "1"),
    }:
        raise Garbled(f"row {text[:60]!r}: from port {sides[0]} to port {sides[1]}")
    if "0" in sides and row["CONNSTATE"].lower() in ("steady", "fault"):
        # to what, it does not say
        raise Garbled(
            f"row {text[:60]!r}: {row['CONNSTATE']}, from port {sides[0]} to port {sides[1]}"
        )
    level = row.fields.get("INPWR", "NA")
    locked = row.fields.get("CONNLOCK", "").upper() not in _OPEN
    return Row(
        int(sides[0]),
        int(sides[1]),
        row["CONNSTATE"].lower(),
        row.fields.get("CONNCAUSE", "").lower(),
        float(level) if _NUMBER.fullmatch(level) else None,
        row.fields.get("CONNLOCKUSER", "") if locked else None,
    )


def unreadable(text: str) -> Unknown:
    """A row that `parse` does not read, with every port in it."""
    return Unknown(text, frozenset(_LABELS.findall(text)))


class GlimmerglassTl1(PairSwitch):
    """A Glimmerglass switch. Its ports are numbers of five digits: 10001.. in, 20001.. out."""

    # Reflexion 80x80, 2003 trade article: under 10 ms. Field rows: 0.84 to 1.67 dB (REAL). Meter
    # accuracy and latching assumed.
    TRAITS: ClassVar[Traits] = Traits(
        settle_s=0.01,
        at_once=None,
        keeps_others_lit=True,
        latching=False,
        insertion_loss_db=1.25,
        meter_db=1.0,
    )
    OPTIONS: ClassVar[Mapping[str, str]] = {
        "keep_alive_s": "idle time after which the session is refreshed (s), 0 for never; default 30",
        "bulk": "circuits in one command at most, 1 to send each alone; default 32",
        "patience_s": patience_option(),
    }
    EVIDENCE: ClassVar[Evidence] = Evidence(
        "Glimmerglass System 100/300/500, TL1",
        ("tcp", "telnet"),
        {
            **{
                "identify": "CODE",
                "read": "REAL",
                "change": "CODE",
                "refusals": "assumed",
                "power": "REAL",
            },
            **{"locks": "REAL", "settling": "DOC"},
        },
    )
    UNSAID: ClassVar[str] = "not refused either"

    def __init__(self, config: DeviceConfig, traits: Traits) -> None:
        super().__init__(config, traits)
        self._bulk = int(config.options.get("bulk", str(PAIRS_PER_COMMAND)))
        if not 1 <= self._bulk <= 320:
            raise ValueError(f"bulk {self._bulk}: from 1 to 320")
        self._user = config.username
        self._session: Tl1Session = open_tl1(config, window=1)
        self._table: tuple[Row, ...] = ()  # as last read

    def holders(self) -> Mapping[Setting | Port, str]:
        """Circuits in fault although light enters; ports of rows that cannot be read."""
        idle = {
            row.pair: row.message for row in self._table if row.connected and not row.established
        }
        held: dict[Setting | Port, str] = {
            self._setting(pair): printable(text, keep="") for pair, text in idle.items()
        }
        return held | unknown.holders(self.name, self._strange)

    async def identify(self) -> Identity:
        async with self._lock:
            reply = await self._session.ask(retrieve("rtrv-system-info"))
        text = ",".join((*reply.rows, *reply.stray))
        found = {
            key.lower(): value.strip()
            for key, value in re.findall(r"([A-Za-z]+)=([^,\"\\]*)", text)
        }
        size = re.fullmatch(
            r"(\d{1,4})\s*x\s*(\d{1,4})", found.get("licensedportmatrix", ""), re.IGNORECASE
        )
        model = found.get("systemtype") or found.get("chassistype", "")
        if not size or not model or not found.get("serialnumber"):
            raise Garbled(f"{self.name}: identity: {text[:160]!r}")
        return Identity(
            "Glimmerglass",
            model,
            found["serialnumber"],
            found.get("softwareactiveversion", ""),
            tuple(str(10000 + n) for n in range(1, int(size[1]) + 1)),
            tuple(str(20000 + n) for n in range(1, int(size[2]) + 1)),
        )

    async def power(self, ports: Iterable[Port]) -> Mapping[Port, Dbm]:
        wanted = {port.label: port for port in ports if port.device == self.name}
        async with self._lock:
            reply = await self._session.ask(retrieve("rtrv-port-power", "all"))
        found: dict[Port, Dbm] = {}
        try:
            for text in reply.rows:
                row = tl1.parse_row(text)
                label, level = row["PORTID"], row["PORTPOWER"]
                if level.upper() == "NA" or label not in wanted:
                    continue
                if not _NUMBER.fullmatch(level):
                    raise Garbled(f"port {label} has {level!r}")
                if float(level) > FLOOR_DBM:
                    found[wanted[label]] = float(level)
        except Garbled as error:
            raise Garbled(f"{self.name}: power: {error}") from error
        return found

    async def _round(self, change: Change, marks: Marks[Pair]) -> Outcome:
        """As every switch of pairs; then delete what was made and does not work, and report why."""
        outcome = await super()._round(change, marks)
        tried = {pair: s for s in outcome.failed if s in change.add and (pair := self._pair(s))}
        if not any(row.pair in tried and not row.established for row in self._table):
            return outcome
        pairs = await self._read()  # a last read: what became steady by now is kept
        failed = {
            s: text
            for s, text in outcome.failed.items()
            if s not in change.add or self._pair(s) not in pairs
        }
        outcome = replace(outcome, observed=self._settings(pairs), failed=failed)
        stale = {
            row.pair: row
            for row in self._table
            if row.pair in tried and row.connected and not row.established
        }
        stale = {
            pair: row for pair, row in stale.items() if pair not in marks.reasons
        }  # refused: another client's, not to be deleted here
        if not stale:
            return outcome
        failed |= {
            tried[pair]: f"made, but reports {row.message}; deleted again"
            for pair, row in stale.items()
        }
        await self._break(sorted(stale), marks)
        last = await watch(
            self._read,
            lambda _: not any(row.pair in stale for row in self._table),
            expected_s=self.traits.settle_s,
            patience_s=late_s(self.traits),
        )
        return replace(
            outcome,
            observed=self._settings(last.report),
            writes=marks.writes,
            failed=dict(sorted(failed.items())),
        )

    async def _rows(self) -> tuple[tuple[Row, ...], frozenset[Unknown]]:
        reply = await self._session.ask(retrieve("rtrv-crs-fiber", "all"))
        try:
            if reply.stray:
                raise Garbled(f"not a row: {reply.stray[0][:120]!r}")
            return sorted_out(reply.rows, parse, unreadable)
        except Garbled as error:
            raise Garbled(f"{self.name}: connection table: {error}") from error

    async def _read(self) -> frozenset[Pair]:
        rows, self._strange = await believed(
            f"{self.name}: connection table", self._rows, self._strange
        )
        held = [row.pair for row in rows if row.connected]
        if len({a for a, _ in held}) < len(set(held)) or len({b for _, b in held}) < len(set(held)):
            raise Garbled(f"{self.name}: connection table: a port in two circuits")
        self._table = rows
        return frozenset(row.pair for row in rows if row.established)

    async def _break(self, pairs: list[Pair], marks: Marks[Pair]) -> None:
        await self._change("dlt-crs-fiber", self._ours(pairs, marks), marks)

    async def _make(self, pairs: list[Pair], marks: Marks[Pair]) -> None:
        broken = [row for row in self._table if row.connected and not row.established]
        # entered by this change before, and not steady yet
        coming = {row.pair for row in broken} & marks.doubtful
        pairs = [pair for pair in pairs if pair not in coming]
        if again := [row.pair for row in broken if row.pair in pairs]:
            await self._change("dlt-crs-fiber", self._ours(again, marks), marks)
        for pair in pairs:
            for row in broken:
                if row.pair != pair and (row.ingress == pair[0] or row.egress == pair[1]):
                    port = pair[0] if row.ingress == pair[0] else pair[1]
                    marks.reasons[pair] = (
                        f"port {port} is held by {row.ingress}->{row.egress} ({row.message})"
                    )
        free = self._ours([pair for pair in pairs if pair not in marks.reasons], marks)
        if free:
            await self._change("ent-crs-fiber", free, marks)

    def _ours(self, pairs: list[Pair], marks: Marks[Pair]) -> list[Pair]:
        """Those whose ports no other user has locked; the others get the holder's name."""
        locks = {
            port: row.locked_by
            for row in self._table
            if row.locked_by is not None
            for port in row.pair
            if port
        }
        free: list[Pair] = []
        for pair in pairs:
            port = next(
                (
                    port
                    for port in pair
                    if port in locks and (locks[port] != self._user or not self._user)
                ),
                0,
            )
            if port:
                marks.reasons[pair] = (
                    f"port {port} is locked by {locks[port] or 'another user (no name given)'}"
                )
            else:
                free.append(pair)
        return free

    async def _change(self, verb: str, pairs: list[Pair], marks: Marks[Pair]) -> None:
        for at in range(0, len(pairs), self._bulk):
            part = pairs[at : at + self._bulk]
            await self._in_lists(
                verb == "ent-crs-fiber",
                part,
                marks,
                lambda pairs: self._command(verb, pairs, marks),
                self._held,
            )

    async def _held(self) -> frozenset[Pair]:
        """The pairs that hold ports, steady or not."""
        await self._read()
        return frozenset(row.pair for row in self._table if row.connected)

    async def _command(self, verb: str, pairs: list[Pair], marks: Marks[Pair]) -> str:
        """Send one command for `pairs`; return its refusal, empty where there is none."""
        marks.write()
        sides = ("&".join(str(pair[side]) for pair in pairs) for side in (0, 1))
        (text,) = await self._session.refusals([Command(verb, ",".join(sides))])
        return text

    def _ends(self, ingress: str, egress: str) -> Pair | None:
        return (
            (int(ingress), int(egress))
            if _LABEL.fullmatch(ingress) and _LABEL.fullmatch(egress)
            else None
        )
