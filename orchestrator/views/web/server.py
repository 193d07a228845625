"""Serve the page and push changes to it: server-sent events, one stream per page, beginning with
the whole picture.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from typing import Protocol

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from orchestrator.results import Json
from orchestrator.telemetry.palette import ALL_COLOURS
from orchestrator.views.live.sections import changed_sections, whole_picture
from orchestrator.views.live.watcher import LOOK_S, Watcher
from orchestrator.views.web.access import Keys, Listeners, Names
from orchestrator.views.web.crowd import Client, Guarded, Places, guarded, owners
from orchestrator.views.web.safestate import SafeState

PAGES = 32
"""Maximum number of streams; for one more, the owner of the most streams loses the oldest of
them.
"""
AGAIN_MS = 5000
"""An evicted page reconnects after this long (ms)."""
BODY_S = 5.0
"""Longest time (s) for the body of a request."""
WAITING = 256
"""Messages queued for a slow page; beyond that they are dropped and it gets the whole picture."""
HEARTBEAT_S = 5.0
"""Interval (s) of heartbeats on an idle stream, so that either side notices when the other is
gone.
"""
_MOST_BODY = 4096

STATIC: Mapping[str, str] = {
    "index.html": "text/html; charset=utf-8",
    "style.css": "text/css; charset=utf-8",
    "app.js": "text/javascript; charset=utf-8",
    "fabric.js": "text/javascript; charset=utf-8",
    "charts.js": "text/javascript; charset=utf-8",
    "waterfall.js": "text/javascript; charset=utf-8",
    "carried.js": "text/javascript; charset=utf-8",
    "ranks.js": "text/javascript; charset=utf-8",
    "slots.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
    "vendor/uPlot.iife.min.js": "text/javascript; charset=utf-8",
    "vendor/uPlot.min.css": "text/css; charset=utf-8",
    "vendor/uPlot.LICENSE.txt": "text/plain; charset=utf-8",
}
"""Every file of the page; nothing else is served."""


@dataclass(frozen=True, slots=True)
class _File:
    body: bytes
    kind: str
    tag: str


def _load() -> dict[str, _File]:
    folder = files("orchestrator.views.web") / "static"
    found = {}
    for name, kind in STATIC.items():
        body = folder.joinpath(*name.split("/")).read_bytes()
        found[name] = _File(body, kind, f'"{hashlib.sha256(body).hexdigest()[:16]}"')
    return found


class EventStream:
    """The messages queued for one page. client: the source of its connection."""

    def __init__(self, client: Client | None) -> None:
        self.client = client
        self.queue: asyncio.Queue[str | None] = asyncio.Queue(WAITING)

    def emit(self, message: str | None, instead: str = "") -> None:
        """Add a message; if the queue is full, `instead` replaces everything in it."""
        try:
            self.queue.put_nowait(message)
        except asyncio.QueueFull:
            while not self.queue.empty():
                self.queue.get_nowait()
            self.queue.put_nowait(message if message is None else instead)


class Hub:
    """Sends every change to all pages."""

    def __init__(self) -> None:
        self._streams: Places[EventStream] = Places(lambda: PAGES)
        self.closed = False

    def __len__(self) -> int:
        return len(self._streams)

    @contextmanager
    def joined(self, client: Client | None = None) -> Iterator[EventStream]:
        stream = EventStream(client)
        ended = self._streams.take(stream, _owners)
        if ended is not None:
            ended.emit(CROWDED)
            ended.emit(None)
        try:
            yield stream
        finally:
            self._streams.leave(stream)

    def publish(self, message: str) -> None:
        for stream in self._streams:
            stream.emit(message)  # a page that is too far behind gets the whole picture instead

    def close(self) -> None:
        """End all streams."""
        self.closed = True
        for stream in self._streams:
            stream.emit(None)


def _owners(streams: list[EventStream]) -> dict[EventStream, str]:
    by_client = owners(stream.client for stream in streams)
    return {stream: by_client[stream.client] for stream in streams}


def event(name: str, data: Mapping[str, Json]) -> str:
    """One server-sent event; JSON has no line breaks of its own."""
    return f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n"


CROWDED = f"retry: {AGAIN_MS}\n" + event("crowded", {"again_ms": AGAIN_MS})


class Page:
    """The application: its routes, its picture, access to the button."""

    def __init__(self, watcher: Watcher, safe: SafeState, names: Names, keys: Keys) -> None:
        self.watcher, self.safe, self.names, self.keys = watcher, safe, names, keys
        self.hub = Hub()
        self._files = _load()
        self._instance = secrets.token_hex(4)
        routes = [
            Route("/", self._file),
            Route("/events", self._events),
            Route("/picture", self._picture),
            Route("/enter", self._enter, methods=["POST"]),
            Route("/safe", self._press, methods=["POST"]),
            Route("/{name:path}", self._file),
        ]
        self.protocol, self.connections = guarded()
        self.app = Starlette(routes=routes, middleware=[Middleware(Listeners, names=names)])

    def whole(self) -> dict[str, Json]:
        return whole_picture(self.watcher.picture) | {
            "safe": dict(self.safe.json()),
            "colours": {**ALL_COLOURS},
            "instance": self._instance,
        }

    def refresh(self) -> None:
        """Update the picture and send the changes to all pages."""
        self.watcher.refresh()
        changed = changed_sections(self.watcher.picture)
        if self.safe.poll():
            changed["safe"] = dict(self.safe.json())
        if changed:
            self.hub.publish(event("change", changed))

    def close(self) -> None:
        """End all streams."""
        self.hub.close()

    async def _file(self, request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        found = self._files.get(name)
        if found is None:
            return Response("no such page\n", 404, media_type="text/plain")
        headers = {"etag": found.tag, "cache-control": "no-cache"}
        if request.headers.get("if-none-match") == found.tag:
            return Response(status_code=304, headers=headers)
        return Response(found.body, headers=headers, media_type=found.kind)

    async def _picture(self, request: Request) -> Response:
        return JSONResponse(self.whole(), headers={"cache-control": "no-store"})

    async def _events(self, request: Request) -> Response:
        if self.hub.closed:
            return Response(
                "the server is ending\n", 503, headers={"retry-after": "5"}, media_type="text/plain"
            )
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(
            self._stream(request.client), headers=headers, media_type="text/event-stream"
        )

    async def _stream(self, client: Client | None) -> AsyncIterator[str]:
        with self.hub.joined(client) as stream:
            yield "retry: 500\n" + event("whole", self.whole())
            while True:
                try:
                    message = await asyncio.wait_for(stream.queue.get(), HEARTBEAT_S)
                except TimeoutError:
                    yield "event: heartbeat\ndata: {}\n\n"
                    continue
                if message is None:
                    return
                yield message or event("whole", self.whole())

    async def _enter(self, request: Request) -> Response:
        token = self.keys.enter(await _key(request))
        if token is None:
            return _reported(
                403, "this key is used or unknown: open the address that testbed ui printed last"
            )
        return JSONResponse({"token": token}, headers={"cache-control": "no-store"})

    async def _press(self, request: Request) -> Response:
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not self.keys.holds(token):
            return _reported(
                401, "this page has no key: open the address with a key that testbed ui printed"
            )
        if self.safe.plan is None:
            return _reported(
                409,
                "no safe plan is set: testbed ui --safe-plan PLAN, or safe_plan in testbed.toml",
            )
        if not self.safe.press():
            return _reported(409, f"the change to {self.safe.name} is under way already")
        self.hub.publish(event("change", {"safe": dict(self.safe.json())}))
        return _reported(202, self.safe.message)


def _reported(status: int, text: str) -> Response:
    return JSONResponse({"message": text}, status, headers={"cache-control": "no-store"})


async def _key(request: Request) -> str:
    """The key in a small JSON body; empty where there is none."""
    body = b""
    try:
        async with asyncio.timeout(BODY_S):
            async for piece in request.stream():
                body += piece
                if len(body) > _MOST_BODY:
                    return ""
    except TimeoutError:
        return ""
    try:
        reply = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    found = reply.get("key") if isinstance(reply, dict) else None
    return found if isinstance(found, str) else ""


class Served(Protocol):
    """What `serve_page` serves. refresh: called every `LOOK_S`; close: ends answers that would
    last.
    """

    app: Starlette
    protocol: type[Guarded]

    def refresh(self) -> None: ...

    def close(self) -> None: ...


class _Server(uvicorn.Server):
    """A server that installs no signal handlers."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve_page(page: Served, listener: socket.socket, ready: Callable[[], None]) -> None:
    """Serve until cancelled; `ready` is called once pages can be opened. Streams end with it."""
    config = uvicorn.Config(
        page.app,
        loop="asyncio",
        http=page.protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",  # errors of unrelated clients do not belong on the operator's terminal
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=2,
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    announced = False
    try:
        while not serving.done():
            if server.started and not announced:
                announced = True
                ready()
            page.refresh()
            await asyncio.sleep(LOOK_S)
    finally:
        page.close()
        server.should_exit = True
        await serving
