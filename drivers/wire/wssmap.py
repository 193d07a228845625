"""The channel map of a Finisar DWP/EWP wavelength-selective switch: `channel,port,attenuation;...`,
50 GHz channels.

The form is that of `URA` in public scripts; that `RRA?` answers in the same form is inferred (one
line before `OK` in the scripts).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from optics import FrequencySlot, Garbled

CHANNELS = 96
WIDTH_MHZ = 50_000
FIRST_MHZ = 191_350_000
"""Centre of channel 1: 96 channels of 50 GHz fill the C band from 191.35 to 196.10 THz. Which
frequency a module numbers 1 is its own affair, hence an option of the driver."""
BLOCKED_DB = 99.9  # public scripts block a channel so
LONGEST_LINE = 16_384  # 96 entries of at most 13 characters need 1.3 kB

_ENTRY = re.compile(r"\s*(\d{1,3})\s*,\s*(\d{1,2})\s*,\s*(\d{1,2}(?:\.\d{1,2})?)\s*")


@dataclass(frozen=True, slots=True, order=True)
class Entry:
    """What a channel does: the port it is led to and the attenuation (dB); BLOCKED_DB and more is
    blocked.
    """

    port: int
    attenuation_db: float

    @property
    def blocked(self) -> bool:
        return self.port == 0 or self.attenuation_db >= BLOCKED_DB


def parse_map(text: str) -> dict[int, Entry]:
    """Read a channel map.

    >>> parse_map("52,3,0.0;53,3,99.9;")
    {52: Entry(port=3, attenuation_db=0.0), 53: Entry(port=3, attenuation_db=99.9)}

    Raises: Garbled - not in that form, a channel twice, or one above CHANNELS.
    """
    found: dict[int, Entry] = {}
    for part in text.strip().removesuffix(";").split(";"):
        match = _ENTRY.fullmatch(part)
        if not match:
            raise Garbled(f"not channel,port,attenuation: {part[:40]!r} in {text[:60]!r}")
        channel = int(match[1])
        if channel in found or not 1 <= channel <= CHANNELS:
            raise Garbled(f"channel {channel} twice or out of range in {text[:60]!r}")
        found[channel] = Entry(int(match[2]), float(match[3]))
    return found


def write_map(entries: Mapping[int, Entry]) -> str:
    """Write a channel map as URA takes it.

    >>> write_map({52: Entry(3, 0.0), 53: Entry(3, 99.9)})
    '52,3,0.0;53,3,99.9'
    """
    return ";".join(
        f"{channel},{entry.port},{entry.attenuation_db:.1f}"
        for channel, entry in sorted(entries.items())
    )


def channels_of(slot: FrequencySlot, first_mhz: int = FIRST_MHZ) -> range | None:
    """The channels that fill `slot` exactly, None when it does not lie on the channels' edges."""
    low, off_low = divmod(slot.low_mhz - (first_mhz - WIDTH_MHZ // 2), WIDTH_MHZ)
    high, off_high = divmod(slot.high_mhz - (first_mhz - WIDTH_MHZ // 2), WIDTH_MHZ)
    return (
        range(low + 1, high + 1)
        if not (off_low or off_high) and 0 <= low < high <= CHANNELS
        else None
    )


def slot_of(first: int, last: int, first_mhz: int = FIRST_MHZ) -> FrequencySlot:
    """The spectrum of channels `first` to `last`."""
    low_mhz = first_mhz - WIDTH_MHZ // 2 + (first - 1) * WIDTH_MHZ
    return FrequencySlot(low_mhz, low_mhz + (last - first + 1) * WIDTH_MHZ)


def runs(entries: Mapping[int, Entry]) -> Iterable[tuple[int, int, Entry]]:
    """Adjacent channels that do the same, as (first, last, what); blocked ones are left out."""
    first = 0
    for channel in range(1, CHANNELS + 1):
        entry = entries.get(channel)
        if entry is None or entry.blocked:
            continue
        first = first or channel
        if entries.get(channel + 1) != entry:
            yield first, channel, entry
            first = 0
