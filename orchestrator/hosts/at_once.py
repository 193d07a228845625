"""How many hosts this machine works with at the same moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class AtOnce:
    """Room for so many pieces of work at once. One that takes longer than `patience_s` (s) makes
    room for the next.

    What is bounded is processor time and memory here, of which a host that does not answer takes
    none: it must not keep others waiting, however many there are.
    """

    def __init__(self, most: int, patience_s: float) -> None:
        self._free, self._patience_s = asyncio.Semaphore(most), patience_s

    @asynccontextmanager
    async def room(self) -> AsyncIterator[None]:
        """Wait for room, and have it while the body runs, but no longer than `patience_s`."""
        await self._free.acquire()
        held = True

        def leave() -> None:
            nonlocal held
            if held:
                held = False
                self._free.release()

        late = asyncio.get_running_loop().call_later(self._patience_s, leave)
        try:
            yield
        finally:
            late.cancel()
            leave()
