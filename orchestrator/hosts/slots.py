"""Schedules of slots over the channels: loaded on the agents, notified which slot it is,
dropped."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from optics import HostName, TestbedError
from orchestrator.hosts.channels import Channels


class HostSlots:
    """The schedules of all hosts; docs/reference/agent.md says what each operation does on a
    host.
    """

    def __init__(self, channels: Channels) -> None:
        self.channels = channels

    async def load(self, requests: Mapping[HostName, Mapping[str, Any]]) -> None:
        """Load a schedule on each host; its generations are staged already. Nothing changes before
        the first tick.
        """
        await self.channels.ask(requests, "slots.load", 15.0)

    async def load_networks(self, requests: Mapping[HostName, Mapping[str, Any]]) -> None:
        """Have each host keep a TCP window for each of two networks. Raises: Refused - its kernel
        cannot, and what it lacks.
        """
        await self.channels.ask(requests, "networks.load", 15.0)

    async def tick(
        self,
        names: Collection[HostName],
        count: int,
        ends_s: float | None,
        lease_s: float,
        timeout_s: float,
    ) -> Mapping[HostName, TestbedError]:
        """Tell hosts which slot it is, in how long (s) it ends, and how long the scheduler counts
        as alive; return the failures.
        """
        fields = {"count": count, "ends_s": ends_s, "lease_s": lease_s}
        return await self.channels.failures(names, "slots.tick", fields, timeout_s)

    async def change_slot(
        self, names: Collection[HostName], count: int, timeout_s: float
    ) -> Mapping[HostName, TestbedError]:
        """End the slot `count` now on these hosts; return the failures."""
        return await self.channels.failures(names, "slots.change", {"count": count}, timeout_s)

    async def stop(
        self, names: Collection[HostName], timeout_s: float = 5.0
    ) -> Mapping[HostName, TestbedError]:
        """Drop the schedule; the hosts stay in the slot where they are. Return the failures."""
        return await self.channels.failures(names, "slots.stop", {}, timeout_s)

    async def states(self, names: Collection[HostName]) -> Mapping[HostName, Mapping[str, Any]]:
        """What each host says of its schedule."""
        return await self.channels.ask_all(names, "slots", {})
