"""What a device promises: the interface every driver author reads.

A driver is constructed from a `DeviceConfig`, opens its link on first use and answers one question
at a time. Abilities beyond the three operations are small optional protocols; nothing here has a
body that raises "not supported".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, runtime_checkable

from optics import (
    Change,
    Db,
    Dbm,
    DeviceConfig,
    DeviceName,
    Identity,
    Outcome,
    Port,
    PortState,
    Progress,
    Setting,
    Traits,
)

__all__ = [
    "Attenuator",
    "CircuitSwitch",
    "DeviceConfig",
    "Evidence",
    "JobQueue",
    "Persistence",
    "PortControl",
    "PortHolders",
    "PowerMeter",
    "PresetState",
    "Presets",
    "Ready",
    "at_once",
]

Ready: TypeAlias = Callable[[], Awaitable[None]]


GRADES = frozenset({"REAL", "DOC", "CODE", "assumed"})


async def at_once() -> None:
    """Do not wait."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The evidence behind a driver; the support matrix prints it.

    family: vendor, devices and interface, as a reader would search for them ("Polatis /
    HUBER+SUHNER, SCPI"). schemes: kinds of address it takes, the usual one first. grades: function
    ("identify", "read", "change", "refusals", "power", ...; "unsolicited": unsolicited messages are
    ignored) -> REAL (a capture from a device), DOC (a manual or data sheet), CODE (a public client
    program that works with the device) or assumed (an inference, marked as one in the code).
    hardware: the models it was tested on; empty if none.
    """

    family: str
    schemes: tuple[str, ...] = ("tcp",)
    grades: Mapping[str, str] = field(default_factory=dict)
    hardware: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if wrong := sorted(set(self.grades.values()) - GRADES):
            raise ValueError(
                f"evidence: {wrong[0]!r} is no grade; there are {', '.join(sorted(GRADES))}"
            )


class CircuitSwitch(Protocol):
    """A device that holds a set of settings.

    All three operations raise `Unreachable` (no connection; nothing was sent), `TimedOut` (silence;
    the message names the query), `Garbled` (an answer outside the grammar, quoted) and `Refused`
    (the device refused; quoted).
    """

    name: DeviceName
    traits: Traits

    async def identify(self) -> Identity:
        """The identity that the device reports; writes nothing."""
        ...

    async def read(self) -> frozenset[Setting]:
        """The settings the whole device reports now, never a cached copy; writes nothing."""
        ...

    async def apply(self, change: Change, ready: Ready = at_once) -> Outcome:
        """Make `change`, removals first; wait for the device's own report of the new state; return
        the whole device read back.

        `ready` is awaited once, after everything was read and before the first byte that could
        change the device, so that several devices go dark together; what it raises is passed on and
        nothing is changed. A setting that did not become as wanted is in `Outcome.failed`, not an
        exception. After a lost reply the device is read before anything is sent again. Raises as
        the class says; then nothing may be assumed done.
        """
        ...

    async def close(self) -> None:
        """Log out and close the link; safe to call twice."""
        ...


@runtime_checkable
class PortHolders(Protocol):
    """A device whose table has entries that hold ports but pass no light, reserved or in fault, or
    that cannot be read.
    """

    def holders(self) -> Mapping[Setting | Port, str]:
        """These entries as the last `read` or `apply` saw them, each with the device's own words;
        none of them is a setting.

        A `Port` (label "?" for every port) is one whose state is not known: its row cannot be read.
        Sends nothing to the device.
        """
        ...


@runtime_checkable
class PowerMeter(Protocol):
    """A device that measures light at its ports."""

    async def power(self, ports: Iterable[Port]) -> Mapping[Port, Dbm]:
        """Power (dBm) at each port: the input of an ingress port, the output of an egress port; a
        port too dark to read is absent.

        Where one label is both sides of a duplex port (`1.2.5`), the label alone means the side
        where light leaves and the label with `:in` the side where it enters; a device without such
        ports ignores labels with `:in`.
        """
        ...


@runtime_checkable
class PortControl(Protocol):
    """A device whose ports can be shut and opened by command, and which reports failed ports."""

    async def port_states(self, ports: Iterable[Port]) -> Mapping[Port, PortState]:
        """The hardware state of each port; a port that the device does not report is absent. Writes
        nothing.
        """
        ...

    async def set_ports(self, ports: Iterable[Port], *, enabled: bool) -> Mapping[Port, PortState]:
        """Open or shut `ports`; circuits through a shut port go dark but are kept. Returns the
        states read back.

        Raises: Refused - the device said no, in its own words.
        """
        ...


@runtime_checkable
class Attenuator(Protocol):
    """A device with variable optical attenuators at ports of an ordinary cross-connect; a spectral
    route has its own.
    """

    async def attenuation(self, ports: Iterable[Port]) -> Mapping[Port, Db]:
        """Attenuation (dB) set at each port; a port without an attenuator is absent. Writes
        nothing.
        """
        ...

    async def attenuate(self, levels: Mapping[Port, Db]) -> Mapping[Port, Db]:
        """Set attenuations (dB >= 0); returns them read back. Raises: Refused - the device said no,
        or a port has none.
        """
        ...


@runtime_checkable
class Persistence(Protocol):
    """A device that can be configured what to do with its circuits when power comes back."""

    async def persistence(self) -> str:
        """The mode in force, as the device names it (Polatis: DARK, RESTORE, AUTOSAVE)."""
        ...


@runtime_checkable
class JobQueue(Protocol):
    """A slow device (a robot) that works through a queue, one move after another, and reports its
    progress.

    The caller of `apply` sets `on_progress`; the driver calls it in the event loop whenever there
    is progress.
    """

    on_progress: Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class PresetState:
    """Where a device with stored maps is. running: it changes slots, or waits to begin. slot: None
    where its map was set by other means.

    dark_window: the light of `slot` is still to come. cycle: how often the last slot was passed
    since the start. left_s: seconds until this slot's light ends, or in a dark window until it
    comes; None where nothing will change by itself.
    """

    running: bool
    slot: int | None
    dark_window: bool
    cycle: int
    left_s: float | None


@runtime_checkable
class Presets(Protocol):
    """A device that stores whole maps and steps through them by its own clock. While it does,
    `apply` raises `Refused`.

    All four raise as `CircuitSwitch` says.
    """

    async def load(
        self, slots: Sequence[frozenset[Setting]], dwell_s: float, dark_window_s: float
    ) -> None:
        """Store the circuits of each slot, each lit for dwell_s (s) after dark_window_s (s) without
        light; nothing moves.
        """
        ...

    async def start(self, slot: int = 0) -> float:
        """Begin to change slots; return in how many seconds from now (below 0: since when) the
        light of `slot` is there.
        """
        ...

    async def stop(self) -> None:
        """Rest in this slot, or in a dark window in the next one, whose light comes. A device that
        does not turn is left as it is.
        """
        ...

    async def position(self) -> PresetState:
        """Where it is now; writes nothing."""
        ...
