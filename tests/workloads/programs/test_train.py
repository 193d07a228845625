"""Training between local processes: it learns, all ranks hold the same weights, and every way of
ending is agreed on.
"""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.workloads.ranks import Ranks, ranks, records

TRAIN = ("-m", "workloads.programs.train", "--hidden", "64", "--batch", "4")
RINGS = [[0, 1, 2], [2, 1, 0]]
PAIR = [[0, 1], [1, 0]]


def summary(directory: Path) -> dict[str, Any]:
    reply: dict[str, Any] = json.loads((directory / "0" / "summary.json").read_text())
    return reply


def until(true: Callable[[], bool], job: Ranks, within_s: float = 30.0) -> None:
    """Wait for `true`, which the running `job` is to bring about."""
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline, "it did not come about in time"
        assert all(process.poll() is None for process in job.processes), job.finish()
        time.sleep(0.02)


@pytest.mark.parametrize("model", ["mlp", "cnn", "transformer"])
def test_the_loss_falls_and_all_ranks_hold_the_same_weights(tmp_path: Path, model: str) -> None:
    iterations = {"mlp": 60, "cnn": 60, "transformer": 60}[model]
    command = (
        "-m",
        "workloads.programs.train",
        "--model",
        model,
        "--hidden",
        "64",
        "--batch",
        "16",
        "--iterations",
        str(iterations),
    )
    with ranks(2, *command, directory=tmp_path, rings=PAIR) as job:
        assert [(code, err) for code, _, err in job.finish()] == [(0, "")] * 2
    reply = summary(tmp_path)
    assert reply["ok"] and reply["weights_identical"] and reply["iterations"] == iterations
    seen: list[dict[str, Any]] = records(tmp_path)  # type: ignore[assignment]
    assert [record["iter"] for record in seen] == list(range(1, iterations + 1))
    losses = [record["loss"] for record in seen]
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])
    last = seen[-1]
    assert last["bytes"] == 4 * reply["parameters"], "every gradient was sent once"
    assert last["samples"] == 32
    assert 0 <= last["comm_ms"] <= last["iter_ms"]
    assert last["busbw_gbps"] == pytest.approx(last["algbw_gbps"], abs=1e-5), (
        "two ranks: the factor is 1"
    )


@pytest.mark.long
def test_the_sums_of_two_ranks_are_those_of_one_with_both_batches(tmp_path: Path) -> None:
    """Averaged gradients over rings train as plain DistributedDataParallel does."""
    sums = []
    for name in ("wires", "gloo"):
        with ranks(
            2,
            *TRAIN,
            "--iterations",
            "5",
            "--exchange",
            name,
            directory=tmp_path / name,
            rings=PAIR,
        ) as job:
            assert [(code, err) for code, _, err in job.finish()] == [(0, "")] * 2
        sums.append(summary(tmp_path / name)["weights_sha256"])
    assert sums[0] == sums[1]


def test_a_stopped_job_ends_at_one_iteration_and_resumes_after_it(tmp_path: Path) -> None:
    with ranks(2, *TRAIN, "--iterations", "0", directory=tmp_path, rings=PAIR) as job:
        until(lambda: len(records(tmp_path)) > 5, job)
        job.signal(signal.SIGTERM, only=[1])  # one rank is told; all agree
        ended = job.finish()
    assert [(code, err) for code, _, err in ended] == [(0, "")] * 2
    reply = summary(tmp_path)
    stopped_at = reply["iterations"]
    assert reply["ok"] and reply["stopped"] and reply["weights_identical"]
    assert stopped_at == len(records(tmp_path))
    kept = sorted(path.name for path in tmp_path.glob("*/checkpoint-*"))
    assert kept == [f"checkpoint-{rank}-{stopped_at}.pt" for rank in range(2)]

    goal = stopped_at + 3
    with ranks(
        2, *TRAIN, "--iterations", str(goal), "--resume", directory=tmp_path, rings=PAIR
    ) as job:
        assert [(code, err) for code, _, err in job.finish()] == [(0, "")] * 2
    resumed = summary(tmp_path)
    assert (resumed["resumed_from"], resumed["iterations"]) == (stopped_at, goal)
    assert [record["iter"] for record in records(tmp_path)] == list(range(1, goal + 1))

    # two ranks: with more, a bucket laid out again after a resume adds the same numbers in another
    # order
    straight = tmp_path / "straight"
    with ranks(2, *TRAIN, "--iterations", str(goal), directory=straight, rings=PAIR) as job:
        assert [code for code, _, _ in job.finish()] == [0] * 2
    assert summary(straight)["weights_sha256"] == resumed["weights_sha256"], (
        "a stop and a resume change no bit"
    )


