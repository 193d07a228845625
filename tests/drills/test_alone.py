"""S10: nothing outside the lab has a say in a change: no database, no dashboard."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from orchestrator.telemetry.reader import read_points
from tests.drills.bench import opened, plan_text
from tests.drills.device_faults import HERE, HOSTS


async def test_a_change_talks_to_the_lab_alone_and_every_point_is_in_its_own_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: set[int] = set()
    connect = socket.socket.connect

    def connecting(self: socket.socket, address: Any) -> None:
        called.add(address[1])
        connect(self, address)

    async with opened(tmp_path, hosts=HOSTS) as bench:
        loop_connect = type(bench.servers["ocs1"].loop).sock_connect

        async def loop_connecting(self: Any, sock: socket.socket, address: Any) -> None:
            called.add(address[1])
            await loop_connect(self, sock, address)

        monkeypatch.setattr(socket.socket, "connect", connecting)
        monkeypatch.setattr(type(bench.servers["ocs1"].loop), "sock_connect", loop_connecting)
        for name in ("TESTBED_INFLUX_URL", "TESTBED_GRAFANA_URL", "INFLUXDB_V2_URL", "GRAFANA_URL"):
            monkeypatch.setenv(name, "http://127.0.0.1:9/")
        report = await bench.up(plan_text("here", HERE))
        assert called == {server.port for server in bench.servers.values()}
        points = list(read_points(Path(report.journal).parent))
        assert {phase.name for phase in report.phases} <= {
            p.tags["phase"] for p in points if p.measurement == "phase"
        }
        assert {p.tags["device"] for p in points if p.measurement == "reconfig_device"} == set(
            bench.servers
        )
