"""The connection table of a Calient switch: reserved and active connections, and the ports they
take.

State model: Phosphorus G2MPLS plugin (CODE). ENT-CRS reserves, ACT-CRS turns the mirrors, CANC-CRS
goes back to reserved, DLT-CRS frees the ports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, cast

from emulators.devices.dialects.base import AnyDialect
from emulators.optics.circuits import Circuit
from emulators.optics.plant import Pair, Plant, Side, Violation

DEFAULT_GROUP = "SYSTEM"  # CODE: Phosphorus
KINDS = ("1WAY", "2WAY")


def aids(count: int) -> tuple[str, ...]:
    """Return the first `count` port names of shelf 1: shelf.module.port, port digit 1..8 (Quali
    tests, REAL).
    """
    return tuple(f"1.{n // 8 + 1}.{n % 8 + 1}" for n in range(count))


def numbers(count: int) -> tuple[str, ...]:
    """Return plain numbers, as of a chassis whose row begins `1>1` (REAL: a lab's client)."""
    return tuple(str(n) for n in range(1, count + 1))


def parts(count: int) -> tuple[str, ...]:
    """Return port names with a fourth number behind a slash, `3.1.4/1` (DOC: LabVault; U: that
    there are two to a triplet).
    """
    return tuple(f"{aid}/{n}" for aid in aids((count + 1) // 2) for n in (1, 2))[:count]


# what `ports` of emulator.yml may say in place of labels
STYLES = {"numbers": numbers, "parts": parts}


def default_name(source: str, target: str, kind: str) -> str:
    """Return the default name of a connection: `in-out` (2-way), `in>out` (1-way) (Quali tests,
    REAL).
    """
    return f"{source}{'-' if kind == '2WAY' else '>'}{target}"


@dataclass(eq=False, slots=True)
class Connection:
    """One entry: reserved, or active. A 2WAY connection is two light paths. Without a name it is
    named after its ports.
    """

    name: str
    source: str
    target: str
    kind: str
    group: str = ""
    active: bool = False
    alarmed: bool = False

    def __post_init__(self) -> None:
        self.name = self.name or default_name(self.source, self.target, self.kind)
        self.group = self.group or DEFAULT_GROUP

    @property
    def pairs(self) -> tuple[Pair, ...]:
        forward = (self.source, self.target)
        return (forward,) if self.kind == "1WAY" else (forward, (self.target, self.source))

    @property
    def sides(self) -> tuple[Side, ...]:
        return tuple(side for i, e in self.pairs for side in (("in", i), ("out", e)))


@dataclass(frozen=True, slots=True)
class Row:
    """An entry as RTRV-CRS shows it; field names and order are REAL (Quali tests)."""

    name: str
    source: str
    target: str
    kind: str
    group: str
    state: str

    @property
    def title(self) -> str:
        """What the row begins with: the ports, whatever the name (REAL: MonALISA of a PXC, a lab's
        client of plain numbers).
        """
        reverse = f"{self.target}<{self.source}"  # CODE: pynt
        return (
            reverse if self.name == reverse else default_name(self.source, self.target, self.kind)
        )

    def __str__(self) -> str:
        return (
            f"{self.title}:SRCPORT={self.source},DSTPORT={self.target},GRPNAME={self.group},CONNNAME={self.name},"
            f"CONNTYPE={self.kind},{self.state},PS=UPR,AL=CL"
        )


class Table:
    """Connections by name, and the user of each side of each port: a reserved connection holds its
    ports too.

    meters: False gives NONE as power.
    """

    def __init__(self, plant: Plant, *, meters: bool = True) -> None:
        self.plant, self.meters = plant, meters
        self.ports = tuple(dict.fromkeys((*plant.ingress, *plant.egress)))
        self._entries: dict[str, Connection] = {}
        self._used: dict[Side, Connection] = {}

    def __iter__(self) -> Iterator[Connection]:
        return iter(tuple(self._entries.values()))

    def get(self, name: str) -> Connection | None:
        return self._entries.get(name)

    def at(self, source: str, target: str) -> Connection | None:
        """Return the connection entered for these ports in this order."""
        return next(
            (c for c in self._entries.values() if (c.source, c.target) == (source, target)), None
        )

    def user(self, side: Side) -> Connection | None:
        """Return the connection that holds `side`."""
        return self._used.get(side)

    def administrative(self, side: Side) -> str:
        """Return the administrative state of a side."""
        return "OOS" if self.plant.disabled(side) else "IS" if side in self._used else "OOS-NP"

    def power(self, side: Side, now: float) -> str:
        # one decimal: REAL on the REST side (RENAT)
        return f"{self.plant.power_dbm(side, now):.1f}" if self.meters else "NONE"

    def unknown(self, source: str, target: str) -> str | None:
        """Return which of two ports there is not, in or out."""
        known = ((source, self.plant.ingress), (target, self.plant.egress))
        return next((label for label, labels in known if label not in labels), None)

    def lock(self, connection: Connection) -> str | None:
        """Return why a connection may not be changed."""
        return next(
            (why for pair in connection.pairs if (why := self.plant.wrong.lock(pair))), None
        )

    def taken(self, wanted: Connection, now: float) -> tuple[str, str] | None:
        """Return a port of `wanted` that is taken, and the connection; to have asked for it is a
        violation.
        """
        if found := self.holder(wanted):
            port, holder = found
            what = f"port {port} in use"
            self.plant.violations.append(Violation(now, wanted.pairs[0], what))
            return port, holder.name
        return None

    def holder(self, wanted: Connection) -> tuple[str, Connection] | None:
        """Return a port of `wanted` that is taken, and its holder."""
        return next(
            ((side[1], self._used[side]) for side in wanted.sides if side in self._used), None
        )

    def add(self, connection: Connection) -> None:
        self._entries[connection.name] = connection
        self._used.update(dict.fromkeys(connection.sides, connection))

    def preset(self, connection: Connection) -> None:
        """Enter a connection as if it had always been there. Raises ValueError: it collides, or
        cannot be.
        """
        where = f"{self.plant.name}: preset {connection.name}"
        if connection.kind not in KINDS or self.get(connection.name) or self.holder(connection):
            raise ValueError(f"{where}: its name, direction or ports cannot be")
        for pair in connection.pairs:
            if why := self.plant.why_not(pair):
                raise ValueError(f"{where}: {why}")
        if connection.active:
            self.plant.preset(connection.pairs)
        self.add(connection)

    def rebooted(self, keep: bool, now: float, boot_s: float) -> None:
        """Reserved and active connections survive a power cycle (U)."""
        if keep:
            self.plant.restore([p for c in self if c.active for p in c.pairs], now, boot_s)
        else:
            self.clear()

    def remove(self, connection: Connection) -> None:
        del self._entries[connection.name]
        for side in connection.sides:
            del self._used[side]

    def clear(self) -> None:
        self._entries.clear()
        self._used.clear()

    def rows(self, now: float) -> tuple[Row, ...]:
        return tuple(
            Row(c.name, c.source, c.target, c.kind, c.group, self.state(c, now))
            for c in self._entries.values()
        )

    def state(self, connection: Connection, now: float) -> str:
        """Return AS, OS, OC. Reserved and lit are CODE (Phosphorus); IS,RDY while moving, OC=FAIL
        for dark are inferences (U).

        A reserved row is OC=OK (CODE, REAL) or OC=FAIL (REAL: Quali); that FAIL says that no light
        enters is U.
        """
        if not connection.active:
            dark = any(
                self.plant.true_dbm(("in", ingress), now) is None for ingress, _ in connection.pairs
            )
            return f"AS=UMA,OS=RDY,OC={'FAIL' if dark else 'OK'}"
        made = self._made(connection)
        if any(not circuit.settled(now) for circuit in made):
            return "AS=IS,OS=RDY,OC=OK"
        return f"AS=IS,OS=IS,OC={'FAIL' if self._dark(connection, made, now) else 'OK'}"

    def dark(self, connection: Connection, now: float) -> bool:
        """Return whether an active connection has come to rest without light on every path."""
        made = self._made(connection)
        return (
            connection.active
            and all(c.settled(now) for c in made)
            and self._dark(connection, made, now)
        )

    def _made(self, connection: Connection) -> list[Circuit]:
        found = (self.plant.circuit(("in", pair[0])) for pair in connection.pairs)
        return [
            circuit for circuit in found if circuit is not None and circuit.pair in connection.pairs
        ]

    def _dark(self, connection: Connection, made: list[Circuit], now: float) -> bool:
        return len(made) < len(connection.pairs) or not all(
            self.plant.bright(circuit, now) for circuit in made
        )


class _HasTable(Protocol):
    table: Table


def preset_by(key: str, kinds: Mapping[str, str]) -> Callable[[AnyDialect, object], None]:
    """How a row of `preset` is entered: [in, out] or {in, out, KEY, name, group, active}. kinds: by
    what KEY says, the first without it.
    """
    keys = {"in", "out", key, "name", "group", "active"}

    def enter(dialect: AnyDialect, row: object) -> None:
        if isinstance(row, list | tuple) and len(row) == 2:
            row = {"in": row[0], "out": row[1]}
        entry = dict(row) if isinstance(row, Mapping) else {}
        if wrong := set(entry) - keys | {"in", "out"} - set(entry):
            raise ValueError(
                f"{dialect.plant.name}: preset {row!r}: {', '.join(sorted(wrong))} is missing or unknown;"
                f" wanted [in, out] or {{in, out, {key}, name, group, active}}"
            )
        kind = kinds.get(str(entry.get(key, next(iter(kinds)))).lower(), "")
        name, source, target, group = (
            str(entry.get(k, "")) for k in ("name", "in", "out", "group")
        )
        active = bool(entry.get("active", True))
        cast(_HasTable, dialect).table.preset(Connection(name, source, target, kind, group, active))

    return enter
