"""`testbed turn` and `testbed adapt`: in the background unless they are told otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.engine.adapt.process import ADAPTER, AdaptState
from orchestrator.engine.background import ADAPT, TURN, BackgroundState, Kind
from orchestrator.engine.schedule import making
from orchestrator.engine.schedule.process import TURNER, TurnState


def test_both_start_a_process_that_does_the_work_itself(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[str, str]] = []

    def start(kind: Kind[BackgroundState], settings: object, slice_: object, log: Path, words: object = ()) -> BackgroundState:
        started.append((kind.name, log.name))
        return AdaptState(7, log=str(log))

    async def begin(_: object, *, job: bool) -> TurnState:
        started.append(("turn", str(job)))
        return TurnState(8, log="turn.jsonl")

    monkeypatch.setattr(Kind, "start", start)
    monkeypatch.setattr(making, "begin", begin)
    monkeypatch.setattr("orchestrator.cli.adapt.own_slice", lambda _: "lab/ann")
    assert cli("adapt", "--json").json["data"]["adapter"]["pid"] == 7
    assert cli("turn", "--job", "--json").json["data"]["turner"]["pid"] == 8
    assert [name for name, _ in started] == ["adapt", "turn"] and started[1][1] == "True"
    assert {kind.options for kind in (TURN, TURNER, ADAPT, ADAPTER)} == {("--foreground",)}


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
