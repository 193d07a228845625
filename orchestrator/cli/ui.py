"""`testbed ui`: serve a web page that shows the lab live."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from optics.extras import extra
from orchestrator.cli.call import Call, Result, verb
from orchestrator.cli.shared import Passive
from orchestrator.cli.tones import coloured
from orchestrator.views.web.listening import LISTEN, listener_on, url_of

if TYPE_CHECKING:
    from orchestrator.store.store import Store

PORT = 8420


app = typer.Typer()


@verb(
    app,
    "ui",
    "Serve a web page that shows the lab live.",
    examples="""
testbed ui                                        open the address it prints
testbed ui --safe-plan examples/ring-12.json      with a button that brings this plan up
testbed ui --listen 0.0.0.0                       read-only for other machines
""",
    more="""
Ctrl-C stops the page, not the lab. It follows the journals and the run store, and receives carrier states, counters and iterations
from the hosts (not with --passive). Devices are not contacted.
""",
)
def ui(
    call: Call,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0: any free port.")
    ] = PORT,
    listen: Annotated[str, typer.Option("--listen", metavar="ADDRESS", help=LISTEN)] = "127.0.0.1",
    safe_plan: Annotated[
        Path | None,
        typer.Option(
            "--safe-plan",
            metavar="PLAN",
            help="Plan that the button brings up (default: the setting safe_plan).",
        ),
    ] = None,
    passive: Passive = False,
) -> Result:
    import asyncio

    with call.store() as store, listener_on(call.verb, listen, port) as listener:
        try:
            text = asyncio.run(
                _served(
                    call,
                    store,
                    listener,
                    listen,
                    safe_plan or call.settings.safe_plan,
                    passive=passive,
                )
            )
        except KeyboardInterrupt:
            text = ""
    return Result({"ended": True}, text or "Ended")


async def _served(
    call: Call,
    store: Store,
    listener: socket.socket,
    listen: str,
    safe_plan: Path | None,
    *,
    passive: bool,
) -> str:
    """Serve until interrupted; return the message for the end."""
    import asyncio
    import signal

    from orchestrator.session import load_plan
    from orchestrator.views.live import Watcher
    from orchestrator.views.live.collect import collect
    from orchestrator.views.web.safestate import SafeState

    with extra("ui", "testbed ui"):
        from orchestrator.views.web.access import Keys, Names
        from orchestrator.views.web.server import Page, serve_page

    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    url, port = url_of(listener, listen)

    def report(text: str) -> None:
        if not call.json:
            print(coloured(text), flush=True)

    with Watcher(call.settings, store) as watcher:
        name = load_plan(safe_plan, watcher.picture.lab)[0].name if safe_plan is not None else ""
        safe = SafeState(call.settings, safe_plan, name)
        keys = Keys(lambda key: report(f"Key for another browser:  {url}#key={key}"))
        page = Page(watcher, safe, Names(listen, port), keys)

        def ready() -> None:
            report(f"{watcher.picture.lab.name}: {url}")
            if safe_plan is not None:
                report(f"With the button for {name} (valid once):  {url}#key={keys.once}")
            report("Ctrl-C stops it")

        asking = None if passive else asyncio.create_task(collect(watcher))
        try:
            await serve_page(page, listener, ready)
        except asyncio.CancelledError:
            pass
        finally:
            if asking is not None:
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
        return safe.leave()
