"""Iterations that begin when the agent says: over a real socket, with a lease, and never a wait of
more than a period.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.workloads.agents import Agent
from tests.workloads.ranks import records
from tests.workloads.test_living import job, stop
from workloads.host.handoff import Handoff
from workloads.host.pace import LATE, Beginning, Pace
from workloads.progress.records import Records

MS = 1_000_000


def notified(**more: Any) -> dict[str, Any]:
    return {
        "do": "pace",
        "epoch_ns": time.monotonic_ns(),
        "period_ns": 200 * MS,
        "shift_ns": 0,
        "lease_s": 60,
        **more,
    }


def test_an_iteration_waits_for_the_next_beginning_unless_it_is_late_by_little() -> None:
    begins = Beginning(1_000, 100, 1 << 60)
    assert [
        begins.wait_ns(now) for now in (1_000, 1_000 + int(100 * LATE), 1_050, 1_099, 950, 1_100)
    ] == [0, 0, 50, 1, 50, 0]


def test_no_wait_goes_on_after_the_lease_and_none_is_longer_than_a_period() -> None:
    begins = Beginning(0, 100, 1_030)
    assert [begins.wait_ns(now) for now in (1_020, 1_029, 1_030, 1_050)] == [10, 1, 0, 0]
    assert all(
        Beginning(first, 100, 1 << 60).wait_ns(now) < 100
        for first in (0, 37, 5_000)
        for now in range(500, 700)
    )


def test_words_about_other_things_are_left_to_others_and_wrong_ones_pace_nobody() -> None:
    pace = Pace()
    assert not pace.receive({"do": "hold", "move": 1})
    far = time.monotonic_ns() + 3_600_000 * MS
    for wrong in (
        {"period_ns": 0},
        {"period_ns": 1 << 62},
        {"shift_ns": -1},
        {"lease_s": True},
        {"lease_s": 1e9},
        {"epoch_ns": 1.5},
    ):
        assert pace.receive(notified(epoch_ns=far, period_ns=60_000 * MS))
        assert pace.receive(notified(**wrong))
        assert pace.wait() == 0


def test_a_word_that_comes_as_the_wait_begins_is_heard() -> None:
    looks: list[int] = []

    def enough() -> bool:
        looks.append(1)
        return len(looks) > 20

    pace = Pace(enough)
    pace.receive(notified(epoch_ns=time.monotonic_ns() - 30_000 * MS, period_ns=60_000 * MS))
    pace.wait(lambda waits: waits and pace.receive({"do": "pace.stop"}) and None)
    assert len(looks) <= 1, "it went on waiting"


@pytest.fixture
def agent(tmp_path: Path) -> Any:
    agent = Agent(tmp_path / "ring_changes")
    yield agent
    agent.close()


def linked(agent: Agent, pace: Pace) -> tuple[Handoff, threading.Event]:
    heard = threading.Event()

    def receive(message: Any) -> None:
        pace.receive(message)
        heard.set()

    handoff = Handoff(
        str(agent.path),
        lambda: {"rank": 0, "world": 1, "move": 0, "state": "idle", "iteration": 0},
        receive,
    )
    handoff.start()
    agent.connect()
    return handoff, heard


def test_a_rank_that_was_told_its_pace_begins_at_whole_periods_and_runs_free_when_it_is_ended(
    agent: Agent,
) -> None:
    pace = Pace()
    handoff, heard = linked(agent, pace)
    try:
        # 70 ms after a beginning
        message = notified(shift_ns=50 * MS, epoch_ns=time.monotonic_ns() - 120 * MS)
        agent.ask("pace", 0, **{key: value for key, value in message.items() if key != "do"})
        assert heard.wait(10)
        held: list[bool] = []
        now_ns = time.monotonic_ns()
        begins_ns = now_ns + (message["epoch_ns"] + 50 * MS - now_ns) % (200 * MS)
        if pace.wait(held.append):  # a busy machine may be late by a little, and then does not wait
            assert held == [True, False] and time.monotonic_ns() >= begins_ns
        heard.clear()
        agent.ask("pace.stop", 0)
        assert heard.wait(10) and pace.wait() == 0
    finally:
        agent.hang_up()
        handoff.close()


def test_an_agent_that_is_gone_lets_the_rank_go_on_with_its_lease(agent: Agent) -> None:
    pace = Pace()
    handoff, heard = linked(agent, pace)
    # a wait of most of a minute, if the lease did not end it
    far = time.monotonic_ns() + 3_600_000 * MS
    agent.ask("pace", 0, epoch_ns=far, period_ns=60_000 * MS, shift_ns=0, lease_s=0.3)
    assert heard.wait(10)
    agent.hang_up()
    assert pace.wait() < 30_000 and pace.wait() < 30_000, "of an iteration that took no time"
    assert pace.wait() == 0
    handoff.close()


def test_who_waits_goes_on_when_it_is_asked_to_stop_or_the_pace_ends() -> None:
    far = time.monotonic_ns() + 3_600_000 * MS
    for end in ("stop", "pace.stop"):
        asked = threading.Event()
        pace = Pace(asked.is_set)
        pace.receive(notified(epoch_ns=far, period_ns=59_999 * MS))
        holding = threading.Event()

        def waited(pace: Pace = pace, holding: threading.Event = holding) -> None:
            pace.wait(lambda on: holding.set() if on else None)

        thread = threading.Thread(target=waited)
        thread.start()
        if holding.wait(10):
            asked.set() if end == "stop" else pace.receive({"do": "pace.stop"})
        thread.join(30)
        assert not thread.is_alive()


def test_a_wait_for_the_beginning_is_part_of_an_iterations_time(tmp_path: Path) -> None:
    records = Records(tmp_path, 0)
    records.paced_ms = 25.0
    records.iteration(
        {"iter": 1, "t_wall_ns": 1_000 * MS, "iter_ms": 75.0, "comm_ms": 10.0}, aloud=False
    )
    records.paced_ms = 0.0
    records.iteration(
        {"iter": 2, "t_wall_ns": 2_000 * MS, "iter_ms": 75.0, "comm_ms": 10.0}, aloud=False
    )
    assert records._file is not None
    records._file.close()
    one, two = (tmp_path / "iterations.jsonl").read_text().splitlines()
    assert (
        '"iter_ms": 100.0' in one
        and '"paced_ms": 25.0' in one
        and f'"t_wall_ns": {975 * MS}' in one
    )
    assert "paced_ms" not in two and '"iter_ms": 75.0' in two


TRAFFIC = '{"compute_s": 0.01, "groups": [{"id": "dp", "bytes": 4000, "rings": [[0, 1, 2]], "lanes": [0]}], "transfers": []}'


@pytest.mark.long
@pytest.mark.parametrize("program", ["train", "replay"])
def test_a_running_job_takes_up_its_pace_and_is_free_again_when_its_agents_are_gone(
    tmp_path: Path, program: str
) -> None:
    command = () if program == "train" else ("-m", "workloads.programs.replay", "--iterations", "0")
    with job(tmp_path, *command, **({"TESTBED_TRAFFIC": TRAFFIC} if command else {})) as (
        running,
        asked,
    ):

        def until(paced: bool, after: int) -> int:
            give_up = time.monotonic() + 60
            while not (
                found := [
                    r["iter"]
                    for r in records(tmp_path)
                    if r["iter"] > after and ("paced_ms" in r) == paced
                ][3:]
            ):
                assert time.monotonic() < give_up, "waited in vain"
                time.sleep(0.1)
            return int(found[0])

        asked.ask(
            "pace",
            0,
            epoch_ns=time.monotonic_ns(),
            period_ns=400 * MS,
            shift_ns=100 * MS,
            lease_s=600,
        )
        last = until(paced=True, after=0)
        assert all(r["iter_ms"] >= r["paced_ms"] for r in records(tmp_path) if "paced_ms" in r)
        asked.ask("pace", 0, epoch_ns=0, period_ns=400 * MS, shift_ns=0, lease_s=0.5)
        for agent in asked:
            agent.hang_up()
        until(paced=False, after=last + 3)
        stop(running)
