"""What a device promises: the interface every driver author reads.

A driver is constructed from a `DeviceConfig`, opens its link on first use and answers one question at a time. Abilities beyond the
three verbs are further small protocols that a driver implements or not; nothing here has a body that says "not supported".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, runtime_checkable

from optics import Change, Db, Dbm, DeviceConfig, DeviceName, Identity, Outcome, Port, PortState, Progress, Setting, Traits

__all__ = [
    "Attenuator",
    "ChannelMeter",
    "CircuitSwitch",
    "DeviceConfig",
    "Evidence",
    "JobQueue",
    "Persistence",
    "PortControl",
    "PortHolders",
    "PowerMeter",
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

    family: vendor, devices and interface, as a reader would look for them ("Polatis / HUBER+SUHNER, SCPI"). schemes: kinds of
    address it takes, the usual one first. grades: function ("identify", "read", "change", "refusals", "power", ...; "unsolicited":
    unsolicited messages are set aside) -> REAL (a capture from a device), DOC (a manual or data sheet), CODE (a public client
    program that works with the device) or assumed (an inference, marked as one in the code).
    hardware: the models it was tried on, empty while it never met one.
    """

    family: str
    schemes: tuple[str, ...] = ("tcp",)
    grades: Mapping[str, str] = field(default_factory=dict)
    hardware: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if wrong := sorted(set(self.grades.values()) - GRADES):
            raise ValueError(f"evidence: {wrong[0]!r} is no grade; there are {', '.join(sorted(GRADES))}")


class CircuitSwitch(Protocol):
    """A device that holds a set of settings.

    All three verbs raise `Unreachable` (no connection; nothing was sent), `TimedOut` (silence; the message names the question),
    `Garbled` (an answer outside the grammar, quoted) and `Refused` (the device said no, in its own words).
    """

    name: DeviceName
    traits: Traits

    async def identify(self) -> Identity:
        """The identity that the device reports; writes nothing."""
        ...

    async def read(self) -> frozenset[Setting]:
        """What the whole device reports now, never a remembered copy; writes nothing."""
        ...

    async def apply(self, change: Change, ready: Ready = at_once) -> Outcome:
        """Make `change`, removals first; wait for the device's own report of the new state; return the whole device read back.

        `ready` is awaited once, after everything was read and before the first byte that could change the device, so that several
        devices go dark together; what it raises is passed on and nothing is changed.
        A setting that did not become as wanted is in `Outcome.failed`, not an exception. After a lost reply the device is read
        before anything is sent again. Raises as the class says; then nothing may be assumed done.
        """
        ...

    async def close(self) -> None:
        """Log out and close the link; safe to call twice."""
        ...


@runtime_checkable
class PortHolders(Protocol):
    """A device whose table has entries that hold ports and lead no light: reserved, or in fault although light enters."""

    def holders(self) -> Mapping[Setting, str]:
        """These entries as the last `read` or `apply` saw them, each with the device's own words; none of them is a setting.

        Asks the device nothing.
        """
        ...


@runtime_checkable
class PowerMeter(Protocol):
    """A device that measures light at its ports."""

    async def power(self, ports: Iterable[Port]) -> Mapping[Port, Dbm]:
        """Power (dBm) at each port, an ingress port's input, an egress port's output; a port too dark to read is absent.

        Where one label is both sides of a duplex port (`1.2.5`), the label alone means the side where light leaves and the label
        with `:in` the side where it enters; a device without such ports ignores labels with `:in`.
        """
        ...


@runtime_checkable
class ChannelMeter(Protocol):
    """A spectral device that measures the light of each route apart, which equalisation needs; a `PowerMeter` knows only sums."""

    async def channel_power(self, settings: Iterable[Setting]) -> Mapping[Setting, tuple[Dbm | None, Dbm | None]]:
        """Power (dBm) of each route where its light enters and where it leaves, None where it is too dark to read.

        A route that the device does not hold, or says nothing of, is absent. Two routes that differ in attenuation alone are the
        same one. Writes nothing.
        """
        ...


@runtime_checkable
class PortControl(Protocol):
    """A device whose ports can be shut and opened by command, and that knows when one has failed."""

    async def port_states(self, ports: Iterable[Port]) -> Mapping[Port, PortState]:
        """What each port's hardware says; a port the device says nothing of is absent. Writes nothing."""
        ...

    async def set_ports(self, ports: Iterable[Port], *, enabled: bool) -> Mapping[Port, PortState]:
        """Open or shut `ports`; circuits through a shut port go dark but stay. Returns the ports' states read back.

        Raises: Refused - the device said no, in its own words.
        """
        ...


@runtime_checkable
class Attenuator(Protocol):
    """A device with variable optical attenuators at ports of an ordinary cross-connect; a spectral route has its own."""

    async def attenuation(self, ports: Iterable[Port]) -> Mapping[Port, Db]:
        """Attenuation (dB) set at each port; a port without an attenuator is absent. Writes nothing."""
        ...

    async def attenuate(self, levels: Mapping[Port, Db]) -> Mapping[Port, Db]:
        """Set attenuations (dB >= 0); returns them read back. Raises: Refused - the device said no, or a port has none."""
        ...


@runtime_checkable
class Persistence(Protocol):
    """A device that can be configured what to do with its circuits when power comes back."""

    async def persistence(self) -> str:
        """The mode in force, in the device's own word (Polatis: DARK, RESTORE, AUTOSAVE)."""
        ...


@runtime_checkable
class JobQueue(Protocol):
    """A slow device (a robot) that works through a queue, one move after the other, and says how far it is.

    The caller of `apply` sets `on_progress`; the driver calls it in the event loop whenever there is progress.
    """

    on_progress: Callable[[Progress], None]
