"""One authenticated SSH connection to a host: known host keys only, user keys only, quick
algorithms first. Blocking.
"""

from __future__ import annotations

import getpass
import logging
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from optics import HostName, Unreachable
from orchestrator.hosts.known import keys_of
from orchestrator.inventory.hosts import SshTarget

if TYPE_CHECKING:
    import paramiko

# post-quantum ones cost 80 ms more on a small machine
KEX = ("curve25519-sha256", "curve25519-sha256@libssh.org")
SILENCE_MS = 10_000
CIPHERS = ("aes128-gcm@openssh.com", "aes128-ctr")  # GCM saves a separate MAC per packet


def connect(host: HostName, target: SshTarget, timeout_s: float) -> paramiko.Transport:
    """Connect and log in.

    Raises: Unreachable - no answer, an unknown or changed host key, or no accepted key; the message
    says which and what to do.
    """
    import paramiko

    dead = f"; if it is dead: {target.remedy}" if target.remedy else ""
    where = f"{host}: ssh {target.user + '@' if target.user else ''}{target.address}:{target.port}"
    try:
        sock = socket.create_connection((target.address, target.port), timeout=timeout_s)
    except OSError as error:
        reason = "no answer" if isinstance(error, TimeoutError) else error.strerror or str(error)
        raise Unreachable(
            f"{where}: {reason}",
            hint=f"is {host} up, and its sshd? nothing was changed there{dead}",
        ) from None
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # Linux: a vanished host is noticed this soon after data was sent
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE_MS)
    transport = None
    try:
        transport = _transport(sock)
        transport.banner_timeout = transport.handshake_timeout = transport.auth_timeout = timeout_s
        known = keys_of(_known_file(target), _name(target))
        _prefer(transport, known)
        transport.start_client(timeout=timeout_s)
        _check(where, target, known, transport.get_remote_server_key())
        _log_in(where, transport, target)
        transport.set_keepalive(5)
    except Unreachable:
        _drop(transport, sock)
        raise
    except (paramiko.SSHException, OSError, EOFError) as error:
        _drop(transport, sock)
        raise Unreachable(
            f"{where}: {error or type(error).__name__}",
            hint=f"is {host}'s sshd healthy? try the command above by hand{dead}",
        ) from None
    return transport


def _transport(sock: socket.socket) -> paramiko.Transport:
    import paramiko
    from paramiko.kex_curve25519 import KexCurve25519

    class Transport(paramiko.Transport):
        # paramiko knows the exchange only by the name it had before RFC 8731; a server may offer
        # nothing but the new one
        _kex_info: ClassVar = {**paramiko.Transport._kex_info, KEX[0]: KexCurve25519}  # type: ignore[attr-defined]
        _preferred_kex: ClassVar = (KEX[0], *paramiko.Transport._preferred_kex)  # type: ignore[attr-defined]

    # its errors arrive here as exceptions
    logging.getLogger("paramiko").addHandler(logging.NullHandler())
    return Transport(sock)


def _drop(transport: paramiko.Transport | None, sock: socket.socket) -> None:
    if transport is not None:
        transport.close()
    sock.close()


def _name(target: SshTarget) -> str:
    return target.address if target.port == 22 else f"[{target.address}]:{target.port}"


def _known_file(target: SshTarget) -> Path:
    return Path(target.known_hosts or "~/.ssh/known_hosts").expanduser()


def _prefer(transport: paramiko.Transport, known: Iterable[str]) -> None:
    options = transport.get_security_options()
    options.kex = (*(k for k in KEX if k in options.kex), *(k for k in options.kex if k not in KEX))
    options.ciphers = (
        *(c for c in CIPHERS if c in options.ciphers),
        *(c for c in options.ciphers if c not in CIPHERS),
    )
    first = tuple(k for k in options.key_types if k in known)
    options.key_types = (*first, *(k for k in options.key_types if k not in first))


def _check(
    where: str, target: SshTarget, known: dict[str, paramiko.PKey], key: paramiko.PKey
) -> None:
    have = known.get(key.get_name())
    if have is not None and have.asbytes() == key.asbytes():
        return
    file = _known_file(target)
    text = f"{key.get_name()} {key.fingerprint}"
    scan = f"if that is right: ssh-keyscan -p {target.port} {target.address} >> {file}"
    if have is None:
        raise Unreachable(f"{where}: host key {text} is not in {file}", hint=scan)
    raise Unreachable(
        f"{where}: host key {text} differs from the one in {file}",
        hint="another machine answers there, or the host was reinstalled",
    )


def _log_in(where: str, transport: paramiko.Transport, target: SshTarget) -> None:
    import paramiko

    user = target.user or getpass.getuser()
    tried = []
    for label, key in _keys(target):
        tried.append(label)
        try:
            transport.auth_publickey(user, key)
            return
        except paramiko.AuthenticationException:
            continue
    raise Unreachable(
        f"{where}: no key was accepted for user {user} (tried {', '.join(tried) or 'none: no key found'})",
        hint="set ansible_user and ansible_ssh_private_key_file in hosts.yml",
    )


def _keys(target: SshTarget) -> Iterable[tuple[str, paramiko.PKey]]:
    import paramiko

    if target.key_file:
        files = [Path(target.key_file).expanduser()]
    else:
        for key in paramiko.Agent().get_keys():
            yield f"agent {key.fingerprint}", key
        files = [
            f
            for name in ("id_ed25519", "id_ecdsa", "id_rsa")
            if (f := Path("~/.ssh", name).expanduser()).exists()
        ]
    for file in files:
        try:
            yield str(file), paramiko.PKey.from_path(file)
        except FileNotFoundError:
            raise Unreachable(
                f"key file {file} does not exist",
                hint="set ansible_ssh_private_key_file in hosts.yml",
            ) from None
        except paramiko.PasswordRequiredException:
            yield_hint = f"load {file} into ssh-agent and leave ansible_ssh_private_key_file out"
            raise Unreachable(f"key file {file} wants a passphrase", hint=yield_hint) from None
