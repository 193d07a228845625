"""A change that fails is taken back whole, or what is left is listed; judged by what the devices and hosts hold afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from optics import CrossConnect, HandsNeeded, Port, RolledBack, TestbedError
from orchestrator import undoing
from orchestrator.store import Store
from tests.engine.fleet import SLICE, Bench, plan_text, ring

RING = plan_text("ring", *ring(1, 2))
MOVED = plan_text("moved", *ring(3, 2))  # the two links at ocs1 move to other ports
# One link stays, one moves to other ports, two go, and one host leaves.
TWO = plan_text("two", ("gpu01:p3", "gpu02:p3"), ("gpu02:p2", "gpu03:p2"))
HOWS = ("refused", "lost")


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(undoing, "RETURN_S", 1.0)
    with Store(tmp_path / "store.sqlite3", durable=False) as store:
        yield Bench(store, tmp_path)


async def before(bench: Bench) -> tuple[Any, ...]:
    """A ring is up, and somebody else's circuit with it."""
    bench.switches["ocs2"].held |= {CrossConnect(Port("ocs2", "50"), Port("ocs2", "150"))}
    await bench.up(RING)
    bench.points.names.clear()
    return now(bench)


def now(bench: Bench) -> tuple[Any, ...]:
    """What counts: circuits, routes, and what the store says of both."""
    current = bench.store.current(SLICE)
    assert current is None or {g for g in bench.generations().values() if g is not None} == {current.generation}
    return bench.held(), bench.routes(), bench.store.owned(SLICE), current and (current.plan_name, current.links)


async def test_a_plan_comes_up_on_the_bench_and_the_second_time_nothing_is_written(bench: Bench) -> None:
    await before(bench)
    report = await bench.up(RING)
    assert report.nothing_to_do and bench.points.names == []
    assert (await bench.up(TWO)).made == 2
    current = bench.store.current(SLICE)
    assert current is not None
    assert bench.generations() == dict.fromkeys(("gpu01", "gpu02", "gpu03"), current.generation) | {"gpu04": None}


# One link moves, and there is a detour meanwhile.
DETOUR = plan_text("detour", ("gpu01:p3", "gpu02:p3"), *ring()[1:])


async def count(bench: Bench, text: str) -> list[str]:
    """The requests of one good change."""
    await bench.up(text)
    return list(bench.points.names)


@pytest.mark.parametrize("text", [TWO, DETOUR], ids=["two", "detour"])
async def test_whatever_step_fails_everything_is_as_before(tmp_path: Path, text: str) -> None:
    """S7, forward: each step of the change failed in turn, refused and with its answer lost."""
    with Store(tmp_path / "0.sqlite3", durable=False) as store:
        (tmp_path / "0").mkdir()
        counting = Bench(store, tmp_path / "0")
        await before(counting)
        steps = await count(counting, text)
    assert len(steps) >= 6
    for k in range(1, len(steps) + 1):
        for how in (*HOWS, *(("half",) if steps[k - 1].startswith("ocs") else ())):
            folder = tmp_path / f"{k}-{how}"
            folder.mkdir()
            with Store(folder / "store.sqlite3", durable=False) as store:
                bench = Bench(store, folder)
                was = await before(bench)
                bench.points.fail = {k: how}
                with pytest.raises(TestbedError) as failed:
                    await bench.up(text)
                assert now(bench) == was, (k, how, steps[k - 1], bench.points.names, str(failed.value))
                assert not bench.pending(), (k, how)
                record = store.get("last")
                assert record is not None and not record.unfinished
                first = steps.index(next(s for s in steps if s.startswith("ocs"))) + 1
                assert isinstance(failed.value, RolledBack) == (k >= first), (k, how, type(failed.value))


async def test_a_step_that_fails_during_the_rollback_too_is_tried_once_more_or_told(tmp_path: Path) -> None:
    """S7, during rollback: the last step forward fails, and each step of the way back in turn."""

    async def broken(name: str, fail: dict[int, str]) -> tuple[Bench, tuple[Any, ...], TestbedError]:
        folder = tmp_path / name
        folder.mkdir()
        with Store(folder / "store.sqlite3", durable=False) as store:
            bench = Bench(store, folder)
            was = await before(bench)
            bench.points.fail = fail
            with pytest.raises(TestbedError) as failed:
                await bench.up(TWO)
            after = now(bench) if isinstance(failed.value, RolledBack) else ()
            return bench, (was, after), failed.value

    with Store(tmp_path / "c.sqlite3", durable=False) as store:
        (tmp_path / "c").mkdir()
        counting = Bench(store, tmp_path / "c")
        await before(counting)
        forward = len(await count(counting, TWO))
    bench, (was, after), error = await broken("plain", {forward: "refused"})
    assert isinstance(error, RolledBack) and was == after
    total = len(bench.points.names)
    assert total > forward
    told = 0
    for j in range(forward + 1, total + 1):
        for how in HOWS:
            bench, (was, after), error = await broken(f"{j}-{how}", {forward: "refused", j: how})
            if isinstance(error, HandsNeeded):
                told += 1
                assert error.left and "  1. " in str(error)
            else:
                assert isinstance(error, RolledBack) and was == after, (j, how, bench.points.names)
    assert told <= 4, "a step that fails once is mended by reading back and trying again"
