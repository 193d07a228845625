"""`python -m emulators.generate`: write the inventory directory of an emulated lab of any size."""

from __future__ import annotations

import argparse
import random
import re
import shlex
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

from emulators.devices.families import WHERE, family
from emulators.devices.family import Family
from emulators.generate.defaultlab import generate, is_polatis
from emulators.generate.electrical import parse
from emulators.generate.familylab import DEFAULT_STATE, Wanted, hosts_yml, most_hosts, texts_of
from emulators.generate.lookahead import texts_of_lookahead
from emulators.generate.ringlab import texts_of_ring
from emulators.inventory.config import LEAST_QUEUE_KB, MOST_QUEUE_KB

MAX_HOSTS = 250  # host ids are the last byte of addresses
FIRST_CONTROL_PORT = 27_001  # of the functions of packet switches
BMC_PORT_BASE = 24_000
FREE = (*range(20_000, 22_000), *range(28_000, 32_000))
"""Ports for `--free-ports`: below those that the kernel gives to outgoing connections, and none
that a lab has by default.
"""


def free_ports(count: int) -> tuple[int, ...]:
    """Return loopback ports free a moment ago. None is held while others are tried: a lab that starts
    could not listen on it.
    """
    found: list[int] = []
    for port in random.sample(FREE, len(FREE)):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found.append(port)
        if len(found) == count:
            break
    return tuple(found)


