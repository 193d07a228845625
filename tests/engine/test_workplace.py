"""Ansible's working folder is gone after each command, and after the next one where a command was killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.hosts.workplace import Workplace

KILLED = (
    "import os, signal; from orchestrator.hosts.workplace import Workplace\n"
    "(Workplace().path / 'ansible-local-1').mkdir(); os.kill(os.getpid(), signal.SIGKILL)"
)


@pytest.fixture(autouse=True)
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def left(base: Path) -> list[str]:
    """The folders of single commands."""
    return sorted(path.name for home in base.iterdir() for path in home.iterdir())


def test_a_command_that_ends_leaves_nothing(base: Path) -> None:
    work = Workplace()
    assert work.path.is_dir() and (work.path.stat().st_mode & 0o077) == 0
    (work.path / "socket").touch()
    work.close()
    work.close()
    assert left(base) == []


def test_what_a_killed_command_left_goes_with_the_next_and_what_is_in_use_stays(base: Path) -> None:
    ours = Workplace()
    assert subprocess.run([sys.executable, "-c", KILLED], check=False).returncode == -9
    assert len(left(base)) == 2
    third = Workplace()
    assert left(base) == sorted([ours.path.name, third.path.name])
    ours.close()
    third.close()


def test_a_name_that_somebody_else_took_is_not_trusted(base: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (base / f"testbed-{os.geteuid()}").symlink_to(tmp_path / "elsewhere")
    work = Workplace()
    assert work.path.parent == base and not list((tmp_path / "elsewhere").iterdir())
    work.close()
    assert not work.path.exists()


def test_the_path_is_short_enough_for_a_socket_of_ssh_in_the_usual_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setenv("TMPDIR", "/tmp")
    work = Workplace()
    try:
        # Ansible adds ten characters, OpenSSH a dot and sixteen more while it makes the socket.
        assert len(str(work.path)) + 1 + 10 + 17 < 108
    finally:
        work.close()
