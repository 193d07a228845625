"""`testbed service run metrics`: the lab's figures for Prometheus, served until it is stopped, or
printed once.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from optics.extras import extra
from orchestrator.background.work import Notify, emit, serving
from orchestrator.background.work import ready as notified
from orchestrator.session import Command, load_lab
from orchestrator.store.keys import key_of
from orchestrator.views.live import Watcher
from orchestrator.views.metrics.process import EXPORTER, MetricsOptions, MetricsReport
from orchestrator.views.web.listening import listener_on, url_of


async def serve_metrics(
    command: Command, *, notify: Notify, options: MetricsOptions
) -> MetricsReport:
    """Serve until cancelled. Raises: Missing - the library is not installed. Locked - another one
    serves this lab.
    """
    with extra("metrics", "metrics"):
        from prometheus_client.exposition import choose_encoder

        from orchestrator.views.metrics.families import LabMetrics
        from orchestrator.views.metrics.serving import CollectedFamilies, Endpoint
        from orchestrator.views.web.access import Names
        from orchestrator.views.web.server import serve_page

    settings, store = command.settings, command.store
    if options.once:
        with Watcher(settings, store) as watcher:
            encode, _ = choose_encoder("application/openmetrics-text; version=1.0.0")
            return MetricsReport(
                encode(CollectedFamilies(LabMetrics(settings, store, watcher).families())).decode()
            )
    key = key_of(load_lab(command.inventory))
    with (
        serving(EXPORTER.file(settings, key, EXPORTER.own(settings, options))) as file,
        listener_on("service run metrics", options.listen, options.port) as listener,
        Watcher(settings, store) as watcher,
    ):
        url, port = url_of(listener, options.listen)
        lab = LabMetrics(settings, store, watcher)
        # reads all journals, which may take longer than a scrape may
        await asyncio.to_thread(lab.families)

        def ready() -> None:
            file.now(state="serving", url=f"{url}metrics")
            emit(notify, "serving", f"{watcher.picture.lab.name}: {url}metrics")
            notified()

        with suppress(asyncio.CancelledError):
            await serve_page(Endpoint(lab.families, Names(options.listen, port)), listener, ready)
    return MetricsReport()
