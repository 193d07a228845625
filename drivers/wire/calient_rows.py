"""The meaning of a Calient switch's connection table, and the commands that turn it into the wanted
one. Values in, values out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from drivers.wire import tl1, unknown
from drivers.wire.unknown import Unknown
from optics import CrossConnect, DeviceName, Garbled, Port, Setting
from optics.plain import printable

_TRIPLET = r"[0-9]{1,3}(?:\.[0-9]{1,3}[A-Za-z]?){2}(?:/[0-9]{1,3})?"
_NUMBER = r"[1-9][0-9]{0,3}"
_AID = re.compile(rf"{_TRIPLET}|{_NUMBER}")
_AIDS = re.compile(rf"(?<![^\s<>,:&=\-])(?:{_TRIPLET}|{_NUMBER}(?![\w.]))")
Pair = tuple[str, str]
"""Light enters at the first AID, leaves at the second."""


@dataclass(frozen=True, slots=True, order=True)
class Connection:
    """One row of RTRV-CRS, or one to be made. AS, OS, OC: administrative state, operating state,
    operating condition.
    """

    source: str
    destination: str
    bidirectional: bool
    name: str
    group: str
    admin: str = ""
    oper: str = ""
    condition: str = ""

    @property
    def aid(self) -> str:
        return f"{self.source},{self.destination}"

    @property
    def kind(self) -> str:
        return "2WAY" if self.bidirectional else "1WAY"

    @property
    def pairs(self) -> frozenset[Pair]:
        """The directed circuits it carries: a two-way connection is two."""
        existing = (self.source, self.destination)
        return (
            frozenset({existing, existing[::-1]}) if self.bidirectional else frozenset({existing})
        )

    @property
    def engaged(self) -> bool:
        """Activated, whether or not the mirrors have arrived; the opposite is reserved
        (`AS=UMA`).
        """
        return self.admin == "IS"

    @property
    def active(self) -> bool:
        return self.admin == "IS" and self.oper == "IS"

    @property
    def healthy(self) -> bool:
        return self.active and self.condition == "OK"

    @property
    def state(self) -> str:
        return f"AS={self.admin},OS={self.oper},OC={self.condition}"


def holders(device: DeviceName, rows: Iterable[Connection]) -> dict[Setting | Port, str]:
    """Connections that hold ports and are not in service, each direction of a two-way one, with its
    state and its group.
    """
    return {
        CrossConnect(Port(device, a), Port(device, b)): printable(
            f"{row.state} in group {row.group!r}", keep=""
        )
        for row in rows
        if not row.active
        for a, b in row.pairs
    }


def make(source: str, destination: str, bidirectional: bool, group: str) -> Connection:
    """A connection under the name the switch gives it by default: `in-out` two-way, `in>out`
    one-way (Quali, pynt).
    """
    return Connection(
        source,
        destination,
        bidirectional,
        f"{source}{'-' if bidirectional else '>'}{destination}",
        group,
    )


def parse(row: str) -> Connection:
    """Read a row by its keys. The name need not derive from the ports (MonALISA); of `a<b` only
    SRCPORT says where light enters.

    Raises: Garbled.
    """
    found = tl1.parse_row(row)
    if found["CONNTYPE"] not in ("1WAY", "2WAY"):
        raise Garbled(f"row {found.name!r}: CONNTYPE={found['CONNTYPE']}")
    for key in ("SRCPORT", "DSTPORT"):
        if not is_aid(found[key]):
            raise Garbled(f"row {found.name!r}: {key}={found[key]}")
    return Connection(
        found["SRCPORT"],
        found["DSTPORT"],
        found["CONNTYPE"] == "2WAY",
        found["CONNNAME"],
        found["GRPNAME"],
        found["AS"],
        found["OS"],
        found["OC"],
    )


def unreadable(row: str) -> Unknown:
    """A row that `parse` does not read, with every port that it may concern."""
    found = tl1.parse_row(row)
    ends = [found.fields[key] for key in ("SRCPORT", "DSTPORT") if found.fields.get(key)]
    return Unknown(row, labels(found.name, found.fields.get("CONNNAME", ""), *ends) | {*ends})


def labels(*texts: str) -> frozenset[str]:
    """The ports that are named in these texts.

    >>> sorted(labels("3.1.4/1>7", "LOOPBACK_001"))
    ['3.1.4/1', '7']
    """
    return frozenset(found for text in texts for found in _AIDS.findall(text))


def is_aid(label: str) -> bool:
    """Whether `label` is a port of this family: `1.1.1` (S-series; `3.1.4/1` in a client's notes),
    `0.1b.1` (PXC), or `17`.
    """
    return _AID.fullmatch(label) is not None


def natural(label: str) -> tuple[tuple[int, str], ...]:
    """Sort key that puts `1.10.1` after `1.2.1`."""
    return tuple(
        (int(digits or 0), rest) for digits, rest in re.findall(r"(\d*)([^.\d]*)\.?", label)
    )


def _clash(one: Pair, other: Pair) -> bool:
    return one[0] == other[0] or one[1] == other[1]


def _held(pair: Pair, by: Pair) -> str:
    return f"port {pair[0] if pair[0] == by[0] else pair[1]} is held by {by[0]}->{by[1]}"


def blocking(wanted: Iterable[Connection], existing: Iterable[Connection]) -> dict[Connection, str]:
    """Which of `wanted` need a port that one of `existing` holds, in words: nothing is driven over
    what could not be taken down.
    """
    found: dict[Connection, str] = {}
    circuits = sorted({circuit for row in existing for circuit in row.pairs})
    for connection in wanted:
        for pair in sorted(connection.pairs):
            if held := next((circuit for circuit in circuits if _clash(pair, circuit)), None):
                found.setdefault(connection, f"{_held(pair, held)}, which could not be taken down")
    return found


@dataclass(frozen=True, slots=True)
class Work:
    """What to send, in this order; commands within one list do not depend on each other.

    `refused`: wanted circuits that are not attempted, with the reason.
    """

    cancel: tuple[Connection, ...] = ()
    delete: tuple[Connection, ...] = ()
    enter: tuple[Connection, ...] = ()
    activate: tuple[Connection, ...] = ()
    wanted: frozenset[Pair] = frozenset()
    refused: dict[Pair, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.cancel or self.delete or self.enter or self.activate)


def work(
    rows: Iterable[Connection],
    remove: frozenset[Pair],
    add: frozenset[Pair],
    group: str,
    halves: frozenset[Pair] = frozenset(),
    strange: Iterable[Unknown] = (),
) -> Work:
    """Return the commands that remove and add these circuits, given the current table.

    `halves`: circuits that an earlier round found to be kept halves of connections it broke (see
    below). `strange`: rows of the table that cannot be read; a port that one may concern is used
    for no new circuit.

    - a->b and b->a together become one two-way connection: half the commands.
    - Removing one half of a two-way connection recreates the other half one-way: it goes dark for
      one switching time. The switch has no command that halves a connection.
    - A reserved connection carries no light but holds its ports. Reserved by this program
      (`group`): completed if it is wanted, deleted if it blocks a wanted one, left alone otherwise.
      Reserved or held by others: the circuit is refused, naming the holder.
    """
    rows = sorted(rows)
    drop = {row: None for row in rows if row.pairs & remove}
    kept_halves = {pair for row in drop if row.active for pair in row.pairs - remove}
    kept_halves |= halves - remove
    wanted = add | kept_halves
    existing = [row for row in rows if row not in drop]
    missing = wanted - {pair for row in existing if row.engaged for pair in row.pairs}
    owned = {row: None for row in existing if not row.engaged and row.group == group}
    activate = {row: None for row in owned if row.pairs <= missing}
    missing -= {pair for row in activate for pair in row.pairs}
    refused = {
        pair: _held(pair, half)
        for pair in sorted(missing & add)
        for half in sorted(kept_halves - {pair})
        if _clash(pair, half)
    }
    leftovers: dict[Connection, None] = {}
    using: dict[tuple[str, str], list[int]] = {}  # side -> the standing connections that hold it
    for at, row in enumerate(existing):
        for circuit in row.pairs:
            for side in zip(("in", "out"), circuit, strict=True):
                using.setdefault(side, []).append(at)
    for pair in sorted(missing):
        for at in sorted(
            {at for side in zip(("in", "out"), pair, strict=True) for at in using.get(side, ())}
        ):
            row = existing[at]
            if row in activate or row in leftovers:
                continue
            if row in owned:
                leftovers[row] = None
            else:
                held = [circuit for circuit in row.pairs if _clash(pair, circuit)]
                refused[pair] = (
                    f"{_held(pair, held[0])}, connection {row.name!r} of group {row.group!r} ({row.state})"
                )
    strange = tuple(strange)
    refused |= {
        pair: text
        for pair in missing & add
        if pair not in refused and (text := unknown.at(pair, strange))
    }
    missing -= refused.keys()
    enter: list[Connection] = []
    for a, b in sorted(missing, key=lambda pair: (natural(pair[0]), natural(pair[1]))):
        both = a != b and (b, a) in missing
        if not both or natural(a) < natural(b):
            enter.append(make(a, b, both, group))
    return Work(
        tuple(row for row in drop if row.engaged),
        (*drop, *leftovers),
        tuple(enter),
        (*activate, *enter),
        frozenset(wanted),
        refused,
    )
