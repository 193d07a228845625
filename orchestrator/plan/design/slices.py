"""Slices of a lab's hosts after failures: which hosts can form one, with optical switches and with
fixed cables. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction

from optics import HostName, Infeasible
from optics.plain import counted, natural
from planner.operate.slices import (
    Machine,
    Sides,
    Slice,
    choices,
    failed_blocks,
    formed,
    probability,
    times,
)


@dataclass(frozen=True)
class Fabric:
    """What is left on one kind of fabric. hosts: of one slice, none if there is none left; choices:
    in how many ways its blocks can be chosen; probabilities: that a slice can still be formed after
    0, 1, 2, ... failures of hosts, those of now not counted."""

    hosts: tuple[HostName, ...]
    choices: int
    probabilities: tuple[Fraction, ...]


@dataclass(frozen=True)
class SliceReport:
    """The slice on hosts in the order of the grid. out: those that failed or are in a block with
    one that did.
    """

    form: Slice
    hosts: tuple[HostName, ...]
    failed: tuple[HostName, ...]
    out: frozenset[HostName]
    reconfigurable: Fabric
    static: Fabric


def slices(
    names: Collection[HostName],
    wanted: Sides,
    grid: Sides = (),
    block: Sides = (),
    failed: Sequence[HostName] = (),
    most: int = 4,
) -> SliceReport:
    """Where a slice can be after failures, and how likely one is after up to `most` of them.

    grid: the machine as a torus of these hosts in natural order; none: sides as equal as they
    divide. block: hosts that a slice takes all or none of, so that they fail together; none: each
    host alone. Raises: Infeasible - the grid is not of these hosts, or there is no such slice.
    """
    hosts = tuple(sorted(names, key=natural))
    sides = grid or _squarest(len(hosts), len(wanted))
    machine = Machine(sides, block or (1,) * len(sides))
    if machine.hosts != len(hosts):
        text = f"a grid of {times(sides)} has {counted(machine.hosts, 'host')}, the lab has {len(hosts)}"
        raise Infeasible(text, hint=f"--grid {times(_squarest(len(hosts), len(sides)))}")
    form = Slice(machine, wanted)
    numbers = [hosts.index(host) for host in failed]
    out = failed_blocks(machine, numbers)

    def fabric(reconfigurable: bool) -> Fabric:
        chosen = formed(form, numbers, reconfigurable=reconfigurable)
        return Fabric(
            tuple(hosts[number] for number in chosen),
            choices(form, numbers, reconfigurable=reconfigurable),
            tuple(
                probability(form, count, reconfigurable=reconfigurable)
                for count in range(min(most, len(hosts)) + 1)
            ),
        )

    lost = frozenset(host for number, host in enumerate(hosts) if machine.block_of(number) in out)
    return SliceReport(form, hosts, tuple(dict.fromkeys(failed)), lost, fabric(True), fabric(False))


def _squarest(count: int, dimensions: int) -> Sides:
    """Sides in ascending order, as equal as `count` divides."""
    if dimensions == 1:
        return (count,)
    side = max(
        side for side in range(1, count + 1) if count % side == 0 and side**dimensions <= count
    )
    return (side, *_squarest(count // side, dimensions - 1))
