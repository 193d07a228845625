"""Keys and configuration of the hosts' SSH servers."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SERVER = "/usr/sbin/sshd"


@dataclass(frozen=True, slots=True)
class Keys:
    """The lab's own keys, in OpenSSH form: the one that may log in, and each host's (private,
    public) key.
    """

    client_public: str
    hosts: Mapping[str, tuple[str, str]]


def ensure_keys(state: Path, listeners: Mapping[str, int]) -> Keys:
    """Make the missing keys in `state` and write its known_hosts for the listening socket (host ->
    loopback port).
    """
    return _keys(state, "host_keys", "known_hosts", listeners)


def ensure_device_keys(state: Path, listeners: Mapping[str, int]) -> Keys:
    """Do the same for the devices that are reached over SSH (device -> loopback port):
    known_hosts_devices.
    """
    return _keys(state, "device_keys", "known_hosts_devices", listeners)


def _keys(state: Path, kept: str, known_hosts: str, listeners: Mapping[str, int]) -> Keys:
    _, client = _pair(state / "id_ed25519", "operator of the emulated lab")
    folder = state / kept
    folder.mkdir(mode=0o700, exist_ok=True)
    hosts = {name: _pair(folder / name, name) for name in listeners}
    lines = (
        f"[127.0.0.1]:{port} {' '.join(hosts[name][1].split()[:2])}\n"
        for name, port in listeners.items()
    )
    write_private(state / known_hosts, "".join(lines))
    return Keys(client, hosts)


def write_private(path: Path, text: str) -> None:
    """Write a file only its owner can read, all of it or nothing."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    draft.replace(path)


def _pair(path: Path, comment: str) -> tuple[str, str]:
    public = path.with_name(path.name + ".pub")
    if not (path.exists() and public.exists()):
        # imported here: 50 ms that only the first start pays
        from cryptography.hazmat.primitives import serialization as form
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        key = Ed25519PrivateKey.generate()
        secret = key.private_bytes(
            form.Encoding.PEM, form.PrivateFormat.OpenSSH, form.NoEncryption()
        )
        shown = key.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH)
        write_private(path, secret.decode())
        write_private(public, f"{shown.decode()} {comment}\n")
    return path.read_text(), public.read_text()


def server_config(dilation: float) -> str:
    """sshd_config of every host; the paths are inside the host's own /run. dilation: how many times
    slower hosts compute, which all that runs on them finds in its environment."""
    path = f"{Path(sys.executable).parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return "\n".join(
        (
            "HostKey /run/lab/host_key",
            "AuthorizedKeysFile /run/lab/authorized_keys",
            "PermitRootLogin prohibit-password",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            # the post-quantum default costs a cold connection 80 ms
            "KexAlgorithms curve25519-sha256",
            "UsePAM no",
            "UseDNS no",
            "StrictModes no",
            "PidFile none",
            "PrintMotd no",
            "PrintLastLog no",
            "MaxSessions 100",
            "LogLevel INFO",
            "Subsystem sftp internal-sftp",
            # python3 on the hosts is this environment's
            f"SetEnv PATH={path}" + (f" TESTBED_DILATION={dilation:g}" if dilation != 1 else ""),
            "",
        )
    )
