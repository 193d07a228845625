"""SSH through paramiko: `ssh://host:port`, an interactive shell as a byte link, or one command at a
time.

Host keys are checked against OpenSSH's files: the option `known_hosts`, else the user's and the
system's. An unknown or changed key ends the attempt before a password is sent.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from drivers.link.base import Dropped, farthest_s, reset_at_the_end
from drivers.link.blocking import SLICE_S, BlockingLink, kept
from drivers.link.recorder import pass_on
from optics import DeviceConfig, Garbled, TimedOut, Unreachable

T = TypeVar("T")
PORT = 22
MOST_OUTPUT = 4 << 20  # bytes of one command's output; a 1024-port table has 0.1 MB
USUAL_FILES = ("~/.ssh/known_hosts", "/etc/ssh/ssh_known_hosts")


@dataclass(frozen=True, slots=True)
class Login:
    """Who logs in, and whose host keys are trusted. `known_hosts` empty: the user's and the
    system's files.
    """

    username: str = ""
    password: str = field(default="", repr=False)
    key_file: str = ""
    known_hosts: str = ""

    @classmethod
    def of(cls, config: DeviceConfig) -> Login:
        """The login an inventory gives a device, with the options `key_file` and `known_hosts`."""
        options = config.options
        return cls(
            config.username,
            config.password,
            options.get("key_file", ""),
            options.get("known_hosts", ""),
        )


OPTIONS = {
    "known_hosts": "file of host keys to believe, in OpenSSH's form; default the user's and the system's",
    "key_file": "private key to log in with instead of the password",
}


def connect(
    who: str,
    address: str,
    host: str,
    port: int,
    login: Login,
    timeout_s: float,
    dialled: Callable[[socket.socket], object] = lambda sock: None,
) -> Any:
    """Return a paramiko Transport that is logged in. Raises: Unreachable - no connection, a host
    key not known, login denied.

    `dialled` is given the socket before anything is sent on it: shutting it down ends the attempt.
    """
    import paramiko

    try:
        sock = socket.create_connection((host, port), timeout_s)
    except OSError as error:
        raise Unreachable(
            f"{who}: cannot connect to {address}: {error.strerror or error}"
        ) from error
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    dialled(sock)
    _quiet()
    transport = paramiko.Transport(sock)
    transport.banner_timeout = transport.auth_timeout = transport.handshake_timeout = timeout_s
    try:
        transport.start_client(timeout=timeout_s)
        _check_key(
            who,
            address,
            host if port == PORT else f"[{host}]:{port}",
            transport.get_remote_server_key(),
            login,
        )
        if login.key_file:
            path = Path(login.key_file).expanduser()
            transport.auth_publickey(login.username, paramiko.PKey.from_path(path))
        else:
            transport.auth_password(login.username, login.password)
        return transport
    except Unreachable:
        transport.close()
        raise
    except Exception as error:  # of paramiko, of sockets, of the library that reads a key file
        transport.close()
        denied = isinstance(error, paramiko.AuthenticationException)
        text = (
            f"login as {login.username!r} denied" if denied else str(error) or type(error).__name__
        )
        raise Unreachable(f"{who}: {address}: {text}") from error


def _quiet() -> None:
    """Keep paramiko's tracebacks off the terminal: what went wrong is in the exception."""
    logger = logging.getLogger("paramiko")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())


