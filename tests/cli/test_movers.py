"""`testbed turn` and `testbed adapt`: in the background unless they are told otherwise."""

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
from orchestrator.background.state import ServiceState
from orchestrator.services.schedule import making
from orchestrator.services.schedule.process import TURNER, TurnState
from orchestrator.settings import Settings, load


def test_both_start_a_process_that_does_the_work_itself(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[str, str]] = []

    def start(kind: Kind[ServiceState], settings: object, slice_: object) -> ServiceState:
        started.append((kind.name, ""))
        return AdaptState(7)

    async def begin(_: object, *, job: bool) -> TurnState:
        started.append(("turn", str(job)))
        return TurnState(8, log="turn.jsonl")

    monkeypatch.setattr(Kind, "start", start)
    monkeypatch.setattr(making, "begin", begin)
    monkeypatch.setattr("extensions.adapt.command.own_slice", lambda _: "lab/ann")
    assert cli("adapt", "--json").json["data"]["adapter"]["pid"] == 7
    assert cli("turn", "--job", "--json").json["data"]["turner"]["pid"] == 8
    assert [name for name, _ in started] == ["adapt", "turn"] and started[1][1] == "True"
    assert {kind.options for kind in (TURNER, ADAPTER)} == {("--foreground",)}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["turn", "--stop", "--foreground"], "--stop cannot be combined with --once, --job or --foreground"),
        (["adapt", "--stop", "--turns", "2"], "--stop cannot be combined with --foreground or --turns"),
        (["turn", "--log", "x"], "--log goes with --foreground, --once or --jsonl"),
        (["adapt", "--log", "x"], "--log goes with --foreground, --turns or --jsonl"),
    ],
)
def test_words_that_mean_two_things_are_refused(cli: Any, words: list[str], said: str) -> None:
    answer = cli(*words, "--json")
    assert answer.code == 2 and said in answer.json["message"]


def test_a_start_that_fails_says_why_this_one_did_and_not_an_earlier_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load(env={f"TESTBED_{n}_DIR": str(tmp_path / n.lower()) for n in ("DATA", "STATE", "LOCK")}, cwd=tmp_path)
    wrote = [
        "E-MISSING no plan is up on lab, so there is nothing to adapt\nnext: testbed --as ann up\n",
        "E-LOCKED p1 is locked by bob\n  p2 is locked by bob\nnext: ask bob\n",
        "Traceback (most recent call last):\nMemoryError\n",
        "",
    ]

    def spawn(settings: Settings, words: Sequence[str], said: Path) -> Any:
        with said.open("a") as file:
            file.write(wrote.pop(0))
        return SimpleNamespace(poll=lambda: 2, returncode=2)

    monkeypatch.setattr(kinds, "spawn", spawn)
    (tmp_path / "data").mkdir()
    log = tmp_path / "data" / "adapt.jsonl"

    def failed(kind: type[TestbedError]) -> tuple[str, str]:
        with pytest.raises(kind) as error:
            ADAPTER.start(settings, "lab/ann", log)
        return str(error.value).removeprefix("the adapter ended at once: "), error.value.hint

    assert failed(Missing) == ("no plan is up on lab, so there is nothing to adapt", "testbed --as ann up")
    assert failed(Locked) == ("p1 is locked by bob\n  p2 is locked by bob", "ask bob")
    assert failed(TestbedError) == ("MemoryError", f"see {log.with_suffix('.err')}")
    assert failed(TestbedError)[0] == "exit 2"


def test_what_an_earlier_process_left_is_not_taken_for_what_a_new_one_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load(env={f"TESTBED_{n}_DIR": str(tmp_path / n.lower()) for n in ("DATA", "STATE", "LOCK")}, cwd=tmp_path)
    path, log = ADAPTER.path(settings, "lab/ann"), tmp_path / "adapt.jsonl"
    with StateFile(ADAPTER, path, AdaptState(7, since=1.0, state="adapting", last="old")):
        pass
    looks: list[int] = []

    def spawn(*_: object) -> Any:
        held = StateFile(ADAPTER, path, AdaptState(7, since=1.0, state="adapting", last="old"))
        held.__enter__()  # it has the lock, and what it read there is still the other's

        def poll() -> None:
            looks.append(len(looks))
            held.say(AdaptState(8, since=2.0, state="adapting", last="new"))

        return SimpleNamespace(poll=poll, pid=8, held=held)

    monkeypatch.setattr(kinds, "spawn", spawn)
    monkeypatch.setattr(kinds.Daemon, "detach", lambda process: process.held.__exit__(None, None, None))
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
            self.file.say(AdaptState(8, since=self.since, state="adapting"))

    def terminate(self) -> None:
        self.ended = True
        self.file.__exit__(None, None, None)

    def wait(self) -> None:
        assert self.ended


def test_a_process_that_starts_is_waited_for_while_it_lives_and_the_time_of_the_command_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load(env={f"TESTBED_{n}_DIR": str(tmp_path / n.lower()) for n in ("DATA", "STATE", "LOCK")}, cwd=tmp_path)
    path, log, made = ADAPTER.path(settings, "lab/ann"), tmp_path / "adapt.jsonl", list[Slow]()
    monkeypatch.setattr(kinds, "LOOK_S", 0.0)
    looks = [40, 10**9, 10**9, 40]

    def spawn(*_: object) -> Slow:
        made.append(Slow(path, looks.pop(0), 1.0 + len(made)))
        return made[-1]

    monkeypatch.setattr(kinds, "spawn", spawn)
    monkeypatch.setattr(kinds.Daemon, "detach", lambda process: process.terminate())
    assert ADAPTER.start(settings, "lab/ann", log).state == "adapting"
    with pytest.raises(TimedOut, match=r"the adapter is still starting after 0\.05 s") as late:
        ADAPTER.start(replace(settings, timeout_s=0.05), "lab/ann", log)
    assert made[-1].ended and late.value.hint == f"see {log}"

    async def interrupted() -> None:
        async with asyncio.timeout(0.05):
            await ADAPTER.started(settings, "lab/ann", log)

    with pytest.raises(TimeoutError):
        asyncio.run(interrupted())
    assert made[-1].ended, "nobody waits for it any more"
    assert asyncio.run(ADAPTER.started(settings, "lab/ann", log)).state == "adapting"
