"""Passwords of devices and BMCs: read from the environment, a file of the user's own, or Ansible
vault text, when one is opened.

The vault's format is Ansible's own (Ansible documentation, "Ansible Vault payload format 1.1 -
1.2"): hex of three lines of hex, salt, HMAC-SHA256 and ciphertext; PBKDF2-HMAC-SHA256 with 10 000
rounds gives both keys and the counter of AES-256-CTR. It is read here and not by Ansible's
VaultLib: importing that reads an `ansible.cfg` in the current directory, which may be another
user's, and fails where it is malformed.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import os
import re
import subprocess
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from optics import BadFile, DeviceConfig, DeviceName, Missing
from optics.plain import reason
from orchestrator.files.reading import read_whole
from orchestrator.inventory.hosts import Host
from orchestrator.inventory.lab import Lab
from orchestrator.inventory.logins import VAULT_HEADER, Secret

VAULT_PASSWORD = "ANSIBLE_VAULT_PASSWORD_FILE"
KNOWN_HOSTS = "known_hosts"
"""A file of this name in the inventory's folder holds the host keys of the lab's hosts and
devices.
"""
_ROUNDS = 10_000
_MAX_SECRET_BYTES = 1 << 20


def with_secret(lab: Lab, config: DeviceConfig) -> DeviceConfig:
    """The device's config with its password read from where the inventory keeps it.

    Raises: BadFile - the entry or file is wrong. Missing - the environment lacks what the inventory
    refers to.
    """
    secret = lab.secrets.get(config.name)
    if secret is None:
        return config
    return replace(config, password=_read(config.name, secret, "devices.yml"))


def bmc_password(host: Host) -> str:
    """The password of the host's BMC, empty without one. Raises: as `with_secret`."""
    if host.bmc is None or host.bmc.secret is None:
        return host.bmc.password if host.bmc else ""
    return _read(f"BMC of {host.machine}", host.bmc.secret, "hosts.yml")


def with_known_hosts(
    lab: Lab, inventory: Path, options: Mapping[DeviceName, Collection[str]]
) -> Lab:
    """The lab with its own known_hosts, if its folder has one, for all that name no other;
    `options`: what each driver takes.
    """
    file = (inventory / KNOWN_HOSTS).resolve()
    if not file.is_file():
        return lab
    hosts = {
        name: host
        if host.ssh.known_hosts
        else replace(host, ssh=replace(host.ssh, known_hosts=str(file)))
        for name, host in lab.hosts.items()
    }
    devices = {
        name: replace(config, options={KNOWN_HOSTS: str(file), **config.options})
        if KNOWN_HOSTS in options.get(name, ())
        else config
        for name, config in lab.devices.items()
    }
    return replace(lab, hosts=hosts, devices=devices)


def withheld(lab: Lab) -> frozenset[str]:
    """The environment variables that hold passwords of devices and BMCs: no program started from
    here needs them.
    """
    bmcs = (host.bmc.secret for host in lab.hosts.values() if host.bmc and host.bmc.secret)
    secrets = (*lab.secrets.values(), *bmcs)
    return frozenset(secret.name for secret in secrets if secret.kind == "env")


def _read(whose: str, secret: Secret, file: str) -> str:
    password = _found(whose, secret, file)
    if not password.isprintable():  # it would end a line, or a TL1 or CLI command, too early
        raise BadFile([f"{file}: {whose}: the password has a control character in it"])
    return password


def _found(whose: str, secret: Secret, file: str) -> str:
    match secret.kind:
        case "env":
            if secret.name not in os.environ:
                raise Missing(
                    f"{whose}: no password: {secret.name} is not set",
                    hint=f"export {secret.name}=...",
                )
            return os.environ[secret.name]
        case "file":
            text = private_text(Path(secret.name).expanduser(), f"{file}: {whose}: password_file")
            return (
                unvault(text, f"{whose}: password_file") if text.startswith(VAULT_HEADER) else text
            ).strip("\r\n")
        case "vault":
            return unvault(secret.name, f"{whose}: password").strip("\r\n")


def private_text(path: Path, what: str) -> str:
    """The text of a file that only its owner, this user, can read. Raises: BadFile - it is not, or
    cannot be read.
    """
    try:
        # O_NONBLOCK: opening a FIFO that has no writer would block
        opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        with os.fdopen(opened, "rb") as file:
            # of the open file: a name may point elsewhere a moment later
            found = os.fstat(file.fileno())
            if found.st_mode & 0o077:
                raise BadFile([f"{what}: {path} can be read by others"], hint=f"chmod 600 {path}")
            if found.st_uid not in (os.geteuid(), 0):
                raise BadFile(
                    [f"{what}: {path} belongs to another user"], hint=f"chown {os.geteuid()} {path}"
                )
            return read_whole(file.fileno(), _MAX_SECRET_BYTES).decode("utf-8")
    except OSError as error:
        raise BadFile([f"{what}: {path}: {reason(error)}"]) from error
    except UnicodeDecodeError:
        raise BadFile([f"{what}: {path}: not UTF-8 text"]) from None


def unvault(text: str, what: str) -> str:
    """Decrypt vault text with the password that ANSIBLE_VAULT_PASSWORD_FILE names.

    Raises: Missing - no password. BadFile - another one, or damaged text.
    """
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    header, *lines = text.split()
    if not re.fullmatch(r"\$ANSIBLE_VAULT;1\.[12];AES256(;[^;]+)?", header):
        raise BadFile(
            [f"{what}: {header[:60]!r} is no vault format known here (1.1 and 1.2, AES256)"]
        )
    password = _vault_password(what)
    try:
        salt, digest, hidden = (
            binascii.unhexlify(part) for part in binascii.unhexlify("".join(lines)).split(b"\n")
        )
    except ValueError:
        raise BadFile(
            [f"{what}: the vault text is damaged"],
            hint="ansible-vault encrypt_string makes it again",
        ) from None
    keys = hashlib.pbkdf2_hmac("sha256", password, salt, _ROUNDS, 80)
    if not hmac.compare_digest(hmac.digest(keys[32:64], hidden, "sha256"), digest):
        raise BadFile(
            [f"{what}: the vault does not open"],
            hint=f"{VAULT_PASSWORD} names another password file than the one it was made with",
        )
    cipher = Cipher(algorithms.AES(keys[:32]), modes.CTR(keys[64:])).decryptor()
    plain = cipher.update(hidden) + cipher.finalize()
    return plain[: -plain[-1]].decode("utf-8", "strict")  # PKCS #7; the HMAC has vouched for it


def _vault_password(what: str) -> bytes:
    """As Ansible reads it: the file's text, or its output if it is executable."""
    named = os.environ.get(VAULT_PASSWORD)
    if not named:
        raise Missing(
            f"{what} is in a vault, and {VAULT_PASSWORD} is not set",
            hint=f"export {VAULT_PASSWORD}=FILE",
        )
    path = Path(named).expanduser()
    if not os.access(path, os.X_OK):
        return private_text(path, VAULT_PASSWORD).strip().encode()
    try:
        ended = subprocess.run(
            [path.resolve()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            timeout=60,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise BadFile(
            [f"{VAULT_PASSWORD}: {path} gave no password: {type(error).__name__}"]
        ) from None
    return ended.stdout.strip()
