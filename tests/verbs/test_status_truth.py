"""`status` tells what was read, and of what nobody could read it says so."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from orchestrator.background.kind import StateFile
from orchestrator.background.registry import kinds
from orchestrator.cli import render
from orchestrator.hosts import Hello
from tests.drills.bench import Bench, opened, plan_text

ONE = [("gpu01:p1", "gpu02:p1")]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with opened(tmp_path, hosts=3) as made:
        yield made


def without_committer(bench: Bench, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """The program on these hosts is dead: one can log in, and nobody answers there."""
    answers = bench.fleet.hello
    monkeypatch.setattr(
        bench.fleet, "hello", lambda name: Hello(name) if name in names else answers(name)
    )


async def test_a_dead_committer_is_told_and_nothing_is_said_of_routes_and_ports_nobody_read(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.up(plan_text("one", ONE))
    without_committer(bench, monkeypatch, "gpu02")
    report = await bench.status()
    well, dead, idle = report.hosts
    assert (well.ok, well.up, well.committer) == (True, 1, True)
    assert (dead.ok, dead.up, dead.generation, dead.committer, dead.planned) == (
        False,
        None,
        None,
        False,
        1,
    )
    assert "no agent answers" in dead.error and "testbed up" in dead.error
    assert not report.ok and not any("generation None" in line for line in report.drift), (
        report.drift
    )
    assert idle.ok
    (line,) = (line for line in render.status(report, False).splitlines() if "gpu02" in line)
    assert line.split()[:4] == ["gpu02", "FAIL", "-", "-/1"] and "no agent answers" in line


async def test_a_host_that_was_never_provisioned_is_no_fault_and_nothing_is_said_of_its_ports(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_committer(bench, monkeypatch, "gpu01", "gpu02", "gpu03")
    report = await bench.status()
    assert report.ok and all(
        host.ok and host.up is None and not host.committer for host in report.hosts
    )
    text = render.status(report, False)
    assert (
        "-/0" in text
        and text.count("not set up yet; the first `testbed up`") == 3
        and "no agent" not in text
    )


async def test_processes_whose_files_are_damaged_are_told(bench: Bench) -> None:
    await bench.up(plan_text("one", ONE))
    settings = bench.settings()
    with ExitStack() as stack:
        for kind in (kind for kind in kinds() if kind.of != "server"):
            path = kind.path(settings, kind.key(settings, bench.tenancy(), bench.key))
            stack.enter_context(StateFile(kind, path, kind.own(settings)))
            path.write_bytes(b"\xff")
        report = await bench.status()
    text = f"runs, but its file cannot be read, pid {os.getpid()} of "
    assert all(
        output.startswith(text)
        for output in (report.guard, report.slots, *report.services.values())
    ), report
    assert {"adapt", "pacing", "queue"} <= report.services.keys()
    assert render.status(report, False).count(text) == len(report.services) + 2
