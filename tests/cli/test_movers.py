"""Services that move light, as they are started in the background, and what is reported of one that
does not start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from extensions.adapt.service import KIND as ADAPTER
from extensions.adapt.service import AdaptState
from optics import Locked, Missing, TestbedError, TimedOut
from orchestrator.background import kind as kinds
from orchestrator.background.kind import Kind, StateFile
from orchestrator.background.options import ServiceOptions
from orchestrator.background.state import ServiceState
from orchestrator.services.schedule import making
from orchestrator.services.schedule.process import ScheduleOptions, ScheduleState
from orchestrator.settings import Settings, load
from tests.house.repository import ROOT


def test_both_start_a_process_that_does_the_work_itself(
    cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[str, ...]] = []

    def start(
        kind: Kind[ServiceState],
        settings: object,
        key: object,
        log: object,
        options: ServiceOptions,
    ) -> ServiceState:
        started.append((kind.name, str(log or ""), *options.text()))
        return AdaptState(7)

    async def begin(_: object, options: ScheduleOptions) -> ScheduleState:
        started.append(("schedule", options.log, *options.text()))
        return ScheduleState(8, log="schedule.jsonl")

    monkeypatch.setattr(Kind, "start", start)
    monkeypatch.setattr(making, "begin_schedule", begin)
    monkeypatch.setenv("TESTBED_INVENTORY", str(ROOT / "inventory" / "emulated"))
    adapt = cli("service", "start", "adapt", "--turns", "3", "--json").json["data"]
    assert (adapt["service"], adapt["started"], adapt["state"]["pid"]) == ("adapt", True, 7)
    assert (
        cli("service", "start", "schedule", "--job", "--log", "x", "--json").json["data"]["state"][
            "pid"
        ]
        == 8
    )
    assert started == [("adapt", "", "--turns", "3"), ("schedule", "x", "--job")]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["start", "schedule", "--once"], "No such option: --once"),
        (["start", "guard", "--jsonl"], "No such option: --jsonl"),
        (
            ["start", "guard", "--restarts", "2/h"],
            "service start guard: --restarts can only be used with --jobs",
        ),
        (
            ["start", "guard", "--jobs", "--restarts", "x"],
            "service start guard: --restarts: 'x' is not a number per time",
        ),
        (["run", "guard", "--look", "soon"], "--look: 'soon' is not a duration"),
        (["stop", "turn"], "testbed service stop turn: not one of guard, schedule, "),
        (
            ["run", "adapt", "--turns", "-1"],
            "'--turns': Input should be greater than or equal to 0",
        ),
    ],
)
def test_words_that_make_no_sense_are_refused(cli: Any, argv: list[str], message: str) -> None:
    answer = cli("service", *argv, "--json")
    assert answer.code == 2 and message in answer.json["message"]


def test_a_start_that_fails_says_why_this_one_did_and_not_an_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load(
        env={f"TESTBED_{n}_DIR": str(tmp_path / n.lower()) for n in ("DATA", "STATE", "LOCK")},
        cwd=tmp_path,
    )
    wrote = [
        "E-MISSING no plan is up on lab, so there is nothing to adapt\nnext: testbed --as ann up\n",
        "E-LOCKED p1 is locked by bob\n  p2 is locked by bob\nnext: ask bob\n",
        "Traceback (most recent call last):\nMemoryError\n",
        "",
    ]

    def spawn(settings: Settings, argv: Sequence[str], message: Path, **_: object) -> Any:
        with message.open("a") as file:
            file.write(wrote.pop(0))
        return SimpleNamespace(poll=lambda: 2, returncode=2)

    monkeypatch.setattr(kinds, "spawn", spawn)
    (tmp_path / "data").mkdir()
    log = tmp_path / "data" / "adapt.jsonl"

    def failed(kind: type[TestbedError]) -> tuple[str, str]:
        with pytest.raises(kind) as error:
            ADAPTER.start(settings, "lab/ann", log)
        return str(error.value).removeprefix("the adapt service ended at once: "), error.value.hint

    assert failed(Missing) == (
        "no plan is up on lab, so there is nothing to adapt",
        "testbed --as ann up",
    )
    assert failed(Locked) == ("p1 is locked by bob\n  p2 is locked by bob", "ask bob")
    assert failed(TestbedError) == ("MemoryError", f"see {log.with_suffix('.err')}")
    assert failed(TestbedError)[0] == "exit 2"


def test_what_an_earlier_process_left_is_not_taken_for_what_a_new_one_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load(
        env={f"TESTBED_{n}_DIR": str(tmp_path / n.lower()) for n in ("DATA", "STATE", "LOCK")},
        cwd=tmp_path,
    )
    path, log = ADAPTER.path(settings, "lab/ann"), tmp_path / "adapt.jsonl"
    with StateFile(ADAPTER, path, AdaptState(7, since=1.0, state="adapting", last="old")):
        pass
    looks: list[int] = []

    def spawn(*_: object, **__: object) -> Any:
        held = StateFile(ADAPTER, path, AdaptState(7, since=1.0, state="adapting", last="old"))
        held.__enter__()  # it has the lock, and what it read there is still the other's

        def poll() -> None:
            looks.append(len(looks))
            held.emit(AdaptState(8, since=2.0, state="adapting", last="new"))

        return SimpleNamespace(poll=poll, pid=8, held=held)

    monkeypatch.setattr(kinds, "spawn", spawn)
    monkeypatch.setattr(
        kinds.Daemon, "detach", lambda process: process.held.__exit__(None, None, None)
    )
    started = ADAPTER.start(settings, "lab/ann", log)
    assert (started.pid, started.last) == (8, "new") and looks


class Slow:
    """A process that starts for as many looks as it is told, or for ever, and can be ended."""

    pid, returncode = 8, None

    def __init__(self, path: Path, looks: int, since: float) -> None:
        self.looks, self.ended, self.since = looks, False, since
        self.file = StateFile(ADAPTER, path, AdaptState(8, since=since))
        self.file.__enter__()

    def poll(self) -> None:
        self.looks -= 1
        if self.looks == 0:
            self.file.emit(AdaptState(8, since=self.since, state="adapting"))

    def terminate(self) -> None:
        self.ended = True
        self.file.__exit__(None, None, None)

    def wait(self) -> None:
        assert self.ended


def test_a_process_that_starts_is_waited_for_while_it_lives_and_the_time_of_the_command_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load(
        env={f"TESTBED_{n}_DIR": str(tmp_path / n.lower()) for n in ("DATA", "STATE", "LOCK")},
        cwd=tmp_path,
    )
    path, log, made = ADAPTER.path(settings, "lab/ann"), tmp_path / "adapt.jsonl", list[Slow]()
    monkeypatch.setattr(kinds, "LOOK_S", 0.0)
    looks = [40, 10**9, 10**9, 40]

    def spawn(*_: object, **__: object) -> Slow:
        made.append(Slow(path, looks.pop(0), 1.0 + len(made)))
        return made[-1]

    monkeypatch.setattr(kinds, "spawn", spawn)
    monkeypatch.setattr(kinds.Daemon, "detach", lambda process: process.terminate())
    assert ADAPTER.start(settings, "lab/ann", log).state == "adapting"
    with pytest.raises(
        TimedOut, match=r"the adapt service is still starting after 0\.05 s"
    ) as late:
        ADAPTER.start(replace(settings, timeout_s=0.05), "lab/ann", log)
    assert made[-1].ended and late.value.hint == f"see {log}"

    async def interrupted() -> None:
        async with asyncio.timeout(0.05):
            await ADAPTER.started(settings, "lab/ann", log)

    with pytest.raises(TimeoutError):
        asyncio.run(interrupted())
    assert made[-1].ended, "nobody waits for it any more"
    assert asyncio.run(ADAPTER.started(settings, "lab/ann", log)).state == "adapting"
