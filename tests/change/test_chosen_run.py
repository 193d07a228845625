"""Which run `resume last` and `rollback last` mean: one that began to change something, never a
command that was refused.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from optics import Interlock, Missing, Refused, RolledBack
from orchestrator.change.run import ChangeRun
from orchestrator.verbs import change as engine
from tests.drills.bench import Bench, Killed, Process, opened, plan_text

ONE = [("gpu01:p1", "gpu02:p1")]
MOVED = [("gpu01:p3", "gpu02:p3")]
OTHER = [("gpu01:p2", "gpu02:p2")]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with opened(tmp_path, hosts=2) as made:
        yield made


async def refused(bench: Bench) -> str:
    """A command that is refused before it begins: its saved plan does not fit the lab any more.
    Return its run.
    """
    with pytest.raises(Interlock, match="not as it was when this plan was saved"):
        await bench.up(plan_text("other", OTHER), expected="0123456789abcdef")
    with bench.store() as store:
        record = store.get("last")
    assert record is not None and not record.begun
    return record.id


async def died(bench: Bench) -> str:
    """A command that is killed once its hosts are armed. Return its run."""
    process = Process("")

    def die(name: str) -> None:
        process.kill_at = len(process.points) if name == "after hosts arm" else 0

    process.act = die
    with pytest.raises(Killed):
        await bench.up(plan_text("moved", MOVED), process=process)
    (left,) = (await bench.status()).unfinished
    return str(left.run)


async def test_a_command_that_was_refused_before_it_began_is_nothing_to_resume(
    bench: Bench,
) -> None:
    await bench.up(plan_text("one", ONE))
    run = await refused(bench)
    with pytest.raises(Missing, match=f"run {run} ended before it changed anything"):
        await bench.verb(engine.resume, run)
    with pytest.raises(Missing, match=f"run {run[:-1]}1 left nothing unfinished: it finished"):
        await bench.verb(engine.resume, "last")
    assert bench.held() == bench.wanted(ONE)


async def test_resume_last_does_again_what_was_taken_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.up(plan_text("one", ONE))
    with monkeypatch.context() as broken:
        broken.setattr(bench.fleet.routes, "confirm", _refuses)
        with pytest.raises(RolledBack):
            await bench.up(plan_text("moved", MOVED))
    await refused(bench)
    await bench.verb(engine.resume, "last")
    assert bench.held() == bench.wanted(MOVED)


async def _refuses(*argv: object) -> None:
    raise Refused("no")


async def test_resume_last_goes_on_with_the_run_that_died_whatever_was_refused_since(
    bench: Bench,
) -> None:
    await bench.up(plan_text("one", ONE))
    await died(bench)
    await refused(bench)
    await bench.verb(engine.resume, "last")
    assert bench.held() == bench.wanted(MOVED) and (await bench.status()).plan == "moved"


async def test_a_half_done_eviction_is_resumed_by_what_is_true_now(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.up(plan_text("one", ONE))
    run = await died(bench)
    with bench.store() as store:
        record = store.get(run)
        assert record is not None
        asked = replace(record.options, up=replace(record.options.asked, job="restart"))
        kept = replace(asked, lost=("gpu01", "gpu02"), broken="gpu01 does not answer").to_json()
        store.write("UPDATE runs SET options=? WHERE id=?", (json.dumps(kept), run))
    given: list[object] = []

    async def up(self: object, plan: object, text: object, options: object) -> str:
        given.append(options)
        return ""

    bench.fleet.all["gpu02"].up = False
    monkeypatch.setattr(ChangeRun, "up", up)
    await bench.verb(engine.resume, run)
    assert given == [replace(asked, lost=("gpu02",), resumes=run)]


async def test_rollback_last_takes_back_the_latest_change_whatever_was_refused_since(
    bench: Bench,
) -> None:
    await bench.up(plan_text("one", ONE))
    await bench.up(plan_text("moved", MOVED))
    await refused(bench)
    await bench.verb(engine.rollback, "last")
    assert bench.held() == bench.wanted(ONE)
