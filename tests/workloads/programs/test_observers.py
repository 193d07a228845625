"""An extension beside ranks is found by the environment: it is told of every step, and may be
what ranks begin from.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.workloads.ranks import ROOT, ranks
from workloads.programs.observers import observers

TRAIN = ("-m", "workloads.programs.train", "--hidden", "32", "--batch", "2")
LANTERN = """
from workloads.programs.observers import Observer

class Lantern(Observer):
    def __init__(self, words):
        self.alone, self.later, self.told = words == "alone", 7 if words else 0, []

    def restore(self, training, after):
        self.told.append(f"restore {after}")
        return self.later

    def begin(self, training, iteration):
        self.at = iteration
        self.told.append(f"begin {iteration} of {training.same['model']}")

    def see(self, bucket, rings):
        self.told += [f"see {rings.orders} {self.at + 1}"] if bucket.is_last() else []

    def before_step(self):
        self.told.append(f"before {self.at + 1}")

    def after_step(self, iteration):
        self.at = iteration
        self.told.append(f"after {iteration}")

    def end(self):
        open("told", "w").write("\\n".join(self.told))

observer = Lantern
"""


@pytest.fixture
def next_to(tmp_path: Path) -> str:
    """A search path on which the extensions are one that is made here."""
    package = tmp_path / "host" / "extensions" / "lantern" / "rank"
    package.mkdir(parents=True)
    for folder in (package.parents[1], package.parent):
        (folder / "__init__.py").touch()
    (package / "__init__.py").write_text(LANTERN)
    return f"{tmp_path / 'host'}:{ROOT}"


@pytest.mark.long
def test_each_rank_s_observer_is_told_of_every_step_and_may_have_what_the_ranks_begin_from(
    tmp_path: Path, next_to: str
) -> None:
    """Its own checkpoint is of iteration 7; the ranks write one of iteration 2 first."""
    for text, own, begun in (("", 0, 0), ("newer", 2, 7), ("alone", 0, 7)):
        more = {"PYTHONPATH": next_to, "TESTBED_OBSERVER_LANTERN": text}
        command = (
            *TRAIN,
            "--iterations",
            str(begun + 2),
            "--resume",
            *(() if text else ("--checkpoint-every", "2")),
        )
        with ranks(
            2,
            *command,
            directory=tmp_path,
            rings=[[0, 1]],
            more=lambda _, more=more: more,
            inside=True,
        ) as job:
            assert [(code, err) for code, _, err in job.finish()] == [(0, "")] * 2
        steps = [
            f"{word}{begun + n}" for n in (1, 2) for word in ("see [[0, 1]] ", "before ", "after ")
        ]
        for rank in range(2):
            notices = (tmp_path / str(rank) / "told").read_text().splitlines()
            assert notices == [f"restore {own}", f"begin {begun} of mlp", *steps]
        assert json.loads((tmp_path / "0" / "summary.json").read_text())["resumed_from"] == begun


def test_an_observer_of_an_extension_that_this_host_lacks_is_refused() -> None:
    assert observers({"TESTBED_OBSERVE": "", "PATH": ""}) == []
    with pytest.raises(
        ValueError, match=r"TESTBED_OBSERVER_LANTERN: No module named 'extensions\.lantern'"
    ):
        observers({"TESTBED_OBSERVER_LANTERN": ""})
