"""Who starts a private InfluxDB, if several commands do at once."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from optics.errors import TimedOut
from orchestrator.telemetry import influxd


def test_a_command_that_stopped_while_it_started_influxd_keeps_nobody_waiting_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(influxd, "program", lambda: "/bin/false")
    monkeypatch.setattr(influxd, "START_S", 0.2)
    with (tmp_path / "influxd.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(TimedOut, match=f"process {os.getpid()} has been starting it"):
            influxd.start_influxd(tmp_path)
