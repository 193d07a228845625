"""Hosts whose agent has died: where none runs, nobody says which routes do."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from optics import HostName, TestbedError
from orchestrator.hosts import Hello, Hosts


async def with_agents(
    hosts: Hosts, answers: Mapping[HostName, Hello | TestbedError], names: Collection[HostName]
) -> Mapping[HostName, Hello | TestbedError]:
    """The answers of hosts once an agent runs on those of `names` that answered and ran none; an
    error where it does not start.
    """
    without = [
        host
        for host in sorted(names)
        if isinstance(hello := answers.get(host), Hello) and not hello.installed
    ]
    if not without:
        return answers
    try:
        await hosts.provision(without)
        return {**answers, **await hosts.channels.connect(without)}
    except TestbedError as error:
        return {**answers, **dict.fromkeys(without, error)}
