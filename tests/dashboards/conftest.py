"""The imagined runs in a real InfluxDB."""

from __future__ import annotations

import pytest

from tests.dashboards import synthetic
from tests.dashboards.server import Influx, running_influx

__all__ = ["running_influx"]


@pytest.fixture(scope="session")
def imagined(influx: Influx, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The database that holds the imagined runs."""
    influx.make("imagined")
    for run_dir in synthetic.write(tmp_path_factory.mktemp("imagined")):
        influx.load("imagined", run_dir)
    return "imagined"
