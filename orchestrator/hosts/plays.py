"""Plays of Ansible on the hosts of a lab, one after the other, and what agents print in them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from optics import Garbled, HostName
from orchestrator.credentials import withheld
from orchestrator.hosts.channel import refusal
from orchestrator.hosts.facts import own_agent
from orchestrator.hosts.failures import one_error
from orchestrator.hosts.runner import Ansible, Play
from orchestrator.inventory.lab import Lab


class Plays:
    """Ansible, for what takes its time. inventory: the directory with hosts.yml. artefacts: where
    its output goes.

    at_once: so many processes of Ansible.
    """

    def __init__(self, lab: Lab, inventory: Path, artefacts: Path, at_once: int) -> None:
        self.lab, self.inventory, self.artefacts = lab, inventory, artefacts
        self._ansible = Ansible(inventory, artefacts, withheld(lab), at_once)
        # a play, and the end
        self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="plays")
        self._playing = asyncio.Lock()

    async def close(self) -> None:
        """Close Ansible's connections."""
        await asyncio.get_running_loop().run_in_executor(self._threads, self._ansible.close)
        self._threads.shutdown(wait=False)

    def expect(self, playbook: str) -> None:
        """Have Ansible start now, for a play that is likely to come. Raises: Missing - it is not
        installed.
        """
        self._ansible.expect(playbook)

    async def play(
        self, playbook: str, names: Collection[HostName], variables: Mapping[str, Any]
    ) -> Play:
        """Run a playbook on these hosts. variables: a mapping is by host, anything else is the same
        for all.

        Raises: as `Ansible.play`; one error that names each host which failed.
        """
        play = Play()
        async with self._playing:
            for hosts in self._on_machines(names):
                machines = {name: machine for machine, name in hosts.items()}
                given = {key: _renamed(value, machines) for key, value in variables.items()}
                run = partial(self._ansible.play, playbook, list(hosts), given)
                playing = asyncio.get_running_loop().run_in_executor(self._threads, run)
                try:
                    done = await asyncio.shield(playing)
                # it goes on: whoever comes next is to find what it leaves, and not before it does
                except asyncio.CancelledError:
                    await asyncio.wait([playing])
                    raise
                play.reported |= _renamed(done.reported, hosts)
                play.failed |= _renamed(done.failed, hosts)
        if play.failed:
            raise one_error(play.failed, len(names) - len(play.failed))
        return play

    def agents(self, names: Collection[HostName]) -> dict[HostName, str]:
        """What the command to each host's agent begins with."""
        return {name: own_agent(self.lab.hosts[name]) for name in names}

    def _on_machines(self, names: Collection[HostName]) -> Iterator[dict[HostName, HostName]]:
        """The hosts by the names of their machines, which Ansible knows; more than once where
        several are partitions of one machine.
        """
        rounds: list[dict[HostName, HostName]] = [{}]
        for name in names:
            machine = self.lab.hosts[name].machine
            if all(machine in each for each in rounds):
                rounds.append({})
            next(each for each in rounds if machine not in each)[machine] = name
        yield from rounds


def _renamed(value: Any, by: Mapping[HostName, HostName]) -> Any:
    """A mapping by host with other names of the hosts, without those that have none; anything else
    as it is.
    """
    return (
        {by[name]: each for name, each in value.items() if name in by}
        if isinstance(value, Mapping)
        else value
    )


def lines(host: HostName, text: str, count: int) -> list[dict[str, Any]]:
    """The JSON lines that an agent printed. Raises: Garbled - not that many. Refused - one of them
    is a refusal.
    """
    try:
        found = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    except ValueError:
        found = []
    for values in found:
        if not values.get("ok", True):
            raise refusal(host, values)
    if len(found) != count:
        raise Garbled(
            f"{host}: its agent printed {text[:300]!r} where {count} lines of JSON were wanted"
        )
    return found
