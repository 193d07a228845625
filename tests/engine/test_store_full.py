"""When nothing can be noted any more, nothing more is done, it is said, and the way back is open once there is room."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from optics import HandsNeeded, StoreFailed
from orchestrator.engine import verbs as engine
from orchestrator.store.store import Store
from tests.drills.bench import Bench, Process, opened, plan_text

ONE = [("gpu01:p1", "gpu02:p1")]
MOVED = [("gpu01:p3", "gpu02:p3")]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with opened(tmp_path, hosts=2) as made:
        yield made


def full_from(number: int) -> Process:
    """The disk is full from this commit on."""
    process, commits = Process(""), 0

    def act(name: str) -> None:
        nonlocal commits
        if name == "before commit":
            commits += 1
            if commits >= number:
                raise sqlite3.OperationalError("database or disk is full")

    process.act = act
    return process


@pytest.mark.long
async def test_a_disk_that_is_full_from_any_commit_on_is_told_and_the_way_back_leads_home(bench: Bench) -> None:
    await bench.up(plan_text("one", ONE))
    was = bench.held()
    seen: set[type] = set()
    for number in range(1, 100):
        process = full_from(number)
        try:
            await bench.up(plan_text("moved", MOVED), process=process)
        except (StoreFailed, HandsNeeded) as error:
            seen.add(type(error))
            assert "cannot be written: database or disk is full" in str(error), number
            changed = bench.held() != was
            assert isinstance(error, HandsNeeded) or not changed, number
            if isinstance(error, HandsNeeded):
                assert "writable again; testbed status" in error.left[0], number
                await bench.verb(engine.rollback, error.hint.split()[-1])
            for left in (await bench.status()).unfinished:  # it could not be noted that this run changed nothing
                if left.begun:
                    await bench.verb(engine.rollback, left.run)
            assert bench.held() == was and not bench.owing(), number
            assert not any(left.begun for left in (await bench.status()).unfinished), number
        else:
            assert number > 10, "it came to its end all the same"
            break
    assert seen == {StoreFailed, HandsNeeded}


def test_a_commit_that_fails_leaves_no_transaction_open(tmp_path: Path) -> None:
    with Store(tmp_path / "store.sqlite3", durable=False) as store:
        pages = store.read("PRAGMA page_count")[0][0]
        store.read(f"PRAGMA max_page_count={pages}")
        with pytest.raises(StoreFailed, match="full"):
            for _ in range(1000):
                store.new_run("up", "lab", plan_text="x" * 4096)
        store.read("PRAGMA max_page_count=100000")
        run = store.new_run("up", "lab")
        run.finish("ok")
        assert store.get("last").status == "ok"  # type: ignore[union-attr]
