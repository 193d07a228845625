"""The emulated twin of a lab: a process of its own on free ports, gone with its files when the
rehearsal ends, however it ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from conformance.lab import free_ports, running
from optics import DeviceName, Identity, Missing
from optics.plain import counted
from orchestrator import emulated
from orchestrator.experiments.rehearsal.findings import Event
from orchestrator.experiments.rehearsal.inventory import AccessPaths, texts
from orchestrator.hosts.workplace import Workplace
from orchestrator.inventory.lab import Lab
from orchestrator.session import load_lab
from orchestrator.settings import InfluxSettings, Settings, private_dir

FOLDER = "rehearsals"
HOST_MB, RANK_MB = 25, 150
"""Memory of an emulated host with sshd and agent, and of a rank with torch (twelve of each,
measured: 0.3 GB and 1.8 GB).
"""
MOST_HOSTS = 250
"""Hosts of an emulated lab (`python -m emulators.generate`): their management addresses are of one
/24.
"""


@dataclass(frozen=True, slots=True)
class Twin:
    """A running twin: its directory of inventory files, the lab they describe, and settings under
    which nothing else is touched.
    """

    inventory: Path
    lab: Lab
    settings: Settings

    def ask(self, op: str, **arguments: object) -> dict[str, Any]:
        """One request to the emulated lab itself. Raises: as `emulated.ask`."""
        return emulated.ask(self.inventory, op, emulated.ASK_S, **arguments)

    def history(self, devices: Iterable[DeviceName]) -> dict[DeviceName, list[Event]]:
        """The events at the light path of these devices, as `findings.links_dark` takes them.
        Raises: as `emulated.ask`.
        """
        return {
            name: self.ask("history", device=name)["history"]
            for name in devices
            if name in self.lab.devices
        }


def no_room(hosts: int, running: int, launched: int, meminfo: Path = Path("/proc/meminfo")) -> str:
    """Why this machine bears no twin of so many hosts with the larger of two jobs, in words; empty
    if it does.

    running, launched: ranks of the job that runs, and of the plan's that is launched in its place.
    """
    if hosts > MOST_HOSTS:
        return f"the lab has {hosts} and a twin at most {MOST_HOSTS}"
    ranks = max(running, launched)
    lines = dict(
        line.split(":", 1)
        for line in meminfo.read_text(encoding="ascii").splitlines()
        if ":" in line
    )
    free_mb = int(lines["MemAvailable"].split()[0]) // 1024
    if (wanted := hosts * HOST_MB + ranks * RANK_MB) <= free_mb:
        return ""
    job = f" and {counted(ranks, 'rank')}" if ranks else ""
    less = "; without the job it is less: --no-job" if launched > running else ""
    return f"{counted(hosts, 'host')}{job} take about {wanted} MB, and {free_mb} MB are free here{less}"


@contextmanager
def running_twin(
    lab: Lab,
    identities: Mapping[DeviceName, Identity],
    families: Mapping[str, Mapping[str, Any]],
    settings: Settings,
    *,
    hosts: bool = True,
) -> Iterator[Twin]:
    """Start the twin of `lab` and stop it when the block ends; the kernel stops it if this process
    dies before.

    hosts: false serves the devices alone, which needs no rights.

    Raises: Missing - it does not start; with its own message.
    """
    place = Workplace(private_dir(settings.state_dir / FOLDER))
    folder = place.path
    try:
        for part in ("inventory", "lab"):
            private_dir(folder / part)
        served = [name for name, segment in lab.segments.items() if segment.functions]
        ports = iter(free_ports(len(lab.hosts) + len(lab.devices) + len(served)))
        hosts_at, devices_at, functions_at = (
            {name: next(ports) for name in each} for each in (lab.hosts, lab.devices, served)
        )
        paths = AccessPaths(hosts_at, devices_at, folder / "lab", functions_at)
        for name, text in texts(lab, identities, families, paths).items():
            (folder / "inventory" / name).write_text(text, encoding="utf-8")
        own = replace(
            settings,
            inventory=folder / "inventory",
            data_dir=folder / "data",
            state_dir=folder / "state",
            cache_dir=folder / "cache",
            lock_dir=folder / "locks",
            store=None,
            influx=InfluxSettings(),
        )
        with ExitStack() as stack:
            try:
                stack.enter_context(
                    running(
                        folder / "inventory",
                        "--with-parent",
                        *([] if hosts else ["--devices-only"]),
                    )
                )
            except Missing as error:
                message = str(error).removeprefix("the emulated lab did not start: ")
                missing = "testbed doctor says what this machine lacks"
                alone = (
                    "; testbed plan --rehearse --devices-only needs neither hosts nor rights"
                    if hosts
                    else ""
                )
                raise Missing(f"the twin does not start: {message}", hint=missing + alone) from None
            yield Twin(own.inventory, load_lab(own.inventory), own)
    finally:
        place.close()
