"""What a rank goes on from when others have states for it, too."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from workloads.programs import state as states
from workloads.programs.observers import Observer, Training
from workloads.programs.options import OF_SITES, OPTIONS
from workloads.programs.state import State

SAME = {"model": "mlp", "hidden": 8, "seed": 1, "compress": "none", "sync_every": 1}


class Keeps(Observer):
    """Has a state of `iteration`; 0: none."""

    def __init__(self, iteration: int, alone: bool = False) -> None:
        self.iteration, self.alone, self.asked = iteration, alone, list[int]()

    def restore(self, training: Training, after: int) -> int:
        self.asked.append(after)
        if self.alone and self.iteration <= after:
            raise ValueError(f"nothing beyond {after}")
        return self.iteration if self.iteration > after else 0


@pytest.fixture
def rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes the state of a rank of one, whose observers are these. others: what other ranks say of
    their checkpoints. lost: what no other rank gives any more.
    """

    def made(
        *having: Observer, others: Sequence[tuple[bool, list[int]]] = (), lost: str = "none"
    ) -> State:
        place = SimpleNamespace(rank=0, job_dir=tmp_path, storage_mbps=0.0)

        def gather(topic: str, value: Any) -> list[Any]:
            if topic.startswith(lost):
                raise RuntimeError("a peer is lost")
            return [value, *(others if topic.startswith("checkpoints") else ())]

        accord = SimpleNamespace(gather=gather)
        job = SimpleNamespace(place=place, torch=torch, accord=accord)
        arguments = SimpleNamespace(**SAME, resume=True, checkpoint="sync", lr=0.1)
        for option in OPTIONS["train"]:
            if option.name in OF_SITES:
                setattr(arguments, option.name, option.default)
        by = SimpleNamespace(common=[], residuals=[])
        monkeypatch.delenv("TESTBED_CHECKPOINT_DIR", raising=False)
        monkeypatch.setattr(states, "observers", lambda _: [*having])
        tensors = [torch.zeros(2)], [torch.zeros(2)]
        return State(cast(Any, job), cast(Any, arguments), *tensors, cast(Any, by))

    return made


def test_what_a_rank_has_of_later_iterations_than_it_is_given_is_dropped(
    rank: Any, tmp_path: Path
) -> None:
    before = rank()
    for iteration in (2, 4, 6):
        before.write(iteration)
    assert rank(Keeps(4, alone=True)).restore() == 4
    assert sorted(path.name for path in tmp_path.glob("*.pt")) == [
        "checkpoint-0-2.pt",
        "checkpoint-0-4.pt",
    ]
    assert rank().restore() == 4, "the next start goes on from there"


def test_ranks_of_which_one_is_lost_as_they_drop_later_iterations_still_have_one_past(
    rank: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.distributed, "broadcast", lambda *_: None)
    rank().write(8)
    with pytest.raises(RuntimeError, match="a peer is lost"):
        rank(Keeps(4, alone=True), lost="own state").restore()
    assert [*tmp_path.glob("*.pt")], "none drops any before all are given"
    assert rank(others=[(True, [4])]).restore() == 4, "the other had, and has what all were given"


@pytest.mark.parametrize(("first", "second", "done"), [(0, 9, 9), (9, 0, 9), (5, 9, 9), (9, 5, 9)])
def test_of_two_that_a_job_is_to_begin_from_alone_the_newer_is_taken(
    rank: Any, first: int, second: int, done: int
) -> None:
    assert rank(Keeps(first, alone=True), Keeps(second, alone=True)).restore() == done


def test_a_job_whose_followers_have_nothing_fails_as_the_last_of_them(rank: Any) -> None:
    with pytest.raises(ValueError, match="nothing beyond 0"):
        rank(Keeps(0, alone=True), Keeps(0, alone=True)).restore()


def test_ranks_without_a_common_checkpoint_begin_from_what_another_has_of_all(rank: Any) -> None:
    rank().write(6)
    kept = Keeps(4)
    assert rank(kept, others=[(False, [8])]).restore() == 4 and kept.asked == [0]
    rank().write(6)
    with pytest.raises(ValueError, match="no checkpoint is common to all ranks"):
        rank(Keeps(0), others=[(False, [8])]).restore()


def test_a_state_of_before_an_option_was_there_is_taken_as_that_of_its_default(rank: Any) -> None:
    here, content = rank(), io.BytesIO()
    torch.save(torch.load(here.write(3), weights_only=True), content)
    known = torch.load(io.BytesIO(content.getvalue()), weights_only=True)
    later = [name for name in here._later if name in known]
    assert later, "options that came later are among what names the weights"
    for name in later:
        del known[name]
    old = io.BytesIO()
    torch.save(known, old)
    assert here.take(old.getvalue(), own=True) == 3