def _check_key(who: str, address: str, name: str, key: Any, login: Login) -> None:
    import paramiko

    files = [
        Path(f).expanduser() for f in ([login.known_hosts] if login.known_hosts else USUAL_FILES)
    ]
    known = paramiko.HostKeys()
    for path in files:
        if path.is_file():
            try:
                known.load(str(path))
            # paramiko raises its own bare kinds for a line it cannot read
            except Exception as error:
                raise Unreachable(f"{who}: cannot read host keys from {path}: {error}") from error
        elif login.known_hosts:
            raise Unreachable(
                f"{who}: known_hosts: there is no file {path}",
                hint="its option known_hosts names the file",
            )
    entries = known.lookup(name)
    if entries is not None and any(known_key == key for known_key in entries.values()):
        return
    where = ", ".join(str(path) for path in files)
    print_ = f"{key.get_name()} {key.fingerprint}"
    if entries is not None and key.get_name() in entries:
        raise Unreachable(
            f"{who}: {address} shows another host key than the one in {where}: {print_}",
            hint="if the device was replaced, remove the old key with ssh-keygen -R; if not, the connection may be intercepted",
        )
    raise Unreachable(
        f"{who}: the host key of {address} is not in {where}: {print_}",
        hint=f"compare it with the device's own, then ssh-keyscan -p PORT HOST >> {files[0]}",
    )


class SshShell(BlockingLink):
    """An interactive shell on a terminal: bytes in both directions."""

    def __init__(
        self, who: str, address: str, timeout_s: float, *, host: str, port: int, login: Login
    ) -> None:
        super().__init__(who, address, timeout_s)
        self._host, self._port, self._login = host, port, login
        self._transport: Any = None
        self._channel: Any = None
        self._dialled: list[socket.socket] = []

    def _hurry(self) -> None:
        _cut(self._dialled)

    def _open(self) -> None:
        self._dialled.clear()
        dialled = self._dialled.append
        self._transport = connect(
            self.who, self.address, self._host, self._port, self._login, self.timeout_s, dialled
        )
        try:
            self._channel = self._transport.open_session(timeout=self.timeout_s)
            self._channel.settimeout(self.timeout_s)
            # wide: a table must not be folded
            self._channel.get_pty(term="vt100", width=512, height=1000)
            self._channel.invoke_shell()
        except Exception as error:  # paramiko raises SSHException, EOFError and socket errors here
            raise Unreachable(
                f"{self.who}: {self.address} opens no shell: {error or type(error).__name__}"
            ) from error

    def _close(self) -> None:
        channel, transport = self._channel, self._transport
        self._channel = self._transport = None
        for part in (channel, transport):
            if part is not None:
                part.close()
        if transport is not None:
            transport.join(1.0)

    def _owed(self, answer: bool) -> None:
        for sock in self._dialled:
            reset_at_the_end(sock, answer)

    def _send(self, data: bytes) -> None:
        self._channel.settimeout(self.timeout_s)
        self._channel.sendall(data)

    def _receive(self, silence_s: float) -> bytes | None:
        self._channel.settimeout(max(0.001, silence_s))
        try:
            data: bytes = self._channel.recv(65_536)
        except TimeoutError:
            return None
        return data

    def _forget(self) -> None:
        while self._channel.recv_ready():
            self._channel.recv(65_536)

    def _ended(self) -> bool:
        return (
            self._channel is None
            or self._channel.closed
            or self._channel.eof_received
            or not self._transport.is_active()
        )


