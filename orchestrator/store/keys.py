"""The keys under which the store keeps a lab and an owner's tenancy of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from orchestrator.inventory.lab import Lab
from orchestrator.settings import Settings


def lab_key(name: str, addresses: Iterable[str]) -> str:
    """The key of a lab, from its devices' addresses: two copies of an inventory are one lab, two
    labs of one name are two.
    """
    safe = "".join(c if c.isalnum() or c in "-_" else "-" for c in name) or "lab"
    return f"{safe}-{hashlib.sha256(chr(10).join(sorted(addresses)).encode()).hexdigest()[:8]}"


def tenancy_key(lab: str, owner: str) -> str:
    """The key of an owner's part of a lab: the current plan, the owned circuits and the jobs are
    stored under it.
    """
    return f"{lab}/{owner}"


def lab_of(key: str) -> str:
    """The key of the lab that a tenancy is part of."""
    return key.partition("/")[0]


def owner_of(key: str) -> str:
    """The owner of a tenancy."""
    return key.partition("/")[2]


def key_of(lab: Lab) -> str:
    """The key of this lab in the store and the lock directory."""
    return lab_key(lab.name, (d.address for d in lab.devices.values()))


def tenancy_of(lab: Lab, settings: Settings) -> str:
    """The key of the chosen owner's plan, circuits and jobs on this lab in the store."""
    return tenancy_key(key_of(lab), settings.owner or settings.user)
