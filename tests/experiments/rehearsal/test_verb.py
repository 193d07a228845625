"""The verb on a made lab: an interrupt is never a result of a rehearsal, and the twin needs room
for the larger job.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from optics import Interrupted, RolledBack, TestbedError
from orchestrator.experiments.rehearsal import verb
from orchestrator.experiments.rehearsal.report import RehearsalReport
from orchestrator.experiments.rehearsal.seeding import StoredState
from orchestrator.session import Command, PlanText
from orchestrator.store.options import UpOptions
from orchestrator.store.store import Store
from orchestrator.telemetry.progress import Silent
from orchestrator.verbs import change as verbs
from tests.experiments.rehearsal.test_findings import goal, link
from tests.experiments.rehearsal.test_refused import READ
from tests.experiments.rehearsal.test_twin import settings_of

Stopped = Callable[..., Awaitable[Any]]


def stops_with(error: TestbedError, begun: asyncio.Event) -> Stopped:
    """A change as the engine's are: a cancellation becomes an error of its own."""

    async def change(*_: object, **__: object) -> Any:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise error from None

    return change


def lasting(
    home: Path, monkeypatch: pytest.MonkeyPatch, error: TestbedError, where: str
) -> asyncio.Event:
    """A made lab for `verb.rehearse`, whose part `where` lasts until it is stopped; return what is
    set once it runs.
    """
    lab, moved = goal([], [link(1, 2)])
    begun = asyncio.Event()
    change = stops_with(error, begun)

    async def at_once(result: object) -> Any:
        return result

    @asynccontextmanager
    async def opened(*_: object) -> Any:
        yield SimpleNamespace(lab=lab, devices={})

    @contextmanager
    def twin(*_: object, **__: object) -> Iterator[Any]:
        yield SimpleNamespace(
            lab=lab, inventory=home, settings=settings_of(home, home / "twin"), history=lambda _: {}
        )

    done = SimpleNamespace(
        phases=(),
        parts=(),
        diff=(),
        nothing_to_do=False,
        dark_ms=1.0,
        dark_ms_expected=1.0,
        dark_time_scale=1.0,
        ring_change=None,
        notes=(),
    )
    found = SimpleNamespace(plan="ring", fingerprint="f00d", job_change="", notes=(), diff=())
    monkeypatch.setattr(verb, "load_lab", lambda _: lab)
    monkeypatch.setattr(verb, "families", lambda: {"polatis-scpi"})
    monkeypatch.setattr(verb, "read_stored_state", lambda *_: StoredState({}, "alice"))
    monkeypatch.setattr(verb, "no_room", lambda *_: "")
    monkeypatch.setattr(verb, "open_session", opened)
    monkeypatch.setattr(verb, "running_twin", twin)
    monkeypatch.setattr(verb, "_read", lambda *_, **__: at_once((None, moved, READ)))
    monkeypatch.setattr(verb, "seed_devices", lambda *_: at_once(()))
    monkeypatch.setattr(verb, "seed_hosts", lambda *_: at_once(None))
    monkeypatch.setattr(
        verb, "bring_up", change if where == "bring_up" else lambda *_: at_once(None)
    )
    monkeypatch.setattr(verbs, "plan", lambda *_, **__: at_once(found))
    monkeypatch.setattr(verbs, "up", change if where == "up" else lambda *_, **__: at_once(done))
    monkeypatch.setattr(verbs, "rollback", change)
    return begun


def asked(home: Path) -> Command:
    (home / "twin" / "data").mkdir(parents=True)
    return Command(Silent(), Store(home / "store.sqlite3", durable=False), settings_of(home, home))


@pytest.mark.parametrize("where", ["bring_up", "up", "rollback"])
@pytest.mark.parametrize(
    "error", [Interrupted("interrupted half way"), RolledBack("interrupted\nrolled back")]
)
async def test_an_interrupt_ends_the_rehearsal_whatever_the_twin_made_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, error: TestbedError
) -> None:
    begun = lasting(tmp_path, monkeypatch, error, where)
    command = asked(tmp_path)
    with command.store:
        task = asyncio.create_task(verb.rehearse(command, PlanText("{}")))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


@pytest.mark.parametrize(("launch_job", "launched"), [(True, 2), (False, 0)])
async def test_the_twin_needs_room_for_the_job_that_runs_besides_the_one_that_is_launched_and_else_has_no_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launch_job: bool, launched: int
) -> None:
    lasting(tmp_path, monkeypatch, Interrupted(""), "up")
    up = StoredState(
        {}, "alice", plan_text='{"job": {"ranks": ["gpu01", "gpu02", "gpu03"]}}', job_runs=True
    )
    asked_for: list[tuple[int, ...]] = []

    def no_room(*figures: int) -> str:
        asked_for.append(figures)
        return "no room"

    async def alone(*_: object) -> RehearsalReport:
        return RehearsalReport("ring", "made", devices_alone=True)

    monkeypatch.setattr(verb, "read_stored_state", lambda *_: up)
    monkeypatch.setattr(verb, "no_room", no_room)
    monkeypatch.setattr(verb, "change_devices", alone)
    command = asked(tmp_path)
    with command.store:
        found = await verb.rehearse(
            command,
            PlanText('{"job": {"ranks": ["gpu01", "gpu02"]}}'),
            UpOptions(launch_job=launch_job),
        )
    ((_, *ranks),) = asked_for
    assert (
        ranks == [3, launched]
        and found.devices_alone
        and found.missing[0].startswith("hosts (no room): ")
    )


async def test_a_program_of_the_owner_that_does_not_run_on_the_twin_is_named_whether_it_runs_or_is_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lasting(tmp_path, monkeypatch, Interrupted(""), "nowhere")

    def job(program: str) -> str:
        return f'{{"job": {{"workload": "program", "program": "{program}", "ranks": ["gpu01"]}}}}'

    async def changed(*_: object, **__: object) -> RehearsalReport:
        return RehearsalReport("ring", "made")

    monkeypatch.setattr(
        verb,
        "read_stored_state",
        lambda *_: StoredState({}, "alice", plan_text=job("gpt"), job_runs=True),
    )
    monkeypatch.setattr(verb, "_change", changed)
    command = asked(tmp_path)
    with command.store:
        found = await verb.rehearse(command, PlanText(job("llama")))
    assert found.missing[-2:] == tuple(
        f"the program {n}: its ranks all-reduce 1 MB again and again instead"
        for n in ("llama", "gpt")
    )
