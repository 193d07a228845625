"""Who talks to a process beside a job: both ends show that they know the job's key before anything
else is said.

The listener says a number, the other answers with what it wants, a number of its own and a proof,
and the listener proves itself. A process that took the listener's port meanwhile gets nothing, and
nobody else can give the listener anything. A process of the agent may be the other end, in code of
its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import selectors
import signal
import socket
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

NUMBER, PROOF = 16, 32
"""Bytes of the numbers of both ends, and of a proof."""
ROLE = 8
"""Bytes of the word for what the other end wants, filled up with spaces."""
SILENT_S = 60
"""A connection ends when the other end's host does not answer for so long (s)."""
GREETING_S = 20.0
"""How long (s) an end may take to prove itself: a listener may import torch before it answers."""
RESTORE = ("", "only", "newest")
CONNECTIONS = 64
TAKEN = 1 << 20
"""Bytes that are taken of a connection at once."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where a process beside a job listens, and the key of both.

    restore: the ranks begin from the checkpoint that an earlier one left; `newest`: where theirs in
    common is older. Empty: from theirs, and the process drops what it finds.
    """

    address: str
    port: int
    key: bytes
    restore: str = ""


def meeting(text: str, variable: str) -> Meeting:
    """What this variable says: JSON with address, port, key (hexadecimal) and restore (of RESTORE).

    Raises: ValueError - it is something else.
    """
    try:
        reply = json.loads(text)
        restore = RESTORE[RESTORE.index(reply.get("restore", ""))]
        return Meeting(
            str(reply["address"]), int(reply["port"]), bytes.fromhex(reply["key"]), restore
        )
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"{variable}: not a JSON object with address, port and key: {error}"
        ) from error


def proof(key: bytes, who: bytes, first: bytes, second: bytes) -> bytes:
    """What shows that one knows the key: for these two numbers, and for nothing else."""
    return hmac.new(key, who + first + second, hashlib.sha256).digest()


def connect(meeting: Meeting, role: str, within_s: float, own: str = "") -> socket.socket:
    """A connection to the listener, in this role; tries until the time is over, as it may not
    listen yet; a listener has as long to answer, 1 s at least. own: the address to connect from;
    empty: any.

    Raises: OSError - it does not answer, or does not know the key.
    """
    until_s = time.monotonic() + within_s
    while True:
        try:
            link = socket.create_connection(
                (meeting.address, meeting.port),
                timeout=max(until_s - time.monotonic(), 0.1),
                source_address=(own, 0) if own else None,
            )
            break
        except OSError:
            if time.monotonic() >= until_s:
                raise
            time.sleep(0.1)
    try:
        notice_silence(link)
        link.settimeout(min(GREETING_S, max(within_s, 1.0)))
        first, second, who = (
            exactly(link, NUMBER),
            secrets.token_bytes(NUMBER),
            role.encode().ljust(ROLE),
        )
        link.sendall(who + second + proof(meeting.key, who, first, second))
        if not hmac.compare_digest(
            exactly(link, PROOF), proof(meeting.key, b"listener", first, second)
        ):
            raise ConnectionError(
                f"{meeting.address}:{meeting.port} is not the process of this job"
            )
    except BaseException:
        link.close()
        raise
    return link


def notice_silence(link: socket.socket) -> None:
    """Have a connection end although the other end's host lost power, or its network."""
    for option, value in (
        (socket.TCP_KEEPIDLE, 5),
        (socket.TCP_KEEPINTVL, 5),
        (socket.TCP_USER_TIMEOUT, 1000 * SILENT_S),
    ):
        link.setsockopt(socket.IPPROTO_TCP, option, value)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def exactly(link: socket.socket, count: int) -> bytes:
    """Receive so many bytes. Raises: OSError - the other end closed before."""
    found = bytearray()
    while len(found) < count:
        piece = link.recv(min(count - len(found), 1 << 20))
        if not piece:
            raise ConnectionError("closed by the other end")
        found += piece
    return bytes(found)


class Listener:
    """The listener's end of one greeting, fed with what comes in."""

    WHOLE = ROLE + NUMBER + PROOF

    def __init__(self, key: bytes) -> None:
        self._key, self.number = key, os.urandom(NUMBER)
        self._reported = b""

    def take(self, data: bytes) -> tuple[str, bytes, bytes] | None:
        """The role, the listener's proof to send, and what came after the greeting; None while it is
        not whole.

        Raises: ConnectionError - the other end does not know the key.
        """
        self._reported += data
        if len(self._reported) < self.WHOLE:
            return None
        lines, rest = self._reported[: self.WHOLE], self._reported[self.WHOLE :]
        who, second = lines[:ROLE], lines[ROLE : ROLE + NUMBER]
        if not hmac.compare_digest(
            lines[ROLE + NUMBER :], proof(self._key, who, self.number, second)
        ):
            raise ConnectionError("does not know the job's key")
        return (
            who.decode("ascii", "replace").strip(),
            proof(self._key, b"listener", self.number, second),
            rest,
        )