class SshCommands:
    """One command per channel, one after the other, over one connection that is opened when
    needed.
    """

    def __init__(
        self, who: str, address: str, timeout_s: float, *, host: str, port: int, login: Login
    ) -> None:
        self.who, self.address, self.timeout_s = who, address, timeout_s
        self._host, self._port, self._login = host, port, login
        self._transport: Any = None
        self._dialled: list[socket.socket] = []
        self._thread: ThreadPoolExecutor | None = None
        self._lock = asyncio.Lock()

    async def run(self, command: str, timeout_s: float | None = None) -> tuple[str, int]:
        """Run `command`; return what it printed (both streams) and its exit status, -1 where the
        device gives none.

        timeout_s: longest silence (s) where it is not the usual one. Raises: Unreachable - nothing
        was sent. Dropped - the connection ended before the end. TimedOut - silence of timeout_s
        (s). Garbled - endless or undecodable output.
        """
        silence_s = self.timeout_s if timeout_s is None else timeout_s
        async with self._lock:
            if self._transport is not None and self._transport.is_active():
                try:
                    return await self._guarded(command, silence_s)
                except Unreachable:
                    pass  # it had ended while idle and nothing was sent
            await self._connect()
            return await self._guarded(command, silence_s)

    async def _connect(self) -> None:
        await self._shut()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"link-{self.who}")
        self._dialled = dialled = list[socket.socket]()

        def work() -> Any:
            return connect(
                self.who,
                self.address,
                self._host,
                self._port,
                self._login,
                self.timeout_s,
                dialled.append,
            )

        opening = asyncio.get_running_loop().run_in_executor(self._thread, work)
        try:
            self._transport = await kept(
                opening, lambda transport: transport.close(), lambda: _cut(dialled)
            )
        except BaseException:
            await self._shut()
            raise

    async def _guarded(self, command: str, silence_s: float) -> tuple[str, int]:
        try:
            return await self._run(command, silence_s)
        except BaseException:
            await self._shut()  # late output belongs to no later command
            raise

    async def close(self) -> None:
        """Close; safe to call twice."""
        async with self._lock:
            await self._shut()

    async def _run(self, command: str, silence_s: float) -> tuple[str, int]:
        pass_on(self.who, ">", command.encode() + b"\n")
        self._owed(True)
        channel = await self._call(lambda: self._start(command))
        printed = b""
        began = last = time.monotonic()
        while True:
            data = await self._call(lambda: _take(channel))
            now = time.monotonic()
            if data:
                printed, last = printed + data, now
                if len(printed) > MOST_OUTPUT:
                    raise Garbled(
                        f'{self.who}: "{command}" printed more than {MOST_OUTPUT} bytes, beginning {printed[:60]!r}'
                    )
            elif data == b"":
                break
            if now - last > silence_s or now - began > farthest_s(silence_s):
                tail = f"; last received {printed[-120:]!r}" if printed else ""
                raise TimedOut(
                    f'{self.who}: no end of "{command}" from {self.address} in {now - began:.1f} s{tail}'
                )
        status = await self._call(
            lambda: int(channel.recv_exit_status()) if channel.exit_status_ready() else -1
        )
        await self._call(channel.close)
        if status == -1 and not self._transport.is_active():
            raise Dropped(
                f'{self.who}: connection to {self.address} ended before the answer to "{command}"'
            )
        self._owed(False)
        pass_on(self.who, "<", printed)
        return printed.decode("utf-8", "backslashreplace"), status

    def _owed(self, answer: bool) -> None:
        for sock in self._dialled:
            reset_at_the_end(sock, answer)

    def _start(self, command: str) -> Any:
        import paramiko

        try:
            channel = self._transport.open_session(timeout=self.timeout_s)
            channel.settimeout(self.timeout_s)
            channel.set_combine_stderr(True)
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise Unreachable(
                f"{self.who}: {self.address} takes no command: {error or type(error).__name__}"
            ) from error
        try:
            channel.exec_command(command)
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise Dropped(
                f'{self.who}: {self.address} broke at "{command}": {error or type(error).__name__}'
            ) from error
        return channel

    async def _call(self, verb: Callable[[], T]) -> T:
        assert self._thread is not None
        return await asyncio.get_running_loop().run_in_executor(self._thread, verb)

    async def _shut(self) -> None:
        transport, thread = self._transport, self._thread
        self._transport = self._thread = None
        if transport is not None:
            transport.close()
        if thread is not None:
            if transport is not None:
                await asyncio.get_running_loop().run_in_executor(thread, transport.join, 1.0)
            thread.shutdown(wait=True)


def _cut(dialled: Iterable[socket.socket]) -> None:
    """End connections on which a thread may be waiting."""
    for sock in dialled:
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


def _take(channel: Any) -> bytes | None:
    """What came within a slice, b"" at the end, None for silence."""
    channel.settimeout(SLICE_S)
    try:
        data: bytes = channel.recv(65_536)
    except TimeoutError:
        return None
    return data
