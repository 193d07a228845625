"""A blocking library (pyvisa, pyserial) behind the asyncio link: one thread per device."""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from drivers.link.base import Link

T = TypeVar("T")

SLICE_S = 0.2
"""Longest time (s) one library call may block: cancelling or closing never waits longer than this
for the thread.
"""


async def kept(
    opening: asyncio.Future[T],
    drop: Callable[[T], object],
    hurry: Callable[[], object] = lambda: None,
) -> T:
    """Await what a thread opens.

    Cancelled, `hurry` the thread, wait for it, which has a deadline of its own, and `drop` what it
    opened all the same.
    """
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        hurry()
        (opened,) = await asyncio.gather(opening, return_exceptions=True)
        if not isinstance(opened, BaseException):
            drop(opened)
        raise


class BlockingLink(Link):
    """A link whose five operations block; each runs in the device's own thread, in slices of at
    most SLICE_S.
    """

    def __init__(self, who: str, address: str, timeout_s: float) -> None:
        super().__init__(who, address, timeout_s)
        self._thread: ThreadPoolExecutor | None = None
        self._is_open = False

    @abstractmethod
    def _open(self) -> None:
        """Open. Raises Unreachable."""

    @abstractmethod
    def _close(self) -> None:
        """Close; safe when not open."""

    @abstractmethod
    def _send(self, data: bytes) -> None:
        """Write all of `data`. Raises OSError."""

    @abstractmethod
    def _receive(self, silence_s: float) -> bytes | None:
        """Return what arrived within `silence_s` (s), b"" at the end of the stream, None for
        silence.
        """

    @abstractmethod
    def _forget(self) -> None:
        """Drop what has come already."""

    @abstractmethod
    def _ended(self) -> bool:
        """Whether the other end is known to have gone."""

    def _hurry(self) -> None:
        """End what the thread waits for while it opens; called in the event loop, must not
        block.
        """

    @property
    def alive(self) -> bool:
        return self._is_open and not self._ended()

    async def open(self) -> None:
        await self.close()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"link-{self.who}")
        try:
            await self._call(self._open)
        except BaseException:
            self._hurry()
            await self.close()
            raise
        self._is_open = True

    async def close(self) -> None:
        self._is_open = False
        thread, self._thread = self._thread, None
        if thread is None:
            return
        await asyncio.get_running_loop().run_in_executor(thread, self._close)
        thread.shutdown(wait=True)

    async def _call(self, verb: Callable[[], T]) -> T:
        if self._thread is None:
            raise ConnectionResetError("closed")
        return await asyncio.get_running_loop().run_in_executor(self._thread, verb)

    async def _write(self, data: bytes) -> None:
        await self._call(lambda: self._send(data))

    async def _read(self, silence_s: float) -> bytes:
        ends = time.monotonic() + silence_s
        while True:
            left_s = ends - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            slice_s = min(left_s, SLICE_S)
            data = await self._call(lambda slice_s=slice_s: self._receive(slice_s))  # type: ignore[misc]
            if data is not None:
                return data

    async def _discard(self) -> None:
        await self._call(self._forget)
