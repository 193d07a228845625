"""How long a launch waits for the iterations of its job."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.jobs import first_iterations as module
from orchestrator.jobs.report import JobStatus


@pytest.mark.parametrize(
    ("each_s", "made"), [(1.0, module.FIRST_ITERATIONS), (25.0, 2), (100.0, 1), (1000.0, 0)]
)
def test_a_launch_waits_for_four_iterations_or_two_slow_ones_and_not_for_ever(
    each_s: float, made: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    async def ask() -> JobStatus:
        return JobStatus("dp", "running", iterations=int(now / each_s))

    clock: Any = SimpleNamespace(monotonic=lambda: now)
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(module.asyncio, "sleep", sleep)
    progress: Any = SimpleNamespace(update=lambda *_: None)
    status = asyncio.run(module.first_iterations(ask, "starts", progress))
    assert status.iterations == made
    assert now <= module.FIRST_ITERATIONS_S + module.POLL_S
