"""From the inventory's address to a link."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

from drivers.link.base import Link
from optics import BadFile, DeviceConfig

if TYPE_CHECKING:
    from drivers.link.ssh import Login, SshCommands

FORMS = "tcp://host:port, telnet://host:port, ssh://host[:port], visa://TCPIP::host::port::SOCKET, serial:///dev/ttyUSB0?baud=38400"


def open_link(
    address: str, timeout_s: float, who: str = "device", login: Login | None = None
) -> Link:
    """Return the link for `address`, not yet connected; `who` is the name error messages use,
    `login` is for ssh.

    Raises: BadFile - the address has none of the known forms.
    """
    scheme, _, rest = address.partition("://")
    try:
        if scheme in ("tcp", "telnet"):
            parts = urlsplit(address)
            if not parts.hostname or not parts.port or parts.path.strip("/") or parts.query:
                raise ValueError("a host and a port are needed, and nothing else")
            if scheme == "telnet":
                from drivers.link.telnet import TelnetLink

                return TelnetLink(who, address, timeout_s, host=parts.hostname, port=parts.port)
            from drivers.link.tcp import TcpLink

            return TcpLink(who, address, timeout_s, host=parts.hostname, port=parts.port)
        if scheme == "ssh":
            from drivers.link.ssh import Login, SshShell

            host, port = ssh_target(address)
            return SshShell(who, address, timeout_s, host=host, port=port, login=login or Login())
        if scheme == "visa":
            resource, _, query = rest.partition("?")
            backend = _only(query, "backend", "@py")
            if not resource:
                raise ValueError("a VISA resource name is needed")
            from drivers.link.visa import VisaLink

            return VisaLink(who, address, timeout_s, resource=resource, backend=backend)
        if scheme == "serial":
            path, _, query = rest.partition("?")
            baud = int(_only(query, "baud", "38400"))
            if not path.startswith("/"):
                raise ValueError("a device path is needed (three slashes)")
            from drivers.link.serial import SerialLink

            return SerialLink(who, address, timeout_s, path=path, baud=baud)
        raise ValueError("unknown form")
    except ValueError as error:
        raise BadFile([f"{who}: address {address!r}: {error}; known forms: {FORMS}"]) from None


def open_commands(config: DeviceConfig) -> SshCommands:
    """The link to a device that takes one SSH command at a time. Raises: BadFile - no ssh://
    address.
    """
    from drivers.link.ssh import Login, SshCommands

    try:
        host, port = ssh_target(config.address)
    except ValueError as error:
        raise BadFile([f"{config.name}: address {config.address!r}: {error}"]) from None
    return SshCommands(
        config.name, config.address, config.timeout_s, host=host, port=port, login=Login.of(config)
    )


def ssh_target(address: str) -> tuple[str, int]:
    """Host and port of `ssh://host[:port]`. Raises: ValueError - anything else."""
    parts = urlsplit(address)
    if (
        parts.scheme != "ssh"
        or not parts.hostname
        or parts.username
        or parts.path.strip("/")
        or parts.query
    ):
        raise ValueError(
            "ssh:// and a host, with a port where it is not 22, are needed, and nothing else"
        )
    return parts.hostname, parts.port or 22


def _only(query: str, key: str, default: str) -> str:
    given = parse_qs(query, keep_blank_values=True)
    if unknown := sorted(set(given) - {key}):
        raise ValueError(f"unknown parameter {unknown[0]!r}, known is {key!r}")
    return given.get(key, [default])[-1]
