"""The hosts of a lab: the channels to their agents, and a part for each thing that they are asked
for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from pathlib import Path

from optics import HostName, Refused
from orchestrator.hosts import facts, render
from orchestrator.hosts.api import Hello, Provisioned
from orchestrator.hosts.channels import Channels
from orchestrator.hosts.failures import one_error
from orchestrator.hosts.jobs import HostJobs
from orchestrator.hosts.measurements import Measurements
from orchestrator.hosts.plays import Plays, lines
from orchestrator.hosts.ring_changes import RingChanges
from orchestrator.hosts.routes import HostRoutes
from orchestrator.hosts.slots import HostSlots
from orchestrator.inventory.lab import Lab
from orchestrator.settings import BOUNDS


class Hosts:
    """All hosts of a lab. `inventory`: the directory with hosts.yml. `artefacts`: for files of
    Ansible and of jobs.

    at_once: as `Channels`, and so many processes of Ansible.
    """

    def __init__(
        self, lab: Lab, inventory: Path, artefacts: Path, at_once: int = BOUNDS.at_once
    ) -> None:
        self.channels = Channels(lab, at_once)
        self._plays = Plays(lab, inventory, artefacts, at_once)
        self.routes = HostRoutes(self.channels, self._plays)
        self.measure = Measurements(self.channels)
        self.ring_changes = RingChanges(self.channels)
        self.slots = HostSlots(self.channels)
        self.jobs = HostJobs(self.channels, self._plays)

    async def __aenter__(self) -> Hosts:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every channel and Ansible's connections. Agents, routes and jobs stay."""
        await asyncio.gather(self._plays.close(), self.channels.close())

    async def provision(
        self, names: Collection[HostName] | None = None
    ) -> Mapping[HostName, Provisioned]:
        """Install and start the agent, apply the host's facts, and attach. Idempotent."""
        names = self.channels.names(names)
        if not names:
            return {}
        # A partition has the facts of its host, whose agent provides for all partitions.
        machines = {
            name: self.channels.lab.hosts[self.channels.lab.hosts[name].machine] for name in names
        }
        payloads = {
            host.name: render.pack(facts.facts(host), host.name) for host in machines.values()
        }
        play = await self._plays.play(
            "install.yml",
            list(payloads),
            {
                "testbed_archive": list(facts.provision_archive()),
                "testbed_archive_digest": facts.archive_digest(),
                "testbed_facts": payloads,
            },
        )
        found = {}
        for name in names:
            done, started = lines(name, play.reported[machines[name].name]["provision"], 2)
            found[name] = Provisioned(
                name, tuple(done["changed"]), tuple(done["notes"]), started["started"]
            )
        failed = {
            name: hello
            for name, hello in (await self.channels.connect(names)).items()
            if not isinstance(hello, Hello)
        }
        failed |= {
            name: Refused(f"{name}: provisioned, but its agent does not answer")
            for name in names
            if name not in failed and not self.channels.hellos[name].installed
        }
        if failed:
            raise one_error(failed, len(names) - len(failed))
        return found
