"""From the scheme of an address to a listener."""

from __future__ import annotations

import socket

from emulators.devices.transports.base import Access, Listener
from emulators.devices.transports.pty import Line, SerialListener
from emulators.devices.transports.tcp import TcpListener

SCHEMES = ("tcp", "telnet", "ssh", "netconf", "http", "serial")


def listener(
    scheme: str, opened: socket.socket | Line | None, access: Access, host: str, port: int
) -> Listener:
    """Return the listener for `scheme`, on what is `opened` already or on host:port. Raises
    ValueError, OSError.
    """
    if scheme not in SCHEMES:
        raise ValueError(f"no transport for {scheme!r}; there are {', '.join(SCHEMES)}")
    if isinstance(opened, Line) is not (scheme == "serial"):
        raise ValueError(
            f"{scheme}: wanted {'an opened line' if scheme == 'serial' else 'a socket'}"
        )
    if isinstance(opened, Line):
        return SerialListener(opened)
    if scheme in ("ssh", "netconf"):
        from emulators.devices.transports.ssh import SshListener

        return SshListener(scheme, access, opened, host, port)
    return TcpListener(scheme, opened, host, port)
