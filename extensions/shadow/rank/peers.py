"""Who talks to a shadow: both ends show that they know the job's key before anything else is said.

The shadow says a number, the other answers with what it wants, a number of its own and a proof, and
the shadow proves itself. A process that took the shadow's port meanwhile gets nothing, and nobody
else can give the shadow anything. The agent has the same (extensions/shadow/host/tap.py).
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import socket
import time
from dataclasses import dataclass

NUMBER, PROOF = 16, 32
"""Bytes of the numbers of both ends, and of a proof."""
ROLE = 8
"""Bytes of the word for what the other end wants: tap, job, state or restore, filled up with
spaces.
"""
SILENT_S = 60
"""A connection ends when the other end's host does not answer for so long (s)."""
GREETING_S = 20.0
"""How long (s) an end may take to prove itself: a shadow imports torch before it answers."""
VARIABLE = "TESTBED_OBSERVER_SHADOW"
RESTORE = ("", "shadow", "newest")


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where a job's shadow listens, and the key of both.

    restore: the ranks begin from the checkpoint of an earlier shadow; `newest`: where theirs in
    common is older. Empty: from theirs, and the shadow drops what it finds.
    """

    address: str
    port: int
    key: bytes
    restore: str = ""


def meeting(text: str) -> Meeting:
    """What TESTBED_OBSERVER_SHADOW says: JSON with address, port, key (hexadecimal) and restore (of
    RESTORE).

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
            f"{VARIABLE}: not a JSON object with address, port and key: {error}"
        ) from error


def proof(key: bytes, who: bytes, first: bytes, second: bytes) -> bytes:
    """What shows that one knows the key: for these two numbers, and for nothing else."""
    return hmac.new(key, who + first + second, hashlib.sha256).digest()


def connect(meeting: Meeting, role: str, within_s: float) -> socket.socket:
    """A connection to the shadow, in the role `job`, `state` or `restore`; tries until the time is
    over, as it may not listen yet.

    Raises: OSError - it does not answer, or does not know the key.
    """
    until_s = time.monotonic() + within_s
    while True:
        try:
            link = socket.create_connection(
                (meeting.address, meeting.port), timeout=max(until_s - time.monotonic(), 0.1)
            )
            break
        except OSError:
            if time.monotonic() >= until_s:
                raise
            time.sleep(0.1)
    try:
        notice_silence(link)
        link.settimeout(GREETING_S)
        first, second, who = (
            exactly(link, NUMBER),
            secrets.token_bytes(NUMBER),
            role.encode().ljust(ROLE),
        )
        link.sendall(who + second + proof(meeting.key, who, first, second))
        if not hmac.compare_digest(
            exactly(link, PROOF), proof(meeting.key, b"shadow", first, second)
        ):
            raise ConnectionError(f"{meeting.address}:{meeting.port} is not the job's shadow")
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
    """The shadow's end of one greeting, fed with what comes in."""

    WHOLE = ROLE + NUMBER + PROOF

    def __init__(self, key: bytes) -> None:
        self._key, self.number = key, os.urandom(NUMBER)
        self._reported = b""

    def take(self, data: bytes) -> tuple[str, bytes, bytes] | None:
        """The role, the shadow's proof to send, and what came after the greeting; None while it is
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
            proof(self._key, b"shadow", self.number, second),
            rest,
        )
