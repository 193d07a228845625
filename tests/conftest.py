"""Two processes share the tests (`make test`: `-n 2`): what builds labs, hosts or servers runs in
one of them, in its order.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

# no test judges time
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

LAB = ("end_to_end", "hosts", "fabric", "security", "guard", "drills", "installed")
"""Folders whose tests start labs: one after another, begun first since it takes longest."""
WHOLE = ("backend", "conformance", "dashboards", "house", "telemetry")
"""Folders whose modules share a costly beginning."""


TERMINAL = {"TERM": "xterm", "LANG": "C.UTF-8"}
"""What programs under test are told of a terminal; those tests that need another say so."""
_SHOWN_OF_OUTPUT = (
    "NO_COLOR",
    "FORCE_COLOR",
    "CLICOLOR",
    "CLICOLOR_FORCE",
    "COLUMNS",
    "LINES",
    "LC_ALL",
    "PYTHONIOENCODING",
    "CI",
)


def pytest_configure() -> None:
    """Tests set their own signals and terminal: `nohup`, a script's `&` and CI runners hand down an
    ignored SIGINT, TERM=dumb.
    """
    for number, handler in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGTERM, signal.SIG_DFL),
    ):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, handler)
    for name in _SHOWN_OF_OUTPUT:
        os.environ.pop(name, None)
    os.environ.update(TERMINAL)


def _folder(test: str) -> str:
    """The folder below tests/ in which a test lies: the first one, or the one with labs."""
    folder = test.partition("::")[0].removeprefix("tests/").rpartition("/")[0]
    return folder if folder in LAB else folder.partition("/")[0]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _folder(item.nodeid) not in LAB)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected stays: to look through its millions of objects again and again
    takes time and frees nothing.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


class Shared(LoadScopeScheduling):  # type: ignore[misc]
    """The labs together, what shares a beginning together, and every other module for itself."""

    def _split_scope(self, nodeid: str) -> str:
        folder = _folder(nodeid)
        return "labs" if folder in LAB else folder if folder in WHOLE else nodeid.partition("::")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Shared:
    return Shared(config, log)