def main(arguments: list[str] | None = None) -> int:
    """Write a lab; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m emulators.generate", description="Write the inventory of an emulated lab."
    )
    parser.add_argument(
        "--hosts",
        type=int,
        help="number of hosts, 1 to 250 (default 12, with --driver as many as fit, at most 8)",
    )
    parser.add_argument(
        "--ports",
        type=int,
        help="fabric ports per host, each on its own device, 1 to 8 (default 4, with --driver 1 each)",
    )
    parser.add_argument(
        "--driver",
        action="append",
        choices=sorted(WHERE),
        metavar="NAME",
        help="a lab whose devices are of this driver; given several times: of a device of each, at a port of every host of its own",
    )
    parser.add_argument(
        "--look-ahead",
        action="store_true",
        help="a patch-panel robot behind a 1x2 switch per port (default 6 hosts of 2 ports)",
    )
    parser.add_argument(
        "--electrical",
        action="append",
        default=[],
        metavar="KIND",
        help="packet switches in addition to the optical ones, at a further port of every host: ideal, fat-tree, oversubscribed:F, "
        "domains:K, rails:K, or dual:K (two planes with leaf switches of K hosts, at two ports); @MBPS for another rate than that "
        "of all optical ports together (dual: half of it a port); +aggregate, +cache for switches with these functions; "
        "may be repeated, at most 8 ports",
    )
    parser.add_argument(
        "--line",
        action="append",
        default=[],
        metavar="PORT:MS:PACKETS[:LOST[:MBPS]]",
        help="what all hosts send at this port number passes a queue of so many packets and takes so long; may be repeated",
    )
    parser.add_argument(
        "--queue",
        metavar="KB[:SHARE]",
        help="what waits before each port and uplink of the packet switches, and how uplinks are shared: fifo, or job by job",
    )
    parser.add_argument(
        "--wavelengths",
        type=int,
        default=0,
        help="with a --driver that routes spectrum: hosts send on so many wavelengths in turn",
    )
    parser.add_argument(
        "--ring",
        action="store_true",
        help="with --driver lumentum-netconf: hosts on a ring of such switches, two at each, and two ports a host for each of "
        "--wavelengths (default 2)",
    )
    parser.add_argument(
        "--partition",
        action="append",
        default=[],
        metavar="NAME:LANES[:SHARE]",
        help="divide every host: a part with these lanes (0,1) and this share of its ports at packet switches; may be repeated",
    )
    parser.add_argument(
        "--bmc",
        action="store_true",
        help="give every host a management controller (Redfish), on 127.0.0.1:24000+n",
    )
    parser.add_argument(
        "--rack", type=int, default=4, help="hosts of a leaf switch of a fat-tree (default 4)"
    )
    parser.add_argument(
        "--port-base",
        type=int,
        default=22100,
        help="host n's sshd answers on 127.0.0.1:BASE+n (default 22100)",
    )
    parser.add_argument(
        "--device-port-base",
        type=int,
        help="device k answers on BASE+k (default 25000+k Polatis, 23080+k Calient)",
    )
    parser.add_argument(
        "--free-ports",
        action="store_true",
        help="take ports that are free now, so that several labs fit a machine",
    )
    parser.add_argument(
        "--name",
        default="emulated",
        help="the name of a lab of Polatis and Calient switches (default emulated)",
    )
    parser.add_argument(
        "--state",
        help=f"where keys, known_hosts and control socket go (default {DEFAULT_STATE}, or next to it under the lab's name)",
    )
    parser.add_argument(
        "--settle-s",
        type=float,
        help="the switches' switching time, s (default 0.05, piezo; with --driver the family's)",
    )
    parser.add_argument(
        "--rate-mbps",
        type=rate_of,
        default=250,
        help="rate of a port, Mb/s, 0 unshaped (default 250)",
    )
    parser.add_argument("--out", type=Path, required=True, help="directory to write")
    options = parser.parse_args(arguments)
    if options.driver and options.look_ahead:
        parser.error("--driver and --look-ahead exclude each other")
    if options.electrical and (options.driver or options.look_ahead):
        parser.error("--electrical is for labs of Polatis and Calient switches")
    if options.bmc and (options.driver or options.look_ahead):
        parser.error("--bmc is for labs of Polatis and Calient switches")
    if options.partition and not options.electrical:
        parser.error(
            "--partition divides hosts that meet at packet switches, which --electrical adds"
        )
    if options.queue and not options.electrical:
        parser.error("--queue is of packet switches, which --electrical adds")
    if options.ring and len(options.driver or ()) != 1:
        parser.error(
            "--ring takes one --driver, of modules that multiplex and demultiplex: lumentum-netconf"
        )
    if options.ring:
        options.wavelengths = options.wavelengths or 2
        if options.ports not in (None, 2 * options.wavelengths):
            parser.error(
                f"--ports {options.ports}: on a ring of {options.wavelengths} wavelengths a host has {2 * options.wavelengths}"
            )
        options.ports = 2 * options.wavelengths
    if len(options.driver or ()) > 1 and options.ports not in (None, len(options.driver)):
        parser.error(
            f"--ports {options.ports}: a host has one port at a device of each --driver, {len(options.driver)} here"
        )
    if options.wavelengths < 0 or (
        options.wavelengths and not any(family(driver).spectral for driver in options.driver or ())
    ):
        parser.error("--wavelengths is a number above 0, for a --driver that routes spectrum")
    options.ports = options.ports or (2 if options.look_ahead else len(options.driver or ()) or 4)
    try:
        options.electrical = tuple(parse(text) for text in options.electrical)
        if not (sum(spec.ports for spec in options.electrical) <= 8 and options.rack >= 1):
            parser.error("at most 8 ports by --electrical, and racks of 1 host or more")
        kinds = [family(driver) for driver in options.driver or ()]
        options.hosts = options.hosts or (
            6
            if options.ring
            else min(8, *map(most_hosts, kinds))
            if kinds
            else 6
            if options.look_ahead
            else 12
        )
        if not (1 <= options.hosts <= MAX_HOSTS and 1 <= options.ports <= 8):
            parser.error("1 to 250 hosts with 1 to 8 ports each")
        if options.ring:
            message = write_ring(options)
        elif kinds:
            message = write_families(kinds, options)
        else:
            message = write_lookahead(options) if options.look_ahead else write_default(options)
    except ValueError as problem:
        parser.error(str(problem))
    testbed = f"testbed --inventory {shlex.quote(str(options.out))}"
    print(
        f"{options.out}: {message}\nnext: {testbed} up --topology PLAN, which starts the lab, or {testbed} lab start"
    )
    return 0


def rate_of(text: str) -> float:
    """A rate as `--rate-mbps` has it; a whole number is written as one. Raises: ValueError."""
    rate = float(text)
    if not 0 <= rate < float("inf"):
        raise ValueError(text)
    return int(rate) if rate.is_integer() else rate


def line_of(text: str) -> tuple[int, float, int, float, float]:
    """A line as `--line` has it: port, milliseconds, packets, the share that is lost, and Mb/s, 0
    for the port's. Raises: ValueError.
    """
    port, *tokens = text.split(":")
    if len(tokens) not in (2, 3, 4):
        raise ValueError(
            f"--line {text}: wanted PORT:MS:PACKETS[:LOST[:MBPS]], such as 1:20:16, 1:20:16:0.01 or 1:20:16:0:10"
        )
    delay, packets, lost, rate = [*tokens, "0", "0"][:4]
    return int(port), float(delay), int(packets), float(lost), float(rate)


def queue_of(text: str | None) -> tuple[int, str] | None:
    """A queue as `--queue` has it: kB, and how uplinks are shared. Raises: ValueError."""
    if text is None:
        return None
    kb, _, share = text.partition(":")
    if (
        not kb.isdecimal()
        or not LEAST_QUEUE_KB <= int(kb) <= MOST_QUEUE_KB
        or share not in ("", "fifo", "job")
    ):
        raise ValueError(
            f"--queue {text}: wanted KB, KB:fifo or KB:job, with KB from {LEAST_QUEUE_KB} to {MOST_QUEUE_KB}"
        )
    return int(kb), share or "fifo"


def partition_of(text: str) -> tuple[str, tuple[int, ...], float]:
    """A partition as `--partition` has it: its name, its lanes, and its share of a port, 0 without
    one. Raises: ValueError.
    """
    found = re.fullmatch(r"([a-z][a-z0-9]*):(\d{1,2}(?:,\d{1,2})*)(?::(0\.\d{1,3}|1))?", text)
    if found is None:
        raise ValueError(
            f"--partition {text}: wanted NAME:LANES or NAME:LANES:SHARE, such as a:0,1:0.5"
        )
    return found[1], tuple(map(int, found[2].split(","))), float(found[3] or 0)


def write_default(options: argparse.Namespace) -> str:
    """Write a lab of Polatis and Calient switches; return what it has."""
    controls = sum(spec.controls(options.hosts) for spec in options.electrical)
    if options.free_ports:
        counts = (options.hosts, options.ports, controls, options.hosts if options.bmc else 0)
        free = iter(free_ports(sum(counts)))
        ssh, devices, control_ports, bmcs = (tuple(islice(free, count)) for count in counts)
    else:
        ssh = tuple(options.port_base + n for n in range(1, options.hosts + 1))
        control_ports = tuple(range(FIRST_CONTROL_PORT, FIRST_CONTROL_PORT + controls))
        bmcs = tuple(BMC_PORT_BASE + n for n in range(1, options.hosts + 1) if options.bmc)
        base = options.device_port_base
        devices = tuple(
            (base if base is not None else 25_000 if is_polatis(k, options.ports) else 23_080) + k
            for k in range(1, options.ports + 1)
        )
    wanted = Wanted(
        ssh,
        devices,
        _state(options, options.name),
        0.05 if options.settle_s is None else options.settle_s,
        options.rate_mbps,
        lab=options.name,
        electrical=options.electrical,
        rack=options.rack,
        control_ports=control_ports,
        lines=tuple(map(line_of, options.line)),
        queue=queue_of(options.queue),
        partitions=tuple(map(partition_of, options.partition)),
        bmc_ports=bmcs,
    )
    generate(options.out, wanted)
    ports_of = sum(spec.ports for spec in options.electrical)
    switches = f", {ports_of} electrical ports a host" if options.electrical else ""
    return f"{options.hosts} hosts, {options.hosts * options.ports} fibres, {options.ports} devices{switches}"


def write_families(kinds: Sequence[Family], options: argparse.Namespace) -> str:
    """Write a lab of one family, or of several; return what it has. Raises ValueError: it cannot be
    wired.
    """
    hosts, total = options.hosts, options.ports
    wanted = _wanted(options, total)
    write(options, wanted, texts_of(kinds if len(kinds) > 1 else [*kinds] * total, wanted))
    return f"{hosts} hosts, {hosts * total} fibres, {total} devices"


def write_ring(options: argparse.Namespace) -> str:
    """Write a ring of wavelength-selective switches; return what it has. Raises ValueError: it
    cannot be.
    """
    hosts, total = options.hosts, 2 * options.hosts
    wanted = _wanted(options, total)
    write(options, wanted, texts_of_ring(family(options.driver[0]), wanted))
    return f"{hosts} hosts, {hosts * options.ports} fibres, {2 * total} trunks, {total} devices"


def write_lookahead(options: argparse.Namespace) -> str:
    """Write a lab with a patch panel behind 1x2 switches; return what it has. Raises ValueError:
    too many host ports.
    """
    wanted = _wanted(options, 2)
    write(options, wanted, texts_of_lookahead(wanted, options.ports))
    fibres = options.hosts * options.ports
    return f"{options.hosts} hosts, {fibres} fibres, {4 * fibres} trunks, 2 devices"


def _wanted(options: argparse.Namespace, total: int) -> Wanted:
    """The lab that the options describe, of `total` devices, named after its directory."""
    hosts, name = options.hosts, options.out.name
    if options.free_ports:
        ports = free_ports(hosts + total)
        ssh, devices = ports[:hosts], ports[hosts:]
    else:
        ssh = tuple(options.port_base + n for n in range(1, hosts + 1))
        base = 26_000 if options.device_port_base is None else options.device_port_base
        devices = tuple(base + k for k in range(1, total + 1))
    settle_s, waves = options.settle_s or 0.0, options.wavelengths
    state, rate = _state(options, name), options.rate_mbps
    return Wanted(ssh, devices, state, settle_s, rate, lab=name, wavelengths=waves)


def _state(options: argparse.Namespace, name: str) -> str:
    return options.state or f"{DEFAULT_STATE.rpartition('/')[0]}/{name}"


def write(options: argparse.Namespace, wanted: Wanted, texts: Mapping[str, str]) -> None:
    """Write these files and hosts.yml."""
    options.out.mkdir(parents=True, exist_ok=True)
    for name, text in {"hosts.yml": hosts_yml(wanted, options.ports), **texts}.items():
        (options.out / name).write_text(text)
