"""Requests answered by local processes: prompts and tokens on ranks of their own, or together."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from agent.jobs import demand
from tests.kit.waiting import until
from tests.workloads.programs.test_train import summary
from tests.workloads.ranks import ranks, records
from workloads.serving.drawing import draw
from workloads.serving.pages import pages_of
from workloads.serving.trace import Load

COMMAND = (
    "-m",
    "workloads.programs.serve",
    "--requests",
    "24",
    "--rate",
    "60",
    "--prompt-us",
    "40",
)
COMMAND += ("--step-ms", "2", "--output", "6", "--seed", "3")
PAGE = 2 * 4 * 2 * 64 * 2 * 16
LOAD = Load("poisson", 60.0, 4.0, 8, 256, 6, 0, 4096, 0.0, 0, 3)


def figures(directory: Path) -> list[dict[str, Any]]:
    return [dict(record) for record in records(directory)]


def test_apart_every_request_is_answered_and_all_its_keys_and_values_have_moved(
    tmp_path: Path,
) -> None:
    with ranks(4, *COMMAND, "--iterations", "2", "--prefill", "2", directory=tmp_path) as job:
        ended = job.finish()
    assert [(code, err) for code, _, err in ended] == [(0, "")] * 4
    found = figures(tmp_path)
    assert [(each["served"], each["lost"]) for each in found] == [(24, 0)] * 2
    for iteration, each in enumerate(found, 1):
        moved = sum(pages_of(request.prompt) for request in draw(LOAD, 24, iteration)) * PAGE
        assert each["kv_bytes"] == moved
        assert 0 < each["ttft_ms"] <= each["ttft_p99_ms"]
        assert 0 < each["tpot_ms"] <= each["tpot_p99_ms"]
        assert each["kv_ms"] > 0 and "comm_ms" not in each, "it is of one request"
    assert summary(tmp_path)["served"] == 48


@pytest.mark.long
def test_together_every_request_is_answered_and_nothing_moves(tmp_path: Path) -> None:
    with ranks(2, *COMMAND, "--iterations", "1", "--prefill", "0", directory=tmp_path) as job:
        ended = job.finish()
    assert [(code, err) for code, _, err in ended] == [(0, "")] * 2
    (found,) = figures(tmp_path)
    assert (found["served"], found["kv_bytes"], found["kv_ms"]) == (24, 0, 0)


def test_a_stop_waits_for_the_end_of_the_iteration_and_loses_no_request(tmp_path: Path) -> None:
    more = ("--iterations", "0", "--prefill", "1", "--pause-ms", "3000")
    with ranks(3, *COMMAND, *more, directory=tmp_path) as job:
        until(lambda: len(records(tmp_path)) >= 1)
        for process in job.processes:
            process.send_signal(signal.SIGTERM)
        ended = job.finish()
    assert [(code, err) for code, _, err in ended] == [(0, "")] * 3
    found = figures(tmp_path)
    assert {(each["served"], each["lost"]) for each in found} == {(24, 0)}
    assert len(found) == 2, "the one after the stop is not begun"
    assert summary(tmp_path)["served"] == 24 * len(found)


@pytest.mark.long
def test_requests_wait_for_pages_and_none_is_lost_where_memory_is_short(tmp_path: Path) -> None:
    short = ("--pages", "80", "--trace", "bursts", "--burst", "12")
    long = ("--long-every", "6", "--long-prompt", "1000", "--iterations", "2", "--prefill", "2")
    with ranks(3, *COMMAND, *short, *long, directory=tmp_path) as job:
        ended = job.finish()
    assert [(code, err) for code, _, err in ended] == [(0, "")] * 3
    assert [(each["served"], each["lost"]) for each in figures(tmp_path)] == [(24, 0)] * 2


@pytest.mark.long
def test_a_trace_that_was_written_down_is_answered_in_each_iteration(tmp_path: Path) -> None:
    trace = ("--trace", "list", "--list", "0:40:1 0.05:16:3 0.05:100:2")
    with ranks(2, *COMMAND, *trace, "--iterations", "2", directory=tmp_path) as job:
        ended = job.finish()
    assert [(code, err) for code, _, err in ended] == [(0, "")] * 2
    found = figures(tmp_path)
    assert [(each["served"], each["kv_bytes"]) for each in found] == [(3, 11 * PAGE)] * 2


def test_a_rank_says_before_what_goes_to_whom_and_homes_get_it(tmp_path: Path) -> None:
    homes = ("--trace", "periodic", "--home", "1", "--shift", "1", "--pause-ms", "20")
    with ranks(
        4, *COMMAND, *homes, "--iterations", "3", "--prefill", "2", directory=tmp_path
    ) as job:
        ended = job.finish()
    assert [(code, err) for code, _, err in ended] == [(0, "")] * 4
    total = [0] * 3
    for rank in range(4):
        found = demand.read(str(tmp_path / str(rank) / "demand"), -1)
        assert (found["rank"], found["world"], found["step"]) == (rank, 4, 7)
        for at, (iteration, begin, gate, end, to) in enumerate(found["rows"]):
            assert iteration == at + 1 and begin + 20_000_000 <= gate <= end
            total[at] += sum(to)
            sent_to = {peer for peer, size in enumerate(to) if size}
            assert sent_to == ({2 + (rank + at) % 2} if rank < 2 else set())
    assert total == [each["kv_bytes"] for each in figures(tmp_path)], "all of it, and to no other"


def test_bad_values_end_all_ranks_with_what_is_wrong(tmp_path: Path) -> None:
    with ranks(2, *COMMAND, "--prefill", "2", directory=tmp_path) as job:
        ended = job.finish()
    assert [code for code, _, _ in ended] == [2, 2]
    assert "--prefill: 2: of 2 ranks none is left to make tokens" in ended[0][2]


@pytest.mark.long
def test_a_rank_that_is_gone_is_named_by_the_others(tmp_path: Path) -> None:
    with ranks(3, *COMMAND, "--iterations", "0", "--prefill", "1", directory=tmp_path) as job:
        until(lambda: len(records(tmp_path)) > 0)
        job.signal(signal.SIGKILL, only=[2])
        ended = job.finish()
    assert ended[0][0] == 75 and "lost a peer" in ended[0][2]


def test_no_request_is_lost_while_a_rank_stands_still_and_goes_on(tmp_path: Path) -> None:
    with ranks(3, *COMMAND, "--iterations", "0", "--prefill", "1", directory=tmp_path) as job:
        until(lambda: len(records(tmp_path)) > 0)
        job.signal(signal.SIGSTOP, only=[1])
        time.sleep(1.5)
        job.signal(signal.SIGCONT, only=[1])
        before = len(records(tmp_path))
        until(lambda: len(records(tmp_path)) > before + 1)
        job.signal(signal.SIGTERM)
        ended = job.finish()
    assert [code for code, _, _ in ended] == [0, 0, 0], ended
    assert {(each["served"], each["lost"]) for each in figures(tmp_path)} == {(24, 0)}
    assert json.loads((tmp_path / "0" / "summary.json").read_text())["ok"]
