"""The page's server in this process, on a free port of loopback; and its stream read as a browser
does.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from orchestrator.views.web.access import Keys, Names
from orchestrator.views.web.safestate import SafeState
from orchestrator.views.web.server import Page, serve_page
from tests.views.web.conftest import LabWriter


@dataclass
class Served:
    """A server that runs."""

    url: str
    page: Page
    keys: Keys
    port: int

    @property
    def origin(self) -> dict[str, str]:
        return {"origin": self.url.rstrip("/")}


@asynccontextmanager
async def served(
    lab_writer: LabWriter, plan: Path | None = None, port: int = 0
) -> AsyncIterator[Served]:
    with lab_writer.watcher() as watcher, socket.create_server(("127.0.0.1", port)) as listener:
        at = listener.getsockname()[1]
        keys, ready = Keys(), asyncio.Event()
        page = Page(
            watcher,
            SafeState(lab_writer.settings, plan, plan.stem if plan else ""),
            Names("127.0.0.1", at),
            keys,
        )
        serving = asyncio.create_task(serve_page(page, listener, ready.set))
        await asyncio.wait_for(ready.wait(), 10)
        try:
            yield Served(f"http://127.0.0.1:{at}/", page, keys, at)
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            # in life it goes on; nothing outlives a test
            if (process := page.safe._process) is not None:
                await asyncio.to_thread(process.wait, 60)
            page.safe.leave()


@asynccontextmanager
async def stream(url: str) -> AsyncIterator[AsyncIterator[tuple[str, Any]]]:
    """The events of a page's stream."""
    async with (
        httpx.AsyncClient(timeout=10) as client,
        client.stream("GET", f"{url}events") as answer,
    ):
        assert answer.status_code == 200, await answer.aread()
        yield _events(answer)


async def _events(answer: httpx.Response) -> AsyncIterator[tuple[str, Any]]:
    name = ""
    async for line in answer.aiter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))
