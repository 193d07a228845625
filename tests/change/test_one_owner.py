"""Several commands of one owner at once: one changes his plan, the others are refused or wait, and
all light keeps its owner.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from optics import Interlock, Locked, TestbedError
from orchestrator.session import Command
from orchestrator.store.locks import locks_of
from orchestrator.telemetry.progress import Silent
from orchestrator.verbs import change as engine
from tests.drills.bench import NO_JOB, NOW, Bench, Killed, Process, opened, plan_text

WEST, EAST = [("gpu01:p1", "gpu02:p1")], [("gpu03:p2", "gpu04:p2")]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with opened(tmp_path, hosts=4) as made:
        yield made


def plan_file(bench: Bench, name: str, links: list[tuple[str, str]]) -> Path:
    path = bench.folder / f"{name}.json"
    path.write_text(plan_text(name, links))
    return path


def of_nobody(bench: Bench) -> set[tuple[str, str, str]]:
    """Light that is not recorded as anybody's, but for the circuits that were there before."""
    with bench.store() as store:
        owned = {
            (s.ingress.device, s.ingress.label, s.egress.label) for s in store.owners(bench.key)
        }
    return {
        (d, a, b) for d, held in bench.held().items() for a, b in held if (a, b) != bench.foreign(d)
    } - owned


async def test_of_two_plans_of_one_owner_at_once_one_comes_up_and_the_other_is_refused(
    bench: Bench,
) -> None:
    paths = {"west": plan_file(bench, "west", WEST), "east": plan_file(bench, "east", EAST)}
    ups = (bench.verb(engine.up, path, NO_JOB) for path in paths.values())
    results = await asyncio.gather(*ups, return_exceptions=True)
    (refused,) = (one for one in results if isinstance(one, BaseException))
    (made,) = (one for one in results if not isinstance(one, BaseException))
    assert isinstance(refused, Locked)
    assert str(refused).startswith("ann's plan is locked by ann on "), (
        "they have no host and no port in common"
    )
    assert bench.held() == bench.wanted({"west": WEST, "east": EAST}[made.plan]) and not of_nobody(
        bench
    )
    assert (await bench.status()).plan == made.plan
    await bench.verb(engine.down)
    assert bench.held() == bench.wanted([])


async def test_a_circuit_that_a_dead_run_of_somebody_else_left_is_not_used_as_ones_own(
    bench: Bench,
) -> None:
    path, process = plan_file(bench, "west", WEST), Process("")

    def act(name: str) -> None:
        if not process.kill_at and len(bench.held()["ocs1"]) > 1:
            process.kill_at = len(process.points)

    process.act = act
    with pytest.raises(Killed):
        await bench.verb(engine.up, path, NO_JOB, owner="bob", process=process)
    await asyncio.sleep(0.3)
    left = bench.held()
    assert left == bench.wanted(WEST) and not of_nobody(bench)
    for dry_run in (True, False):
        with pytest.raises(Interlock, match=r"is there and belongs to bob"):
            await bench.verb(engine.up, path, replace(NO_JOB, dry_run=dry_run))
    assert bench.held() == left
    await bench.verb(engine.up, path, replace(NO_JOB, adopt=("owner:bob",)))
    assert (await bench.status()).ok and not of_nobody(bench)


async def test_the_second_plan_of_an_owner_waits_for_the_first_and_then_replaces_it(
    bench: Bench,
) -> None:
    first, second = plan_file(bench, "west", WEST), plan_file(bench, "east", EAST)
    waiting: list[asyncio.Task[Any]] = []

    async def patient(command: Command, path: Path) -> Any:
        command = Command(Silent(), command.store, replace(command.settings, wait_s=20.0))
        return await engine.up(command, path, NO_JOB)

    process = Process("")

    def act(name: str) -> None:
        if name == "after hosts arm" and not waiting:
            waiting.append(asyncio.ensure_future(bench.verb(patient, second)))

    process.act = act
    await bench.verb(engine.up, first, NO_JOB, process=process)
    assert (await waiting[0]).plan == "east"
    assert bench.held() == bench.wanted(EAST) and not of_nobody(bench) and (await bench.status()).ok


@pytest.mark.parametrize("neighbour", ["down", "up", "rollback"])
async def test_whatever_the_same_owner_begins_beside_an_up_no_light_loses_its_owner(
    bench: Bench, neighbour: str
) -> None:
    """Begun at points of the whole run in turn, before and after each byte, request and commit of
    it.
    """
    path, other = plan_file(bench, "west", WEST), plan_file(bench, "east", EAST)
    counting = Process("")
    await bench.verb(engine.up, path, NO_JOB, process=counting)
    await bench.verb(engine.down)

    async def second() -> Any:
        if neighbour == "up":
            return await bench.verb(engine.up, other, NO_JOB)
        return (
            await bench.verb(engine.down)
            if neighbour == "down"
            else await bench.verb(engine.rollback, None)
        )

    refused = 0
    for at in range(1, len(counting.points), 13):
        begun: list[asyncio.Task[Any]] = []
        process = Process("")

        def act(
            name: str,
            process: Process = process,
            begun: list[asyncio.Task[Any]] = begun,
            at: int = at,
        ) -> None:
            if len(process.points) == at:
                token = NOW.set(None)  # another shell
                begun.append(asyncio.ensure_future(second()))
                NOW.reset(token)

        process.act = act
        with suppress(TestbedError):
            await bench.verb(engine.up, path, NO_JOB, process=process)
        (answer,) = await asyncio.gather(*begun, return_exceptions=True)
        refused += isinstance(answer, Locked)
        assert isinstance(answer, TestbedError) or not isinstance(answer, BaseException), (
            at,
            answer,
        )
        assert not of_nobody(bench), (at, answer)
        await bench.verb(engine.down)
        assert bench.held() == bench.wanted([]) and not bench.locked(), (at, answer)
    assert refused, "while the first one has the lock"


