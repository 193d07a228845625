"""Every example that `testbed examples` lists, run as it is listed: with an empty home, from a
copy, on the inventory it names.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.made_labs import _copy_to_free_ports
from tests.end_to_end.conftest import ROOT, TESTBED
from tests.kit.examples import LISTED, inventory_of, option
from tests.kit.waiting import until

pytestmark = [
    pytest.mark.long,
    pytest.mark.lab,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
]

AGAIN = {"status", "list", "show"}
"""Commands that only look; what they show may need a moment."""


class Trial:
    """A copy of the examples, and an operator in front of it who has nothing yet."""

    def __init__(self, folder: Path) -> None:
        self.home, self.folder = folder / "home", folder / "trial"
        self.home.mkdir()
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("TESTBED_", "XDG_", "PYTHON"))
        }
        places = {"HOME": str(self.home), "TESTBED_LOCK_DIR": str(folder / "locks")}
        self.env = (
            kept | places | {"PATH": f"{TESTBED.parent}:{os.environ['PATH']}", "NO_COLOR": "1"}
        )

    def run(self, command: str, fails: bool = False) -> str:
        """What a command line prints on both channels."""
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert fails or done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Trial]:
    found = Trial(tmp_path)
    subprocess.run(
        [TESTBED, "examples", "copy", found.folder],
        env=found.env,
        check=True,
        capture_output=True,
        timeout=60,
    )
    yield found
    for folder in (found.folder / "inventory").iterdir():
        found.run(f"testbed lab stop -i inventory/{folder.name}", fails=True)


def on_free_ports(trial: Trial, inventory: str) -> None:
    """Move the lab of the copy to ports that no other lab of this machine has; its commands stay as
    they are.
    """
    fresh = trial.folder / "inventory" / inventory
    _copy_to_free_ports(ROOT / "inventory" / inventory, fresh, trial.home / "labs" / inventory)


@pytest.mark.parametrize("name", LISTED)
def test_an_example_runs_as_it_is_listed_and_goes_down(name: str, trial: Trial) -> None:
    row = LISTED[name]
    commands = [shlex.split(command) for command in row["run"]]
    for inventory in {inventory_of(text) for text in commands}:
        on_free_ports(trial, inventory)
    *first, last = row["run"]
    for command in first:
        trial.run(command)
    if AGAIN & set(shlex.split(last)):
        until(lambda: row["see"] in trial.run(last), 300, f"{last} never showed {row['see']!r}")
    else:
        assert row["see"] in trial.run(last)
    for command in row["end"]:
        trial.run(command)
    for at, owner in {(option(text, "-i"), option(text, "--as")) for text in commands}:
        where = f"{f' -i {at}' if at else ''}{f' --as {owner}' if owner else ''}"
        trial.run(f"testbed down --yes{where}")
