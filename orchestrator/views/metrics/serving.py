"""The endpoint that Prometheus reads, behind the guards of the page of `testbed ui`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from optics import TestbedError
from orchestrator.views.web.access import Listeners, Names
from orchestrator.views.web.crowd import guarded

AGAIN_S = 1.0
"""Store and journals are read at most so often (s), whoever asks."""


class CollectedFamilies:
    """Families that were collected before, as prometheus_client's encoders take them."""

    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Sequence[Metric]:
        return self._families


class Endpoint:
    """The application: `/metrics`, in OpenMetrics or the older text format, as the request accepts.
    collect: reads all again.
    """

    def __init__(self, collect: Callable[[], Sequence[Metric]], names: Names) -> None:
        self._collect = collect
        self._one = asyncio.Lock()
        self._known, self._at = CollectedFamilies(()), float("-inf")
        routes = [Route("/metrics", self._metrics), Route("/", self._index)]
        self.protocol, _ = guarded()
        self.app = Starlette(routes=routes, middleware=[Middleware(Listeners, names=names)])

    def refresh(self) -> None:
        """Nothing: it reads when it is asked."""

    def close(self) -> None:
        """Nothing: no answer takes long."""

    async def _index(self, request: Request) -> Response:
        return Response("The metrics of testbed: /metrics\n", media_type="text/plain")

    async def _metrics(self, request: Request) -> Response:
        async with self._one:
            if time.monotonic() >= self._at + AGAIN_S:
                try:
                    self._known = CollectedFamilies(await asyncio.to_thread(self._collect))
                except TestbedError as error:
                    return Response(
                        f"{error}\n",
                        503,
                        media_type="text/plain",
                        headers={"cache-control": "no-store"},
                    )
                self._at = time.monotonic()
            known = self._known
        encode, kind = choose_encoder(", ".join(request.headers.getlist("accept")))
        return Response(
            await asyncio.to_thread(encode, known),
            headers={"content-type": kind, "cache-control": "no-store"},
        )