@pytest.mark.parametrize("end", ["resume", "rollback", "down", "up"])
async def test_light_that_comes_after_its_run_was_killed_keeps_its_owner(
    bench: Bench, end: str
) -> None:
    """The next command reads the devices when what the dead run sent can be seen in their maps, not
    before.
    """
    path = plan_file(bench, "west", WEST)
    server = bench.servers["ocs1"]
    process = Process("")

    # killed with a command on its way; the device carries it out 50 ms later
    def act(name: str) -> None:
        if name == "before ocs1" and store_has(bench, "doing") and not late:
            late.extend(bench.wanted(WEST)["ocs1"] - bench.held()["ocs1"])
            for pair in late:
                server.loop.call_later(0.05, bench.make, "ocs1", pair)
            process.kill_at = len(process.points)

    late: list[tuple[str, str]] = []
    process.act = act
    with pytest.raises(Killed):
        await bench.verb(engine.up, path, NO_JOB, process=process)
    assert late
    if end == "up":
        await bench.verb(engine.up, plan_file(bench, "east", EAST), NO_JOB)
    else:
        argv = {"resume": ("last",), "rollback": (None,), "down": ()}[end]
        await bench.verb(getattr(engine, end), *argv)
    wanted = {"resume": WEST, "up": EAST}.get(end, [])
    await asyncio.sleep(0.1)
    assert bench.held() == bench.wanted(wanted) and not of_nobody(bench) and not bench.violations()


def store_has(bench: Bench, state: str) -> bool:
    with bench.store() as store:
        return bool(store.read("SELECT 1 FROM steps WHERE kind='device' AND state=?", (state,)))


async def test_what_a_device_that_stood_still_does_when_it_answers_again_is_seen_by_the_rollback(
    bench: Bench,
) -> None:
    server = bench.servers["ocs1"]
    server.plant.settle_s = 0.1  # a reading just after it goes on does not show what it then makes
    held: list[Callable[[], None]] = []
    going, still = [True], [False]

    def holding(act: Callable[..., None]) -> Callable[..., None]:
        def held_back(*argv: Any) -> None:
            still[0] = still[0] or (
                bool(going) and b"conn:add" in bytes(argv[-1] if len(argv) > 1 else b"")
            )
            held.append(partial(act, *argv)) if still[0] else act(*argv)

        return held_back

    server.received, server.lost = holding(server.received), holding(server.lost)  # type: ignore[method-assign]

    def go_on() -> None:
        still[0] = False
        for each in held:
            each()

    def act(name: str) -> None:
        # `up` has given up, and the rollback asks
        if name == "before ocs1" and still[0] and going and store_has(bench, "failed"):
            going.clear()
            server.loop.call_later(0.02, go_on)

    with suppress(TestbedError):
        await bench.verb(
            engine.up, plan_file(bench, "west", WEST), NO_JOB, process=Process("", act=act)
        )
    assert held and not going
    await asyncio.sleep(0.3)
    assert not of_nobody(bench)


async def test_who_steals_the_lock_of_a_run_that_lives_leaves_it_what_it_may_still_make(
    bench: Bench,
) -> None:
    process = Process("")
    taken: list[asyncio.Task[Any]] = []

    bench.servers["ocs1"].add_fault("slow", on="write", after=0, count=1, seconds=0.4)

    def act(name: str) -> None:
        if name == "after ocs1" and store_has(bench, "doing") and not taken:
            with bench.store() as store:
                locks = locks_of(bench.lab, bench.settings(), store)
                (lock,) = locks.listed()
                locks.steal(lock.id, "it hangs")
            taken.append(asyncio.ensure_future(bench.verb(engine.down)))

    process.act = act
    with pytest.raises(TestbedError):
        await bench.verb(engine.up, plan_file(bench, "west", WEST), NO_JOB, process=process)
    await asyncio.gather(*taken)
    assert bench.held() == bench.wanted(WEST), "the device was slow"
    assert not of_nobody(bench)
    await bench.verb(engine.down)
    assert bench.held() == bench.wanted([])


async def test_an_owner_is_adopted_from_only_when_none_of_his_runs_is_under_way(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.up(plan_text("his", EAST), owner="bob")
    clear, begun = bench.fleet.routes.clear, list[asyncio.Task[Any]]()

    async def clear_at_last(*argv: Any, **more: Any) -> Any:
        if not begun:  # his `down` goes on when the other has had an answer
            begun.append(
                asyncio.ensure_future(bench.up(plan_text("mine", WEST), adopt=("owner:bob",)))
            )
            await asyncio.wait(begun)
        return await clear(*argv, **more)

    monkeypatch.setattr(bench.fleet.routes, "clear", clear_at_last)
    await bench.verb(engine.down, owner="bob")
    with pytest.raises(Locked, match="bob's plan"):
        await begun[0]
    assert not of_nobody(bench)


async def test_what_is_locked_is_in_the_lock_as_json(bench: Bench) -> None:
    process = Process("")
    seen: list[Any] = []

    def act(name: str) -> None:
        if name == "after hosts arm":
            with bench.store() as store:
                seen.extend(
                    lock.scope.to_data()["owners"]
                    for lock in locks_of(bench.lab, bench.settings(), store).listed()
                )

    process.act = act
    await bench.verb(engine.up, plan_file(bench, "west", WEST), NO_JOB, process=process)
    assert json.loads(json.dumps(seen)) == [["ann"]]
