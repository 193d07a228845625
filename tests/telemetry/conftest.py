"""One real influxd for all tests of this folder; each test has a database of its own."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from orchestrator.telemetry import Journal
from orchestrator.telemetry.influx import Influx
from orchestrator.telemetry.influx_api import InfluxTarget
from tests.telemetry.servers import influx

_NAMES = count()


@pytest.fixture(scope="session")
def influx_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with influx(tmp_path_factory.mktemp("influx")) as server:
        yield server.url


@pytest.fixture
def target(influx_url: str) -> InfluxTarget:
    return InfluxTarget(influx_url, f"test{next(_NAMES)}")


def fill(run_dir: Path, points: int, *, first: int = 0, part_bytes: int = 1 << 26) -> None:
    """Write so many points of measurement `port` into the journal of a run; rx_bytes counts them
    from `first`.
    """
    with Journal(run_dir, run_dir.name, "lab", part_bytes=part_bytes) as journal:
        for n in range(first, first + points):
            journal.point(
                "port",
                {"host": f"gpu{n % 7}", "port": "p1", "layer": "nic"},
                {"rx_bytes": n, "oper": 1},
            )


def held(target: InfluxTarget) -> tuple[int, int]:
    """How many points the server has and the sum of what they count: equal to what was written when
    none is lost or doubled.
    """
    influx = Influx(target)
    series = influx.query("SELECT COUNT(rx_bytes), SUM(rx_bytes) FROM port")
    return (int(series[0]["values"][0][1]), int(series[0]["values"][0][2])) if series else (0, 0)
