"""A real InfluxDB 1.x for the tests, alone on loopback."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.telemetry.reader import part_files

CONFIG = """
reporting-disabled = true
bind-address = "127.0.0.1:0"
[meta]
  dir = "{folder}/meta"
[data]
  dir = "{folder}/data"
  wal-dir = "{folder}/wal"
  index-version = "tsi1"
  query-log-enabled = false
[http]
  bind-address = "127.0.0.1:{port}"
  log-enabled = false
[monitor]
  store-enabled = false
"""


@dataclass
class Influx:
    """A server of this test run."""

    url: str

    def _call(self, path: str, data: bytes | None = None, **texts: str) -> bytes:
        request = urllib.request.Request(
            f"{self.url}{path}?{urllib.parse.urlencode(texts)}", data=data
        )
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(
                    f"{path}: {error.code} {error.read().decode(errors='replace')}"
                ) from None

    def make(self, database: str) -> None:
        self._call("/query", b"", q=f'CREATE DATABASE "{database}"')

    def load(self, database: str, run_dir: Path) -> None:
        """Write a run's journal as it is."""
        for part in part_files(run_dir):
            lines = part.read_bytes().splitlines(keepends=True)
            for at in range(0, len(lines), 5000):
                self._call("/write", b"".join(lines[at : at + 5000]), db=database, precision="ns")

    def ask(self, database: str, query: str) -> dict[str, Any]:
        """The answer as Grafana gets it."""
        answer: dict[str, Any] = json.loads(self._call("/query", db=database, q=query, epoch="ms"))
        assert "error" not in answer and "error" not in answer["results"][0], f"{query}: {answer}"
        return answer


def binary() -> str | None:
    return shutil.which("influxd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin")


@contextmanager
def serving(influxd: str, folder: Path) -> Iterator[Influx]:
    """A server with its files in `folder`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (folder / "influxdb.conf").write_text(CONFIG.format(folder=folder, port=port))
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [influxd, "run", "-config", folder / "influxdb.conf"], stdout=log, stderr=log
        )
    try:
        give_up = time.monotonic() + 20
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/ping", timeout=2):
                    break
            except OSError:
                assert server.poll() is None and time.monotonic() < give_up, (
                    folder / "log"
                ).read_text()[-2000:]
                time.sleep(0.02)
        yield Influx(f"http://127.0.0.1:{port}")
    finally:
        server.terminate()
        server.wait(20)


@pytest.fixture(name="influx", scope="session")
def running_influx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Influx]:
    influxd = binary()
    if influxd is None:
        assert not os.environ.get("CI"), "influxd is missing: scripts/install-deps"
        pytest.skip(
            "influxd is not installed (scripts/install-deps): no query of any dashboard was run"
        )
    with serving(influxd, tmp_path_factory.mktemp("influxd")) as server:
        yield server
