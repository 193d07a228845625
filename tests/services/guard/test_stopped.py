"""What a user has stopped no guard launches again, whatever had become of it before."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from orchestrator.hosts.api import Hello
from orchestrator.services.guard.policy import Budget
from orchestrator.session import Command, Session
from orchestrator.verbs import job as job_verbs
from tests.services.guard.test_job_watch import FOUR, HERE, Bench


async def test_a_job_that_had_failed_when_it_was_stopped_is_not_launched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, Budget(3, 3600.0))

    @asynccontextmanager
    async def opened(*_: object) -> AsyncIterator[Session]:
        yield bench.session

    async def connect(names: Collection[str]) -> dict[str, Hello]:
        return {}

    monkeypatch.setattr(job_verbs, "load_lab", lambda _: HERE)
    monkeypatch.setattr(Command, "opened", opened)
    monkeypatch.setattr(bench.hosts.channels, "connect", connect, raising=False)
    await bench.launch()
    bench.end(gpu02="killed")
    status = await job_verbs.job_stop(bench.command)
    assert status.state == "stopped" and "gpu02: killed" in status.detail
    assert "running" not in {
        (await bench.hosts.states(name, FOUR))[rank].state
        for name in bench.hosts.ran
        for rank in FOUR
    }
    assert await bench.look(3) == "none" and len(bench.hosts.launched) == 1
