"""Anything pyvisa can open: `visa://TCPIP::10.0.0.7::5025::SOCKET`, `visa://ASRL/dev/ttyS0::INSTR`,
a GPIB or USB instrument.
"""

from __future__ import annotations

import socket
from typing import Any

from drivers.link.base import reset_at_the_end
from drivers.link.blocking import BlockingLink
from optics import Unreachable
from optics.extras import extra


class VisaLink(BlockingLink):
    """A VISA resource, by default through pyvisa-py; `backend` as for `pyvisa.ResourceManager`
    (`@ivi`: a vendor's VISA).
    """

    def __init__(
        self, who: str, address: str, timeout_s: float, *, resource: str, backend: str = "@py"
    ) -> None:
        super().__init__(who, address, timeout_s)
        self._name = resource
        self._backend = backend
        self._resource: Any = None
        self._visa: Any = None

    def _open(self) -> None:
        with extra("visa", f"{self.who}: {self.address}"):
            import pyvisa
        self._visa = pyvisa
        try:
            resources = pyvisa.ResourceManager(self._backend)
            self._resource = resources.open_resource(
                self._name,
                open_timeout=int(self.timeout_s * 1000),
                read_termination="\n",
                write_termination="",
            )
        except Exception as error:  # pyvisa-py raises bare Exception when a connection fails
            raise Unreachable(f"{self.who}: cannot open {self.address}: {error}") from error
        attribute = pyvisa.constants.ResourceAttribute.suppress_end_enabled
        try:
            # Otherwise a line cut by the end of a slice would be thrown away with the time-out.
            self._resource.set_visa_attribute(attribute, False)
        except pyvisa.VisaIOError:
            pass
        self._refused()

    def _refused(self) -> None:
        """pyvisa-py 0.8 takes a refused TCP connection for an open one; ask the socket itself."""
        sock = self._socket()
        if sock is None:
            return
        try:
            sock.getpeername()
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            number = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            raise Unreachable(
                f"{self.who}: cannot connect to {self.address}: {ConnectionRefusedError(number or error.errno)}"
            ) from error

    def _socket(self) -> socket.socket | None:
        """The TCP socket under a pyvisa-py session, None for any other back end or transport."""
        sessions = getattr(getattr(self._resource, "visalib", None), "sessions", {})
        session = (
            sessions.get(getattr(self._resource, "session", None))
            if isinstance(sessions, dict)
            else None
        )
        found = getattr(session, "interface", None)
        return found if isinstance(found, socket.socket) else None

    def _close(self) -> None:
        resource, self._resource = self._resource, None
        if resource is not None:
            resource.close()

    def _owed(self, answer: bool) -> None:
        if (sock := self._socket()) is not None:
            reset_at_the_end(sock, answer)

    def _send(self, data: bytes) -> None:
        try:
            self._resource.timeout = self.timeout_s * 1000
            self._resource.write_raw(data)
        except self._visa.Error as error:
            raise ConnectionResetError(str(error)) from error

    def _receive(self, silence_s: float) -> bytes | None:
        self._resource.timeout = max(1.0, silence_s * 1000)
        try:
            data: bytes = self._resource.read_raw()
        except self._visa.VisaIOError as error:
            if error.error_code == self._visa.constants.StatusCode.error_timeout:
                return b"" if self._ended() else None
            raise ConnectionResetError(str(error)) from error
        return data

    def _forget(self) -> None:
        sock = self._socket()
        if sock is None:
            return
        sock.setblocking(False)
        try:
            while sock.recv(4096):
                pass
        except OSError:
            pass
        finally:
            sock.setblocking(True)

    def _ended(self) -> bool:
        """pyvisa-py never reports that the peer closed: its reads spin until they time out. A peek
        detects it.
        """
        if self._resource is None:
            return True
        sock = self._socket()
        if sock is None:
            return False
        try:
            return sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True
