"""WSP, the profile format of WaveShaper programmable filters:
`freq(THz) <TAB> attenuation(dB) <TAB> phase(rad) <TAB> port`.

Rules (DOC: WSUTIL User Guide rev B p. 4; A-series manual, section 4.3): no header; absolute
frequencies in steps of 0.001 THz, at least three decimals, contiguous; port 0 blocks; below 0 dB
counts as 0, 30 dB are guaranteed, up to 40 attempted, above that is blocked; phase modulo 2 pi; a
band led to a port is at least 10 GHz wide.

The row at f is taken for the light from f up to f + 1 GHz (nothing public says; the alternative
shifts everything by half a row). Two bands that touch, lead to one port and are weakened alike
would read back as one. So that they stay two, every other one is written 0.01 dB weaker, far below
the device's resolution.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache

from drivers.wire.rest import decimal, quote
from optics import FrequencySlot, Garbled

STEP_MHZ = 1_000
NARROWEST_MHZ = 10_000
MOST_DB = Decimal(40)
BLOCKED = ("60.000", 0)
"""What a blocked row is written as: public clients clip at 60 dB."""
APART_DB = Decimal("0.01")
MOST_ROWS = 20_000  # the A-series has 9000
LARGEST_PORT = 99

_PLAIN = re.compile(r"([0-9]{3})\.([0-9]{3})", re.ASCII)
_PHASE = re.compile(r"[+-]?[0-9]{1,6}(\.[0-9]{0,18})?([eE][+-]?[0-9]{1,2})?")


@dataclass(frozen=True, slots=True)
class Row:
    """One step of the grid. attenuation, phase: as the device wrote them, so that what is not
    changed goes back untouched.
    """

    mhz: int
    attenuation: str
    phase: str
    port: int

    @property
    def db(self) -> Decimal:
        return _db(self.attenuation)

    @property
    def blocked(self) -> bool:
        return self.port == 0 or self.db > MOST_DB


@dataclass(frozen=True, slots=True, order=True)
class Band:
    """Adjacent rows that lead to one port with one attenuation (dB, exact)."""

    slot: FrequencySlot
    port: int
    db: Decimal


def mhz_of(thz: Decimal) -> int:
    """THz in whole MHz. Raises: Garbled - not a whole number of them.

    >>> mhz_of(Decimal("191.250"))
    191250000
    """
    mhz = thz * 1_000_000
    if mhz != mhz.to_integral_value():
        raise Garbled(f"{thz} THz is no whole number of MHz")
    return int(mhz)


def thz_of(mhz: int) -> str:
    """Whole GHz as THz with three decimals.

    >>> thz_of(191250000)
    '191.250'
    """
    return f"{mhz // 1_000_000}.{mhz % 1_000_000 // STEP_MHZ:03d}"


def parse(text: str) -> tuple[Row, ...]:
    """Read a profile. Raises: Garbled - a row outside the rules, off the grid or out of order, no
    row, or too many.

    >>> parse("191.250\\t22.80047795\\t-1.57079\\t1\\n")[0].mhz
    191250000
    """
    lines = [line.rstrip("\r") for line in text.split("\n")]
    while lines and not lines[-1].strip():
        lines.pop()
    if not 0 < len(lines) <= MOST_ROWS:
        raise Garbled(f"{len(lines)} rows: {quote(text)}")
    found: list[Row] = []
    for line in lines:
        frequency, _, rest = line.partition("\t")
        attenuation, phase, port = _cells(rest)
        frequency = frequency.strip()
        plain = _PLAIN.fullmatch(frequency)
        mhz = (
            int(plain[1] + plain[2]) * STEP_MHZ
            if plain
            else mhz_of(decimal(frequency, "frequency"))
        )
        if mhz <= 0 or mhz % STEP_MHZ or (found and mhz != found[-1].mhz + STEP_MHZ):
            raise Garbled(f"{frequency} THz is off the grid of 0.001 THz or out of order")
        found.append(Row(mhz, attenuation, phase, port))
    return tuple(found)


@lru_cache(maxsize=1024)  # thousands of rows say the same of their frequencies
def _cells(text: str) -> tuple[str, str, int]:
    cells = [cell.strip() for cell in text.split("\t")]
    if len(cells) != 3 or not re.fullmatch(r"[0-9]{1,2}", cells[2]):
        raise Garbled(f"not frequency, attenuation, phase, port: {quote(text)}")
    decimal(cells[0], "attenuation")
    if not _PHASE.fullmatch(cells[1]):
        raise Garbled(f"phase is no number: {quote(text)}")
    return cells[0], cells[1], int(cells[2])


@lru_cache(maxsize=1024)
def _db(attenuation: str) -> Decimal:
    return max(Decimal(attenuation), Decimal(0))


def write(rows: Iterable[Row]) -> str:
    """Write a profile; `parse` reads it back the same."""
    return "".join(
        f"{thz_of(row.mhz)}\t{row.attenuation}\t{row.phase}\t{row.port}\n" for row in rows
    )


def bands(rows: Sequence[Row]) -> tuple[Band, ...]:
    """What a profile lets through, in order."""
    found: list[Band] = []
    low = high = 0
    held: tuple[int, Decimal] | None = None
    for row in rows:
        here = None if row.blocked else (row.port, row.db)
        if here != held or row.mhz != high:
            if held:
                found.append(Band(FrequencySlot(low, high), *held))
            low, held = row.mhz, here
        high = row.mhz + STEP_MHZ
    if held:
        found.append(Band(FrequencySlot(low, high), *held))
    return tuple(found)


def whole(rows: Sequence[Row], first_mhz: int, last_mhz: int) -> tuple[Row, ...]:
    """The profile from `first_mhz` to `last_mhz`; what `rows` do not say is blocked."""
    held = {row.mhz: row for row in rows}
    grid = range(first_mhz, last_mhz + STEP_MHZ, STEP_MHZ)
    return tuple(held.get(mhz, Row(mhz, BLOCKED[0], "0.000", BLOCKED[1])) for mhz in grid)


def block(rows: Sequence[Row], slot: FrequencySlot) -> tuple[Row, ...]:
    """Block the rows of `slot`; their phase stays."""
    first, end = _span(rows, slot)
    return (
        *rows[:first],
        *(Row(row.mhz, BLOCKED[0], row.phase, BLOCKED[1]) for row in rows[first:end]),
        *rows[end:],
    )


def lead(rows: Sequence[Row], slot: FrequencySlot, port: int, db: Decimal) -> tuple[Row, ...]:
    """Lead the rows of `slot` to `port`, weakened by `db`, apart from a neighbour that would read
    as one with it; phases stay.
    """
    first, end = _span(rows, slot)
    near = {
        (row.port, row.db)
        for row in (*rows[max(0, first - 1) : first], *rows[end : end + 1])
        if not row.blocked
    }
    while (port, db) in near:
        db += APART_DB
    return (
        *rows[:first],
        *(Row(row.mhz, f"{db:.3f}", row.phase, port) for row in rows[first:end]),
        *rows[end:],
    )


def _span(rows: Sequence[Row], slot: FrequencySlot) -> tuple[int, int]:
    """Where the rows of `slot` begin and end among `rows`, which follow each other without a
    gap.
    """
    first, end = (
        min(len(rows), max(0, -((rows[0].mhz - edge) // STEP_MHZ)))
        for edge in (slot.low_mhz, slot.high_mhz)
    )
    return first, end


def fault(slot: FrequencySlot, db: Decimal, first_mhz: int, last_mhz: int) -> str:
    """Why a device of this range cannot hold such a band, empty when it can."""
    if slot.low_mhz % STEP_MHZ or slot.high_mhz % STEP_MHZ:
        return f"{slot} does not lie on the grid of 1 GHz"
    if slot.width_mhz < NARROWEST_MHZ:
        return f"{slot} is narrower than 10 GHz, the least this device can lead to a port"
    if slot.low_mhz < first_mhz or slot.high_mhz > last_mhz + STEP_MHZ:
        return f"{slot} is outside {thz_of(first_mhz)}-{thz_of(last_mhz)} THz"
    if not 0 <= db <= MOST_DB:
        return f"attenuation {db} dB is not between 0 and {MOST_DB}; more would block"
    return ""
