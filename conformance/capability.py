"""What a driver can declare: the promises every driver makes, and the abilities it has through a
protocol or a trait.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from drivers.api import Attenuator, CircuitSwitch, JobQueue, Persistence, PortControl, PowerMeter
from drivers.registry import evidence
from optics import DeviceConfig


@dataclass(frozen=True, slots=True)
class Capability:
    """One thing a driver declares. core: every driver promises it. declared: whether this device's
    driver declares it.
    """

    name: str
    means: str
    core: bool = True
    declared: Callable[[CircuitSwitch, DeviceConfig], bool] = lambda device, config: True


def _when(holds: Callable[[CircuitSwitch], bool]) -> Callable[[CircuitSwitch, DeviceConfig], bool]:
    return lambda device, config: holds(device)


_ALL = (
    Capability("identify", "reports its identity and its ports"),
    Capability("read", "reports its connections, including those made by others"),
    Capability("change", "makes, moves and breaks connections; repeating a change writes nothing"),
    Capability("ready", "waits for the ready signal before any circuit goes dark"),
    Capability("refusals", "reports which item failed and why, and carries out the rest"),
    Capability("lost answers", "reads back before it repeats any command"),
    Capability("noise", "handles answers that are split, repeated, garbled or interleaved"),
    Capability("silence", "reports a time-out within its time limit"),
    Capability(
        "settling", "returns when the device reports the change, neither before nor much after"
    ),
    Capability("reboot", "trusts the device's report after a loss of power"),
    Capability("sessions", "reconnects when dropped; can be closed twice"),
    Capability("two callers", "keeps simultaneous requests apart"),
    Capability("unreachable", "reports that nothing answers, or that another device does"),
    Capability(
        "unsolicited",
        "ignores unsolicited messages",
        False,
        lambda device, config: "unsolicited" in evidence(config.driver).grades,
    ),
    Capability(
        "login",
        "reports a wrong password without disclosing it",
        False,
        lambda device, config: bool(config.password),
    ),
    Capability(
        "others stay lit",
        "leaves connections that a change does not name undisturbed",
        False,
        _when(lambda d: d.traits.keeps_others_lit),
    ),
    Capability(
        "at once",
        "sends many settings in one command",
        False,
        _when(lambda d: d.traits.at_once != 1),
    ),
    Capability(
        "latching",
        "keeps its connections through a loss of power",
        False,
        _when(lambda d: d.traits.latching),
    ),
    Capability(
        "spectral",
        "routes each slot of the spectrum separately",
        False,
        _when(lambda d: d.traits.spectral),
    ),
    Capability(
        "power",
        "measures optical power at its ports",
        False,
        _when(lambda d: isinstance(d, PowerMeter)),
    ),
    Capability(
        "port control", "shuts and opens ports", False, _when(lambda d: isinstance(d, PortControl))
    ),
    Capability(
        "attenuator", "sets variable attenuators", False, _when(lambda d: isinstance(d, Attenuator))
    ),
    Capability(
        "persistence",
        "reports what it does when power returns",
        False,
        _when(lambda d: isinstance(d, Persistence)),
    ),
    Capability(
        "jobs",
        "reports the progress of a slow change",
        False,
        _when(lambda d: isinstance(d, JobQueue)),
    ),
)
CAPABILITIES: Mapping[str, Capability] = {capability.name: capability for capability in _ALL}
"""All capabilities that can be declared, in the order in which they are shown."""
