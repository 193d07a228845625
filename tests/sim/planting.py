"""`python -m tests.sim mutants [NAME ...]`: plant mutants, and print who notices each."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tests.sim.mutants import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]
FIRST = 20000
"""The first seed that is told of each mutant."""
NOT_COPIED = frozenset(
    (
        ".git",
        ".venv",
        ".ci",
        "node_modules",
        "docs",
        "__pycache__",
        ".pytest_cache",
        ".mypy_cache",
        ".ruff_cache",
    )
)
TESTS = (
    *(
        f"tests/change/test_{name}.py"
        for name in ("recovery", "rollback", "retreat", "side_by_side", "chosen_run")
    ),
    "tests/jobs/test_start_together.py",
    *(
        f"tests/change/test_{name}.py"
        for name in ("one_owner", "ways_back", "confirm", "hold", "rare_moments", "staging_fails")
    ),
    *(
        f"tests/store/test_{name}.py"
        for name in ("locks", "lockqueue", "scope", "adoption", "recoveries")
    ),
    "tests/agent/test_fence.py",
    "tests/agent/routes/test_generations.py",
    "tests/agent/tcp/test_holds.py",
    "tests/agent/routes/test_half_way_back.py",
    *(
        f"tests/drivers/test_{name}.py"
        for name in ("late_delivery", "given_up", "what_is_not_said", "links_and_rounds")
    ),
    "tests/drills/test_device_faults.py",
)
"""The tests without simulation of what mutants change: a minute of two cores."""
TESTS_OF = {
    "guard": ("tests/services/guard",),
    "turn": ("tests/services/schedule",),
    "jobs": (
        "tests/jobs/test_jobs.py",
        "tests/change/test_ring_change.py",
        "tests/workloads/collectives/test_ring_changes.py",
    ),
    "queue": ("tests/queue", "tests/store/test_queue.py", "tests/jobs/test_jobs.py", "tests/hosts"),
    "recover": ("tests/services/guard", "tests/jobs/test_jobs.py"),
    "adapt": ("tests/extensions/adapt", "tests/background"),
    "pacing": (
        "tests/extensions/pacing",
        "tests/workloads/host/test_pace.py",
        "tests/agent/jobs/test_pace_requests.py",
    ),
}
"""Instead of those, of mutants of these plots."""


class Moved(AssertionError):
    """The code that a mutant changes is not there any more, or is there twice: choose its old text
    again.
    """


@dataclass(frozen=True)
class Noticed:
    """What became of a mutant. seed, message: of the story that noticed it and its judge, empty if
    none did; notified: so many stories.

    test: that failed, empty if none did; None: none was run.
    """

    seed: str
    message: str
    shown: int
    test: str | None = None


def places(text: str, old: str) -> list[tuple[int, int]]:
    """Where `old` is in `text`, each as (begin, end), wherever the formatter breaks its lines and
    adds a comma before a bracket.
    """
    pieces = re.findall(r"\w+|[^\w\s]", old)
    between = [
        r"\s+"
        if one[-1].isidentifier() and other[0].isidentifier()
        else r"(?:,?\s*)"
        if other in ")]}"
        else r"\s*"
        for one, other in pairwise(pieces)
    ]
    pattern = "".join(
        re.escape(piece) + gap for piece, gap in zip(pieces, [*between, ""], strict=True)
    )
    begin, end = r"[ \t]*" if old[0] in " \t" else "", r"[ \t]*\n" if old.endswith("\n") else ""
    return [found.span() for found in re.finditer(begin + pattern + end, text)]


@contextmanager
def planted(mutant: Mutant) -> Iterator[Path]:
    """A copy of the tree with a mutant, until the body ends. Raises: Moved."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(
            ROOT, tree, symlinks=True, ignore=lambda _, names: NOT_COPIED.intersection(names)
        )
        for file, old, new in mutant.edits:
            text = (tree / file).read_text()
            found = places(text, old)
            if len(found) != 1:
                raise Moved(f"{mutant.name}: {file} has {old!r} {len(found)} times")
            begin, end = found[0]
            (tree / file).write_text(text[:begin] + new + text[end:])
        yield tree


