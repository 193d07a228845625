"""Ansible's working folder is gone after each command, and after the next one where a command was
killed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from orchestrator.hosts.workplace import Workplace

KILLED = (
    "import os, signal; from orchestrator.hosts.workplace import Workplace\n"
    "(Workplace().path / 'ansible-local-1').mkdir(); os.kill(os.getpid(), signal.SIGKILL)"
)

ANOTHER = "from orchestrator.hosts.workplace import Workplace\nprint(Workplace().path)"


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


def test_a_command_that_is_stopped_anywhere_keeps_no_other_waiting(base: Path) -> None:
    """Ctrl-Z in an unlucky moment: whatever a stopped process has open and locked, others get a
    folder at once.
    """
    first = Workplace()
    (home,) = base.iterdir()
    held = [os.open(path, os.O_RDONLY) for path in (home, first.path, first.path / ".lock")]
    for fd in held[:2]:
        fcntl.flock(fd, fcntl.LOCK_EX)
    second = subprocess.run(
        [sys.executable, "-c", ANOTHER], capture_output=True, text=True, timeout=30, check=True
    ).stdout
    assert second.strip() and Path(second.strip()) != first.path and first.path.is_dir()
    for fd in held:
        os.close(fd)
    first.close()


def test_a_new_folder_that_another_command_takes_for_an_abandoned_one_is_made_again(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def robbed(*argv: object, **more: str) -> str:
        made.append(mkdtemp(**more))
        if len(made) < 3:
            shutil.rmtree(made[-1])
        return made[-1]

    mkdtemp = tempfile.mkdtemp
    monkeypatch.setattr(tempfile, "mkdtemp", robbed)
    work = Workplace()
    assert work.path == Path(made[2]) and work.path.is_dir() and len(made) == 3
    work.close()
    assert left(base) == []


def test_a_folder_that_is_removed_just_before_it_is_locked_is_not_kept(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another command had it locked, and removes it as an abandoned one, between this one's open
    and lock.
    """
    lock, made = fcntl.flock, []

    def late(fd: int, how: int) -> None:
        made.append(Path(f"/proc/self/fd/{fd}").readlink().parent)
        if len(made) == 1:
            shutil.rmtree(made[0])
        lock(fd, how)

    monkeypatch.setattr(fcntl, "flock", late)
    work = Workplace()
    assert len(made) == 2 and work.path == made[1] and work.path.is_dir()
    work.close()


def test_a_home_that_others_may_write_is_not_used(tmp_path: Path) -> None:
    home = tmp_path / "shared"
    home.mkdir()
    home.chmod(0o770)
    work = Workplace(home)
    assert work.path.parent != home and not list(home.iterdir())
    work.close()


def test_a_name_that_somebody_else_took_is_not_trusted(base: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (base / f"testbed-{os.geteuid()}").symlink_to(tmp_path / "elsewhere")
    work = Workplace()
    assert work.path.parent == base and not list((tmp_path / "elsewhere").iterdir())
    work.close()
    assert not work.path.exists()


def test_the_path_is_short_enough_for_a_socket_of_ssh_in_the_usual_places(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setenv("TMPDIR", "/tmp")
    work = Workplace()
    try:
        # Ansible adds ten characters, OpenSSH a dot and sixteen more while it makes the socket.
        assert len(str(work.path)) + 1 + 10 + 17 < 108
    finally:
        work.close()
