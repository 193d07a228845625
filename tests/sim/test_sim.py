"""Seeded stories of the whole program keep every promise; see CONTRIBUTING.md for how a broken one
is told again.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.catalogue import PLOTS

ROOT = Path(__file__).parents[2]
NEW = 16
"""Seeds of this commit, a fifth of a second of a core each; of each plot an eighth as many."""
FEW = {"recover": 1, "adapt": 1, "pacing": 1}
"""Of plots whose stories take a second of a core each."""


def shown(*argv: str, hash_seed: str = "random") -> subprocess.CompletedProcess[str]:
    """Tell stories in a process of their own: patched clocks must reach no other test."""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-m", "tests.sim", *argv]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False
    )


def commit() -> int:
    """The number of the first seed of this commit; without a repository that of a fixed one."""
    done = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return int(done.stdout[:6] or "100000", 16)


def seeds_of(stories: str) -> list[str]:
    """Those that once broke a promise, or new ones of this commit: usual ones, of a plot, or twice as
    many of all.
    """
    if stories == "kept":
        lines = (Path(__file__).parent / "seeds.txt").read_text().splitlines()
        return [line.split()[0] for line in lines if line and line[0] != "#"]
    first, begin, end = (commit(), 1, 3) if stories == "more" else (commit(), 0, 1)
    return [
        f"{plot}-{first + n}".removeprefix("-")
        for plot in (PLOTS if stories == "more" else [stories.removeprefix("new")])
        for few in [FEW.get(plot, NEW // 8) if plot else NEW]
        for n in range(begin * few, end * few)
    ]


@pytest.fixture(scope="module")
def told(request: pytest.FixtureRequest) -> str:
    """What is said of all stories that this session asks for. One process tells them, because its
    imports take as long as ten stories.
    """
    asked = [
        seed
        for item in request.session.items
        if isinstance(item, pytest.Function) and "told" in item.fixturenames
        for seed in seeds_of(item.callspec.params["stories"])
    ]
    done = shown(*asked)
    assert re.search(rf"^{len(asked)} seeds, ", done.stdout, re.M), done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "stories",
    ["kept", "new", *filter(None, PLOTS), pytest.param("more", marks=pytest.mark.long)],
)
def test_stories_break_no_promise(stories: str, told: str) -> None:
    assert not [seed for seed in seeds_of(stories) if f"seed {seed}: " in told], told


def test_a_seed_tells_one_story_in_any_process_and_a_shorter_one_with_fewer_decisions() -> None:
    whole, again = (shown("20153", "--trace", hash_seed=seed).stdout for seed in ("1", "2"))
    ends = [re.findall(r"^\w+ after \d+ steps$", text, re.M) for text in (whole, again)]
    assert len(ends[0]) == 1 and ends[0] == ends[1], whole
    part = shown("20153", "--trace", "--only", "c3,c4").stdout
    assert "START c4-bob-up" in whole and "START c4-bob-up" in part
    assert "START c6-bob-up" in whole and "START c6-bob-up" not in part
