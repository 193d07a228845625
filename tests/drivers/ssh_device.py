"""An SSH device of a few lines: single commands and an interactive shell, as a test says; not an
emulator.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import asyncssh

Printed = tuple[str, int] | None
"""What a command prints and its exit status; None: the connection ends instead."""


@dataclass
class SshDevice:
    """Being served: `known_hosts` names its key, `heard` the commands; `connections` counts
    logins.
    """

    port: int
    known_hosts: Path
    heard: list[str] = field(default_factory=list)
    connections: list[asyncssh.SSHServerConnection] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"ssh://127.0.0.1:{self.port}"

    def drop(self) -> None:
        """End every connection, without a word."""
        for connection in self.connections:
            connection.abort()
        self.connections.clear()


@asynccontextmanager
async def ssh_device(
    folder: Path,
    commands: Callable[[str], Awaitable[Printed]] | None = None,
    shell: Callable[[asyncssh.SSHServerProcess[bytes]], Awaitable[None]] | None = None,
    password: str = "secret",
) -> AsyncIterator[SshDevice]:
    """Serve SSH on loopback: a command's answer is what `commands` says, a shell is what `shell`
    does.
    """
    key = asyncssh.generate_private_key("ssh-ed25519")

    class Server(asyncssh.SSHServer):
        def connection_made(self, connection: asyncssh.SSHServerConnection) -> None:
            device.connections.append(connection)

        def password_auth_supported(self) -> bool:
            return True

        def validate_password(self, username: str, given: str) -> bool:
            return (username, given) == ("admin", password)

    async def serve(process: asyncssh.SSHServerProcess[bytes]) -> None:
        with suppress(ConnectionError, asyncssh.Error, asyncio.CancelledError):
            if process.command is None:
                assert shell is not None
                await shell(process)
                process.exit(0)
                return
            device.heard.append(process.command)
            assert commands is not None
            lines = await commands(process.command)
            if lines is None:
                device.drop()
                return
            process.stdout.write(lines[0].encode())
            process.exit(lines[1])

    server = await asyncssh.listen(
        "127.0.0.1",
        0,
        server_factory=Server,
        server_host_keys=[key],
        process_factory=serve,
        encoding=None,
        allow_scp=False,
    )
    known = folder / "known_hosts"
    device = SshDevice(server.get_port(), known)
    known.write_text(f"[127.0.0.1]:{device.port} {key.export_public_key().decode().strip()}\n")
    try:
        yield device
    finally:
        server.close()
        device.drop()
        await server.wait_closed()
