"""A job's iterations come home once, however many commands fetch them at the same time."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from orchestrator.engine.change.iterations import bring_home
from orchestrator.hosts import ClockReading, Tail
from orchestrator.session import Session
from orchestrator.store.records import JobRecord
from orchestrator.telemetry import read

TEXT = "".join(json.dumps({"iter": n, "iter_ms": 10.0, "t_wall_ns": n * 10**9}) + "\n" for n in range(1, 51))
PIECE = 700


class Rank0:
    """Serves pieces of a file; whoever asks waits until `asked` have asked, so that all ask for the same piece."""

    def __init__(self, asked: int, ahead_ns: int = 0) -> None:
        self.together = asyncio.Barrier(asked)
        self.ahead_ns = ahead_ns

    async def tail(self, job: str, host: str, file: str, offset: int) -> Tail:
        if offset == 0:
            await self.together.wait()
        piece = TEXT[offset : offset + PIECE]
        return Tail(piece, offset + len(piece), len(TEXT), "running")

    async def clocks(self, names: list[str]) -> dict[str, ClockReading]:
        return dict.fromkeys(names, ClockReading(self.ahead_ns, 2_000_000))


async def test_iterations_stand_in_the_journal_at_our_time_though_the_hosts_clock_is_ahead(tmp_path: Path) -> None:
    lab = SimpleNamespace(name="lab", hosts={"gpu01": None})
    spec = {"wanted": {"workload": "train", "ranks": ["gpu01"]}, "on_hosts": "mlp.1", "backend": "gloo"}
    record = cast(JobRecord, SimpleNamespace(name="mlp", run="2026-11-21-0001", spec=spec))
    for run, ahead_ns, moved_ns in (
        ("far", 300_000_000, 300_000_000),
        ("near", 900_000, 0),
    ):  # asked within 2 ms: not to be told apart
        session = cast(Session, SimpleNamespace(hosts=Rank0(1, ahead_ns), lab=lab))
        await bring_home(session, "mlp.1", record, tmp_path / run)
        assert [p.time_ns for p in read(tmp_path / run)] == [n * 10**9 - moved_ns for n in range(1, 51)]


async def test_two_at_once_bring_each_iteration_home_once(tmp_path: Path) -> None:
    lab = SimpleNamespace(name="lab", hosts={"gpu01": None})
    session = cast(Session, SimpleNamespace(hosts=Rank0(2), lab=lab))
    spec = {"wanted": {"workload": "train", "ranks": ["gpu01"]}, "on_hosts": "mlp.1", "backend": "gloo"}
    record = cast(JobRecord, SimpleNamespace(name="mlp", run="2026-11-21-0001", spec=spec))
    await asyncio.gather(*(bring_home(session, "mlp.1", record, tmp_path) for _ in range(2)))
    home = (tmp_path / "mlp.1.iterations.jsonl").read_text()
    assert home == TEXT
