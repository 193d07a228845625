"""What a rank writes of itself, as the agent of its host reads it."""

from __future__ import annotations

import json
import math
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent.jobs import heartbeats
from orchestrator.hosts.measurements import _beat
from tests.workloads.ranks import ranks
from workloads.progress import heartbeat as written
from workloads.progress.heartbeat import Heartbeat
from workloads.transport.loop import Loop, Stall, Wire
from workloads.transport.tasks import ReceiveTask


def present(directory: Path, after: int = -1) -> dict[str, Any]:
    return heartbeats.read(str(directory / "heartbeat"), after)


def test_both_ends_know_the_same_file() -> None:
    assert (heartbeats.FILE, heartbeats.MAGIC, heartbeats.PHASES, heartbeats.SIZE) == (
        written.FILE,
        written.MAGIC,
        written.PHASES,
        written.SIZE,
    )
    assert (heartbeats.ROWS, heartbeats.ROWS_AT, heartbeats.ROW.format) == (
        written.ROWS,
        written.ROWS_AT,
        written.ROW.format,
    )


def test_an_iteration_is_computing_and_exchange_and_of_that_waiting_for_others(
    tmp_path: Path,
) -> None:
    heartbeat = Heartbeat(tmp_path, 3)
    began = {
        "pid": os.getpid(),
        "rank": 3,
        "iteration": 0,
        "phase": "start",
        "alive_s": None,
        "save_s": 0.0,
    }
    assert {
        name: value for name, value in present(tmp_path)["heartbeat"].items() if name != "age_s"
    } == began
    phases = []
    for step in (
        lambda: heartbeat.begin(7),
        heartbeat.exchange,
        heartbeat.exchanged,
        heartbeat.end,
        lambda: heartbeat.hold(True),
    ):
        step()
        phases.append(present(tmp_path)["heartbeat"]["phase"])
        time.sleep(0.002)
    assert phases == ["compute", "exchange", "compute", "end", "hold"]
    heartbeat.shown(8, 1000)
    assert present(tmp_path)["heartbeat"]["phase"] == "hold", (
        "a program that computes on while its exchanges are held is paused"
    )
    heartbeat.hold(False)
    assert present(tmp_path)["heartbeat"]["phase"] == "compute"
    [iteration, begin, whole, compute, exposed, wait, *_] = present(tmp_path)["times"][0]
    assert iteration == 7 and abs(begin - time.time_ns()) < 60e9
    # each is rounded to a microsecond
    assert compute >= 2000 and exposed >= 2000 and whole + 1 >= compute + exposed and wait == 0


def test_a_rank_that_writes_a_checkpoint_says_so_and_how_long_its_longest_one_took(
    tmp_path: Path,
) -> None:
    heartbeat = Heartbeat(tmp_path, 0)
    heartbeat.begin(1)
    heartbeat.end()
    for pause_s in (0.03, 0.001):
        with heartbeat.save():
            assert present(tmp_path)["heartbeat"]["phase"] == "save"
            time.sleep(pause_s)
    found = present(tmp_path)
    assert found["heartbeat"]["phase"] == "end" and found["heartbeat"]["save_s"] >= 0.03
    rank = _beat("gpu01", {"state": "running", **found})
    assert rank.save_s == found["heartbeat"]["save_s"] and math.isinf(rank.alive_s)


def test_only_the_time_without_bytes_from_ranks_that_had_not_begun_is_waiting(
    tmp_path: Path,
) -> None:
    stall, heartbeat = Stall(), Heartbeat(tmp_path, 0)
    heartbeat.follow(stall)
    heartbeat.begin(1)
    stall.note(0, 9_000_000, late=True)  # hidden by computing
    heartbeat.exchange()
    began = stall._noted_ns
    heartbeat._since_ns -= 50_000_000  # as if it had begun earlier
    stall.note(began - 5_000_000, began + 3_000_000, late=True)
    stall.note(began + 3_000_000, began + 10_000_000, late=False)
    stall.note(began + 10_000_000, began + 14_000_000, late=True)
    # woken meanwhile, and no byte had moved
    stall.note(began + 10_000_000, began + 15_000_000, late=True)
    heartbeat.waited(2_000_000)
    heartbeat.end()
    assert present(tmp_path)["times"][0][5] == 3000 + 5000 + 2000


