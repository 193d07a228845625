"""`testbed serve`: answer other programs' questions about the lab."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.call import Call, Result, verb
from orchestrator.cli.listening import Listen, listener_on, url_of
from orchestrator.cli.tones import coloured

if TYPE_CHECKING:
    from orchestrator.store.store import Store

PORT = 8421

app = typer.Typer(name="serve", help="Answer other programs.", no_args_is_help=True, rich_markup_mode=None)


@verb(
    app,
    "metrics",
    "Serve the lab's figures to Prometheus, in OpenMetrics.",
    examples="""
testbed serve metrics                           http://127.0.0.1:8421/metrics
testbed serve metrics --once                    print them and end
testbed serve metrics --listen lab1.example     for a Prometheus on another machine
""",
    more="""
It reads the run store and the journals of this machine, writes nothing, and asks no device or host. Anybody who can reach the
address can read them. Needs the package prometheus_client: pip install 'optical-testbed[metrics]'. docs/how-to/metrics.md
""",
)
def metrics(
    call: Call,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0: any free port.")] = PORT,
    listen: Listen = "127.0.0.1",
    once: Annotated[bool, typer.Option("--once", help="Print the figures and end.")] = False,
) -> Result:
    import asyncio

    from optics.errors import Missing

    try:
        from prometheus_client.exposition import choose_encoder

        from orchestrator.views.metrics.families import LabMetrics
        from orchestrator.views.metrics.serving import Known
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "prometheus_client":
            raise
        raise Missing("metrics need the Python package prometheus_client", hint="pip install 'optical-testbed[metrics]'") from error
    from orchestrator.views.live import Watcher

    if once:
        with call.store() as store, Watcher(call.settings, store) as watcher:
            encode, _ = choose_encoder("application/openmetrics-text; version=1.0.0")
            text = encode(Known(LabMetrics(call.settings, store, watcher).families())).decode()
        return Result({"openmetrics": text}, text.rstrip("\n"), verbatim=True)
    with call.store() as store, listener_on(call.verb, listen, port) as listener:
        try:
            asyncio.run(_served(call, store, listener, listen))
        except KeyboardInterrupt:
            pass
    return Result({"ended": True}, "Ended")


async def _served(call: Call, store: Store, listener: socket.socket, listen: str) -> None:
    """Serve until interrupted."""
    import asyncio
    import signal
    from contextlib import suppress

    from orchestrator.views.live import Watcher
    from orchestrator.views.metrics.families import LabMetrics
    from orchestrator.views.metrics.serving import Endpoint
    from orchestrator.views.web.doors import Names
    from orchestrator.views.web.server import serve

    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    url, port = url_of(listener, listen)
    with Watcher(call.settings, store) as watcher:
        lab = LabMetrics(call.settings, store, watcher)
        await asyncio.to_thread(lab.families)  # reads all journals, which may take longer than a scrape may

        def ready() -> None:
            if not call.json:
                print(coloured(f"{watcher.picture.lab.name}: {url}metrics\nCtrl-C stops it"), flush=True)

        with suppress(asyncio.CancelledError):
            await serve(Endpoint(lab.families, Names(listen, port)), listener, ready)
