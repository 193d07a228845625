"""NETCONF over SSH (RFC 6241, RFC 6242) through ncclient: `netconf://host:830`.

Of ncclient this uses the session: SSH, host keys, hello, both framings. Questions and answers are
matched here, by message-id, so that a late or repeated answer is dropped instead of ending the
session, and so that nothing is parsed unchecked.
"""

from __future__ import annotations

import asyncio
import logging
import re
import selectors
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from xml.sax.saxutils import quoteattr

from drivers.link.base import Dropped, farthest_s, reset_at_the_end
from drivers.link.blocking import kept
from drivers.link.recorder import pass_on
from optics import BadFile, Garbled, Refused, TimedOut, Unreachable

LOGIN_S = 10.0
"""How long (s) key exchange, login and hello may take together once connected."""
GOODBYE_S = 0.3
"""How long (s) `close` waits for the answer to close-session."""
LONGEST_REPLY = 1 << 24
BASE = "urn:ietf:params:xml:ns:netconf:base:1.0"
KNOWN_HOSTS = ("~/.ssh/known_hosts", "/etc/ssh/ssh_known_hosts")

_REPLY = re.compile(r"<(?:[\w.-]+:)?rpc-reply\b([^<>]*)>")
_ROOT = re.compile(r"<(?:[\w.-]+:)?([\w.-]+)")
_ID = re.compile(r"""message-id\s*=\s*["']([^"']*)["']""")


class _TooLong(Exception):
    """More than LONGEST_REPLY bytes without the end of a message."""