@pytest.mark.long
def test_a_stop_told_to_all_ranks_at_once_is_agreed_on_too(tmp_path: Path) -> None:
    with ranks(
        3,
        "-m",
        "workloads.programs.allreduce",
        "--loop",
        "-b",
        "4K",
        directory=tmp_path,
        rings=RINGS,
    ) as job:
        until(lambda: len(records(tmp_path)) > 5, job)
        job.signal(signal.SIGTERM)
        assert [(code, err) for code, _, err in job.finish()] == [(0, "")] * 3
    seen: list[dict[str, Any]] = records(tmp_path)  # type: ignore[assignment]
    assert summary(tmp_path)["iterations"] == len(seen)
    assert summary(tmp_path)["wrong"] == 0
    assert all(record["begin_ns"] < record["end_ns"] for record in seen)
    assert all(one["end_ns"] <= next_one["begin_ns"] for one, next_one in itertools.pairwise(seen))


def test_a_killed_rank_ends_the_others_at_once_with_a_clear_error(tmp_path: Path) -> None:
    with ranks(
        3, *TRAIN, "--iterations", "0", directory=tmp_path, rings=RINGS, timeout_s=60.0
    ) as job:
        until(lambda: len(records(tmp_path)) > 2, job)
        job.signal(signal.SIGKILL, only=[1])
        ended = job.finish(within_s=50.0)  # they do not wait for the time-out
    for rank in (0, 2):
        code, _, err = ended[rank]
        assert code == 75, err
        assert f"workloads.programs.train: rank {rank} on " in err and "lost a peer" in err
        assert len(err.splitlines()) == 1 and "/pytorch/" not in err and "callback" not in err
    reply = summary(tmp_path)
    assert not reply["ok"] and reply["exit_code"] == 75 and "lost a peer" in reply["error"]


def test_a_silent_rank_ends_the_others_within_the_timeout(tmp_path: Path) -> None:
    with ranks(2, *TRAIN, "--iterations", "0", directory=tmp_path, timeout_s=2.0) as job:
        until(lambda: len(records(tmp_path)) > 2, job)
        job.signal(signal.SIGSTOP, only=[1])
        assert job.processes[0].wait(20.0) == 75
        job.signal(signal.SIGKILL, only=[1])
        assert "waited 2 s for one" in job.finish()[0][2]


def test_a_second_signal_ends_a_rank_that_waits_for_a_peer(tmp_path: Path) -> None:
    with ranks(2, *TRAIN, "--iterations", "0", directory=tmp_path, timeout_s=60.0) as job:
        until(lambda: len(records(tmp_path)) > 2, job)
        job.signal(signal.SIGSTOP, only=[1])
        seen = len(records(tmp_path))
        time.sleep(0.2)
        job.signal(signal.SIGTERM, only=[0])
        with pytest.raises(subprocess.TimeoutExpired):
            job.processes[0].wait(0.3)
        job.signal(signal.SIGTERM, only=[0])
        assert job.processes[0].wait(5.0) == 128 + signal.SIGTERM
        assert len(records(tmp_path)) <= seen + 1
        job.signal(signal.SIGKILL, only=[1])


