"""Jobs that live through a change of rings: between local processes, with the test as the agent of every rank."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.workloads.agents import Agents, agents
from tests.workloads.ranks import Ranks, ranks, records

WORLD = 3
OLD, NEW = [[0, 1, 2], [2, 1, 0]], [[0, 2, 1]]
TRAIN = ("-m", "workloads.train", "--hidden", "64", "--batch", "4", "--iterations", "0", "--seed", "5")


@contextmanager
def job(directory: Path, *command: str, timeout_s: float = 20.0, **env: str) -> Iterator[tuple[Ranks, Agents]]:
    """Training under way on three ranks, all of them connected to their agents."""
    with (
        agents(WORLD, directory) as (asked, found),
        ranks(
            WORLD,
            *(command or TRAIN),
            directory=directory,
            rings=OLD,
            timeout_s=timeout_s,
            more=lambda rank: found(rank) | env,
        ) as running,
    ):
        greetings = asked.connect()
        assert [(each["rank"], each["world"], each["move"], each["state"]) for each in greetings] == [
            (rank, WORLD, 0, "idle") for rank in range(WORLD)
        ]
        yield running, asked


def stop(running: Ranks) -> None:
    running.signal(signal.SIGTERM)
    assert [(code, err) for code, _, err in running.finish()] == [(0, "")] * WORLD


def turns(directory: Path) -> list[dict[str, Any]]:
    path = directory / "0" / "turns.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def summary(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "0" / "summary.json").read_text())
    return found


def check_run(directory: Path) -> None:
    """No iteration is left out or done twice, all ranks hold the same weights, and each turn is named once."""
    seen = records(directory)
    assert [record["iter"] for record in seen] == list(range(1, len(seen) + 1))
    assert summary(directory)["weights_identical"]
    named = {record["iter"]: record["move"] for record in seen if "move" in record}
    assert named == {turn["after"] + 1: turn["move"] for turn in turns(directory) if turn["after"] < len(seen)}


def test_ranks_turn_while_they_run_and_the_run_can_be_repeated_bit_by_bit(tmp_path: Path) -> None:
    with job(tmp_path) as (running, asked):
        asked.ask("prepare", 1, lease_s=60, rings=NEW)
        ready = asked.until("prepared", "cannot", "void", move=1)
        assert all(each["state"] == "prepared" and each["took_ms"] > 0 for each in ready), ready
        asked.ask("go", 1, decide=False)
        done = asked.until("turned", "void", move=1)
        assert {each["state"] for each in done} == {"turned"}, done
        assert len({each["after"] for each in done}) == 1
        assert {each["iteration"] for each in done} == {done[0]["after"] + 1}
        assert all(each["stall_ms"] >= 0 and each["held_ms"] == 0 for each in done)
        asked.ask("prepare", 7, lease_s=60, rings=OLD)  # the previous set: nothing is connected
        assert {each["took_ms"] for each in asked.until("prepared", move=7)} == {0}
        asked.ask("go", 7, decide=True)
        asked.until("turned", move=7)
        stop(running)
    check_run(tmp_path)
    assert [(turn["move"], turn["rings"]) for turn in turns(tmp_path)] == [(1, NEW), (7, OLD)]
    again = tmp_path / "again"
    command = (*TRAIN[:-4], "--iterations", str(summary(tmp_path)["iterations"]), "--seed", "5")
    with ranks(
        WORLD, *command, directory=again, rings=OLD, more=lambda _: {"TESTBED_TURNS": json.dumps(turns(tmp_path))}
    ) as repeated:
        assert [(code, err) for code, _, err in repeated.finish()] == [(0, "")] * WORLD
    assert [turn["after"] for turn in turns(again)] == [turn["after"] for turn in turns(tmp_path)]
    assert summary(again)["weights_sha256"] == summary(tmp_path)["weights_sha256"]
