"""Finisar DWP/EWP wavelength-selective switch modules on a serial line, 115200 8N1.

Grades: CODE is a literal of public pyvisa scripts, U unconfirmed. CODE: `SNO?`, `MFD?`, `RRA?`,
`URA channel,port,attenuation;...`, `RSW`; the echo of the command, data if any, `OK`; 99.9 means
blocked; URA stages, RSW applies; 96 channels. U, and chosen so that they ask most of a driver:

- `RRA?` answers rows as URA takes them, of the map that is in force: what is staged does not show,
  nor what has not settled yet;
- `OK` after RSW comes at once, the light `settle_s` later;
- the staged map belongs to the module, not to the session, and stays staged until RSW: a commit by
  any client commits all of it;
- the words of errors, the grid (channel 1 at 191.35 THz, 50 GHz apart), the range of attenuations,
  that the committed map survives.
"""

from __future__ import annotations

import re
from typing import Any, cast

from emulators.devices.dialects.base import AnyDialect, Dialect, Session
from emulators.devices.family import Family
from emulators.optics.light import Band
from emulators.optics.spectrum import SpectralPlant

CHANNELS = 96  # CODE
WIDTH_MHZ = 50_000
FIRST_GHZ = 191_350.0  # centre of channel 1 (U)
BLOCKED_DB = 99.9  # CODE
BLOCKED_PORT = 99  # the port a blocked channel shows (U)
MOST_DB = 15.0  # "0-15 typ" (U)
NO_COMMAND, BAD_ARGUMENT, BAD_VALUE, NOT_NOW = "CER", "AER", "VER", "EER"  # U, all of them

Cell = tuple[str, float]
"""(egress label, attenuation in dB) of a channel that passes light."""


