"""Python on emulated hosts if it is installed in a private home: jobs run as a user without access
to it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.lab, pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root")]

SHOW = """
import os, subprocess, sys
from pathlib import Path
from emulators.fabric import interpreter, linux
linux.unshare(linux.NEW_NS)
linux.mount("none", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
os.umask(0o077)
interpreter.open_to_all([Path(word) for word in sys.argv[2:]])
os.setresuid(65099, 65099, 65099)
os.chdir(sys.argv[1])
print(subprocess.run(["sh", "-c", "find . | sort; find . -type f | xargs cat"], capture_output=True, text=True).stdout)
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A home that is closed to others: a Python in it, a link that the Python is also known by, and
    a secret.
    """
    folder = Path(tempfile.mkdtemp())  # that of `tmp_path` is private itself
    folder.chmod(0o755)
    place = folder / "home"
    (place / "pythons" / "3.11" / "bin").mkdir(parents=True)
    (place / "pythons" / "3.11" / "bin" / "python3").write_text("a python\n")
    (place / "pythons" / "latest").symlink_to("3.11")
    (place / "secret").write_text("a secret\n")
    for made in place.rglob("*"):  # open to all, whatever the umask is
        made.chmod(0o755)
    place.chmod(0o700)
    yield place
    shutil.rmtree(folder)


def seen(inside: Path, *wanted: Path) -> list[str]:
    """What a stranger sees of a directory after it was opened."""
    argv = [sys.executable, "-c", SHOW, str(inside), *map(str, wanted)]
    return subprocess.run(
        argv, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3]
    ).stdout.split("\n")[:-2]


def test_a_private_home_shows_the_python_in_it_and_nothing_else(place: Path) -> None:
    found = seen(place, place / "pythons" / "3.11", place / "pythons" / "latest")
    assert [line for line in found if "bin" in line] == [
        "./pythons/3.11/bin",
        "./pythons/3.11/bin/python3",
        "./pythons/latest/bin",
        "./pythons/latest/bin/python3",
    ]
    assert found[-2:] == ["a python", "a python"] and not any("secret" in line for line in found)
    assert (place / "secret").read_text() == "a secret\n", "the machine's own view is as it was"


def test_a_home_that_is_open_to_all_is_left_as_it_is(place: Path) -> None:
    place.chmod(0o755)
    assert "a secret" in seen(place, place / "pythons" / "3.11")