class NetconfLink:
    """A NETCONF session with the device `who`; ncclient's threads end with it.

    known_hosts: an OpenSSH file of host keys, `~` expanded, instead of the user's and the system's;
    a host key that is not in there is refused before the password is sent. key_file: a private key
    to log in with.
    """

    def __init__(
        self,
        who: str,
        address: str,
        timeout_s: float,
        *,
        username: str = "",
        password: str = "",
        key_file: str = "",
        known_hosts: str = "",
    ) -> None:
        self.who = who
        self.address = address
        self.timeout_s = timeout_s
        self.username = username
        self._password = password
        self._key_file = key_file
        self._known_hosts = known_hosts
        try:
            parts = urlsplit(address)
            self._port = parts.port or 830
        except ValueError as error:
            raise BadFile([f"{who}: address {address!r}: {error}"]) from None
        if (
            parts.scheme != "netconf"
            or not parts.hostname
            or parts.path.strip("/")
            or parts.query
            or "@" in parts.netloc
        ):
            raise BadFile([f"{who}: address {address!r}: known form: netconf://host:port"])
        self._host = parts.hostname
        self._session: Any = None
        self._sock: socket.socket | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._lock = asyncio.Lock()
        self._ids = count(1)
        self._waiting: tuple[str, asyncio.Future[str]] | None = None

    @property
    def alive(self) -> bool:
        return self._session is not None and bool(self._session.connected)

    @property
    def capabilities(self) -> tuple[str, ...]:
        """The URIs of the device's hello; empty while not connected."""
        return (
            tuple(str(uri) for uri in self._session.server_capabilities)
            if self._session is not None
            else ()
        )

    async def open(self) -> None:
        """Connect, check the host key, log in, exchange hellos.

        Raises: Unreachable - no session, or an unknown host key; nothing was asked. Refused - the
        login.
        """
        await self._drop()
        loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"link-{self.who}")
        sock: socket.socket | None = None
        try:
            sock = await kept(
                loop.run_in_executor(self._thread, self._connect), socket.socket.close
            )
            logging_in = loop.run_in_executor(self._thread, self._log_in, sock, loop)
            try:
                async with asyncio.timeout(LOGIN_S):
                    self._session = await asyncio.shield(logging_in)
                    self._sock = sock
            except (TimeoutError, asyncio.CancelledError) as error:
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)  # ends whatever the thread waits for
                done = (await asyncio.gather(logging_in, return_exceptions=True))[0]
                if not isinstance(done, BaseException):
                    await loop.run_in_executor(self._thread, done.close)
                if isinstance(error, TimeoutError):
                    raise Unreachable(
                        f"{self.who}: no NETCONF session with {self.address} in {LOGIN_S:.0f} s"
                    ) from None
                raise
        except BaseException:
            if sock is not None:
                sock.close()
            await self._drop()
            raise

    async def close(self) -> None:
        """End the session; safe to call twice."""
        if self.alive:
            with suppress(Exception):
                await self.ask("<close-session/>", question="close-session", timeout_s=GOODBYE_S)
        await self._drop()

    async def ask(self, operation: str, *, question: str, timeout_s: float | None = None) -> str:
        """Send an operation (XML) and return the `rpc-reply` to it (XML, not yet parsed, without
        any DTD).

        `question` names it in errors. `timeout_s` is the longest silence (s). Raises: Unreachable -
        not open. Dropped - the session ended first. TimedOut - silence. Garbled - not NETCONF, or
        longer than LONGEST_REPLY. After any of them the session is closed.
        """
        silence_s = self.timeout_s if timeout_s is None else timeout_s
        async with self._lock:
            if not self.alive:
                raise Unreachable(f"{self.who}: not connected to {self.address}")
            loop = asyncio.get_running_loop()
            number = str(next(self._ids))
            future: asyncio.Future[str] = loop.create_future()
            self._waiting = (number, future)
            began = loop.time()
            ends = began + farthest_s(silence_s)
            session = self._session
            try:
                self._owed(True)
                asked = (
                    f"<rpc xmlns={quoteattr(BASE)} message-id={quoteattr(number)}>{operation}</rpc>"
                )
                session.send(asked)
                pass_on(self.who, ">", asked.encode())
                while True:
                    received = session.received
                    done, _ = await asyncio.wait(
                        {future}, timeout=max(0.0, min(silence_s, ends - loop.time()))
                    )
                    if done:
                        answer = future.result()
                        self._owed(False)
                        pass_on(self.who, "<", answer.encode())
                        return answer
                    if session.received == received or loop.time() >= ends:
                        took_s = loop.time() - began
                        raise TimedOut(
                            f'{self.who}: no answer to "{question}" from {self.address} in {took_s:.1f} s'
                        )
            except asyncio.CancelledError:
                raise  # the answer will carry its number and be dropped
            except TimedOut:
                await self._drop()
                raise
            except Garbled as error:
                await self._drop()
                raise Garbled(f'{self.who}: answer to "{question}": {error}') from None
            except Exception as error:  # whatever ended ncclient's thread: the session is gone
                await self._drop()
                raise Dropped(
                    f'{self.who}: connection to {self.address} ended before the answer to "{question}"'
                ) from error
            finally:
                self._waiting = None
                if future.done() and not future.cancelled():
                    future.exception()  # marks the exception as retrieved

    def _owed(self, answer: bool) -> None:
        if self._sock is not None:
            reset_at_the_end(self._sock, answer)

    async def _drop(self) -> None:
        session, self._session = self._session, None
        thread, self._thread, self._sock = self._thread, None, None
        if thread is None:
            return
        if session is not None:
            await asyncio.get_running_loop().run_in_executor(thread, session.close)
        thread.shutdown(wait=True)

    def _connect(self) -> socket.socket:
        try:
            sock = socket.create_connection((self._host, self._port), timeout=self.timeout_s)
        except TimeoutError:
            raise Unreachable(
                f"{self.who}: no connection to {self.address} in {self.timeout_s:.1f} s"
            ) from None
        except OSError as error:
            raise Unreachable(
                f"{self.who}: cannot connect to {self.address}: {error.strerror or error}"
            ) from error
        sock.settimeout(None)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def _log_in(self, sock: socket.socket, loop: asyncio.AbstractEventLoop) -> Any:
        """In the device's thread: everything up to the hello."""
        from ncclient.transport import errors

        session = _session(self._notified(loop))
        try:
            session.trust(self._known_hosts)
            if self._key_file and not Path(self._key_file).expanduser().is_file():
                raise Unreachable(f"{self.who}: there is no key file {self._key_file!r}")
            session.connect(
                self._host,
                port=self._port,
                timeout=LOGIN_S,
                unknown_host_cb=session.check_host_key,
                username=self.username or None,
                password=self._password or None,
                key_filename=str(Path(self._key_file).expanduser()) if self._key_file else None,
                allow_agent=False,
                look_for_keys=False,
                sock=sock,
            )
        except BaseException as error:
            session.abandon()
            sock.close()
            if isinstance(error, errors.SSHUnknownHostError):
                raise self._stranger(session) from error
            if isinstance(error, errors.AuthenticationError):
                text = f"{self.who} refused the login of user {self.username!r} at {self.address}"
                raise Refused(
                    text, hint="username, password or the option key_file in the inventory"
                ) from error
            if isinstance(error, Unreachable):
                raise
            # of ncclient, of paramiko, of sockets, of the library that reads a key file
            if isinstance(error, Exception):
                raise Unreachable(
                    f"{self.who}: no NETCONF session with {self.address}: {_text(error)}"
                ) from error
            raise
        return session

    def _stranger(self, session: Any) -> Unreachable:
        name = f"[{self._host}]:{self._port}" if self._port != 22 else self._host
        known = session.knows(name) or session.knows(self._host)
        what = "is another than the known one" if known else "is not known"
        file = self._known_hosts or KNOWN_HOSTS[0]
        hint = f"compare its fingerprint at the device, then: ssh-keyscan -p {self._port} {self._host} >> {file}"
        return Unreachable(
            f"{self.who}: the host key of {self.address} ({session.fingerprint}) {what}", hint=hint
        )

    def _notified(self, loop: asyncio.AbstractEventLoop) -> Callable[[str, str | Exception], None]:
        """The callback of ncclient's thread for an answer (message-id, text) or with an error (for
        the waiting caller).
        """

        def settle(number: str, found: str | Exception) -> None:
            if (
                self._waiting is None
                or self._waiting[1].done()
                or (number and number != self._waiting[0])
            ):
                return
            if isinstance(found, Exception):
                self._waiting[1].set_exception(found)
            else:
                self._waiting[1].set_result(found)

        def on_answer(number: str, found: str | Exception) -> None:
            with suppress(RuntimeError):  # the loop is closed: no caller waits
                loop.call_soon_threadsafe(settle, number, found)

        return on_answer


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _session(on_answer: Callable[[str, str | Exception], None]) -> Any:
    """An ncclient session that wakes at once, bounds what it receives, and passes answers to
    `on_answer`.
    """
    from ncclient.devices.default import DefaultDeviceHandler
    from ncclient.transport.ssh import SSHSession

    # else it writes to the terminal
    logging.getLogger("ncclient").addHandler(logging.NullHandler())

    class Session(SSHSession):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(DefaultDeviceHandler({"name": "default"}))
            self.received = 0
            self.fingerprint = ""
            self._message = 0
            self._bell: tuple[socket.socket, socket.socket] | None = None
            self._files: tuple[str, ...] = KNOWN_HOSTS

        def trust(self, file: str) -> None:
            """Load the host keys of `file` only, or of the usual places. Raises: OSError - there is
            no such file.
            """
            if file:
                self._files = ()
                self._host_keys.load(str(Path(file).expanduser()))

        def load_known_hosts(self, filename: str | None = None) -> None:
            for file in self._files:
                with suppress(OSError):
                    self._host_keys.load(str(Path(file).expanduser()))

        def knows(self, name: str) -> bool:
            return self._host_keys.lookup(name) is not None

        def check_host_key(self, _host: str, _fingerprint: str) -> bool:
            """Record an unknown host key and do not trust it."""
            key = self._transport.get_remote_server_key()
            self.fingerprint = f"{key.get_name()} {key.fingerprint}"
            return False

        def abandon(self) -> None:
            """End what a failed `connect` left behind."""
            self._closing.set()
            if self._transport is not None:
                self._transport.close()
            if self.ident is not None:
                self.join()
            self._still()

        def close(self) -> None:
            super().close()
            if self.ident is None or not self.is_alive():
                self._still()

        def _still(self) -> None:
            bell, self._bell = self._bell, None
            for end in bell or ():
                end.close()
            if self._transport is not None:
                # paramiko's timer would live on for 15 s
                self._transport.packetizer.complete_handshake()
            if self._transport is not None and self._transport.is_alive():
                self._transport.join(5)  # paramiko's thread, when the other end closed first

        def send(self, message: str) -> None:
            super().send(message)
            if self._bell is not None:
                self._bell[1].send(b".")

        def run(self) -> None:
            try:
                super().run()
            finally:
                self._connected = False

        def _transport_register(self, selector: Any, event: Any) -> None:
            """Wait for a wake-up byte as well as the channel: ncclient checks its queue of messages
            only every 0.1 s.
            """
            super()._transport_register(selector, event)
            self._bell = socket.socketpair()
            selector.register(self._bell[0], selectors.EVENT_READ)
            plain = selector.select

            def select(timeout: float | None = None) -> list[Any]:
                found = []
                for key, mask in plain(timeout):
                    if self._bell is not None and key.fileobj is self._bell[0]:
                        self._bell[0].recv(4096)
                    else:
                        found.append((key, mask))
                return found

            selector.select = select

        def _transport_read(self) -> Any:
            data = super()._transport_read()
            self.received += len(data or b"")
            self._message += len(data or b"")
            if self._message > LONGEST_REPLY:
                raise _TooLong(f"more than {LONGEST_REPLY} bytes without an end")
            return data

        def _dispatch_message(self, raw: str) -> None:
            self._message = 0
            begin = raw[:4096]
            if "<!DOCTYPE" in raw or "<!ENTITY" in raw:
                self._dispatch_error(
                    Garbled(f"a document type, which NETCONF forbids: {begin[:120]!r}")
                )
                return
            root = _ROOT.search(begin)
            name = root[1] if root else ""
            if name in ("hello", "notification"):
                super()._dispatch_message(raw)
                return
            reply = _REPLY.search(begin)
            number = _ID.search(reply[1]) if reply else None
            on_answer(
                number[1] if number else "",
                raw if number else Garbled(f"no rpc-reply with a message-id: {begin[:120]!r}"),
            )

        def _dispatch_error(self, err: Exception) -> None:
            framing = type(err).__name__ == "NetconfFramingError" or isinstance(
                err, (_TooLong, UnicodeDecodeError)
            )
            on_answer("", Garbled(f"not NETCONF: {str(err)[:160]}") if framing else err)
            super()._dispatch_error(err)

    return Session()
