"""The table that Telescent's command line prints for `switchstate`.

Form as the public client ericrqs/cloudshell-L1-Telescent reads it (CODE): rows `R<row>#<letter>`
with twelve cells of status letters and a number, in colours. No capture of a device is public.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from optics import Garbled

COLUMNS = 12
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_ROW = re.compile(r"R(\d{1,4})#([A-Za-z])((?:\s+[A-Za-z]+\d+)+)\s*")
_CELL = re.compile(r"([A-Za-z]+)(\d+)")

Pair = tuple[int, int]
"""(ingress, egress)."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One egress: its status letters, and the address of the ingress connected to it, its own while
    it is free.
    """

    status: str
    address: int

    @property
    def allocated(self) -> bool:
        return self.status.startswith("A")

    @property
    def absent(self) -> bool:
        """Status N: nothing is installed there."""
        return self.status.startswith("N")


def switch_state(text: str) -> dict[int, Cell]:
    """Read `switchstate`: egress address (row x 12 + column) -> its cell. Lines that are no rows
    are not read.

    >>> switch_state("R0#O " + " ".join(["N0", "A3", *(f"F{n}" for n in range(2, 12))]))[1]
    Cell(status='A', address=3)

    Raises: Garbled - no rows, a row that has not twelve cells, one that is missing, or two that
    differ.
    """
    found: dict[int, Cell] = {}
    for line in _COLOUR.sub("", text).replace("\r", "").split("\n"):
        line = line.strip()
        if not re.match(r"R\d+#", line):
            continue
        match = _ROW.fullmatch(line)
        cells = _CELL.findall(match[3]) if match else []
        if not match or len(cells) != COLUMNS:
            raise Garbled(f"not a row of twelve cells: {line[:100]!r}")
        row = {
            int(match[1]) * COLUMNS + at: Cell(status.upper(), int(number))
            for at, (status, number) in enumerate(cells)
        }
        if any(found.get(address, cell) != cell for address, cell in row.items()):
            raise Garbled(f"row {match[1]} twice, and different: {line[:100]!r}")
        found |= row
    if not found or max(found) + 1 != len(found):
        raise Garbled(f"not the whole switch state: {text[:100]!r}")
    return found


def allocated(cells: dict[int, Cell]) -> frozenset[Pair]:
    """The connections. Raises: Garbled - an ingress at two of them."""
    pairs = frozenset((cell.address, egress) for egress, cell in cells.items() if cell.allocated)
    if len({ingress for ingress, _ in pairs}) != len(pairs):
        raise Garbled(f"an ingress at two egress ports: {sorted(pairs)[:4]}")
    return pairs


def complaint(text: str) -> str:
    """The line of a refusal, empty where there is none: output that has `Exception` or `ERROR` in
    it (CODE).
    """
    lines = [
        line.strip()
        for line in _COLOUR.sub("", text).splitlines()
        if "Exception" in line or "ERROR" in line
    ]
    return lines[0][:160] if lines else ""
