"""The inventory of a ring of wavelength-selective switches: at every host a node of two modules,
one towards each neighbour.

A module multiplexes what leaves a node into the fibre to that neighbour, and demultiplexes what
comes from there. Nodes are joined by a pair of fibres with an amplifier at the end of each; inside
a node a fibre leads from each demultiplexer to the other multiplexer, so that light passes through.
Every host has two ports for each wavelength: an odd one that sends clockwise and hears what goes
the other way round, and an even one that does the reverse. So a link takes an odd port at one end
and the even one of the same wavelength at the other.
"""

from __future__ import annotations

from collections.abc import Iterator

from emulators.devices.family import Family
from emulators.generate.familylab import (
    FIRST_N,
    MOST_SLOTS,
    SLOT_M,
    SLOT_STEP_N,
    Wanted,
    devices_of,
    emulator_of,
    host_name,
)
from emulators.optics.light import METER_BIAS_DB

GAIN_DB = 8.0
"""Of the amplifier after each stretch: what a node between two others and the fibre cost, less
about 1 dB (4 dB a module, U).
"""
LEAST_HOSTS, MOST_HOSTS = 3, 16


def texts_of_ring(kind: Family, wanted: Wanted) -> dict[str, str]:
    """Return devices.yml, fibres.yml and emulator.yml. `wanted.device_ports`: two for each host.

    Raises ValueError: a family without a line between its two switches, or more hosts or
    wavelengths than fit.
    """
    hosts, count = len(wanted.ssh_ports), wanted.wavelengths
    if len(kind.trunks) != 1 or not kind.spectral:
        raise ValueError(
            f"a ring needs modules that multiplex and demultiplex, such as lumentum-netconf, not {kind.driver}"
        )
    if not LEAST_HOSTS <= hosts <= MOST_HOSTS:
        raise ValueError(f"a ring has {LEAST_HOSTS} to {MOST_HOSTS} hosts, not {hosts}")
    line_out, line_in = kind.trunks[0]
    inputs, outputs = (int(part) for part in kind.size.split("x"))
    ingress, egress = kind.faceplate(inputs, outputs)
    adds, drops = [p for p in ingress if p != line_in], [p for p in egress if p != line_out]
    if not 1 <= count < min(len(adds), MOST_SLOTS):
        raise ValueError(
            f"a ring of {kind.driver} has 1 to {min(len(adds), MOST_SLOTS) - 1} wavelengths, not {count}"
        )
    names = [
        f"wss{host_name(host, hosts)[3:]}{side}" for host in range(1, hosts + 1) for side in "ew"
    ]
    ones = {name: (kind, port) for name, port in zip(names, wanted.device_ports, strict=True)}
    return {
        "devices.yml": devices_of(ones, wanted, METER_BIAS_DB),
        "fibres.yml": "\n".join(
            [
                *_fibres(hosts, count, adds, drops),
                *_trunks(hosts, line_out, line_in, adds[-1], drops[-1]),
                "",
            ]
        ),
        "emulator.yml": emulator_of(ones, wanted, dict.fromkeys(names, kind.size)),
    }


def _fibres(hosts: int, count: int, adds: list[str], drops: list[str]) -> Iterator[str]:
    yield "# A ring of wavelength-selective switches, two at every host: e sends clockwise, to the next host, w the other way."
    yield "# slot: what the port sends, centre 193.1 THz + n x 6.25 GHz, width m x 12.5 GHz. Ports 2k-1 and 2k have wavelength k."
    yield "fibres:"
    for host in range(1, hosts + 1):
        name = host_name(host, hosts)
        for wave in range(count):
            for side, port in (("e", 2 * wave + 1), ("w", 2 * wave + 2)):
                yield (
                    f"  - {{name: f-{name}-p{port}, host: {name}, port: {port}, device: wss{name[3:]}{side}, "
                    f'enters: "{adds[wave]}", leaves: "{drops[wave]}", slot: {{n: {FIRST_N + SLOT_STEP_N * wave}, m: {SLOT_M}}}, '
                    "length_m: 8.0}"
                )


def _trunks(hosts: int, line_out: str, line_in: str, add: str, drop: str) -> Iterator[str]:
    names = [host_name(host, hosts)[3:] for host in range(1, hosts + 1)]
    yield "# gain_db: of the amplifier at the end of each stretch."
    yield "trunks:"
    for one, other in zip(names, [*names[1:], names[0]], strict=True):
        for a, b in ((f"wss{one}e", f"wss{other}w"), (f"wss{other}w", f"wss{one}e")):
            ends = (
                f'from: {{device: {a}, port: "{line_out}"}}, to: {{device: {b}, port: "{line_in}"}}'
            )
            yield f"  - {{name: t-{a[3:]}-{b[3:]}, {ends}, length_m: 100.0, gain_db: {GAIN_DB}}}"
    for name in names:
        for a, b in ((f"wss{name}e", f"wss{name}w"), (f"wss{name}w", f"wss{name}e")):
            ends = f'from: {{device: {a}, port: "{drop}"}}, to: {{device: {b}, port: "{add}"}}'
            yield f"  - {{name: x-{a[3:]}-{b[3:]}, {ends}, length_m: 1.0}}"
