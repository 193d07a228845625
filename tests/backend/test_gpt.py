"""The example GPT, unmodified, as torchrun would start it: over gloo, and over the back-end
`testbed`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.backend.crew import ROOT, WORLD, environment
from tests.backend.test_ring_changes import NEW, step
from tests.workloads.agents import agents
from tests.workloads.ranks import free_port

TRAIN = ROOT / "examples" / "programs" / "gpt" / "train.py"
LONG = pytest.mark.long
END_S = 300
"""When a run counts as hanging; compiling takes a minute and more on a busy machine."""


Found = tuple[dict[int, float], set[str]]


@contextmanager
def started(
    directory: Path,
    *argv: str,
    world: int = WORLD,
    env: Callable[[int], Mapping[str, str]] = lambda _: {},
) -> Iterator[Callable[[], Found]]:
    """The ranks of a training; called, they are waited for: the losses by iteration, and the
    digests of their weights.
    """
    port, running = free_port(), []
    directory.mkdir(exist_ok=True)
    for rank in range(world):
        command, own = (
            [sys.executable, TRAIN, "--preset", "tiny", *argv],
            environment(rank, world, port, directory) | env(rank),
        )
        running.append(
            subprocess.Popen(
                command,
                env=own,
                cwd=directory,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )

    def finish() -> Found:
        ended = [(process.communicate(timeout=END_S), process.returncode) for process in running]
        assert all(code == 0 for _, code in ended), ended
        printed = "".join(out for (out, _), _ in ended)
        losses = {
            int(at): float(loss)
            for at, loss in re.findall(r"^iter (\d+) loss ([\d.]+)$", printed, re.MULTILINE)
        }
        return losses, set(re.findall(r"^rank \d+ weights (\w+)$", printed, re.MULTILINE))

    try:
        yield finish
    finally:
        for process in running:
            process.kill()
            process.communicate()


def train(directory: Path, backend: str, *argv: str, world: int = WORLD) -> Found:
    with started(directory, "--backend", backend, *argv, world=world) as finish:
        return finish()


def apart(one: dict[int, float], other: dict[int, float]) -> float:
    assert list(one) == list(other) == sorted(one)
    return max(abs(one[at] - other[at]) for at in one)


@LONG
@pytest.mark.timeout(700)
def test_gpt_loses_the_same_over_the_back_end_as_over_gloo_to_six_decimals(tmp_path: Path) -> None:
    (gloo, _), (own, digests) = (
        train(tmp_path, name, "--iterations", "20") for name in ("gloo", "testbed")
    )
    assert len(own) == 20 and own[20] < own[1] - 0.2
    assert len(digests) == 1
    assert apart(gloo, own) < 1.5e-6  # printed with six decimals


@LONG
@pytest.mark.timeout(900)
def test_gpt_learns_goes_on_from_its_checkpoint_and_is_the_same_each_time(tmp_path: Path) -> None:
    whole, digests = train(tmp_path / "a", "gloo", "--iterations", "12", world=2)
    kept = ("--checkpoints", str(tmp_path / "kept"), "--every", "4")
    first, _ = train(tmp_path / "b", "gloo", "--iterations", "8", *kept, world=2)
    then, same = train(tmp_path / "b", "gloo", "--iterations", "12", *kept, "--resume", world=2)
    assert first | then == whole and list(then) == [9, 10, 11, 12]
    assert same == digests


@LONG
@pytest.mark.timeout(900)
@pytest.mark.parametrize("word", ["--fsdp", "--compile"])
def test_gpt_is_the_same_under_fsdp_and_compiled(word: str, tmp_path: Path) -> None:
    plain, _ = train(tmp_path, "gloo", "--iterations", "8", world=2)
    losses, digests = train(tmp_path, "testbed", "--iterations", "8", word, world=2)
    assert apart(plain, losses) < 1e-4
    assert len(digests) == 1


@LONG
@pytest.mark.timeout(900)
def test_gpt_with_fsdp_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    argv = ("--fsdp", "--checkpoints", str(tmp_path / "kept"), "--every", "4")
    whole, digests = train(tmp_path, "testbed", "--iterations", "8", "--fsdp")
    train(tmp_path, "testbed", "--iterations", "4", *argv)
    then, same = train(tmp_path, "testbed", "--iterations", "8", *argv, "--resume")
    assert {**whole, **then} == whole and same == digests


@LONG
@pytest.mark.timeout(900)
def test_gpt_that_asks_for_nothing_gets_the_back_end_and_lives_through_new_rings(
    tmp_path: Path,
) -> None:
    with agents(WORLD, tmp_path) as (asked, found):
        env = {"TESTBED_REPLACES": "gloo"}
        with started(
            tmp_path / "job", "--iterations", "400", env=lambda rank: env | found(rank)
        ) as finish:
            asked.connect()
            step(asked, 1, NEW)
            losses, digests = finish()
    assert len(losses) == 400 and losses[400] < 3
    assert len(digests) == 1