@pytest.mark.long
def test_a_host_with_another_rank_resumes_from_what_it_has(tmp_path: Path) -> None:
    with ranks(
        2, *TRAIN, "--iterations", "4", "--checkpoint-every", "2", directory=tmp_path, rings=PAIR
    ) as job:
        assert [(code, err) for code, _, err in job.finish()] == [(0, "")] * 2
    (tmp_path / "0").rename(tmp_path / "other")
    (tmp_path / "1").rename(tmp_path / "0")
    (tmp_path / "other").rename(tmp_path / "1")
    (tmp_path / "0" / "checkpoint-1-4.pt").unlink()
    with ranks(2, *TRAIN, "--iterations", "5", "--resume", directory=tmp_path, rings=PAIR) as job:
        assert [(code, err) for code, _, err in job.finish()] == [(0, "")] * 2
    assert (summary(tmp_path)["resumed_from"], summary(tmp_path)["iterations"]) == (2, 5)
    with ranks(2, *TRAIN, "--iterations", "1", directory=tmp_path, rings=PAIR) as job:
        assert [(code, err) for code, _, err in job.finish()] == [(0, "")] * 2
    assert not list(tmp_path.glob("*/checkpoint-*")), (
        "a fresh start leaves nothing to resume from by mistake"
    )


@pytest.mark.long
@pytest.mark.parametrize("new", [0, 1])
def test_a_rank_on_a_new_host_is_given_the_state_of_the_others(tmp_path: Path, new: int) -> None:
    straight, moved = tmp_path / "straight", tmp_path / "moved"
    for directory, goal in ((straight, "6"), (moved, "4")):
        with ranks(
            2,
            *TRAIN,
            "--iterations",
            goal,
            "--checkpoint-every",
            "2",
            directory=directory,
            rings=PAIR,
        ) as job:
            assert [(code, err) for code, _, err in job.finish()] == [(0, "")] * 2
    for path in (moved / str(new)).glob("checkpoint-*"):
        path.unlink()
    with ranks(2, *TRAIN, "--iterations", "6", "--resume", directory=moved, rings=PAIR) as job:
        assert [(code, err) for code, _, err in job.finish()] == [(0, "")] * 2
    found = summary(moved)
    assert (
        found["resumed_from"] == 4
        and found["weights_sha256"] == summary(straight)["weights_sha256"]
    ), "momentum included"


def test_a_rank_that_was_given_its_state_and_kept_it_before_the_others_is_given_it_again(
    tmp_path: Path,
) -> None:
    straight, moved = tmp_path / "straight", tmp_path / "moved"

    def train(directory: Path, goal: int, *more: str) -> None:
        often = ("--checkpoint-every", "2", "--iterations", str(goal))
        with ranks(2, *TRAIN, *often, *more, directory=directory, rings=PAIR) as job:
            assert [(code, err) for code, _, err in job.finish()] == [(0, "")] * 2

    train(straight, 8)
    train(moved, 4)
    for path in (moved / "1").glob("checkpoint-*"):
        path.unlink()  # its host is a new one
    train(moved, 6, "--resume")
    (moved / "0" / "checkpoint-0-6.pt").unlink()  # killed before it was there
    train(moved, 8, "--resume")
    found = summary(moved)
    assert found["resumed_from"] == 4
    assert found["weights_sha256"] == summary(straight)["weights_sha256"]


def test_resuming_without_a_common_checkpoint_is_refused(tmp_path: Path) -> None:
    for rank, iteration in ((0, 7), (1, 9)):
        (tmp_path / str(rank)).mkdir()
        (tmp_path / str(rank) / f"checkpoint-{rank}-{iteration}.pt").touch()
    with ranks(2, *TRAIN, "--resume", directory=tmp_path) as job:
        ended = job.finish()
    for code, _, err in ended:
        assert code == 2
        assert "no checkpoint is common to all ranks: rank 0 has 7; rank 1 has 9" in err


def test_training_never_imports_the_compiler(tmp_path: Path) -> None:
    with ranks(1, "-X", "importtime", *TRAIN, "--iterations", "2", directory=tmp_path) as job:
        [(code, _, err)] = job.finish()
    assert code == 0
    assert "| torch.distributed" in err or "torch.distributed" in err
    assert "torch._dynamo" not in err and "torch._inductor" not in err, (
        "1.3 s per rank for a mode string"
    )
