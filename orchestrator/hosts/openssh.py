"""OpenSSH's own client with the inventory's parameters, for a shell or a command on a host.
Commands are passed on as typed.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

from optics import HostName, Missing, TimedOut
from orchestrator.hosts import ssh
from orchestrator.inventory.hosts import Host

CONNECT_S = 10.0
"""How long the host may take to accept the connection (s)."""
FAILED = 255
"""What ssh(1) ends with when it, and not the remote command, failed; a remote command may end with
it as well.
"""


def arguments(host: Host) -> list[str]:
    """The command that reaches the host as Ansible does: address, port, user, key, and the `-o`
    options of its SSH arguments.
    """
    target = host.ssh
    options = {
        "BatchMode": "yes",
        "ConnectTimeout": f"{CONNECT_S:.0f}",
        "StrictHostKeyChecking": "yes",
        **target.options,
    }
    if target.known_hosts:
        options["UserKnownHostsFile"] = f'"{Path(target.known_hosts).expanduser()}"'
    tokens = ["ssh", "-p", str(target.port)]
    if target.user:
        tokens += ["-l", target.user]
    if target.key_file:
        tokens += ["-i", str(Path(target.key_file).expanduser())]
        options.setdefault("IdentitiesOnly", "yes")
    for name, value in options.items():
        tokens += ["-o", f"{name}={value}"]
    return [*tokens, target.address]


def remote(command: Sequence[str]) -> str:
    """The command line for the host's shell: a single word is passed as it is, several are quoted
    so that they stay separate.
    """
    return command[0] if len(command) == 1 else shlex.join(command)


def run(
    host: Host, command: Sequence[str], *, capture: bool = False, timeout_s: float | None = None
) -> tuple[int, str, str]:
    """Run a command on the host, or with none its login shell; return its exit code and, if
    captured, what it printed.

    Raises: Missing - there is no ssh here. Unreachable - nothing was run. TimedOut - not finished
    after `timeout_s` (s), perhaps still running there.
    """
    tokens = [*arguments(host), *(["--", remote(command)] if command else [])]
    try:
        ended = subprocess.run(tokens, capture_output=capture, timeout=timeout_s, check=False)
    except FileNotFoundError:
        raise Missing(
            "the program ssh is not installed", hint="apt-get install openssh-client"
        ) from None
    except subprocess.TimeoutExpired:
        raise TimedOut(
            f"{host.name}: not finished after {timeout_s:g} s; it may still run there"
        ) from None
    if ended.returncode == FAILED:
        check_login(host)
    code = ended.returncode if ended.returncode >= 0 else 128 - ended.returncode
    out, err = ((piece or b"").decode("utf-8", "replace") for piece in (ended.stdout, ended.stderr))
    return code, out, err


def check_login(host: Host) -> None:
    """Log in and out. Raises: Unreachable - why that fails, and what to do."""
    transport = ssh.connect(host.name, host.ssh, CONNECT_S)
    transport.close()
    transport.join(1.0)


def find_host(name: str, hosts: dict[HostName, Host]) -> Host:
    """The host of this name. Raises: Missing - the inventory has none, with the nearest one."""
    from optics.plain import did_you_mean, summary

    if name not in hosts:
        raise Missing(
            f"{name} is no host of this lab ({summary(hosts, 'host')}){did_you_mean(name, hosts)}",
            hint="testbed status",
        )
    return hosts[name]
