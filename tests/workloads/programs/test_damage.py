"""Checkpoints that are not as they were written: never used, passed over by all ranks alike, and
said.
"""

from __future__ import annotations

import json
import threading
import zipfile
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from tests.workloads.programs.test_train import PAIR, TRAIN, summary
from tests.workloads.ranks import ranks, records
from tests.workloads.transport.test_wires import together
from workloads.programs.options import OF_SITES
from workloads.programs.state import State
from workloads.training.checkpoint import Checkpoints, Damaged


def flip(path: Path, at: int, bit: int = 0) -> None:
    whole = bytearray(path.read_bytes())
    whole[at] ^= 1 << bit
    path.write_bytes(whole)


def test_whatever_bit_of_a_checkpoint_flips_its_state_is_as_written_or_refused(
    tmp_path: Path,
) -> None:
    checkpoints = Checkpoints(tmp_path, 0, torch)
    path = checkpoints.write(
        5, {"model": "mlp", "parameters": [torch.arange(40.0)], "momentum": [torch.ones(7)]}
    )
    whole, refused = path.read_bytes(), 0
    for at in range(0, len(whole), max(1, len(whole) // 400)):
        path.write_bytes(whole)
        flip(path, at, at % 8)
        try:
            found = checkpoints.read(5)
        except Damaged as error:
            assert str(error).startswith(f"{path}: ") and len(str(error).splitlines()) == 1
            refused += 1
            continue
        assert found["model"] == "mlp" and found["iteration"] == 5
        assert (
            found["parameters"][0].tolist() == list(range(40))
            and found["momentum"][0].tolist() == [1] * 7
        )
    assert refused > 100


@pytest.mark.parametrize("size", [0, 1, 700, -1])
def test_a_checkpoint_that_was_cut_off_or_is_of_another_iteration_is_refused(
    tmp_path: Path, size: int
) -> None:
    checkpoints = Checkpoints(tmp_path, 0, torch)
    path = checkpoints.write(5, {"parameters": [torch.arange(40.0)]})
    path.rename(checkpoints.path(6))
    with pytest.raises(Damaged, match="it is of iteration 5"):
        checkpoints.read(6)
    checkpoints.path(6).write_bytes(checkpoints.path(6).read_bytes()[:size])
    with pytest.raises(Damaged):
        checkpoints.read(6)


@pytest.mark.parametrize(
    ("kept", "damaged", "wanted"),
    [
        ([[2, 4], [2, 4]], [(1, 4)], (2, 4)),
        ([[2, 4], [2, 4, 6]], [(1, 6)], (4, 0)),  # it was not needed, so nobody looked at it
        ([[2, 4, 6], [2, 4, 6]], [(0, 6), (1, 4)], (2, 6)),
        # rank 0 is as new on its host, and given the state of rank 1
        ([[2, 4], [2, 4]], [(0, 2), (0, 4)], (4, 4)),
        (
            [[2, 4], [2, 4]],
            [(0, 2), (0, 4), (1, 2), (1, 4)],
            "all checkpoints are damaged, the newest of iteration 4; to start again",
        ),
        (
            [[2, 4], [4]],
            [(0, 4)],
            "no checkpoint is common to all ranks: rank 0 has 2; rank 1 has 4",
        ),
        ([[], []], [], (0, 0)),
    ],
)
def test_all_ranks_go_on_from_the_newest_checkpoint_that_none_of_them_has_damaged(
    tmp_path: Path, kept: list[list[int]], damaged: list[tuple[int, int]], wanted: object
) -> None:
    meet, reported, sent = threading.Barrier(2), dict[str, dict[int, object]](), list[Any]()

    def rank(me: int) -> object:
        def gather(topic: str, value: object) -> list[object]:
            reported.setdefault(topic, {})[me] = json.loads(json.dumps(value))
            meet.wait(10)
            return [reported[topic][0], reported[topic][1]]

        def broadcast(tensor: Any, source: int) -> None:
            if me == source:
                sent.append(tensor)
            meet.wait(10)
            tensor.copy_(sent[-1])
            meet.wait(10)

        given = {"model": "mlp", "hidden": 0, "seed": 1, "compress": "none", "sync_every": 1}
        given |= dict.fromkeys(OF_SITES, 0)
        checkpoints = Checkpoints(tmp_path / str(me), me, torch)
        checkpoints.path(0).parent.mkdir()
        for iteration in kept[me]:
            state = {
                "parameters": [torch.full((64,), float(iteration))],
                "momentum": [torch.zeros(64)],
                "common": [],
            }
            path = checkpoints.write(iteration, given | state)
            if (me, iteration) in damaged:
                path.write_bytes(path.read_bytes()[:-9])
        arguments = Namespace(lr=0.1, resume=True, checkpoint="sync", iterations=9, **given)
        own = SimpleNamespace(no_grad=torch.no_grad, save=torch.save, load=torch.load)
        own.distributed = SimpleNamespace(broadcast=broadcast)
        job = SimpleNamespace(accord=SimpleNamespace(gather=gather), torch=own)
        job.place = SimpleNamespace(rank=me, job_dir=tmp_path / str(me), storage_mbps=0.0)
        weights = torch.zeros(64)
        by = SimpleNamespace(residuals=[], common=[])
        made = State(cast(Any, job), arguments, [weights], [torch.zeros(64)], cast(Any, by))
        try:
            done = made.restore()
        except ValueError as error:
            return str(error)
        assert weights.tolist() == [done] * 64
        return done, made.damaged

    one, two = together(2, rank)
    if isinstance(wanted, str):
        assert str(one).startswith(wanted) and one == two
    else:
        assert one == two == wanted


def test_a_training_goes_on_from_the_checkpoint_before_a_damaged_one_and_its_first_record_says_so(
    tmp_path: Path,
) -> None:
    def trained(*argv: str) -> list[tuple[int, str, str]]:
        with ranks(
            2, *TRAIN, "--checkpoint-every", "2", *argv, directory=tmp_path, rings=PAIR
        ) as job:
            return job.finish()

    assert [(code, err) for code, _, err in trained("--iterations", "4")] == [(0, "")] * 2
    straight = summary(tmp_path)["weights_sha256"]
    path = tmp_path / "1" / "checkpoint-1-4.pt"
    with zipfile.ZipFile(path) as file:
        largest = max(file.infolist(), key=lambda each: each.file_size)
    flip(path, largest.header_offset + largest.file_size // 2)
    ended = trained("--iterations", "4", "--resume")
    assert [code for code, _, _ in ended] == [0, 0] and ended[0][2] == ""
    assert (
        ended[1][2].startswith(f"# checkpoint: damaged, and passed over: {path}: ")
        and "another checksum" in ended[1][2]
    )
    assert (summary(tmp_path)["resumed_from"], summary(tmp_path)["weights_sha256"]) == (2, straight)
    assert [record.get("damaged") for record in records(tmp_path)] == [
        None,
        None,
        None,
        None,
        4,
        None,
    ]
