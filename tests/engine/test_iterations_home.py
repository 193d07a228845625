"""A job's iterations come home once, however many commands fetch them at the same time."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

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


async def test_what_was_sent_for_an_exchange_is_in_the_journal_and_no_exchange_is_no_collective(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = {"iter": 1, "iter_ms": 10.0, "comm_ms": 0.0, "t_wall_ns": 10**9}
    together = alone | {"iter": 2, "bytes": 4000, "wire_bytes": 1500, "algbw_gbps": 0.1, "busbw_gbps": 0.0375}
    together |= {"resent_bytes": 90, "lost_share": 0.01}
    monkeypatch.setattr(f"{__name__}.TEXT", f"{json.dumps(alone)}\n{json.dumps(together)}\n")
    lab = SimpleNamespace(name="lab", hosts={"gpu01": None})
    session = cast(Session, SimpleNamespace(hosts=Rank0(1), lab=lab))
    spec = {"wanted": {"workload": "train", "ranks": ["gpu01"]}, "on_hosts": "mlp.1", "backend": "gloo"}
    record = cast(JobRecord, SimpleNamespace(name="mlp", run="2026-11-21-0001", spec=spec))
    await bring_home(session, "mlp.1", record, tmp_path)
    (found,) = (p for p in read(tmp_path) if p.measurement == "collective")
    assert (found.fields["iter"], found.fields["size_bytes"], found.fields["wire_bytes"]) == (2, 4000, 1500)
    assert (found.fields["resent_bytes"], found.fields["lost_share"]) == (90, 0.01)


async def test_two_at_once_bring_each_iteration_home_once(tmp_path: Path) -> None:
    lab = SimpleNamespace(name="lab", hosts={"gpu01": None})
    session = cast(Session, SimpleNamespace(hosts=Rank0(2), lab=lab))
    spec = {"wanted": {"workload": "train", "ranks": ["gpu01"]}, "on_hosts": "mlp.1", "backend": "gloo"}
    record = cast(JobRecord, SimpleNamespace(name="mlp", run="2026-11-21-0001", spec=spec))
    await asyncio.gather(*(bring_home(session, "mlp.1", record, tmp_path) for _ in range(2)))
    home = (tmp_path / "mlp.1.iterations.jsonl").read_text()
    assert home == TEXT
