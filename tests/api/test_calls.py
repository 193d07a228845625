"""One call of the engine: from a script, in a running event loop, from threads; interrupted,
cancelled, watched, failing.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from optical_testbed import AsyncLab, BadFile, Event, Interrupted, Lab, Missing, Unreachable, Usage
from orchestrator.change.report import DownReport, UpReport
from orchestrator.session import Command
from orchestrator.store.options import UpOptions
from orchestrator.verbs import change as engine
from tests.house.repository import ROOT

TEXTS = "interrupted; rolled back, everything is as before"


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Directories of the test's own, and an engine in `orchestrator.verbs.change` that the test
    replaces.
    """
    monkeypatch.chdir(ROOT)
    yield {f"{name}_dir": str(tmp_path / name) for name in ("data", "state", "lock")}


@pytest.fixture
def lab(places: dict[str, str]) -> Iterator[Lab]:
    with Lab.open("inventory/emulated", settings=places) as opened:
        yield opened


def status(answer: Callable[[Command], Any]) -> Any:
    async def verb(command: Command) -> Any:
        return answer(command)

    return verb


class Waiting:
    """A verb that waits until it is cancelled, and then takes a moment to revert its step."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.reverted = threading.Event()

    async def __call__(self, command: Command) -> None:
        self.began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0.05)
            self.reverted.set()
            raise Interrupted(TEXTS) from None


def test_a_call_gets_the_settings_and_a_store_of_the_opened_lab(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        engine,
        "status",
        status(lambda command: (command.inventory, command.timeout_s, command.store.history())),
    )
    assert lab.status() == (ROOT / "inventory" / "emulated", 300.0, [])  # type: ignore[comparison-overlap]


async def test_a_call_works_where_an_event_loop_runs_already(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "status", status(lambda command: asyncio.get_running_loop()))
    assert lab.status() is not asyncio.get_running_loop()  # type: ignore[comparison-overlap]


def test_several_threads_may_call_at_once(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(2)

    async def verb(command: Command) -> int:
        await asyncio.to_thread(both.wait, 90)  # only two calls at once get past it
        return threading.get_ident()

    monkeypatch.setattr(engine, "status", verb)
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(lab.status())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 2


def test_an_error_of_the_engine_is_raised_with_its_hint(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(command: Command) -> None:
        raise Missing("no plan is up", hint="testbed up")

    monkeypatch.setattr(engine, "status", status(fail))
    with pytest.raises(Missing, match="no plan is up") as caught:
        lab.status()
    assert caught.value.hint == "testbed up" and caught.value.code == "E-MISSING"


def test_a_stopped_emulated_lab_is_named_instead_of_what_it_causes(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(command: Command) -> None:
        raise Unreachable("ocs1: connection refused")

    monkeypatch.setattr(engine, "status", status(fail))
    monkeypatch.setattr("orchestrator.emulated.is_running", lambda inventory: False)
    with pytest.raises(Unreachable, match="the emulated lab is not running"):
        lab.status()


def test_an_interrupt_waits_until_the_engine_has_reverted_its_step(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    verb = Waiting()
    monkeypatch.setattr(engine, "status", verb)

    def interrupt() -> None:
        assert verb.began.wait(30)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt, match=TEXTS) as caught:
        lab.status()
    assert verb.reverted.is_set() and isinstance(caught.value.__cause__, Interrupted)


def test_a_second_interrupt_does_not_wait(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    began, reverting, release = threading.Event(), threading.Event(), threading.Event()

    async def verb(command: Command) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            reverting.set()
            await asyncio.to_thread(release.wait, 60)

    monkeypatch.setattr(engine, "status", verb)

    def interrupt() -> None:
        for event in (began, reverting):
            assert event.wait(30)
            os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        lab.status()
    assert not release.is_set()
    release.set()
    for thread in threading.enumerate():
        if thread.name == "testbed":
            thread.join(30)


async def test_a_cancelled_call_ends_when_the_engine_has_reverted_its_step(
    places: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    verb = Waiting()
    monkeypatch.setattr(engine, "status", verb)
    async with AsyncLab.open("inventory/emulated", settings=places) as lab:
        task = asyncio.create_task(lab.status())
        await asyncio.to_thread(verb.began.wait, 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert verb.reverted.is_set()


async def test_awaited_calls_run_at_once_and_leave_the_loop_free(
    places: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    both = threading.Barrier(2)

    async def verb(command: Command) -> int:
        both.wait(30)  # blocks the thread of the engine
        return 1

    monkeypatch.setattr(engine, "status", verb)
    async with AsyncLab.open("inventory/emulated", settings=places) as lab:
        assert await asyncio.gather(lab.status(), lab.status()) == [1, 1]


def _working(command: Command) -> int:
    command.progress.phase("stage", "routes")
    command.progress.update("stage", 1, 2, "gpu01")
    command.progress.done("stage", "132 routes", 1.5)
    command.progress.note("a note")
    return 1


EVENTS = [
    Event("phase", "stage", "routes"),
    Event("update", "stage", "gpu01", 1, 2),
    Event("done", "stage", "132 routes", seconds=1.5),
    Event("note", detail="a note"),
]


def test_progress_is_shown_in_the_thread_of_the_call(
    places: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "status", status(_working))
    seen: list[tuple[Event, int]] = []
    with Lab.open(
        "inventory/emulated",
        settings=places,
        progress=lambda e: seen.append((e, threading.get_ident())),
    ) as lab:
        lab.status()
    assert seen == [(event, threading.get_ident()) for event in EVENTS]
    assert [str(event) for event in EVENTS] == [
        "stage routes",
        "stage 1/2 gpu01",
        "stage 132 routes (1.50 s)",
        "a note",
    ]


async def test_progress_is_shown_in_the_loop_of_the_call(
    places: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "status", status(_working))
    seen: list[Event] = []

    def show(event: Event) -> None:
        asyncio.get_running_loop()  # raises outside of one
        seen.append(event)

    async with AsyncLab.open("inventory/emulated", settings=places, progress=show) as lab:
        await lab.status()
    assert seen == EVENTS


def test_a_progress_function_that_fails_does_not_stop_the_call(
    places: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "status", status(_working))
    seen: list[Event] = []

    def show(event: Event) -> None:
        seen.append(event)
        raise ValueError("no such axis")

    with (
        Lab.open("inventory/emulated", settings=places, progress=show) as lab,
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        assert lab.status() == 1  # type: ignore[comparison-overlap]
    assert len(seen) == len(caught) == 1 and "no such axis" in str(caught[0].message)


def test_what_down_leaves_to_be_repaired_is_an_error(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    from optical_testbed import HandsNeeded

    monkeypatch.setattr(
        engine,
        "down",
        status(lambda command: DownReport("2026-11-21-0008", "emulated", left=("gpu03: routes",))),
    )
    with pytest.raises(HandsNeeded, match=r"1\. gpu03: routes") as caught:
        lab.down()
    assert caught.value.left == ("gpu03: routes",) and "resume 2026-11-21-0008" in caught.value.hint


def test_a_plan_is_read_before_the_emulated_lab_is_started(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Path] = []
    monkeypatch.setattr("orchestrator.emulated.is_running", lambda inventory: False)
    monkeypatch.setattr(
        "orchestrator.emulated.start_emulated_lab",
        lambda inventory, timeout_s: started.append(inventory),
    )
    with pytest.raises(BadFile, match=r"links\[0\].b: host gpu99"):
        lab.up({"schema": "testbed.plan/1", "name": "x", "links": [{"a": "gpu01", "b": "gpu99"}]})
    assert not started


def test_the_options_of_up_reach_the_engine(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    async def verb(command: Command, plan: object, options: UpOptions) -> UpReport:
        given[str(plan)] = options
        return UpReport("", "x", "emulated")

    monkeypatch.setattr(engine, "up", verb)
    monkeypatch.setattr("orchestrator.emulated.is_running", lambda inventory: True)
    lab.up(
        "examples/ring-12.json",
        job="live",
        avoid=["gpu01:p1"],
        confirm_within_s=60.0,
        rollback=False,
    )
    assert given == {
        "examples/ring-12.json": UpOptions(
            job="live", avoid=("gpu01:p1",), confirm_s=60.0, rollback=False
        )
    }
    with pytest.raises(BadFile, match="confirm_within_s"):
        lab.up("examples/ring-12.json", confirm_within_s=0.1)


def test_a_closed_lab_is_refused(lab: Lab) -> None:
    lab.close()
    with pytest.raises(Missing, match="closed"):
        lab.status()


def test_every_problem_of_what_is_opened_is_named(places: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"data_dirr.*did you mean data_dir"):
        Lab.open("inventory/emulated", settings={"data_dirr": "x"})
    with pytest.raises(BadFile):
        Lab.open(tmp_path / "nowhere", settings=places)
    with pytest.raises(Usage, match="timeout"):
        Lab.open("inventory/emulated", timeout_s=-1)


def test_an_emulated_lab_that_cannot_be_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(Missing, match="no such emulated lab"):
        Lab.emulated(hosts=1000, folder=tmp_path / "lab")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    with pytest.raises(BadFile, match="not an empty directory"):
        Lab.emulated(folder=tmp_path / "full")
    assert (tmp_path / "full" / "mine.txt").read_text() == "mine"
