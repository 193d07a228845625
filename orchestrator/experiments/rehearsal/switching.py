"""How long the devices of a lab take to switch: as its journals measured it, else by data sheet."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import median

from optics import Change, DeviceName, Traits
from orchestrator.inventory.lab import Lab
from orchestrator.settings import Settings
from orchestrator.store.keys import key_of
from orchestrator.store.store import Store
from orchestrator.telemetry.reader import read_points

RUNS, SAMPLES = 60, 9
"""The latest runs of the lab whose journals are read, and the latest measurements of each device
that count.
"""


@dataclass(frozen=True, slots=True)
class Switching:
    """How long a device takes for one command (s, of this lab), its own overhead and that of its
    driver included.

    samples: how many measurements that is the median of; 0: it is the data sheet's time, without
    the overhead.
    """

    seconds: float
    samples: int = 0

    def __str__(self) -> str:
        source = (
            f"measured in {self.samples} change{'s' * (self.samples != 1)}"
            if self.samples
            else "by data sheet"
        )
        return f"{self.seconds * 1e3:.4g} ms, {source}"


def commands(moves: int, traits: Traits) -> int:
    """How many commands one after the other that many settings take."""
    return max(1, ceil(moves / traits.at_once)) if traits.at_once else 1


def moves_of(change: Change) -> int:
    return len(change.remove) + len(change.add)


def switching(
    lab: Lab, store: Store, settings: Settings, changes: Mapping[DeviceName, Change]
) -> Mapping[DeviceName, Switching]:
    """The switching time of every device, from the dark times in the journals of the lab's latest
    changes.

    Mirrors may take longer in large sets: changes about as large as the one in `changes` count, if
    there were any.
    """
    found: dict[DeviceName, list[tuple[int, float]]] = defaultdict(list)
    for run in store.history(key_of(lab), RUNS):
        if run.status != "ok":
            continue
        for point in read_points(settings.run_dir(run.id), ("reconfig_device",)):
            name, fields = point.tags["device"], point.fields
            if (
                name not in lab.devices
                or point.tags["model"] != lab.devices[name].driver
                or fields.get("error")
            ):
                continue
            begin, end, ports = (
                fields.get(key) for key in ("t_dark_begin_ns", "t_dark_end_ns", "n_ports")
            )
            if (
                isinstance(begin, int)
                and isinstance(end, int)
                and isinstance(ports, int)
                and end > begin
            ):
                found[name].append(
                    (ports // 2, (end - begin) / 1e9 / commands(ports // 2, lab.traits_of(name)))
                )
    return {
        name: _typical(found[name], changes.get(name), lab.traits_of(name)) for name in lab.devices
    }


def _typical(
    found: Sequence[tuple[int, float]], change: Change | None, traits: Traits
) -> Switching:
    """The median of (moves, seconds per command), the latest first, of changes like this one."""
    wanted = moves_of(change) if change is not None else 0
    alike = [seconds for moves, seconds in found if wanted / 2 <= moves <= 2 * wanted]
    chosen = (alike or [seconds for _, seconds in found])[:SAMPLES]
    return Switching(median(chosen), len(chosen)) if chosen else Switching(traits.settle_s)
