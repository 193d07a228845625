"""Where the inventory keeps the password of a device or of a host's BMC."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from orchestrator.inventory.edges import LoginEdge
from orchestrator.inventory.positions import Path, Problems

VAULT_HEADER = "$ANSIBLE_VAULT;"


@dataclass(frozen=True, slots=True)
class Secret:
    """The place of a password: an environment variable, a file, or vault text, which `name` then
    holds.

    The lab has only the reference; `orchestrator.credentials` reads the password.
    """

    kind: Literal["env", "file", "vault"]
    name: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Bmc:
    """The management controller of a host, which answers by Redfish while the host does not.

    password: as the inventory has it, empty where `secret` says where it is. ca_file: certificates
    to trust instead of the system's. system: which of several computers behind it the host is.
    """

    address: str
    username: str
    password: str = field(repr=False)
    secret: Secret | None
    ca_file: str
    system: str
    timeout_s: float


def secret_of(login: LoginEdge, path: Path, problems: Problems) -> Secret | None:
    """The place of its password, None: it has none, or has it in clear. A second one is a problem
    at `path`.
    """
    given = [key for key in ("password", "password_env", "password_file") if getattr(login, key)]
    if len(given) > 1:
        problems.add((*path, given[1]), f"the password is already given by {given[0]}", key=True)
    if login.password_env:
        return Secret("env", login.password_env)
    if login.password_file:
        return Secret("file", login.password_file)
    if login.password.startswith(VAULT_HEADER):
        return Secret("vault", login.password)
    return None
