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

from agent.jobs import beats
from orchestrator.hosts.measurements import _beat
from tests.workloads.ranks import ranks
from workloads.progress import beat as written
from workloads.progress.beat import Beat
from workloads.transport.loop import Loop, Stall, Wire
from workloads.transport.tasks import ReceiveTask


def there(directory: Path, after: int = -1) -> dict[str, Any]:
    return beats.read(str(directory / "beat"), after)


def test_both_ends_know_the_same_file() -> None:
    assert (beats.FILE, beats.MAGIC, beats.PHASES, beats.SIZE) == (written.FILE, written.MAGIC, written.PHASES, written.SIZE)
    assert (beats.ROWS, beats.ROWS_AT, beats.ROW.format) == (written.ROWS, written.ROWS_AT, written.ROW.format)


def test_an_iteration_is_computing_and_exchange_and_of_that_waiting_for_others(tmp_path: Path) -> None:
    beat = Beat(tmp_path, 3)
    began = {"pid": os.getpid(), "rank": 3, "iteration": 0, "phase": "start", "alive_s": None, "save_s": 0.0}
    assert {name: value for name, value in there(tmp_path)["beat"].items() if name != "age_s"} == began
    phases = []
    for step in (lambda: beat.begin(7), beat.exchange, beat.exchanged, beat.end, lambda: beat.hold(True)):
        step()
        phases.append(there(tmp_path)["beat"]["phase"])
        time.sleep(0.002)
    assert phases == ["compute", "exchange", "compute", "end", "hold"]
    beat.shown(8, 1000)
    assert there(tmp_path)["beat"]["phase"] == "hold", "a program that computes on while its exchanges are held is paused"
    beat.hold(False)
    assert there(tmp_path)["beat"]["phase"] == "compute"
    [iteration, begin, whole, compute, exposed, wait, *_] = there(tmp_path)["times"][0]
    assert iteration == 7 and abs(begin - time.time_ns()) < 60e9
    # each is rounded to a microsecond
    assert compute >= 2000 and exposed >= 2000 and whole + 1 >= compute + exposed and wait == 0


def test_a_rank_that_writes_a_checkpoint_says_so_and_how_long_its_longest_one_took(tmp_path: Path) -> None:
    beat = Beat(tmp_path, 0)
    beat.begin(1)
    beat.end()
    for pause_s in (0.03, 0.001):
        with beat.save():
            assert there(tmp_path)["beat"]["phase"] == "save"
            time.sleep(pause_s)
    found = there(tmp_path)
    assert found["beat"]["phase"] == "end" and found["beat"]["save_s"] >= 0.03
    rank = _beat("gpu01", {"state": "running", **found})
    assert rank.save_s == found["beat"]["save_s"] and math.isinf(rank.alive_s)


def test_only_the_time_without_bytes_from_ranks_that_had_not_begun_is_waiting(tmp_path: Path) -> None:
    stall, beat = Stall(), Beat(tmp_path, 0)
    beat.follow(stall)
    beat.begin(1)
    stall.note(0, 9_000_000, late=True)  # hidden by computing
    beat.exchange()
    began = stall._noted_ns
    beat._since_ns -= 50_000_000  # as if it had begun earlier
    stall.note(began - 5_000_000, began + 3_000_000, late=True)
    stall.note(began + 3_000_000, began + 10_000_000, late=False)
    stall.note(began + 10_000_000, began + 14_000_000, late=True)
    stall.note(began + 10_000_000, began + 15_000_000, late=True)  # woken meanwhile, and no byte had moved
    beat.waited(2_000_000)
    beat.end()
    assert there(tmp_path)["times"][0][5] == 3000 + 5000 + 2000


def test_a_rank_that_carries_an_exchange_gives_a_sign_of_life_and_one_that_was_stopped_does_not(tmp_path: Path) -> None:
    stall, beat = Stall(), Beat(tmp_path, 0)
    beat.follow(stall)
    beat.begin(1)
    beat.exchange()
    assert there(tmp_path)["beat"]["alive_s"] is None, "none is known before it carries anything"
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as first:
        loop = Loop(2.5, stall)
        loop.add(ReceiveTask(Wire(first, 1), [memoryview(bytearray(9))]))
        steps = 0
        with pytest.raises(RuntimeError, match="timed out: nothing from or to rank 1"):
            while True:
                loop.step()
                steps += 1
                assert there(tmp_path)["beat"]["alive_s"] < there(tmp_path)["beat"]["age_s"]
        loop.close()
    assert 1 <= steps <= 4, "it wakes for that once a second"
    beat.exchanged()
    assert there(tmp_path)["beat"]["alive_s"] is None


def test_the_latest_iterations_are_kept_and_those_already_fetched_are_left_out(tmp_path: Path) -> None:
    beat = Beat(tmp_path, 0)
    for iteration in range(1, 601):
        beat.begin(iteration)
        beat.end()
    numbers = [row[0] for row in there(tmp_path)["times"]]
    assert numbers == list(range(346, 601))
    assert [row[0] for row in there(tmp_path, 598)["times"]] == [599, 600]


def test_a_program_that_shows_iterations_has_their_times_and_no_number_it_shows_stops_it(tmp_path: Path) -> None:
    beat = Beat(tmp_path, 0)
    beat.counted()
    assert there(tmp_path)["beat"]["iteration"] == 1
    for iteration in (5, 5, 4, 10**30, -1):
        beat.shown(iteration, 4_000_000)
    assert [row[0] for row in there(tmp_path)["times"]] == [5, written.HIGHEST]
    assert there(tmp_path)["times"][0][2:6] == [4000, 0, 0, 0]


