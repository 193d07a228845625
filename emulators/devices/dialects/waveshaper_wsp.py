"""WaveShaper profiles: the content of a WSP file, and the rules it breaks.

DOC: WSUTIL User Guide rev B p. 4 and the A-series manual 4.3. A row is
`frequency (THz) TAB attenuation (dB) TAB phase (rad) TAB port`, no header; frequencies are
absolute, 0.001 THz apart, with three decimals or more, a contiguous range that need not be the
whole; port 0 blocks; attenuation below 0 is 0, up to 30 dB is kept, up to 40 tried, more blocks;
phase counts modulo 2 pi; a port gets at least 10 GHz in one piece.

REAL (vendor's own upload example, on a 1000A): its last row is the device's `stopfreq`, and its
rows are up to 0.01 % further apart than 1 GHz, so that they drift off the grid. Each grid frequency
gets the row nearest to it; how far off a row may be is U.

U: the row of frequency f shapes the light from f up to, not including, f + 1 GHz (client code of
the A-series ends at 196.274 where the range ends at 196.275), hence the row at `stopfreq` shapes
nothing; a run is measured in the profile that results, so that a slice may go on where another
stopped.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

STEP_MHZ = 1_000  # DOC: 0.001 THz
LEAST_MHZ = 10_000  # DOC: the narrowest band of a port
OFF_MHZ = 150  # U: the vendor's example prints steps of 1.0 and 1.1 GHz
MOST_DB = 40.0  # DOC: more is a block
BLOCK_DB = 60.0  # what a blocked row shows (U)
FREQUENCY = re.compile(r"\d{1,3}\.\d{3,12}")  # DOC: at least three decimals
NUMBER = re.compile(r"[-+]?(\d{1,12}(\.\d{0,20})?|\.\d{1,20})([eE][-+]?\d{1,3})?")


class Row(NamedTuple):
    """What happens to one GHz of light. Port 0 blocks."""

    attenuation_db: float = BLOCK_DB
    phase_rad: float = 0.0
    port: int = 0

    @property
    def passes(self) -> bool:
        return self.port > 0 and self.attenuation_db <= MOST_DB


Profile = Mapping[int, Row]
"""Frequency in MHz -> row, in the order of the frequencies."""


class BadProfile(ValueError):
    """The device does not take this profile; the message is the device's."""


def parse(text: str, range_mhz: tuple[int, int], ports: int) -> dict[int, Row]:
    """Return the rows of a WSP file. Raises: BadProfile - it breaks a rule."""
    rows: dict[int, Row] = {}
    last, before = 0, Decimal(0)
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        frequency, _, rest = line.partition("\t")
        frequency = frequency.strip()
        try:
            cell = _cell(rest, ports)
        except BadProfile as problem:
            raise BadProfile(f"line {number}: {problem}") from None
        if not FREQUENCY.fullmatch(frequency):
            raise BadProfile(f"line {number}: invalid number")
        mhz = Decimal(frequency) * 1_000_000
        on_grid = before or abs((mhz + OFF_MHZ) % STEP_MHZ - OFF_MHZ) <= OFF_MHZ
        if not on_grid or not range_mhz[0] <= mhz <= range_mhz[1]:
            raise BadProfile(f"line {number}: frequency out of range or off the grid")
        if before and abs(mhz - before - STEP_MHZ) > OFF_MHZ:
            raise BadProfile(f"line {number}: frequencies not contiguous")
        nearest = round(mhz / STEP_MHZ) * STEP_MHZ
        rows |= dict.fromkeys(
            range(last + STEP_MHZ if before else nearest, nearest + STEP_MHZ, STEP_MHZ), cell
        )
        last, before = nearest, mhz
    rows.pop(range_mhz[1], None)
    if not rows:
        raise BadProfile("empty profile")
    return rows


@lru_cache(maxsize=1024)  # thousands of rows repeat the same frequencies
def _cell(text: str, ports: int) -> Row:
    fields = [field.strip() for field in text.split("\t")]
    if len(fields) != 3:
        raise BadProfile("4 columns expected")
    attenuation, phase, port = fields
    if not NUMBER.fullmatch(attenuation) or not NUMBER.fullmatch(phase):
        raise BadProfile("invalid number")
    if not re.fullmatch(r"\d{1,3}", port) or int(port) > ports:
        raise BadProfile("invalid port")
    return row(float(attenuation), float(phase), int(port))


def row(attenuation_db: float, phase_rad: float, port: int) -> Row:
    """Return a row as the device keeps it."""
    if not (math.isfinite(attenuation_db) and math.isfinite(phase_rad)):
        raise BadProfile("invalid number")
    return Row(max(0.0, attenuation_db), phase_rad % math.tau, port)


def too_narrow(profile: Profile, least_mhz: int) -> int | None:
    """Return where (MHz) a port has less than `least_mhz` in one piece, None when none has."""
    for port, run in groupby(sorted(profile.items()), key=lambda item: item[1].port):
        pieces = [mhz for mhz, _ in run]
        if port and len(pieces) * STEP_MHZ < least_mhz:
            return pieces[0]
    return None


def runs(profile: Profile) -> Iterator[tuple[int, int, int, float]]:
    """Yield what passes: from MHz, to MHz, port, attenuation (dB)."""
    start, last, held = 0, 0, Row()
    for mhz, cell in sorted(profile.items()):
        same = (cell.port, cell.attenuation_db) == (
            held.port,
            held.attenuation_db,
        ) and mhz == last + STEP_MHZ
        if not same:
            if held.passes:
                yield start, last + STEP_MHZ, held.port, held.attenuation_db
            start, held = mhz, cell
        last = mhz
    if held.passes:
        yield start, last + STEP_MHZ, held.port, held.attenuation_db


def text(profile: Profile) -> str:
    """Return a profile as a WSP file (DOC: the shape of a row; U: how many decimals the device
    prints).
    """
    return "".join(
        f"{mhz // 1_000_000}.{mhz % 1_000_000 // STEP_MHZ:03d}{_shown(cell)}"
        for mhz, cell in sorted(profile.items())
    )


@lru_cache(maxsize=1024)
def _shown(cell: Row) -> str:
    return f"\t{cell.attenuation_db:.3f}\t{cell.phase_rad:.3f}\t{cell.port}\n"


def frequencies(range_mhz: tuple[int, int]) -> Iterable[int]:
    return range(range_mhz[0], range_mhz[1], STEP_MHZ)


def predefined(
    kind: str,
    port: int,
    centre_mhz: int,
    width_mhz: int,
    attenuation_db: float,
    range_mhz: tuple[int, int],
) -> Profile:
    """Return one of the built-in filters over the whole range (CODE: their names and parameters; U:
    the shape of the Gaussian).
    """
    profile: dict[int, Row] = {}
    for mhz in frequencies(range_mhz):
        off = mhz + STEP_MHZ // 2 - centre_mhz
        inside = 2 * abs(off) < width_mhz
        match kind:
            case "blockall":
                cell = Row()
            case "transmit":
                cell = row(attenuation_db, 0.0, port)
            case "bandpass":
                cell = row(attenuation_db, 0.0, port) if inside else Row()
            case "bandstop":
                cell = Row() if inside else row(attenuation_db, 0.0, port)
            case _:
                cell = row(attenuation_db + 3.0103 * (2 * off / width_mhz) ** 2, 0.0, port)
                cell = cell if cell.passes else Row()
        profile[mhz] = cell
    return profile
