"""Tables and answers of SONiC's optical circuit switch commands (`show ocs ...`, `config ocs ...`).

Forms as in the SONiC OCS design documents (pull requests 2269 and 2349 of sonic-net/SONiC), the
README of the virtual machine image `ocs-kvm`, and sonic-mgmt's module `ocs_cross_connect`. Tables
have a header, a rule of dashes, and cells apart by blanks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from optics import Garbled

Pair = tuple[int, int]
"""(A side, B side): light enters at port <n>A and leaves at <m>B."""

_ID = re.compile(r"([1-9]\d{0,3})A-([1-9]\d{0,3})B")
_PORT = re.compile(r"[1-9]\d{0,3}[AB]")
TUNED = "tuned"


def identifier(pair: Pair) -> str:
    """A cross-connect as the commands name it.

    >>> identifier((1, 16))
    '1A-16B'
    """
    return f"{pair[0]}A-{pair[1]}B"


@dataclass(frozen=True, slots=True)
class Version:
    """The content of `show version`; serial is empty if it gives none."""

    software: str
    sku: str
    serial: str


def version(text: str) -> Version:
    """Read `show version`. Raises: Garbled - it is no SONiC."""
    software = re.search(r"^SONiC Software Version:\s*(\S+)", text, re.MULTILINE)
    sku = re.search(r"^HwSKU:\s*(\S+)", text, re.MULTILINE)
    if not software or not sku:
        raise Garbled(f"no SONiC version: {text[:100]!r}")
    return Version(software[1], sku[1], serial(text))


def serial(text: str) -> str:
    """The serial number in `show version` or `show platform summary`, empty where there is none."""
    found = re.search(r"^Serial Number:\s*(\S+)", text, re.MULTILINE)
    return found[1] if found and found[1] != "N/A" else ""


def ports(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Read `sonic-db-cli CONFIG_DB keys 'OCS_PORT|*'`: A side and B side. Raises: Garbled -
    something else, or an empty side.
    """
    found: set[str] = set()
    for line in text.split():
        table, _, port = line.strip("'\"[],").partition("|")
        if table != "OCS_PORT" or not _PORT.fullmatch(port):
            raise Garbled(f"not a port of the configuration: {line[:60]!r}")
        found.add(port)
    enter, leave = (
        tuple(sorted((port for port in found if port.endswith(side)), key=lambda p: int(p[:-1])))
        for side in "AB"
    )
    if not enter or not leave:
        raise Garbled(f"no ports on one side: {text[:80]!r}")
    return enter, leave


def config(text: str) -> frozenset[Pair]:
    """Read `show ocs cross-connect config`. Raises: Garbled."""
    found = [_pair(cells, 3) for cells in _table(text)]
    return _once(found, text)


def status(text: str) -> dict[Pair, tuple[str, str]]:
    """Read `show ocs cross-connect status`: what each side reports, `tuned tuned` when light
    passes. Raises: Garbled.
    """
    rows = [(_pair(cells, 5), (cells[3], cells[4])) for cells in _table(text)]
    _once([pair for pair, _ in rows], text)
    return dict(rows)


def port_column(text: str) -> dict[str, str]:
    """Read `show ocs port config` or `status`: the last cell of each port's row. Raises:
    Garbled.
    """
    found: dict[str, str] = {}
    for cells in _table(text):
        if len(cells) < 2 or not _PORT.fullmatch(cells[0]) or cells[0] in found:
            raise Garbled(f"not a row of a port: {' '.join(cells)[:80]!r}")
        found[cells[0]] = cells[-1]
    return found


def complaint(text: str) -> str:
    """The words of a refusal, without the usage lines of the command line parser."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if complains(line)]
    return (errors or lines or ["it printed nothing"])[-1][:160]


def complains(text: str) -> bool:
    """Whether a command's output reports an error."""
    return re.search(r"error|fail|invalid|privilege", text, re.IGNORECASE) is not None


def unknown_command(text: str) -> bool:
    """Whether the command line parser does not know such a command, option or value (words of the
    click library).
    """
    return (
        re.search(r"No such (?:command|option)|Got unexpected extra argument|Invalid value", text)
        is not None
    )


def _table(text: str) -> list[list[str]]:
    """The cells of each row. Raises: Garbled - no header with a rule under it, or several tables
    that differ.
    """
    lines = [line for line in text.replace("\r", "").split("\n") if line.strip()]
    rules = [at for at, line in enumerate(lines) if re.fullmatch(r"-{2,}(?:\s+-{2,})+\s*", line)]
    if not rules or rules[0] == 0:
        raise Garbled(f"not a table: {text[:100]!r}")
    tables = [
        [line.split() for line in lines[at + 1 : (end - 1 if end else None)]]
        for at, end in zip(rules, [*rules[1:], 0], strict=True)
    ]
    if any(table != tables[0] for table in tables):
        raise Garbled(f"{len(tables)} tables that differ: {text[:100]!r}")
    return tables[0]


def _pair(cells: list[str], count: int) -> Pair:
    match = _ID.fullmatch(cells[0])
    if not match or len(cells) != count or cells[1:3] != [f"{match[1]}A", f"{match[2]}B"]:
        raise Garbled(f"not a row of a cross-connect: {' '.join(cells)[:80]!r}")
    return int(match[1]), int(match[2])


def _once(found: list[Pair], text: str) -> frozenset[Pair]:
    if len(set(found)) != len(found):
        raise Garbled(f"a cross-connect twice: {text[:100]!r}")
    return frozenset(found)
