"""Rings that change under a running script: the test is the agent of every rank (see
workloads/host/handoff.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.backend.crew import WORLD, Crew
from tests.workloads.agents import Agents, agents

# tests/workloads/test_backend.py has a short one
pytestmark = [pytest.mark.timeout(400), pytest.mark.long]

OLD, NEW = [[0, 1, 2, 3]], [[0, 2, 1, 3], [3, 1, 2, 0], [0, 1, 2, 3]]
STOP = "stop"
"""The file that ends the training: so it lasts as long as a test needs, however busy the machine
is.
"""
LEASE_S = 60


@contextmanager
def training(directory: Path, kind: str) -> Iterator[tuple[Crew, Agents]]:
    """Training under way on four ranks, all connected to their agents."""
    with agents(WORLD, directory) as (asked, found):
        crew = Crew(directory, env=found)
        try:
            crew.ask("models.turning", kind=kind, until=str(directory / STOP))
            greetings = asked.connect()
            assert [(each["rank"], each["world"], each["move"]) for each in greetings] == [
                (r, WORLD, 0) for r in range(WORLD)
            ]
            yield crew, asked
        finally:
            crew.stop()


def step(
    asked: Agents, move: int, rings: list[list[int]], hold: bool = False
) -> list[dict[str, Any]]:
    """Have all ranks use other rings; what each says once it does."""
    asked.ask("prepare", move, lease_s=LEASE_S, rings=rings)
    ready = asked.until("prepared", "cannot", "void", move=move)
    assert {each["state"] for each in ready} == {"prepared"}, ready
    if hold:
        asked.ask("hold", move, lease_s=LEASE_S)
        held = asked.until("held", "cannot", "void", move=move)
        assert {each["state"] for each in held} == {"held"}, held
        assert len({each["iteration"] for each in held}) == 1, held
    asked.ask("go", move, decide=False)
    done = asked.until("changed", "cannot", "void", move=move)
    assert {each["state"] for each in done} == {"changed"}, done
    assert len({each["after"] for each in done}) == 1, done
    return done


def check(crew: Crew, directory: Path) -> None:
    """End the training; all ranks have the same weights."""
    (directory / STOP).touch()
    answers = crew.answers()
    assert all("value" in answer for answer in answers), answers
    assert len({answer["value"]["digest"] for answer in answers}) == 1
    assert len({len(answer["value"]["losses"]) for answer in answers}) == 1


@pytest.mark.parametrize("kind", ["ddp", "fsdp", "mixed"])
def test_rings_change_under_training_and_all_ranks_keep_the_same_weights(
    kind: str, tmp_path: Path
) -> None:
    with training(tmp_path, kind) as (crew, asked):
        first = step(asked, 1, NEW)
        second = step(asked, 2, OLD)
        assert second[0]["after"] > first[0]["after"]
        step(asked, 3, NEW, hold=True)
        check(crew, tmp_path)


def test_training_goes_on_when_the_agents_vanish_in_the_midst_of_a_hold(tmp_path: Path) -> None:
    with training(tmp_path, "ddp") as (crew, asked):
        asked.ask("prepare", 1, lease_s=LEASE_S, rings=NEW)
        asked.until("prepared", move=1)
        asked.ask("hold", 1, lease_s=10)
        asked.until("held", "void", move=1)
        for agent in asked:
            agent.hang_up()
        check(crew, tmp_path)


def test_a_turn_that_is_dropped_changes_nothing(tmp_path: Path) -> None:
    with training(tmp_path, "ddp") as (crew, asked):
        asked.ask("prepare", 1, lease_s=LEASE_S, rings=NEW)
        asked.until("prepared", move=1)
        asked.ask("drop", 1)
        assert {each["state"] for each in asked.until("void", "changed", move=1)} == {"void"}
        step(asked, 2, NEW)
        check(crew, tmp_path)


def test_rings_that_do_not_name_every_rank_are_refused_and_training_goes_on(tmp_path: Path) -> None:
    with training(tmp_path, "ddp") as (crew, asked):
        asked.ask("prepare", 1, lease_s=LEASE_S, rings=[[0, 1, 2]])
        assert all("rings" in each["error"] for each in asked.until("cannot", move=1))
        check(crew, tmp_path)
