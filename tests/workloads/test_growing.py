"""A rank that joins a running job, between local processes, with the test as the agent of every
rank.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.workloads.agents import Agents, agents
from tests.workloads.programs.test_train import until
from tests.workloads.ranks import LANES, Ranks, free_port, ranks, records

TRAIN = (
    *("-m", "workloads.programs.train", "--hidden", "64", "--batch", "4"),
    *("--iterations", "0", "--seed", "5", "--checkpoint-every", "5"),
)
THREE, FOUR = [[0, 1, 2], [2, 1, 0]], [[0, 1, 2, 3], [3, 2, 1, 0]]
NEW = 3


@contextmanager
def job(
    directory: Path,
    *more: str,
    new: tuple[str, ...] = TRAIN,
    timeout_s: float = 20.0,
    comes: bool = True,
) -> Iterator[tuple[Ranks, Ranks, Agents]]:
    """Training under way on three ranks, and a fourth that waits to be asked for. comes: it gets so
    far.
    """
    port = str(free_port())
    with (
        agents(NEW + 1, directory) as (asked, found),
        ranks(
            NEW,
            *TRAIN,
            *more,
            directory=directory,
            rings=THREE,
            timeout_s=timeout_s,
            more=lambda rank: found(rank) | {"MASTER_PORT": port},
        ) as running,
    ):
        for agent in asked[:NEW]:
            agent.connect()
        env = {
            "RANK": str(NEW),
            "WORLD_SIZE": str(NEW + 1),
            "MASTER_PORT": port,
            "TESTBED_JOINING": "1",
            "TESTBED_LANES": json.dumps([f"127.0.{NEW + 1}.{lane + 1}" for lane in range(LANES)]),
        }
        with ranks(
            1,
            *new,
            directory=directory / "new",
            rings=FOUR,
            timeout_s=timeout_s,
            more=lambda _: found(NEW) | env,
        ) as newcomer:
            if not comes:
                yield running, newcomer, asked
                return
            try:
                greeting = asked[NEW].connect()
            except TimeoutError:
                raise AssertionError(newcomer.reported()) from None
            assert (greeting["rank"], greeting["world"], greeting["state"]) == (NEW, 4, "idle")
            yield running, newcomer, asked


def summary(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "0" / "summary.json").read_text())
    return found


def stop(*some: Ranks) -> None:
    some[0].signal(signal.SIGTERM, only=[1])
    for each in some:
        assert {(code, err) for code, _, err in each.finish()} == {(0, "")}


def iterations(directory: Path) -> list[object]:
    return [record["iter"] for record in records(directory)]


def samples(directory: Path) -> list[object]:
    return [record["samples"] for record in records(directory)]


def test_a_rank_joins_and_all_hold_the_same_weights_and_no_iteration_is_lost(
    tmp_path: Path,
) -> None:
    with job(tmp_path) as (running, newcomer, asked):
        asked.ask("prepare", 1, lease_s=60, rings=FOUR)
        ready = asked.until("prepared", "cannot", "void", move=1)
        assert {each["state"] for each in ready} == {"prepared"}, (ready, newcomer.reported())
        asked.ask("go", 1, decide=True)
        done = asked.until("changed", "cannot", "void", move=1)
        assert {each["state"] for each in done} == {"changed"}, (done, newcomer.reported())
        (after,) = {each["after"] for each in done}
        assert all(each["held_ms"] > 0 for each in done[:NEW]), "they say how long they waited"
        asked.ask("prepare", 2, lease_s=60, rings=FOUR[::-1])  # it takes part in what follows
        asked.until("prepared", move=2)
        asked.ask("go", 2, decide=True)
        asked.until("changed", move=2)
        stop(running, newcomer)
    found = summary(tmp_path)
    assert found["weights_identical"] and found["world"] == 4
    assert iterations(tmp_path) == list(range(1, found["iterations"] + 1))
    assert set(samples(tmp_path)[:after]) == {12} and set(samples(tmp_path)[after:]) == {16}
    kept = tmp_path / "new" / "0" / f"checkpoint-{NEW}-{found['iterations']}.pt"
    assert kept.exists(), "it writes checkpoints as all others do"
    assert kept.with_name(f"given-{NEW}").exists(), "and knows that it has none of before"


HANGS = """
import pathlib, sys, time
import workloads.collectives.growing as growing
def take(self, move, after):
    self._agreed.store.wait([f"state/{{move.number}}"])
    pathlib.Path({sign!r}).touch()
    time.sleep(1000)
