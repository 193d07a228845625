"""What a driver can declare: the promises of every driver, and the abilities it has by protocol or trait."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from drivers.api import Attenuator, CircuitSwitch, JobQueue, Persistence, PortControl, PowerMeter
from drivers.registry import evidence
from optics import DeviceConfig


@dataclass(frozen=True, slots=True)
class Capability:
    """One thing a driver declares. core: every driver promises it. declared: whether this device's driver does."""

    name: str
    means: str
    core: bool = True
    declared: Callable[[CircuitSwitch, DeviceConfig], bool] = lambda device, config: True


def _when(holds: Callable[[CircuitSwitch], bool]) -> Callable[[CircuitSwitch, DeviceConfig], bool]:
    return lambda device, config: holds(device)


_ALL = (
    Capability("identify", "says who it is and which ports it has"),
    Capability("read", "reports what it carries, other people's lights included"),
    Capability("change", "makes, moves and breaks lights; a second time writes nothing"),
    Capability("ready", "waits for the word before it goes dark"),
    Capability("refusals", "says which item failed and why, and does the rest"),
    Capability("lost answers", "reads back before it sends anything again, at every command"),
    Capability("noise", "answers in pieces, twice, garbled, interleaved"),
    Capability("silence", "a time-out in time"),
    Capability("settling", "returns on the device's own report, neither before nor much after"),
    Capability("reboot", "believes a device that lost power"),
    Capability("sessions", "connects again when dropped; closes twice"),
    Capability("two callers", "questions at the same time do not mix"),
    Capability("unreachable", "says that nobody, or somebody else, is there"),
    Capability(
        "unsolicited",
        "messages nobody asked for are set aside",
        False,
        lambda device, config: "unsolicited" in evidence(config.driver).grades,
    ),
    Capability("login", "a wrong password", False, lambda device, config: bool(config.password)),
    Capability("others stay lit", "a change leaves other lights untouched", False, _when(lambda d: d.traits.keeps_others_lit)),
    Capability("at once", "many settings in one command", False, _when(lambda d: d.traits.at_once != 1)),
    Capability("latching", "lights survive a loss of power", False, _when(lambda d: d.traits.latching)),
    Capability("spectral", "slots of the spectrum, each its own way", False, _when(lambda d: d.traits.spectral)),
    Capability("power", "optical power at its ports", False, _when(lambda d: isinstance(d, PowerMeter))),
    Capability("port control", "ports shut and opened", False, _when(lambda d: isinstance(d, PortControl))),
    Capability("attenuator", "variable attenuators", False, _when(lambda d: isinstance(d, Attenuator))),
    Capability("persistence", "what it does when power comes back", False, _when(lambda d: isinstance(d, Persistence))),
    Capability("jobs", "tells how far a slow change is", False, _when(lambda d: isinstance(d, JobQueue))),
)
CAPABILITIES: Mapping[str, Capability] = {capability.name: capability for capability in _ALL}
"""All that can be declared, in the order they are shown."""
