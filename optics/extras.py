"""Packages that one part of the program needs, each in an extra of this distribution."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from optics.errors import Missing

_OWN = (
    "agent",
    "conformance",
    "dashboards",
    "drivers",
    "emulators",
    "extensions",
    "optical_testbed",
    "optics",
    "orchestrator",
    "planner",
    "playbooks",
    "workloads",
)


@contextmanager
def extra(name: str, purpose: str) -> Iterator[None]:
    """Import within this block what only `purpose` needs.

    name: the extra in pyproject.toml that has the packages. Raises: Missing - one of them is not
    installed; the hint is the command that installs the extra. ModuleNotFoundError - a module of
    this program is missing, which nobody could install.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in _OWN:
            raise
        raise _absent(name, purpose, error.name) from error


def need(name: str, purpose: str, package: str) -> None:
    """Raise Missing, as `extra` does, if the package is not installed; nothing is imported."""
    if find_spec(package) is None:
        raise _absent(name, purpose, package)


def _absent(name: str, purpose: str, package: str | None) -> Missing:
    return Missing(
        f"{purpose}: the Python package {package} is not installed",
        hint=f"{sys.executable} -m pip install 'optical-testbed[{name}]'",
    )