growing.Growing._take = take
sys.argv[1:] = {argv!r}
from workloads.programs.train import main
main()
"""


def test_a_job_that_is_asked_to_stop_waits_for_no_rank_that_joins(tmp_path: Path) -> None:
    sign = tmp_path / "taking"
    hangs = HANGS.format(sign=str(sign), argv=list(TRAIN[2:]))
    with job(tmp_path, new=("-c", hangs), timeout_s=500.0) as (running, _, asked):
        asked.ask("prepare", 1, lease_s=400, rings=FOUR)
        assert {each["state"] for each in asked.until("prepared", "cannot", move=1)} == {"prepared"}
        asked.ask("go", 1, decide=True)
        until(sign.exists, running)
        stop(running)
    found = summary(tmp_path)
    assert found["stopped"] and found["world"] == NEW
    assert (tmp_path / "1" / f"checkpoint-1-{found['iterations']}.pt").exists()


STAYS = """
import sys
import workloads.transport.accord as accord
accord.Accord.leave = lambda *_, **__: print("took leave")
sys.argv[1:] = {argv!r}
from workloads.programs.train import main
main()
"""


def test_a_rank_that_cannot_join_takes_no_leave_of_the_job(tmp_path: Path) -> None:
    other = STAYS.format(argv=[*TRAIN[2:], "--sync-every", "4"])
    with job(tmp_path, new=("-c", other), comes=False) as (running, newcomer, _):
        ((code, out, said),) = newcomer.finish()
        assert code == 2 and "has as many ranks as it began with" in said
        assert "took leave" not in out
        stop(running)


DIES = """
import os, sys
import workloads.collectives.growing as growing
growing.Growing.{at} = lambda *_: os._exit(9)
sys.argv[1:] = {argv!r}
from workloads.programs.train import main
main()
"""


@pytest.mark.parametrize("at", ["_form", "_take"])
def test_a_rank_that_dies_while_it_joins_leaves_the_job_running_as_it_was(
    tmp_path: Path, at: str
) -> None:
    dies = DIES.format(at=at, argv=list(TRAIN[2:]))
    with job(tmp_path, new=("-c", dies)) as (running, newcomer, asked):
        asked[NEW].ask("prepare", 1, lease_s=60, rings=FOUR)
        for agent in asked[:NEW]:
            agent.ask("prepare", 1, lease_s=2 if at == "_form" else 60, rings=FOUR)
        for agent in asked[:NEW]:
            if at != "_take":
                break
            assert agent.until("prepared", "cannot", "void", move=1)["state"] == "prepared"
        for agent in asked[:NEW]:
            agent.ask("go", 1, decide=True)
        for agent in asked[:NEW]:
            assert agent.until("void", "cannot", "changed", move=1)["state"] != "changed"
        assert newcomer.finish()[0][0] == 9
        made = len(records(tmp_path))
        asked[0].ask("prepare", 2, lease_s=60)  # nobody is left holding: iterations go on
        for agent in asked[1:NEW]:
            agent.ask("prepare", 2, lease_s=60)
        for agent in asked[:NEW]:
            agent.until("prepared", move=2)
            agent.ask("drop", 2)
        stop(running)
    found = summary(tmp_path)
    assert found["weights_identical"] and found["world"] == NEW and found["iterations"] > made
    assert iterations(tmp_path) == list(range(1, found["iterations"] + 1))
    assert set(samples(tmp_path)) == {12}


def test_a_rank_that_trains_something_else_does_not_join(tmp_path: Path) -> None:
    other = (*TRAIN[:-2], "--seed", "6")
    with job(tmp_path, new=other) as (running, newcomer, asked):
        asked.ask("prepare", 1, lease_s=60, rings=FOUR)
        asked.until("prepared", move=1)
        asked.ask("go", 1, decide=True)
        for agent in asked[:NEW]:
            assert agent.until("void", "cannot", "changed", move=1)["state"] != "changed"
        ((code, _, said),) = newcomer.finish()
        assert code == 1 and "the job trains with another seed" in said
        stop(running)
    assert summary(tmp_path)["weights_identical"] and summary(tmp_path)["world"] == NEW


def test_a_job_that_cannot_grow_refuses_more_ranks(tmp_path: Path) -> None:
    with job(tmp_path, "--sync-every", "4") as (running, _, asked):
        for agent in asked[:NEW]:
            agent.ask("prepare", 1, lease_s=60, rings=FOUR)
            said = agent.until("cannot", "prepared", move=1)
            assert "does not name each of the 3 ranks once" in said.get("error", said["state"])
        stop(running)
