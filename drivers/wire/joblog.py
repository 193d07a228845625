"""The command line of Wave2Wave ROME and FiberZone AFM patch panels: tables interrupted by log
lines, and the content of the log lines.

Forms as in the captures of Quali cloudshell-L1-w2w-rome's tests (REAL). A log line may start at any
byte of other output: a line break, the log line, an empty line, then the rest of what was torn.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from drivers.wire.unknown import Unknown
from optics import Garbled

PROMPT = re.compile(r"\w+\[\w+\]#")
SEVERE = "Multiple Cross Connect Severe Failure"
"""The log line after which nothing moves until `homing run` (CODE: the driver above answers it
so).
"""

_STAMP = r"\d\d-\d\d-\d{4} \d\d:\d\d "
_LOG = rf"{_STAMP}[A-Za-z][^\r\n]*"
_ANY = re.compile(_LOG)
_BREAK = re.compile(r"(\r?\n)")
_PORT = r"[EW]\d{1,4}"
_NAME = r"[A-Z]\d{1,4}"
_ENDS = rf"(?P<a>{_PORT})(?:\[\w+\])?(?:<->|-)(?P<b>{_PORT})(?:\[\w+\])?"
_JOB = re.compile(
    rf"CONNECTION OPERATION (?P<end>SUCCEEDED|FAILED|SKIPPED)[^:]*:\s*{_ENDS}(?:\s+OP:(?P<op>\w+))?"
)
_VALIDATION = re.compile(rf"OPERATION VALIDATION FAILED:\s*{_ENDS}(?:\s+requestType=(?P<op>\w+))?")
# Cells are distinguished by what they may contain, not by width: the last column is 8 wide in a
# capture and 9 in another reading of it. "in process" is a port status, `1AE129` a port outside the
# logical numbering (both CODE, REAL).
_ROW = re.compile(
    rf"(?P<label>{_PORT}\[\w+\]|\d+[A-Z]+\d+)\s+(?P<admin>Locked|Unlocked)\s+(?P<oper>Enabled|Disabled)\s+"
    r"(?P<status>Connected|Disconnected|In process)\s+(?P<count>\d+)(?: (?P<rest>[^\r\n]*))?",
    re.IGNORECASE,
)
# An AFM of 2013 prints another table (REAL), in numbers: locked 2, connected 2, hardware enabled 1.
_AFM_ROW = re.compile(
    r"(?P<label>[EW]\d{1,4})\s+(?P<lock>[12])\s+(?P<oper>\d)\s+(?P<hardware>[12])\s+(?P<paired>[ew]\d{1,4})?\s+"
    r"(?P<peer>[EW]\d{1,4})?\s+(?P<role>\d)\s+(?P<count>\d+)\s*(?P<name>\w*)\s*"
)
_REST = re.compile(
    rf"\s*(?P<peer>{_PORT}\[\w+\])?\s*(?:(?P<port>{_PORT}),)?(?P<logical>{_NAME})?\s*"
)
_LABEL = re.compile(rf"({_PORT})\[\w+\]")
_BRACKETS = re.compile(rf"({_PORT})\[(\w+)\]")
_ANY_PORT = re.compile(rf"(?<!\w){_PORT}(?!\w)|(?<!\w)\d+[A-Z]+\d+(?!\w)")

Pair = tuple[str, str]
"""(E port, W port): light enters at E, leaves at W."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A log line that says how a move ended; `op` is "connect", "disconnect" or unknown ("")."""

    pair: Pair
    op: str
    how: Literal["succeeded", "failed", "skipped", "invalid"]
    text: str


@dataclass(frozen=True, slots=True)
class PortRow:
    """One row of `port show`."""

    port: str
    locked: bool
    enabled: bool
    connected: bool
    peer: str | None
    logical: str


@dataclass(frozen=True, slots=True)
class Table:
    """`port show`: its ports by number, and rows of which only the ports are known: unreadable
    ones, and those that contradict.

    A port that is connected to nothing that any row names is in both. Ports without a number are
    left out while they are free.
    """

    rows: Mapping[str, PortRow]
    strange: frozenset[Unknown]

    @property
    def unread(self) -> frozenset[str]:
        """Ports that have no row that can be read."""
        return frozenset(port for row in self.strange for port in row.ports) - self.rows.keys()


@dataclass(frozen=True, slots=True)
class Queue:
    """What `connection show pending` says. moves: pairs of names as printed, logical ones too, the
    one in process first.

    homing: it asks for "homing run", which it also does while all is well. disabled: nothing will
    be executed.
    """

    moves: tuple[tuple[str, str], ...]
    busy: bool
    homing: bool
    disabled: bool


