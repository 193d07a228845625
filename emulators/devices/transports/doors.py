"""From the scheme of an address to a door."""

from __future__ import annotations

import socket

from emulators.devices.transports.base import Access, Door
from emulators.devices.transports.pty import Line, SerialDoor
from emulators.devices.transports.tcp import TcpDoor

SCHEMES = ("tcp", "telnet", "ssh", "netconf", "http", "serial")


def door(scheme: str, opened: socket.socket | Line | None, access: Access, host: str, port: int) -> Door:
    """Return the door for `scheme`, on what is `opened` already or on host:port. Raises ValueError, OSError."""
    if scheme not in SCHEMES:
        raise ValueError(f"no transport for {scheme!r}; there are {', '.join(SCHEMES)}")
    if isinstance(opened, Line) is not (scheme == "serial"):
        raise ValueError(f"{scheme}: wanted {'an opened line' if scheme == 'serial' else 'a socket'}")
    if isinstance(opened, Line):
        return SerialDoor(opened)
    if scheme in ("ssh", "netconf"):
        from emulators.devices.transports.ssh import SshDoor

        return SshDoor(scheme, access, opened, host, port)
    return TcpDoor(scheme, opened, host, port)
