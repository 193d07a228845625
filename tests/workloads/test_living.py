"""Jobs that live through a change of rings: between local processes, with the test as the agent of
every rank.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.workloads.agents import Agents, agents
from tests.workloads.ranks import Ranks, ranks, records

WORLD = 3
OLD, NEW = [[0, 1, 2], [2, 1, 0]], [[0, 2, 1]]
TRAIN = (
    "-m",
    "workloads.programs.train",
    "--hidden",
    "64",
    "--batch",
    "4",
    "--iterations",
    "0",
    "--seed",
    "5",
)


@contextmanager
def job(
    directory: Path, *command: str, timeout_s: float = 60.0, **env: str
) -> Iterator[tuple[Ranks, Agents]]:
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
        try:
            greetings = asked.connect()
        except TimeoutError:
            raise AssertionError(running.reported()) from None
        assert [
            (each["rank"], each["world"], each["move"], each["state"]) for each in greetings
        ] == [(rank, WORLD, 0, "idle") for rank in range(WORLD)]
        yield running, asked


def stop(running: Ranks) -> None:
    running.signal(signal.SIGTERM)
    assert [(code, err) for code, _, err in running.finish()] == [(0, "")] * WORLD


def ring_changes(directory: Path) -> list[dict[str, Any]]:
    path = directory / "0" / "ring_changes.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def summary(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "0" / "summary.json").read_text())
    return found


def check_run(directory: Path) -> None:
    """No iteration is left out or done twice, all ranks hold the same weights, and each ring change
    is named once.
    """
    seen = records(directory)
    assert [record["iter"] for record in seen] == list(range(1, len(seen) + 1))
    assert summary(directory)["weights_identical"]
    named = {record["iter"]: record["move"] for record in seen if "move" in record}
    assert named == {
        ring_change["after"] + 1: ring_change["move"]
        for ring_change in ring_changes(directory)
        if ring_change["after"] < len(seen)
    }


def test_ranks_turn_while_they_run_and_the_run_can_be_repeated_bit_by_bit(tmp_path: Path) -> None:
    with job(tmp_path) as (running, asked):
        asked.ask("prepare", 1, lease_s=60, rings=NEW)
        ready = asked.until("prepared", "cannot", "void", move=1)
        assert all(each["state"] == "prepared" and each["took_ms"] > 0 for each in ready), ready
        asked.ask("go", 1, decide=False)
        done = asked.until("changed", "void", move=1)
        assert {each["state"] for each in done} == {"changed"}, done
        assert len({each["after"] for each in done}) == 1
        assert {each["iteration"] for each in done} == {done[0]["after"] + 1}
        assert all(each["stall_ms"] >= 0 and each["held_ms"] == 0 for each in done)
        asked.ask("prepare", 7, lease_s=60, rings=OLD)  # the previous set: nothing is connected
        assert {each["took_ms"] for each in asked.until("prepared", move=7)} == {0}
        asked.ask("go", 7, decide=True)
        asked.until("changed", move=7)
        stop(running)
    check_run(tmp_path)
    assert [
        (ring_change["move"], ring_change["rings"]) for ring_change in ring_changes(tmp_path)
    ] == [(1, NEW), (7, OLD)]
    again = tmp_path / "again"
    command = (*TRAIN[:-4], "--iterations", str(summary(tmp_path)["iterations"]), "--seed", "5")
    with ranks(
        WORLD,
        *command,
        directory=again,
        rings=OLD,
        more=lambda _: {"TESTBED_RING_CHANGES": json.dumps(ring_changes(tmp_path))},
    ) as repeated:
        assert [(code, err) for code, _, err in repeated.finish()] == [(0, "")] * WORLD
    assert [ring_change["after"] for ring_change in ring_changes(again)] == [
        ring_change["after"] for ring_change in ring_changes(tmp_path)
    ]
    assert summary(again)["weights_sha256"] == summary(tmp_path)["weights_sha256"]


@pytest.mark.long
def test_ranks_hold_all_after_the_same_iteration_and_turn_there(tmp_path: Path) -> None:
    with job(tmp_path) as (running, asked):
        asked.ask("prepare", 3, lease_s=60, rings=NEW)
        asked.until("prepared", move=3)
        asked[1].ask("hold", 3, lease_s=60)  # one rank is asked, all of them hold
        held = asked.until("held", move=3)
        assert len({each["iteration"] for each in held}) == 1
        seen = len(records(tmp_path))
        assert seen == held[0]["iteration"]
        asked[0].ask("go", 3, decide=False)
        asked[0].ask("go", 3, decide=False)  # repeated: still one rank of three
        asked[2].ask("hold", 3, lease_s=60)
        asked[1].hang_up()  # its agent starts again
        assert asked[1].connect() | {"t_ns": 0} == held[1] | {"t_ns": 0, "world": WORLD}
        assert len(records(tmp_path)) == seen, "they still hold"
        asked[2].ask("go", 3, decide=True)
        done = asked.until("changed", "void", move=3)
        assert [(each["state"], each["after"]) for each in done] == [("changed", seen)] * WORLD
        assert all(each["held_ms"] > 0 for each in done)
        stop(running)
    check_run(tmp_path)
    assert ring_changes(tmp_path)[0]["held_ms"] == done[0]["held_ms"]


def test_a_pure_pause_changes_no_weight(tmp_path: Path) -> None:
    with job(tmp_path) as (running, asked):
        asked.ask("prepare", 1, lease_s=60)
        assert {each["took_ms"] for each in asked.until("prepared", move=1)} == {0}
        asked.ask("hold", 1, lease_s=60)
        asked.until("held", move=1)
        asked.ask("go", 1, decide=False)  # the last one that is asked decides
        asked.until("changed", move=1)
        stop(running)
    check_run(tmp_path)
    never = tmp_path / "never"
    command = (*TRAIN[:-4], "--iterations", str(summary(tmp_path)["iterations"]), "--seed", "5")
    with ranks(WORLD, *command, directory=never, rings=OLD) as unpaused:
        assert [(code, err) for code, _, err in unpaused.finish()] == [(0, "")] * WORLD
    assert summary(never)["weights_sha256"] == summary(tmp_path)["weights_sha256"]


def test_ranks_whose_operator_is_silent_go_on_after_the_lease(tmp_path: Path) -> None:
    with job(tmp_path) as (running, asked):
        asked.ask("prepare", 1, lease_s=60, rings=NEW)
        asked.until("prepared", move=1)
        asked[0].ask("hold", 1, lease_s=0.5)  # the others go by what the first wrote
        asked.until("held", move=1)
        done = asked.until("void", "changed", move=1)
        assert {each["state"] for each in done} == {"void"}
        assert all(each["held_ms"] > 0 for each in done)
        asked.ask("go", 1, decide=True)  # too late
        assert {each["state"] for each in asked.until("void", "changed", move=1)} == {"void"}
        asked.ask("prepare", 2, lease_s=0.3, rings=NEW)
        assert {each["state"] for each in asked.until("void", move=2)} == {"void"}
        stop(running)
    check_run(tmp_path)
    assert ring_changes(tmp_path) == []


def test_a_dropped_move_is_void_and_the_next_one_turns(tmp_path: Path) -> None:
    with job(tmp_path) as (running, asked):
        asked.ask("prepare", 1, lease_s=60, rings=NEW)
        asked.until("prepared", move=1)
        asked.ask("prepare", 2, lease_s=60, rings=NEW)
        assert {each["error"] for each in asked.until("cannot", move=2)} == {"move 1 is under way"}
        asked.ask("hold", 1, lease_s=60)
        asked.until("held", move=1)
        asked[2].ask("drop", 1)
        asked.until("void", move=1)
        asked.ask("prepare", 2, lease_s=60, rings=NEW)
        asked.until("prepared", move=2)
        asked.ask("go", 2, decide=True)
        asked.until("changed", move=2)
        stop(running)
    check_run(tmp_path)
    assert [ring_change["move"] for ring_change in ring_changes(tmp_path)] == [2]


def test_a_move_that_one_rank_refuses_is_never_decided(tmp_path: Path) -> None:
    with job(tmp_path) as (running, asked):
        for agent, rings in zip(asked, (NEW, [[0, 1]], NEW), strict=True):
            agent.ask("prepare", 1, lease_s=3, rings=rings)
        assert (
            asked[1].until("cannot", move=1)["error"]
            == "rings[0]: [0, 1]: does not name each of the 3 ranks once"
        )
        asked[0].ask("hold", 1, lease_s=3)
        asked[0].ask("go", 1, decide=True)
        for rank in (0, 2):
            assert asked[rank].until("void", "held", "changed", "cannot", move=1)["state"] != "held"
        asked[1].ask("prepare", 1, lease_s=3, traffic={})
        assert asked[1].until("cannot", move=1)["error"] == "traffic: this program takes rings only"
        asked[1].ask("go", 4, decide=True)
        assert (
            asked[1].until("cannot", move=4)["error"]
            == "move 4 is not under way here, the last was 0"
        )
        asked[1].ask("jump", 4)
        assert "not one of prepare, hold, go, drop" in asked[1].until("cannot", move=4)["error"]
        stop(running)
    check_run(tmp_path)
    assert ring_changes(tmp_path) == []


BROKEN = """
import os, resource, sys, threading
import workloads.transport.wires as wires
if os.environ["RANK"] == "1":
    honest = wires.Wires._connect
    def connect(self, place, name, out, others):
        if name == "set/1":
            some = {key: end for key, end in out.items() if not key.endswith("/1")}
            honest(self, place, name, some, others)
            if some != out:
                raise OSError("no route to host")
        return honest(self, place, name, out, others)
    wires.Wires._connect = connect