def without_logs(text: str) -> tuple[str, list[str]]:
    """Return `text` with its complete log lines taken out and what they tore joined again, and the
    log lines as they came.

    >>> without_logs("E41[1AE41]  \\n02-03-2031 04:05 Connection P88<->P12 completed successfully\\n\\nEnabled\\n")
    ('E41[1AE41]  Enabled\\n', ['02-03-2031 04:05 Connection P88<->P12 completed successfully'])
    """
    taken: Counter[str] = Counter()
    kept = []
    for line, end in _mended(text, taken):
        log = _ANY.search(line, line.rfind("\r") + 1) if end else None
        if log is None:
            kept.append(line + end)
        else:  # on a line of its own, or behind a prompt: leaves nothing
            taken[log[0]] += 1
            kept.append(line[: log.start()])
    came = _ANY.findall(text)
    return "".join(kept), [log for log, left in zip(came, _left(came, taken), strict=True) if left]


def _mended(text: str, taken: Counter[str]) -> list[tuple[str, str]]:
    """The lines of `text` and how each ends, those joined again that log lines tore; the log lines
    go to `taken`.

    A log line that tore something gives back its line break before and the empty line after it,
    several in a row as one. Each line is examined once and joined at most once to the one before,
    whatever a device sends.
    """
    parts = [*_BREAK.split(text), ""]
    lines: list[tuple[str, str]] = []
    logs = [0]  # how many log lines in a row end with this line
    torn = False
    for line, end in zip(parts[::2], parts[1::2], strict=True):
        if torn:
            line = lines.pop()[0] + line
            logs.pop()
        torn = not line and bool(end) and 0 < logs[-1] < len(lines)
        if torn:
            taken.update(log for log, _ in lines[-logs[-1] :])
            del lines[-logs[-1] :], logs[-logs[-1] :]
        else:
            lines.append((line, end))
            logs.append(logs[-1] + 1 if end and _ANY.fullmatch(line) else 0)
    return lines


def _left(came: Iterable[str], taken: Counter[str]) -> Iterator[bool]:
    """Whether each is one of those taken, the first ones first."""
    for log in came:
        taken[log] -= 1
        yield taken[log] >= 0


def ended(log: str) -> Ended | None:
    """What a log line says of a move, None when it says something else."""
    if match := _JOB.search(log):
        how: Literal["succeeded", "failed", "skipped"] = match["end"].lower()  # type: ignore[assignment]
        return Ended(ordered(match["a"], match["b"]), match["op"] or "", how, log)
    if match := _VALIDATION.search(log):
        return Ended(ordered(match["a"], match["b"]), match["op"] or "", "invalid", log)
    return None


def ordered(a: str, b: str) -> Pair:
    """The E port first."""
    return (a, b) if a.startswith("E") else (b, a)


def port_table(text: str) -> Table:
    """Read `port show`, its log lines taken out already.

    Raises: Garbled - no such table, a line of it that names no port, or not one row that can be
    read.
    """
    lines = text.replace("\r", "").split("\n")
    rules = [number for number, line in enumerate(lines) if line.startswith("====")]
    if not rules:
        raise Garbled(f"not a port table: {text[:100]!r}")
    older = any(line.startswith("Port  Admin  Oper") for line in lines[: rules[-1]])
    found: list[tuple[str, PortRow]] = []  # each line with what it says
    strange: set[Unknown] = set()
    # physical port -> its number: other rows give it where its own does not
    names: dict[str, str] = {}
    for line in (
        filter(str.strip, lines[rules[-1] + 1 :]) if older else _rows(lines[rules[-1] + 1 :])
    ):
        names |= {physical: port for port, physical in _BRACKETS.findall(line)}
        if row := _afm_row(line) if older else _row(line):
            found.append((line, row))
        elif ports := frozenset(_ANY_PORT.findall(line)):
            strange.add(Unknown(line, ports))
        else:
            raise Garbled(f"not a row of the port table: {line[:100]!r}")
    if not found:
        worst = min((row.text for row in strange), default=text)
        raise Garbled(f"not a row of the port table: {worst[:100]!r}")
    rows: dict[str, PortRow] = {}
    for line, row in found:
        port = names.get(row.port, row.port)
        numbered = re.fullmatch(_PORT, port) is not None
        twin = rows.get(port)
        if twin and (twin.connected, twin.peer) != (row.connected, row.peer):
            strange.add(Unknown(line, frozenset(filter(None, (port, twin.peer, row.peer)))))
        elif numbered:
            rows[port] = replace(row, port=port)
        elif row.connected:
            strange.add(Unknown(line, frozenset(filter(None, (port, row.peer)))))
    reached = {port for pair in connected(rows.values()) for port in pair}
    texts = {names.get(row.port, row.port): line for line, row in found}
    strange |= {
        Unknown(texts[port], frozenset({port}))
        for port, row in rows.items()
        if row.connected and port not in reached
    }
    return Table(rows, frozenset(strange))