def _run(tree: Path, *argv: str, timeout_s: float) -> str:
    """What a Python of that tree prints."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, *argv],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return done.stdout + done.stderr


def by_stories(tree: Path, mutant: Mutant) -> Noticed:
    """Tell stories until a judge notices it."""
    seed = f"{mutant.plot}-{FIRST}" if mutant.plot else str(FIRST)
    lines = _run(tree, "-m", "tests.sim", seed, str(mutant.most), "--stop", timeout_s=600)
    bad, notices = (
        re.search(r"^seed (\S+): (.*)", lines, re.MULTILINE),
        re.search(r"^(\d+) seeds,", lines, re.MULTILINE),
    )
    if notices is None or (bad is not None and bad[2].startswith(("Traceback", "in a callback"))):
        raise AssertionError(
            f"{mutant.name}: no story is told at all, or ends by itself:\n{lines[-3000:]}"
        )
    if bad is not None and f"seed {bad[1]}:" in _run(
        ROOT, "-m", "tests.sim", bad[1], timeout_s=600
    ):
        raise AssertionError(
            f"the program itself breaks a promise in seed {bad[1]}: it says nothing of {mutant.name}"
        )
    return Noticed(bad[1] if bad else "", bad[2] if bad else "", int(notices[1]))


def by_tests(tree: Path, plot: str = "") -> str:
    """The first test that notices it, and does so alone, too; empty if none does."""
    passed: list[str] = []
    while True:
        reported = _pytest(
            tree, "-n", "2", *(f"--deselect={each}" for each in passed), *TESTS_OF.get(plot, TESTS)
        )
        failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", reported, re.MULTILINE)
        if failed is None:
            return ""
        if re.search(r"^(?:FAILED|ERROR) ", _pytest(tree, "-n", "0", failed[1]), re.MULTILINE):
            return failed[1]
        passed.append(failed[1])


def _pytest(tree: Path, *argv: str) -> str:
    """What pytest says. Raises: AssertionError - it ran nothing."""
    lines = _run(tree, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *argv, timeout_s=3600)
    if not re.search(r"^(FAILED|ERROR) |100%", lines, re.MULTILINE):
        raise AssertionError(f"no test was run:\n{lines[-3000:]}")
    return lines


def noticed(mutant: Mutant, *, tests: bool = False) -> Noticed:
    """Plant a mutant, and see who notices it. Raises: Moved."""
    with planted(mutant) as tree:
        found = by_stories(tree, mutant)
        return (
            Noticed(found.seed, found.message, found.shown, by_tests(tree, mutant.plot))
            if tests
            else found
        )


def row(mutant: Mutant, found: Noticed) -> str:
    """Who noticed a mutant, as a row of a table that is printed."""
    judge = (
        f"`{found.message.partition(': ')[0]}`"
        if found.message[:1].isupper()
        else "a command without faults"
    )
    stories = f"seed {found.shown}, {judge}" if found.seed else f"not in {found.shown}"
    tests = {None: "not run", "": "-"}.get(
        found.test, f"`{(found.test or '').rpartition('/')[2].partition('[')[0]}`"
    )
    return (
        f"| `{mutant.name}` | {mutant.promise} | {mutant.plot or 'usual'} | {stories} | {tests} |"
    )


def main(argv: list[str]) -> int:
    """Returns 1 if no story notices one of them."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim mutants", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", choices=[[], *MUTANTS], help="all, if none is given"
    )
    parser.add_argument(
        "--tests", action="store_true", help="run the tests without simulation, too: minutes each"
    )
    asked = parser.parse_args(argv)
    print("| mutant | promise | plot | simulation | other tests |\n|---|---|---|---|---|")
    alive = []
    for name in asked.names or MUTANTS:
        found = noticed(MUTANTS[name], tests=asked.tests)
        print(row(MUTANTS[name], found), flush=True)
        if not found.seed:
            alive.append(name)
    print(f"{len(asked.names or MUTANTS)} mutants, {len(alive)} alive {' '.join(alive)}".rstrip())
    return int(bool(alive))
