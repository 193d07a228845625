"""The optical spectrum in whole megahertz: slots on the ITU-T G.694.1 flexible grid, and passbands
that are not on it.
"""

from __future__ import annotations

from dataclasses import dataclass

ANCHOR_MHZ = 193_100_000  # ITU-T G.694.1: 193.1 THz
STEP_MHZ = 6_250  # nominal central frequencies lie n steps from the anchor
WIDTH_STEP_MHZ = 12_500  # a slot is m steps wide


@dataclass(frozen=True, slots=True, order=True)
class FrequencySlot:
    """The light from `low_mhz` up to, not including, `high_mhz` (integer MHz, as OpenConfig's
    wavelength-router counts).

    A slot of the flexible grid is centred at 193.1 THz + n x 6.25 GHz and m x 12.5 GHz wide (ITU-T
    G.694.1); a device may hold passbands that are not, hence the two edges. Raises: ValueError -
    edges out of order or not positive integers.

    >>> str(Slot.flexgrid(-5, 3)), Slot.flexgrid(-5, 3).grid      # the example of RFC 7698: 193.06875 THz, 37.5 GHz
    ('193.0500-193.0875THz', (-5, 3))
    """

    low_mhz: int
    high_mhz: int

    def __post_init__(self) -> None:
        edges = (self.low_mhz, self.high_mhz)
        if (
            any(isinstance(edge, bool) or not isinstance(edge, int) for edge in edges)
            or not 0 < self.low_mhz < self.high_mhz
        ):
            raise ValueError(
                f"a slot runs from a lower to a higher frequency in whole MHz, not {self.low_mhz} to {self.high_mhz}"
            )

    @classmethod
    def flexgrid(cls, n: int, m: int) -> FrequencySlot:
        """The slot with central frequency index `n` and width index `m` (m >= 1)."""
        centre_mhz, half_mhz = ANCHOR_MHZ + n * STEP_MHZ, m * WIDTH_STEP_MHZ // 2
        return cls(centre_mhz - half_mhz, centre_mhz + half_mhz)

    @property
    def grid(self) -> tuple[int, int] | None:
        """(n, m) on the flexible grid, None for a passband that is not on it."""
        n, off_n = divmod((self.low_mhz + self.high_mhz) // 2 - ANCHOR_MHZ, STEP_MHZ)
        m, off_m = divmod(self.high_mhz - self.low_mhz, WIDTH_STEP_MHZ)
        return (n, m) if not (off_n or off_m or (self.low_mhz + self.high_mhz) % 2) else None

    @property
    def width_mhz(self) -> int:
        return self.high_mhz - self.low_mhz

    def overlaps(self, other: FrequencySlot) -> bool:
        """Whether the two share any light; slots that touch do not."""
        return self.low_mhz < other.high_mhz and other.low_mhz < self.high_mhz

    def holds(self, other: FrequencySlot) -> bool:
        """Whether all of `other` lies inside."""
        return self.low_mhz <= other.low_mhz and other.high_mhz <= self.high_mhz

    def __str__(self) -> str:
        return f"{_thz(self.low_mhz)}-{_thz(self.high_mhz)}THz"


def _thz(mhz: int) -> str:
    """`mhz` in THz, exactly, with at least four decimals (0.1 GHz)."""
    whole, rest = divmod(mhz, 1_000_000)
    digits = f"{rest:06d}"
    return f"{whole}.{digits[:4]}{digits[4:].rstrip('0')}"
