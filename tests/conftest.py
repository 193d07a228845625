"""Several processes share the tests (`make test`): what builds labs runs in one of them, in its
order, and what lasts long begins first.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

LAB = (
    *("end_to_end/", "installed/", "hosts/test_hosts_lab", "hosts/test_role", "hosts/test_systemd"),
    *("security/test_doors", "security/test_secrets"),
)
"""Tests that have labs to themselves: one after another, begun first since it takes longest."""
NEXT = ("conformance", "sim", "workloads", "backend", "security", "views", "house", "agent", "cli")
"""Folders that are begun after those: at the end no process is to work alone."""
WHOLE = ("backend", "conformance", "dashboards", "house", "telemetry")
"""Folders whose modules share a costly beginning."""
FEW, MANY = 30, 100
"""Examples of a property that does not say how many it needs, and beside the long tests."""


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


def pytest_configure(config: pytest.Config) -> None:
    """Tests set their own signals and terminal: `nohup`, a script's `&` and CI runners hand down an
    ignored SIGINT, TERM=dumb. Properties have the same few examples every time, and more and new ones
    beside the long tests.
    """
    short = config.option.markexpr == "not long"
    settings.register_profile(
        "ours",
        deadline=None,  # no test judges time
        derandomize=short,
        max_examples=FEW if short else MANY,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("ours")
    for number, handler in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGTERM, signal.SIG_DFL),
    ):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, handler)
    for name in _SHOWN_OF_OUTPUT:
        os.environ.pop(name, None)
    os.environ.update(TERMINAL)


def _scope(test: str) -> str:
    """What is done by one process: the labs, a folder, or a module."""
    module = test.partition("::")[0].removeprefix("tests/")
    folder = module.partition("/")[0]
    return "labs" if module.startswith(LAB) else folder if folder in WHOLE else module


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    turns = {folder: turn for turn, folder in enumerate(("labs", *NEXT))}
    items.sort(key=lambda item: turns.get(_scope(item.nodeid).partition("/")[0], len(turns)))


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
        return _scope(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Shared:
    config.option.loadscopereorder = False  # not those of the most tests first
    return Shared(config, log)
