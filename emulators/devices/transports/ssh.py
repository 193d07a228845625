"""SSH: a shell or single commands for command lines, the subsystem `netconf` for NETCONF (RFC
6242).

Imported only where a lab has such a device: asyncssh takes a fifth of a second.
"""

from __future__ import annotations

import asyncio
import hmac
import socket

import asyncssh

from emulators.devices.dialects.base import Session
from emulators.devices.transports.base import Access, Conversation, Device, RunsOnce

LOGIN_S = 60.0  # a client that does not log in within this time is disconnected
TOO_MANY = asyncssh.DISC_TOO_MANY_CONNECTIONS
# no post-quantum: it would hold the loop
KEX = ["curve25519-sha256", "curve25519-sha256@libssh.org", "ecdh-sha2-nistp256"]


class Channel(asyncssh.SSHServerSession[bytes]):
    """One channel of a connection: one session of the device."""

    def __init__(self, login: Login) -> None:
        self.login, self.device = login, login.device
        self.channel: asyncssh.SSHServerChannel[bytes] | None = None
        self.conversation: Conversation | None = None
        self._command: str | None = None

    def connection_made(self, chan: asyncssh.SSHServerChannel[bytes]) -> None:
        self.channel = chan
        self.login.channels.add(self)
        self.login.rest(False)

    def pty_requested(self, term_type: str, term_size: object, term_modes: object) -> bool:
        return self.login.listener.scheme == "ssh"

    def shell_requested(self) -> bool:
        return self.login.listener.scheme == "ssh" and "shell" in self.device.dialect.channels

    def exec_requested(self, command: str) -> bool:
        self._command = command
        dialect = self.device.dialect
        return (
            self.login.listener.scheme == "ssh"
            and "exec" in dialect.channels
            and isinstance(dialect, RunsOnce)
        )

    def subsystem_requested(self, subsystem: str) -> bool:
        return self.login.listener.scheme == subsystem == "netconf"

    def session_started(self) -> None:
        self.conversation = self.device.open(self, self._command)
        if self.conversation is None:
            self.login.refuse()

    def data_received(self, data: bytes, datatype: asyncssh.DataType) -> None:
        if self.conversation is not None:
            self.conversation.receive(data)

    def eof_received(self) -> bool:
        if self.conversation is not None and self._command is None:
            self.conversation.finish()
        return True  # an answer is still pending

    def connection_lost(self, exc: Exception | None) -> None:
        self.channel = None
        if self.conversation is not None:
            self.conversation.lost()
        self.login.channels.discard(self)
        self.login.rest(not self.login.channels)

    # ---- Wire

    def encode(self, data: bytes) -> bytes:
        return data

    def write(self, data: bytes) -> None:
        if self.channel is not None and not self.channel.is_closing():
            self.channel.write(data)

    def close(self, session: Session) -> None:
        if self.channel is None:
            return
        if not session.cut:  # a command is done, or the client has closed its sending side
            self.channel.exit(session.exit_status)
        else:
            self.channel.close()
            self.login.connection.close()

    def abort(self) -> None:
        self.login.connection.abort()


class Login(asyncssh.SSHServer):
    """One connection: its user and its channels."""

    connection: asyncssh.SSHServerConnection

    def __init__(self, listener: SshListener, device: Device) -> None:
        self.listener, self.device = listener, device
        self.channels: set[Channel] = set()
        self.counted = False
        self._idle: asyncio.TimerHandle | None = None

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self.connection = conn
        self.listener.connections.add(conn)
        if self.device.dialect.down(self.device.loop.time()):
            conn.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.rest(False)
        self.listener.connections.discard(self.connection)
        self.listener.logins.discard(self)

    def begin_auth(self, username: str) -> bool:
        return True

    def password_auth_supported(self) -> bool:
        return self.listener.access.password is not None

    def validate_password(self, username: str, password: str) -> bool:
        wanted = self.listener.access.password or ""
        return self._named(username) and hmac.compare_digest(password.encode(), wanted.encode())

    def public_key_auth_supported(self) -> bool:
        return bool(self.listener.keys)

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        return self._named(username) and key.public_data in self.listener.keys

    def auth_completed(self) -> None:
        """Count the login; end another of the same device where sessions are stolen."""
        faults = self.device.dialect.faults
        limit = faults.persistent("login-limit")
        if limit is not None and len(self.listener.logins) >= limit.limit:
            self.refuse()
            return
        if faults.persistent("session-stolen") is not None:
            for other in tuple(self.listener.logins):
                other.connection.close()
        self.listener.logins.add(self)
        self.rest(True)

    def session_requested(self) -> Channel | bool:
        return Channel(self) if self in self.listener.logins else False

    def refuse(self) -> None:
        """Send the client away: the device takes no more sessions."""
        self.connection.disconnect(TOO_MANY, "Too many sessions")

    def rest(self, resting: bool) -> None:
        """A connection without a channel is idle too."""
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if resting and self in self.listener.logins:
            self._idle = self.device.loop.call_later(1.0, self._look, self.device.loop.time())

    def _look(self, since: float) -> None:
        """Once a second, so that a fault added later strikes too."""
        dialect, loop = self.device.dialect, self.device.loop
        asked = dialect.faults.persistent("idle-drop")
        idle_s = asked.seconds_or_default if asked else dialect.idle_s
        if idle_s is not None and loop.time() - since >= idle_s:
            self.connection.close()
        else:
            self._idle = loop.call_later(1.0, self._look, since)

    def _named(self, username: str) -> bool:
        wanted = self.listener.access.username
        return wanted is None or username == wanted


class SshListener:
    """Clients come over SSH, to a socket that is bound already or to host:port (0: any free
    one).
    """

    def __init__(
        self, scheme: str, access: Access, sock: socket.socket | None, host: str, port: int
    ) -> None:
        self.scheme, self.access, self.host, self.port = scheme, access, host, port
        self._sock = sock
        self._acceptor: asyncssh.SSHAcceptor | None = None
        self.connections: set[asyncssh.SSHServerConnection] = set()
        self.logins: set[Login] = set()
        self.keys = {asyncssh.import_public_key(line).public_data for line in access.authorized}
        given = access.host_key
        self.host_key = (
            asyncssh.import_private_key(given)
            if given
            else asyncssh.generate_private_key("ssh-ed25519")
        )

    @property
    def address(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}"

    @property
    def known_hosts(self) -> str:
        """The line a client's known_hosts needs."""
        return f"[{self.host}]:{self.port} {self.host_key.export_public_key().decode().strip()}\n"

    async def open(self, device: Device) -> None:
        where = (
            {"sock": self._sock}
            if self._sock is not None
            else {"host": self.host, "port": self.port}
        )
        self._acceptor = await asyncssh.listen(
            **where,
            server_factory=lambda: Login(self, device),
            server_host_keys=[self.host_key],
            encoding=None,
            line_editor=False,
            login_timeout=LOGIN_S,
            kex_algs=KEX,
            compression_algs=None,
            gss_host=None,
            kbdint_auth=False,
            config=(),
            keepalive_interval=0,
        )
        self.port = self._acceptor.get_port()

    async def shut(self) -> None:
        if self._acceptor is None:
            return
        self._acceptor.close()
        left = tuple(self.connections)
        for connection in left:
            connection.abort()
        for connection in left:
            await connection.wait_closed()
        await self._acceptor.wait_closed()
        self._acceptor = None
