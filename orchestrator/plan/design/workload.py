"""The text of a workload file as a demand, and the same on another number of hosts. Pure."""

from __future__ import annotations

import hashlib
import json

from optics import BadFile
from orchestrator.inventory.positions import Problems
from orchestrator.inventory.schema import check
from orchestrator.inventory.yaml_reader import read_yaml
from orchestrator.plan.design.design import Read
from planner.model.workload import Workload, demand


def read_text(text: str, name: str) -> Read:
    """Read a workload. name: of the file, for messages. Raises: BadFile - everything wrong with it;
    Infeasible - it cannot be.
    """
    document = read_yaml(text, name)
    problems = Problems(document)
    found = check(Workload, document.value, problems)
    if found is None:
        raise BadFile(problems.lines(), hint="examples/workloads/ has files to start from")
    return Read(found, demand(found), hashlib.sha256(text.encode()).hexdigest())


def on_hosts(text: str, name: str, hosts: int | None) -> tuple[Read, str]:
    """The workload with as many ranks as fill `hosts`, None for its own, and its text. Raises: as
    `read_text`.
    """
    read = read_text(text, name)
    if hosts is None or hosts == read.workload.hosts:
        return read, text
    ranks = hosts * read.workload.ranks_per_host
    # JSON is YAML
    again = json.dumps(dict(read_yaml(text, name).value) | {"ranks": ranks}, indent=1)
    return read_text(again, f"{name} with {ranks} ranks"), again
