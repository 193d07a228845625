"""What hosts kept of their ports while a job ran comes home once, from the end of the run that
launched it on.
"""

from __future__ import annotations

import base64
import json
import struct
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from optics import Unreachable
from orchestrator.hosts import ClockReading, Tail
from orchestrator.jobs.ports import fetch_samples
from orchestrator.session import Session
from orchestrator.telemetry import Journal, read_points
from tests.hosts.parts import OwnParts

PIECE = 3
"""Lines that a host hands over at a time."""


def line(host_ns: int, wall_ns: int, count: int) -> str:
    """Two samples of two ports, half a second apart, the later one as the line is written; `count`
    bytes were sent by then.
    """
    rows = b""
    for before in (500_000_000, 0):
        sent = count - before // 10**6
        rows += struct.pack("=qQ16Q", host_ns - before, 0b11, *(1, 1, sent, sent, 0, 0, 0, 0) * 2)
    packed = base64.b64encode(zlib.compress(rows)).decode()
    return (
        json.dumps({"t_ns": host_ns, "wall_ns": wall_ns, "numbers": [1, 2], "rows": packed}) + "\n"
    )


class Kept(OwnParts):
    """Hosts that hand over what they kept; `silent` do not answer."""

    def __init__(self, lines: dict[str, list[str]], ahead_ns: int = 0) -> None:
        self.lines, self.ahead_ns, self.asked, self.silent = lines, ahead_ns, 0, False

    async def clocks(self, names: list[str]) -> dict[str, ClockReading]:
        return dict.fromkeys(names, ClockReading(self.ahead_ns, 1000))

    async def kept_counters(self, job: str, offsets: dict[str, int]) -> dict[str, Tail]:
        self.asked += 1
        if self.silent:
            raise Unreachable("gpu01: no answer")
        found = {}
        for host, offset in offsets.items():
            whole = "".join(self.lines[host])
            piece = "".join(whole[offset:].splitlines(keepends=True)[:PIECE])
            found[host] = Tail(piece, offset + len(piece), len(whole), "")
        return found


async def collected(
    hosts: Kept, run_dir: Path, since: float, *, ended: bool = False
) -> list[tuple[str, str, int, int]]:
    run_dir.mkdir(exist_ok=True)
    session = cast(Session, SimpleNamespace(hosts=hosts, lab=SimpleNamespace(name="lab")))
    await fetch_samples(
        session, "mlp.1", run_dir.name, run_dir, list(hosts.lines), since, ended=ended
    )
    points = [p for p in read_points(run_dir) if p.measurement == "port"]
    return sorted(
        (p.tags["host"], p.tags["port"], p.time_ns // 10**6, int(p.fields["tx_bytes"]))
        for p in points
    )


async def test_every_sample_comes_home_once_at_our_time_and_none_of_the_time_the_run_sampled_itself(
    tmp_path: Path,
) -> None:
    wall = 1_795_000_000 * 10**9
    lines = {
        host: [line(n * 10**9, wall + n * 10**9, 1000 * n) for n in range(1, 9)]
        for host in ("gpu01", "gpu02")
    }
    hosts = Kept({host: some[:7] for host, some in lines.items()}, ahead_ns=250_000_000)
    since = 1_795_000_002.0
    found = await collected(hosts, tmp_path / "r1", since)
    wanted = [wall // 10**6 + n * 1000 - 250 - before for n in range(1, 8) for before in (500, 0)]
    assert [at for host, port, at, _ in found if (host, port) == ("gpu01", "p2")] == [
        at for at in wanted if at > since * 1e3
    ]
    assert len(found) == 4 * 10 and ("gpu02", "p1", wall // 10**6 + 7000 - 250, 7000) in found
    hosts.lines = lines
    assert await collected(hosts, tmp_path / "r1", since) == found, "asked a moment ago"
    assert len(await collected(hosts, tmp_path / "r1", since, ended=True)) == 4 * 12
    assert len(await collected(hosts, tmp_path / "r1", since, ended=True)) == 4 * 12


async def test_a_line_that_is_spoilt_is_a_gap_and_a_silent_host_keeps_its_samples_for_the_next_time(
    tmp_path: Path,
) -> None:
    wall = 1_795_000_000 * 10**9
    good = [line(n * 10**9, wall + n * 10**9, 1000 * n) for n in range(1, 4)]
    hosts = Kept(
        {"gpu01": [good[0], "{\n", '{"t_ns": 1}\n', "[]\n", '{"wall_ns": Infinity}\n', good[2]]}
    )
    hosts.silent = True
    assert await collected(hosts, tmp_path / "r1", 0.0, ended=True) == []
    hosts.silent = False
    assert len(await collected(hosts, tmp_path / "r1", 0.0, ended=True)) == 2 * 2 * 2
    with Journal(tmp_path / "r1", "r1", "lab"):
        pass
