"""A job's iterations come home once, however many commands fetch them at the same time."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from orchestrator.hosts import Tail
from orchestrator.jobs import bring_home
from orchestrator.session import Session
from orchestrator.store import JobRecord

TEXT = "".join(json.dumps({"iter": n, "iter_ms": 10.0, "t_wall_ns": n * 10**9}) + "\n" for n in range(1, 51))
PIECE = 700


class Rank0:
    """Serves pieces of a file; whoever asks waits until `asked` have asked, so that all ask for the same piece."""

    def __init__(self, asked: int) -> None:
        self.together = asyncio.Barrier(asked)

    async def tail(self, job: str, host: str, file: str, offset: int) -> Tail:
        if offset == 0:
            await self.together.wait()
        piece = TEXT[offset : offset + PIECE]
        return Tail(piece, offset + len(piece), len(TEXT), "running")


async def test_two_at_once_bring_each_iteration_home_once(tmp_path: Path) -> None:
    lab = SimpleNamespace(name="lab", hosts={"gpu01": None})
    session = cast(Session, SimpleNamespace(hosts=Rank0(2), lab=lab))
    spec = {"wanted": {"workload": "train", "ranks": ["gpu01"]}, "on_hosts": "mlp.1", "backend": "gloo"}
    record = cast(JobRecord, SimpleNamespace(name="mlp", run="2026-11-21-0001", spec=spec))
    await asyncio.gather(*(bring_home(session, "mlp.1", record, tmp_path) for _ in range(2)))
    home = (tmp_path / "mlp.1.iterations.jsonl").read_text()
    assert home == TEXT