def test_a_rank_that_carries_an_exchange_gives_a_sign_of_life_and_one_that_was_stopped_does_not(
    tmp_path: Path,
) -> None:
    stall, heartbeat = Stall(), Heartbeat(tmp_path, 0)
    heartbeat.follow(stall)
    heartbeat.begin(1)
    heartbeat.exchange()
    assert present(tmp_path)["heartbeat"]["alive_s"] is None, (
        "none is known before it carries anything"
    )
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as first,
    ):
        loop = Loop(2.5, stall)
        loop.add(ReceiveTask(Wire(first, 1), [memoryview(bytearray(9))]))
        steps = 0
        with pytest.raises(RuntimeError, match="timed out: nothing from or to rank 1"):
            while True:
                loop.step()
                steps += 1
                assert (
                    present(tmp_path)["heartbeat"]["alive_s"]
                    < present(tmp_path)["heartbeat"]["age_s"]
                )
        loop.close()
    assert 1 <= steps <= 4, "it wakes for that once a second"
    heartbeat.exchanged()
    assert present(tmp_path)["heartbeat"]["alive_s"] is None


def test_the_latest_iterations_are_kept_and_those_already_fetched_are_left_out(
    tmp_path: Path,
) -> None:
    heartbeat = Heartbeat(tmp_path, 0)
    for iteration in range(1, 601):
        heartbeat.begin(iteration)
        heartbeat.end()
    numbers = [row[0] for row in present(tmp_path)["times"]]
    assert numbers == list(range(346, 601))
    assert [row[0] for row in present(tmp_path, 598)["times"]] == [599, 600]


def test_a_program_that_shows_iterations_has_their_times_and_no_number_it_shows_stops_it(
    tmp_path: Path,
) -> None:
    heartbeat = Heartbeat(tmp_path, 0)
    heartbeat.counted()
    assert present(tmp_path)["heartbeat"]["iteration"] == 1
    for iteration in (5, 5, 4, 10**30, -1):
        heartbeat.shown(iteration, 4_000_000)
    assert [row[0] for row in present(tmp_path)["times"]] == [5, written.HIGHEST]
    assert present(tmp_path)["times"][0][2:6] == [4000, 0, 0, 0]


def test_where_no_file_can_be_written_a_rank_goes_on(tmp_path: Path) -> None:
    for directory in (None, tmp_path / "ended"):
        heartbeat = Heartbeat(directory, 0)
        heartbeat.begin(1)
        heartbeat.end()
    (tmp_path / "heartbeat.new").mkdir()
    Heartbeat(tmp_path, 0).begin(1)
    assert not (tmp_path / "heartbeat").exists()


def test_a_new_process_takes_a_file_of_its_own(tmp_path: Path) -> None:
    """Cutting one off that another process has mapped would end that process."""
    before = Heartbeat(tmp_path, 0)
    after = Heartbeat(tmp_path, 1)
    before.begin(9)
    after.begin(2)
    assert present(tmp_path)["heartbeat"]["iteration"] == 2


# --- what a job may put there instead


def bad_file(path: Path, make: Callable[[Path], object]) -> str:
    make(path)
    with pytest.raises((OSError, ValueError)) as raised:
        heartbeats.read(str(path), -1)
    return str(raised.value)


