"""Hosts that a packet switch joins, too: it reaches every host that has power."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.sim import lab
from tests.sim.agents import Agent
from tests.sim.jobhosts import JobWorld
from tests.sim.kernel import Nic
from tests.sim.packets import Packets, SimProbes
from tests.sim.seams import mac_bytes

AT = 5
"""The port of each host at the packet switch."""


class Switched(Packets):
    """Also packets over the packet switch."""

    def arrival(self, port: str, mac: bytes) -> str:
        if not port.endswith(f":p{AT}"):
            return super().arrival(port, mac)
        hosts = self.world.hosts.values()
        return next(
            (
                f"{host.name}:p{AT}"
                for host in hosts
                if host.power and mac_bytes(self.nic(host).mac) == mac
            ),
            "",
        )

    @staticmethod
    def nic(host: Any) -> Nic:
        found: Nic = host.kernel.nics[host.ports[AT]]
        return found


class SwitchedWorld(JobWorld):
    """count: of hosts. racks: leaf switches and their uplinks, as the inventory has them."""

    count, racks = 4, ""

    async def start(self, judges: Any) -> None:
        def with_switch(folder: Path, ports: Any) -> None:
            inventory(folder, ports)
            hosts, last = folder / "hosts.yml", "{interface: opt4}"
            hosts.write_text(
                hosts.read_text().replace(last, f"{last}, {AT}: {{interface: opt{AT}}}")
            )
            names = ", ".join(f'"gpu{host:02d}:p{AT}"' for host in range(1, self.count + 1))
            with (folder / "fibres.yml").open("a") as file:
                file.write(
                    f"segments:\n  - {{name: packets, link_mbps: 100, ports: [{names}]{self.racks}}}\n"
                )

        inventory = lab.inventory
        with patch.object(lab, "inventory", with_switch), patch.object(lab, "HOSTS", self.count):
            await super().start(judges)
        for host in self.hosts.values():
            host.sees(AT, True)

    @property
    def packets(self) -> Packets:
        if self._packets is None:
            self._packets = Switched(self)
        return self._packets

    def loaded(self, agent: Agent) -> None:
        super().loaded(agent)
        agent.probes = SimProbes(agent, self.packets)

    def links_of(self, row: sqlite3.Row) -> list[tuple[str, str]]:
        ends = [(f"{a}:p{p}", f"{b}:p{q}") for a, p, b, q, _ in json.loads(row["up"])["links"]]
        return [link for link in ends if set(link) <= self.cables.keys()]
