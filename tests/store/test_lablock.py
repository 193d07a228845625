"""One store per lab: who uses another is told so, and a dead process holds nobody up."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from optics import Locked, TestbedError
from orchestrator.processes import Daemon, process_mark
from orchestrator.store.one_store import StoreClaim

HOLD = """
import sys, pathlib, time
from orchestrator.store.one_store import StoreClaim
with StoreClaim(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), user="ann"):
    print("held", flush=True)
    time.sleep(60)
"""


def hold(path: Path, store: Path) -> subprocess.Popen[str]:
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path), str(store)], stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None and other.stdout.readline() == "held\n"
    return other


def end(other: subprocess.Popen[str], number: int = signal.SIGKILL) -> None:
    other.send_signal(number)
    other.wait()
    assert other.stdout is not None
    other.stdout.close()


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    path = tmp_path / "ours.sqlite3"
    path.touch()
    return path


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    path = tmp_path / "theirs.sqlite3"
    path.touch()
    return path


@pytest.fixture
def note(tmp_path: Path) -> Path:
    return tmp_path / "locks" / "emulated.lock"


@pytest.fixture
def ann(note: Path, theirs: Path) -> Iterator[subprocess.Popen[str]]:
    other = hold(note, theirs)
    yield other
    if other.poll() is None:
        end(other)


def test_another_store_on_the_same_lab_is_refused_and_named(
    note: Path, ours: Path, theirs: Path, ann: subprocess.Popen[str]
) -> None:
    with pytest.raises(
        Locked, match=rf"ann \(pid {ann.pid}\) is changing this lab with another store, {theirs}"
    ) as caught:
        StoreClaim(note, ours, user="bob").acquire()
    assert caught.value.exit_code == 4 and "share-a-lab.md" in caught.value.hint


def test_the_same_store_is_shared_by_whatever_path(
    note: Path, theirs: Path, ann: subprocess.Popen[str], tmp_path: Path
) -> None:
    link = tmp_path / "link.sqlite3"
    link.symlink_to(theirs)
    with StoreClaim(note, link, user="bob"), StoreClaim(note, theirs, user="cid"):
        pass


def test_a_killed_process_holds_nobody_up(
    note: Path, ours: Path, ann: subprocess.Popen[str]
) -> None:
    end(ann)
    with StoreClaim(note, ours, user="bob"):
        pass


def test_who_comes_later_of_the_same_store_keeps_the_note_when_the_first_goes(
    note: Path, ours: Path, theirs: Path
) -> None:
    first, second = StoreClaim(note, ours, user="bob"), StoreClaim(note, ours, user="bob")
    first.acquire()
    second.acquire()
    first.release()
    with pytest.raises(Locked, match="another store"):
        StoreClaim(note, theirs, user="ann").acquire()
    second.release()
    with StoreClaim(note, theirs, user="ann"):
        pass


def test_letting_go_twice_is_letting_go_once(note: Path, ours: Path) -> None:
    lock = StoreClaim(note, ours, user="bob")
    lock.acquire()
    lock.release()
    lock.release()


def test_a_directory_of_ones_own_and_the_note_in_it_are_closed_to_others(
    note: Path, ours: Path
) -> None:
    with StoreClaim(note, ours, user="bob"):
        assert stat.S_IMODE(note.parent.stat().st_mode) == 0o700
        assert stat.S_IMODE(note.stat().st_mode) == 0o600


def test_a_note_that_says_nothing_readable_is_not_believed(
    note: Path, ours: Path, ann: subprocess.Popen[str]
) -> None:
    note.write_text("{}")
    with pytest.raises(TestbedError, match="is locked but names no owner"):
        StoreClaim(note, ours, user="bob").acquire()


def test_a_process_id_used_again_is_another_process() -> None:
    first = subprocess.Popen(["sleep", "60"])
    try:
        mark = process_mark(first.pid)
        assert mark and mark == process_mark(first.pid) and mark != process_mark(os.getpid())
    finally:
        first.kill()
    zombie = process_mark(first.pid)
    first.wait()
    assert zombie == "" or zombie == mark
    assert process_mark(first.pid) == ""


def test_a_process_left_running_is_ended_by_its_mark_and_one_that_ignores_sigterm_by_sigkill() -> (
    None
):
    text = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"\n"
    left = Daemon.detach(process)
    process.stdout.close()
    assert left.alive and not Daemon(left.pid, "another life").alive and not Daemon(0, "").alive
    assert Daemon(left.pid, "another life").end(1.0) and left.alive, (
        "the id of another process gets no signal"
    )
    assert not left.end(0.2) and left.end(10.0, signal.SIGKILL) and not left.alive