class FinisarSerial(Dialect[tuple[tuple[int, Cell], ...]]):
    """One module. Its common port is `in`; channel numbers count from 1."""

    writes = re.compile(r"^\s*(URA|RSW)\b", re.IGNORECASE)

    def __init__(
        self,
        plant: SpectralPlant,
        *,
        serial: str = "SN094032",
        made: str = "20140312",
        first_ghz: float = FIRST_GHZ,
        seed: int = 0,
        boot_s: float = 1.0,
    ) -> None:
        # the base asks what every plant has
        super().__init__(cast(Any, plant), seed=seed, boot_s=boot_s)
        self.spectrum = plant
        self.serial, self.made = serial, made
        self._first_mhz = round(first_ghz * 1000) - WIDTH_MHZ // 2
        plant.range_mhz = (self._first_mhz, self._first_mhz + CHANNELS * WIDTH_MHZ)
        self._staged: dict[int, Cell] = {}
        self._committed: dict[int, Cell] = {}

    def preset(self, channel: int, cell: Cell) -> None:
        """Let a channel pass as if it had for ever. Raises ValueError."""
        if not 1 <= channel <= CHANNELS:
            raise ValueError(f"{self.plant.name}: preset: no channel {channel}")
        self.spectrum.preset(self._bands({channel: cell}))
        self._staged[channel] = self._committed[channel] = cell

    # ---- the manner

    def split(self, session: Session) -> list[str]:
        *lines, session.buffer = re.split(rb"[\r\n]+", session.buffer)
        return [line.decode("latin-1") for line in lines if line]

    def execute(self, session: Session, command: str, now: float) -> bytes:
        word, _, rest = command.strip().partition(" ")
        data: list[str] = []
        match word.upper():
            case "SNO?":
                data, end = [self.serial], "OK"
            case "MFD?":
                data, end = [self.made], "OK"
            case "RRA?":
                data, end = [self._rows(now)], "OK"
            case "URA":
                end = self._stage(rest, now)
            case "RSW":
                end = self._apply(now) if not rest.strip() else BAD_ARGUMENT
            case _:
                end = NO_COMMAND
        return self._lines(command, *data, end)

    def refuse(self, session: Session, command: str, now: float) -> bytes:
        return self._lines(command, NOT_NOW)

    def unsolicited(self, now: float) -> bytes:
        return b"TEC TEMP ALARM\r\n"  # U: no public script meets one

    def snapshot(self, now: float) -> tuple[tuple[int, Cell], ...]:
        shown = self.spectrum.shown(now)
        return tuple(
            sorted(
                (self._channel(band), (band[1], attenuation_db))
                for band, attenuation_db in shown.items()
            )
        )

    def rebooted(self, keep: bool, now: float) -> None:
        """The committed map persists (U); what was only staged does not."""
        if not keep:
            self._committed.clear()
        self._staged = dict(self._committed)
        self.spectrum.restore(self._bands(self._committed), now, self.boot_s)

    # ---- the words

    def _rows(self, now: float) -> str:
        passing = dict(self.view(now))
        cells = (
            (n, passing.get(n, (str(BLOCKED_PORT), BLOCKED_DB))) for n in range(1, CHANNELS + 1)
        )
        return ";".join(f"{n},{port},{attenuation_db:.1f}" for n, (port, attenuation_db) in cells)

    def _stage(self, text: str, now: float) -> str:
        entries: list[tuple[int, Cell | None]] = []
        for row in text.strip().rstrip(";").split(";"):
            fields = [field.strip() for field in row.split(",")]
            if len(fields) != 3 or not (
                re.fullmatch(r"\d{1,3}", fields[0]) and re.fullmatch(r"\d{1,2}", fields[1])
            ):
                return BAD_ARGUMENT
            if not re.fullmatch(r"\d{1,2}(\.\d+)?", fields[2]):
                return BAD_ARGUMENT
            channel, port, attenuation_db = (
                int(fields[0]),
                str(int(fields[1])),
                round(float(fields[2]), 1),
            )
            blocked = attenuation_db == BLOCKED_DB
            if not 1 <= channel <= CHANNELS or not (
                blocked or (port in self.plant.egress and attenuation_db <= MOST_DB)
            ):
                return BAD_VALUE
            entries.append((channel, None if blocked else (port, attenuation_db)))
        self.wrote(now)
        if self.silent:
            return "OK"
        for channel, cell in self.some(entries):
            if cell is None:
                self._staged.pop(channel, None)
            else:
                self._staged[channel] = cell
        return "OK"

    def _apply(self, now: float) -> str:
        self.wrote(now)
        if not self.silent:
            self._committed = dict(self._staged)
            self.spectrum.load(self._bands(self._committed), self.spectrum.range_mhz, now)
        return "OK"

    # ---- the grid

    def _bands(self, cells: dict[int, Cell]) -> dict[Band, float]:
        return {
            (self.plant.ingress[0], port, low_mhz, low_mhz + WIDTH_MHZ): attenuation_db
            for channel, (port, attenuation_db) in sorted(cells.items())
            for low_mhz in (self._first_mhz + (channel - 1) * WIDTH_MHZ,)
        }

    def _channel(self, band: Band) -> int:
        return (band[2] - self._first_mhz) // WIDTH_MHZ + 1

    @staticmethod
    def _lines(*lines: str) -> bytes:
        return "".join(f"{line}\r\n" for line in lines).encode("latin-1")


def one_common(ingress: int, egress: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the labels of a 1xN switch: `in`, and 1..N out. Raises ValueError: more than one
    common port.
    """
    if ingress != 1:
        raise ValueError(f"size: such a switch has one common port, not {ingress}")
    return ("in",), tuple(str(n) for n in range(1, egress + 1))


def _preset(dialect: AnyDialect, row: object) -> None:
    """[channel, port] or [channel, port, attenuation in dB]."""
    assert isinstance(dialect, FinisarSerial)
    if not isinstance(row, list | tuple) or len(row) not in (2, 3):
        raise ValueError(
            f"{dialect.plant.name}: preset {row!r}: wanted [channel, port] or [channel, port, dB]"
        )
    dialect.preset(int(row[0]), (str(row[1]), float(row[2]) if len(row) == 3 else 0.0))


FAMILY = Family(
    "finisar-serial",
    ("serial",),
    FinisarSerial,
    one_common,
    _preset,
    size="1x9",
    settle_s=0.2,  # COSMOS default (U)
    plant=SpectralPlant,
    spectral=True,
    coupler=True,
    baud=115_200,  # CODE
)
