"""Optional abilities: meters, shutters, attenuators."""

from __future__ import annotations

from conformance.check import check
from conformance.outcome import NotTried, want
from conformance.subject import Subject, refused
from drivers.api import Attenuator, Persistence, PortControl, PowerMeter
from optics import Port, PortState, Refused

# insertion loss of a wavelength-selective switch; cross-connects lose far less
WORST_LOSS_DB = 12.0
DEFAULT_METER_DB = 1.5
# below it some families' meters show only noise; light that a receiver can use is above it
DARK_DBM = -25.0
STEP_DB = 6.0


@check("power is reported for a lit port; a dark port is absent", "power", ports=3)
async def power_where_there_is_light(s: Subject) -> None:
    assert isinstance(s.device, PowerMeter)
    lights = await s.make((1, 2))
    (setting,) = lights
    dark = Port(
        s.name,
        next(
            label
            for label in s.egress
            if label not in (setting.egress.label, setting.ingress.label)
        ),
    )
    levels = await s.device.power([setting.egress, dark])
    want(setting.egress in levels, f"no level at {setting.egress}, where light of 0 dBm enters")
    want(levels.get(dark, DARK_DBM) <= DARK_DBM, f"{levels.get(dark)} dBm at {dark}, which is dark")
    slack_db = s.device.traits.meter_db or DEFAULT_METER_DB
    level = levels[setting.egress]
    lowest, highest = -WORST_LOSS_DB - slack_db, slack_db
    want(
        s.spectral or lowest <= level <= highest,
        f"{level} dBm at {setting.egress}; 0 dBm enters, the meter's accuracy is {slack_db} dB",
    )
    s.known.light(setting.ingress.label, None)
    try:
        left = (await s.device.power([setting.egress])).get(setting.egress, DARK_DBM)
        want(left <= DARK_DBM, f"{left} dBm at {setting.egress} though no light enters")
    finally:
        s.known.light(setting.ingress.label, 0.0)


@check("a change of optical power is measured correctly", "power", ports=2)
async def levels_are_true(s: Subject) -> None:
    assert isinstance(s.device, PowerMeter)
    (setting,) = await s.make((1, 2))
    entering = Port(
        s.name,
        setting.ingress.label + (":in" if setting.ingress.label in s.identity.egress else ""),
    )
    asked = [setting.egress, entering]
    slack_db = s.device.traits.meter_db or DEFAULT_METER_DB
    bright = await s.device.power(asked)
    s.known.light(setting.ingress.label, -STEP_DB)
    try:
        dim = await s.device.power(asked)
    finally:
        s.known.light(setting.ingress.label, 0.0)
    want(
        dim.keys() == bright.keys() and bright,
        f"levels at {sorted(map(str, bright))}, then at {sorted(map(str, dim))}",
    )
    for port, level in bright.items():
        fell_db = level - dim[port]
        want(
            abs(fell_db - STEP_DB) <= 0.5,
            f"{port}: the power fell by {STEP_DB} dB, the meter shows {fell_db:.2f} dB",
        )
    if entering in bright and not s.spectral:
        level = bright[entering]
        want(
            abs(level) <= slack_db + 0.2,
            f"{level} dBm at {entering}, 0 dBm enters; the meter's accuracy is {slack_db} dB",
        )


@check(
    "a shut port is dark and keeps its connection; when opened, it is lit again",
    "port control",
    ports=3,
)
async def ports_shut_and_open(s: Subject) -> None:
    assert isinstance(s.device, PortControl)
    lights = await s.make((1, 2), (2, 1))
    shut, other = s.one(1, 2), s.one(2, 1)
    port = shut.egress
    states = await s.device.set_ports([port], enabled=False)
    want(states.get(port) is PortState.DISABLED, f"after shutting it reports {states.get(port)}")
    want(
        (await s.device.port_states([port])).get(port) is PortState.DISABLED,
        "a second query reports another state",
    )
    want(
        await s.until(lambda: s.known.lit - s.keys(s.foreign) == s.keys([other]), 1.0),
        "the port is not dark, or another port is",
    )
    want(await s.device.read() - s.foreign == lights, "the connection is missing from the report")
    states = await s.device.set_ports([port], enabled=True)
    want(states.get(port) is PortState.ENABLED, f"after opening it reports {states.get(port)}")
    patience_s = 2.0 + 10 * s.device.traits.settle_s
    want(
        await s.until(lambda: s.known.lit - s.keys(s.foreign) == s.keys(lights), patience_s),
        "the port stays dark",
    )


