"""Hosts made ready before a plan needs them, and what Ansible is given of each of them by the role
`optical.testbed.host`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optics import BadFile, HostName, Usage
from orchestrator.change.locking import holding
from orchestrator.files.reading import text_of
from orchestrator.hosts import Provisioned, facts
from orchestrator.hosts.openssh import find_host
from orchestrator.inventory.ansible import read_inventory
from orchestrator.inventory.lab import Lab
from orchestrator.inventory.positions import Problems
from orchestrator.inventory.yaml_reader import read_yaml
from orchestrator.results import JsonReport
from orchestrator.session import Command, load_lab
from orchestrator.store.scope import read_scope


@dataclass(frozen=True, slots=True)
class ProvisionReport(JsonReport):
    """What was changed on each host."""

    lab: str
    hosts: Mapping[HostName, Provisioned]


async def provision(command: Command, limit: Collection[HostName] = ()) -> ProvisionReport:
    """Install the agent and the programs of jobs, as `up` does, on these hosts; on all if none is
    named.

    Raises: Missing - no such host. Locked - another run has one. Unreachable, Refused - names each
    host that failed.
    """
    lab = load_lab(command.inventory)
    names = named_machines(lab, limit)
    async with (
        command.opened(lab, "provision") as session,
        holding(lab, command, read_scope(lab, names), "host provision"),
    ):
        return ProvisionReport(lab.name, await session.hosts.provision(names))


def named_machines(lab: Lab, limit: Collection[HostName]) -> list[HostName]:
    """The machines of these hosts, once each; of all if none is named. Raises: Missing - no such
    host.
    """
    named = [find_host(name, dict(lab.hosts)).machine for name in limit]
    return list(dict.fromkeys(named or (host.machine for host in lab.hosts.values())))


def variables(
    inventory: Path, limit: Collection[HostName], archive: Path | None = None
) -> dict[str, Any]:
    """What the role is given: facts of hosts, digests, and the file with the agent and the programs
    of jobs, which is written.

    Raises: BadFile. Missing - no such host. Usage - the file cannot be written.
    """
    lab = load_lab(inventory)
    found = {
        "hosts": {name: facts.facts(lab.hosts[name]) for name in named_machines(lab, limit)},
        "archive_digest": facts.archive_digest(),
        "programs_digest": facts.program_digest(),
    }
    if archive is None:
        return found
    try:
        # another process may write it at the same time
        fd, part = tempfile.mkstemp(dir=archive.parent, prefix=archive.name)
        with os.fdopen(fd, "wb") as file:
            file.write(facts.archive())
        Path(part).replace(archive)
    except OSError as error:
        raise Usage(
            f"{archive}: {error.strerror or error}; it is to get the agent and the programs of jobs"
        ) from error
    return found | {"archive": str(archive.resolve())}


def for_ansible(
    inventory: Path, folder: Path, known: Mapping[HostName, Mapping[str, Any]]
) -> dict[str, Any]:
    """As `variables`, of all hosts, with the archive in `folder`. known: the variables of each
    host, as Ansible has them.

    Raises: BadFile - one of them is not what hosts.yml says: `up` would read that, and install
    something else.
    """
    found = variables(inventory, (), folder / f"testbed-{facts.archive_digest()[:16]}.tar.gz")
    file = inventory / "hosts.yml"
    document = read_yaml(text_of(file), str(file))
    problems = Problems(document)
    written = {name: entry.variables for name, entry in read_inventory(document, problems).items()}
    wrong = [
        f"{name}: {key} is {str(value)[:60]!r} for Ansible, and {str(written[name].get(key, 'not set'))[:60]!r} in {file}"
        for name in found["hosts"]
        for key, value in sorted(known.get(name, {}).items())
        if key.startswith("testbed_")
        and key != "testbed_bmc"  # nothing is installed by it, and Ansible has its vault opened
        and value != written[name].get(key)
        and "{{" not in str(written[name].get(key))
    ]
    if wrong:
        raise BadFile(
            wrong, hint="set it in hosts.yml alone: `up` does not see -e, group_vars and host_vars"
        )
    return found
