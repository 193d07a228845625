"""Where `rollback` goes back to: to states that are whole, after devices have settled, and never
past a run that died.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drivers.api import Ready, at_once
from optics import (
    Change,
    CrossConnect,
    HostPort,
    Interrupted,
    Missing,
    Outcome,
    RolledBack,
    Setting,
    TimedOut,
)
from orchestrator.change.run import before_run
from orchestrator.change.snapshot import found
from orchestrator.cli import render
from orchestrator.fabric.transition import per_device
from orchestrator.fabric.up_state import SlotsMade
from orchestrator.store.store import Store
from orchestrator.verbs import change as engine
from tests.change import fleet
from tests.change.fleet import Switch
from tests.change.test_rollback import RING, TWO, before, now
from tests.drills.bench import NO_JOB, Bench, Killed, Process, opened, plan_text

TWO_LINKS = [("gpu01:p1", "gpu02:p1"), ("gpu01:p2", "gpu02:p2")]
OTHER = [("gpu01:p3", "gpu02:p3"), ("gpu01:p4", "gpu02:p4")]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with opened(tmp_path) as made:
        yield made


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[fleet.Bench]:
    with Store(tmp_path / "store.sqlite3", durable=False) as store:
        yield fleet.Bench(store, tmp_path)


def unread(bench: Bench, device: str) -> int:
    return bench.servers[device].add_fault("hang", on="read", after=0, count=100)


def lit(bench: Bench) -> int:
    """On how many devices there is light of the owner."""
    return sum(len(pairs) > 1 for pairs in bench.held().values())


async def killed(work: Any, process: Process) -> None:
    with pytest.raises(Killed):
        await work
    assert process.dead


async def dies_midway(bench: Bench, verb: Any, *argv: Any, **more: Any) -> None:
    """The verb dies once the first device has done something."""
    process, before = Process(""), bench.held()

    def act(name: str) -> None:
        if bench.held() != before and not process.kill_at:
            process.kill_at = len(process.points)

    process.act = act
    await killed(bench.verb(verb, *argv, process=process, **more), process)


async def dies_before_anything(bench: Bench, name: str, links: list[tuple[str, str]]) -> str:
    """`up` dies before it has journalled what it found; return its id."""
    process, asked = Process(""), list[str]()

    def act(name: str) -> None:
        asked.append(name)
        if name.startswith("before ocs"):
            process.kill_at = len(process.points)

    process.act = act
    await killed(bench.up(plan_text(name, links), process=process), process)
    with bench.store() as store:
        (record, *_) = store.unfinished(bench.key, "ann")
    assert record.status == "died" and not record.begun
    return record.id


# --- a device that could not be read


async def test_rollback_of_a_down_that_could_not_read_a_device_leaves_the_light_that_stayed(
    bench: Bench,
) -> None:
    await bench.up(plan_text("two", TWO_LINKS))
    number = unread(bench, "ocs2")
    report = await bench.verb(engine.down)
    assert any("ocs2" in line for line in report.left) and lit(bench) == 1
    bench.servers["ocs2"].remove_fault(number)
    before = bench.held()["ocs2"]
    assert (await bench.verb(engine.rollback, None)).plan == "two"
    assert bench.held() == bench.wanted(TWO_LINKS) and bench.held()["ocs2"] == before
    assert (await bench.status()).ok


async def test_rollback_of_a_down_that_could_not_read_a_device_goes_back_to_the_slot_that_was_up(
    bench: Bench,
) -> None:
    """Of slots that turned the store has the circuits of each, and a device holds those of one."""
    await bench.up(plan_text("slots", TWO_LINKS))
    ends = bench.lab.fibres[HostPort("gpu03", 2)], bench.lab.fibres[HostPort("gpu02", 2)]
    with bench.store() as store:
        was = store.current(bench.tenancy())
        assert was is not None
        plan = {
            "plan_name": was.plan_name,
            "plan_sha": was.plan_sha,
            "plan_text": was.plan_text,
            "generation": was.generation,
        }
        store.set_current(
            bench.tenancy(), was.run, **plan, up=replace(was.up, slots=SlotsMade(0, (0, 1)))
        )  # type: ignore[arg-type]
        store.own(bench.tenancy(), was.run, [CrossConnect(ends[0].enters, ends[1].leaves)])
    number = unread(bench, "ocs2")
    await bench.verb(engine.down)
    bench.servers["ocs2"].remove_fault(number)
    assert (
        await bench.verb(engine.rollback, None)
    ).plan == "slots" and bench.held() == bench.wanted(TWO_LINKS)


async def test_what_others_have_on_a_device_that_was_not_read_is_not_said_to_have_come_meanwhile(
    bench: Bench,
) -> None:
    await bench.up(plan_text("two", TWO_LINKS))
    number = unread(bench, "ocs2")
    await bench.verb(engine.down)
    bench.servers["ocs2"].remove_fault(number)
    (left,) = (await bench.status()).unfinished
    text = "\n".join(left.lines())
    assert "not done: ocs2: not removed: " in text and "foreign" not in text


# --- light that comes late


class Late(Switch):
    """Carries out what it is asked 0.1 s after the connection was lost; until then its map shows
    nothing of it.
    """

    lost = 0

    async def apply(self, change: Change, ready: Ready = at_once) -> Outcome:
        if not self.lost:
            return await super().apply(change, ready)
        self.lost -= 1
        await ready()

        def done() -> None:
            self.held = (self.held - change.remove) | change.add
            self.fleet.light()

        asyncio.get_running_loop().call_later(0.1, done)
        raise TimedOut(
            f"{self.name}: connection lost; commands were sent before, what they did is not known"
        )


def make_late(bench: fleet.Bench) -> Late:
    switch = bench.switches["ocs1"]
    switch.__class__ = Late
    assert isinstance(switch, Late)
    return switch


async def test_rolled_back_means_that_no_light_comes_on_afterwards(fake: fleet.Bench) -> None:
    was = await before(fake)
    make_late(fake).lost = 1
    with pytest.raises(RolledBack, match="everything is as before"):
        await fake.up(TWO)
    assert now(fake) == was
    await asyncio.sleep(0.2)
    assert now(fake) == was, "what was sent is carried out late"


async def test_a_rollback_whose_own_command_is_late_waits_for_it_too(fake: fleet.Bench) -> None:
    was = await before(fake)
    make_late(fake).lost = 2
    with pytest.raises(RolledBack, match="everything is as before"):
        await fake.up(TWO)
    await asyncio.sleep(0.2)
    assert now(fake) == was


async def test_a_restore_whose_command_is_late_ends_with_what_it_restores(
    fake: fleet.Bench,
) -> None:
    await fake.up(TWO)
    record = fake.store.get("last")
    await fake.up(RING)
    assert record is not None
    make_late(fake).lost = 1
    to = before_run(fake.store, fake.lab, fake.store.history(fleet.LAB)[0].id)
    assert to is not None and to.current is not None and to.current.plan_name == "two"
    await fake.back(to)
    held, owned = fake.held(), fake.store.owned(fleet.TENANCY)
    await asyncio.sleep(0.2)
    assert fake.held() == held and owned == fake.store.owned(fleet.TENANCY) == {
        s for held in to.owned.values() for s in held
    }


async def test_what_a_device_owes_a_result_for_stays_recorded(fake: fleet.Bench) -> None:
    await fake.up(RING)
    owned = fake.store.owned(fleet.TENANCY)
    run, context = fake.context(plan_name="ring")
    nothing: dict[str, frozenset[Setting]] = {"ocs1": frozenset(), "ocs2": frozenset()}
    with run:
        context.unanswered["ocs1"] = time.monotonic()
        context.disown_lost(nothing)
        assert fake.store.owned(fleet.TENANCY) == {s for s in owned if s.ingress.device == "ocs1"}
        await context.settled()
        context.disown_lost(nothing)
    assert not fake.store.owned(fleet.TENANCY)


# --- states that are not whole


@pytest.mark.parametrize("second", ["dies", "comes up"])
@pytest.mark.parametrize("first", ["down", "up"])
async def test_rollback_never_goes_back_to_half_of_the_light(
    bench: Bench, first: str, second: str
) -> None:
    """It goes back to before the first of the runs that left the half, whichever plan each of them
    had.
    """
    await bench.up(plan_text("two", TWO_LINKS))
    if first == "down":
        await dies_midway(bench, engine.down)
        assert lit(bench) == 1
    else:
        path = bench.folder / "half.json"
        path.write_text(plan_text("half", [("gpu02:p3", "gpu03:p3"), ("gpu02:p4", "gpu03:p4")]))
        await dies_midway(bench, engine.up, path, NO_JOB)
    process = Process("")
    if second == "dies":
        process.act = lambda name: setattr(
            process, "kill_at", len(process.points) if name == "after hosts arm" else 0
        )
        await killed(bench.up(plan_text("other", OTHER), process=process), process)
    else:
        await bench.up(plan_text("other", OTHER))
    report = await bench.verb(engine.rollback, None)
    assert report.plan == "two" and bench.held() == bench.wanted(TWO_LINKS)
    status = await bench.status()
    assert status.ok and status.plan == "two" and not status.unfinished and not bench.owing()


async def test_a_rollback_of_several_slots_goes_back_to_before_the_half_that_the_first_began_with(
    fake: fleet.Bench,
) -> None:
    """The last slot found the one before it whole, the first found what another plan's run had left
    when it died.
    """
    store, own = fake.store, {"owner": fleet.OWNER, "user": fleet.OWNER}
    await fake.up(RING)
    current = store.current(fleet.TENANCY)
    assert current is not None
    ring = per_device(store.owned(fleet.TENANCY))
    half = {device: held for device, held in ring.items() if device == "ocs1"}
    runs = []
    for plan, owned, up in (("other", {}, None), ("slots", half, None), ("slots", ring, current)):
        run = store.new_run("up", fleet.LAB, plan_name=plan, plan_sha=plan, **own)
        run.found(found(owned, owned, up, {}, None, fake.lab).to_json(), {})
        run.finish("failed" if plan == "other" else "ok")
        store.resolve(runs, run.id)
        runs.append(run.id)
    to = before_run(store, fake.lab, runs[-1])
    assert to is not None and not any(to.owned.values())


async def test_a_rollback_that_dies_leads_to_the_same_state_again(bench: Bench) -> None:
    await bench.up(plan_text("two", TWO_LINKS))
    path = bench.folder / "other.json"
    path.write_text(plan_text("other", OTHER))
    await dies_midway(bench, engine.up, path, NO_JOB)
    await dies_midway(bench, engine.rollback, None)
    await bench.verb(engine.rollback, None)
    assert bench.held() == bench.wanted(TWO_LINKS) and (await bench.status()).ok


@pytest.mark.parametrize(
    ("verb", "leads_to"),
    [(engine.down, []), (engine.rollback, TWO_LINKS)],
    ids=["down", "rollback"],
)
async def test_a_way_back_that_is_interrupted_says_how_far_it_got_and_goes_on(
    bench: Bench, verb: Any, leads_to: Any
) -> None:
    await bench.up(plan_text("two", TWO_LINKS))
    await bench.up(plan_text("other", OTHER))
    process, held = Process(""), bench.held()
    task = asyncio.create_task(bench.verb(verb, *([None] if leads_to else []), process=process))
    process.act = lambda name: bench.held() != held and not task.cancelling() and task.cancel()  # type: ignore[assignment]
    with pytest.raises(Interrupted, match="interrupted half way") as ended:
        await task
    (left,) = (await bench.status()).unfinished
    assert f"to go on: testbed resume {left.run}" in ended.value.hint and not bench.locked()
    await bench.verb(engine.resume, left.run)
    assert (
        bench.held() == bench.wanted(leads_to)
        and not (await bench.status()).unfinished
        and not bench.owing()
    )


async def test_light_that_a_device_had_lost_before_is_not_asked_for_by_a_rollback(
    bench: Bench,
) -> None:
    await bench.up(plan_text("two", TWO_LINKS))
    for pair in bench.held()["ocs1"] - {bench.foreign("ocs1")}:
        bench.take_down("ocs1", pair)
    before = bench.held()
    await bench.up(plan_text("other", OTHER))
    report = await bench.verb(engine.rollback, None)
    assert report.plan == "two" and bench.held() == before, (
        "what was there, and no repair asked for"
    )
    await bench.verb(engine.restore)
    assert bench.held() == bench.wanted(TWO_LINKS)


async def test_a_second_rollback_does_not_bring_back_what_was_unfinished(bench: Bench) -> None:
    await bench.up(plan_text("two", TWO_LINKS))
    first = (await bench.status()).run
    path = bench.folder / "other.json"
    path.write_text(plan_text("other", OTHER))
    await dies_midway(bench, engine.up, path, NO_JOB)
    await bench.verb(engine.rollback, None)
    with pytest.raises(Missing, match=r"rolled back run \S+, which was unfinished") as refused:
        await bench.verb(engine.rollback, None)
    assert (
        refused.value.hint == f"to undo the change before that (up two): testbed rollback {first}"
    )
    assert bench.held() == bench.wanted(TWO_LINKS)


# --- runs that died before they changed anything


async def test_rollback_after_an_up_that_died_before_it_changed_anything_undoes_no_other_change(
    bench: Bench,
) -> None:
    await bench.up(plan_text("two", TWO_LINKS))
    first = (await bench.status()).run
    died = await dies_before_anything(bench, "other", OTHER)
    report = await bench.verb(engine.rollback, None)
    assert report.nothing_to_do and report.of == died
    assert report.notes == (
        f"run {died} (up other): died before anything was changed, so there is nothing to undo; "
        f"to undo the change before that (up two): testbed rollback {first}",
    )
    text = render.down(report, colour=False)
    assert f"Nothing to undo on bench   run {report.run}" in text and "no plan of yours" not in text
    assert bench.held() == bench.wanted(TWO_LINKS)
    status = await bench.status()
    assert status.ok and status.plan == "two" and not status.unfinished
    with bench.store() as store:
        record = store.get(died)
        assert record is not None and record.resolved_by == report.run
    assert not (await bench.verb(engine.rollback, None)).nothing_to_do, (
        "now it is about the change before"
    )
    assert bench.held() == bench.wanted([])


async def test_a_run_that_did_nothing_does_not_hide_one_that_died_half_way(bench: Bench) -> None:
    await bench.up(plan_text("two", TWO_LINKS))
    await dies_midway(bench, engine.down)
    await dies_before_anything(bench, "other", OTHER)
    assert (await bench.verb(engine.rollback, None)).plan == "two"
    assert bench.held() == bench.wanted(TWO_LINKS) and not (await bench.status()).unfinished


async def test_the_first_up_of_all_that_died_at_once_is_done_with_too(bench: Bench) -> None:
    died = await dies_before_anything(bench, "other", OTHER)
    report = await bench.verb(engine.rollback, None)
    assert report.notes == (
        f"run {died} (up other): died before anything was changed, so there is nothing to undo; no change was made before",
    )
    assert not (await bench.status()).unfinished


async def test_status_names_what_leaves_a_run_that_did_nothing_and_that_undoes_no_other_change(
    bench: Bench,
) -> None:
    await bench.up(plan_text("two", TWO_LINKS))
    died = await dies_before_anything(bench, "other", OTHER)
    (found,) = (await bench.status()).unfinished
    assert (
        found.lines()[-1]
        == f"  continue: testbed resume {died}   leave it: testbed rollback {died}"
    )
    report = await bench.verb(engine.rollback, died)
    assert report.nothing_to_do and report.of == died and not (await bench.status()).unfinished
    assert bench.held() == bench.wanted(TWO_LINKS)


async def test_a_run_that_is_named_is_rolled_back_whatever_died_since(bench: Bench) -> None:
    await bench.up(plan_text("two", TWO_LINKS))
    first = (await bench.status()).run
    await dies_before_anything(bench, "other", OTHER)
    await bench.verb(engine.rollback, first)
    assert bench.held() == bench.wanted([]) and not (await bench.status()).unfinished
