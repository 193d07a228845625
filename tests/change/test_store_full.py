"""When nothing can be noted any more, nothing more is done, it is said, and the way back is open
once there is room.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from optics import HandsNeeded, StoreFailed
from orchestrator.store.store import Store
from orchestrator.verbs import change as engine
from tests.drills.bench import Bench, Process, opened, plan_text

ONE = [("gpu01:p1", "gpu02:p1")]
MOVED = [("gpu01:p3", "gpu02:p3")]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with opened(tmp_path, hosts=2) as made:
        yield made


def full_once(so: Callable[[list[str]], bool]) -> Process:
    """The disk is full from the first commit on at which the points that were passed are so."""
    process, full = Process(""), False

    def act(name: str) -> None:
        nonlocal full
        full = full or (name == "before commit" and so(process.points))
        if full and name == "before commit":
            raise sqlite3.OperationalError("database or disk is full")

    process.act = act
    return process


async def test_a_disk_that_was_full_before_anything_moved_ends_the_change_before_it_begins(
    bench: Bench,
) -> None:
    await bench.up(plan_text("one", ONE))
    was = bench.held()
    with pytest.raises(StoreFailed, match="cannot be written: database or disk is full"):
        await bench.up(plan_text("moved", MOVED), process=full_once(lambda points: True))
    assert bench.held() == was and not bench.owing() and not (await bench.status()).unfinished


@pytest.mark.parametrize(
    ("after", "commits"),
    [("after hosts arm", 1), ("after hosts confirm 2", 1), ("after hosts confirm 2", 2)],
)
async def test_a_disk_that_fills_once_light_moved_is_told_and_the_way_back_leads_home(
    bench: Bench, after: str, commits: int
) -> None:
    """So many commits after a request to the hosts. In the last case all was done, and only the
    plan is to be noted.
    """
    await bench.up(plan_text("one", ONE))
    was = bench.held()

    def so(points: list[str]) -> bool:
        return (
            bench.held() != was
            and after in points
            and points[points.index(after) :].count("before commit") >= commits
        )

    with pytest.raises(HandsNeeded, match="cannot be written: database or disk is full") as failed:
        await bench.up(plan_text("moved", MOVED), process=full_once(so))
    assert "writable again; testbed status" in failed.value.left[0] and bench.held() != was
    await bench.verb(engine.rollback, failed.value.hint.split()[-1])
    assert bench.held() == was and not bench.owing() and not (await bench.status()).unfinished


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