def test_where_no_file_can_be_written_a_rank_goes_on(tmp_path: Path) -> None:
    for directory in (None, tmp_path / "gone"):
        beat = Beat(directory, 0)
        beat.begin(1)
        beat.end()
    (tmp_path / "beat.new").mkdir()
    Beat(tmp_path, 0).begin(1)
    assert not (tmp_path / "beat").exists()


def test_a_new_process_takes_a_file_of_its_own(tmp_path: Path) -> None:
    """Cutting one off that another process has mapped would end that process."""
    before = Beat(tmp_path, 0)
    after = Beat(tmp_path, 1)
    before.begin(9)
    after.begin(2)
    assert there(tmp_path)["beat"]["iteration"] == 2


# --- what a job may put there instead


def bad_file(path: Path, make: Callable[[Path], object]) -> str:
    make(path)
    with pytest.raises((OSError, ValueError)) as raised:
        beats.read(str(path), -1)
    return str(raised.value)


def a_beat(**at: bytes) -> bytes:
    """A beat with other bytes at some places."""
    whole = bytearray(beats.HEAD.pack(beats.MAGIC, 1, 0, 5, 0, 1, 2, 0, 0).ljust(beats.SIZE, b"\0"))
    for n in range(2):
        beats.ROW.pack_into(whole, beats.ROWS_AT + n * beats.ROW.size, n + 1, 1, *[1000] * 8)
    for place, value in at.items():
        whole[int(place[1:]) : int(place[1:]) + len(value)] = value
    return bytes(whole)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda p: p.symlink_to("/etc/passwd"), "symbolic links"),
        (lambda p: os.mkfifo(p), "plain"),
        (lambda p: p.mkdir(), "plain"),
        (lambda p: p.write_bytes(b""), "plain"),
        (lambda p: os.truncate(os.open(p, os.O_CREAT | os.O_WRONLY), 1 << 40), "plain"),
        (lambda p: p.write_bytes(os.urandom(beats.SIZE)), "other content"),
        (lambda p: p.write_bytes(a_beat(_32=b"\x06")), "other content"),
        (lambda p: p.write_bytes(a_beat(_16=b"\xff" * 8)), "other content"),
        (lambda p: p.write_bytes(a_beat(_40=b"\xff" * 7 + b"\x7f")), "other content"),
        (lambda p: p.write_bytes(a_beat(_24=b"\xff" * 7 + b"\x7f")), "yet to come"),
        (lambda p: p.write_bytes(a_beat(_48=b"\xff" * 7 + b"\x7f")), "yet to come"),
        (lambda p: p.write_bytes(a_beat(_56=b"\xff" * 8)), "longer than 12 days"),
        (lambda p: (p.with_name("x").write_bytes(a_beat()), p.hardlink_to(p.with_name("x"))), "one name"),
    ],
)
def test_what_is_no_beat_is_refused(tmp_path: Path, make: Callable[[Path], object], said: str) -> None:
    assert said in bad_file(tmp_path / "beat", make)


def test_rows_that_cannot_be_are_left_out(tmp_path: Path) -> None:
    assert [row[0] for row in _times(tmp_path, a_beat())] == [1, 2]
    first, second = beats.ROWS_AT, beats.ROWS_AT + beats.ROW.size
    for place in range(first, second, 8):
        assert [row[0] for row in _times(tmp_path, a_beat(**{f"_{place}": b"\xff" * 8}))] == [2]
    assert [row[0] for row in _times(tmp_path, a_beat(**{f"_{second}": bytes([1])}))] == [1]  # again the same iteration
    assert [row[0] for row in _times(tmp_path, a_beat(_40=(1 << 50).to_bytes(8, "little")))] == [2]


def _times(tmp_path: Path, content: bytes) -> list[list[int]]:
    (tmp_path / "beat").write_bytes(content)
    found = there(tmp_path)
    assert len(json.dumps(found)) < 64 << 10
    return found["times"]  # type: ignore[no-any-return]


def test_an_answer_without_a_beat_is_a_rank_that_has_none() -> None:
    found = _beat("gpu01/0", {"state": "exited", "code": 75, "beat": None, "times": []})
    assert (found.rank, found.state, found.code, found.phase, found.iteration) == ("gpu01/0", "exited", 75, "", 0)
    assert found.age_s == math.inf


# --- ranks of a job


@pytest.mark.parametrize(
    "workload", ["train", pytest.param("allreduce", marks=pytest.mark.long), pytest.param("replay", marks=pytest.mark.long)]
)
def test_each_rank_of_a_job_shows_its_iterations(tmp_path: Path, workload: str) -> None:
    words = {
        "train": ("--model", "mlp", "--iterations", "3", "--batch", "8", "--hidden", "64"),
        "allreduce": ("--minbytes", "4K", "--maxbytes", "16K"),
        "replay": ("--iterations", "3"),
    }[workload]
    traffic = {"compute_s": 0.01, "groups": [{"id": "g", "bytes": 4096, "rings": [[0, 1]], "lanes": [0]}], "transfers": []}
    more = {"TESTBED_TRAFFIC": json.dumps(traffic)}
    with ranks(2, "-m", f"workloads.programs.{workload}", *words, directory=tmp_path, rings=[[0, 1]], more=lambda _: more) as job:
        assert [code for code, _, _ in job.finish()] == [0, 0]
    for rank in range(2):
        found = there(tmp_path / str(rank))
        assert found["beat"]["rank"] == rank and found["beat"]["phase"] == "end"
        assert [row[0] for row in found["times"]][:2] == [1, 2]
        assert all(row[4] > 0 and row[5] <= row[4] <= row[2] for row in found["times"])
