"""Moments at which a change went wrong in a seeded story, told without one: an agent that does not run, routes under a new number,
others that wait; judged by what devices and hosts hold, and by what the store says."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from orchestrator.engine import verbs as engine
from orchestrator.engine.change import run as changes
from orchestrator.hosts import Hello
from tests.drills.bench import Bench, opened, plan_text

RING = [("gpu01:p1", "gpu02:p1"), ("gpu02:p2", "gpu03:p2")]
MOVED = [("gpu01:p3", "gpu02:p3"), ("gpu01:p2", "gpu02:p2")]  # gpu03 leaves


@pytest.fixture
async def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    monkeypatch.setattr(changes, "watch_over", lambda settings, run: os.getpid())
    async with opened(tmp_path) as made:
        yield made


async def test_down_asks_a_host_whose_agent_does_not_run_once_it_does(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    await bench.up(plan_text("ring", RING))
    hello, asleep = bench.fleet.hello, {"gpu03"}
    monkeypatch.setattr(bench.fleet, "hello", lambda name: Hello(name) if name in asleep else hello(name))

    async def provision(names: list[str]) -> None:
        asleep.difference_update(names)

    monkeypatch.setattr(bench.fleet, "provision", provision)
    report = await bench.verb(engine.down)
    assert not report.left and not asleep
    assert {host.active for host in bench.fleet.all.values()} == {None}


async def test_down_lists_a_host_whose_agent_does_not_start(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    await bench.up(plan_text("ring", RING))
    hello = bench.fleet.hello
    monkeypatch.setattr(bench.fleet, "hello", lambda name: Hello(name) if name == "gpu03" else hello(name))

    async def provision(names: list[str]) -> None:
        bench.fleet.all["gpu03"].up = False

    monkeypatch.setattr(bench.fleet, "provision", provision)
    report = await bench.verb(engine.down)
    assert [line.partition(":")[0] for line in report.left] == ["gpu03"]
