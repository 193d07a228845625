"""`testbed serve`: answer other programs' questions about the lab."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.call import Call, Result, Usage, verb
from orchestrator.cli.listening import Listen, listener_on, url_of
from orchestrator.cli.service import Log, started, stopped, worked
from orchestrator.cli.shared import own_lab
from orchestrator.cli.tones import coloured

if TYPE_CHECKING:
    from orchestrator.background.work import Notify
    from orchestrator.session import Command

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
testbed serve metrics --start                   in the background, until --stop
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
    start: Annotated[bool, typer.Option("--start", help="Serve in the background.")] = False,
    stop: Annotated[bool, typer.Option("--stop", help="Stop serving.")] = False,
    log: Log = None,
) -> Result:
    from optics.errors import Missing
    from orchestrator.views.metrics.process import EXPORTER

    if once + start + stop > 1:
        raise Usage("serve metrics: --once, --start and --stop exclude each other", hint="testbed serve metrics --start")
    if log is not None and (once or stop):
        raise Usage("serve metrics: --log is for serving", hint="testbed serve metrics --start --log FILE")
    if stop:
        return stopped(EXPORTER, EXPORTER.stop(call.settings, own_lab(call)))
    try:
        from prometheus_client.exposition import choose_encoder

        from orchestrator.views.metrics.families import LabMetrics
        from orchestrator.views.metrics.serving import CollectedFamilies
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "prometheus_client":
            raise
        raise Missing("metrics need the Python package prometheus_client", hint="pip install 'optical-testbed[metrics]'") from error
    from orchestrator.views.live import Watcher

    if start:
        words = ["--port", str(port), "--listen", listen]
        return started(EXPORTER, EXPORTER.start(call.settings, own_lab(call), log, words))
    if once:
        with call.store() as store, Watcher(call.settings, store) as watcher:
            encode, _ = choose_encoder("application/openmetrics-text; version=1.0.0")
            text = encode(CollectedFamilies(LabMetrics(call.settings, store, watcher).families())).decode()
        return Result({"openmetrics": text}, text.rstrip("\n"), verbatim=True)
    with suppress(KeyboardInterrupt):
        worked(call, _served, False, log, kept=log is not None, call=call, port=port, listen=listen, log=log)
    return Result({"ended": True}, "Ended")


async def _served(command: Command, *, notify: Notify, call: Call, port: int, listen: str, log: Path | None) -> None:
    """Serve until interrupted. log: of one in the background."""
    import asyncio

    from orchestrator.background.work import emit, serving
    from orchestrator.views.live import Watcher
    from orchestrator.views.metrics.families import LabMetrics
    from orchestrator.views.metrics.process import EXPORTER
    from orchestrator.views.metrics.serving import Endpoint
    from orchestrator.views.web.doors import Names
    from orchestrator.views.web.server import serve_page

    own = EXPORTER.own(call.settings, str(log or ""), kept=log is not None)
    with (
        serving(EXPORTER.file(call.settings, own_lab(call), own)) as file,
        listener_on(call.verb, listen, port) as listener,
        Watcher(call.settings, command.store) as watcher,
    ):
        url, port = url_of(listener, listen)
        lab = LabMetrics(call.settings, command.store, watcher)
        await asyncio.to_thread(lab.families)  # reads all journals, which may take longer than a scrape may

        def ready() -> None:
            file.now(state="serving", url=f"{url}metrics")
            if log is not None:
                emit(notify, "serving", f"{watcher.picture.lab.name}: {url}metrics")
            elif not call.json:
                print(coloured(f"{watcher.picture.lab.name}: {url}metrics\nCtrl-C stops it"), flush=True)

        with suppress(asyncio.CancelledError):
            await serve_page(Endpoint(lab.families, Names(listen, port)), listener, ready)