def _row(line: str) -> PortRow | None:
    """A row as it stands; its port is the physical one (`1AE12`) where it has no number of its own.
    None: no row.
    """
    match = _ROW.fullmatch(line)
    rest = _REST.fullmatch(match["rest"] or "") if match else None
    if not match or not rest:
        return None
    label, peer = _LABEL.fullmatch(match["label"]), _LABEL.fullmatch(rest["peer"] or "")
    # A panel of two logical matrices gives the number there instead: `1AE12 ... E12,A12` (REAL).
    port = label[1] if label else rest["port"] or match["label"]
    return PortRow(
        port,
        match["admin"].lower() == "locked",
        match["oper"].lower() == "enabled",
        match["status"].lower() == "connected",
        peer[1] if peer else None,
        rest["logical"] or "",
    )


def _afm_row(line: str) -> PortRow | None:
    match = _AFM_ROW.fullmatch(line)
    if not match:
        return None
    return PortRow(
        match["label"],
        match["lock"] == "2",
        match["hardware"] == "1",
        match["oper"] == "2",
        match["peer"],
        match["name"],
    )


_BEGIN = re.compile(rf"(?:{_PORT}\[\w+\]|\d+[A-Z]+\d+)\s+(?:Locked|Unlocked)\b", re.IGNORECASE)


def _rows(lines: Iterable[str]) -> Iterator[str]:
    """The rows, whatever a log line did to the line breaks around them: one lost between two rows,
    or one too many in a row.
    """
    text = ""
    for line in lines:
        if line.strip() and _BEGIN.match(line) and (not text or _ROW.fullmatch(text)):
            yield from _split(text)
            text = line
        else:
            text += line
    yield from _split(text)


def _split(text: str) -> Iterator[str]:
    """Rows that are on one line because the break between them was taken for a log line's."""
    starts = [match.start() for match in _BEGIN.finditer(text)]
    if not starts:
        if text.strip():
            yield text
        return
    if text[: starts[0]].strip():
        yield text[: starts[0]]
    for at, end in zip(starts, [*starts[1:], len(text)], strict=True):
        yield text[at:end]


def connected(rows: Iterable[PortRow]) -> frozenset[Pair]:
    """The fibres that are plugged: rows that are connected; one that is not may still name its last
    peer (REAL fixture).

    Raises: Garbled - a port with two peers.
    """
    pairs = {ordered(row.port, row.peer) for row in rows if row.connected and row.peer}
    ports = [port for pair in pairs for port in pair]
    if len(set(ports)) != len(ports):
        raise Garbled(f"a port with two peers: {sorted(pairs)[:4]}")
    return frozenset(pairs)


def pending(text: str) -> Queue:
    """Read `connection show pending`. Raises: Garbled - no execution status in it, or a row of the
    queue that is none.
    """
    status = re.search(r"[Cc]onnection execution(?: status)?:?\s+(?:is )?([^\r\n]+)", text)
    idle = re.search(r"no request in process", text) is not None
    busy = re.search(r"^Command in process:", text, re.MULTILINE) is not None
    if not status or idle == busy:
        raise Garbled(f"not the state of the queue: {text[:100]!r}")
    moves = re.findall(rf"ports:\s*({_NAME})(?:\[\w+\])?-({_NAME})", text)
    _, ruled, table = text.rpartition("====")
    for line in (table if ruled else "").splitlines():
        row = re.fullmatch(rf"\s*\d+\s+({_NAME})(?:\[\w+\])?\s+({_NAME})(?:\[\w+\])?\s+\w+.*", line)
        if row:
            moves.append((row[1], row[2]))
        elif line.strip("= "):
            raise Garbled(f"not a row of the queue: {line[:80]!r}")
    return Queue(tuple(moves), busy or bool(moves), "homing run" in text, "disabled" in status[1])


@dataclass(frozen=True, slots=True)
class Board:
    """What `show board` says."""

    vendor: str
    model: str
    serial: str
    firmware: str
    executes: bool


def board(text: str) -> Board:
    """Read `show board`. Raises: Garbled - no type or no version in it.

    ROME says `ROME TYPE ROME500`, an AFM `AFM TYPE 2` (both REAL); the serial number is the
    controller board's.
    """
    kind = re.search(r"^(ROME|AFM) TYPE\s+(\S+)", text, re.MULTILINE)
    version = re.search(r"^ACTIVE SW VER\s+(\S+)", text, re.MULTILINE)
    if not kind or not version:
        raise Garbled(f"no type or no version: {text[:120]!r}")
    serial = re.search(r"^BOARD\s[^\r\n]*S/N\(([^)]+)\)", text, re.MULTILINE)
    vendor, model = (
        ("Wave2Wave", kind[2]) if kind[1] == "ROME" else ("FiberZone", f"AFM type {kind[2]}")
    )
    refuses = re.search(r"^CONNECTIONS\s[^\r\n]*disabled", text, re.MULTILINE)
    return Board(vendor, model, serial[1] if serial else "unknown", version[1], not refuses)