@check(
    "a port is not reported shut when the command was refused, ignored, or named a foreign port",
    "port control",
    ports=2,
)
async def ports_that_are_not_shut(s: Subject) -> None:
    assert isinstance(s.device, PortControl)
    control = s.device
    (setting,) = await s.make((1, 2))
    port = setting.egress
    with s.known.wrong("refuse", on="write"):
        error = await refused(lambda: control.set_ports([port], enabled=False))
        want(
            isinstance(error, Refused),
            f"the device refused; wanted Refused, got {type(error).__name__}: {error}",
        )
    with s.known.wrong("silent-failure", on="write"):
        states = await s.device.set_ports([port], enabled=False)
        lit = s.key(setting) in s.known.lit
        want(
            (states.get(port) is PortState.ENABLED) is lit,
            f"lit: {lit}, it reports {states.get(port)}",
        )
    await s.device.set_ports([port], enabled=True)
    before = s.known.writes
    for strange in (
        Port("elsewhere", port.label),
        Port(s.name, port.label + ";x"),
        Port(s.name, port.label + "\n"),
    ):
        error = await refused(lambda strange=strange: control.set_ports([strange], enabled=False))  # type: ignore[misc]
        want(
            isinstance(error, Refused),
            f"{strange!r} is not one of its ports; wanted Refused, got {type(error).__name__}: {error}",
        )
    want(s.known.writes == before, "a command was sent for a port that does not exist")
    await s.shows([setting])


@check("a port with failed hardware is reported as failed", "port control", ports=1)
async def a_failed_port_reports_it(s: Subject) -> None:
    assert isinstance(s.device, PortControl)
    port = s.one(1, 1).egress
    with s.known.wrong("failed-port", port=port.label):
        state = (await s.device.port_states([port])).get(port)
        want(state is PortState.FAILED, f"it reports {state}")
    want(
        (await s.device.port_states([port])).get(port) is PortState.ENABLED,
        "after the repair it reports another state",
    )


@check("an attenuator reduces the power by the value it is set to", "attenuator", ports=16)
async def attenuators_weaken(s: Subject) -> None:
    assert isinstance(s.device, Attenuator)
    ports = [Port(s.name, label) for label in dict.fromkeys((*s.egress, *s.ingress))]
    before = await s.device.attenuation(ports)
    usable = [b for b, label in enumerate(s.egress[: s.lights], 1) if Port(s.name, label) in before]
    if not usable:
        raise NotTried("no attenuator at a free port")
    (setting,) = await s.make((1, usable[0]))
    port, old = setting.egress, before[setting.egress]
    meter = s.device if isinstance(s.device, PowerMeter) else None
    bright = (await meter.power([port])).get(port) if meter else None
    try:
        reported = await s.device.attenuate({port: old + 4.0})
        want(
            abs(reported.get(port, -99.0) - old - 4.0) <= 0.1,
            f"set to {old + 4.0} dB, it reports {reported.get(port)}",
        )
        again = (await s.device.attenuation([port])).get(port)
        want(again == reported[port], f"a second query reports {again}")
        if meter and bright is not None:
            dim = (await meter.power([port])).get(port, -99.0)
            slack_db = 2 * (s.device.traits.meter_db or DEFAULT_METER_DB)
            want(
                abs(bright - dim - 4.0) <= slack_db,
                f"attenuated by 4 dB, the meter shows {bright - dim:.2f} dB",
            )
    finally:
        await s.device.attenuate({port: old})


@check(
    "an attenuation is not reported set when the command was refused, ignored, or named another device",
    "attenuator",
    ports=16,
)
async def attenuations_that_are_not_set(s: Subject) -> None:
    assert isinstance(s.device, Attenuator)
    device = s.device
    able = await device.attenuation([Port(s.name, label) for label in s.egress])
    usable = [b for b, label in enumerate(s.egress[: s.lights], 1) if Port(s.name, label) in able]
    if not usable:
        raise NotTried("no attenuator at a free port")
    (setting,) = await s.make((1, usable[0]))
    port = setting.egress
    old = (await device.attenuation([port]))[port]
    with s.known.wrong("refuse", on="write"):
        error = await refused(lambda: device.attenuate({port: old + 3.0}))
        want(
            isinstance(error, Refused),
            f"the device refused; wanted Refused, got {type(error).__name__}: {error}",
        )
    with s.known.wrong("silent-failure", on="write"):
        reported = (await device.attenuate({port: old + 3.0})).get(port)
        want(
            reported is None or abs(reported - old) <= 0.1,
            f"nothing was set, it reports {reported} dB",
        )
    error = await refused(lambda: device.attenuate({Port("elsewhere", port.label): old + 3.0}))
    want(
        isinstance(error, Refused),
        f"a port of another device; wanted Refused, got {type(error).__name__}: {error}",
    )
    want(
        (await device.attenuation([port])).get(port) == old,
        f"the attenuation is no longer {old} dB",
    )


@check("querying the behaviour after a loss of power writes nothing", "persistence", ports=0)
async def persistence_is_read_only(s: Subject) -> None:
    assert isinstance(s.device, Persistence)
    before = s.known.writes
    await s.device.persistence()
    want(s.known.writes == before, "something was written")
