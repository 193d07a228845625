"""Two processes share the tests (`make test`: `-n 2`): what builds labs, hosts or servers runs in one of them, in its order."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent
ONE_AFTER_ANOTHER = (
    "end_to_end",
    "hosts",
    "fabric",
    "security",
    "cli",
    "guard",
    "telemetry",
    "dashboards",
    "drills",
    "ui",
    "report",
    "house",
)
"""Folders whose tests start labs or servers that all of the machine sees: group `lab`, begun first since it takes longest."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say which tests belong together: the labs, the run of all conformance checks, and otherwise each module for itself."""
    items[:] = sorted(items, key=lambda item: _parts(item)[0] not in ONE_AFTER_ANOTHER)
    for item in items:
        folder, *rest = _parts(item)
        group = "lab" if folder in ONE_AFTER_ANOTHER else folder if folder == "conformance" else f"{folder}/{'/'.join(rest)}"
        item.add_marker(pytest.mark.xdist_group(group))


def _parts(item: pytest.Item) -> tuple[str, ...]:
    return item.path.relative_to(HERE).parts if item.path.is_relative_to(HERE) else ("elsewhere", item.path.name)