def a_heartbeat(**at: bytes) -> bytes:
    """A beat with other bytes at some places."""
    whole = bytearray(
        heartbeats.HEAD.pack(heartbeats.MAGIC, 1, 0, 5, 0, 1, 2, 0, 0).ljust(heartbeats.SIZE, b"\0")
    )
    for n in range(2):
        heartbeats.ROW.pack_into(
            whole, heartbeats.ROWS_AT + n * heartbeats.ROW.size, n + 1, 1, *[1000] * 8
        )
    for place, value in at.items():
        whole[int(place[1:]) : int(place[1:]) + len(value)] = value
    return bytes(whole)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: p.symlink_to("/etc/passwd"), "symbolic links"),
        (lambda p: os.mkfifo(p), "plain"),
        (lambda p: p.mkdir(), "plain"),
        (lambda p: p.write_bytes(b""), "plain"),
        (lambda p: os.truncate(os.open(p, os.O_CREAT | os.O_WRONLY), 1 << 40), "plain"),
        (lambda p: p.write_bytes(os.urandom(heartbeats.SIZE)), "other content"),
        (lambda p: p.write_bytes(a_heartbeat(_32=b"\x06")), "other content"),
        (lambda p: p.write_bytes(a_heartbeat(_16=b"\xff" * 8)), "other content"),
        (lambda p: p.write_bytes(a_heartbeat(_40=b"\xff" * 7 + b"\x7f")), "other content"),
        (lambda p: p.write_bytes(a_heartbeat(_24=b"\xff" * 7 + b"\x7f")), "yet to come"),
        (lambda p: p.write_bytes(a_heartbeat(_48=b"\xff" * 7 + b"\x7f")), "yet to come"),
        (lambda p: p.write_bytes(a_heartbeat(_56=b"\xff" * 8)), "longer than 12 days"),
        (
            lambda p: (
                p.with_name("x").write_bytes(a_heartbeat()),
                p.hardlink_to(p.with_name("x")),
            ),
            "one name",
        ),
    ],
)
def test_what_is_no_beat_is_refused(
    tmp_path: Path, make: Callable[[Path], object], message: str
) -> None:
    assert message in bad_file(tmp_path / "heartbeat", make)


def test_rows_that_cannot_be_are_left_out(tmp_path: Path) -> None:
    assert [row[0] for row in _times(tmp_path, a_heartbeat())] == [1, 2]
    first, second = heartbeats.ROWS_AT, heartbeats.ROWS_AT + heartbeats.ROW.size
    for place in range(first, second, 8):
        assert [row[0] for row in _times(tmp_path, a_heartbeat(**{f"_{place}": b"\xff" * 8}))] == [
            2
        ]
    # again the same iteration
    assert [row[0] for row in _times(tmp_path, a_heartbeat(**{f"_{second}": bytes([1])}))] == [1]
    assert [
        row[0] for row in _times(tmp_path, a_heartbeat(_40=(1 << 50).to_bytes(8, "little")))
    ] == [2]


def _times(tmp_path: Path, content: bytes) -> list[list[int]]:
    (tmp_path / "heartbeat").write_bytes(content)
    found = present(tmp_path)
    assert len(json.dumps(found)) < 64 << 10
    return found["times"]  # type: ignore[no-any-return]


def test_an_answer_without_a_beat_is_a_rank_that_has_none() -> None:
    found = _beat("gpu01/0", {"state": "exited", "code": 75, "heartbeat": None, "times": []})
    assert (found.rank, found.state, found.code, found.phase, found.iteration) == (
        "gpu01/0",
        "exited",
        75,
        "",
        0,
    )
    assert found.age_s == math.inf


# --- ranks of a job


@pytest.mark.parametrize(
    "workload",
    [
        "train",
        pytest.param("allreduce", marks=pytest.mark.long),
        pytest.param("replay", marks=pytest.mark.long),
    ],
)
def test_each_rank_of_a_job_shows_its_iterations(tmp_path: Path, workload: str) -> None:
    argv = {
        "train": ("--model", "mlp", "--iterations", "3", "--batch", "8", "--hidden", "64"),
        "allreduce": ("--minbytes", "4K", "--maxbytes", "16K"),
        "replay": ("--iterations", "3"),
    }[workload]
    traffic = {
        "compute_s": 0.01,
        "groups": [{"id": "g", "bytes": 4096, "rings": [[0, 1]], "lanes": [0]}],
        "transfers": [],
    }
    more = {"TESTBED_TRAFFIC": json.dumps(traffic)}
    with ranks(
        2,
        "-m",
        f"workloads.programs.{workload}",
        *argv,
        directory=tmp_path,
        rings=[[0, 1]],
        more=lambda _: more,
    ) as job:
        assert [code for code, _, _ in job.finish()] == [0, 0]
    for rank in range(2):
        found = present(tmp_path / str(rank))
        assert found["heartbeat"]["rank"] == rank and found["heartbeat"]["phase"] == "end"
        assert [row[0] for row in found["times"]][:2] == [1, 2]
        assert all(row[4] > 0 and row[5] <= row[4] <= row[2] for row in found["times"])
