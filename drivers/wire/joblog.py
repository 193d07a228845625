"""The command line of Wave2Wave ROME and FiberZone AFM patch panels: tables torn by log lines, and what the log lines say.

Forms as in the captures of Quali cloudshell-L1-w2w-rome's tests (REAL). A log line may start at any byte of other output: a line
break, the log line, an empty line, then the rest of what was torn.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from optics import Garbled

PROMPT = re.compile(r"\w+\[\w+\]#")
WIDTHS = (17, 13, 12, 14, 8, 15, 9)
"""Of `port show`: Port, Admin Status, Oper Status, Port Status, Counter, ConnectedTo, Logical."""
ROW = sum(WIDTHS)

_STAMP = r"\d\d-\d\d-\d{4} \d\d:\d\d "
_WORDS = r"[A-Za-z]"
# A torn line gives back its break and the empty line after; a log line on a line of its own, or behind a prompt, leaves its break.
_TORN = re.compile(rf"\r?\n(?P<log>{_STAMP}{_WORDS}[^\r\n]*)\r?\n\r?\n")
_PLAIN = re.compile(rf"(?P<log>{_STAMP}{_WORDS}[^\r\n]*)(?:\r?\n)")
_PORT = r"[EW]\d{1,4}"
_LABEL = re.compile(rf"({_PORT})\[\w+\]")
_JOB = re.compile(
    rf"CONNECTION OPERATION (?P<end>SUCCEEDED|FAILED|SKIPPED)[^:]*:\s*(?P<a>{_PORT})(?:\[\w+\])?<->(?P<b>{_PORT})(?:\[\w+\])?"
    r"(?:\s+OP:(?P<op>\w+))?"
)
_VALIDATION = re.compile(
    rf"OPERATION VALIDATION FAILED:\s*(?P<a>{_PORT})(?:\[\w+\])?-(?P<b>{_PORT})(?:\[\w+\])?\s+requestType=(?P<op>\w+)"
)

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
    admin: str
    oper: str
    status: str
    peer: str | None
    logical: str


def without_logs(text: str) -> tuple[str, list[str]]:
    """Return `text` with its complete log lines taken out and what they tore joined again, and the log lines.

    >>> without_logs("E41[1AE41]  \\n02-03-2031 04:05 Connection P88<->P12 completed successfully\\n\\nEnabled\\n")
    ('E41[1AE41]  Enabled\\n', ['02-03-2031 04:05 Connection P88<->P12 completed successfully'])
    """
    logs: list[str] = []

    def take(match: re.Match[str]) -> str:
        logs.append(match["log"])
        return ""

    before = None
    while before != text:  # log lines may follow each other, each torn by the next
        before = text
        text = _TORN.sub(take, text, count=1)
    return _PLAIN.sub(take, text), logs


def ended(log: str) -> Ended | None:
    """What a log line says of a move, None when it says something else."""
    if match := _JOB.search(log):
        how = match["end"].lower()
        return Ended(ordered(match["a"], match["b"]), match["op"] or "", how, log)  # type: ignore[arg-type]
    if match := _VALIDATION.search(log):
        return Ended(ordered(match["a"], match["b"]), match["op"], "invalid", log)
    return None


def ordered(a: str, b: str) -> Pair:
    """The E port first."""
    return (a, b) if a.startswith("E") else (b, a)


def port_rows(text: str) -> Iterator[PortRow]:
    """Read the rows of `port show`, its log lines taken out already. Raises: Garbled - a row that does not add up.

    A row is as wide as the table; pieces are joined until they are, because a tear may leave line breaks behind.
    """
    row = ""
    for line in text.replace("\r", "").split("\n"):
        if not row and not _LABEL.match(line):
            continue  # the header, the echo, the prompt
        if row and not line.strip() and len(row) < ROW - WIDTHS[-1]:
            continue
        if row and _LABEL.match(line) and len(row.rstrip()) >= sum(WIDTHS[:4]):
            yield _row(row)
            row = ""
        elif row and (not line.strip() or PROMPT.match(line)):
            yield _row(row)
            row = ""
            continue
        row += line
        if len(row) >= ROW:
            yield _row(row)
            row = ""
    if row:
        yield _row(row)


def _row(text: str) -> PortRow:
    cells, at = [], 0
    for width in WIDTHS:
        cells.append(text[at : at + width].strip())
        at += width
    label, admin, oper, status, counter, peer, logical = cells
    match = _LABEL.fullmatch(label)
    other = _LABEL.fullmatch(peer) or re.fullmatch(rf"({_PORT})", peer) if peer else None
    if (
        not match
        or not counter.isdecimal()
        or status not in ("Connected", "Disconnected")
        or (peer and not other)
        or text[at:].strip()
    ):
        raise Garbled(f"not a row of the port table: {text[:100]!r}")
    return PortRow(match[1], admin, oper, status, other[1] if other else None, logical)


def connected(rows: Iterable[PortRow]) -> frozenset[Pair]:
    """The fibres that are plugged: rows that are connected; one that is not may still name its last peer (REAL fixture).

    Raises: Garbled - a port with two peers.
    """
    pairs = {ordered(row.port, row.peer) for row in rows if row.status == "Connected" and row.peer}
    ports = [port for pair in pairs for port in pair]
    if len(set(ports)) != len(ports):
        raise Garbled(f"a port with two peers: {sorted(pairs)[:4]}")
    return frozenset(pairs)


@dataclass(frozen=True, slots=True)
class Queue:
    """What `connection show pending` says. `stuck`: moves wait for "homing run" or for leave to be executed; its words."""

    moves: tuple[Pair, ...]
    busy: bool
    stuck: str


def pending(text: str) -> Queue:
    """Read `connection show pending`. Raises: Garbled - no execution status in it."""
    status = re.search(r"[Cc]onnection execution(?: status)?:?\s+(?:is )?([^\r\n]+)", text)
    if not status:
        raise Garbled(f"no execution status: {text[:100]!r}")
    moves = [ordered(a, b) for a, b in re.findall(rf"ports:\s*({_PORT})(?:\[\w+\])?-({_PORT})", text)]
    moves += [
        ordered(a, b) for a, b in re.findall(rf"^\s*\d+\s+({_PORT})(?:\[\w+\])?\s+({_PORT})(?:\[\w+\])?\s", text, re.MULTILINE)
    ]
    homing = re.search(r"homing run", text) is not None
    disabled = "disabled" in status[1]
    stuck = "the robot waits for homing" if homing else "connection execution is disabled" if disabled else ""
    busy = "in process" in text and "no request in process" not in text
    return Queue(tuple(moves), busy or bool(moves), stuck)
