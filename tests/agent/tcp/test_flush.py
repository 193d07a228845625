"""What pushing sockets costs the daemon, whatever the programs do that have them."""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.tcp.flush import Flush


@pytest.fixture
def programs() -> Iterator[list[subprocess.Popen[bytes]]]:
    made = [subprocess.Popen(["sleep", "60"]) for _ in range(5)]
    yield made
    for program in made:
        program.kill()
        program.wait()


def test_a_socket_that_goes_from_process_to_process_leaves_no_descriptor_in_the_daemon(
    monkeypatch: pytest.MonkeyPatch, programs: list[subprocess.Popen[bytes]]
) -> None:
    def ended(_: int, __: int) -> int:
        raise OSError(errno.EBADF, "it was closed there")

    flush = Flush()
    flush.keep, flush.getfd = True, ended
    monkeypatch.setattr(
        "agent.tcp.flush.sockets",
        lambda _: [{"target": "10.1.0.9", "inode": 7, "queued": 1, "unacked": 0}],
    )
    before = len(list(Path("/proc/self/fd").iterdir()))
    for program in programs:
        monkeypatch.setattr(
            "agent.tcp.flush.descriptors", lambda *_, pid=program.pid: iter([(pid, 3, 7)])
        )
        assert flush.prepare(["10.1.0.1"], [])["found"] == 1
        assert flush.push()["pushed"] == 0
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_host_with_very_many_connections_lists_them_seldom(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, listed = 0, 0

    def sockets(_: object) -> list[object]:
        nonlocal now, listed
        listed += 1
        now += 1_000_000_000  # 18 000 connections
        return []

    monkeypatch.setattr("agent.tcp.flush.time.monotonic_ns", lambda: now)
    monkeypatch.setattr("agent.tcp.flush.sockets", sockets)
    flush = Flush()
    flush.keep = True
    for _ in range(100):
        flush.prepare(["10.1.0.1"], [])
        now += 500_000_000
    assert listed <= 3
    flush.keep = False
    assert "skipped" not in flush.prepare(["10.1.0.1"], []), "what an operator asks for is done"
