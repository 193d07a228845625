"""Seeded stories of the whole program keep every promise; see CONTRIBUTING.md for how a broken one
is told again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.catalogue import PLOTS

ROOT = Path(__file__).parents[2]
NEW = 40
"""Seeds of this commit: eight seconds of a core."""
FEW = {"recover": 3, "adapt": 3, "pacing": 3}
"""Of plots whose stories take a second of a core each."""
KEPT = [
    line.split()[0]
    for line in (Path(__file__).parent / "seeds.txt").read_text().splitlines()
    if line and line[0] != "#"
]


def shown(*argv: str, hash_seed: str = "random") -> subprocess.CompletedProcess[str]:
    """Tell stories in a process of their own: patched clocks must reach no other test."""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-m", "tests.sim", *argv]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False
    )


def commit() -> str:
    """The number of the first seed of this commit; without a repository that of a fixed one."""
    done = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return str(int(done.stdout[:6] or "100000", 16))


@pytest.mark.timeout(600)
def test_new_stories_break_no_promise() -> None:
    done = shown(commit(), str(NEW))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(600)
@pytest.mark.parametrize("plot", [name for name in PLOTS if name])
def test_stories_of_a_plot_break_no_promise(plot: str) -> None:
    done = shown(f"{plot}-{commit()}", str(FEW.get(plot, NEW // 8)))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(600)
def test_stories_that_once_broke_a_promise_break_none() -> None:
    done = shown(*KEPT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_seed_tells_the_same_story_in_any_process() -> None:
    one, other = shown("20153", hash_seed="1"), shown("20153", hash_seed="2")
    assert one.stdout.split()[1:4] == ["after", *one.stdout.split()[2:4]], one.stdout + one.stderr
    assert one.stdout.split()[:3] == other.stdout.split()[:3]


def test_a_story_is_told_with_fewer_decisions() -> None:
    whole, part = shown("20153", "--trace"), shown("20153", "--trace", "--only", "c3,c4")
    assert "START c4-bob-up" in whole.stdout and "START c4-bob-up" in part.stdout
    assert "START c6-bob-up" in whole.stdout and "START c6-bob-up" not in part.stdout
