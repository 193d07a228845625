"""A link: bytes to one device and back, one question at a time, always with a time limit."""

from __future__ import annotations

import asyncio
import socket
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress

from drivers.link.recorder import pass_on
from optics import Garbled, TestbedError, TimedOut, Unreachable

LONGEST = 20
"""A device that sends only unsolicited messages is listened to for this many times `timeout_s`."""
FARTHEST, FARTHEST_S = 180, 900.0
"""An answer that keeps coming may finish, within this many times `timeout_s` and this time (s). The
longest dump on record, ports and connections of a PXC, took 436 s (pynt's measurements): twice
that."""

MOST_BYTES = 1 << 24
"""Bytes after which an answer is rejected, and unsolicited bytes after which the connection is
closed. The longest real answer, the dump of a 320-port table, has 0.1 MB."""


def farthest_s(silence_s: float) -> float:
    """How long (s) an answer may take in all that is never silent for `silence_s` (s)."""
    return max(silence_s, min(FARTHEST * silence_s, FARTHEST_S))


class Dropped(TimedOut):
    """The connection ended before the answer came; what was sent may have been done or not."""


def discreet(error: TestbedError, secret: str) -> TestbedError:
    """The same error without the data last received and without `secret`: a device may echo a
    password, whole or in part.
    """
    text = str(error).partition("; last received")[0]
    return type(error)(text.replace(secret, "***") if secret else text, hint=error.hint)


def reset_at_the_end(sock: socket.socket, yes: bool) -> None:
    """Have the connection end with a reset, whether it is closed or its process is killed; or,
    again, with a farewell (FIN).

    After a FIN the kernel goes on sending what was not acknowledged, for minutes: a command that
    was given up can arrive after the device was read again. A reset drops it (tcp(7), SO_LINGER
    with a time of 0).
    """
    with suppress(OSError):  # it is closed already
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", yes, 0))


class Link(ABC):
    """Bytes to and from the device `who` at `address`.

    A concrete link opens, writes, reads what has arrived and closes; the deadline, the lock and the
    error messages are here, so every transport behaves alike.
    """

    def __init__(self, who: str, address: str, timeout_s: float) -> None:
        self.who = who
        self.address = address
        self.timeout_s = timeout_s
        self._lock = asyncio.Lock()

    def _owed(self, answer: bool) -> None:  # noqa: B027 - not every transport can
        """Called before something is sent (True), and when its answer is there (False).

        While an answer is owed, the end of the connection takes back what has not reached the
        device, where the transport can.
        """

    @property
    @abstractmethod
    def alive(self) -> bool:
        """Whether the connection is open as far as this side can know without asking."""

    @abstractmethod
    async def open(self) -> None:
        """Connect. Raises: Unreachable - no connection within timeout_s (s); nothing was sent."""

    @abstractmethod
    async def close(self) -> None:
        """Close; safe to call twice and on a link that never opened."""

    @abstractmethod
    async def _write(self, data: bytes) -> None:
        """Send `data`. Raises OSError when the connection is known to be gone."""

    @abstractmethod
    async def _read(self, silence_s: float) -> bytes:
        """Return what has come, b"" at the end of the stream. Raises TimeoutError after `silence_s`
        (s) without a byte.
        """

    @abstractmethod
    async def _discard(self) -> None:
        """Drop what came before the next question: a late or repeated answer must not be taken for
        the next one.
        """

    async def send(self, data: bytes, question: str) -> None:
        """Send `data`, which has no answer. Raises: Unreachable - the link is not open. Dropped -
        it ended.
        """
        async with self._lock:
            if not self.alive:
                raise Unreachable(f"{self.who}: not connected to {self.address}")
            try:
                self._owed(True)
                await self._write(data)
                pass_on(self.who, ">", data)
            except OSError as error:
                await self.close()
                raise Dropped(
                    f'{self.who}: connection to {self.address} broke at "{question}": {error}'
                ) from error

    async def exchange(
        self,
        data: bytes,
        complete: Callable[[bytes], bool | None],
        *,
        question: str,
        timeout_s: float | None = None,
        discard: bool = False,
    ) -> None:
        """Send `data`, then feed what comes to `complete` until it returns True; None: nothing of
        this belongs to the answer.

        `question` is what error messages call it (no secrets). `timeout_s` is the longest silence
        (s). `discard` drops bytes that came before the question, for grammars whose answers carry
        no tag. Raises: Unreachable - the link is not open. Dropped - it ended before the answer.
        TimedOut - silence. Garbled - more than MOST_BYTES.
        """
        silence_s = self.timeout_s if timeout_s is None else timeout_s
        async with self._lock:
            if not self.alive:
                raise Unreachable(f"{self.who}: not connected to {self.address}")
            loop = asyncio.get_running_loop()
            began = loop.time()
            ends, at_most = began + LONGEST * silence_s, began + farthest_s(silence_s)
            received, count = b"", 0
            try:
                if discard:
                    await self._discard()
                self._owed(True)
                await self._write(data)
                pass_on(self.who, ">", data)
                while True:
                    left_s = min(ends, at_most) - loop.time()
                    chunk = await self._read(max(0.0, min(silence_s, left_s)))
                    pass_on(self.who, "<", chunk)
                    if not chunk:
                        await self.close()
                        raise Dropped(
                            f'{self.who}: connection to {self.address} ended before the answer to "{question}"'
                        )
                    received, count = (received + chunk)[-120:], count + len(chunk)
                    if count > MOST_BYTES:
                        await self.close()
                        raise Garbled(
                            f'{self.who}: more than {MOST_BYTES} bytes to "{question}"; last received {received!r}'
                        )
                    came = complete(chunk)
                    if came:
                        self._owed(False)
                        return
                    if came is not None:
                        ends = loop.time() + LONGEST * silence_s
            except TimeoutError as error:
                if isinstance(error, TimedOut):
                    raise
                last = f"; last received {received!r}" if received else ""
                took_s = loop.time() - began
                raise TimedOut(
                    f'{self.who}: no answer to "{question}" from {self.address} in {took_s:.1f} s{last}'
                ) from None
            except OSError as error:
                if isinstance(error, Unreachable):
                    raise
                await self.close()
                raise Dropped(
                    f'{self.who}: connection to {self.address} broke at "{question}": {error}'
                ) from error