class Connection:
    """One that was accepted. role: what the other end wants; empty while it has not shown that it
    knows the key.
    """

    def __init__(self, link: socket.socket, key: bytes, who: str) -> None:
        self.link, self.who, self.role = link, who, ""
        self.listener = Listener(key)
        self.until_s = time.monotonic() + GREETING_S
        self.data = bytearray()


C = TypeVar("C", bound=Connection)


class Server(Generic[C]):
    """Accepts so many connections, and hands on what comes from ends that know the key."""

    name: ClassVar[str]
    """What its log calls it."""
    roles: ClassVar[Collection[str]]
    noted: ClassVar[Collection[str]] = ()
    """Roles whose beginning and end are logged."""

    def __init__(
        self,
        listener: socket.socket,
        key: bytes,
        made: Callable[[socket.socket, bytes, str], C],
        most: int = CONNECTIONS,
    ) -> None:
        self._listener, self._key, self._made, self._most = listener, key, made, most
        self._selector = selectors.DefaultSelector()
        self._peers: set[C] = set()
        self.stopped = False

    def handle_signals(self) -> None:
        """From now on SIGTERM and SIGINT have it `stopped`."""

        def stop(_number: int, _frame: object) -> None:
            self.stopped = True

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)

    def listen(self) -> None:
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)

    def wait(self, within_s: float) -> float:
        """Take what comes within this time; return the time (s)."""
        for key, _ in self._selector.select(within_s):
            if key.fileobj is self._listener:
                self._accept()
            else:
                self._read(key.data)
        now_s = time.monotonic()
        for peer in [peer for peer in self._peers if not peer.role and now_s > peer.until_s]:
            self.close(peer, "did not say who it is")
        return now_s

    def admits(self, role: str) -> bool:
        """Whether one more may have this role."""
        return role in self.roles

    def greeted(self, peer: C) -> None:
        """It has shown that it knows the key."""

    def taken(self, peer: C) -> None:
        """It sent something, which is at the end of its data. Raises: ValueError and the like -
        nothing that is read."""

    def closed(self, peer: C) -> None:
        """It is closed."""

    def close(self, peer: C, why: str = "") -> None:
        if peer not in self._peers:
            return
        self._peers.discard(peer)
        self._selector.unregister(peer.link)
        peer.link.close()
        self.closed(peer)
        if why:
            role = f" ({peer.role})" if peer.role else ""
            self.say(f"{peer.who}{role}: {why}")

    def say(self, text: str) -> None:
        """Log it. The disk of the log may be full, which is no reason to end."""
        with contextlib.suppress(OSError):
            print(f"{self.name}: {text}", flush=True)

    def release(self, peer: C) -> socket.socket:
        """Leave a connection to the caller, who closes it."""
        self._peers.discard(peer)
        self._selector.unregister(peer.link)
        return peer.link

    def _accept(self) -> None:
        try:
            link, (host, port) = self._listener.accept()
        except OSError:
            return
        # anybody may connect: who has been silent for the longest time gives way
        if len(self._peers) >= self._most:
            silent = [peer for peer in self._peers if not peer.role]
            if not silent:
                link.close()
                return
            self.close(min(silent, key=lambda peer: peer.until_s))
        peer = self._made(link, self._key, f"{host}:{port}")
        link.setblocking(False)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        notice_silence(link)
        self._peers.add(peer)
        self._selector.register(link, selectors.EVENT_READ, peer)
        with contextlib.suppress(OSError):
            link.send(peer.listener.number)

    def _read(self, peer: C) -> None:
        if peer not in self._peers:
            return
        try:
            data = peer.link.recv(TAKEN)
            if not data:
                self.close(peer, "ended" if peer.role in self.noted else "")
                return
            if not peer.role:
                greeted = peer.listener.take(data)
                if greeted is None:
                    return
                data = self._greeted(peer, *greeted)
            peer.data += data
            self.taken(peer)
        except BlockingIOError:
            return
        except (
            OSError,
            ValueError,
            TypeError,
            KeyError,
            OverflowError,
            RecursionError,
            AssertionError,
        ) as error:
            self.close(peer, f"{type(error).__name__}: {error}")

    def _greeted(self, peer: C, role: str, proof: bytes, rest: bytes) -> bytes:
        if not self.admits(role):
            raise ConnectionError(f"wants to be a {role!r}")
        peer.link.send(proof)
        peer.role = role
        if role in self.noted:
            self.say(f"{peer.who}: {role}")
        self.greeted(peer)
        return rest
