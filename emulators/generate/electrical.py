"""The packet switches of a generated lab: which hosts they join, at what rates, as written in
fibres.yml.

A specification is KIND[:NUMBER][@MBPS][+FUNCTION...]. `ideal`: one switch. `fat-tree`: racks whose
uplinks carry all that their hosts can send; `oversubscribed:F`: 1/F of it. `domains:K`: a switch
for every K hosts in a row. `rails:K`: a switch for all hosts at the same of K places. Each takes
one port of every host. `dual:K`: two fat-trees (planes) side by side, whose leaf switches have K
hosts each; it takes two ports of every host, so that each is at two leaf switches. `+aggregate`,
`+cache`: what the switches can do with packets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

KINDS = ("ideal", "fat-tree", "oversubscribed", "domains", "rails", "dual")
UNSHAPED_MBPS = 25_000
PORT_QUEUE_KB = 512
"""Of a port (`switches.QUEUE_BYTES`), and so of an uplink: one that had the queues of all hosts
behind it would hold seconds.
"""
FUNCTIONS = {
    "aggregate": "{slots: 64, slot_bytes: 8192, jobs: 2}",
    "cache": "{entries: 1024, entry_bytes: 1024}",
}
MOST_MBPS = 10_000_000
"""The highest rate an inventory accepts for a port or an uplink."""


@dataclass(frozen=True, slots=True)
class Electrical:
    """One specification. number: the factor of an oversubscribed tree, the K of the others. mbps: 0
    where it names none.

    functions: of its switches, by name.
    """

    kind: str
    number: float = 0.0
    mbps: float = 0.0
    functions: tuple[str, ...] = ()

    @property
    def ports(self) -> int:
        """Ports of every host that it takes."""
        return 2 if self.kind == "dual" else 1

    def controls(self, hosts: int) -> int:
        """How many of its switches have functions, and so a port where they are controlled."""
        several = {
            "domains": hosts // max(1, int(self.number)),
            "rails": int(self.number),
            "dual": 2,
        }
        return several.get(self.kind, 1) if self.functions else 0


def parse(text: str) -> Electrical:
    """Read a specification. Raises ValueError: the problem, and a correct form."""
    text, *functions = text.split("+")
    if unknown := [name for name in functions if name not in FUNCTIONS]:
        raise ValueError(
            f"{text}: no function {unknown[0]!r}: wanted {' or '.join(f'+{name}' for name in FUNCTIONS)}"
        )
    found = re.fullmatch(r"([a-z-]+)(?::(\d+(?:\.\d+)?))?(?:@(\d+(?:\.\d+)?))?", text)
    if found is None or found[1] not in KINDS:
        raise ValueError(
            f"{text!r}: wanted ideal, fat-tree, oversubscribed:4, domains:2, rails:2 or dual:4, each perhaps with @MBPS"
        )
    kind, number, mbps = found[1], float(found[2] or 0), float(found[3] or 0)
    if (number > 0) != (kind not in ("ideal", "fat-tree")):
        raise ValueError(
            f"{text!r}: {kind} takes {'no number' if number else 'a number, such as ' + kind + ':2'}"
        )
    if kind == "oversubscribed" and number < 1:
        raise ValueError(
            f"{text!r}: an uplink of more than all hosts is no oversubscription: wanted 1 or more"
        )
    if kind in ("domains", "rails", "dual") and number != int(number):
        raise ValueError(f"{text!r}: {kind} of {number:g} hosts: wanted a whole number")
    if found[3] and not mbps:
        raise ValueError(f"{text!r}: a rate of 0 Mb/s carries nothing")
    return Electrical(kind, number, mbps, tuple(dict.fromkeys(functions)))


def segments(
    specs: Sequence[Electrical],
    hosts: Sequence[str],
    first_port: int,
    default_mbps: float,
    rack: int,
    controls: Sequence[int] = (),
    queue: tuple[int, str] | None = None,
) -> list[str]:
    """The lines of fibres.yml. default_mbps: of all ports of a specification that names no rate;
    rack: hosts of a leaf switch.

    controls: loopback ports, one for each switch that has functions. queue: of every segment, kB
    and how those with racks share; None: of those with racks, as a port has it.

    Raises ValueError: domains or rails that the hosts do not divide into, or of a single host; a
    rate that no inventory accepts.
    """
    lines = [
        "# Packet switches: a port of every host listed, all joined. uplink_mbps: of a rack, per direction.",
        "segments:",
    ]
    used: dict[str, int] = {}
    port, control = first_port, iter(controls)
    for spec in specs:
        mbps = _rate(spec.mbps or default_mbps / spec.ports or UNSHAPED_MBPS, "a port")
        used[spec.kind] = used.get(spec.kind, 0) + 1
        again = f"-{used[spec.kind]}" if used[spec.kind] > 1 else ""
        for name, members, place in _parts(spec, hosts, again):
            ports = ", ".join(f'"{host}:p{port + place}"' for host in members)
            lines.append(f"  - {{name: {name}, link_mbps: {mbps:.10g}, ports: [{ports}]")
            if racked := spec.kind in ("fat-tree", "oversubscribed", "dual"):
                size, factor = (
                    (int(spec.number), 1.0) if spec.kind == "dual" else (rack, spec.number or 1.0)
                )
                racks = [members[at : at + size] for at in range(0, len(members), size)]
                uplinks = [
                    _rate(len(part) * mbps / factor, f"an uplink of {len(part)} hosts")
                    for part in racks
                ]
                each = (
                    f"{{hosts: [{', '.join(p)}], uplink_mbps: {up:.10g}}}"
                    for p, up in zip(racks, uplinks, strict=True)
                )
                lines[-1] += f",\n     racks: [{', '.join(each)}]"
            if spec.functions:
                functions = ", ".join(
                    f"{function}: {FUNCTIONS[function]}" for function in spec.functions
                )
                lines[-1] += (
                    f",\n     address: 127.0.0.1:{next(control)}, functions: {{{functions}}}"
                )
            if queue or racked:
                kb, share = queue or (PORT_QUEUE_KB, "fifo")
                lines[-1] += f",\n     queue: {{kb: {kb}, share: {share if racked else 'fifo'}}}"
            lines[-1] += "}"
        port += spec.ports
    return lines


def _rate(mbps: float, what: str) -> float:
    """Round a rate as it is written (Mb/s). Raises ValueError: it is not a rate, or more than an
    inventory accepts.
    """
    if not 0 < (rounded := round(mbps, 3)) <= MOST_MBPS:
        raise ValueError(
            f"{what} of {mbps:g} Mb/s: wanted more than 0 and no more than {MOST_MBPS}"
        )
    return rounded


def _parts(
    spec: Electrical, hosts: Sequence[str], again: str
) -> Iterator[tuple[str, Sequence[str], int]]:
    """Yield name and hosts of every segment of a specification, and which of its ports of each host
    it takes, from 0.
    """
    if spec.kind not in ("domains", "rails", "dual"):
        yield spec.kind + again, hosts, 0
        return
    size = int(spec.number)
    if spec.kind == "dual":
        if len(hosts) < 2:
            raise ValueError(f"dual:{size} of a single host: a switch joins two or more")
        yield from ((f"plane{again}{place + 1}", hosts, place) for place in range(spec.ports))
        return
    if (
        len(hosts) % size
        or size < (2 if spec.kind == "domains" else 1)
        or (spec.kind == "rails" and len(hosts) < 2 * size)
    ):
        raise ValueError(
            f"{spec.kind}:{size} do not divide {len(hosts)} hosts into switches of two or more"
        )
    for number in range(len(hosts) // size if spec.kind == "domains" else size):
        part = (
            hosts[number * size : (number + 1) * size]
            if spec.kind == "domains"
            else hosts[number::size]
        )
        yield f"{spec.kind[:-1]}{again}{number + 1}", part, 0