import workloads.programs.program as program
def files():
    return len(os.listdir("/proc/self/fd")), sorted(t.name for t in threading.enumerate() if t.name.startswith("move"))
last = program.Job.last
def noted(self, iteration):
    before = files()
    found = last(self, iteration)
    with open(os.environ["TESTBED_JOB_DIR"] + "/files", "a") as file:
        file.write(f"{before[0]} {len(before[1])}\\n")
    return found
program.Job.last = noted
sys.argv[1:] = ["--hidden", "64", "--batch", "4", "--iterations", "0"]
from workloads.programs.train import main
main()
"""


def test_a_set_that_one_rank_cannot_connect_leaves_all_with_the_old_one_and_nothing_open(
    tmp_path: Path,
) -> None:
    with job(tmp_path, "-c", BROKEN) as (running, asked):
        asked.ask("hold", 9, lease_s=1)  # makes the thread that listens do something first
        asked.until("cannot", move=9)
        wanted = [[0, 1, 2], [2, 1, 0], [0, 1, 2]]
        asked.ask("prepare", 1, lease_s=60, rings=wanted)
        done = asked.until("void", "cannot", "changed", move=1)
        assert done[1]["state"] == "cannot" and done[1]["error"].startswith(
            "forming failed: connecting to peers: no route"
        )
        assert {done[rank]["state"] for rank in (0, 2)} <= {"void", "cannot"}, (
            "they find it closed, or the move void"
        )
        asked.ask("prepare", 2, lease_s=60)  # a boundary and more has passed once this is answered
        asked.until("prepared", move=2)
        asked.ask("drop", 2)
        asked.until("void", move=2)

        def noted(rank: int) -> list[tuple[int, ...]]:
            # the last line may be half written
            *whole, _ = (tmp_path / str(rank) / "files").read_text().split("\n")
            return [tuple(map(int, line.split())) for line in whole]

        # a thread that waits for a peer looks every CHECK_S whether the move is over
        give_up = time.monotonic() + 30
        while any(noted(rank)[-1][1] for rank in range(WORLD)):
            assert time.monotonic() < give_up, "a thread is left"
            time.sleep(0.05)
        stop(running)
    check_run(tmp_path)
    for rank in range(WORLD):
        lines = noted(rank)
        assert lines[-1][0] <= lines[1][0] + 2, (
            "the hand-off and one client of the store were opened since"
        )


@pytest.mark.long
def test_a_stop_ends_a_hold_at_once(tmp_path: Path) -> None:
    with job(tmp_path) as (running, asked):
        asked.ask("prepare", 1, lease_s=600, rings=NEW)
        asked.until("prepared", move=1)
        asked.ask("hold", 1, lease_s=600)
        held = asked.until("held", move=1)
        running.signal(signal.SIGTERM, only=[2])
        assert {each["state"] for each in asked.until("void", "changed", move=1)} == {"void"}
        assert [(code, err) for code, _, err in running.finish()] == [(0, "")] * WORLD
    check_run(tmp_path)
    assert summary(tmp_path)["stopped"] and summary(tmp_path)["iterations"] == held[0]["iteration"]
    assert len(list(tmp_path.glob(f"*/checkpoint-*-{held[0]['iteration']}.pt"))) == WORLD


@pytest.mark.parametrize("killed", [0, 1])
def test_a_rank_killed_while_all_hold_ends_the_others(tmp_path: Path, killed: int) -> None:
    with job(tmp_path) as (running, asked):
        asked.ask("prepare", 1, lease_s=600)
        asked.until("prepared", move=1)
        asked.ask("hold", 1, lease_s=600)
        asked.until("held", move=1)
        running.signal(signal.SIGKILL, only=[killed])
        ended = running.finish()
    assert [code for code, _, _ in ended] == [
        -signal.SIGKILL if rank == killed else 75 for rank in range(WORLD)
    ]


@pytest.mark.long
def test_allreduce_turns_too_and_every_sum_is_right(tmp_path: Path) -> None:
    with job(tmp_path, "-m", "workloads.programs.allreduce", "--loop", "-b", "64K") as (
        running,
        asked,
    ):
        for move, rings in ((1, NEW), (2, [[1, 0, 2], [2, 0, 1], [0, 1, 2]]), (3, NEW)):
            asked.ask("prepare", move, lease_s=60, rings=rings)
            asked.until("prepared", move=move)
            asked[0].ask("go", move, decide=True)
            asked.until("changed", move=move)
        stop(running)
    assert summary(tmp_path)["wrong"] == 0
    assert [ring_change["move"] for ring_change in ring_changes(tmp_path)] == [1, 2, 3]


EARLIER = {
    "compute_s": 0.01,
    "groups": [{"id": "all", "bytes": 40_004, "rings": OLD, "lanes": [0, 1]}],
    "transfers": [[0, 1, 1001, 0]],
}
LATER = {
    "compute_s": 0.0,
    "groups": [
        {"id": "all", "bytes": 90_000, "rings": [[0, 2, 1]], "lanes": [2]},
        {"id": "two", "bytes": 4000, "rings": [[1, 2]], "lanes": [1]},
    ],
    "transfers": [[2, 1, 70_001, 3], [1, 0, 8, 0]],
}


@pytest.mark.long
def test_replay_turns_to_other_traffic_and_every_byte_of_it_is_right(tmp_path: Path) -> None:
    with job(
        tmp_path,
        "-m",
        "workloads.programs.replay",
        "--iterations",
        "0",
        TESTBED_TRAFFIC=json.dumps(EARLIER),
    ) as (
        running,
        asked,
    ):
        asked.ask("prepare", 1, lease_s=60, traffic=LATER | {"transfers": [[0, 0, 1, 0]]})
        assert all("needs two ranks" in each["error"] for each in asked.until("cannot", move=1))
        for move, traffic in ((1, LATER), (2, EARLIER)):
            asked.ask("prepare", move, lease_s=60, rings=OLD, traffic=traffic)
            asked.until("prepared", move=move)
            asked.ask("go", move, decide=True)
            asked.until("changed", move=move)
        stop(running)
    assert summary(tmp_path)["wrong"] == 0
    seen = records(tmp_path)
    first, second = ring_changes(tmp_path)
    assert (first["traffic"], second["traffic"]) == (LATER, EARLIER)
    size = {record["iter"]: record["bytes"] for record in seen}
    assert [size[first["after"]], size[first["after"] + 1], size[second["after"] + 1]] == [
        40_004,
        90_000,
        40_004,
    ]
