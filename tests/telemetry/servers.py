"""Real servers for the tests, on loopback: InfluxDB 1.6.7 and VictoriaMetrics of Debian, and one
that is none.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest

from orchestrator.telemetry import influxd


def needed(program: str, package: str) -> str:
    """Where a program is. Without it the test is skipped, and in continuous integration it
    fails.
    """
    found = influxd.program() if program == "influxd" else shutil.which(program)
    if found:
        return found
    if os.environ.get("CI", "").lower() in ("1", "true"):
        pytest.fail(
            f"{program} is not installed: apt-get install -y --no-install-recommends {package}"
        )
    pytest.skip(f"{program} is not installed: apt-get install -y --no-install-recommends {package}")


@contextmanager
def influx(folder: Path, *, auth: bool = False) -> Iterator[influxd.Private]:
    """A private influxd, gone with the block."""
    needed("influxd", "influxdb")
    try:
        yield influxd.start_influxd(folder, port=0, auth=auth)
    finally:
        influxd.stop_influxd(folder)


@contextmanager
def victoria(folder: Path) -> Iterator[str]:
    """VictoriaMetrics; yields its URL."""
    binary = needed("victoria-metrics", "victoria-metrics")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = [
        f"-httpListenAddr=127.0.0.1:{port}",
        f"-storageDataPath={folder}",
        "-retentionPeriod=100y",
    ]
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen([binary, *options], stdout=log, stderr=log) as process,
    ):
        try:
            give_up = time.monotonic() + 20
            while True:
                with socket.socket() as link:
                    if link.connect_ex(("127.0.0.1", port)) == 0:
                        break
                assert process.poll() is None and time.monotonic() < give_up, (
                    folder / "log"
                ).read_text()
                time.sleep(0.02)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


@dataclass
class Request:
    """One request as it came."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


@dataclass
class Stub:
    """A server that answers from a list: `answers` maps method and path to status, headers, body;
    the last entry stays.
    """

    url: str = ""
    answers: dict[str, list[tuple[int, dict[str, str], bytes]]] = field(default_factory=dict)
    heard: list[Request] = field(default_factory=list)

    def of(self, path: str) -> list[Request]:
        return [request for request in self.heard if request.path == path]


@contextmanager
def stub(
    version: str = "v2.9.0", **answers: list[tuple[int, dict[str, str], bytes]]
) -> Iterator[Stub]:
    """A loopback server that says it is InfluxDB `version`; other answers by `METHOD path`."""
    notified = Stub(answers={"GET /ping": [(204, {"X-Influxdb-Version": version}, b"")], **answers})

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            parts = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            notified.heard.append(
                Request(self.command, parts.path, dict(parse_qsl(parts.query)), headers, body)
            )
            answers = notified.answers.get(f"{self.command} {parts.path}", [(404, {}, b"")])
            status, more, text = answers.pop(0) if len(answers) > 1 else answers[0]
            self.send_response(status)
            for name, value in more.items():
                self.send_header(name, value)
            if status != 204:
                self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            if status != 204:
                self.wfile.write(text)

        do_GET = do_POST = answer

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    notified.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield notified
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def black_hole() -> Iterator[str]:
    """A port that takes connections and never says a word."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
