"""A family of emulated devices: how each is built, served and wired."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from emulators.devices.dialects.base import AnyDialect
from emulators.optics.plant import Plant

Labels = tuple[str, ...]
PLANT_KEYS = frozenset(
    {"settle_s", "bulk_settle_s", "size", "ports", "preset", "faults", "los_dbm"}
)


class _HasPairs(Protocol):
    def preset(self, ingress: str, egress: str) -> None: ...


def preset_pair(dialect: AnyDialect, row: object) -> None:
    """Make a row of `preset`, [in, out], as if it had been there for ever. Raises ValueError."""
    if not isinstance(row, list | tuple) or len(row) != 2:
        raise ValueError(f"{dialect.plant.name}: preset {row!r}: wanted [in, out]")
    cast(_HasPairs, dialect).preset(str(row[0]), str(row[1]))


def two_sided(ingress: int, egress: int) -> tuple[Labels, Labels]:
    """Return the labels of a faceplate that numbers each side from 1: 1..N in, 1..M out."""
    return tuple(str(n) for n in range(1, ingress + 1)), tuple(str(n) for n in range(1, egress + 1))


@dataclass(frozen=True, slots=True)
class Family:
    """How the devices of one driver are emulated.

    schemes: kinds of address it answers on, the usual one first ("tcp", "telnet", "ssh", "netconf",
    "http", "serial"). dialect: class or function (plant, *, seed, **keys) -> dialect; its keyword
    parameters are the keys emulator.yml may give. faceplate: (N, M) -> ingress and egress labels.
    Port k of a generated lab is wired to the k-th of each. settle_s, bulk_settle_s: as Plant, of a
    real device (s); divided by time_scale. preset: puts one row of emulator.yml's `preset` into the
    device as if it had always existed. login: the one that generated inventories use. coupler: the
    hosts' fibres are joined by a passive coupler and all enter the first ingress (a 1xN
    wavelength-selective switch); trunks: fibres from an egress of the device to an ingress of the
    same device that the lab needs. spectral: each host of a generated lab sends in a slot of its
    own. rotates: it may turn by the clock, faster than carriers follow (turning.py). baud: of its
    serial line. quick: keys of emulator.yml for devices under check: without waits of which no
    check is a test, as that for a login, and with ports enough for every check. styles: other ways
    to label its ports: a word of `ports` -> N labels for both sides.
    """

    driver: str
    schemes: tuple[str, ...]
    dialect: Callable[..., AnyDialect]
    faceplate: Callable[[int, int], tuple[Labels, Labels]]
    preset: Callable[[AnyDialect, object], None] = preset_pair
    size: str = "16x16"
    settle_s: float = 0.05
    bulk_settle_s: float | None = None
    login: tuple[str, str] | None = None
    time_scale: float = 1.0
    plant: Callable[..., Any] = Plant
    spectral: bool = False
    coupler: bool = False
    trunks: tuple[tuple[str, str], ...] = ()
    square: bool = False
    rotates: bool = False
    baud: int = 38_400  # Polatis RS-232
    quick: Mapping[str, float | str] = field(default_factory=dict)
    styles: Mapping[str, Callable[[int], Labels]] = field(default_factory=dict)

    @property
    def settings(self) -> frozenset[str]:
        """The keys that emulator.yml may give for such a device."""
        return (
            frozenset(inspect.signature(self.dialect).parameters) - {"self", "plant", "seed"}
            | PLANT_KEYS
        )
